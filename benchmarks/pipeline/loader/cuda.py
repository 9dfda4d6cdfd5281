"""bench_loader --device cuda: batches from GPU memory, from pinned memory and from mapped shards, in one run.

Kernel time is a CUDA graph of batches at different places of the epoch, alone and after a matmul; the floor is the
bytes that must move over the copy bandwidth of the same run. Batches are read from clean recordings and from recordings
with defects; the figure of a case is its worst recording. Eager time is what a Python loop waits for one batch.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import robocache
import torch
from measure import harness, timing
from measure.cuda import largest_error, microseconds, on_floor, time_calls
from measure.run import Honest, Run, run_benchmark
from measure.targets import Limit, judge, target
from measure.timing import Call
from pipeline.loader.recordings import CLEAN, EDGES, KINDS, Recording, Stream
from pipeline.loader.rivals import row_windows, search_streams, search_windows, searched, touched_rows
from torch import Tensor

BYTES = "bytes = different rows touched + batch; padding and times are not counted"
RATE_HZ, PAST, FUTURE = 50, 2, 14  # 17 steps
DIMS, ROWS = 32, 5000
STEPS = PAST + 1 + FUTURE
BATCHES = (256, 4096, 65536)
ONE = (Stream("state", RATE_HZ, DIMS),)
# Three streams at three rates, read at a fourth.
THREE = (Stream("arm", 50, 32), Stream("force", 100, 16), Stream("gripper", 30, 8))
MOMENTS_HZ, ANCHOR_HZ = 20, 17.3
HONEST_GB = 0.4  # of each recording with a defect, and of the clean one it is compared with
COMPILED = Limit("x compiled", 1.0)
GRAPH_LIMITS: dict[int, tuple[Limit, ...]] = {
    256: (COMPILED,), 4096: (COMPILED, Limit("us", 4.5)), 65536: (COMPILED, Limit("x floor", 1.25)),
}  # fmt: skip
THREE_LIMITS: dict[int, tuple[Limit, ...]] = {65536: (Limit("x floor", 1.5, "ramp"),)}
EAGER_TARGETS = {256: 25.0, 4096: 30.0}
PINNED_TARGET, MMAP_TARGET = 0.70, 0.60
INDEX_TARGET_US = 5.0  # more than a batch without return_index
THREE_KINDS = ("ramp", "jitter", "packets", "dropout")


def window_of(hz: float) -> robocache.Window:
    return robocache.Window(past=PAST / hz, future=FUTURE / hz, rate_hz=hz)


def state_loader(
    cache: robocache.Cache, batch: int, tier: str, device: str, return_index: bool = False
) -> robocache.Loader:
    options = {"tier": tier, "device": device, "seed": 1, "return_index": return_index}
    return robocache.Loader(cache, batch, {"state": window_of(RATE_HZ)}, **options)


def three_loader(cache: robocache.Cache, batch: int, tier: str, device: str, **options: Any) -> robocache.Loader:
    names = [stream.name for stream in THREE]
    return robocache.Loader(
        cache, batch, tier=tier, device=device, windows=dict.fromkeys(names, window_of(MOMENTS_HZ)),
        normalize=dict.fromkeys(names, "mean_std"), anchors="arm", anchor_hz=ANCHOR_HZ, seed=2, **options,
    )  # fmt: skip


def gpu_tier(device: str) -> str:
    return "gpu" if device == "cuda" else "memory"


def anchors_of(told: robocache.Loader, num_steps: int, device: str) -> list[tuple[Tensor, Tensor]]:
    """(episode, anchor_ns) of the first batches of the epoch, from the index that the loader returns."""
    found = [told.batch(step) for step in range(num_steps)]
    return [(b["episode_index"].to(device), b["anchor_ns"].to(device)) for b in found]


def window_steps(device: str) -> Tensor:
    return torch.arange(-PAST, FUTURE + 1, device=device)


def anchor_rows(anchors: tuple[Tensor, Tensor], rows: int) -> Tensor:
    """Rows of anchors whose stamps are exact multiples of the period."""
    episode, anchor_ns = anchors
    return episode * rows + anchor_ns * RATE_HZ // 10**9


def steps_of(size_bytes: int, loader: robocache.Loader, device: str) -> tuple[int, int]:
    num_sets, num_calls = timing.plan_rotation(size_bytes, timing.l2_bytes(device))
    return min(num_sets, len(loader)), num_calls


def measure_windows(recording: Recording, cache: robocache.Cache, batch: int, run: Run) -> dict[str, Any]:
    """Windows of one stream. The rival gathers rows where stamps are even, and searches the stamps otherwise."""
    device = run.device
    loader = state_loader(cache, batch, gpu_tier(device), device)
    num_sets, num_calls = steps_of(2 * batch * STEPS * DIMS * 2, loader, device)
    told = robocache.Loader(cache, batch, {"state": robocache.Window()}, tier="mmap", seed=1, return_index=True)
    anchors = anchors_of(told, num_sets, device)
    values, rows = recording.all_values("state", device), recording.rows["state"]
    even = recording.kind in ("ramp", EDGES)
    if even:
        plain: Call = row_windows
        sets: list[Any] = [(values, window_steps(device), rows, anchor_rows(x, rows)) for x in anchors]
        touched = batch * STEPS
    else:
        plain = search_windows
        stream = searched(values, recording.all_times("state", device), rows, window_of(RATE_HZ).deltas_ns)
        sets = [(stream, *x) for x in anchors]
        touched = touched_rows(*sets[0])
    errors = [
        largest_error(loader.batch(step)["state"], plain(*sets[step]), "bfloat16") for step in range(min(num_sets, 8))
    ]
    calls: dict[str, tuple[Call, list[Any]]] = {
        "ours": (loader.batch, [(s,) for s in range(num_sets)]),
        "plain": (plain, sets),
    }
    name = "windows of 17 x 32 bf16 in a graph"
    return batches_of(name, recording, batch, calls, max(errors), (touched + batch * STEPS) * DIMS * 2, num_calls, run)


def batches_of(name: str, recording: Recording, batch: int, calls: dict[str, tuple[Call, list[Any]]], error: float,
               size_bytes: int, num_calls: int, run: Run) -> dict[str, Any]:  # fmt: skip
    """Times our batches and the rival's, eager and compiled, alone and after a matmul."""
    notes: dict[str, str] = {}
    if error > 1:
        notes["plain"] = f"other values: {error:.3g} times the tolerance, not timed"
        calls = {"ours": calls["ours"]}
    else:
        plain, sets = calls["plain"]
        compiled, why = run.compiler.of(plain, sets[0])
        calls |= {"compiled": (compiled, sets)} if compiled else {}
        notes |= {"compiled": why} if why else {}
        if run.effort.quick and compiled and recording.kind != CLEAN[recording.kind]:
            del calls["plain"]
    timed = time_calls(calls, size_bytes, num_calls, run.effort, run.device, notes)
    about = {"name": name, "axes": {"batch": f"{batch:,}", "recording": recording.kind}, "input": recording.kind,
             "clean": CLEAN[recording.kind], "notes": notes, "agrees": error <= 1}  # fmt: skip
    return about | on_floor(size_bytes, run.tbps, timed)


