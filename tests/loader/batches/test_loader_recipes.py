"""The recipes of docs/loader.md ("From other loaders"): the windows of robomimic and Diffusion Policy, value by value.

Both are restated here as loops: robomimic's ``SequenceDataset.get_sequence_from_demo`` (d309eae) and Diffusion Policy's
``create_indices`` and ``SequenceSampler.sample_sequence`` (5ba07ac).
"""

import numpy as np
import pytest
import torch
from arrays import CUDA, REQUIRE_CUDA
from robocache import CacheWriter, Episode, EpisodeStream, Loader, StreamSpec, Window
from robocache.sources.reading.times import times_at_rate

RATES = (10, 12.5, 15, 20, 24, 25, 29.97, 30, 48, 50, 60, 90, 100, 120)
LENGTHS = (37, 1, 20, 6, 29)
SPECS = {
    "obs": StreamSpec("obs", "float32", (3,)),
    "wide": StreamSpec("wide", "float64", (2, 2)),
    "step": StreamSpec("step", "int64", ()),
    "camera": StreamSpec("camera", "uint8", (4, 5, 3), "image"),
    "depth": StreamSpec("depth", "float32", (2, 3), "depth"),
}
UNIX_S = 1_700_000_000.25
PLACES = [("memory", "cpu"), ("mmap", "cpu"), *((tier, "cuda") for tier in ("gpu", "pinned") if CUDA or REQUIRE_CUDA)]

CLOCKS = {
    "from zero": lambda count, hz: times_at_rate(count, hz),
    "from a Unix time": lambda count, hz: times_at_rate(count, hz) + 1_700_000_000_123_456_789,
    "float64 Unix seconds": lambda count, hz: np.round((UNIX_S + np.arange(count) / hz) * 1e9).astype(np.int64),
}


class Recordings:
    """Episodes in memory, as the others hold them, and the same in a cache."""

    def __init__(self, folder, hz, clock, seed=0, specs=SPECS, masks=None):
        rng = np.random.default_rng(seed)
        writer = CacheWriter(folder, specs, shard_bytes=1 << 14)
        self.hz, self.episodes = hz, []
        for number, count in enumerate(LENGTHS):
            times = CLOCKS[clock](count, hz)
            rows = {name: rng.integers(0, 256, (count, *s.shape)).astype(s.dtype) for name, s in specs.items()}
            self.episodes.append(rows)
            streams = {name: EpisodeStream(specs[name], x, times) for name, x in rows.items()}
            writer.add(Episode(number, streams, meta={"masks": masks[number]} if masks else {}))
        self.cache = writer.commit()

    def loader(self, window, tier="memory", device="cpu", **options):
        windows = dict.fromkeys(SPECS, window)
        return Loader(self.cache, 16, windows, shuffle=False, drop_last=False, tier=tier, device=device, **options)


def robomimic_sequence(rows, index, num_frames_to_stack, seq_length):
    length = len(rows)
    begin, end = max(0, index - num_frames_to_stack), min(length, index + seq_length)
    before, after = max(0, num_frames_to_stack - index), max(0, index + seq_length - length)
    sequence = rows[begin:end]
    sequence = np.concatenate([sequence[:1].repeat(before, 0), sequence, sequence[-1:].repeat(after, 0)])
    return sequence, np.array([0] * before + [1] * (end - begin) + [0] * after, bool)


def robomimic_dataset(recordings, frame_stack, seq_length, pad_frame_stack=True, pad_seq_length=True):
    """Items in order: ``{key: (sequence, pad_mask)}``."""
    for rows in recordings.episodes:
        length = len(next(iter(rows.values())))
        first = 0 if pad_frame_stack else frame_stack - 1
        last = length if pad_seq_length else length - seq_length + 1
        for index in range(first, last):
            yield {key: robomimic_sequence(x, index, frame_stack - 1, seq_length) for key, x in rows.items()}


