"""A check as SARIF 2.1.0 (OASIS standard, 27 March 2020), for code-scanning pages and CI annotations."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ..constraints.guidelines import RULES, Finding
from .check import CheckResult, finding_dict, fix_loss_text

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def to_sarif(result: CheckResult) -> dict[str, Any]:
    """One SARIF run with every rule and every departure; a finding is a warning, information a note.

    Args:
        result: a checked model; where it came from a file, results point at the line of their dimension.
    """
    from .. import __version__

    order = list(RULES)
    rules = [
        {
            "id": rule.id,
            "name": "".join(part.capitalize() for part in re.findall(r"[A-Za-z0-9]+", rule.title)),
            "shortDescription": {"text": rule.title},
            "fullDescription": {"text": rule.help},
            "help": {"text": f"{rule.help} Source: {rule.source}."},
            "defaultConfiguration": {"level": "warning"},
            "properties": {"guideline": rule.guideline},
        }
        for rule in RULES.values()
    ]
    lines = _lines(result.source)
    results = [
        {
            "ruleId": finding.id,
            "ruleIndex": order.index(finding.id),
            "level": "warning" if finding.level == "finding" else "note",
            "message": {"text": _text(finding)},
            "locations": [_location(result, finding, lines)],
            "partialFingerprints": {"shapefront/v1": f"{finding.id}:{finding.dimension}"},
            "properties": {k: v for k, v in finding_dict(finding).items() if k not in ("id", "message")},
        }
        for finding in result.review.all
    ]
    driver = {"name": "shapefront", "version": __version__, "semanticVersion": __version__, "rules": rules}
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}],
    }


def _text(finding: Finding) -> str:
    costs = [
        f"{share:.1%} of the step at {goal}"
        for goal, share in (("throughput", finding.cost_share_throughput), ("latency", finding.cost_share_latency))
        if share is not None
    ]
    text = finding.message[0].upper() + finding.message[1:] + "."
    if costs:
        text += f" Costs {' and '.join(costs)}."
    if finding.fix:
        loss = "" if finding.loss_change is None else f" (predicted loss {fix_loss_text(finding.loss_change)})"
        text += f" Fix: {finding.fix_text}{loss}."
    return text


def _lines(source: str) -> list[str]:
    path = Path(source)
    path = path / "config.json" if path.is_dir() else path
    return path.read_text(encoding="utf-8-sig").splitlines() if path.is_file() else []


def _location(result: CheckResult, finding: Finding, lines: list[str]) -> dict[str, Any]:
    if not lines:
        return {
            "logicalLocations": [{"name": finding.dimension, "fullyQualifiedName": f"{result.design.name}.{finding.dimension}"}]
        }
    key = re.compile(rf'^\s*"?{re.escape(finding.dimension)}"?\s*[:=]')
    number = next((i for i, line in enumerate(lines, 1) if key.search(line)), 1)
    path = Path(result.source)
    path = path / "config.json" if path.is_dir() else path
    uri = path.as_uri() if path.is_absolute() else path.as_posix()
    return {
        "physicalLocation": {"artifactLocation": {"uri": uri}, "region": {"startLine": number}},
        "logicalLocations": [{"name": finding.dimension}],
    }
