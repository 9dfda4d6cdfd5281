"""What every adapter must do, for every format, on datasets that the format's own library wrote."""

import ast
import copy
import importlib
import json
import os
import pathlib
import subprocess
import sys

import adapter_datasets as datasets
import numpy as np
import pytest
import robocache
from paths import ROOT
from robocache import sources as adapters


@pytest.fixture(params=datasets.CASES)
def case(request):
    """(format, written dataset)"""
    write, name, packages = datasets.CASES[request.param]
    for package in packages:
        version = "3" if package == "zarr" else None
        pytest.importorskip(package, minversion=version, reason=f"{request.param} datasets are written with {package}")
    folder = request.getfixturevalue("tmp_path")
    return name, write(folder, request.getfixturevalue("rng"))


@pytest.fixture
def opened(case):
    return robocache.open(case[1].path, **case[1].options)


def test_the_format_is_recognized_and_said(case, opened):
    assert adapters.detect(case[1].path) == case[0] == opened.format
    assert isinstance(opened, robocache.Source)
    assert opened.path.exists()


def test_a_format_given_by_name_gives_the_same(case, opened):
    again = robocache.open(str(case[1].path), format=case[0], **case[1].options)
    assert len(again) == len(opened)
    assert again.specs == opened.specs


def test_every_row_comes_back_exactly_at_its_time(case, opened):
    written = case[1]
    assert len(opened) == len(written.streams)
    for episode, expected in zip(opened, written.streams, strict=True):
        assert set(episode.streams) == set(expected)
        for name, (values, times, *offsets) in expected.items():
            stream = episode.streams[name]
            np.testing.assert_array_equal(stream.times, times, err_msg=name)
            np.testing.assert_array_equal(stream.values, values, err_msg=name)
            assert stream.values.dtype == values.dtype, name
            assert stream.times.dtype == np.int64
            if offsets:
                np.testing.assert_array_equal(stream.offsets, offsets[0])
            else:
                assert stream.offsets is None


def test_episodes_are_read_in_any_order(case, opened):
    for index in reversed(range(len(opened))):
        episode = opened.episode(index)
        assert episode.index == index
        for name, (_, times, *_) in case[1].streams[index].items():
            np.testing.assert_array_equal(episode.streams[name].times, times)


def test_an_episode_that_is_not_there_is_an_index_error(opened):
    for index in (-1, len(opened)):
        with pytest.raises(IndexError, match=rf"episode: index must be in \[0, {len(opened)}\), got {index}"):
            opened.episode(index)


def test_tasks_come_back(case, opened):
    assert [episode.task for episode in opened] == case[1].tasks


def test_metadata_comes_back_and_is_json(case, opened):
    for key, value in case[1].metadata.items():
        assert opened.metadata[key] == value, key
    for episode, expected in zip(opened, case[1].meta, strict=True):
        for key, value in expected.items():
            assert episode.meta[key] == value, key
        assert "repairs" not in episode.meta
        json.dumps(episode.meta)
    json.dumps(opened.metadata)


def test_specs_say_what_the_streams_are(case, opened):
    for episode in opened:
        assert {name: stream.spec for name, stream in episode.streams.items()} == opened.specs
    for name, fields in case[1].specs.items():
        for field, value in fields.items():
            assert getattr(opened.specs[name], field) == value, (name, field)
    for spec in opened.specs.values():
        json.dumps(spec.meta)


def test_the_fingerprint_is_stable_and_changes_with_the_files(case, opened):
    before = opened.fingerprint()
    assert robocache.open(case[1].path, **case[1].options).fingerprint() == before
    changed = max(opened.files(), key=lambda path: path.stat().st_size)
    os.utime(changed, ns=(1, 1))
    assert opened.fingerprint() != before


def test_a_source_travels_to_another_process(opened):
    opened.episode(0)
    again = copy.deepcopy(opened)
    name = next(iter(opened.specs))
    np.testing.assert_array_equal(again.episode(0).streams[name].values, opened.episode(0).streams[name].values)


def test_an_episode_over_the_limit_of_memory_is_refused(case):
    with pytest.raises(robocache.FormatError, match=r"raise it with max_bytes="):
        list(robocache.open(case[1].path, max_bytes=100, **case[1].options))