def measure_eager(recording: Recording, cache: robocache.Cache, batch: int, run: Run) -> dict[str, Any]:
    """next(loader) in a Python loop, against the gather of rows, eager and compiled. Clean recordings."""
    loader = state_loader(cache, batch, gpu_tier(run.device), run.device)
    told = robocache.Loader(cache, batch, {"state": robocache.Window()}, tier="mmap", seed=1, return_index=True)
    rows = recording.rows["state"]
    values, steps = recording.all_values("state", run.device), window_steps(run.device)
    anchors = anchors_of(told, min(64, len(told)), run.device)
    sets = [(values, steps, rows, anchor_rows(x, rows)) for x in anchors]
    compiled, why = run.compiler.of(row_windows, sets[0])
    batches = itertools.chain.from_iterable(itertools.repeat(loader))  # epoch after epoch
    turn = itertools.cycle(sets)
    calls: dict[str, Callable[[], Any]] = {"ours": lambda: next(batches), "plain": lambda: row_windows(*next(turn))}
    if compiled is not None:
        calls["compiled"] = lambda: compiled(*next(turn))
    seconds = timing.eager_loops(
        calls, 10 if run.device == "cpu" else 400, 7 if run.effort.quick else 15, run.device
    )  # fmt: skip
    median = {name: harness.median(s) * 1e6 for name, s in seconds.items()}
    return {
        "name": "next(loader), eager", "axes": {"batch": f"{batch:,}"}, "median_us": median, "agrees": True,
        "ratios": {name: us / median["ours"] for name, us in median.items()}, "samples_us": microseconds(seconds),
        "notes": {"compiled": why} if why else {},
        "targets": judge({"us": EAGER_TARGETS.get(batch, EAGER_TARGETS[256])}, {"us": median["ours"]}),
    }  # fmt: skip


