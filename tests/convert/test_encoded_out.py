"""Encoded pictures leave a cache as the bytes they were: in LeRobot datasets and in Rerun recordings."""

import io

import numpy as np
import pytest
import robocache
from picture_cases import CAMERAS, CameraSource
from PIL import Image


@pytest.fixture
def cache(tmp_path):
    source = CameraSource({name: CAMERAS[name] for name in ("front", "flat", "depth")})
    writer = robocache.CacheWriter(tmp_path / "cache", source.specs)
    for episode in source:
        writer.add(episode)
    return writer.commit()


def test_export_writes_the_bytes_as_they_are(cache, tmp_path):
    pytest.importorskip("pyarrow")
    from pyarrow import parquet

    robocache.export(cache, tmp_path / "out", fps=10)
    table = parquet.read_table(tmp_path / "out" / "data")
    for name in ("front", "flat", "depth"):
        cells = [cell["bytes"] for cell in table.column(name).to_pylist()]
        given = [picture for episode in cache for picture in episode.streams[name].pictures]
        assert set(cells) <= set(given)
        assert cells[0] == given[0]
    back = robocache.open(tmp_path / "out")
    rows = back.episode(1).streams["front"].values
    np.testing.assert_array_equal(rows, cache.episode(1).streams["front"].values[: len(rows)])


@pytest.mark.parametrize("mode", ["P", "LA", "1"])
def test_export_writes_png_without_plain_pixels_anew(tmp_path, mode):
    """LeRobot takes the numbers of a palette, and gray with alpha, for channels."""
    pytest.importorskip("pyarrow")
    from pyarrow import parquet

    file = io.BytesIO()
    Image.linear_gradient("L").resize((6, 4)).convert(mode).save(file, "PNG")
    spec = robocache.StreamSpec("cam", "uint8", (4, 6, 3), "image", codec="png")
    writer = robocache.CacheWriter(tmp_path / "cache", {"cam": spec})
    stream = robocache.EpisodeStream(spec, [file.getvalue()] * 3, np.arange(3) * 10**8)
    writer.add(robocache.Episode(0, {"cam": stream}))
    robocache.export(writer.commit(), tmp_path / "out", fps=10)
    for cell in parquet.read_table(tmp_path / "out" / "data").column("cam").to_pylist():
        written = Image.open(io.BytesIO(cell["bytes"]))
        assert written.mode == "RGB"
        np.testing.assert_array_equal(np.asarray(written), stream.values[0])


def test_view_sends_the_bytes_as_they_are(cache, tmp_path):
    pytest.importorskip("rerun")
    chunks_of = pytest.importorskip("rerun.chunk", reason="this rerun-sdk cannot read recordings")
    robocache.view(cache, save=tmp_path / "x.rrd")
    found = {}
    for chunk in chunks_of.RrdReader(tmp_path / "x.rrd").stream().to_chunks():
        table = chunk.to_record_batch()
        for name in table.schema.names:
            if "blob" in name or "media_type" in name:
                found[chunk.entity_path.strip("/"), name] = table.column(name).to_pylist()
    streams = cache.episode(0).streams
    for stream, kind in (("front", "EncodedImage"), ("flat", "EncodedImage"), ("depth", "EncodedDepthImage")):
        blobs = found[f"episode_0/streams/{stream}", f"{kind}:blob"]
        assert [bytes(blob[0]) for blob in blobs] == [*streams[stream].pictures]
    assert found["episode_0/streams/front", "EncodedImage:media_type"][0] == ["image/jpeg"]
