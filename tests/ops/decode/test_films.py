"""The videos that NVDEC is tested with are what PyAV decodes here, and cover what NVDEC must handle."""

import numpy as np
import pytest
from film_cases import NAMES, expected, film, planes, wrong_planes


@pytest.mark.parametrize("name", NAMES)
def test_checksums_are_those_of_pyav(name):
    pytest.importorskip("av")
    video = film(name)
    rows = [*range(len(video))]
    made, _ = planes([video], [(0, row) for row in rows])
    assert wrong_planes(name, video, rows, made) == []


def test_frames_differ_from_each_other():
    for name in NAMES:
        assert len({tuple(sums) for sums in expected(name).tolist()}) == len(expected(name)), name


def test_films_have_reordered_frames_and_several_gops():
    reordered = [name for name in NAMES if (np.diff(film(name).index.times) < 0).any()]
    assert {name.split("_")[0] for name in reordered} == {"h264", "hevc"}
    assert len(film("h264_wrist").index.entries) > 2
    for name in ("h264_open", "hevc_open"):
        index = film(name).index
        assert index.keys.sum() > len(index.entries), name
