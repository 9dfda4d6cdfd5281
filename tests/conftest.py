"""What every test shares: the Hypothesis profile, the parameters, the fixtures. Tests use the installed wheel."""

import contextlib
import os
import pathlib
import signal
import tempfile

import paths  # noqa: F401  before modules of tests are imported

# isort: split
import hypothesis
import hypothesis.configuration
import numpy as np
import pytest
import robocache
from arrays import BACKENDS, GPU_KINDS, KINDS, MISSING, REQUIRE_CUDA, TIMES, missing_on_gpu, on, to_numpy
from shards import shared_module, taken

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as shells start background jobs; programs of tests inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

hypothesis.configuration.set_hypothesis_home_dir(pathlib.Path(tempfile.gettempdir(), "robocache-hypothesis"))
hypothesis.settings.register_profile(
    "robocache",
    derandomize=True,
    deadline=None,
    max_examples=50,
    database=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("robocache")


def pytest_generate_tests(metafunc):
    """A test that takes ``backend``, ``kind`` or ``tdtype`` and says no more about it gets all of them."""
    said = {name for mark in metafunc.definition.iter_markers("parametrize") for name in np.ravel(mark.args[0])}
    for name, values in (("backend", BACKENDS), ("kind", KINDS), ("tdtype", TIMES)):
        if name in metafunc.fixturenames and name not in said:
            metafunc.parametrize(name, values, ids=[str(value) for value in values])


def _leave_real_time():
    """As root, SVT-AV1 schedules the thread that opens it in real time, and processes started later inherit it:
    two that spin stop the machine. Tests and fixtures open it through PyAV."""
    if os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR):
        for task in os.listdir("/proc/self/task"):
            with contextlib.suppress(OSError):  # a thread that has ended
                os.sched_setscheduler(int(task), os.SCHED_OTHER, os.sched_param(0))


def pytest_runtest_call():
    _leave_real_time()


def pytest_runtest_teardown():
    _leave_real_time()


def pytest_collection_modifyitems(config, items):
    """ROBOCACHE_ONLY_CUDA=1 drops calls with a `backend` other than CUDA: machines without a GPU run them."""
    if os.environ.get("ROBOCACHE_ONLY_CUDA") == "1":
        mine = [item for item in items if _parameter(item, "backend") in (None, "cuda")]
        config.hook.pytest_deselected(items=list(set(items) - set(mine)))
        items[:] = mine


def _missing(error):
    """The package of ROBOCACHE_MISSING that an exception, or one that caused it, names; else None."""
    while error is not None:
        name = (getattr(error, "name", None) or "").partition(".")[0] if isinstance(error, ImportError) else ""
        if name in MISSING:
            return name
        error = error.__cause__ or error.__context__
    return None


def _skip_without(report, call, path):
    """Turns a failure for the lack of a package that ROBOCACHE_MISSING names into a skipped test or file."""
    name = report.failed and call.excinfo is not None and _missing(call.excinfo.value)
    if name:
        report.outcome = "skipped"
        report.longrepr = (str(path), 1, f"Skipped: needs {name}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    _skip_without(report, call, item.path)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    report = yield
    if hasattr(report, "call"):
        _skip_without(report, report.call, collector.path)
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session):
    """ROBOCACHE_SHARD=FILE runs the tests that other processes with the same file have not taken yet."""
    if "ROBOCACHE_SHARD" not in os.environ or session.config.option.collectonly:
        return None
    following = taken(session.items, shared_module, os.environ["ROBOCACHE_SHARD"])
    item, ran = next(following, None), 0
    while item is not None:
        after = next(following, None)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
        item, ran = after, ran + 1
        if session.shouldfail or session.shouldstop:
            raise session.Failed(session.shouldfail or session.shouldstop)
    session.testscollected = ran  # exit code 5 if nothing was left
    return True


def _parameter(item, name):
    """The parameter of a test by its name, or None."""
    return getattr(item, "callspec", None) and item.callspec.params.get(name)


def pytest_report_header():
    return f"robocache {robocache.__version__}, backends {', '.join(BACKENDS)}, installed in {robocache.__path__[0]}"


@pytest.fixture
def rng(request):
    """A generator that is the same for a test in every run, and another one for every other test."""
    return np.random.default_rng(list(request.node.name.encode()))


@pytest.fixture(params=GPU_KINDS)
def gpu_kind(request):
    """A kind of array that can live on a GPU. Where that cannot be tested the test is skipped; or fails, for torch."""
    why = missing_on_gpu(request.param)
    if why is not None:
        (pytest.fail if REQUIRE_CUDA and request.param == "torch" else pytest.skip)(why)
    return request.param


@pytest.fixture
def resample(backend):
    """``resample_trajectories`` on the backend, with NumPy in and out; always returns (values, valid)."""

    def call(values, times, targets, **options):
        given = (on(backend, np.asarray(x)) for x in (values, times, targets))
        values, valid = robocache.resample_trajectories(
            *given, return_valid=True, check=True, backend=backend, **options
        )
        return to_numpy(values), to_numpy(valid)

    return call