def measure_index(cache: robocache.Cache, batch: int, samples: int, device: str) -> list[dict[str, Any]]:
    """What ``return_index`` adds: to a batch in a graph, and to an eager one."""
    tier = gpu_tier(device)
    loaders = {name: state_loader(cache, batch, tier, device, name == "indexed") for name in ("ours", "indexed")}
    check = state_loader(cache, batch, "mmap", "cpu", True)
    for name, x in check.batch(0).items():
        assert torch.equal(loaders["indexed"].batch(0)[name].cpu(), x), f"another {name} than on the CPU"
    num_sets, num_calls = steps_of(2 * batch * STEPS * DIMS * 2, loaders["ours"], device)
    steps = [(s,) for s in range(num_sets)]
    replays = {name: timing.Replay(loader.batch, steps, num_calls, device) for name, loader in loaders.items()}
    in_graph = timing.interleave(replays, samples)
    del replays
    batches = {name: itertools.chain.from_iterable(itertools.repeat(loader)) for name, loader in loaders.items()}
    calls = {name: lambda name=name: next(batches[name]) for name in loaders}
    eager = timing.eager_loops(calls, 10 if device == "cpu" else 400, 7 if samples < 20 else 15, device)
    found = []
    for name, seconds in (("return_index in a graph", in_graph), ("return_index, eager", eager)):
        median = {key: harness.median(s) * 1e6 for key, s in seconds.items()}
        more = median["indexed"] - median["ours"]
        found.append({
            "name": name, "axes": {"batch": f"{batch:,}"}, "median_us": median, "more_us": more, "agrees": True,
            "ratios": {}, "notes": {}, "samples_us": microseconds(seconds),
            "targets": judge({"us": INDEX_TARGET_US} if batch == 4096 else {}, {"us": more}),
        })  # fmt: skip
    return found


def flat(batch: dict[str, Tensor]) -> Tensor:
    """The three streams of a batch side by side."""
    return torch.cat([batch[stream.name] for stream in THREE], -1)


