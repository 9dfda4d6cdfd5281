"""Indexes of pictures, joined and picked: the same as an index of the same pictures."""

import numpy as np
import pytest
import robocache
from pictures import jpeg, photo

PICTURES = [
    jpeg(photo(40, 56, seed), quality=quality, optimize=optimize)
    for seed, (quality, optimize) in enumerate([(95, False), (95, True), (60, False), (95, False), (30, True)])
]


def test_a_joined_index_is_the_index_of_all_pictures():
    parts = [robocache.index_pictures(PICTURES[:2]), robocache.index_pictures(PICTURES[2:])]
    joined = robocache.PictureIndex.join(parts)
    assert joined.to_bytes().tobytes() == robocache.index_pictures(PICTURES).to_bytes().tobytes()
    assert len(robocache.PictureIndex.join([])) == 0


def test_picked_pictures_decode_to_the_same_pixels():
    parts = [robocache.index_pictures(PICTURES[:2]), robocache.index_pictures(PICTURES[2:])]
    rows = [4, 0, 0, 2]
    index = robocache.PictureIndex.from_bytes(robocache.PictureIndex.join(parts, rows).to_bytes())
    picked = [PICTURES[i] for i in rows]
    pixels = robocache.decode_images(picked, index=index, crop=(8, 8, 40, 32))
    np.testing.assert_array_equal(pixels, robocache.decode_images(picked, crop=(8, 8, 40, 32)))


def test_a_row_that_no_index_has_is_refused():
    index = robocache.index_pictures(PICTURES)
    with pytest.raises(ValueError, match=r"PictureIndex: rows must be from 0 to 5 \(excluded\), got 5"):
        robocache.PictureIndex.join([index], [5])