def diffusion_policy_dataset(recordings, sequence_length, pad_before, pad_after):
    """Items in order: ``{key: (sequence, what is not repeated)}``. Episodes lie one after the other in one buffer."""
    episode_ends = np.cumsum([len(rows["obs"]) for rows in recordings.episodes])
    buffer = {key: np.concatenate([rows[key] for rows in recordings.episodes]) for key in SPECS}
    for i in range(len(episode_ends)):
        start_idx = 0 if i == 0 else episode_ends[i - 1]
        episode_length = episode_ends[i] - start_idx
        for idx in range(-pad_before, episode_length - sequence_length + pad_after + 1):
            buffer_start = max(idx, 0) + start_idx
            buffer_end = min(idx + sequence_length, episode_length) + start_idx
            sample_start = buffer_start - (idx + start_idx)
            sample_end = sequence_length - ((idx + sequence_length + start_idx) - buffer_end)
            item = {}
            for key, rows in buffer.items():
                sample = rows[buffer_start:buffer_end]
                data = np.zeros((sequence_length, *rows.shape[1:]), rows.dtype)
                data[:sample_start], data[sample_end:] = sample[0], sample[-1]
                data[sample_start:sample_end] = sample
                item[key] = (
                    data,
                    (np.arange(sequence_length) >= sample_start) & (np.arange(sequence_length) < sample_end),
                )
            yield item


def assert_same_items(loader, expected):
    expected = list(expected)
    assert loader.num_samples == len(expected) > 0
    batches = list(loader)
    for key in SPECS:
        got = torch.cat([batch[key] for batch in batches]).cpu().numpy()
        is_pad = torch.cat([batch[f"{key}_is_pad"] for batch in batches]).cpu().numpy()
        np.testing.assert_array_equal(got, np.stack([item[key][0] for item in expected]), key)
        np.testing.assert_array_equal(~is_pad, np.stack([item[key][1] for item in expected]), key)
        assert got.dtype == SPECS[key].dtype


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("hz", RATES)
def test_windows_are_those_of_robomimic(tmp_path, hz, clock):
    recordings = Recordings(tmp_path / "c", hz, clock)
    for k, length in ((1, 1), (1, 10), (3, 1), (4, 16)):
        window = Window(past=(k - 1) / hz, future=(length - 1) / hz, rate_hz=hz)
        assert_same_items(recordings.loader(window), robomimic_dataset(recordings, k, length))


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("hz", RATES)
def test_windows_are_those_of_diffusion_policy(tmp_path, hz, clock):
    recordings = Recordings(tmp_path / "c", hz, clock)
    for length, n_obs, n_act in ((16, 2, 8), (10, 2, 8), (4, 1, 4), (16, 1, 1), (1, 1, 1)):
        p, q = n_obs - 1, n_act - 1
        window = Window(past=p / hz, future=(length - 1 - p) / hz, rate_hz=hz)
        loader = recordings.loader(window, skip_anchors=(0, length - 1 - p - q))
        assert_same_items(loader, diffusion_policy_dataset(recordings, length, p, q))


@pytest.mark.parametrize(("tier", "device"), PLACES)
@pytest.mark.parametrize("hz", [24, 29.97, 30])
def test_the_windows_are_the_same_from_every_tier(tmp_path, hz, tier, device):
    for clock in CLOCKS:
        recordings = Recordings(tmp_path / clock, hz, clock)
        window = Window(past=2 / hz, future=9 / hz, rate_hz=hz)
        assert_same_items(recordings.loader(window, tier, device), robomimic_dataset(recordings, 3, 10))
        loader = recordings.loader(window, tier, device, skip_anchors=(0, 4))
        assert_same_items(loader, diffusion_policy_dataset(recordings, 12, 2, 5))


@pytest.mark.parametrize("hz", [24, 30, 60])
def test_robomimic_without_padding_skips_anchors(tmp_path, hz):
    recordings = Recordings(tmp_path / "c", hz, "from zero")
    window = Window(past=3 / hz, future=5 / hz, rate_hz=hz)
    for before, after in ((False, False), (True, False), (False, True)):
        loader = recordings.loader(window, skip_anchors=(0 if before else 3, 0 if after else 5))
        assert_same_items(loader, robomimic_dataset(recordings, 4, 6, before, after))


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("hz", RATES)
def test_edges_name_the_windows_of_the_others(tmp_path, hz, clock):
    recordings = Recordings(tmp_path / "c", hz, clock)
    for length, n_obs, n_act in ((16, 2, 8), (10, 2, 8), (4, 1, 4), (16, 1, 1), (1, 1, 1)):
        p, q = n_obs - 1, n_act - 1
        window = Window(past=p / hz, future=(length - 1 - p) / hz, rate_hz=hz)
        loader = recordings.loader(window, edges=("diffusion_policy", n_act))
        assert_same_items(loader, diffusion_policy_dataset(recordings, length, p, q))
        assert_same_items(
            recordings.loader(window, edges="robomimic"), robomimic_dataset(recordings, n_obs, length - p)
        )
        for anchor_hz in (None, hz):
            loader = recordings.loader(window, edges="inside", anchor_hz=anchor_hz)
            assert_same_items(loader, robomimic_dataset(recordings, n_obs, length - p, False, False))
            assert not any(batch[f"{key}_is_pad"].any() for batch in loader for key in SPECS)
        for before, after in ((0, 0), (1, 0), (0, 3), (1, 7), (99, 99)):
            loader = recordings.loader(window, edges=(before, after))
            expected = diffusion_policy_dataset(recordings, length, min(before, p), min(after, length - 1 - p))
            assert_same_items(loader, expected)