def measure_three(recording: Recording, cache: robocache.Cache, batch: int, run: Run) -> dict[str, Any]:
    """Three streams at three rates, interpolated and normalized; also compared with the batches of the CPU."""
    device = run.device
    loader = three_loader(cache, batch, gpu_tier(device), device)
    check = three_loader(cache, batch, "mmap", "cpu", return_index=True)
    for name, x in loader.batch(0).items():
        assert torch.equal(x.cpu(), check.batch(0)[name]), f"another {name} than on the CPU"
    deltas = window_of(MOMENTS_HZ).deltas_ns
    parts = tuple(
        searched(recording.all_values(x.name, device), recording.all_times(x.name, device), recording.rows[x.name],
                 deltas, *loader.scale_of(x.name))
        for x in THREE
    )  # fmt: skip
    about = 2 * batch * STEPS * sum(stream.channels for stream in THREE) * 2
    num_sets, num_calls = steps_of(about, loader, device)
    anchors = anchors_of(check, num_sets, device)
    sets = [(parts, *x) for x in anchors]
    size_bytes = sum(
        (touched_rows(part, *anchors[0]) + batch * STEPS) * stream.channels * 2
        for part, stream in zip(parts, THREE, strict=True)
    )
    error = largest_error(flat(loader.batch(0)), search_streams(*sets[0]), "bfloat16")
    calls: dict[str, tuple[Call, list[Any]]] = {
        "ours": (loader.batch, [(s,) for s in range(num_sets)]),
        "plain": (search_streams, sets),
    }
    name = "three streams at three rates, interpolated, normalized"
    return batches_of(name, recording, batch, calls, error, size_bytes, num_calls, run)


def host_to_device(device: str, size: int) -> dict[str, Any]:
    """Bytes per second of a plain copy from pinned memory; the best of ten."""
    source = torch.empty(size, dtype=torch.uint8, pin_memory=device == "cuda").fill_(1)
    target = torch.empty(size, dtype=torch.uint8, device=device)
    seconds = []
    for _ in range(12):
        timing.synchronize(device)
        begin = time.perf_counter()
        target.copy_(source, non_blocking=True)
        timing.synchronize(device)
        seconds.append(time.perf_counter() - begin)
    return {"gbps": size / min(seconds[2:]) / 1e9, "size_bytes": size, "samples_s": seconds}


