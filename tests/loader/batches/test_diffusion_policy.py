"""``robocache.datasets.diffusion_policy.SequenceSampler`` against the loops of Diffusion Policy, item by item."""

import numpy as np
import pytest
from robocache.datasets.diffusion_policy import SequenceSampler
from test_loader_recipes import CLOCKS, LENGTHS, SPECS, Recordings, diffusion_policy_dataset

WINDOWS = [
    *((16, 1, 7), (10, 1, 7), (4, 0, 3), (16, 0, 0), (1, 0, 0)),
    *((50, 9, 40), (50, 20, 5)),  # longer than every episode
    *((4, 2, 3), (8, 7, 7), (3, 9, 1)),  # more windows than rows
]


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("hz", [10, 15, 20, 24, 30, 60])
def test_every_item_is_that_of_diffusion_policy(tmp_path, hz, clock):
    recordings = Recordings(tmp_path / "c", hz, clock)
    for length, before, after in WINDOWS:
        sampler = SequenceSampler(recordings.cache, length, before, after, rate_hz=hz)
        before, after = min(before, length - 1), min(after, length - 1)  # as create_indices does
        expected = list(diffusion_policy_dataset(recordings, length, before, after))
        assert len(sampler) == len(expected) > 0
        for i, item in enumerate(expected):
            found = sampler.sample_sequence(i)
            assert found.keys() == item.keys()
            for key, (values, _) in item.items():
                assert found[key].dtype == SPECS[key].dtype
                np.testing.assert_array_equal(found[key], values, key)


def test_masked_episodes_and_other_keys_are_left_out(tmp_path):
    recordings = Recordings(tmp_path / "c", 20, "from zero")
    mask = [True, False, True, False, False]
    sampler = SequenceSampler(recordings.cache.path, 4, keys=["step"], episode_mask=mask, rate_hz=20)
    assert len(sampler) == LENGTHS[0] - 3 + LENGTHS[2] - 3
    assert sampler.sample_sequence(0).keys() == {"step"}
    np.testing.assert_array_equal(sampler.sample_sequence(34)["step"], recordings.episodes[2]["step"][:4])


@pytest.mark.parametrize(("length", "before", "after"), [(16, 1, 7), (10, 3, 6), (4, 0, 3), (4, 0, 0), (4, 3, 2)])
def test_of_the_keys_that_say_so_only_the_first_rows_are_read(tmp_path, length, before, after):
    recordings = Recordings(tmp_path / "c", 30, "from a Unix time")
    first = {"camera": 2, "obs": 1, "wide": length}
    sampler = SequenceSampler(recordings.cache, length, before, after, key_first_k=first, rate_hz=30)
    windows = list(diffusion_policy_dataset(recordings, length, before, after))
    assert len(sampler) == len(windows) > 0
    cut = 0
    for i, item in enumerate(windows):
        found = sampler.sample_sequence(i)
        for key, (values, is_recorded) in item.items():
            expected = values.copy()
            end = int(np.argmax(is_recorded)) + first.get(key, length)
            if np.count_nonzero(is_recorded) > first.get(key, length):  # Diffusion Policy leaves NaN there
                expected[end:] = np.nan if expected.dtype.kind == "f" else 0
                cut += 1
            np.testing.assert_array_equal(found[key], expected, f"{key} of {i}", strict=True)
    assert cut > 0


def test_a_window_of_no_rows_is_an_error(tmp_path):
    recordings = Recordings(tmp_path / "c", 20, "from zero")
    with pytest.raises(ValueError, match=r"key_first_k must be at least 1, got 0 for 'obs'"):
        SequenceSampler(recordings.cache, 4, key_first_k={"obs": 0}, rate_hz=20)


def test_no_windows_at_all_are_an_empty_sampler(tmp_path):
    recordings = Recordings(tmp_path / "c", 20, "from zero")
    for options in ({"episode_mask": [False] * 5}, {"sequence_length": 60, "pad_before": 1, "pad_after": 7}):
        sampler = SequenceSampler(recordings.cache, **({"sequence_length": 4, "rate_hz": 20} | options))
        assert len(sampler) == 0
        assert sampler.loader is None
        with pytest.raises(IndexError):
            sampler.sample_sequence(0)
    with pytest.raises(ValueError, match="sequence_length must be at least 1, got 0"):
        SequenceSampler(recordings.cache, 0)
