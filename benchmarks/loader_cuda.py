"""bench_loader --device cuda: batches from GPU memory, from pinned memory and from mapped shards, in one run.

Kernel time is a CUDA graph of batches at different places of the epoch; the floor is the bytes that must move over the
copy bandwidth of the same run. Eager time is what a Python loop waits for one batch.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cuda_timing as timing
import harness
import numpy as np
import robocache
import torch
from cuda_measure import Compiler, end_run, judge, keep_result, measure_limits, microseconds, run_benchmark
from torch import Tensor

BYTES = "bytes = different rows touched + batch; padding and times are not counted"
RATE_HZ, PAST, FUTURE = 50, 2, 14  # "2 past + 15 future" of the plain PyTorch it is compared with: 17 steps
DIMS, ROWS = 32, 5000
STEPS = PAST + 1 + FUTURE
# Three streams at three rates, read at a fourth: (rate, channels).
STREAMS = {"arm": (50, 32), "force": (100, 16), "gripper": (30, 8)}
EPISODE_S, MOMENTS_HZ, ANCHOR_HZ = 100, 20, 17.3
EAGER_BARS = {256: 25.0, 4096: 30.0}
GRAPH_BARS: dict[int, dict[str, float]] = {256: {}, 4096: {"us": 5.0}, 65536: {"floor": 1.25}}
PINNED_BAR, MMAP_BAR = 0.70, 0.60
INDEX_BAR_US = 5.0  # more than a batch without return_index


def bfloat16(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return (rng.normal(size=shape).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def one_stream(folder: Path, num_episodes: int) -> robocache.Cache:
    rng = np.random.default_rng(0)
    spec = robocache.StreamSpec("state", "bfloat16", (DIMS,), rate_hz=RATE_HZ)
    noise = bfloat16(rng, (ROWS + 997, DIMS))
    times = np.arange(ROWS, dtype=np.int64) * (10**9 // RATE_HZ)
    writer = robocache.CacheWriter(folder / "one.cache", {"state": spec})
    for e in range(num_episodes):
        values = noise[e % 997 : e % 997 + ROWS]
        writer.add(robocache.Episode(e, {"state": robocache.EpisodeStream(spec, values, times)}))
    return writer.commit()


def three_streams(folder: Path, num_episodes: int) -> robocache.Cache:
    rng = np.random.default_rng(1)
    specs = {name: robocache.StreamSpec(name, "bfloat16", (n,), rate_hz=hz) for name, (hz, n) in STREAMS.items()}
    noise = {name: bfloat16(rng, (EPISODE_S * hz + 997, n)) for name, (hz, n) in STREAMS.items()}
    writer = robocache.CacheWriter(folder / "three.cache", specs)
    for e in range(num_episodes):
        streams = {}
        for name, (hz, _) in STREAMS.items():
            times = np.round(np.arange(EPISODE_S * hz) * (1e9 / hz)).astype(np.int64)
            values = noise[name][e % 997 : e % 997 + len(times)]
            streams[name] = robocache.EpisodeStream(specs[name], values, times)
        writer.add(robocache.Episode(e, streams))
    return writer.commit()


def state_loader(
    cache: robocache.Cache, batch: int, tier: str, device: str, return_index: bool = False
) -> robocache.Loader:
    window = robocache.Window(past=PAST / RATE_HZ, future=FUTURE / RATE_HZ, rate_hz=RATE_HZ)
    options = {"tier": tier, "device": device, "seed": 1, "return_index": return_index}
    return robocache.Loader(cache, batch, {"state": window}, **options)


class Plain:
    """The same windows by plain PyTorch: rows of the epoch in order of a permutation, clamped to their episode."""

    def __init__(self, values: Tensor, order: Tensor, batch: int) -> None:
        self.values, self.order, self.batch = values, order, batch
        self.steps = torch.arange(-PAST, FUTURE + 1, device=values.device)

    def call(self, rows: Tensor) -> Tensor:
        first = (rows // ROWS * ROWS)[:, None]
        index = (rows[:, None] + self.steps).clamp(first, first + (ROWS - 1))
        return self.values[index]

    def rows(self, step: int) -> Tensor:
        return self.order[step * self.batch : (step + 1) * self.batch]


def order_of(cache: robocache.Cache, batch: int, num_steps: int, device: str) -> Tensor:
    """The rows of the first anchors of the epoch: the loader's own word for them."""
    window = robocache.Window()
    told = robocache.Loader(cache, batch, {"state": window}, tier="mmap", seed=1, return_index=True)
    found = [told.batch(step) for step in range(num_steps)]
    rows = [b["episode_index"] * ROWS + b["anchor_ns"] * RATE_HZ // 10**9 for b in found]
    return torch.cat(rows).to(device)


def steps_of(size_bytes: int, loader: robocache.Loader, device: str) -> tuple[int, int]:
    num_sets, num_calls = timing.plan_rotation(size_bytes, timing.l2_bytes(device))
    return min(num_sets, len(loader)), num_calls


def measure_windows(cache: robocache.Cache, values: Tensor, batch: int, compiler: Compiler, tbps: float,
                    samples: int, device: str) -> list[dict[str, Any]]:  # fmt: skip
    """In a graph, and as eager calls: ours, plain PyTorch, and plain PyTorch compiled."""
    loader = state_loader(cache, batch, "gpu" if device == "cuda" else "memory", device)
    size = 2 * batch * STEPS * DIMS * 2
    num_sets, num_calls = steps_of(size, loader, device)
    plain = Plain(values, order_of(cache, batch, num_sets, device), batch)
    for step in range(min(num_sets, 8)):
        assert torch.equal(loader.batch(step)["state"], plain.call(plain.rows(step))), (
            "another batch than plain PyTorch"
        )
    compiled, why = compiler.of(plain.call, (plain.rows(0),))
    rows = [(plain.rows(step),) for step in range(num_sets)]
    replays = {
        "ours": timing.Replay(lambda step: loader.batch(step), [(s,) for s in range(num_sets)], num_calls, device),
        "plain": timing.Replay(plain.call, rows, num_calls, device),
    }
    if compiled is not None:
        replays["compiled"] = timing.Replay(compiled, rows, num_calls, device)
    seconds = timing.interleave(replays, samples)
    del replays
    median = {name: harness.median(s) * 1e6 for name, s in seconds.items()}
    floor = size / tbps / 1e6
    about = {"axes": {"batch": f"{batch:,}"}, "size_bytes": size, "notes": {"compiled": why} if why else {}}
    in_graph = {
        **about, "name": "windows of 17 x 32 bf16 in a graph", "floor_us": floor, "x_floor": median["ours"] / floor,
        "median_us": median, "agrees": True, "ratios": {name: us / median["ours"] for name, us in median.items()},
        "samples_us": microseconds(seconds),
        "bars": judge(GRAPH_BARS[batch], {"us": median["ours"], "floor": median["ours"] / floor}),
    }  # fmt: skip
    if batch not in EAGER_BARS:
        return [in_graph]
    batches = itertools.chain.from_iterable(itertools.repeat(loader))  # epoch after epoch
    turn = iter(range(10**12))
    calls: dict[str, Callable[[], Any]] = {
        "ours": lambda: next(batches),
        "plain": lambda: plain.call(plain.rows(next(turn) % num_sets)),
    }
    if compiled is not None:
        calls["compiled"] = lambda: compiled(plain.rows(next(turn) % num_sets))
    seconds = timing.eager_loops(calls, 10 if device == "cpu" else 400, 7 if samples < 20 else 15, device)
    median = {name: harness.median(s) * 1e6 for name, s in seconds.items()}
    eager = {
        **about, "name": "next(loader), eager", "median_us": median, "agrees": True,
        "ratios": {name: us / median["ours"] for name, us in median.items()}, "samples_us": microseconds(seconds),
        "bars": judge({"us": EAGER_BARS[batch]}, {"us": median["ours"]}),
    }  # fmt: skip
    return [in_graph, eager]


def measure_index(cache: robocache.Cache, batch: int, samples: int, device: str) -> list[dict[str, Any]]:
    """What ``return_index`` adds: to a batch in a graph, and to an eager one."""
    tier = "gpu" if device == "cuda" else "memory"
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
            "bars": judge({"us": INDEX_BAR_US} if batch == 4096 else {}, {"us": more}),
        })  # fmt: skip
    return found


