"""Texts and ids of numbers: what has no text is the last one, whatever the number is."""

import numpy as np
import pytest
import torch
from robocache import _core

TEXTS = ["a", "b", ""]
FAR = [2, -1, 3, np.iinfo(np.int64).max, np.iinfo(np.int64).min]


def test_texts_of_numbers_are_a_list_or_a_list_of_lists():
    numbers = np.array([1, 0, *FAR], np.int64)
    assert _core.texts_of(numbers, TEXTS) == ["b", "a", *[""] * len(FAR)]
    assert _core.texts_of(torch.tensor([[0, 1], [1, -5]]), TEXTS) == [["a", "b"], ["b", ""]]
    assert _core.texts_of(np.empty(0, np.int64), TEXTS) == []
    assert _core.texts_of(np.empty((2, 0), np.int64), TEXTS) == [[], []]


@pytest.mark.parametrize("make", [np.array, torch.tensor])
def test_ids_of_numbers_are_rows_of_the_tables(make):
    ids, mask = make([[7, 8], [9, 1], [0, 0]]), make([[True, True], [True, False], [False, False]])
    index = make([1, 0, 2])
    got = _core.tokens_of(np.array([[0, 1], [2, -1]]), index, ids, mask)
    assert [type(x) for x in got] == [type(ids)] * 2
    np.testing.assert_array_equal(got[0], [[[9, 1], [7, 8]], [[0, 0], [0, 0]]])
    np.testing.assert_array_equal(got[1], [[[1, 0], [1, 1]], [[0, 0], [0, 0]]])


def test_numbers_and_tables_are_checked():
    with pytest.raises(ValueError, match="numbers must have dtype int64, got int32"):
        _core.texts_of(np.zeros(2, np.int32), TEXTS)
    with pytest.raises(ValueError, match="numbers must have 1 or 2 dimensions"):
        _core.texts_of(np.zeros((1, 1, 1), np.int64), TEXTS)
    with pytest.raises(ValueError, match="texts must have one for numbers without a text"):
        _core.texts_of(np.zeros(1, np.int64), [])
    with pytest.raises(ValueError, match="index must have rows of the tables, got 3"):
        _core.tokens_of(np.zeros(1, np.int64), np.array([3]), np.zeros((2, 1), np.int64), np.zeros((2, 1), bool))
