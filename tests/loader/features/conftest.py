"""Statistics are kept in a folder of the test, not in that of the user."""

import pytest
from feature_cases import make_cache


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("ROBOCACHE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    return make_cache(tmp_path_factory.mktemp("features") / "c", shard_bytes=1 << 14)