def touched_rows(hz: int, deltas_ns: tuple[int, ...]) -> float:
    """Different rows that linear interpolation reads around an anchor, on average over anchors."""
    anchors = np.random.default_rng(0).integers(10 * 10**9, 90 * 10**9, 1000)
    left = np.floor((anchors[:, None] + np.array(deltas_ns)) * (hz / 1e9)).astype(np.int64)
    return float(np.mean([len({*row, *(row + 1)}) for row in left]))


def measure_three(cache: robocache.Cache, batch: int, tbps: float, samples: int, device: str) -> dict[str, Any]:
    window = robocache.Window(past=PAST / MOMENTS_HZ, future=FUTURE / MOMENTS_HZ, rate_hz=MOMENTS_HZ)
    options = {"windows": dict.fromkeys(STREAMS, window), "normalize": dict.fromkeys(STREAMS, "mean_std"),
               "anchors": "arm", "anchor_hz": ANCHOR_HZ, "seed": 2}  # fmt: skip
    loader = robocache.Loader(cache, batch, tier="gpu" if device == "cuda" else "memory", device=device, **options)
    check = robocache.Loader(cache, batch, tier="mmap", **options)
    for name, x in check.batch(0).items():
        assert torch.equal(loader.batch(0)[name].cpu(), x), f"another {name} than on the CPU"
    size = sum(
        int(batch * 2 * n * (touched_rows(hz, window.deltas_ns) + STEPS)) for hz, n in STREAMS.values()
    )  # fmt: skip
    num_sets, num_calls = steps_of(size, loader, device)
    replay = timing.Replay(lambda step: loader.batch(step), [(s,) for s in range(num_sets)], num_calls, device)
    seconds = timing.interleave({"ours": replay}, samples)
    us, floor = harness.median(seconds["ours"]) * 1e6, size / tbps / 1e6
    return {
        "name": "three streams at three rates, interpolated, normalized", "axes": {"batch": f"{batch:,}"},
        "size_bytes": size, "floor_us": floor, "x_floor": us / floor, "median_us": {"ours": us}, "agrees": True,
        "ratios": {}, "notes": {}, "samples_us": microseconds(seconds),
        "bars": judge({"floor": 1.5} if batch == 65536 else {}, {"floor": us / floor}),
    }  # fmt: skip


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


