"""Tests in parallel processes: each once, and those that share a fixture of their module in one process."""

import os
import subprocess
import sys
import threading

import pytest
from paths import ROOT
from shards import groups, shared_module, take, taken

TESTS = [(None, 0), *(("a", k) for k in range(5)), *((None, k) for k in range(1, 23)), *(("b", k) for k in range(3))]


@pytest.fixture(scope="module")
def shared():
    return 1


@pytest.mark.parametrize("processes", [1, 2, 3, 16])
def test_every_test_runs_once_and_modules_stay_together(processes, tmp_path):
    runs = [taken(TESTS, lambda test: test[0], tmp_path / "counter") for _ in range(processes)]
    ran = [[] for _ in runs]
    while any(next_tests := [next(run, None) for run in runs]):
        for mine, test in zip(ran, next_tests, strict=True):
            mine += [test] if test else []
    assert sorted((test for mine in ran for test in mine), key=TESTS.index) == TESTS
    for module in "ab":
        together = [test for mine in ran for test in mine if test[0] == module]
        assert together in [[test for test in mine if test[0] == module] for mine in ran]


def test_groups_that_share_a_fixture_start_first():
    assert [len(group) for group in groups(TESTS, lambda test: test[0])] == [5, 3] + [1] * 23


def test_no_number_is_taken_twice(tmp_path):
    numbers = []
    threads = [threading.Thread(target=lambda: numbers.extend(take(tmp_path / "n") for _ in range(200))) for _ in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(numbers) == list(range(600))


@pytest.mark.parametrize(("taken_before", "code", "closing"), [(2, 5, "deselected"), (1, 0, "1 passed")])
def test_a_process_runs_what_the_others_left(taken_before, code, closing, tmp_path):
    (tmp_path / "counter").write_text(str(taken_before))  # of two groups
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", "known or share_nothing"]
    environment = {"ROBOCACHE_SHARD": str(tmp_path / "counter"), "PATH": ""}
    run = subprocess.run(command, env=environment, text=True, capture_output=True)
    assert run.returncode == code, run.stdout
    assert closing in run.stdout


def test_a_test_that_shares_a_fixture_of_a_module_is_known(request, shared):
    assert shared_module(request.node) == __name__


def test_other_tests_share_nothing(request, tmp_path):
    assert shared_module(request.node) is None


def run_without_torch(folder, missing):
    """Files of tests of which two need torch, where torch cannot be imported."""
    files = {
        "torch": "raise ModuleNotFoundError('No module named torch', name='torch')",
        "test_inside": "def test_a():\n    import torch\n\ndef test_b():\n    pass",
        "test_on_top": "import torch\n\ndef test_c():\n    pass",
        "test_wrong": "def test_d():\n    import no_such_package",
    }
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text + "\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-p",
        "conftest",
        "-c",
        ROOT / "pyproject.toml",
    ]
    # Without the queue of these tests, of which it would take some.
    env = {name: value for name, value in os.environ.items() if name != "ROBOCACHE_SHARD"}
    env |= {"ROBOCACHE_MISSING": missing, "PYTHONPATH": f"{folder}:{ROOT / 'tests'}"}
    return subprocess.run([*command, folder], cwd=folder, env=env, capture_output=True, text=True, timeout=200)


def test_tests_are_skipped_for_the_lack_of_a_package_that_the_environment_names(tmp_path):
    done = run_without_torch(tmp_path, "torch")
    assert "1 failed, 1 passed, 2 skipped" in done.stdout, done.stdout + done.stderr
    assert "No module named 'no_such_package'" in done.stdout
    assert done.stdout.count("needs torch") == 2


def test_a_package_that_is_not_named_must_be_there(tmp_path):
    done = run_without_torch(tmp_path, "")
    assert done.returncode != 0
    assert "No module named torch" in done.stdout + done.stderr
    assert "passed" not in done.stdout
