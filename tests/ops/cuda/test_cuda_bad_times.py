"""Unchecked nonsense on the GPU: wrong numbers, but never a fault, and nothing is written outside the outputs.

One call holds every kind of bad times at once, an episode for each, so that a hundred calls are all there are: they run
under compute-sanitizer too, where the guards below are its business.
"""

import numpy as np
import pytest
import robocache
import torch
from cases import EXTRAPOLATING, METHODS, STEP, times_of
from cuda_tools import DEVICE, GUARD, Guarded, copy_of, needs_cuda, tensor

pytestmark = needs_cuda

NUM_ROWS = 300  # more than a warp keeps at hand, so that both ways of searching see the nonsense
NUM_CHANNELS = 4
INT64 = np.iinfo(np.int64)


def extremes(tdtype):
    """What should not be a time: (the lowest, the highest, something that is no number)."""
    if tdtype == np.int64:
        return INT64.min, INT64.max, INT64.min + 1
    return -np.inf, np.inf, np.nan


def bad_times(rng, good, tdtype):
    """Every way we know to get times wrong, as a list of arrays as long as ``good``."""
    low, high, no_number = extremes(tdtype)

    def with_rows(places, value):
        times = good.copy()
        times[places] = value
        return times

    middle = len(good) // 2
    largest = INT64.max if tdtype == np.int64 else np.finfo(tdtype).max
    return [
        good,
        rng.permutation(good),
        good[::-1].copy(),
        np.full_like(good, good[middle]),
        np.full_like(good, no_number),
        with_rows(0, no_number),
        with_rows(-1, no_number),
        with_rows(middle, no_number),
        with_rows(slice(None, None, 2), no_number),
        with_rows(0, high),
        with_rows(-1, low),
        with_rows([0, -1], [low, high]),
        with_rows([0, -1], [high, low]),
        with_rows(slice(1, None, 3), high),
        with_rows(slice(2, None, 3), low),
        np.full_like(good, high),
        np.linspace(-largest / 2, largest / 2, len(good)).astype(tdtype),
        with_rows([0, -1], [-largest, largest]),
    ]


def bad_targets(rng, good, tdtype):
    """Targets around the good times, and nonsense between them, in no order."""
    low, high, no_number = extremes(tdtype)
    inside = rng.choice(good, 20) + np.asarray(STEP[tdtype.name], tdtype)
    return rng.permutation(np.concatenate([inside, good[[0, -1]], [low, high, no_number, 0, -1, 1]]).astype(tdtype))


BAD_OFFSETS = [0, 7, 3, -5, 100, INT64.max, 250, INT64.min, 300, 301, 200, 200, 299, -1, 300]
BAD_EPISODES = [-1, INT64.min, INT64.max, 2**31, 2**32, -(2**31), 10**6]


def bad_call(rng, layout, tdtype):
    """``(values, times, offsets)`` of a stream and the query, as CPU tensors, and which query rows ask no episode."""
    good = times_of(np.arange(100, 100 + 2 * NUM_ROWS, 2), tdtype)
    times = np.stack(bad_times(rng, good, tdtype))
    offsets = None
    if layout == "ragged":  # the rows of all the nonsense behind each other, cut at nonsense
        times, offsets = times.reshape(-1), np.array([*BAD_OFFSETS, 900, times.size, times.size + 1, 2000])
    num_episodes = len(times) if offsets is None else len(offsets) - 1
    values = rng.normal(size=(*times.shape, NUM_CHANNELS)).astype(np.float32)
    episode = np.array([*range(num_episodes), *BAD_EPISODES, num_episodes])
    targets = np.stack([bad_targets(rng, good, tdtype) for _ in episode])
    query = {"episode": episode}
    if layout == "anchored":
        steps = np.arange(-20, 20) * STEP[tdtype.name]
        query |= {"anchor": targets[:, 0], "deltas": np.array([*steps, *extremes(tdtype)]).astype(tdtype)}
        query["anchor"][::2] = rng.choice(good, len(query["anchor"][::2]))
    else:
        query["times"] = targets
    stream = [tensor(x) for x in (values, times, offsets)]
    return stream, {k: tensor(x) for k, x in query.items()}, (episode < 0) | (episode >= num_episodes)


def options_of(method, tdtype):
    outside = "linear" if method in EXTRAPOLATING else "hold"
    step = STEP[tdtype.name]
    return {"method": method, "outside": outside, "outside_valid": True, "max_gap": 3 * step, "latency": -step}


