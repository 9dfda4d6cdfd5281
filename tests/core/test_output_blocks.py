"""Memory of large outputs: used again once nothing refers to it, and not before."""

import os
import pickle
import threading

import numpy as np
import pytest
import robocache
from robocache import _core

torch = pytest.importorskip("torch")
ROWS = (1 << 20) + 5000  # outputs from 4 MB on are in blocks


def output(first=0.0, rows=ROWS, dtype=torch.float32):
    """A new output with the values first, first + 1, ..."""
    times = torch.arange(rows)
    return robocache.resample_trajectories((first + torch.arange(rows)).to(dtype).view(-1, 1), times, times)


def use_again():
    """Outputs that would write into memory that was given back too early."""
    return [output(first=-7.0) for _ in range(4)]


@pytest.fixture(autouse=True)
def no_blocks_of_other_tests():
    kept = [output() for _ in range(16)]
    yield
    del kept


def test_memory_that_nothing_refers_to_is_used_again():
    made = output()
    place = made.data_ptr()
    del made
    assert place in [x.data_ptr() for x in use_again()]


@pytest.mark.parametrize(
    "refer",
    [
        lambda made: made.view(-1)[5:90],
        lambda made: made.numpy()[5:90, 0],
        lambda made: np.from_dlpack(made)[5:90, 0],
        lambda made: torch.from_dlpack(made)[5:90, 0],
        lambda made: memoryview(made.numpy())[5:90],
        lambda made: made.requires_grad_().detach()[5:90, 0],
    ],
    ids=["view", "numpy", "dlpack of NumPy", "dlpack of torch", "memoryview", "detached"],
)
def test_a_part_of_an_output_keeps_its_memory(refer):
    made = output()
    part = refer(made)
    del made
    others = use_again()
    np.testing.assert_array_equal(np.asarray(part).reshape(-1), np.arange(5.0, 90.0))
    del others


def test_arrays_of_numpy_keep_their_memory_too():
    made = _core.empty_like(np.empty(0, np.float32), (ROWS, 1))
    made[:, 0] = np.arange(ROWS)
    part, place = made[5:90, 0], made.ctypes.data
    del made
    others = use_again()
    np.testing.assert_array_equal(part, np.arange(5.0, 90.0))
    del part
    assert place in [x.data_ptr() for x in use_again()]
    del others


def test_outputs_of_other_sizes_and_dtypes_are_right():
    expected = [(1.0, ROWS, torch.float32), (2.0, ROWS - 9, torch.float32), (3.0, ROWS // 2, torch.float64)]
    for _ in range(20):
        for first, rows, dtype in expected:
            made = output(first, rows, dtype)
            assert made.shape == (rows, 1)
            assert made.dtype == dtype
            assert torch.equal(made.view(-1), (first + torch.arange(rows)).to(dtype))


def test_an_output_moves_to_shared_memory_and_leaves_its_own_to_others():
    made = output()
    place = made.data_ptr()
    made.share_memory_()
    assert made.is_shared()
    others = use_again()
    assert place in [x.data_ptr() for x in others]
    assert torch.equal(made.view(-1), torch.arange(ROWS, dtype=torch.float32))


def test_an_output_survives_pickle_and_gradients():
    made = output().requires_grad_()
    made.sum().backward()
    assert torch.equal(made.grad, torch.ones_like(made))
    assert torch.equal(pickle.loads(pickle.dumps(made.detach())), made)


def test_a_forked_child_gives_its_blocks_back_without_touching_those_of_its_parent():
    made = output()
    pid = os.fork()
    if pid == 0:
        try:
            torch.set_num_threads(1)  # OpenMP's threads are not in the child
            part = made.view(-1)[:100].clone()
            del made
            others = use_again()
            os._exit(0 if torch.equal(part, torch.arange(100.0)) and float(others[0][0]) == -7.0 else 1)
        except BaseException:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert torch.equal(made.view(-1), torch.arange(ROWS, dtype=torch.float32))


def test_threads_never_get_the_same_block():
    wrong = []

    def work(first):
        for _ in range(10):
            kept = [output(first), output(first + 1)]
            for i, made in enumerate(kept):
                if not torch.equal(made.view(-1), first + i + torch.arange(ROWS, dtype=torch.float32)):
                    wrong.append(first)

    threads = [threading.Thread(target=work, args=(100.0 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
