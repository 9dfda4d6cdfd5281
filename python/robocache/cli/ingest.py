"""``robocache ingest`` and ``info PATH``. Exit codes: 0 done, 1 damaged or failed, 2 bad usage."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO, TypeVar

from .._core import FormatError
from ..cache.cache import SHARD_BYTES
from ..convert.ingest import FLOATS, ingest, open_source
from ..convert.pictures import IMAGES, QUALITY
from .facts import facts, table
from .output import failed, left_out_text, print_escaped

T = TypeVar("T")
Commands = Any
"""What ``add_subparsers`` returns."""
PYTHON_WORDS = {"True": True, "False": False, "None": None}


def stream_map(text: str) -> dict[str, str]:
    """``"arm,wrist_cam=camera"`` as {name in the source: name in the cache}."""
    pairs = [part.split("=", 1) for part in text.split(",")]
    if not all(name for pair in pairs for name in pair):
        raise argparse.ArgumentTypeError(f"must be NAME or NAME=NEW, separated by commas, got {text!r}")
    return {pair[0]: pair[-1] for pair in pairs}


def numbers(text: str) -> Iterator[int]:
    """``"0-3,7"`` as 0, 1, 2, 3, 7. Lazy, because a range may be far longer than the dataset."""
    ranges = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not first.isdecimal() or (last and not last.isdecimal()) or part.endswith("-"):
            raise argparse.ArgumentTypeError(f"must be numbers and ranges like 0-3,7, got {text!r}")
        begin, end = int(first), int(last or first)
        if end < begin:
            raise argparse.ArgumentTypeError(f"must be increasing ranges, got {part!r}")
        ranges.append(range(begin, end + 1))
    return itertools.chain(*ranges)


def option(text: str) -> tuple[str, Any]:
    """``"rate_hz=20"``: the value parsed as JSON or as Python's True, False or None; otherwise the text itself."""
    name, found, value = text.partition("=")
    if not found or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"must be NAME=VALUE, got {text!r}")
    if value in PYTHON_WORDS:
        return name, PYTHON_WORDS[value]
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def image_size(text: str) -> tuple[int, int]:
    """``"224x320"`` as (height, width)."""
    height, _, width = text.partition("x")
    if not (height.isdecimal() and width.isdecimal() and int(height) and int(width)):
        raise argparse.ArgumentTypeError(f"must be HEIGHTxWIDTH, like 224x320, got {text!r}")
    return int(height), int(width)


def stored_dtype(text: str) -> str:
    if text not in (*FLOATS, "uint8"):
        raise argparse.ArgumentTypeError(f"must be one of {', '.join(FLOATS)}, uint8, got {text!r}")
    return text


def by_stream(one: Callable[[str], T]) -> Callable[[str], T | dict[str, T]]:
    """``"X"`` as ``one("X")``, for all streams; ``"arm=X,cam=Y"`` as {name in the cache: ``one`` of its value}."""

    def parse(text: str) -> T | dict[str, T]:
        if "=" not in text:
            return one(text)
        pairs = [part.rpartition("=") for part in text.split(",")]
        names = {name for name, _, _ in pairs}
        if "" in names or len(names) < len(pairs):
            raise argparse.ArgumentTypeError(f"must be VALUE, or NAME=VALUE with each NAME once, got {text!r}")
        return {name: one(value) for name, _, value in pairs}

    return parse


def megabytes(text: str) -> int:
    try:
        size = float(text)
    except ValueError:
        size = 0.0
    if not 0 < size < 1e9:
        raise argparse.ArgumentTypeError(f"must be a positive number of MiB, got {text!r}")
    return max(1, int(size * (1 << 20)))


