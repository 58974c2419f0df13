"""Shapes the post speaks of, and near relatives that differ from them in one thing."""

from __future__ import annotations

from shapefront.costmodel import Architecture

DEEPSEEK_R1 = Architecture(
    name="DeepSeek-R1", hidden_size=7168, num_hidden_layers=61, num_attention_heads=128, vocab_size=129280, intermediate_size=18432,
    moe_intermediate_size=2048, n_shared_experts=1, num_experts=256, num_experts_per_tok=8, first_k_dense_replace=3,
    q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, attention="mla",
)  # fmt: skip
LLAMA_70B = Architecture(
    name="Llama-3.1-70B", hidden_size=8192, num_hidden_layers=80, num_attention_heads=64, num_key_value_heads=8,
    intermediate_size=28672, vocab_size=128256,
)  # fmt: skip
# Equal expert parameters and equal active ones: 16 experts of 14336, top-2, against 256 of 896, top-32.
COARSE = Architecture(
    name="coarse", hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8, vocab_size=32000,
    moe_intermediate_size=14336, num_experts=16, num_experts_per_tok=2,
)  # fmt: skip
FINE = COARSE.with_(name="fine", moe_intermediate_size=896, num_experts=256, num_experts_per_tok=32)
