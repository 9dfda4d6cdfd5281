"""Data quality: findings with their place, a score, and a report as text, JSON or HTML. See docs/check.md."""

from .check import check
from .report import EpisodeReport, Group, Report, StreamReport, Timeline
from .rules import RULES, SEVERITIES, Finding, Rule, Thresholds

__all__ = [
    "RULES",
    "SEVERITIES",
    "EpisodeReport",
    "Finding",
    "Group",
    "Report",
    "Rule",
    "StreamReport",
    "Thresholds",
    "Timeline",
    "check",
]
