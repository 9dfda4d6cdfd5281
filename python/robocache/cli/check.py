"""``robocache check PATH``. Exit codes: 0 done; 1 damaged, unreadable or below the asked score; 2 bad usage."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from .._core import FormatError
from ..cache.cache import Cache
from ..quality import check
from .ingest import add_source_options, option, show_progress
from .output import failed, in_options, left_out_text, say


def percent(text: str) -> float:
    try:
        score = float(text)
    except ValueError:
        score = -1.0
    if not 0 <= score <= 100:
        raise argparse.ArgumentTypeError(f"must be a score from 0 to 100, got {text!r}")
    return score


def add_commands(commands: Any) -> None:
    add = commands.add_parser("check", help="is the data good, and is a cache what was written? A score and a report")
    add.add_argument("path", type=Path, help="a cache, or a dataset in a format that robocache.open knows")
    add.add_argument("--streams", type=lambda text: text.split(","), metavar="A,B", help="only these streams")
    add.add_argument("--html", type=Path, metavar="FILE", help="write the report as one HTML page as well")
    add.add_argument("--fail-below", type=percent, metavar="SCORE", help="end with code 1 where the score is lower")
    add.add_argument(
        "--threshold", type=option, action="append", default=[], metavar="NAME=VALUE", help="see docs/check.md"
    )
    add.add_argument("--checksums-only", action="store_true", help="of a cache: compare checksums, and no more")
    add_source_options(add)
    add.add_argument("--json", action="store_true", help="the report as JSON, and no progress")
    add.set_defaults(run=run_check, flags=add.flags())


def run_check(args: argparse.Namespace) -> int:
    if args.checksums_only:
        return run_checksums(args)
    try:
        report = check(
            args.path, streams=args.streams, thresholds=dict(args.threshold), format=args.format,
            progress=None if args.json else show_progress, **dict(args.option),
        )  # fmt: skip
        if args.html is not None:
            report.save_html(args.html)
    except (ValueError, TypeError, ImportError, FileNotFoundError) as error:
        return failed("check", error, 2, args)
    except (FormatError, OSError, MemoryError, NotImplementedError) as error:
        return refused(args, str(error))
    if args.json:
        print(json.dumps(report.to_json(), indent=1))
    else:
        left_out = left_out_text((entry.to_json() for entry in report.left_out), args.flags)
        say("\n\n".join([report.found_text(), *(["\n".join(left_out)] if left_out else [])]))
    if not report.ok:
        say("\n".join(report.problems), sys.stderr)
        return 1
    if args.fail_below is not None and report.score < args.fail_below:
        print(f"robocache check: the score is {report.score:.2f}, below {args.fail_below:g}", file=sys.stderr)
        return 1
    return 0


def run_checksums(args: argparse.Namespace) -> int:
    if args.html is not None or args.fail_below is not None or args.streams or args.option or args.threshold:
        return failed("check", ValueError("--checksums-only goes with --json alone"), 2, args)
    if not args.path.is_dir():
        return failed("check", FileNotFoundError(f"{args.path} is not the folder of a cache"), 2, args)
    try:
        cache = Cache(args.path)
        problems = cache.verify()
    except ValueError as error:
        return failed("check", error, 2, args)
    except (FormatError, OSError) as error:
        return refused(args, str(error))
    if args.json:
        print(json.dumps({"path": str(args.path), "ok": not problems, "problems": problems}, indent=1))
    elif problems:
        say("\n".join(problems), sys.stderr)
    else:
        say(f"{args.path}: {len(cache)} episodes, {cache.size_bytes} bytes: every checksum is right")
    return 1 if problems else 0


def refused(args: argparse.Namespace, problem: str) -> int:
    """What cannot even be opened."""
    problem = in_options(problem, args.flags)
    if args.json:
        print(json.dumps({"path": str(args.path), "ok": False, "problems": [problem]}, indent=1))
    say(f"robocache check: {problem}", sys.stderr)
    return 1
