"""Batches of a loader on CUDA streams: a consumer that is late, holds batches and frees them at random sees what it
was promised. So does one that changes streams, or hands batches over to another one."""

import contextlib
import random
import time

import pytest
import torch
from cuda_tools import needs_cuda
from loader_cases import make_cache
from robocache import Loader, Window
from robocache.loader.batches.store import TIERS

pytestmark = needs_cuda

NUM_BATCHES = 10_000
SPIN = 800_000  # cycles: up to 0.4 ms at 2 GHz, so that the GPU is behind the host most of the time
HELD = 12  # batches that the consumer has at the same time, at most: more than any ring of buffers
WINDOWS = {
    "state": Window(past=0.03, future=0.05, rate_hz=100),
    "small": Window(deltas=[-0.015, 0, 0.02], method="nearest"),
    "camera": Window(past=0.1, rate_hz=20),
}
OPTIONS = {"normalize": {"state": "mean_std"}, "seed": 21, "drop_last": False}
EPOCHS = 3


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return make_cache(tmp_path_factory.mktemp("loader_streams") / "cache")


@pytest.fixture(scope="module")
def expected(cache):
    """``expected[epoch][step]``: the batches of the CPU, on the GPU before anything else is."""
    loader = Loader(cache, 6, WINDOWS, tier="memory", **OPTIONS)
    epochs = [[loader.batch(step, epoch) for step in range(len(loader))] for epoch in range(EPOCHS)]
    made = [[{name: x.cuda() for name, x in batch.items()} for batch in epoch] for epoch in epochs]
    assert not torch.equal(made[0][0]["state"], made[1][0]["state"])
    torch.cuda.synchronize()
    return made


def numbered(loader):
    """Batches without end, each with its epoch and step."""
    while True:
        for epoch in range(EPOCHS):
            loader.set_epoch(epoch)
            for step, batch in enumerate(loader):
                yield epoch, step, batch


def spin(rng):
    if rng.random() < 0.5:
        torch.cuda._sleep(rng.randrange(1, SPIN))


def count_different(wrong, batch, right):
    """Adds what differs to a counter on the GPU. The host does not wait for it."""
    for name, x in right.items():
        wrong += (batch[name] != x).sum()


def consume(batches, expected, num_batches, wrong, hand_over=lambda batch: contextlib.nullcontext()):
    """Looks at batches late and in any order, and lets go of each while the look at it is still queued."""
    rng = random.Random(0)
    held = []
    for _ in range(num_batches):
        epoch, step, batch = next(batches)
        with hand_over(batch):
            spin(rng)
            held.append((expected[epoch][step], batch))
            del batch
            while len(held) == HELD or (held and rng.random() < 0.4):
                right, late = held.pop(rng.randrange(len(held)))
                count_different(wrong, late, right)
                del late
    torch.cuda.synchronize()  # the rest is looked at on whatever stream this is
    for right, late in held:
        count_different(wrong, late, right)


def zero():
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    torch.cuda.synchronize()
    return wrong


@pytest.mark.parametrize("tier", TIERS)
def test_ten_thousand_batches_held_and_freed_at_random_on_a_side_stream(cache, expected, tier):
    loader = Loader(cache, 6, WINDOWS, tier=tier, device="cuda", **OPTIONS)
    wrong = zero()
    with torch.cuda.stream(torch.cuda.Stream()):
        consume(numbered(loader), expected, NUM_BATCHES, wrong)
    torch.cuda.synchronize()
    assert int(wrong) == 0


@pytest.mark.parametrize("tier", TIERS)
def test_ten_thousand_batches_handed_to_another_stream(cache, expected, tier):
    """Read on the default stream, which is late itself, and consumed on a side stream, as PyTorch's rules ask:
    ``wait_stream`` before the first use, ``record_stream`` for whoever frees on another stream."""
    loader = Loader(cache, 6, WINDOWS, tier=tier, device="cuda", **OPTIONS)
    wrong, side, rng = zero(), torch.cuda.Stream(), random.Random(1)

    def hand_over(batch):
        spin(rng)  # before the next batch
        side.wait_stream(torch.cuda.current_stream())
        for x in batch.values():
            x.record_stream(side)
        return torch.cuda.stream(side)

    consume(numbered(loader), expected, NUM_BATCHES, wrong, hand_over)
    torch.cuda.synchronize()
    assert int(wrong) == 0


