"""Figure 8: chunked pipeline parallelism: chunks of the prompt flow through the stages."""

import sys

from shapefront.costmodel import Layout
from shapefront.costmodel.models import load_model
from shapefront.studies.plots.pipeline import draw_pipeline, pipeline_rows


def rows():
    """DeepSeek-R1 on two stages, as the post draws it: who works on which chunk when."""
    return pipeline_rows(load_model("DeepSeek-R1"), Layout(tpa=2, ep=2, pp=2), input_tokens=65536, profile="gb300-blog")


if __name__ == "__main__":
    found = rows()
    print(f"first token after {max(row['end_seconds'] for row in found):.3f} s")
    draw_pipeline(found, note="DeepSeek-R1, 65,536 tokens, 2 stages of 2 GPUs").save(
        sys.argv[1] if len(sys.argv) > 1 else "figure8.png"
    )
