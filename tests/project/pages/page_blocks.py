"""Reads the pages of the documentation: fenced blocks of code, indented lines, code in the text."""

import functools
import re
from typing import NamedTuple

from paths import ROOT

FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in (
        *ROOT.glob("*.md"),
        *ROOT.glob(".github/[A-Z]*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("examples/**/README.md"),
    )
)


class Block(NamedTuple):
    """Where the code begins, its language, and the code."""

    page: str
    line: int
    language: str
    code: str

    @property
    def first(self):
        return self.code.splitlines()[0]


@functools.cache
def blocks(page, language=None):
    """The fenced blocks of a page, in order."""
    text = (ROOT / page).read_text()
    found = [
        Block(page, text[: m.start()].count("\n") + 2, m[2], re.sub(f"^{m[1]}", "", m[3], flags=re.MULTILINE))
        for m in FENCE.finditer(text)
    ]
    return [block for block in found if language in (None, block.language)]


def prose(page):
    """A page without its fenced blocks, with commands of several lines on one."""
    return re.sub(r"\\\n +", "", FENCE.sub("", (ROOT / page).read_text()))


def indented(page):
    """Lines of blocks that are indented by four spaces, without the indent."""
    found, listing = [], False
    before = ""
    for line in prose(page).splitlines():
        listing = line.startswith("    ") and (listing or not before.strip() or before.startswith("#"))
        if listing:
            found.append(line[4:])
        before = line
    return found


def in_ticks(page):
    """Code within the text."""
    return re.findall(r"`([^`\n]+)`", prose(page))
