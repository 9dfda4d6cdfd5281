"""Measures `Loader` against torch's DataLoader with the samplers of Diffusion Policy and robomimic, and plain PyTorch.

python benchmarks/bench_loader.py --quick
python benchmarks/bench_loader.py --out benchmarks/results/pipeline/loader_cpu.json
python benchmarks/bench_loader.py --device cuda --out benchmarks/results/pipeline/loader_cuda.json

python benchmarks/bench_loader.py --only features         (pipeline/loader/features.py; also with --device cuda)
python benchmarks/bench_loader.py --only statistics
python benchmarks/bench_loader.py soak --tier mmap        (pipeline/loader/soak.py)

Everybody reads the same windows in the same order, and every batch is compared byte by byte first. The loader also says
what is padded; the sampler of Diffusion Policy does not. A call is a pass through the first batches of an epoch.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import robocache
import torch
from measure import harness
from measure.cuda import largest_error
from measure.targets import X_CLEAN, Figure, Limit, judge_inputs, rule, target, verdict
from pipeline.loader import cuda as loader_cuda
from pipeline.loader import features as loader_features
from pipeline.loader import rivals as loader_rivals
from pipeline.loader import soak
from pipeline.loader.recordings import CLEAN, KINDS, Recording

RATE_HZ = 10
LENGTH, BEFORE = 16, 1  # a horizon of 16 steps, of which 2 are observations
TARGET = 10.0
INDEX_TARGET = 1.10  # of a batch without return_index
INDEX_BATCH = 4096
HONEST_BATCH = 256
# Push-T as Diffusion Policy trains on it (206 demonstrations, 25,650 steps), and a larger set of an arm with 7 joints.
SETS = {
    "push-t": {"episodes": 206, "rows": (49, 200), "streams": {"obs": 20, "action": 2}},
    "arm": {"episodes": 2000, "rows": (150, 350), "streams": {"obs": 32, "action": 7}},
}
Batches = Callable[[], Iterator[dict[str, torch.Tensor]]]


def make(folder: Path, name: str, part: int) -> tuple[robocache.Cache, loader_rivals.Recordings]:
    """The same recordings as a cache and as arrays."""
    shape = SETS[name]
    rng = np.random.default_rng(0)
    specs = {key: robocache.StreamSpec(key, "float32", (n,), rate_hz=RATE_HZ) for key, n in shape["streams"].items()}
    writer = robocache.CacheWriter(folder / f"{name}.cache", specs)
    arrays: dict[str, list[np.ndarray]] = {key: [] for key in specs}
    ends = []
    for e in range(max(3, shape["episodes"] // part)):
        count = int(rng.integers(*shape["rows"]))
        times = np.arange(count, dtype=np.int64) * (10**9 // RATE_HZ)
        streams = {}
        for key, spec in specs.items():
            arrays[key].append(rng.normal(size=(count, *spec.shape)).astype(np.float32))
            streams[key] = robocache.EpisodeStream(spec, arrays[key][-1], times)
        writer.add(robocache.Episode(e, streams))
        ends.append(count)
    recordings = loader_rivals.Recordings({key: np.concatenate(a) for key, a in arrays.items()}, np.cumsum(ends))
    return writer.commit(), recordings


def order_of(loader: robocache.Loader, recordings: loader_rivals.Recordings) -> list[int]:
    """The rows of the anchors in the order of the loader: its own word for it, taken from the index it returns."""
    firsts = np.concatenate([[0], recordings.ends[:-1]])
    rows = []
    for step in range(len(loader)):
        batch = loader.batch(step)
        rows.append(firsts[batch["episode_index"].numpy()] + batch["anchor_ns"].numpy() * RATE_HZ // 10**9)
    return np.concatenate(rows).tolist()


def readers(
    cache: robocache.Cache, recordings: loader_rivals.Recordings, batch_size: int
) -> tuple[dict[str, Batches], int]:
    window = robocache.Window(past=BEFORE / RATE_HZ, future=(LENGTH - 1 - BEFORE) / RATE_HZ, rate_hz=RATE_HZ)
    options = {"windows": dict.fromkeys(recordings.arrays, window), "seed": 1}
    order = order_of(robocache.Loader(cache, batch_size, return_index=True, **options), recordings)
    # Every row begins a window, as every row is an anchor.
    sampler = loader_rivals.SequenceSampler(recordings, LENGTH, BEFORE, LENGTH - 1 - BEFORE)
    assert len(sampler) == int(recordings.ends[-1])
    gather = loader_rivals.Gather(recordings, LENGTH, BEFORE)
    made: dict[str, Batches] = {}
    for tier in ("memory", "mmap"):
        loader = robocache.Loader(cache, batch_size, tier=tier, **options)

        def ours(loader: robocache.Loader = loader) -> Iterator[dict[str, torch.Tensor]]:
            loader.set_epoch(0)
            return iter(loader)

        made[f"robocache {tier}"] = ours
    for workers in (0, 2):
        rival = loader_rivals.data_loader(sampler, order, batch_size, workers)
        made[f"DataLoader {workers}"] = lambda rival=rival: iter(rival)
    robomimic = loader_rivals.RobomimicDataset(recordings, LENGTH - BEFORE, BEFORE + 1)
    rival = loader_rivals.data_loader(robomimic, order, batch_size, 0)
    made["robomimic"] = lambda rival=rival: iter(rival)
    shuffled = torch.tensor(order)
    made["plain torch"] = lambda: gather.batches(shuffled, batch_size)
    return made, len(order) // batch_size


def require_equal(made: dict[str, Batches]) -> int:
    """Every batch of an epoch, from everybody: values, dtypes, shapes, and the padding where it is told."""
    count = 0
    for batches in zip(*(reader() for reader in made.values()), strict=True):
        first, *others = batches
        for name, other in zip(list(made)[1:], others, strict=True):
            if "pad_mask" in other:  # robomimic's: what was recorded, for all keys
                other["obs_is_pad"] = ~other.pop("pad_mask")[..., 0]
            for key in other:
                assert other[key].dtype == first[key].dtype, (name, key)
                assert torch.equal(other[key], first[key]), f"{name} gives another {key} in batch {count}"
        count += 1
    return count


def measure(folder: Path, name: str, batch_size: int, samples: int, part: int, num_batches: int) -> dict[str, Any]:
    cache, recordings = make(folder, name, part)
    made, available = readers(cache, recordings, batch_size)
    compared = require_equal(made)
    assert compared == available
    num_batches = min(num_batches, available)

    def passing(reader: Batches) -> Callable[[], None]:
        def run() -> None:
            for batch in itertools.islice(reader(), num_batches):
                del batch

        return run

    timings = harness.interleave({key: passing(reader) for key, reader in made.items()}, samples)
    medians = {key: harness.median(seconds) / num_batches for key, seconds in timings.seconds.items()}
    ratios = {
        key: harness.median(r / o for r, o in zip(seconds, timings.seconds["robocache memory"], strict=True))
        for key, seconds in timings.seconds.items()
    }
    begin = time.process_time()
    passing(made["robocache memory"])()
    cpu_s = time.process_time() - begin
    slowest = min(ratios["DataLoader 0"], ratios["DataLoader 2"])  # the faster DataLoader
    targets = {"x DataLoader": target(slowest, at_least=TARGET)} if batch_size == 256 else {}
    return {
        "name": name, "axes": {"batch": batch_size, "windows": int(recordings.ends[-1]), "steps": LENGTH,
                               **{key: a.shape[1] for key, a in recordings.arrays.items()}},
        "batches_compared": compared, "batches_timed": num_batches, "samples_s": timings.seconds,
        "median_batch_s": medians, "ratios": ratios, "others_cores": timings.others_cores,
        "cpu_s_per_million": cpu_s / (num_batches * batch_size) * 1e6, "targets": targets,
    }  # fmt: skip


def measure_index(folder: Path, name: str, batch_size: int, samples: int, part: int) -> dict[str, Any]:
    """Batches with ``return_index`` and without, in turns."""
    cache, recordings = make(folder, name, part)
    window = robocache.Window(past=BEFORE / RATE_HZ, future=(LENGTH - 1 - BEFORE) / RATE_HZ, rate_hz=RATE_HZ)
    options = {"windows": dict.fromkeys(recordings.arrays, window), "seed": 1, "tier": "memory"}
    size = min(batch_size, int(recordings.ends[-1]))
    loaders = {wanted: robocache.Loader(cache, size, return_index=wanted, **options) for wanted in (False, True)}
    for key, x in loaders[False].batch(0).items():
        assert torch.equal(loaders[True].batch(0)[key], x), f"another {key} with the index"
    turn = {wanted: itertools.cycle(range(len(loader))) for wanted, loader in loaders.items()}

    def passing(wanted: bool) -> Callable[[], Any]:
        return lambda: loaders[wanted].batch(next(turn[wanted]))

    timings = harness.interleave({"without": passing(False), "with": passing(True)}, samples)
    medians = {key: harness.median(seconds) for key, seconds in timings.seconds.items()}
    ratio = harness.median(
        a / b for a, b in zip(timings.seconds["with"], timings.seconds["without"], strict=True)
    )  # in turns, so that both see the same machine
    return {
        "name": f"{name}, return_index", "axes": {"batch": size}, "samples_s": timings.seconds,
        "median_batch_s": medians, "ratios": {"with": ratio}, "others_cores": timings.others_cores,
        "targets": {"x without the index": target(ratio, at_most=INDEX_TARGET)},
    }  # fmt: skip


def measure_honest(folder: Path, kind: str, num_episodes: int, rows: int, samples: int) -> dict[str, Any]:
    """Batches of one recording of the honest inputs, against a search and a gather in plain PyTorch."""
    recording = Recording(kind, loader_cuda.ONE, num_episodes, rows)
    cache = recording.write(folder / f"{kind}.cache")
    loader = loader_cuda.state_loader(cache, HONEST_BATCH, "memory", "cpu")
    told = loader_cuda.state_loader(cache, HONEST_BATCH, "memory", "cpu", return_index=True)
    anchors = loader_cuda.anchors_of(told, min(len(loader), 32), "cpu")
    window = loader_cuda.window_of(loader_cuda.RATE_HZ)
    stream = loader_rivals.searched(recording.all_values("state", "cpu"), recording.all_times("state", "cpu"),
                                    recording.rows["state"], window.deltas_ns)  # fmt: skip
    for step, anchor in enumerate(anchors[:4]):
        error = largest_error(loader.batch(step)["state"], loader_rivals.search_windows(stream, *anchor), "bfloat16")
        assert error <= 1, f"{kind}: plain PyTorch gives other values in batch {step}, {error:.3g} times the tolerance"
    steps, turn = itertools.cycle(range(len(anchors))), itertools.cycle(anchors)
    timings = harness.interleave({
        "robocache memory": lambda: loader.batch(next(steps)),
        "search torch": lambda: loader_rivals.search_windows(stream, *next(turn)),
    }, samples)  # fmt: skip
    medians = {key: harness.median(seconds) for key, seconds in timings.seconds.items()}
    return {
        "name": "honest", "axes": {"batch": HONEST_BATCH, "recording": kind}, "samples_s": timings.seconds,
        "median_batch_s": medians, "others_cores": timings.others_cores, "targets": {},
        "ratios": {"search torch": medians["search torch"] / medians["robocache memory"]},
    }  # fmt: skip


def summarize(results: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The worst recording, the figure of each with its ratio to the clean one, and the targets."""
    ms = {kind: r["median_batch_s"]["robocache memory"] * 1e3 for kind, r in results.items()}
    figures = [Figure(kind, CLEAN[kind], ms[kind] * 1e3, 1.0, {}) for kind in ms]
    worst = max(ms, key=lambda kind: ms[kind])
    return {
        "name": f"windows of 17 x 32 bf16, batch {HONEST_BATCH}", "figure": "ms",
        "inputs": {kind: {"ms": x, "clean": CLEAN[kind], "x_clean": x / ms[CLEAN[kind]] if CLEAN[kind] in ms else None,
                          "ratios": results[kind]["ratios"]} for kind, x in ms.items()},
        "worst_input": worst, "worst_ms": ms[worst],
        "targets": judge_inputs((Limit("x clean", X_CLEAN),), figures),
    }  # fmt: skip