def add_commands(commands: Commands) -> None:
    add = commands.add_parser("ingest", help="convert a dataset into a cache")
    add.add_argument("source", type=Path, help="dataset, in any format that robocache.open reads, or a cache")
    add.add_argument("out", type=Path, help="folder of the cache")
    add.add_argument("--streams", type=stream_map, metavar="A,B=C", help="streams to keep; B=C renames B to C")
    dtypes = f"stored dtype of floating-point streams, for all or by name (A=DTYPE,B=DTYPE): {', '.join(FLOATS)}"
    dtypes += "; uint8: images of pixels that are floats from 0 to 255"
    add.add_argument("--dtype", type=by_stream(stored_dtype), help=dtypes)
    kept = "keep: encoded pictures as they are, raw camera messages as PNG; jpeg: 8-bit pictures as JPEG; raw: pixels"
    add.add_argument("--images", choices=IMAGES, default="keep", help=f"{kept} (default: keep)")
    quality = f"of pictures that are encoded as JPEG, 1 to 100 (default: {QUALITY})"
    add.add_argument("--quality", type=count, default=QUALITY, metavar="N", help=quality)
    sizes = "resize images and depth to height x width, for all or by name (A=HxW,B=HxW)"
    add.add_argument("--image-size", type=by_stream(image_size), metavar="HxW", help=sizes)
    add.add_argument("--episodes", type=numbers, metavar="0-3,7", help="episodes to keep (default: all)")
    add.add_argument("--shard-mib", type=megabytes, default=SHARD_BYTES, metavar="MIB", help="shard size (default: 64)")
    add.add_argument("--resume", action="store_true", help="continue an interrupted ingest with the same options")
    add_source_options(add)
    add.add_argument("--json", action="store_true", help="print the result as JSON, without a progress bar")
    add.set_defaults(run=run_ingest, flags=add.flags())


def add_source_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--format", help="format of the source (default: detect)")
    options = "option of the format; repeatable; `robocache formats` lists them"
    parser.add_argument("--option", type=option, action="append", default=[], metavar="NAME=VALUE", help=options)


def add_measure(parser: argparse.ArgumentParser) -> None:
    measured = "read only N episodes of a dataset to measure rates and hours (default: all)"
    parser.add_argument("--measure", type=count, metavar="N", help=measured)


def count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be an integer of at least 0, got {text!r}")
    return int(text)


def show_progress(done: int, total: int) -> None:
    if sys.stderr.isatty():
        filled = 40 * done // max(total, 1)
        end = "\n" if done == total else ""
        print(f"\r[{'#' * filled}{'.' * (40 - filled)}] {done}/{total} episodes", end=end, file=sys.stderr, flush=True)


def print_note(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Replaces ``warnings.showwarning``: command-line users do not need a source line."""
    print(f"robocache ingest: note: {message}", file=sys.stderr)


def run_ingest(args: argparse.Namespace) -> int:
    begin = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.showwarning = print_note
            cache = ingest(
                args.source, args.out, streams=args.streams, dtype=args.dtype, images=args.images,
                quality=args.quality, image_size=args.image_size,
                episodes=args.episodes, shard_bytes=args.shard_mib, resume=args.resume,
                progress=None if args.json else show_progress, format=args.format, **dict(args.option),
            )  # fmt: skip
    except (ValueError, TypeError, ImportError, FileNotFoundError) as error:
        return failed("ingest", error, 2, args)
    except (FormatError, OSError, MemoryError, NotImplementedError) as error:
        return failed("ingest", error, 1, args)
    result = facts(cache) | {"seconds": round(time.perf_counter() - begin, 3)}
    show_facts(result, args)
    return 0


def run_info(args: argparse.Namespace) -> int:
    """Describes a cache or a dataset."""
    try:
        source = open_source(args.path, args.format, dict(args.option), "info")
        result = facts(source, args.measure, None if args.json else show_progress)
    except (ValueError, TypeError, ImportError, FileNotFoundError) as error:
        return failed("info", error, 2, args)
    except (FormatError, OSError, MemoryError, NotImplementedError) as error:
        return failed("info", error, 1, args)
    show_facts(result, args)
    return 0


def show_facts(result: dict[str, Any], args: argparse.Namespace) -> None:
    if args.json:
        print(json.dumps(result, indent=1))
    else:
        notes = [f"  {note}" for note in result.get("notes", ())]
        lines = [table(result), *(["notes:", *notes] if notes else ())]
        print_escaped("\n".join([*lines, *left_out_text(result["left_out"], args.flags)]))
