"""Table 1: M, N, K of each linear layer of a transformer block, for one model.

The post writes them for multi-head attention (QKV: H -> 3H) and a plain FFN; fused QKV under GQA is narrower and a gated
FFN's gate and up projections run as one product of twice the width.
"""

import sys

from shapefront.costmodel import Architecture
from shapefront.costmodel.models import load_model
from shapefront.studies.output import print_table
from shapefront.studies.plots.layers import layer_gemms

# The post's own block: H = 8192, H' = 28672, MHA, plain FFN.
POST = Architecture(
    hidden_size=8192, intermediate_size=28672, num_hidden_layers=1, num_attention_heads=64, vocab_size=32000, gated_ffn=False
)


def rows(design):
    """(layer, N, K) of each product; M is the number of tokens."""
    return [[gemm.name, "tokens", gemm.n, gemm.k] for gemm in layer_gemms(design) if gemm.name != "LM head"]


if __name__ == "__main__":
    name = sys.argv[1] if len(sys.argv) > 1 else None
    design = load_model(name) if name else POST
    print_table(["layer", "GEMM M", "GEMM N", "GEMM K"], rows(design), title=f"Table 1 for {name or 'H = 8192, H-prime = 28672'}")
