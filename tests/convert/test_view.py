"""``robocache view``: what a saved recording holds is what the episode holds, at its times to the nanosecond."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import robocache
from cache_cases import SPECS, MadeSource
from export_cases import listed
from robocache.cache.episode import Episode, EpisodeStream, StreamSpec
from robocache.cli import main

pytest.importorskip("rerun")
chunks_of = pytest.importorskip("rerun.chunk", reason="this rerun-sdk cannot read recordings")


def read(path):
    """{entity: {column: list}} of the rows in a recording, and of what is there for all times."""
    rows, static = {}, {}
    for chunk in chunks_of.RrdReader(path).stream().to_chunks():
        table = chunk.to_record_batch()
        into = (static if chunk.is_static else rows).setdefault(chunk.entity_path.strip("/"), {})
        for name in table.schema.names:
            if "RowId" not in name:
                column = table.column(name)
                column = column.cast("int64") if name in ("time", "unix_time") else column
                into.setdefault(name, []).extend(column.to_pylist())
    return rows, static


def test_every_stream_is_there_with_its_rows_and_times(tmp_path):
    source = MadeSource(SPECS)
    assert robocache.view(source, episodes=[1, 3], save=tmp_path / "x.rrd") == [1, 3]
    rows, static = read(tmp_path / "x.rrd")
    for index in (1, 3):
        assert static[f"episode_{index}/task"]["TextDocument:text"] == [["task 1"]]
        for name, stream in source.episode(index).streams.items():
            if not len(stream):
                continue
            found = rows[f"episode_{index}/streams/{name.strip('/')}"]
            assert found["time"] == stream.times.tolist()
            if stream.spec.kind == "vector":
                assert found["Scalars:scalars"] == stream.values.reshape(len(stream), -1).astype(float).tolist()
            elif stream.spec.kind == "points":
                clouds = [
                    stream.values[a:b, :3].tolist() for a, b in zip(stream.offsets, stream.offsets[1:], strict=False)
                ]
                assert found["Points3D:positions"] == clouds
            else:
                kind = "Image" if stream.spec.kind == "image" else "DepthImage"
                assert [bytes(x[0]) for x in found[f"{kind}:buffer"]] == [row.tobytes() for row in stream.values]
                form = found[f"{kind}:format"][0][0]
                assert (form["height"], form["width"]) == stream.spec.shape[:2]
    assert static["episode_1/streams/arm"]["SeriesLines:names"] == [list("abcdefg")]
    assert static["episode_1/streams/depth"]["DepthImage:meter"] == [[1000.0]]


def two_rates(begin):
    specs = [StreamSpec("fast", "float32", (2,), rate_hz=100.0), StreamSpec("slow", "int64", (1,), rate_hz=20.0)]
    rows = {
        "fast": EpisodeStream(
            specs[0], np.arange(40, dtype=np.float32).reshape(20, 2), begin + np.arange(20) * 10**7 + 3
        ),
        "slow": EpisodeStream(specs[1], np.arange(5)[:, None], begin + np.arange(5) * 5 * 10**7),
    }
    return listed(Episode(0, rows, None))


@pytest.mark.parametrize("fps", [None, 40])
def test_the_aligned_streams_are_what_align_says_and_nan_where_that_is_not_valid(fps, tmp_path):
    source = two_rates(0)
    robocache.view(source, save=tmp_path / "x.rrd", fps=fps, methods={"fast": "nearest"})
    rows, _ = read(tmp_path / "x.rrd")
    step = 10**9 // (fps or 20)
    grid = np.arange(0, 2 * 10**8 + 1, step)
    for name, method in (("fast", "nearest"), ("slow", None)):
        stream = source.episodes[0].streams[name]
        aligned = robocache.align(robocache.Stream(stream.values, stream.times, method=method), grid[None])
        expected = aligned.values[0].astype(float)
        expected[~aligned.valid[0]] = np.nan
        found = rows[f"episode_0/aligned/{name}"]
        assert found["time"] == grid.tolist()
        np.testing.assert_array_equal(found["Scalars:scalars"], expected)
    assert np.isnan(rows["episode_0/aligned/fast"]["Scalars:scalars"][0]).all()  # 3 ns before its first row


def test_dates_are_dates_to_the_nanosecond(tmp_path):
    begin = 1_700_000_000_123_456_789
    robocache.view(two_rates(begin), save=tmp_path / "x.rrd")
    rows, _ = read(tmp_path / "x.rrd")
    assert rows["episode_0/streams/slow"]["unix_time"] == (begin + np.arange(5) * 5 * 10**7).tolist()


def test_rows_too_long_for_series_are_tensors(tmp_path):
    spec = StreamSpec("tactile", "float32", (70, 70))
    rows = EpisodeStream(spec, np.arange(2 * 4900, dtype=np.float32).reshape(2, 70, 70), np.array([5, 9]))
    robocache.view(listed(Episode(0, {"tactile": rows})), save=tmp_path / "x.rrd")
    found = read(tmp_path / "x.rrd")[0]["episode_0/streams/tactile"]
    assert found["time"] == [5, 9]
    assert "Tensor:data" in found


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"fps": 0}, ValueError, "view: fps must be a rate in Hz above 0, got 0"),
        ({"episodes": [7]}, ValueError, "view: episodes must be from 0 to 4, got 7"),
        ({"streams": ["leg"]}, ValueError, "view: the source has no stream 'leg'"),
        ({"methods": {"leg": "linear"}}, ValueError, "view: methods must name streams among .*, got 'leg'"),
    ],
)
def test_bad_calls_are_refused_and_leave_no_file(options, error, message, tmp_path):
    with pytest.raises(error, match=message):
        robocache.view(MadeSource(), save=tmp_path / "x.rrd", **options)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_there_is_not_overwritten(tmp_path):
    (tmp_path / "x.rrd").write_text("mine")
    with pytest.raises(FileExistsError, match=r"view: save must not exist yet, got .*x\.rrd"):
        robocache.view(MadeSource(), save=tmp_path / "x.rrd")
    assert (tmp_path / "x.rrd").read_text() == "mine"


def test_a_file_that_cannot_be_made_is_named(tmp_path, capsys):
    robocache.ingest(MadeSource(), tmp_path / "cache")
    (tmp_path / "file").touch()
    for where, code in (("nowhere", 2), ("file", 1)):
        assert main.main(["view", str(tmp_path / "cache"), "--save", str(tmp_path / where / "x.rrd")]) == code
        assert "robocache view: --save cannot be written: No" in capsys.readouterr().err
    strange = os.fsdecode(os.fsencode(tmp_path) + b"/x\xff")
    with pytest.raises(ValueError, match="view: save must be UTF-8, got "):
        robocache.view(MadeSource(), save=strange)
    assert {path.name for path in tmp_path.iterdir()} == {"cache", "file"}


@pytest.mark.parametrize("grows", [0, 3])
def test_a_writer_that_stalled_is_waited_for_while_the_file_grows_and_the_file_removed(grows, tmp_path, monkeypatch):
    """On a full disk Rerun's flush waits for ever, or says that its writer has ended."""
    import rerun

    calls = []

    def flush(self, *, timeout_sec=1e38):
        if timeout_sec:  # Rerun itself flushes with 0, when a recording is deleted
            calls.append(timeout_sec)
            with (tmp_path / "x.rrd").open("ab") as file:
                file.write(b"x" * (len(calls) <= grows))
            raise RuntimeError("Flush timed out")

    forgotten = []
    monkeypatch.setattr(rerun.RecordingStream, "flush", flush)
    monkeypatch.setattr("robocache.convert.view.Shown.forget", lambda self: forgotten.append(True))
    with pytest.raises(
        OSError, match=r"view: .*x\.rrd: the recording is incomplete, the disk may be full: Flush timed"
    ):
        robocache.view(two_rates(0), save=tmp_path / "x.rrd")
    assert len(calls) > grows  # the true writer, behind it, may make the file grow as well
    assert forgotten == [True]
    assert list(tmp_path.iterdir()) == []