def measure_features(args: argparse.Namespace, environment: dict[str, Any]) -> int:
    """Asked for by name: statistics of 100 hours need 2 GB on the disk."""
    samples, episodes, hours = (3, 40, 1.0) if args.quick else (args.samples, 200, loader_features.HOURS)
    if args.only == "features":
        calls = [
            lambda b=b: loader_features.measure(b, episodes, samples, args.device) for b in loader_features.BATCHES
        ]
    else:
        calls = [lambda: loader_features.measure_statistics(hours, min(samples, 3))]
    cases = []
    for call in calls:
        cases.append(call())
        print(describe(cases[-1]), flush=True)
    result = environment | {"quick": args.quick, "threads": harness.available_cores(), "features": cases}
    out = Path(args.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n")
    missed = [case for case in cases if not all(x["met"] for x in case["targets"].values())]
    return int(bool(missed) and args.strict)


def describe(case: dict[str, Any]) -> str:
    times = ", ".join(
        f"{key} {1e6 * s:.1f} µs" + (f" ({case['ratios'][key]:.1f}x)" if key in case["ratios"] else "")
        for key, s in case["median_batch_s"].items()
    )
    verdicts = [f"{verdict(entry)} {entry['measured']:.3g} {name}" for name, entry in case["targets"].items()]
    what = f"{case['name']} {case['axes'].get('recording', '')}".strip()
    return f"  {what}, batch {case['axes']['batch']}: {times} {'; '.join(verdicts)}"


def main() -> int:
    if sys.argv[1:2] == ["soak"]:
        return soak.main(sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=9, help="passes of each, in turns")
    parser.add_argument("--quick", action="store_true", help="a tenth of the data, 3 samples; cuda: about 80 s")
    parser.add_argument(
        "--only",
        default="",
        help="run the sets whose name contains this; 'index', 'honest', 'features', 'statistics'; cuda: a,b,c",
    )
    parser.add_argument("--batches", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--no-foreign", dest="foreign", action="store_false", help="cuda: only alone, no matmul before")
    parser.add_argument("--strict", action="store_true", help="exit 1 if a target is missed")
    parser.add_argument("--out", default=str(harness.ROOT / "build" / "bench_loader.json"), help="JSON file to write")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--no-compile", dest="compile", action="store_false", help="cuda: without torch.compile")
    parser.add_argument("--store-gb", type=float, default=6.4, help="cuda: of the recordings")
    parser.add_argument("--folder", help="cuda: where the caches are written")
    args = parser.parse_args()
    if args.device == "cuda" and args.only != "features":
        return loader_cuda.run(args)
    harness.set_num_threads(harness.available_cores())
    environment = harness.environment()
    cases = []
    if args.only in ("features", "statistics"):
        return measure_features(args, environment)
    for name in SETS:
        for batch_size in args.batches if args.only in name else []:
            with tempfile.TemporaryDirectory() as folder:
                samples, part = (3, 10) if args.quick else (args.samples, 1)
                cases.append(measure(Path(folder), name, batch_size, samples, part, max(1, 25600 // batch_size)))
            print(describe(cases[-1]), flush=True)
    indexed = []
    for name in SETS if args.only in "push-t arm index" else []:
        with tempfile.TemporaryDirectory() as folder:
            repeats, part = (30, 10) if args.quick else (300, 1)
            indexed.append(measure_index(Path(folder), name, INDEX_BATCH, repeats, part))
        print(describe(indexed[-1]), flush=True)
    found = {}
    for kind in KINDS:
        if args.only in f"honest {kind}":
            with tempfile.TemporaryDirectory() as folder:
                samples, episodes = (3, 40) if args.quick else (args.samples, 400)
                found[kind] = measure_honest(Path(folder), kind, episodes, loader_cuda.ROWS, samples)
            print(describe(found[kind]), flush=True)
    worst = [summarize(found)] if found else []
    for entry in (entry for case in worst for entry in case["targets"].values()):
        print(f"  {verdict(entry)}: {entry['measured']:.2f} x the clean recording, target {rule(entry)} "
              f"({entry['input']})")  # fmt: skip
    measured = {"cases": cases, "index": indexed, "honest": list(found.values()), "worst": worst}
    result = environment | {"quick": args.quick, "threads": harness.available_cores(), **measured}
    out = Path(args.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n")
    missed = [case for case in cases + indexed + worst if not all(x["met"] for x in case["targets"].values())]
    return int(bool(missed) and args.strict)


if __name__ == "__main__":
    raise SystemExit(main())
