"""Figure 9: DeepSeek-R1, 256K input: the first token comes sooner with every doubling of PP, tokens/s/GPU stays."""

import sys

from shapefront.costmodel import Layout
from shapefront.costmodel.models import load_model
from shapefront.studies.plots.ttft import draw_ttft, ttft_rows


def rows():
    """PP 1 to 32; a stage is 2 GPUs (in NVFP4 the model does not fit on one)."""
    return ttft_rows(load_model("DeepSeek-R1"), Layout(tpa=2, ep=2), profile="gb300-blog")


if __name__ == "__main__":
    found = rows()
    for row in found:
        first, rate = row["ttft_seconds"], row["tokens_per_second_per_gpu"]
        print(f"PP {row['pp']:>2} on {row['gpus']:>2} GPUs: first token {first:6.2f} s, {rate:,.0f} prompt tokens/s/GPU")
    draw_ttft(found, note="DeepSeek-R1, 262,144 tokens, profile gb300-blog").save(
        sys.argv[1] if len(sys.argv) > 1 else "figure9.png"
    )
