"""JSON out of files: bytes, values and depth are limited before memory is taken for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..._core import FormatError
from .budget import Budget
from .paths import open_regular, read_file

MAX_JSON_BYTES = 64 << 20
MAX_LINES_BYTES = 256 << 20
MAX_VALUES = 4 << 20
MAX_DEPTH = 64


def load_json(path: Path, budget: Budget) -> Any:
    """The content of a JSON file; FormatError where it is not one, or too large."""
    return parse_json(read_file(path, MAX_JSON_BYTES), f"open: {path}", budget)


def load_json_lines(path: Path, budget: Budget) -> list[dict[str, Any]]:
    """A file of one JSON object per line."""
    lines, total = [], 0
    with open_regular(path) as file:
        for number, text in enumerate(iter(lambda: file.readline(MAX_JSON_BYTES + 1), b""), 1):
            total += len(text)
            where = f"open: {path}, line {number}"
            if total > MAX_LINES_BYTES:
                raise FormatError(f"{where}: the file must have at most {MAX_LINES_BYTES} bytes")
            if not text.strip():
                budget.count(where)
                continue
            line = parse_json(text, where, budget)
            if not isinstance(line, dict):
                raise FormatError(f"{where}: must be an object, got {text[:80]!r}")
            lines.append(line)
    return lines


def parse_json(data: bytes, where: str, budget: Budget) -> Any:
    """A JSON text, which ``where`` names in messages."""
    values = 1 + sum(data.count(c) for c in b",:[{")  # also those inside of texts: never too few
    if values > MAX_VALUES or len(data) > MAX_JSON_BYTES:
        raise FormatError(
            f"{where} must be JSON of at most {MAX_JSON_BYTES} bytes and {MAX_VALUES} values, "
            f"got {len(data)} bytes and about {values} values"
        )
    budget.count(where, values)
    try:
        found = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{where} is not readable JSON: {error}") from error
    if data.count(b"[") + data.count(b"{") > MAX_DEPTH and _depth(found) > MAX_DEPTH:
        raise FormatError(f"{where} is JSON nested more than {MAX_DEPTH} deep")
    return found


def _depth(value: Any) -> int:
    """How deep lists and objects are nested; without recursion."""
    depth, level = 0, [value]
    while level := [item for item in level if isinstance(item, (list, dict))]:
        depth += 1
        level = [child for item in level for child in (item.values() if isinstance(item, dict) else item)]
    return depth
