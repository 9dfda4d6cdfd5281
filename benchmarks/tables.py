"""Writes the tables of README.md, docs/benchmarks.md and docs/pixels.md from the committed results.

python benchmarks/tables.py            writes
python benchmarks/tables.py --check    ends with code 1 if they differ
"""

from __future__ import annotations

import pathlib
import sys

from align import tables as align_tables
from align.tables import NOT_MEASURED, PICTURE
from measure import readme_table
from measure.report import RESULTS, ROOT, load
from pipeline.ingest import tables as ingest_tables
from pipeline.loader import tables as loader_tables
from pipeline.training import tables as training_tables
from pixels import tables as pixels_tables
from voxelize import tables as voxelize_tables

README, DOCS, PIXELS = ROOT / "README.md", ROOT / "docs" / "benchmarks.md", ROOT / "docs" / "pixels.md"

__all__ = ["DOCS", "NOT_MEASURED", "PICTURE", "README", "RESULTS", "documents", "fill", "load"]


def fill(text: str, block: str, content: str) -> str:
    """The text with the content between the marks of the block replaced."""
    begin, end = f"<!-- {block}:begin -->", f"<!-- {block}:end -->"
    head, rest = text.split(begin)
    return f"{head}{begin}\n{content}\n{end}{rest.split(end)[1]}"


def documents() -> dict[pathlib.Path, str]:
    """The text that each document should have."""
    cpu, cuda = align_tables.committed()
    blocks = align_tables.blocks(cpu, cuda) | align_tables.honest_blocks()
    for benchmark in (voxelize_tables, ingest_tables, loader_tables, training_tables, pixels_tables):
        blocks |= benchmark.blocks()
    docs = DOCS.read_text()
    for block, content in blocks.items():
        docs = fill(docs, block, content)
    pixels = PIXELS.read_text()
    for block, content in pixels_tables.guide().items():
        pixels = fill(pixels, block, content)
    return {README: fill(README.read_text(), "bench", readme_table.table()), DOCS: docs, PIXELS: pixels}


def main() -> int:
    differ = {path: text for path, text in documents().items() if text != path.read_text()}
    if "--check" in sys.argv:
        for path in differ:
            print(f"{path.relative_to(ROOT)} differs from benchmarks/results: run python benchmarks/tables.py")
        return int(bool(differ))
    for path, text in differ.items():
        path.write_text(text)
        print(f"wrote {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