def test_a_stream_too_slow_for_frames_is_shown_at_its_own_times(tmp_path):
    spec, ends = StreamSpec("a", "float64", (1,)), np.array([0, 2**62])
    robocache.view(listed(Episode(0, {"a": EpisodeStream(spec, np.ones((2, 1)), ends)})), save=tmp_path / "x.rrd")
    assert list(read(tmp_path / "x.rrd")[0]) == ["episode_0/streams/a"]


def test_without_a_file_the_viewer_is_started_and_gets_it_all(tmp_path, monkeypatch):
    import rerun

    started = []
    monkeypatch.setattr(
        rerun.RecordingStream, "spawn", lambda self: (started.append(self), self.save(tmp_path / "x.rrd"))
    )
    assert robocache.view(two_rates(0)) == [0]
    assert len(started) == 1
    assert len(read(tmp_path / "x.rrd")[0]["episode_0/streams/fast"]["time"]) == 20


def test_the_command_saves_a_recording_of_a_cache(tmp_path, capsys):
    robocache.ingest(MadeSource(), tmp_path / "cache")
    assert (
        main.main(["view", str(tmp_path / "cache"), "--episodes", "0,3", "--save", str(tmp_path / "x.rrd"), "--json"])
        == 0
    )
    assert json.loads(capsys.readouterr().out) == {"episodes": [0, 3], "to": str(tmp_path / "x.rrd")}
    assert {path.split("/")[0] for path in read(tmp_path / "x.rrd")[0]} == {"episode_0", "episode_3"}
    assert main.main(["view", str(tmp_path / "cache"), "--save", str(tmp_path / "x.rrd")]) == 2
    assert "save must not exist yet" in capsys.readouterr().err


