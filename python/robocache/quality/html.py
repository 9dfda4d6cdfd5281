"""The report as one HTML page: tables, and pictures drawn as SVG. It loads nothing and runs nothing."""

from __future__ import annotations

import math
from html import escape

import numpy as np

from .report import BINS_PER_DECADE, DECADES, Group, Report, StreamReport, Timeline, shown
from .rules import RULES

WIDTH = 640
BARS = 320
"""Bars of the picture of episodes: where there are more episodes, a bar is the worst of several."""
STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 72em; padding: 0 1em; color: #1b1f24; }
table { border-collapse: collapse; margin: .6em 0 1.6em; }
th, td { text-align: left; padding: .25em .8em .25em 0; border-bottom: 1px solid #d8dee4; vertical-align: top; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
.score { font-size: 3em; font-weight: 600; } .error { color: #b3261e; font-weight: 600; } .warning { color: #9a6700; }
.note, .more { color: #57606a; } svg { display: block; margin: .4em 0 1.4em; }
svg text { font: 11px system-ui, sans-serif; }
"""
COLORS = {"good": "#2f6f4f", "fair": "#b58900", "bad": "#b3261e", "line": "#57606a", "bar": "#3b6ea5"}


def page(report: Report) -> str:
    counts = ", ".join(f"{n} {name}{'' if n == 1 else 's'}" for name, n in report.counts.items())
    stored = {"right": "; all checksums match", "wrong": "; <b class='error'>checksums are wrong</b>"}
    parts = [
        "<!DOCTYPE html>",
        f"<html lang='en'><head><meta charset='utf-8'><title>check of {_text(report.path)}</title>",
        f"<style>{STYLE}</style></head><body>",
        f"<h1>{_text(report.path)}</h1>",
        f"<p>{_text(report.format)}, {len(report.episodes)} episodes, {len(report.streams)} streams</p>",
        f"<p><span class='score' style='color:{_color(report.score)}'>{shown(report.score)}</span> of 100</p>",
        f"<p>{counts}{stored.get(report.checksums, '')}</p>",
        *_findings(report),
        *_streams(report),
        *_left_out(report),
        *_episodes(report),
        *_thresholds(report),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _findings(report: Report) -> list[str]:
    if not report.groups:
        return ["<h2>Findings</h2>", "<p>None.</p>"]
    parts = ["<h2>Findings</h2>"]
    header = "<tr><th></th><th>finding</th><th>stream</th><th class='n'>episodes</th><th class='n'>count</th>"
    parts.append(f"<table id='findings'>{header}<th class='n'>points lost</th><th>the worst</th></tr>")
    parts += [_group_row(group) for group in report.groups]
    parts.append("</table>")
    parts.append("<h3>What they mean, and what to do</h3><table>")
    for kind in dict.fromkeys(group.kind for group in report.groups):
        rule = RULES[kind]
        parts.append(f"<tr><td><b>{kind}</b></td><td>{_text(rule.what)}</td><td>{_text(rule.do)}</td></tr>")
    parts.append("</table>")
    return parts


def _group_row(group: Group) -> str:
    at = group.worst
    where = [f"episode {at.episode}"] if at.episode is not None else []
    where += [f"row {at.row}"] if at.row is not None else []
    text = f"{', '.join(where)}: {at.text}" if where else at.text
    return (
        f"<tr><td class='{group.severity}'>{group.severity}</td><td>{group.kind}</td>"
        f"<td>{_text(group.stream or '')}</td><td class='n'>{group.episodes}</td><td class='n'>{group.count}</td>"
        f"<td class='n'>{group.points:.1f}</td><td>{_text(text)}</td></tr>"
    )


def _streams(report: Report) -> list[str]:
    names = ("score", "messages", "declared Hz", "measured Hz", "jitter", "longest interval, s")
    parts = ["<h2>Streams</h2>", "<table><tr><th>stream</th><th>kind</th>"]
    parts.append("".join(f"<th class='n'>{name}</th>" for name in names) + "</tr>")
    for name, s in report.streams.items():
        rates = [f"{rate:.2f}" if rate else "-" for rate in (s.declared_hz, s.measured_hz)]
        jitter = "-" if s.jitter is None else f"{s.jitter:.1%}"
        cells = (shown(s.score), str(s.messages), *rates, jitter, f"{s.longest_s:.3f}")
        parts.append(f"<tr><td>{_text(name)}</td><td>{s.kind}</td>")
        parts.append("".join(f"<td class='n'>{cell}</td>" for cell in cells) + "</tr>")
    parts.append("</table>")
    if any(s.histogram.any() for s in report.streams.values()):
        parts.append("<h3>Intervals between rows</h3>")
        parts.append("<p class='more'>Both axes are logarithmic; the line is the declared rate.</p>")
    for s in report.streams.values():
        if s.histogram.any():
            parts += [f"<h4>{_text(s.name)}</h4>", _histogram(s)]
    return parts


def _left_out(report: Report) -> list[str]:
    if not report.left_out:
        return []
    lines = (f"<li>{_text(str(entry))}</li>" for entry in report.left_out)
    return ["<h2>Left out</h2>", "<ul>", *lines, "</ul>"]


def _histogram(stream: StreamReport) -> str:
    used = np.flatnonzero(stream.histogram)
    first, last = used[0] // BINS_PER_DECADE * BINS_PER_DECADE, (used[-1] // BINS_PER_DECADE + 1) * BINS_PER_DECADE
    height, step = 90, WIDTH / (last - first)
    top = math.log10(float(stream.histogram.max()) + 1)
    shapes = []
    for i in used.tolist():
        size = max(1.0, height * math.log10(float(stream.histogram[i]) + 1) / top)
        title = f"{int(stream.histogram[i])} from {_nanoseconds(i)} to {_nanoseconds(i + 1)}"
        x = (i - first) * step
        shapes.append(_bar(x, height - size, max(step - 1, 1), size, COLORS["bar"], title))
    for decade in range(DECADES[0], DECADES[1] + 1):
        place = (decade - DECADES[0]) * BINS_PER_DECADE
        if first <= place <= last:
            x = (place - first) * step
            anchor = "end" if place == last else "middle" if place > first else "start"
            text = f"<text x='{x:.1f}' y='{height + 14}' text-anchor='{anchor}'>{_nanoseconds(place)}</text>"
            shapes.append(text)
    if stream.declared_hz:
        x = ((math.log10(1e9 / stream.declared_hz) - DECADES[0]) * BINS_PER_DECADE - first) * step
        if 0 <= x <= WIDTH:
            shapes.append(f"<line x1='{x:.1f}' x2='{x:.1f}' y1='0' y2='{height}' stroke='{COLORS['bad']}'/>")
    return _svg(height + 20, shapes, f"intervals of {stream.name}")


def _episodes(report: Report) -> list[str]:
    if not report.episodes:
        return []
    scores = np.array([episode.score for episode in report.episodes])
    parts = np.array_split(np.arange(len(scores)), min(len(scores), BARS))
    step, height, shapes = WIDTH / len(parts), 90, []
    for i, part in enumerate(parts):
        worst = int(part[scores[part].argmin()])
        size = max(1.0, height * float(scores[worst]) / 100)
        title = f"episode {worst}: {shown(float(scores[worst]))}"
        shapes.append(_bar(i * step, height - size, max(step - 0.5, 0.5), size, _color(float(scores[worst])), title))
    caption = "A bar for each episode" if len(parts) == len(scores) else f"A bar for the worst of each {len(parts[0])}"
    result = ["<h2>Episodes</h2>", f"<p class='more'>{caption}: its score, from 0 to 100.</p>"]
    result.append(_svg(height + 4, shapes, "scores of the episodes"))
    for timeline in report.timelines:
        result.append(f"<h4>episode {timeline.episode}, score {shown(timeline.score)}</h4>")
        result.append(_timeline(timeline))
    return result


def _timeline(timeline: Timeline) -> str:
    """A bar for each stream from its begin to its end, with its gaps left white."""
    first = min((begin for begin, _, _ in timeline.streams.values()), default=0)
    last = max((end for _, end, _ in timeline.streams.values()), default=0)
    span, label = max(last - first, 1), 220

    def x(time_ns: int) -> float:
        return float(label + (WIDTH - label) * ((time_ns - first) / span))

    shapes = []
    for row, (name, (begin, end, gaps)) in enumerate(timeline.streams.items()):
        y = 18 * row
        shapes.append(f"<text x='0' y='{y + 12}'>{_text(name if len(name) < 36 else '...' + name[-33:])}</text>")
        title = f"{name}: {(begin - first) / 1e9:.3f} s to {(end - first) / 1e9:.3f} s"
        shapes.append(_bar(x(begin), y + 3, max(x(end) - x(begin), 1), 11, COLORS["bar"], title))
        for a, b in gaps:
            shapes.append(_bar(x(a), y + 2, max(x(b) - x(a), 1), 13, "#ffffff", f"gap of {(b - a) / 1e9:.3f} s"))
    height = 18 * len(timeline.streams)
    shapes.append(f"<text x='{label}' y='{height + 12}'>0 s</text>")
    end_text = f"<text x='{WIDTH}' y='{height + 12}' text-anchor='end'>{span / 1e9:.3f} s</text>"
    return _svg(height + 18, [*shapes, end_text], f"streams of episode {timeline.episode}")


def _thresholds(report: Report) -> list[str]:
    rows = "".join(
        f"<tr><td>{name}</td><td class='n'>{value:g}</td></tr>" for name, value in vars(report.thresholds).items()
    )
    number = report.findings_not_kept
    not_kept = f"<p class='more'>{number} findings are counted and not kept.</p>" if number else ""
    return [not_kept, "<h2>Thresholds</h2>", f"<table>{rows}</table>"]


def _svg(height: float, shapes: list[str], title: str) -> str:
    head = f"<svg viewBox='0 0 {WIDTH} {height:g}' width='{WIDTH}' height='{height:g}' role='img'>"
    return f"{head}<title>{_text(title)}</title>{''.join(shapes)}</svg>"


def _bar(x: float, y: float, width: float, height: float, color: str, title: str) -> str:
    place = f"x='{x:.1f}' y='{y:.1f}' width='{width:.1f}' height='{height:.1f}'"
    return f"<rect {place} fill='{color}'><title>{_text(title)}</title></rect>"


def _color(score: float) -> str:
    return COLORS["good" if score >= 90 else "fair" if score >= 70 else "bad"]


def _nanoseconds(place: int) -> str:
    time_ns = 10 ** (DECADES[0] + place / BINS_PER_DECADE)
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if time_ns >= size * 0.999:
            return f"{time_ns / size:.3g} {unit}"
    return f"{time_ns:.3g} ns"


def _text(text: str) -> str:
    """Names and messages come from files: nothing in them is markup, and what UTF-8 lacks is a question mark."""
    return escape(text.encode("utf-8", "replace").decode())
