"""The ring of batches made ahead, without a GPU: copies that happen as late as a stream allows."""

import copy
import random
from types import SimpleNamespace

import pytest
import torch
from loader_cases import make_cache
from robocache import Loader, Window
from robocache.loader.batches.ring import COPIED, DEPTH, PINNED_BYTES, Ring, leaves

WINDOWS = {
    "fused": {"state": Window(past=0.03, future=0.05, rate_hz=100), "camera": Window(past=0.1, rate_hz=20)},
    "step by step": {"state": Window(deltas=[-0.01, 0.02], method="cubic")},
}
rng = random.Random(0)


class LateStream:
    """Copies wait here until somebody looks."""

    def __init__(self, device=None):
        self.copies, self.done = [], 0

    def run(self, end):
        for into, source in self.copies[self.done : end]:
            into.copy_(source)
        self.done = max(self.done, end)

    def wait_event(self, event):
        event.synchronize()


class LateEvent:
    def __init__(self, blocking):
        self.stream = None

    def record(self):
        self.stream, self.end = LateTorch.cuda.now, len(LateTorch.cuda.now.copies)

    def synchronize(self):
        if self.stream is not None:
            self.stream.run(self.end)

    def query(self):
        if self.stream is not None and self.stream.done < self.end and rng.random() < 0.5:
            return False
        self.synchronize()
        return True


class OnDevice(torch.Tensor):
    """A tensor of the device."""

    def copy_(self, source, non_blocking):
        assert non_blocking
        LateTorch.cuda.now.copies.append((self.as_subclass(torch.Tensor), source))

    def record_stream(self, stream):
        assert isinstance(stream, LateStream)


class LateCuda:
    Stream, Event = LateStream, LateEvent
    now = None

    def stream(self, stream):
        self.entered = stream
        return self

    def __enter__(self):
        self.now = self.entered

    def __exit__(self, *_):
        self.now = None

    def current_stream(self, device):
        return LateStream()


class LateTorch:
    cuda = LateCuda()
    uint8 = torch.uint8

    @staticmethod
    def empty(size, dtype, device=None, pin_memory=False):
        made = torch.full((size,), 77, dtype=dtype)
        return made if pin_memory else made.as_subclass(OnDevice)


def plain(batch):
    return [x.as_subclass(torch.Tensor) for x in batch]


@pytest.fixture(params=WINDOWS)
def loader(request, tmp_path):
    return Loader(make_cache(tmp_path / "cache"), 6, WINDOWS[request.param], tier="mmap", seed=3, drop_last=False)


def ring_of(loader):
    reader = copy.copy(loader._reader)
    reader.arrays = SimpleNamespace(xp=LateTorch)
    return Ring(reader, "late")


def jobs_of(loader, epoch=0):
    ends = [loader.positions(step) for step in range(len(loader))]
    return [(loader._order(epoch), begin, end - begin) for begin, end in ends]


def expected(loader, jobs):
    return [loader._reader.read(*job) for job in jobs]


def same(made, right):
    return len(made) == len(right) and all(torch.equal(a, b) for a, b in zip(made, right, strict=True))


def test_the_batches_of_the_reader_in_order(loader):
    ring = ring_of(loader)
    for epoch in range(20):
        jobs = jobs_of(loader, epoch)
        made = [plain(batch) for batch in ring.batches(jobs)]
        assert len(made) == len(jobs) > 2 * DEPTH[1]
        assert all(map(same, made, expected(loader, jobs)))


def test_batches_of_any_size_one_after_the_other(loader):
    jobs = [(loader._order(0), rng.randrange(20), rng.randrange(20)) for _ in range(200)]
    for batch, right in zip(ring_of(loader).batches(jobs), expected(loader, jobs), strict=True):
        assert same(plain(batch), right)


def test_two_iterations_at_once_and_one_left_early(loader):
    ring, jobs = ring_of(loader), jobs_of(loader)
    right = expected(loader, jobs)
    for _ in range(20):
        both = zip(ring.batches(jobs), ring.batches(jobs), right, strict=True)
        for _ in range(rng.randrange(1, len(jobs))):
            first, second, batch = next(both)
            assert same(plain(first), batch)
            assert same(plain(second), batch)


def test_a_consumer_that_is_late_finds_no_more_than_was_promised(loader):
    ring, begun = ring_of(loader), []
    jobs = jobs_of(loader)
    batches = ring.batches(begun.append(job) or job for job in jobs)
    next(batches)
    assert len(begun) == DEPTH[1]
    next(batches)
    assert len(begun) <= 2 * DEPTH[1]


def test_as_much_is_on_the_device_after_every_batch(loader):
    ring = ring_of(loader)
    taken = [len(ring.stream.copies) for _ in ring.batches(jobs_of(loader))]
    assert taken == [min(step + COPIED, len(loader)) for step in range(len(loader))]


def test_large_batches_take_no_more_pinned_memory_than_they_must(loader):
    ring = ring_of(loader)
    sample = ring.layout(10**6)[1] / 10**6
    assert ring.depth(1) == DEPTH[1]
    assert ring.depth(int(PINNED_BYTES / sample / 4.5)) == 4
    assert ring.depth(int(PINNED_BYTES / sample)) == DEPTH[0]


def test_what_goes_wrong_is_raised_where_the_batch_is_asked_for(loader):
    jobs = jobs_of(loader)
    jobs[5] = (jobs[5][0], -1, 6)
    batches = ring_of(loader).batches(jobs)
    with pytest.raises(ValueError, match="first_position"):
        list(batches)
    assert list(batches) == []


def test_every_tensor_of_a_batch_is_known_to_the_stream_that_uses_it():
    x, y, z = torch.zeros(3, 2)
    assert [*map(id, leaves({"a": x, "made by a transform": {"b": (y, [z])}}))][:2] == [id(x), id(y)]
