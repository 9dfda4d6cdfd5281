"""``robocache ingest`` and ``info PATH``. Exit codes: 0 done, 1 damaged or failed, 2 bad usage."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from ._cache import SHARD_BYTES, Cache
from ._core import FormatError
from ._episode import Source
from ._ingest import FLOATS, ingest, open_source

Commands = Any
"""What ``add_subparsers`` returns."""


def stream_map(text: str) -> dict[str, str]:
    """``"arm,wrist_cam=camera"`` as {name in the source: name in the cache}."""
    pairs = [part.split("=", 1) for part in text.split(",")]
    if not all(name for pair in pairs for name in pair):
        raise argparse.ArgumentTypeError(f"must be NAME or NAME=NEW, with commas between, got {text!r}")
    return {pair[0]: pair[-1] for pair in pairs}


def numbers(text: str) -> list[int]:
    """``"0-3,7"`` as [0, 1, 2, 3, 7]."""
    result: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not first.isdecimal() or (last and not last.isdecimal()) or part.endswith("-"):
            raise argparse.ArgumentTypeError(f"must be numbers and ranges like 0-3,7, got {text!r}")
        result.extend(range(int(first), int(last or first) + 1))
    return result


def option(text: str) -> tuple[str, Any]:
    """``"rate_hz=20"``: the value as JSON where it is JSON, else as text."""
    name, found, value = text.partition("=")
    if not found or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"must be NAME=VALUE, got {text!r}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


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
    add.add_argument("source", type=Path, help="a dataset in a format that robocache.open knows, or a cache")
    add.add_argument("out", type=Path, help="the folder of the cache")
    add.add_argument("--streams", type=stream_map, metavar="A,B=C", help="streams to keep; B is called C in the cache")
    add.add_argument("--dtype", choices=FLOATS, help="how floating streams are stored")
    add.add_argument("--episodes", type=numbers, metavar="0-3,7", help="episodes to keep")
    add.add_argument("--shard-mib", type=megabytes, default=SHARD_BYTES, metavar="MIB", help="size of a shard: 64")
    add.add_argument("--resume", action="store_true", help="continue where an ingest with the same options stopped")
    add_source_options(add)
    add.add_argument("--json", action="store_true", help="the result as JSON, and no progress")
    add.set_defaults(run=run_ingest)


def add_source_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--format", help="of the source; found by looking unless given")
    parser.add_argument(
        "--option", type=option, action="append", default=[], metavar="NAME=VALUE", help="of the format"
    )


def show_progress(done: int, total: int) -> None:
    if sys.stderr.isatty():
        filled = 40 * done // max(total, 1)
        end = "\n" if done == total else ""
        print(f"\r[{'#' * filled}{'.' * (40 - filled)}] {done}/{total} episodes", end=end, file=sys.stderr, flush=True)


def run_ingest(args: argparse.Namespace) -> int:
    begin = time.perf_counter()
    try:
        cache = ingest(
            args.source, args.out, streams=args.streams, dtype=args.dtype, episodes=args.episodes,
            shard_bytes=args.shard_mib, resume=args.resume, progress=None if args.json else show_progress,
            format=args.format, **dict(args.option),
        )  # fmt: skip
    except (ValueError, TypeError, ImportError, FileNotFoundError) as error:
        return failed("ingest", error, 2, args.json)
    except (FormatError, OSError, MemoryError, NotImplementedError) as error:
        return failed("ingest", error, 1, args.json)
    result = facts(cache) | {"seconds": round(time.perf_counter() - begin, 3)}
    print(json.dumps(result, indent=1) if args.json else table(result))
    return 0


def run_info(args: argparse.Namespace) -> int:
    """Of a path: a cache, or a dataset in any format."""
    try:
        result = facts(open_source(args.path, args.format, dict(args.option)))
    except (ValueError, TypeError, ImportError, FileNotFoundError) as error:
        return failed("info", error, 2, args.json)
    except (FormatError, OSError, MemoryError, NotImplementedError) as error:
        return failed("info", error, 1, args.json)
    print(json.dumps(result, indent=1) if args.json else table(result))
    return 0


def failed(command: str, error: BaseException, code: int, as_json: bool) -> int:
    if as_json:
        print(json.dumps({"error": str(error), "type": type(error).__name__}, indent=1))
    print(f"robocache {command}: {error}", file=sys.stderr)
    return code


def facts(source: Source) -> dict[str, Any]:
    """What there is to say of a dataset; of a cache also what its times tell."""
    result: dict[str, Any] = {"path": str(source.path), "format": source.format, "episodes": len(source)}
    streams: dict[str, dict[str, Any]] = {
        name: {"dtype": spec.dtype, "shape": list(spec.shape), "kind": spec.kind, "declared_hz": spec.rate_hz}
        for name, spec in source.specs.items()
    }
    if isinstance(source, Cache):
        result |= {"generation": source.generation, "shards": source.num_shards, "bytes": source.size_bytes}
        spans = measure(source)
        for name, (messages, intervals, span_ns) in spans.items():
            streams[name] |= {"messages": messages, "measured_hz": intervals / span_ns * 1e9 if span_ns else None}
        result["hours"] = max((span_ns for _, _, span_ns in spans.values()), default=0) / 3.6e12
    return result | {"streams": streams}


def measure(cache: Cache) -> dict[str, tuple[int, int, int]]:
    """Of each stream: messages, intervals between them, and nanoseconds these take; no values are read."""
    sums = {name: [0, 0, 0] for name in cache.specs}
    for shard in range(cache.num_shards):
        for stream, total in enumerate(sums.values()):
            _, times, _, offsets = cache._reader.shard_rows(shard, stream)
            begin, end = offsets[:-1], offsets[1:]
            some = end > begin
            if len(times) != int(offsets[-1]) or bool((end < begin).any()) or int(offsets[0]) != 0:
                raise FormatError(f"{cache.path}: offsets are damaged; see robocache check")
            total[0] += len(times)
            total[1] += len(times) - int(some.sum())
            total[2] += int((times[end[some] - 1] - times[begin[some]]).sum())
    return {name: (a, b, c) for name, (a, b, c) in sums.items()}


def table(result: dict[str, Any]) -> str:
    head = f"{result['path']}: {result['format']}, {result['episodes']} episodes, {len(result['streams'])} streams"
    if "bytes" in result:
        head += f", {result['hours']:.3f} h, {result['bytes'] / (1 << 20):.1f} MiB in {result['shards']} shards"
    lines = [("stream", "kind", "dtype", "row", "declared Hz", "measured Hz", "messages")]
    for name, x in result["streams"].items():
        rates = [f"{rate:.2f}" if rate else "-" for rate in (x["declared_hz"], x.get("measured_hz"))]
        row = "x".join(map(str, x["shape"])) or "1"
        lines.append((name, x["kind"], x["dtype"], row, *rates, str(x.get("messages", "-"))))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rows = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines)
    return "\n".join([head, *rows])