def measure_tier(cache: robocache.Cache, tier: str, batch: int, gbps: float, least: float, samples: int,
                 device: str) -> dict[str, Any]:  # fmt: skip
    """An epoch as a consumer sees it that does nothing: bytes of the batches over seconds."""
    loader = state_loader(cache, batch, tier if device == "cuda" else "memory", device)
    size = batch * STEPS * DIMS * 2
    num_batches = min(len(loader), max(4, (2 << 30) // size))
    seconds = []
    for _ in range(samples):
        timing.synchronize(device)
        begin, cpu = time.perf_counter(), time.process_time()
        for step, _ in enumerate(loader, 1):
            if step == num_batches:
                break
        timing.synchronize(device)
        seconds.append((time.perf_counter() - begin) / num_batches)
        cores = (time.process_time() - cpu) / (seconds[-1] * num_batches)
    share = size / harness.median(seconds) / 1e9 / gbps
    return {
        "name": f"tier {tier}", "axes": {"batch": f"{batch:,}"}, "size_bytes": size, "agrees": True, "ratios": {},
        "notes": {}, "median_us": {"ours": harness.median(seconds) * 1e6}, "gbps": share * gbps,
        "share_of_host_to_device": share, "cores": cores, "samples_us": microseconds({"ours": seconds}),
        "targets": {"share": target(share, at_least=least)},
    }  # fmt: skip


def run(args: argparse.Namespace, device: str = "cuda", tiny: bool = False) -> int:
    """``device="cpu"`` with tiny data runs every path without a GPU; its times mean nothing."""
    return run_benchmark("loader", BYTES, args, device, tiny, measure_all)


class Caches:
    """Caches of recordings in a folder; each is written when it is first used, and closed by `drop`."""

    def __init__(self, folder: Path, run: Run) -> None:
        self.folder, self.run = folder, run
        self._open: dict[tuple[str, str], tuple[Recording, robocache.Cache]] = {}

    def of(self, kind: str, streams: tuple[Stream, ...], size_gb: float) -> tuple[Recording, robocache.Cache]:
        key = (kind, streams[0].name)
        if key not in self._open:
            begin = time.perf_counter()
            row_bytes = sum(s.channels * 2 * s.rate_hz / streams[0].rate_hz for s in streams)
            num_episodes, rows = (3, 200) if self.run.tiny else (int(size_gb * 1e9 / (ROWS * row_bytes)), ROWS)
            recording = Recording(kind, streams, num_episodes, rows)
            cache = recording.write(self.folder / f"{kind} {streams[0].name}.cache")
            self._open[key] = recording, cache
            print(f"        wrote {kind}, {len(streams)} streams, {recording.num_episodes} episodes in "
                  f"{time.perf_counter() - begin:.1f} s", flush=True)  # fmt: skip
        return self._open[key]

    def drop(self, kind: str, streams: tuple[Stream, ...]) -> None:
        self._open.pop((kind, streams[0].name), None)


Measure = Callable[[Recording, robocache.Cache, int, Run], dict[str, Any]]


def measure_kinds(what: str, measure: Measure, streams: tuple[Stream, ...], kinds: tuple[str, ...],
                  limits: dict[int, tuple[Limit, ...]], caches: Caches, run: Run) -> None:  # fmt: skip
    """Every batch size over every recording; the recordings are in the outer loop, since writing one takes longest."""
    batches = (64,) if run.tiny else BATCHES if streams == ONE else BATCHES[-2:]
    found: dict[int, list[dict[str, Any]]] = {batch: [] for batch in batches}
    for kind in kinds:
        for batch in batches:
            label = f"{what} {batch:,} {kind}"
            if run.wants(label):
                found[batch].append(measure(*caches.of(kind, streams, HONEST_GB), batch, run))
                run.keep("cases", label, found[batch][-1])
        if kind not in ("ramp",):
            caches.drop(kind, streams)
    for batch, results in found.items():
        if results:
            limit = limits.get(4096 if run.tiny else batch, ())
            run.conclude(Honest(f"{what}, batch {batch:,}", {}, limit), results)


def measure_all(run: Run) -> None:
    device, tiny, args = run.device, run.tiny, run.args
    run.record |= {"tiers": [], "index": []}
    batches = (64,) if tiny else BATCHES
    large_gb = HONEST_GB if args.quick else args.store_gb
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        caches = Caches(Path(folder), run)
        measure_kinds("windows", measure_windows, ONE, KINDS, GRAPH_LIMITS, caches, run)
        kinds = THREE_KINDS[:2] if args.quick and not tiny else THREE_KINDS
        measure_kinds("three streams", measure_three, THREE, kinds, THREE_LIMITS, caches, run)
        if large_gb != HONEST_GB:
            caches.drop("ramp", ONE)
            (Path(folder) / "large").mkdir()
            caches.folder = Path(folder) / "large"
        for batch in batches[:1] if tiny else tuple(EAGER_TARGETS):
            if run.wants(what := f"eager {batch:,}"):
                eager = measure_eager(*caches.of("ramp", ONE, large_gb), batch, run)
                run.keep("eager", what, eager)
        for batch in batches[:2]:
            if run.wants(f"index {batch:,}"):
                for found in measure_index(caches.of("ramp", ONE, large_gb)[1], batch, run.effort.samples, device):
                    run.keep("index", f"{found['name']}, batch {batch:,}", found)
        if run.wants("tiers"):
            run.record["host_to_device"] = host_to_device(device, 1 << (20 if tiny else 30))
            gbps = run.record["host_to_device"]["gbps"]
            for tier, least in (("pinned", PINNED_TARGET), ("mmap", MMAP_TARGET)):
                for batch in batches[-2:]:
                    cache = caches.of("ramp", ONE, large_gb)[1]
                    found = measure_tier(cache, tier, batch, gbps, least, max(3, run.effort.samples // 4), device)
                    run.keep("tiers", f"{found['name']}, batch {batch:,}, {found['gbps']:.1f} GB/s", found)
