"""``robocache export`` and ``robocache view``. Exit codes: 0 done, 1 failed, 2 bad usage or a package is missing."""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .._core import FormatError
from ..convert.export import Exported, export
from ..convert.grid import SPANS
from ..convert.view import view
from ..ops.types import Method
from ..sources.lerobot.write_video import ENCODERS
from ..text import escaped
from .ingest import add_source_options, numbers, show_progress, stream_map
from .output import failed, left_out_text, print_escaped

Commands = Any
"""What ``add_subparsers`` returns."""


def add_commands(commands: Commands) -> None:
    add = commands.add_parser("export", help="write a cache or a dataset as a LeRobot v3.0 dataset")
    add.add_argument("source", type=Path, help="cache or dataset, in any format that robocache.open reads")
    add.add_argument("out", type=Path, help="new folder for the LeRobot dataset; must not exist")
    add.add_argument("--fps", type=float, help="frames per second (default: the streams' common rate)")
    add.add_argument("--span", choices=SPANS, default=SPANS[0], help="frames where all streams have rows, or any has")
    add.add_argument("--max-gap-s", type=float, metavar="S", help="count frames in gaps longer than S seconds as lost")
    add.add_argument("--skip-incomplete", action="store_true", help="skip episodes without frames instead of failing")
    add.add_argument("--video", choices=ENCODERS, help="write images as videos of this codec, with LeRobot's settings")
    add.add_argument("--robot-type", help="robot_type in info.json")
    add_choices(add, "all")
    add.add_argument("--json", action="store_true", help="print the result as JSON, without a progress bar")
    add.set_defaults(run=run_export, flags=add.flags())

    look = commands.add_parser("view", help="show episodes in the Rerun viewer")
    look.add_argument("source", type=Path, help="cache or dataset, in any format that robocache.open reads")
    look.add_argument("--save", type=Path, metavar="FILE.rrd", help="write a recording instead of opening the viewer")
    look.add_argument("--fps", type=float, help="rate of the aligned streams (default: the slowest stream's)")
    add_choices(look, "the first")
    look.add_argument("--json", action="store_true", help="print the result as JSON, without a progress bar")
    look.set_defaults(run=run_view, flags=look.flags())


def add_choices(parser: argparse.ArgumentParser, episodes: str) -> None:
    parser.add_argument("--streams", type=stream_map, metavar="A,B=C", help="select streams; B=C renames B to C")
    parser.add_argument("--episodes", type=numbers, metavar="0-3,7", help=f"select episodes (default: {episodes})")
    methods = "align method of a stream; repeatable"
    parser.add_argument("--method", type=method_for, action="append", default=[], metavar="STREAM=METHOD", help=methods)
    add_source_options(parser)


def method_for(text: str) -> tuple[str, Method]:
    """``"force=mean"``; or ``"pose=[[0,3,\"linear\"],[3,6,\"angle\"]]"``, ranges of channels as JSON."""
    name, found, method = text.rpartition("=")
    if not found or not name or not method:
        raise argparse.ArgumentTypeError(f"must be STREAM=METHOD, got {text!r}")
    if not method.startswith("["):
        return name, method
    try:
        return name, [(int(begin), int(end), str(kind)) for begin, end, kind in json.loads(method)]
    except (ValueError, TypeError):
        raise argparse.ArgumentTypeError(f"must be STREAM=[[begin,end,METHOD],...], got {text!r}") from None


def run_export(args: argparse.Namespace) -> int:
    begin = time.perf_counter()
    try:
        done = export(
            args.source, args.out, fps=args.fps, streams=args.streams, methods=dict(args.method),
            episodes=args.episodes, span=args.span, max_gap_s=args.max_gap_s, skip_incomplete=args.skip_incomplete,
            robot_type=args.robot_type, video_codec=args.video, progress=None if args.json else show_progress,
            format=args.format, **dict(args.option),
        )  # fmt: skip
    except (ValueError, TypeError, ImportError, FileNotFoundError, FileExistsError) as error:
        return failed("export", error, 2, args)
    except (FormatError, OSError, MemoryError, NotImplementedError) as error:
        return failed("export", error, 1, args)
    if args.json:
        result = dataclasses.asdict(done) | {"path": str(done.path), "seconds": round(time.perf_counter() - begin, 3)}
        print(json.dumps(result, indent=1))
    else:
        print_escaped(text_of(done, args.flags))
    return 0


def text_of(done: Exported, flags: Mapping[str, str]) -> str:
    size = done.size_bytes / (1 << 20)
    head = (
        f"{done.path}: LeRobot v3.0, {done.episodes} episodes, {done.frames} frames at {done.fps:g} Hz, {size:.1f} MiB"
    )
    names = [(escaped(old), escaped(new)) for old, new in done.features.items()]
    features = [f"  {old} -> {new}" if old != new else f"  {old}" for old, new in names]
    lost = ["lost:", *(f"  {escaped(line)}" for line in done.lost)] if done.lost else []
    return "\n".join([head, *features, *lost, *left_out_text((x.to_json() for x in done.left_out), flags)])


def run_view(args: argparse.Namespace) -> int:
    try:
        shown = view(
            args.source, episodes=args.episodes, save=args.save, fps=args.fps, streams=args.streams,
            methods=dict(args.method), progress=None if args.json else show_progress, format=args.format,
            **dict(args.option),
        )  # fmt: skip
    except (ValueError, TypeError, ImportError, FileNotFoundError, FileExistsError) as error:
        return failed("view", error, 2, args)
    except (FormatError, OSError, MemoryError, NotImplementedError) as error:
        return failed("view", error, 1, args)
    where = "the Rerun viewer" if args.save is None else str(args.save)
    result = {"episodes": shown, "to": where}
    if args.json:
        print(json.dumps(result, indent=1))
    else:
        print_escaped(f"{len(shown)} episodes written to {where}")
    return 0
