"""What tests of hostile files share: a dataset to spoil, and the proof that it is refused."""

import json
import tracemalloc

import adapter_datasets as datasets
import pytest
import robocache

PEAK_BYTES = 200 << 20
"""What reading a bomb may take: far below what the bombs here unpack to."""


def refused(path, match, peak_bytes=PEAK_BYTES, **options):
    """Opening and reading all of it raises FormatError, and takes little memory on the way."""
    tracemalloc.start()
    try:
        with pytest.raises(robocache.FormatError, match=match):
            list(robocache.open(path, **options))
        assert tracemalloc.get_traced_memory()[1] < peak_bytes
    finally:
        tracemalloc.stop()


def write(name, folder, rng):
    make, _, packages = datasets.CASES[name]
    for package in packages:
        pytest.importorskip(package, reason=f"{name} datasets are written with {package}")
    return make(folder, rng)


def edit_json(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
