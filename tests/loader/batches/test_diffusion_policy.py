"""``robocache.datasets.diffusion_policy.SequenceSampler`` against the loops of Diffusion Policy, item by item."""

import numpy as np
import pytest
from robocache.datasets.diffusion_policy import SequenceSampler
from test_loader_recipes import CLOCKS, LENGTHS, SPECS, Recordings, diffusion_policy_dataset


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("hz", [10, 15, 20, 24, 30, 60])
def test_every_item_is_that_of_diffusion_policy(tmp_path, hz, clock):
    recordings = Recordings(tmp_path / "c", hz, clock)
    for length, before, after in ((16, 1, 7), (10, 1, 7), (4, 0, 3), (16, 0, 0), (1, 0, 0)):
        sampler = SequenceSampler(recordings.cache, length, before, after, rate_hz=hz)
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


def test_more_padding_than_a_window_has_is_an_error(tmp_path):
    recordings = Recordings(tmp_path / "c", 20, "from zero")
    with pytest.raises(ValueError, match=r"sequence_length must be above pad_before \+ pad_after, got 4, 2 and 3"):
        SequenceSampler(recordings.cache, 4, 2, 3)
