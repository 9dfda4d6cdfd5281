"""What a build or a JAX without handlers says, and what the installation shows of them."""

import jax
import numpy as np
import pytest
import robocache
from robocache import _core
from robocache.ops.jax_ops import call

ARRAYS = (np.zeros((2, 5, 3), np.float32), np.tile(np.arange(5.0), (2, 1)), np.tile(np.arange(4.0), (2, 1)))


@pytest.fixture
def forgotten():
    """What is known of the handlers is found out again, before and after the test."""
    call._missing_handlers.cache_clear()
    yield
    call._missing_handlers.cache_clear()


def test_the_installation_shows_whether_there_are_handlers(capsys):
    shown = robocache.check_installation()["jax_handlers"]
    assert shown["compiled"] == (_core.xla_ffi_version is not None)
    robocache.print_installation_info()
    line = next(line for line in capsys.readouterr().out.splitlines() if "jax.jit" in line)
    assert (f"XLA FFI {shown['xla_ffi']}" if shown["compiled"] else "not compiled") in line


def test_a_build_without_headers_names_the_fix_under_jit_and_works_outside(forgotten, monkeypatch):
    monkeypatch.setattr(_core, "xla_ffi_version", None)
    with pytest.raises(NotImplementedError, match=r"jaxlib, which were not found.*docs/guides/jax.md"):
        jax.jit(robocache.resample_trajectories)(*ARRAYS)
    assert robocache.resample_trajectories(*map(jax.numpy.asarray, ARRAYS)).shape == (2, 4, 3)


def test_a_jax_that_is_too_old_is_named(forgotten, monkeypatch):
    monkeypatch.setattr(_core, "xla_ffi_version", (0, 1))
    monkeypatch.setattr(jax, "__version__", "0.4.38")
    with pytest.raises(NotImplementedError, match=r"need jax 0.5 or newer, got 0.4.38"):
        jax.jit(robocache.resample_trajectories)(*ARRAYS)


def test_headers_that_are_newer_than_jax_are_named(forgotten, monkeypatch):
    def refuse(*_, **__):
        raise RuntimeError("API version 99.0 is not supported")

    monkeypatch.setattr(_core, "xla_ffi_version", (99, 0))
    monkeypatch.setattr(_core, "xla_handlers", lambda: [("name", "cpu", None)], raising=False)
    monkeypatch.setattr(jax.ffi, "register_ffi_target", refuse)
    with pytest.raises(NotImplementedError, match=r"XLA FFI 99.0 or newer.*API version 99.0.*install a newer jax"):
        jax.jit(robocache.resample_trajectories)(*ARRAYS)