@pytest.mark.sanitize
@pytest.mark.parametrize("layout", ["dense", "ragged", "anchored"])
@pytest.mark.parametrize("method", METHODS)
def test_nonsense_stays_inside_the_memory(method, layout, tdtype, rng, monkeypatch):
    arrays, query, nobody = bad_call(rng, layout, tdtype)
    stream = robocache.Stream(*(copy_of(x, DEVICE) for x in arrays), **options_of(method, tdtype))
    query = {k: copy_of(x, DEVICE) for k, x in query.items()}
    with Guarded(monkeypatch) as guarded:
        got = robocache.align(stream, **query, return_index=True, check=False)
    guarded.assert_untouched(num_outputs=3)
    values, valid, index = (x.cpu().numpy() for x in got)
    assert valid.view(np.uint8).max() <= 1
    assert index.min() >= -1
    assert index.max() < (NUM_ROWS if layout != "ragged" else len(arrays[1]))
    assert not values[nobody].any(), "an episode out of range gives zeros"
    assert not valid[nobody].any(), "an episode out of range is not valid"
    assert (index[nobody] == -1).all()


@pytest.mark.sanitize
def test_a_latency_of_the_whole_range_of_times_stays_inside_the_memory(tdtype, rng, monkeypatch):
    arrays, query, _ = bad_call(rng, "dense", tdtype)
    longest = INT64.max if tdtype == np.int64 else float(np.finfo(tdtype).max)
    arrays = [copy_of(x, DEVICE) for x in arrays]
    streams = [
        robocache.Stream(*arrays, method=method, latency=latency)
        for method in ("linear", "cubic", "mean", "rms")
        for latency in (longest, -longest)
    ]
    with Guarded(monkeypatch) as guarded:
        robocache.align(streams, **{k: copy_of(x, DEVICE) for k, x in query.items()}, return_index=True, check=False)
    guarded.assert_untouched(num_outputs=3 * len(streams))


@pytest.mark.sanitize
@pytest.mark.parametrize("width", [3, 8, 64])
def test_rows_at_the_latest_time_there_is_are_the_last_ones(tdtype, width):
    """A window of times is filled up with that time: rows beyond the episode must not be taken for its own."""
    times = torch.from_numpy(np.array([0, 1, 2, extremes(tdtype)[1], extremes(tdtype)[1]], tdtype))
    values = torch.arange(5.0 * width).view(5, width)
    targets = torch.from_numpy(
        np.array([0.5, 1.5, 2.5, 3, 4] if tdtype != np.int64 else [0, 1, 2, 3, 4]).astype(tdtype)
    )
    stream = robocache.Stream(values, times)
    want = robocache.align(stream, targets, return_index=True, check=False)
    on_gpu = robocache.Stream(copy_of(values, DEVICE), copy_of(times, DEVICE))
    got = robocache.align(on_gpu, copy_of(targets, DEVICE), return_index=True, check=False)
    for mine, cpu in zip(got, want, strict=True):
        torch.testing.assert_close(mine.cpu(), cpu, rtol=0, atol=0, equal_nan=True)
    for method in ("previous", "next", "nearest"):
        want = robocache.align(robocache.Stream(values, times, method=method), targets, check=False).values
        on_gpu = robocache.Stream(copy_of(values, DEVICE), copy_of(times, DEVICE), method=method)
        assert torch.equal(robocache.align(on_gpu, copy_of(targets, DEVICE), check=False).values.cpu(), want)


def test_a_write_outside_an_output_is_noticed(monkeypatch):
    """The control of the guards: one element too far, on either side."""
    for place in (GUARD - 1, -GUARD):
        with Guarded(monkeypatch) as guarded:
            made = torch.empty((3, 5), dtype=torch.float32, device=DEVICE)
        assert made.shape == (3, 5)
        guarded.assert_untouched(1)
        guarded._memories[0][0].view(torch.float32)[place] = 0.0
        with pytest.raises(AssertionError, match="was written"):
            guarded.assert_untouched(1)


@pytest.mark.sanitize
def test_a_good_call_still_works_after_the_bad_ones():
    """After a fault every call of the process fails; this one is the last of the file."""
    times = torch.arange(5.0).to(DEVICE, copy=True)
    got = robocache.resample_trajectories(times, times, times, check=False)
    assert got.cpu().tolist() == [0, 1, 2, 3, 4]
