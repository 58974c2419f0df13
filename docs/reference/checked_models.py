"""Write checked-models.md: what `shapefront check` says about every built-in model the engine covers.

Run: python docs/reference/checked_models.py
"""

from pathlib import Path

from shapefront.costmodel.models import model_rows
from shapefront.studies.check import check

HEAD = """# Real models, checked

What `shapefront check NAME` finds under the study defaults (8192 tokens in, 1024 out, NVFP4 linear layers, FP8 KV cache, profile
`{profile}`; 1-8 GPUs up to 70B, 4-72 above; throughput counted at 20 tokens/s/user, latency at 100). A cost is the share of the
decode step's time that the compliant neighbours would save, everything else equal. **Findings** cost at least 0.5 % at one of
the two rates; **information** lists the cheaper departures, those that are no property of the design, and those whose fix would
be slower or would raise the predicted loss by more than 0.010 nats/token. Regenerate with
`python docs/reference/checked_models.py`.

A shape is judged as hardware sees it, not as a model: SF009 ("deeper than quality asks for") leans on a shape law fitted below 2B
parameters. Under the defaults decode is mostly KV reads and weight reads, so a dimension that is not a multiple of 128 costs
little there; it costs more where GEMMs are compute-bound, as the prefill share shows. (The measured tables behind the profile
hold aligned sizes only: what it says between them is the tile model's.)

| model | findings: id, dimension, cost at throughput / latency / in prefill | information |
|---|---|---|
"""


def share(value):
    """A share in percent, an en dash where it cannot be told."""
    return "–" if value is None else f"{value:.1%}"


def shares(finding):
    """The three cost shares."""
    return " / ".join(share(v) for v in (finding.cost_share_throughput, finding.cost_share_latency, finding.cost_share_prefill))


def row(name):
    """One line of the table."""
    result = check(name)
    findings = [f"{f.id} {f.dimension} {shares(f)}" for f in result.findings]
    information = [
        f"{f.id} {f.dimension}" + (f" ({shares(f)})" if f.guideline == 2 else "")
        for f in result.review.information
        if f.id != "SF014"
    ]
    return f"| {name} | {'; '.join(findings) or 'none'} | {'; '.join(information) or 'none'} |", result.to_dict()["profile"]


def main():
    """Check every covered model and write the page."""
    covered = [r.name for r in model_rows() if "shape" not in r.not_covered]
    lines, profiles = zip(*(row(name) for name in covered), strict=True)
    left_out = [f"- {r.name}: {r.reason}." for r in model_rows() if "shape" in r.not_covered]
    text = (
        HEAD.format(profile=profiles[0]) + "\n".join(lines) + "\n\nLeft out, because the engine only approximates the shape:\n\n"
    )
    text += (
        "\n".join(left_out) + "\n\nSF014 (uneven routing) applies to every mixture of experts and is not repeated in the table.\n"
    )
    (Path(__file__).parent / "checked-models.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
