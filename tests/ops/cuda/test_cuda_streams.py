"""CUDA streams: a call works in the caller's stream, waits for nothing, allocates its outputs and nothing else."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import robocache
import torch
from cuda_tools import needs_cuda

pytestmark = needs_cuda

SPIN = 400_000  # cycles: 0.2 ms at 2 GHz, longer than the host needs for one round, so that the GPU is always behind
LONG_SPIN = 1_000_000_000  # half a second


class Feed:
    """Inputs that are written anew for every call, on the current stream, and what the call must return.

    Values, times and targets all move with the number of the round: whoever reads one of them too early is wrong.
    Whole numbers and weights of one half, so the answer is exact.
    """

    def __init__(self, device="cuda", batch=4, num_rows=64, num_targets=32, width=8):
        row, target = torch.arange(num_rows, device=device), torch.arange(num_targets, device=device)
        place = 100 * torch.arange(batch, device=device)[:, None, None] + torch.arange(width, device=device)
        self._values = (2.0 * row[:, None] + place).contiguous()
        self._times = (10 * row).repeat(batch, 1)
        self._targets = (10 * target + 5).repeat(batch, 1)
        self._answer = (2.0 * target[:, None] + 1 + place).contiguous()
        self.values, self.times, self.targets = (
            torch.zeros_like(x) for x in (self._values, self._times, self._targets)
        )

    def write(self, i):
        torch.add(self._values, i, out=self.values)
        torch.add(self._times, 1000 * i, out=self.times)
        torch.add(self._targets, 1000 * i, out=self.targets)

    def answer(self, i):
        return self._answer + i


def resampled(feed):
    return robocache.resample_trajectories(feed.values, feed.times, feed.targets)


def aligned(feed):
    return robocache.align(robocache.Stream(feed.values, feed.times), feed.targets).values


def fused(feed):
    parts = [(feed.values[..., :3], feed.times), (feed.values[..., 3:], feed.times)]
    return robocache.fuse_multimodal(parts, feed.targets)


FACES = (resampled, aligned, fused)
faces = pytest.mark.parametrize("face", FACES, ids=lambda f: f.__name__)


def wrong_calls(num_calls, side, call_on):
    """Feeds, calls and compares in turn. Inputs appear late on ``side``; the call is made on ``call_on``.

    Everything is counted on the GPU: the host never waits, and the queue of ``side`` is never empty.
    """
    feed = Feed()
    for face in FACES:  # the first call of a kernel loads it, which takes its time
        face(feed)
    torch.cuda.synchronize()
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        for i in range(1, num_calls + 1):
            torch.cuda._sleep(SPIN)
            feed.write(i)
            with torch.cuda.stream(call_on):
                got = FACES[i % len(FACES)](feed)
            wrong += (got != feed.answer(i)).any()
    torch.cuda.synchronize()
    return int(wrong)


def test_ten_thousand_calls_on_a_side_stream_see_inputs_that_were_late():
    side = torch.cuda.Stream()
    assert wrong_calls(10_000, side, call_on=side) == 0


def copy_by_call(source, target):
    """Copies by a call of ours, which lets the next one begin before it has written anything."""
    ticks = torch.arange(source.numel(), dtype=torch.float32, device="cuda").view(1, -1)
    stream = robocache.Stream(source.view(1, -1, 1), ticks)
    robocache.align(stream, ticks, out=target.view(1, -1, 1))


@pytest.mark.parametrize(("num_rows", "num_targets"), [(300, 100), (5000, 64)], ids=["window", "probes"])
def test_a_call_that_looks_ahead_is_not_misled_by_what_it_sees_there(num_rows, num_targets):
    """Small calls search before the work ahead of them is done. Here the inputs of two different calls are written
    over each other by calls that overlap with them."""
    torch.manual_seed(0)
    versions, answers = [], []
    for _ in range(2):
        values = torch.randn(16, num_rows, 32)
        times = torch.rand(16, num_rows).cumsum(1)
        targets = torch.rand(16, num_targets).sort(1).values * times[:, -1:]
        answers.append(robocache.resample_trajectories(values, times, targets).cuda())
        versions.append([x.cuda() for x in (values, times, targets)])
    live = [torch.zeros_like(x) for x in versions[0]]
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    for i in range(1000):
        for source, target in zip(versions[i % 2], live, strict=True):
            copy_by_call(source, target)
        wrong += (robocache.resample_trajectories(*live) != answers[i % 2]).any()
    assert int(wrong) == 0


def test_a_call_on_another_stream_than_the_inputs_would_have_been_noticed():
    """The control of the test above: the same rounds, called on the default stream, read what is not there yet."""
    wrong = wrong_calls(300, torch.cuda.Stream(), call_on=torch.cuda.default_stream())
    assert wrong > 250


def test_eight_threads_with_four_streams_each_get_their_own_results():
    num_threads, num_streams, num_calls = 8, 4, 1000
    resampled(Feed())
    torch.cuda.synchronize()
    start = threading.Barrier(num_threads, timeout=60)  # a thread that failed must not hang the others

    def work(thread):
        streams = [torch.cuda.Stream() for _ in range(num_streams)]
        jobs = []
        for k, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                feed = Feed(batch=1, num_rows=16, num_targets=8, width=4)
                feed.write(1000 * (num_streams * thread + k))
                answer = feed.answer(1000 * (num_streams * thread + k))
                jobs.append((stream, feed, answer, torch.zeros((), dtype=torch.int64, device="cuda")))
        start.wait()
        for _ in range(num_calls):
            for stream, feed, answer, wrong in jobs:
                with torch.cuda.stream(stream):
                    feed.values.add_(1)
                    answer.add_(1)
                    wrong += (resampled(feed) != answer).any()
        for stream in streams:
            stream.synchronize()
        return sum(int(wrong) for *_, wrong in jobs)

    with ThreadPoolExecutor(num_threads) as pool:
        assert list(pool.map(work, range(num_threads))) == [0] * num_threads


@faces
def test_a_captured_call_computes_anew_at_every_replay(face):
    feed = Feed()
    feed.write(0)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # what a first call sets up must not be captured
        face(feed)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = face(feed)
    for i in (3, 1, 41):
        feed.write(i)
        got.fill_(-1.0)
        graph.replay()
        assert torch.equal(got, feed.answer(i))


def test_a_captured_call_writes_into_given_outputs_with_mask_and_index():
    feed = Feed()
    feed.write(0)
    out = torch.zeros_like(feed.answer(0))
    streams = [
        robocache.Stream(feed.values, feed.times, max_gap=10),
        robocache.Stream(feed.values, feed.times, method="cubic", max_gap=9),
    ]
    second = torch.zeros_like(out)
    robocache.align(streams, feed.targets, out=[out, second], return_index=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = robocache.align(streams, feed.targets, out=[out, second], return_index=True)
    for i in (2, 5):
        feed.write(i)
        for x in (out, second, *got.valid, *got.index):
            x.zero_()
        graph.replay()
        assert got.values[0].data_ptr() == out.data_ptr()
        assert torch.equal(out, feed.answer(i))
        torch.testing.assert_close(second, feed.answer(i), rtol=0, atol=1e-3)  # a cubic through a line
        assert got.valid[0].all()
        assert not got.valid[1].any()  # rows are 10 apart
        assert torch.equal(got.index[0], torch.arange(32, device="cuda").expand(4, -1))


def spinning():
    """Work that keeps the current stream busy for half a second, and an event behind it."""
    torch.cuda.synchronize()
    torch.cuda._sleep(LONG_SPIN)
    event = torch.cuda.Event()
    event.record()
    return event


@faces
def test_a_call_returns_before_the_work_ahead_of_it_is_done(face):
    feed = Feed()
    feed.write(7)
    face(feed)  # loads the kernel, and leaves memory for the next outputs in PyTorch's cache
    event = spinning()
    got = face(feed)
    assert not event.query(), "the call waited for the GPU"
    assert torch.equal(got, feed.answer(7))
    assert event.query()


def test_a_checked_call_waits_because_it_must_read_the_times():
    """The control of the test above: ``check=True`` is the one thing that waits, and the event tells."""
    feed = Feed()
    feed.write(7)
    robocache.resample_trajectories(feed.values, feed.times, feed.targets, check=True)
    event = spinning()
    robocache.resample_trajectories(feed.values, feed.times, feed.targets, check=True)
    assert event.query()


@faces
def test_a_call_allocates_its_outputs_and_nothing_else(face):
    feed = Feed()
    feed.write(1)
    face(feed)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    got = face(feed)
    stats = torch.cuda.memory_stats()
    dropped = got[..., 0].numel() if face is aligned else 0  # valid, one byte a target: align always makes it
    assert stats["requested_bytes.all.current"] - before == got.nbytes
    assert stats["requested_bytes.all.peak"] - before == got.nbytes + dropped


@pytest.mark.alone
@faces
def test_many_calls_take_no_memory_that_pytorch_does_not_know_of(face):
    feed = Feed()
    feed.write(1)
    for _ in range(10):
        face(feed)
    torch.cuda.synchronize()
    free = torch.cuda.mem_get_info()[0]
    for _ in range(2000):
        face(feed)
    torch.cuda.synchronize()
    assert torch.cuda.mem_get_info()[0] >= free


def test_a_call_on_another_device_than_the_current_one_leaves_the_current_one():
    if torch.cuda.device_count() < 2:
        pytest.skip(f"needs two GPUs, got {torch.cuda.device_count()}")
    feed = Feed("cuda:1")
    with torch.cuda.device(1):
        feed.write(3)
        torch.cuda.synchronize()
    with torch.cuda.device(0):
        for face in FACES:
            got = face(feed)
            assert got.device == torch.device("cuda:1")
            assert torch.cuda.current_device() == 0
            assert torch.equal(got, feed.answer(3))


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_arrays_on_the_cpu_and_on_the_gpu_do_not_mix(place, kind):
    feed = Feed()
    arrays = [feed.values, feed.times, feed.targets]
    arrays[place] = arrays[place].cpu()
    if kind == "numpy":
        arrays[place] = arrays[place].numpy()
    name = ("source_data", "source_times", "target_times")[place]
    # the first stream's values say where the call is made; whoever is elsewhere is named
    message = r"_times must be on cpu, got cuda:0" if place == 0 else rf"{name} must be on cuda:0, got cpu"
    with pytest.raises(ValueError, match=message):
        robocache.resample_trajectories(*arrays)


def test_an_output_on_the_cpu_for_streams_on_the_gpu_is_refused():
    feed = Feed()
    stream = robocache.Stream(feed.values, feed.times)
    with pytest.raises(ValueError, match=r"^align: out\[0\] must be on cuda:0, got cpu"):
        robocache.align(stream, feed.targets, out=feed.answer(0).cpu())