@pytest.mark.parametrize("tier", TIERS)
def test_ten_thousand_batches_each_read_on_any_of_three_streams(cache, expected, tier):
    """Whatever the loader keeps from one call to the next must not be overwritten while another stream reads it."""
    loader = Loader(cache, 6, WINDOWS, tier=tier, device="cuda", **OPTIONS)
    streams, counts, rng = [torch.cuda.Stream() for _ in range(3)], [zero() for _ in range(3)], random.Random(2)
    for _ in range(NUM_BATCHES):
        epoch, step = rng.randrange(EPOCHS), rng.randrange(len(loader))
        stream, wrong = rng.choice([*zip(streams, counts, strict=True)])
        with torch.cuda.stream(stream):
            spin(rng)
            batch = loader.batch(step, epoch)
            spin(rng)
            count_different(wrong, batch, expected[epoch][step])
            del batch
    torch.cuda.synchronize()
    assert [int(wrong) for wrong in counts] == [0, 0, 0]


def test_a_consumer_that_does_not_wait_would_have_been_noticed(cache, expected):
    """The control: the same batches, looked at on a side stream while the stream they are made on is still busy."""
    loader = Loader(cache, 6, WINDOWS, tier="gpu", device="cuda", **OPTIONS)
    wrong, side = zero(), torch.cuda.Stream()
    batches = numbered(loader)
    kept = [next(batches)]
    torch.cuda.synchronize()
    for _ in range(30):
        torch.cuda._sleep(20 * SPIN)
        epoch, step, batch = next(batches)
        kept.append(batch)  # so that its memory is nobody else's
        with torch.cuda.stream(side):
            count_different(wrong, batch, expected[epoch][step])
    torch.cuda.synchronize()
    assert int(wrong) > 0


@pytest.mark.parametrize("tier", TIERS)
def test_two_loaders_do_not_share_what_they_keep(cache, expected, tier):
    """Two at once, each on its own stream, both late; as a training and a validation loader are."""
    rng, jobs = random.Random(3), []
    for _ in range(2):
        loader = Loader(cache, 6, WINDOWS, tier=tier, device="cuda", **OPTIONS)
        jobs.append((torch.cuda.Stream(), numbered(loader), zero()))
    for _ in range(1000):
        for stream, batches, wrong in jobs:
            with torch.cuda.stream(stream):
                spin(rng)
                epoch, step, batch = next(batches)
                count_different(wrong, batch, expected[epoch][step])
                del batch
    torch.cuda.synchronize()
    assert [int(wrong) for *_, wrong in jobs] == [0, 0]


@pytest.mark.parametrize("tier", TIERS)
def test_an_iteration_left_early_takes_nothing_with_it(cache, expected, tier):
    """What was read ahead for it is dropped; the next iteration begins at its own beginning."""
    loader = Loader(cache, 6, WINDOWS, tier=tier, device="cuda", **OPTIONS)
    wrong, rng = zero(), random.Random(4)
    for turn in range(300):
        epoch, count = turn % EPOCHS, rng.randrange(1, len(loader))
        loader.set_epoch(epoch)
        for step, batch in zip(range(count), loader, strict=False):
            spin(rng)
            count_different(wrong, batch, expected[epoch][step])
    torch.cuda.synchronize()
    assert int(wrong) == 0


@pytest.mark.parametrize("tier", TIERS)
def test_two_iterations_of_one_loader_at_the_same_time(cache, expected, tier):
    loader = Loader(cache, 6, WINDOWS, tier=tier, device="cuda", **OPTIONS)
    wrong, rng = zero(), random.Random(5)
    for _ in range(100):
        loader.set_epoch(0)
        for step, pair in enumerate(zip(loader, loader, strict=True)):
            spin(rng)
            for batch in pair:
                count_different(wrong, batch, expected[0][step])
    torch.cuda.synchronize()
    assert int(wrong) == 0


def held_now(batches):
    """GPU memory in the middle of an epoch, when everything that is read ahead is there."""
    while next(batches)[1] != 3:
        pass
    time.sleep(0.2)
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated(), -torch.cuda.mem_get_info()[0]


@pytest.mark.alone
@pytest.mark.parametrize("tier", TIERS)
def test_gpu_memory_stays_where_it_was(cache, tier):
    loader = Loader(cache, 6, WINDOWS, tier=tier, device="cuda", **OPTIONS)
    batches = numbered(loader)
    for _ in range(200):
        next(batches)
    before = held_now(batches)
    for _ in range(2000):
        next(batches)
    after = held_now(batches)
    assert after[0] <= before[0]
    assert after[1] <= before[1]
