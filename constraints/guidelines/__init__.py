"""The co-design post's seven guidelines as functions that return priced findings."""

from .catalogue import RULES
from .considered import Considered
from .finding import FINDING_SHARE, Draft, Finding, Rule
from .pricing import OperatingPoint, Pricer
from .review import DEFAULT_RATES, Review, review, structural_drafts

__all__ = [
    "DEFAULT_RATES",
    "FINDING_SHARE",
    "RULES",
    "Considered",
    "Draft",
    "Finding",
    "OperatingPoint",
    "Pricer",
    "Review",
    "Rule",
    "review",
    "structural_drafts",
]
