"""Tests in shards: each once, and those that share a fixture of their module in one process."""

import pytest
from shards import shard, shared_module

TESTS = [("a", k) for k in range(5)] + [(None, k) for k in range(23)] + [("b", k) for k in range(3)] + [("c", 0)]


@pytest.fixture(scope="module")
def shared():
    return 1


@pytest.mark.parametrize("shards", [1, 2, 3, 16, 100])
def test_every_test_runs_once_and_in_order(shards):
    parts = [shard(TESTS, lambda test: test[0], number, shards) for number in range(shards)]
    assert sorted((test for part in parts for test in part), key=TESTS.index) == TESTS
    assert all(part == sorted(part, key=TESTS.index) for part in parts)
    for module in "abc":
        assert sum(any(test[0] == module for test in part) for part in parts) == 1
    alone = [sum(test[0] is None for test in part) for part in parts]
    assert max(alone) - min(alone) <= 1


def test_who_shares_a_fixture_of_a_module_is_known(request, shared):
    assert shared_module(request.node) == __name__


def test_others_share_nothing(request, tmp_path):
    assert shared_module(request.node) is None
