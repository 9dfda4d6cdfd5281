"""Targets: what is required of a figure, stated as data, and whether it was met."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Result = dict[str, Any]
WORST, CLEAN = "worst", "clean"
SPREAD = "spread"
X_CLEAN = 1.5  # no input may cost more than this many times its clean input


@dataclass(frozen=True)
class Limit:
    """At most `at_most` of the figure `what`, over the worst input, over the clean inputs, or on one named input.

    `what`: "us" (our time), "x floor", "x clean" (our time / our time on the clean input), "spread" (our slowest / our
    fastest input), or "x <name>": our time / the time of that rival or of that call of ours beside it.
    """

    what: str
    at_most: float
    over: str = WORST

    @property
    def name(self) -> str:
        return f"{self.what}, {self.over}"


@dataclass(frozen=True)
class Figure:
    """One input of a case. `ours_us` is the figure; `clean` names the input it is compared with, itself if clean."""

    input: str
    clean: str
    ours_us: float
    floor_us: float
    others_us: dict[str, float]
    agrees: bool = True


def target(measured: float, **rule: float) -> Result:
    """`at_least` or `at_most`, what was measured, and whether the target was met."""
    ((side, value),) = rule.items()
    return {side: value, "measured": measured, "met": measured >= value if side == "at_least" else measured <= value}


def judge(limits: dict[str, float], measured: dict[str, float], agrees: bool = True) -> Result:
    """Every limit as a target. A case whose values differ from those of its rivals meets none."""
    found = {name: target(measured[name], at_most=most) for name, most in limits.items()}
    return found if agrees else {name: {**entry, "met": False} for name, entry in found.items()}


def value_of(what: str, figure: Figure, clean: Figure) -> float | None:
    """The figure `what` of one input; None where it was not measured."""
    if what == "us":
        return figure.ours_us
    if what == "x floor":
        return figure.ours_us / figure.floor_us
    if what == "x clean":
        return figure.ours_us / clean.ours_us
    if what == SPREAD:
        return None  # over all inputs, see judge_inputs
    other = figure.others_us.get(what.removeprefix("x "))
    return None if other is None else figure.ours_us / other


def judge_inputs(limits: tuple[Limit, ...], figures: list[Figure]) -> Result:
    """Each limit with its worst measured input: {"us, worst": {"at_most", "measured", "met", "input"}}. A limit is left
    out if its figure was not measured: a rival that was not timed, an input that was not run."""
    by_name = {figure.input: figure for figure in figures}
    agrees = all(figure.agrees for figure in figures)
    targets = {}
    for limit in limits:
        chosen = [f for f in figures if limit.over in (WORST, f.input) or (limit.over == CLEAN and f.input == f.clean)]
        values = [
            (value, f.input) for f in chosen if (value := value_of(limit.what, f, by_name.get(f.clean, f))) is not None
        ]
        if limit.what == SPREAD:
            fastest = min(f.ours_us for f in figures)
            values = [(f.ours_us / fastest, f.input) for f in figures] if len(figures) > 1 else []
        if values:
            measured, name = max(values)
            entry = target(measured, at_most=limit.at_most)
            targets[limit.name] = {**entry, "met": entry["met"] and agrees, "input": name}
    return targets


def judge_least(least: dict[str, float], ratios: dict[str, dict[str, float]]) -> Result:
    """Ratios that must be at least so large on every input; `ratios`: by input, then by name. The lowest counts."""
    targets = {}
    for name, value in least.items():
        measured = [(found[name], label) for label, found in ratios.items() if name in found]
        if measured:
            lowest, label = min(measured)
            targets[name] = {**target(lowest, at_least=value), "input": label}
    return targets


def verdict(entry: Result) -> str:
    return "met" if entry["met"] else "MISSED"


def rule(entry: Result) -> float:
    value: float = entry["at_most"] if "at_most" in entry else entry["at_least"]
    return value
