"""Markdown as GitHub reads it, written so that Python-Markdown, which the site uses, reads it the same way.

GitHub begins a list or a table without an empty line before it, and nests what is indented to the text of a list item.
Python-Markdown needs the empty line, and four spaces for each level.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

ITEM = re.compile(r"( *)([-*+]|\d{1,9}[.)])( +)")
TABLE_RULE = re.compile(r" *\|?[ :|-]*-[ :|-]*\|[ :|-]*$")
FENCE = re.compile(r" *(```+|~~~+)")
TARGET = re.compile(r"\]\(([^)\s]+)\)")
CODE_SPAN = re.compile(r"(`+)(?:.|\n)+?\1")


def indent_of(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def parts(text: str) -> Iterator[tuple[bool, str]]:
    """The text in parts: (whether it is a fenced block, its lines)."""
    lines: list[str] = []
    fence = ""
    for line in text.splitlines(keepends=True):
        begun = FENCE.match(line)
        if not fence and begun:
            yield False, "".join(lines)
            lines, fence = [line], begun[1]
        elif fence and begun and line.strip() == fence:
            yield True, "".join([*lines, line])
            lines, fence = [], ""
        else:
            lines.append(line)
    yield bool(fence), "".join(lines)


def with_links(text: str, replace: Callable[[str], str]) -> str:
    """The text with `replace(target)` for the target of every link and picture that is not inside code."""

    def outside_code(part: str) -> str:
        pieces, end = [], 0
        for code in CODE_SPAN.finditer(part):
            pieces += [linked(part[end : code.start()]), code[0]]
            end = code.end()
        return "".join([*pieces, linked(part[end:])])

    def linked(part: str) -> str:
        return TARGET.sub(lambda match: f"]({replace(match[1])})", part)

    # A code span that is the text of a link ends before the "](": the parts around it still have the whole target.
    return "".join(part if is_code else outside_code(part) for is_code, part in parts(text))


def for_python_markdown(text: str) -> str:
    """The text with the empty lines and the indentation that Python-Markdown needs."""
    written: list[str] = []
    offsets: list[int] = []  # of the list items that are open: the column of their text
    before = ""  # the kind of the line before
    fence = ""
    lines = text.splitlines()
    for i, line in enumerate(lines):
        begun = FENCE.match(line)
        indent = indent_of(line)
        if fence or begun:
            if not fence and before in ("blank", "") and indent == 0:
                offsets = []
            shift = 4 * len(offsets) - (offsets[-1] if offsets else 0)
            written.append(" " * max(0, indent + shift) + line.lstrip(" ") if line.strip() else "")
            fence = "" if fence and line.strip() == fence else fence or (begun[1] if begun else "")
            before = "fence"
            continue
        item = ITEM.match(line)
        following = lines[i + 1] if i + 1 < len(lines) else ""
        kind = kind_of(line, following, item, before, offsets)
        if kind == "item" and item:
            while offsets and indent < offsets[-1]:
                offsets.pop()
            if before == "paragraph" or (not offsets and before not in ("blank", "item", "inside", "")):
                written.append("")
            written.append(" " * 4 * len(offsets) + line.lstrip(" "))
            offsets.append(len(item[0]))
        elif kind in ("inside", "code inside"):
            while before == "blank" and offsets and indent < offsets[-1]:
                offsets.pop()
            extra = max(0, indent - offsets[-1]) if before in ("blank", "code inside") else 0
            written.append(" " * (4 * len(offsets) + extra) + line.lstrip(" "))
        else:
            if kind != "blank":
                offsets = []
                if kind != before and before not in ("blank", "") and {kind, before} & {"heading", "table", "comment"}:
                    written.append("")
            written.append(line)
        # A second paragraph of an item needs an empty line after it, too.
        before = "paragraph" if kind == "inside" and before in ("blank", "paragraph") else kind
    return "\n".join(written) + "\n"


def kind_of(line: str, following: str, item: re.Match[str] | None, before: str, offsets: list[int]) -> str:
    if not line.strip():
        return "blank"
    if line.startswith("#"):
        return "heading"
    if line.startswith("<!--"):
        return "comment"
    if before == "table" or ("|" in line and TABLE_RULE.match(following)):
        return "table" if "|" in line else "text"
    indent = indent_of(line)
    is_list = bool(offsets)
    if item and (is_list or indent < 4) and (is_list or before != "text" or item[2] in ("-", "*", "+", "1.", "1)")):
        return "item"
    if is_list and (before != "blank" or indent >= offsets[0]):
        is_code = indent >= offsets[-1] + 4 and before in ("blank", "code inside")
        return "code inside" if is_code else "inside"
    return "text"