def test_edges_are_of_the_longest_window_and_of_every_stream(tmp_path):
    """The state ends a row before the camera; both windows must be inside."""
    arm, cam = StreamSpec("arm", "float32", ()), StreamSpec("cam", "int64", ())
    writer = CacheWriter(tmp_path / "c", {"arm": arm, "cam": cam})
    for number, (a, c) in enumerate(((8, 9), (8, 5), (8, 0), (2, 9))):
        times = [times_at_rate(n, 10) for n in (a, c)]
        rows = {
            "arm": EpisodeStream(arm, np.arange(a, dtype=np.float32) + 10 * number, times[0]),
            "cam": EpisodeStream(cam, np.arange(c), times[1]),
        }
        writer.add(Episode(number, {name: x for name, x in rows.items() if len(x.times)}))
    windows = {"arm": Window(past=0.1, rate_hz=10), "cam": Window(future=0.2, rate_hz=10, latency=0.1)}
    loader = Loader(writer.commit(), 1, windows, shuffle=False, edges="inside")
    assert [batch["arm"][0, -1].item() for batch in loader] == [1, 2, 3, 4, 5, 11, 31]
    assert not any(batch["cam_is_pad"].any() or batch["arm_is_pad"].any() for batch in loader)


def test_dropped_last_steps_are_skipped_anchors(tmp_path):
    recordings = Recordings(tmp_path / "c", 30, "from zero")
    window = Window(past=2 / 30, future=9 / 30, rate_hz=30)
    loader = recordings.loader(window, drop_last_steps=4)
    assert_same_items(loader, diffusion_policy_dataset(recordings, 12, 2, 5))
    both = recordings.loader(window, drop_last_steps=4, skip_anchors=(3, 0))
    assert both.num_samples == recordings.loader(window, skip_anchors=(3, 4)).num_samples
    with pytest.raises(ValueError, match="drop_last_steps must be 0 where skip_anchors omits the last ones, got 4"):
        recordings.loader(window, drop_last_steps=4, skip_anchors=(0, 4))


@pytest.mark.parametrize(
    ("edges", "words"),
    [
        ("diffusion_policy", r"edges must be .*'diffusion_policy', n_action_steps.* got 'diffusion_policy'"),
        ("inner", "edges must be 'pad', 'inside'"),
        (3, "edges must be"),
        ((1, 2, 3), "edges must be"),
        (("inside", 2), "edges must be"),
        ((0, -1), "edges must be from 0 to"),
        ((0.5, 1), "edges must be a whole number, got 0.5"),
        (("diffusion_policy", 0), "n_action_steps of edges must be from 1 to"),
    ],
)
def test_edges_that_mean_nothing_are_refused(tmp_path, edges, words):
    recordings = Recordings(tmp_path / "c", 30, "from zero")
    with pytest.raises(ValueError, match=f"Loader: {words}"):
        recordings.loader(Window(), edges=edges)


def test_edges_that_leave_nothing_are_refused(tmp_path):
    recordings = Recordings(tmp_path / "c", 30, "from zero")
    windows = {"obs": Window(past=20 / 30, rate_hz=30), "step": Window(future=20 / 30, rate_hz=30)}
    with pytest.raises(ValueError, match="must have rows whose windows have as little padding as edges says"):
        Loader(recordings.cache, 1, windows, edges="inside")