def test_without_rerun_the_message_says_what_to_install(tmp_path):
    robocache.ingest(MadeSource(), tmp_path / "cache")
    code = f"""
import sys
sys.modules["rerun"] = None
from robocache.cli import main
sys.exit(main.main(["view", {str(tmp_path / "cache")!r}, "--save", {str(tmp_path / "x.rrd")!r}]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    message = "robocache view: the Rerun viewer needs the package rerun-sdk: pip install 'robocache[rerun]'\n"
    assert done.stderr == message
    assert not (tmp_path / "x.rrd").exists()


@pytest.mark.parametrize("codec", ["h264", "hevc", "av1", "vp9"])
def test_packets_of_a_video_are_sent_as_they_are_and_decode_to_its_frames(tmp_path, rng, codec):
    av = pytest.importorskip("av")
    video_cases = pytest.importorskip("video_cases")
    options = {"h264": {"bf": "0"}, "hevc": {"x265-params": "log-level=none:ctu=16:bframes=0"}}.get(codec, {})
    video = video_cases.video_of(video_cases.mp4(video_cases.film(rng, 12), codec, **options), codec)
    stream = EpisodeStream(video_cases.spec_of(codec), video, np.arange(12) * 100_000_000)
    robocache.view(listed(Episode(0, {"film": stream}, None)), save=tmp_path / "x.rrd")
    rows, static = read(tmp_path / "x.rrd")
    found = rows["episode_0/streams/film"]
    assert found["time"] == stream.times.tolist()
    assert len(static["episode_0/streams/film"]["VideoStream:codec"]) == 1
    samples = [bytes(sample[0]) for sample in found["VideoStream:sample"]]
    assert video.nbytes <= sum(map(len, samples)) < video.nbytes + 1000
    # Without extradata, as the viewer has none.
    decoder = av.CodecContext.create("libdav1d" if codec == "av1" else codec, "r")
    frames = [f for packet in [*map(av.Packet, samples), None] for f in decoder.decode(packet)]
    np.testing.assert_array_equal(np.stack([f.to_ndarray(format="rgb24") for f in frames]), stream.values)


@pytest.mark.parametrize("codec", ["h264", "mpeg4"])
def test_a_video_that_rerun_cannot_show_is_sent_as_pixels(tmp_path, rng, codec):
    pytest.importorskip("av")
    video_cases = pytest.importorskip("video_cases")
    video = video_cases.video_of(video_cases.mp4(video_cases.film(rng, 12), codec, bf="2"), codec)  # B-frames
    stream = EpisodeStream(video_cases.spec_of(codec), video, np.arange(12) * 100_000_000)
    robocache.view(listed(Episode(0, {"film": stream}, None)), save=tmp_path / "x.rrd")
    found = read(tmp_path / "x.rrd")[0]["episode_0/streams/film"]
    assert [bytes(x[0]) for x in found["Image:buffer"]] == [row.tobytes() for row in stream.values]
