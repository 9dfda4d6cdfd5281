"""Where LeRobotDataset finds a dataset, and the cache that it makes of it once."""

import json
import os
import shutil
import subprocess
import sys
import types

import pytest
from lerobot_cases import assert_same_item, expected_item, written

torch = pytest.importorskip("torch")
import robocache.lerobot.store  # noqa: E402
from robocache.lerobot import LeRobotDataset  # noqa: E402

OPEN = "from robocache.lerobot import LeRobotDataset as D; print(D('local/x', root={root!r})[17]['index'].item())"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("ROBOCACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path / "lerobot"))
    return tmp_path / "home" / "lerobot"


@pytest.fixture
def dataset(tmp_path):
    return written(tmp_path / "data")


def caches(home):
    return sorted(path.name for path in home.iterdir() if path.is_dir())


def test_a_dataset_is_ingested_once_and_again_only_when_it_changes(dataset, home, capfd, monkeypatch):
    LeRobotDataset("local/x", root=dataset.path)
    assert "ingesting local/x (3 episodes)" in capfd.readouterr().err
    with monkeypatch.context() as patch:
        patch.setattr(robocache.lerobot.store, "ingest", None)
        assert len(LeRobotDataset("local/x", root=dataset.path)) == 18
    first = caches(home)
    path = dataset.path / "data/chunk-000/file-000.parquet"
    os.utime(path, ns=(1, 1))
    LeRobotDataset("local/x", root=dataset.path)
    assert len(first) == 1
    assert len(caches(home)) == 2


def test_datasets_of_the_same_names_sizes_and_times_have_caches_of_their_own(dataset, tmp_path, home, capfd):
    roots = [dataset.path, tmp_path / "other"]
    shutil.copytree(*roots)
    for path in [path for root in roots for path in root.rglob("*") if path.is_file()]:
        os.utime(path, ns=(0, 0))
    for root in roots:
        LeRobotDataset("local/x", root=root)
    assert len(caches(home)) == 2
    data = dataset.path / "data/chunk-000/file-000.parquet"
    data.write_bytes(data.read_bytes())
    os.utime(data, ns=(0, 0))
    capfd.readouterr()
    LeRobotDataset("local/x", root=dataset.path)
    assert len(caches(home)) == 3
    assert f"is of an earlier state of {dataset.path}, or of" in capfd.readouterr().err


def test_concurrent_processes_ingest_once(dataset, home):
    programs = [
        subprocess.Popen([sys.executable, "-c", OPEN.format(root=str(dataset.path))], stdout=-1, stderr=-1, text=True)
        for _ in range(3)
    ]
    ends = [program.communicate(timeout=120) for program in programs]
    assert [out for out, _ in ends] == ["17\n"] * 3, ends
    assert sum(error.count("ingesting") for _, error in ends) == 1
    assert len(caches(home)) == 1


def test_an_interrupted_ingest_is_completed_by_the_next_one(dataset, home, monkeypatch):
    whole = robocache.lerobot.store.ingest

    def interrupted(*args, progress, **options):
        def stop(done, total):
            raise KeyboardInterrupt

        return whole(*args, progress=stop, **options)

    with monkeypatch.context() as patch:
        patch.setattr(robocache.lerobot.store, "ingest", interrupted)
        with pytest.raises(KeyboardInterrupt):
            LeRobotDataset("local/x", root=dataset.path)
    assert_same_item(LeRobotDataset("local/x", root=dataset.path)[17], expected_item(dataset, 17))
    assert len(caches(home)) == 1


def test_a_dataset_that_cannot_be_written_is_read(dataset):
    folders = [dataset.path, *(path for path in dataset.path.rglob("*") if path.is_dir())]
    before = sorted(dataset.path.rglob("*"))
    for folder in folders:
        folder.chmod(0o555)
    try:
        assert_same_item(LeRobotDataset("local/x", root=dataset.path)[5], expected_item(dataset, 5))
    finally:
        for folder in folders:
            folder.chmod(0o755)
    assert sorted(dataset.path.rglob("*")) == before


def test_a_cache_folder_that_cannot_be_made_names_the_variable(dataset, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ROBOCACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(OSError, match=r"cannot be written .* set ROBOCACHE_HOME to another folder"):
        LeRobotDataset("local/x", root=dataset.path)


def test_a_dataset_is_found_in_the_home_of_lerobot(dataset, tmp_path):
    shutil.copytree(dataset.path, tmp_path / "lerobot/team/arm")
    assert LeRobotDataset("team/arm").root == tmp_path / "lerobot/team/arm"


def test_a_snapshot_of_the_hub_is_found_by_its_revision(dataset, tmp_path):
    place = tmp_path / "lerobot/hub/datasets--team--arm"
    shutil.copytree(dataset.path, place / "blobs")
    for path in [path for path in (place / "blobs").rglob("*") if path.is_file()]:  # links, as the hub makes them
        link = place / "snapshots/abc123" / path.relative_to(place / "blobs")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path)
    (place / "refs").mkdir()
    (place / "refs/v3.0").write_text("abc123")
    # a copy of an unknown revision, of old versions of LeRobot, does not count
    shutil.copytree(dataset.path, tmp_path / "lerobot/team/arm")
    (tmp_path / "lerobot/team/arm/.cache/huggingface/download").mkdir(parents=True)
    ours = LeRobotDataset("team/arm")
    assert ours.root == place / "snapshots/abc123"
    assert_same_item(ours[0], expected_item(dataset, 0))
    assert LeRobotDataset("team/arm", revision="abc123").root == ours.root


def fake_hub(source, offline=False):
    """A module with what is used of huggingface_hub: it copies files that match."""
    calls = []

    def snapshot_download(repo_id, revision, allow_patterns, cache_dir=None, local_dir=None, **_):
        if offline:
            raise ConnectionError("the network is not reachable")
        patterns = [allow_patterns] if isinstance(allow_patterns, str) else list(allow_patterns)
        calls.append((revision, patterns))
        folder = local_dir or cache_dir / "snapshot"
        for path in source.rglob("*"):
            name = path.relative_to(source).as_posix()
            if path.is_file() and any(name.startswith(pattern) for pattern in patterns):
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, folder / name)
        return str(folder)

    ref = types.SimpleNamespace
    refs = ref(branches=[ref(name="main")], tags=[ref(name="v2.1"), ref(name="v3.0")])
    api = ref(list_repo_refs=lambda repo_id, repo_type: refs)
    return ref(snapshot_download=snapshot_download, HfApi=lambda **_: api, calls=calls)


