"""Pairs of GPUs: each has the bits of the CPU, whichever is the current one. Skipped where there are not two."""

import pytest
import torch
from arrays import CUDA
from cuda_tools import assert_same_bits
from device_work import digest, loader_on, work
from loader_cases import make_cache
from robocache import resample_trajectories
from robocache.loader.batches.store import TIERS
from test_cuda_processes import run_together

COUNT = torch.cuda.device_count() if CUDA else 0
PAIRS = sorted({(a, b) for a in range(COUNT) for b in range(a + 1, COUNT) if b == a + 1 or (a, b) == (0, COUNT - 1)})
"""Neighbors, and the first with the last."""
pytestmark = pytest.mark.skipif(COUNT < 2, reason=f"needs two GPUs, got {COUNT}")
each_pair = pytest.mark.parametrize(("first", "second"), PAIRS or [(0, 1)])


@pytest.fixture
def cache(tmp_path):
    return make_cache(tmp_path / "cache").path


@each_pair
def test_both_devices_have_the_bits_of_the_cpu_and_the_current_one_stays(first, second, cache):
    expected = work("cpu", cache)
    for current, device in ((first, second), (second, first), (first, first)):
        with torch.cuda.device(current):
            assert work(f"cuda:{device}", cache) == expected
            assert torch.cuda.current_device() == current


@each_pair
def test_work_on_one_device_holds_no_memory_of_torch_on_the_other(first, second, cache):
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved(first)
    with torch.cuda.device(first):
        work(f"cuda:{second}", cache)
    assert torch.cuda.memory_reserved(first) == before


@each_pair
@pytest.mark.parametrize("tier", TIERS)
def test_loaders_on_two_devices_take_turns(first, second, tier, cache):
    loaders = [loader_on(f"cuda:{device}", cache, tier) for device in (first, second)]
    expected = loader_on("cpu", cache, "memory")
    for one, other, want in zip(*loaders, expected, strict=True):
        for name, x in want.items():
            assert one[name].device == torch.device(f"cuda:{first}")
            assert other[name].device == torch.device(f"cuda:{second}")
            assert_same_bits(one[name], x, name)
            assert_same_bits(other[name], x, name)


@each_pair
def test_two_ranks_on_two_devices_read_the_batches_of_one(first, second, cache):
    ranks = [loader_on(f"cuda:{device}", cache, rank=rank, world_size=2) for rank, device in enumerate((first, second))]
    whole = loader_on("cpu", cache)
    for step in range(len(ranks[0])):
        parts, want = [rank.batch(step, 0) for rank in ranks], [whole.batch(2 * step + i, 0) for i in range(2)]
        for part, expected in zip(parts, want, strict=True):
            assert digest(part.values()) == digest(expected.values())


@each_pair
def test_arrays_on_two_devices_do_not_mix(first, second):
    values = torch.zeros((2, 5, 3), device=f"cuda:{first}")
    times = torch.arange(5, device=f"cuda:{second}").repeat(2, 1)
    with pytest.raises(ValueError, match=rf"must be on cuda:{first}, got cuda:{second}"):
        resample_trajectories(values, times, times)


@each_pair
def test_a_process_on_each_device_at_the_same_time(first, second, cache, tmp_path):
    found = run_together(tmp_path, cache, [f"cuda:{first}", f"cuda:{second}"])
    assert found == [work("cpu", cache)] * 2