@pytest.mark.parametrize("method", ["nearest", "previous", "next"])
@pytest.mark.parametrize("hz", RATES)
def test_the_last_row_is_no_padding_whatever_the_method(tmp_path, hz, method):
    recordings = Recordings(tmp_path / "c", hz, "from zero")
    window = Window(past=2 / hz, future=9 / hz, rate_hz=hz, method=method)
    assert_same_items(recordings.loader(window), robomimic_dataset(recordings, 3, 10))


@pytest.mark.parametrize("hz", RATES)
def test_moments_at_a_rate_are_the_rows(tmp_path, hz):
    recordings = Recordings(tmp_path / "c", hz, "float64 Unix seconds")
    window = Window(past=2 / hz, future=9 / hz, rate_hz=hz)
    assert_same_items(recordings.loader(window, anchor_hz=hz), robomimic_dataset(recordings, 3, 10))


def test_a_window_as_long_as_the_longest_episode_fits(tmp_path):
    recordings = Recordings(tmp_path / "c", 30, "float64 Unix seconds")
    window = Window(future=36 / 30, rate_hz=30)
    assert_same_items(recordings.loader(window), robomimic_dataset(recordings, 1, 37))


def test_without_a_tolerance_moments_are_read_where_they_are(tmp_path):
    recordings = Recordings(tmp_path / "c", 30, "from zero")
    window = Window(past=2 / 30, future=9 / 30, rate_hz=30, method="previous", tolerance=0)
    with pytest.raises(AssertionError):
        assert_same_items(recordings.loader(window), robomimic_dataset(recordings, 3, 10))


def test_rows_that_are_nanoseconds_apart_stay_apart(tmp_path):
    """The default tolerance is a quarter of the time between two rows at most."""
    spec = StreamSpec("fast", "float64", ())
    writer = CacheWriter(tmp_path / "c", {"fast": spec})
    times = np.arange(9, dtype=np.int64) * 100
    writer.add(Episode(0, {"fast": EpisodeStream(spec, np.arange(9.0), times)}))
    window = Window(deltas=[0, 20e-9, 25e-9, 26e-9, 50e-9, 74e-9])
    got = Loader(writer.commit(), 8, {"fast": window}, shuffle=False).batch(0)["fast"]
    assert got[2].tolist() == [2, 2, 2, 2.26, 2.5, 2.74]


SKIPPED = {(0, 0): [0, 1, 2, 3, 4], (1, 0): [1, 2, 3, 4], (0, 2): [0, 1, 2], (2, 2): [2], (0, 4): [0]}


@pytest.mark.parametrize("skip", SKIPPED)
@pytest.mark.parametrize("hz", [None, 10])
def test_skipped_anchors_are_those_at_the_ends_of_each_episode(tmp_path, skip, hz):
    spec = StreamSpec("arm", "float32", ())
    writer = CacheWriter(tmp_path / "c", {"arm": spec})
    for number, count in enumerate((5, 2, 0, 5)):
        rows = EpisodeStream(spec, np.arange(count, dtype=np.float32) + 10 * number, times_at_rate(count, 10) + 7)
        writer.add(Episode(number, {"arm": rows}))
    loader = Loader(writer.commit(), 1, {"arm": Window()}, shuffle=False, skip_anchors=skip, anchor_hz=hz)
    short = [k for k in range(skip[0], 2 - skip[1])]
    expected = [*SKIPPED[skip], *(10 + k for k in short), *(30 + k for k in SKIPPED[skip])]
    assert [batch["arm"].item() for batch in loader] == expected


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (3, r"skip_anchors must be \(first, last\), two whole numbers, got 3"),
        ((1,), "skip_anchors must be"),
        ((0, -1), "skip_anchors must be from 0 to"),
        ((0.5, 1), "skip_anchors must be a whole number, got 0.5"),
        ((0, 37), "anchors 'obs' must have rows in the kept episodes, got none"),
    ],
)
def test_anchors_that_cannot_be_skipped_are_refused(tmp_path, given, words):
    recordings = Recordings(tmp_path / "c", 30, "from zero")
    with pytest.raises(ValueError, match=f"Loader: {words}"):
        recordings.loader(Window(), skip_anchors=given)


@pytest.mark.parametrize("tolerance", [-1e-9, float("nan"), float("inf"), "a bit"])
def test_a_tolerance_is_a_number_of_seconds(tolerance):
    with pytest.raises(ValueError, match="Window: tolerance must be"):
        Window(tolerance=tolerance)
