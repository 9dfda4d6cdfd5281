"""``robocache check PATH``. Exit codes: 0 done; 1 damaged, unreadable or below ``--fail-below``; 2 bad usage."""

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
from .output import failed, in_options, left_out_text, print_escaped


def percent(text: str) -> float:
    try:
        score = float(text)
    except ValueError:
        score = -1.0
    if not 0 <= score <= 100:
        raise argparse.ArgumentTypeError(f"must be a score from 0 to 100, got {text!r}")
    return score


def add_commands(commands: Any) -> None:
    add = commands.add_parser("check", help="check data quality and, in a cache, checksums; print a score and a report")
    add.add_argument("path", type=Path, help="cache or dataset, in any format that robocache.open reads")
    add.add_argument("--streams", type=lambda text: text.split(","), metavar="A,B", help="check only these streams")
    add.add_argument("--html", type=Path, metavar="FILE", help="also write the report as one HTML page")
    add.add_argument("--fail-below", type=percent, metavar="SCORE", help="exit with code 1 if the score is lower")
    thresholds = "set a threshold; repeatable; docs/check.md lists the names"
    add.add_argument("--threshold", type=option, action="append", default=[], metavar="NAME=VALUE", help=thresholds)
    add.add_argument("--checksums-only", action="store_true", help="only verify the checksums of a cache")
    add_source_options(add)
    add.add_argument("--json", action="store_true", help="print the report as JSON, without a progress bar")
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
        print_escaped("\n\n".join([report.found_text(), *(["\n".join(left_out)] if left_out else [])]))
    if not report.ok:
        print_escaped("\n".join(report.problems), sys.stderr)
        return 1
    if args.fail_below is not None and report.score < args.fail_below:
        print(f"robocache check: the score is {report.score:.2f}, below {args.fail_below:g}", file=sys.stderr)
        return 1
    return 0


def run_checksums(args: argparse.Namespace) -> int:
    if args.html is not None or args.fail_below is not None or args.streams or args.option or args.threshold:
        error = ValueError("--checksums-only cannot be combined with options other than --json")
        return failed("check", error, 2, args)
    if not args.path.is_dir():
        return failed("check", FileNotFoundError(f"path must be the folder of a cache, got {args.path}"), 2, args)
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
        print_escaped("\n".join(problems), sys.stderr)
    else:
        print_escaped(f"{args.path}: {len(cache)} episodes, {cache.size_bytes} bytes: all checksums match")
    return 1 if problems else 0


def refused(args: argparse.Namespace, problem: str) -> int:
    """Reports a path that cannot be opened; returns the exit code."""
    problem = in_options(problem, args.flags)
    if args.json:
        print(json.dumps({"path": str(args.path), "ok": False, "problems": [problem]}, indent=1))
    print_escaped(f"robocache check: {problem}", sys.stderr)
    return 1