def test_streams_go_into_align(opened):
    episode = opened.episode(len(opened) - 1)
    stream = next(s for s in episode.streams.values() if s.spec.kind == "vector" and s.values.dtype.kind == "f")
    wanted = stream.times[[0, -1]]
    aligned = robocache.align(robocache.Stream(stream.values, stream.times, method="previous"), wanted)
    np.testing.assert_array_equal(np.squeeze(aligned.values, 0), stream.values[[0, -1]])


@pytest.mark.parametrize("name", adapters.FORMATS)
@pytest.mark.parametrize("content", [None, b"", b"\x89HDF\r\n", b"\x89MCAP", b"PK\x03\x04", os.urandom(64)])
def test_detection_never_raises(tmp_path, name, content):
    module = importlib.import_module(f"robocache.sources.{name}")
    path = tmp_path / "x"
    if content is not None:
        path.write_bytes(content)
    assert module.detect(path) is False
    assert module.detect(tmp_path) is False
    assert module.detect(path / "below") is False


def test_what_is_in_no_format_says_what_was_tried(tmp_path):
    with pytest.raises(robocache.FormatError) as error:
        robocache.open(tmp_path)
    assert f"open: {tmp_path}: unrecognized dataset format; tried:" in str(error.value)
    assert all(name in str(error.value) for name in adapters.FORMATS)


@pytest.mark.parametrize("name", ["", "manifest.json", "meta", "metadata.yaml", "link"])
def test_a_dataset_without_permission_to_read_it_is_told_so(tmp_path, monkeypatch, name):
    """It was said to be in no format that is known."""
    place = tmp_path / name if name != "link" else tmp_path / "features.json"
    place.parent.mkdir(exist_ok=True)
    if name == "link":
        place.symlink_to(tmp_path / "nothing")
    elif name:
        place.write_text("x")
    monkeypatch.setattr(os, "access", lambda path, mode: pathlib.Path(path) != place)
    with pytest.raises(robocache.FormatError) as told:
        robocache.open(tmp_path)
    assert str(told.value) == f"open: {place} cannot be read: permission denied, or a link to nothing"


def test_a_path_that_is_not_there_and_a_format_that_is_not_known(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"open: .*gone does not exist"):
        robocache.open(tmp_path / "gone")
    with pytest.raises(ValueError, match=r"open: format must be one of robocache, lerobot, .*, got 'rosbag'"):
        robocache.open(tmp_path, format="rosbag")


@pytest.mark.parametrize("path", ["s3://bucket/runs", "https://host/data.mcap", "lerobot/pusht"])
def test_a_url_or_an_id_of_a_hub_is_shown_as_given_with_what_to_do(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=f"^open: {path} does not exist; URLs .*: download the dataset first$"):
        robocache.open(path)


@pytest.mark.parametrize(
    ("name", "package"),
    [
        *(("robomimic", "h5py"), ("lerobot v3.0", "pyarrow"), ("lerobot v3.0", "av"), ("lerobot v3.0", "PIL")),
        *(("zarr v2", "numcodecs"), ("mcap", "lz4"), ("mcap", "zstandard"), ("mcap", "PIL"), ("rlds", "PIL")),
    ],
)
def test_a_missing_package_is_named_with_the_extra_that_has_it(tmp_path, rng, name, package):
    write, extra, packages = datasets.CASES[name]
    for needed in packages:
        pytest.importorskip(needed, minversion="3" if needed == "zarr" else None)
    written = write(tmp_path, rng)
    code = f"""
import sys, robocache
sys.modules[{package!r}] = None
try:
    list(robocache.open({str(written.path)!r}, **{written.options!r}))
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout == f"open: {extra} datasets need the package {package}: pip install 'robocache[{extra}]'\n"


def test_every_extra_that_a_message_names_exists():
    text = (ROOT / "pyproject.toml").read_text()
    for name in ("lerobot", "robomimic", "zarr", "mcap", "rlds", "formats"):
        assert f"\n{name} = [" in text


def test_importing_robocache_imports_no_reader():
    readers = ("h5py", "pyarrow", "zarr", "mcap", "av", "PIL", "rerun")
    code = f"import sys, robocache; print([m for m in {readers} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_nothing_in_the_package_can_unpickle_or_run_what_it_reads():
    modules = {"pickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
    for path in pathlib.Path(robocache.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
                assert not modules & {name.partition(".")[0] for name in names}, path
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in ("eval", "exec", "np.load", "numpy.load", "torch.load"), (path, node.lineno)
                assert all(word.arg != "allow_pickle" for word in node.keywords), (path, node.lineno)
