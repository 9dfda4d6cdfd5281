"""The command ``robocache``. Exit codes: 0 done; 1 failed; 2 bad usage, or a requirement is missing.

130 after Ctrl-C and 141 after a broken pipe, as a shell reports these signals.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from .. import _core
from ..install import check_installation, print_installation_info, self_test
from ..ops.methods import METHODS, REDUCTIONS
from . import check, export, formats, ingest
from .output import failed, print_escaped
from .parser import Parser
from .profile import ProfileError, Spec, VoxelSpec, profile, table

CLOUDS = ("uniform", "lidar", "sphere", "one voxel", "shuffled")  # same as clouds.CLOUDS, whose module needs torch


CASE = "rows, samples, targets, channels (default: 4096,512,1024,64)"


def positive(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be an integer of at least 1, got {text!r}")
    return number


def shape(text: str) -> tuple[int, int, int, int]:
    """``"256,500,250,32"`` as (B, S, T, D)."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) != 4 or min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"must be B,S,T,D, four integers of at least 1, got {text!r}")
    num_rows, num_samples, num_targets, num_channels = numbers
    return num_rows, num_samples, num_targets, num_channels


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="robocache", description="Convert, check, export, view and profile robot datasets.")
    parser.add_argument("--version", action="version", version=f"robocache {_core.version()}")
    commands = parser.add_subparsers(metavar="command", required=True)
    info = commands.add_parser("info", help="describe the installation or, with a path, a dataset")
    info.add_argument("path", type=Path, nargs="?", help="cache or dataset, in any format that robocache.open reads")
    ingest.add_measure(info)
    ingest.add_source_options(info)
    info.add_argument("--json", action="store_true", help="print JSON")
    info.set_defaults(run=run_info, flags=info.flags())
    tested = commands.add_parser("self-test", help="run every available backend on a small problem with a known answer")
    tested.add_argument("--json", action="store_true", help="print JSON")
    tested.set_defaults(run=run_self_test, flags={})
    ingest.add_commands(commands)
    check.add_commands(commands)
    export.add_commands(commands)
    formats.add_commands(commands)

    profiles = commands.add_parser(
        "profile", help="measure hardware counters of an op's CUDA kernels; needs a GPU and ncu"
    )
    ops = profiles.add_subparsers(metavar="op", required=True)
    align = ops.add_parser("align", help="profile resample_trajectories on synthetic trajectories with Nsight Compute")
    align.add_argument("--case", type=shape, default=(4096, 512, 1024, 64), metavar="B,S,T,D", help=CASE)
    align.add_argument("--dtype", choices=("bfloat16", "float16", "float32", "float64"), default="bfloat16")
    align.add_argument("--times-dtype", choices=("float32", "float64", "int64"), default="float32")
    align.add_argument("--method", choices=METHODS, default="linear")
    align.add_argument("--order", choices=("ramp", "random"), default="ramp", help="evenly spaced or random times")
    align.add_argument("--out", type=Path, default=Path("robocache_profile"), metavar="DIR", help="output folder")
    align.add_argument("--json", action="store_true", help="print JSON instead of a table")
    align.set_defaults(run=run_profile_align, flags={})

    voxelize = ops.add_parser("voxelize", help="profile voxelize_pointcloud on synthetic clouds with Nsight Compute")
    voxelize.add_argument("--cloud", choices=CLOUDS, default="uniform")
    voxelize.add_argument(
        "--points", type=positive, default=1_000_000, metavar="N", help="number of points (default: 1000000)"
    )
    voxelize.add_argument(
        "--cells", type=positive, default=128, metavar="N", help="cells along each axis (default: 128)"
    )
    voxelize.add_argument("--mode", choices=tuple(REDUCTIONS), default="occupancy")
    voxelize.add_argument("--dtype", help="dtype of the grid (default: int32; float32 for features)")
    voxelize.add_argument("--channels", type=positive, default=16, metavar="F", help="features per point (default: 16)")
    voxelize.add_argument("--deterministic", action="store_true")
    voxelize.add_argument("--out", type=Path, default=Path("robocache_profile"), metavar="DIR", help="output folder")
    voxelize.add_argument("--json", action="store_true", help="print JSON instead of a table")
    voxelize.set_defaults(run=run_profile_voxelize, flags={})
    return parser


def run_info(args: argparse.Namespace) -> int:
    if args.path is not None:
        return ingest.run_info(args)
    if args.json:
        print(json.dumps(check_installation(), indent=1))
    else:
        print_installation_info()
    return 0


def run_self_test(args: argparse.Namespace) -> int:
    try:
        results = self_test()
    except RuntimeError as error:
        return failed("self-test", error, 1, args)
    lines = [f"{backend}: {result}" for backend, result in results.items()]
    print(json.dumps(results) if args.json else "\n".join(lines))
    return 0


def run_profile_align(args: argparse.Namespace) -> int:
    return run_profile(Spec(args.case, args.dtype, args.times_dtype, args.method, args.order), args)


def run_profile_voxelize(args: argparse.Namespace) -> int:
    dtype = args.dtype or ("int32" if args.mode in ("occupancy", "count") else "float32")
    return run_profile(
        VoxelSpec(args.cloud, args.points, args.cells, args.mode, dtype, args.channels, args.deterministic), args
    )


def run_profile(spec: Spec | VoxelSpec, args: argparse.Namespace) -> int:
    try:
        result = profile(spec, args.out)
    except ProfileError as error:
        return failed(f"profile {spec.op}", error, 2, args)
    print(json.dumps(result, indent=1) if args.json else f"{spec}, {result['device']}\n\n{table(result)}")
    print("\n".join(f"wrote {path}" for path in result["files"]), file=sys.stderr)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name that cannot be printed must not fail the command
    try:
        try:
            args = make_parser().parse_args(argv)
            code: int = args.run(args)
        finally:
            print(end="", flush=True)  # flush now, not at exit; no effect if stdout is closed
    except KeyboardInterrupt:
        print("robocache: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    except BrokenPipeError:
        drop_output()
        return 128 + signal.SIGPIPE
    except OSError as error:
        drop_output()
        unnamed = error.filename is None and error.strerror is not None
        what = f"cannot write the output: {error.strerror}" if unnamed else error
        print_escaped(f"robocache: {what}", sys.stderr)
        return 1
    return code


def drop_output() -> None:
    """Discards buffered output, which Python would otherwise try to write again at exit, and fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
