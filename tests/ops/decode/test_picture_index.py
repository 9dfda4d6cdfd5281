"""Indexes of pictures, joined and picked: the same as an index of the same pictures."""

import itertools

import numpy as np
import pytest
import robocache
from decode_calls import decode, equal
from pictures import jpeg, photo, with_sampling

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


@pytest.mark.parametrize("cuts", [[0, 0, 2, 2, 3, 5, 5], [0, 5], [0, 0, 5], [0, 1, 2, 3, 4, 5]])
def test_rows_are_those_of_the_parts_one_after_the_other(cuts):
    parts = [robocache.index_pictures(PICTURES[begin:end]) for begin, end in itertools.pairwise(cuts)]
    for rows in ([0, 1, 2, 3, 4], [4, 2, 2, 0, 1], [3], [2], [0], []):
        picked = robocache.PictureIndex.join(parts, rows)
        expected = robocache.index_pictures([PICTURES[i] for i in rows])
        assert picked.sizes.tolist() == expected.sizes.tolist()
        pixels = [robocache.decode_images([PICTURES[i] for i in rows], index=x) for x in (picked, expected)]
        np.testing.assert_array_equal(*pixels)
    for row in (-1, 5):
        with pytest.raises(ValueError, match=rf"PictureIndex: rows must be from 0 to 5 \(excluded\), got {row}"):
            robocache.PictureIndex.join(parts, [0, row])


def test_the_entry_points_of_a_picture_do_not_depend_on_those_beside_it():
    """Scans are read two at a time, in turns; they end at different times and have tables of their own."""
    made = [
        jpeg(photo(10 + 13 * (i % 5), 8 + 29 * (i % 3), i), quality=20 + 25 * (i % 4), optimize=i % 2 == 0,
             subsampling=i % 3, restart_marker_blocks=(0, 1, 5)[i % 3])
        for i in range(40)
    ]  # fmt: skip
    made.append(with_sampling(33, 70, ((2, 2), (1, 2), (1, 1))))
    together = robocache.index_pictures(made, every=3)
    alone = [robocache.index_pictures([picture], every=3) for picture in made]
    assert together.to_bytes().tobytes() == robocache.PictureIndex.join(alone).to_bytes().tobytes()
    equal(decode(made, index=together), decode(made))


@pytest.mark.parametrize("begin", [0, 1, 30])
def test_the_first_damaged_picture_of_those_read_in_turns_is_named(begin):
    """Also where the one after it is shorter, so that its fault is met earlier."""
    whole = [jpeg(photo(64, 64, i), quality=95) for i in range(32)]
    cut = {begin: 0.9, begin + 1: 0.4}
    pictures = [picture[: int(len(picture) * cut.get(i, 1))] for i, picture in enumerate(whole)]
    before = robocache.num_threads()
    robocache.set_num_threads(1)
    try:
        with pytest.raises(robocache.FormatError, match=rf"pictures\[{begin}\] must have a whole scan"):
            robocache.index_pictures(pictures)
    finally:
        robocache.set_num_threads(before)
    assert len(robocache.index_pictures(whole)) == 32


def test_shapes_are_those_of_the_rows():
    pictures = [jpeg(photo(9, 5)), jpeg(photo(7, 8)[..., 0])]
    index = robocache.index_pictures(pictures)
    assert index.shapes_of().tolist() == [[9, 5, 3], [7, 8, 1]]
    assert index.shapes_of(np.array([1, 0, 1])).tolist() == [[7, 8, 1], [9, 5, 3], [7, 8, 1]]
    made = robocache.decode_images(pictures * 2, index=robocache.PictureIndex.join([index, index]), rows=[3, 0, 1])
    assert [x.shape for x in made] == [(7, 8, 3), (9, 5, 3), (7, 8, 3)]


def test_a_row_that_no_index_has_is_refused():
    index = robocache.index_pictures(PICTURES)
    with pytest.raises(ValueError, match=r"PictureIndex: rows must be from 0 to 5 \(excluded\), got 5"):
        robocache.PictureIndex.join([index], [5])


def test_rows_that_are_no_whole_numbers_are_refused():
    """1.5 was row 1."""
    with pytest.raises(ValueError, match=r"PictureIndex: rows must be whole numbers \(N,\), got float64"):
        robocache.PictureIndex.join([robocache.index_pictures(PICTURES)], [0, 1.5])
