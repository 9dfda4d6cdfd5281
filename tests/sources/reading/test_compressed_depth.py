"""ROS ``compressedDepth``: PNG and RVL, integer and float depth, through open, ingest, the loader and export."""

import struct
import tracemalloc

import adapter_logs as logs
import numpy as np
import pytest
import robocache
from adapter_logs import depth_header as header
from adapter_logs import rvl
from picture_cases import encoded

pytest.importorskip("mcap_ros2")
pytest.importorskip("PIL")
torch = pytest.importorskip("torch")

SIZE, FRAMES, TOPIC = (24, 40), 5, "/depth/compressedDepth"
A, B = 100.0 * 101.0, 1.0 - 100.0 * 101.0 / 10.0
"""Of the default settings of ROS: depth_quantization 100, depth_max 10."""


def codes_of(depth_m):
    """As ROS quantizes float depth: 0 where it is NaN."""
    return np.where(np.isnan(depth_m), 0, np.float32(A) / np.nan_to_num(depth_m, nan=1.0) + np.float32(B)).astype("u2")


def depth_of(codes):
    with np.errstate(divide="ignore"):
        return np.where(codes == 0, np.nan, np.float32(A) / (codes.astype(np.float32) - np.float32(B)))


def scenes(rng):
    """Millimeters with holes, jumps and a flat part."""
    depth = rng.integers(300, 6000, (FRAMES, *SIZE)).astype(np.uint16)
    depth[:, 4:9, 3:30] = 0
    depth[:, 12:, :20] = 1234
    depth[0, 0, :3] = 65535, 1, 65535
    return depth


def write_log(path, format, pictures):
    messages = []
    for i, data in enumerate(pictures):
        at = logs.START_NS + i * 10**8
        message = {"header": logs.stamp(at), "format": format, "data": data}
        messages.append((TOPIC, "sensor_msgs/msg/CompressedImage", message, at))
        messages.append(("/arm", "std_msgs/msg/Float64MultiArray", {"layout": {}, "data": [float(i)]}, at))
    logs.write_log(path, messages)
    return path


def case(name, rng):
    """format, pictures, what they are, and the codec of a cache that keeps them."""
    millimeters = scenes(rng)
    meters = (millimeters / 1000).astype(np.float32)
    meters[(meters == 0) | (meters > 9.9)] = np.nan
    codes = codes_of(meters)
    png16 = [header() + encoded(x, "PNG") for x in millimeters]
    return {
        "16UC1 png": ("16UC1; compressedDepth png", png16, millimeters, "png"),
        "16UC1 older": ("16UC1; compressedDepth", png16, millimeters, "png"),
        "16UC1 unnamed": ("16UC1", png16, millimeters, "png"),
        "16UC1 plain": ("16UC1; png compressed ", [x[12:] for x in png16], millimeters, "png"),
        "16UC1 rvl": ("16UC1; compressedDepth rvl", [header() + rvl(x) for x in millimeters], millimeters, "png"),
        "32FC1 png": (
            "32FC1; compressedDepth png", [header(A, B) + encoded(x, "PNG") for x in codes], depth_of(codes), "png"
        ),
        "32FC1 rvl": (
            "32FC1; compressedDepth rvl", [header(A, B) + rvl(x) for x in codes], depth_of(codes), None
        ),
    }[name]  # fmt: skip


CASES = ("16UC1 png", "16UC1 older", "16UC1 unnamed", "16UC1 plain", "16UC1 rvl", "32FC1 png", "32FC1 rvl")