def measure_tier(cache: robocache.Cache, tier: str, batch: int, gbps: float, bar: float, samples: int,
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
    holds = share >= bar
    return {
        "name": f"tier {tier}", "axes": {"batch": f"{batch:,}"}, "size_bytes": size, "agrees": True, "ratios": {},
        "notes": {}, "median_us": {"ours": harness.median(seconds) * 1e6}, "gbps": share * gbps,
        "share_of_host_to_device": share, "cores": cores, "samples_us": microseconds({"ours": seconds}),
        "bars": {}, "at_least": {"share": {"at_least": bar, "measured": share, "holds": holds}},
    }  # fmt: skip


def run(args: argparse.Namespace, device: str = "cuda", tiny: bool = False) -> int:
    """``device="cpu"`` with tiny data walks through it without a GPU; its times mean nothing."""
    return run_benchmark("loader", BYTES, args, device, lambda record: measure_all(record, args, device, tiny))


Found = Iterator[tuple[str, dict[str, Any]]]


def parts(cache_of: Callable[[str], robocache.Cache], args: argparse.Namespace, record: dict[str, Any], tbps: float,
          compiler: Compiler, samples: int, device: str, tiny: bool) -> Found:  # fmt: skip
    """(where it belongs in the record, what was measured)."""
    batches = (256,) if tiny else (256, 4096, 65536)
    if args.only in "windows":
        cache = cache_of("one")
        loader = state_loader(cache, 256, "gpu" if device == "cuda" else "memory", device)
        values = loader._reader.store.parts[0].rows["state"][0]
        for batch in batches:
            for found in measure_windows(cache, values, batch, compiler, tbps, samples, device):
                yield "eager" if "eager" in found["name"] else "cases", found
        del loader, values
    if args.only in "index":
        for batch in batches[:2]:
            for found in measure_index(cache_of("one"), batch, samples, device):
                yield "index", found
    if args.only in "tiers":
        record["host_to_device"] = host_to_device(device, 1 << (20 if tiny else 30))
        for tier, bar in (("pinned", PINNED_BAR), ("mmap", MMAP_BAR)):
            for batch in batches[-2:]:
                gbps = record["host_to_device"]["gbps"]
                yield "tiers", measure_tier(cache_of("one"), tier, batch, gbps, bar, max(3, samples // 4), device)
    if args.only in "three":
        for batch in batches[-2:]:
            yield "cases", measure_three(cache_of("three"), batch, tbps, samples, device)


def measure_all(record: dict[str, Any], args: argparse.Namespace, device: str, tiny: bool) -> None:
    begin = time.perf_counter()
    samples = 7 if args.quick else max(20, args.samples)
    tbps = measure_limits(record, device, tiny, samples)
    compiler = Compiler(args.compile and not args.quick, "not asked for in this run")
    record |= {"tiers": [], "index": []}
    made: dict[str, robocache.Cache] = {}
    episodes = {"one": 3 if tiny else int(args.store_gb * 1e9 / (ROWS * DIMS * 2)), "three": 3 if tiny else 1500}
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:

        def cache_of(name: str) -> robocache.Cache:
            if name not in made:
                started = time.perf_counter()
                make = one_stream if name == "one" else three_streams
                made[name] = make(Path(folder), episodes[name])
                print(f"        wrote {name}: {episodes[name]} episodes in {time.perf_counter() - started:.0f} s")
            return made[name]

        for where, found in parts(cache_of, args, record, tbps, compiler, samples, device, tiny):
            what = f"{found['name']}, batch {found['axes']['batch']}"
            keep_result(record, where, what, found, compiler, begin)
            for bar in found.get("at_least", {}).values():
                share = f"{bar['measured']:.2f} of a plain copy, asked {bar['at_least']}"
                verdict = "PASS" if bar["holds"] else "MISS"
                print(f"        {found['gbps']:.1f} GB/s, {share}, {found['cores']:.1f} cores: {verdict}")
    end_run(record, device, tiny, compiler, begin)