@pytest.mark.parametrize("into_root", [True, False])
def test_what_is_not_local_is_downloaded(dataset, tmp_path, monkeypatch, into_root):
    hub = fake_hub(dataset.path)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    root = tmp_path / "here" if into_root else None
    ours = LeRobotDataset("team/arm", root=root, episodes=[1])
    assert_same_item(ours[0], expected_item(dataset, 5))
    files = ["data/chunk-000/file-000.parquet", "videos/observation.video/chunk-000/file-000.mp4"]
    assert hub.calls == [("v3.0", ["meta/"]), ("v3.0", files)]
    assert ours.root == (root or tmp_path / "lerobot/hub/snapshot")


def test_a_dataset_that_is_nowhere_is_one_clear_error(dataset, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", fake_hub(dataset.path, offline=True))
    with pytest.raises(FileNotFoundError, match=r"team/arm is not at .*lerobot/team/arm, and it could not be downlo"):
        LeRobotDataset("team/arm")
    with pytest.raises(FileNotFoundError, match=r"no revision v4\.0, only v2\.1, v3\.0; give one with revision="):
        LeRobotDataset("team/arm", revision="v4.0")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(FileNotFoundError, match="needs the package huggingface_hub: pip install huggingface_hub"):
        LeRobotDataset("team/arm")


def test_what_is_there_is_downloaded_again_only_on_request(dataset, monkeypatch):
    hub = fake_hub(dataset.path)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    here = dataset.path.with_name("here")
    LeRobotDataset("team/arm", root=here)
    count = len(hub.calls)
    LeRobotDataset("team/arm", root=here)
    assert len(hub.calls) == count
    LeRobotDataset("team/arm", root=here, force_cache_sync=True)
    assert len(hub.calls) == 2 * count


def test_a_file_that_is_missing_is_named(dataset, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", fake_hub(dataset.path, offline=True))
    next((dataset.path / "videos").rglob("*.mp4")).unlink()
    with pytest.raises(FileNotFoundError, match=r"v30 has no videos/observation.video/chunk-000/file-000.mp4 of loc"):
        LeRobotDataset("local/x", root=dataset.path)
    ours = LeRobotDataset("local/x", root=dataset.path, download_videos=False)
    with pytest.raises(robocache.FormatError, match=r"file-000.mp4: .*No such file"):
        ours[0]


def test_columns_that_lerobot_fills_in_must_be_declared(dataset):
    path = dataset.path / "meta/info.json"
    info = json.loads(path.read_text())
    del info["features"]["task_index"]
    path.write_text(json.dumps(info))
    with pytest.raises(robocache.FormatError, match=r"meta/info.json must declare task_index"):
        LeRobotDataset("local/x", root=dataset.path)


def test_a_dataset_with_some_of_its_files_gives_their_episodes(dataset, monkeypatch):
    """Where LeRobot has downloaded only the files of some episodes."""
    path = dataset.path / "meta/episodes/chunk-000/file-000.parquet"
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    at = table.column_names.index("data/file_index")
    pq.write_table(table.set_column(at, "data/file_index", pa.array([0, 0, 1])), path)
    ours = LeRobotDataset("local/x", root=dataset.path, episodes=[0, 1])
    assert [ours[i]["index"].item() for i in (0, 5)] == [0, 5]
    monkeypatch.setitem(sys.modules, "huggingface_hub", fake_hub(dataset.path))
    with pytest.raises(FileNotFoundError, match=r"has no file data/chunk-000/file-001.parquet, which its meta/ names"):
        LeRobotDataset("local/x", root=dataset.path)


def test_the_folder_says_what_it_is_of(dataset, home):
    LeRobotDataset("local/x", root=dataset.path)
    ready = json.loads((home / caches(home)[0] / "ready.json").read_text())
    assert (ready["repo_id"], ready["root"]) == ("local/x", str(dataset.path))


def test_the_source_has_the_columns_that_lerobot_fills_in_as_streams(dataset):
    streams = robocache.open(dataset.path, automatic=True, video=False).episode(2).streams
    assert streams["timestamp"].values[:, 0].tolist() == [float(torch.tensor(i / 30)) for i in range(12)]
    assert streams["index"].values[:, 0].tolist() == list(range(6, 18))
    assert streams["episode_index"].values.shape == (12, 1)
    assert set(streams["task_index"].values[:, 0].tolist()) == {0}
    assert "timestamp" not in robocache.open(dataset.path, video=False).specs