@pytest.mark.parametrize("name", CASES)
def test_depth_has_its_values_and_unit_from_the_log_to_the_batch(tmp_path, rng, name):
    format, pictures, expected, codec = case(name, rng)
    log = write_log(tmp_path / "log.mcap", format, pictures)
    unit = "m" if name.startswith("32") else "mm"
    source = robocache.open(log, clock="log_time")
    spec = source.specs[TOPIC]
    assert (spec.kind, spec.shape, spec.dtype, spec.unit) == ("depth", SIZE, expected.dtype.name, unit)
    np.testing.assert_array_equal(source.episode(0).streams[TOPIC].values, expected)
    for images in ("keep", "jpeg", "raw"):
        cache = robocache.ingest(log, tmp_path / images, clock="log_time", images=images)
        assert (cache.specs[TOPIC].codec, cache.specs[TOPIC].unit) == (None if images == "raw" else codec, unit)
        np.testing.assert_array_equal(cache.episode(0).streams[TOPIC].values, expected)
        assert cache.verify() == []
        for tier in ("memory", "mmap"):
            windows = {"/arm": robocache.Window(), TOPIC: robocache.Window(past=0.1, rate_hz=10)}
            batch = robocache.Loader(cache, FRAMES, windows, shuffle=False, tier=tier).batch(0)
            assert batch[TOPIC].dtype == getattr(torch, expected.dtype.name)
            np.testing.assert_array_equal(batch[TOPIC][:, 1].numpy(), expected)
    kept = robocache.Cache(tmp_path / "keep")
    if "png" in format:  # the bytes of the PNG
        assert [*kept.episode(0).streams[TOPIC].pictures] == [x[x.index(b"\x89PNG") :] for x in pictures]
        assert not any(TOPIC in note for note in kept.notes)
    else:
        assert any(note.startswith(f"{TOPIC}: ") for note in kept.notes) == ("rvl" in format)


def test_float_depth_in_codes_can_be_normalized_resized_checked_and_exported(tmp_path, rng):
    format, pictures, expected, _ = case("32FC1 png", rng)
    log = write_log(tmp_path / "log.mcap", format, pictures)
    keep, raw = (robocache.ingest(log, tmp_path / x, clock="log_time", images=x) for x in ("keep", "raw"))
    assert keep.size_bytes < raw.size_bytes / 1.5
    assert keep.statistics[TOPIC]["max"] == pytest.approx([np.nanmax(expected)])
    small = robocache.ingest(keep, tmp_path / "small", image_size={TOPIC: (12, 20)})
    assert (small.specs[TOPIC].codec, small.specs[TOPIC].dtype) == (None, "float32")
    assert any("resized, so decoded" in note for note in small.notes)
    again = robocache.ingest(keep, tmp_path / "again")
    assert [*again.episode(0).streams[TOPIC].pictures] == [*keep.episode(0).streams[TOPIC].pictures]
    pytest.importorskip("pyarrow")
    robocache.export(keep, tmp_path / "out", fps=10)
    back = robocache.open(tmp_path / "out").episode(0).streams[TOPIC.strip("/").replace("/", ".")]
    np.testing.assert_array_equal(back.values, expected)


def damaged(kind, rng):
    _, (png, *_), _, _ = case("16UC1 png", rng)
    _, (packed, *_), _, _ = case("16UC1 rvl", rng)
    return {
        "no picture": ("16UC1; compressedDepth png", header()),
        "no header": ("16UC1; compressedDepth png", png[12:]),
        "wrong kind": ("16UC1; compressedDepth png", header(kind=7) + png[12:]),
        "truncated": ("16UC1; compressedDepth png", png[:-30]),
        "8 bits": ("16UC1; compressedDepth png", header() + encoded(np.zeros(SIZE, np.uint8), "PNG")),
        "color": ("32FC1; compressedDepth png", header(A, B) + encoded(np.zeros((*SIZE, 3), np.uint8), "PNG")),
        "unknown depth": ("8UC1; compressedDepth png", png),
        "unknown way": ("16UC1; compressedDepth zstd", header() + b"\x28\xb5\x2f\xfd" + bytes(40)),
        "nan": ("32FC1; compressedDepth png", header(float("nan"), B) + png[12:]),
        "no scale": ("32FC1; compressedDepth png", header(0.0, B) + png[12:]),
        "rvl bomb": ("16UC1; compressedDepth rvl", header() + struct.pack("<II", 65535, 65535) + bytes(64)),
        "rvl empty": ("16UC1; compressedDepth rvl", header() + struct.pack("<II", 0, 5) + bytes(64)),
        "rvl short": ("16UC1; compressedDepth rvl", packed[: len(packed) // 2]),
        "rvl without size": ("16UC1; compressedDepth rvl", header() + b"\x10\0\0"),
        "rvl of ones": ("16UC1; compressedDepth rvl", packed[:20] + b"\xff" * 400),
        "rvl of zeros": ("16UC1; compressedDepth rvl", packed[:20] + bytes(400)),
    }[kind]


RULES = {
    "no picture": "must have 12 bytes before the picture, got 12 in all",
    "no header": "the header of compressedDepth must have kind 0, got 1196314761",
    "wrong kind": "must have kind 0, got 7",
    "truncated": "(must be whole|cannot be decoded|truncated)",
    "8 bits": "must be gray with 16 bits, got uint8",
    "color": "must be gray with 16 bits, got uint8",
    "unknown depth": "must name one of 16UC1, mono16, 32FC1 in its format, got '8UC1; compressedDepth png'",
    "unknown way": "must be png or rvl, got '16UC1; compressedDepth zstd'",
    "nan": "two finite parameters, the first not 0, got nan",
    "no scale": "two finite parameters, the first not 0, got 0.0",
    "rvl bomb": "RVL must have 1 to 65536 pixels a byte, got 65535 x 65535",
    "rvl empty": "got 5 x 0",
    "rvl short": "RVL must have 960 pixels, got a damaged run at pixel",
    "rvl without size": "RVL must have a width and a height, got 3 bytes",
    "rvl of ones": "RVL must have (numbers of up to 32 bits|960 pixels)",
    "rvl of zeros": "RVL must have 960 pixels, got a damaged run at pixel 0",
}


@pytest.mark.parametrize("images", ["keep", "raw"])
@pytest.mark.parametrize("kind", RULES)
def test_damaged_depth_is_refused_with_topic_and_rule(tmp_path, rng, kind, images):
    format, data = damaged(kind, rng)
    log = write_log(tmp_path / "log.mcap", format, [data])
    with pytest.raises(robocache.FormatError, match=f"(?s){TOPIC}.*{RULES[kind]}"):
        robocache.ingest(log, tmp_path / "cache", clock="log_time", images=images)
    assert not (tmp_path / "cache" / "manifest.json").exists()


def test_every_flipped_byte_of_rvl_gives_depth_or_a_format_error(tmp_path, rng):
    from robocache.sources.mcap.compressed_depth import decode_rvl
    from robocache.sources.reading.budget import Budget

    packed = rvl(scenes(rng)[0])
    refused = 0
    for i in range(8, len(packed), 3):
        changed = packed[:i] + bytes([packed[i] ^ (1 << int(rng.integers(8)))]) + packed[i + 1 :]
        try:
            assert decode_rvl(changed, "x", Budget()).shape == SIZE
        except robocache.FormatError:
            refused += 1
    assert refused > 0


@pytest.mark.parametrize("format", ["16UC1; compressedDepth rvl", "32FC1; compressedDepth rvl"])
def test_rvl_of_many_pixels_takes_the_memory_of_its_pixels(tmp_path, format):
    codes = np.zeros((4000, 4000), np.uint16)
    codes[7, 7:9], codes[2000:2004] = (5, 700), np.arange(4000) % 600 + 1
    log = write_log(tmp_path / "log.mcap", format, [header(A, B) + rvl(codes) + bytes(100_000)])
    source = robocache.open(log, clock="log_time", encoded=True)
    tracemalloc.start()
    values = source.episode(0).streams[TOPIC].values
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    np.testing.assert_array_equal(values[0], codes if format.startswith("16") else depth_of(codes))
    assert peak < (values.itemsize + 6) * codes.size


def test_other_parameters_in_a_later_message_are_refused(tmp_path, rng):
    format, pictures, _, _ = case("32FC1 png", rng)
    pictures[3] = header(A, B - 1) + pictures[3][12:]
    log = write_log(tmp_path / "log.mcap", format, pictures)
    with pytest.raises(robocache.FormatError, match=r'message 3: .*parameters of the first message.*images="raw"'):
        robocache.ingest(log, tmp_path / "cache", clock="log_time")
    assert robocache.ingest(log, tmp_path / "raw", clock="log_time", images="raw").specs[TOPIC].dtype == "float32"


def test_codes_without_their_meaning_are_no_spec():
    with pytest.raises(ValueError, match="codec 'png' must be for uint8 images"):
        robocache.StreamSpec("d", "float32", (4, 4), "depth", codec="png")
    meta = {"codes": {"inverse_depth": [1.0, float("inf")]}}
    with pytest.raises(ValueError, match=r"meta\['codes'\] must be .* with two finite numbers, got"):
        robocache.StreamSpec("d", "float32", (4, 4), "depth", codec="png", meta=meta)
