"""Pictures made to harm: scans, texts and sizes are checked before a picture is decoded."""

import io
import struct
import zlib

import numpy as np
import pytest
from robocache import FormatError
from robocache.ops.decode.other_formats import JPEG_MARKER
from robocache.sources.reading import images
from robocache.sources.reading.budget import Budget

PIL = pytest.importorskip("PIL.Image", reason="pictures are decoded with Pillow")


def encoded(pixels, kind, **options):
    buffer = io.BytesIO()
    PIL.fromarray(pixels).save(buffer, kind, **options)
    return buffer.getvalue()


def scans_of(data):
    """The JPEG before its first scan, and its scans with the tables before each."""
    first, at, parts = None, 2, []
    while data[at + 1] != 0xD9:
        begin = at
        while data[at + 1] != 0xDA:
            at += 2 + struct.unpack_from(">H", data, at + 2)[0]
        first = first or at
        found = JPEG_MARKER.search(data, at + 2)
        parts.append(data[max(begin, first) : found.start()])
        at = found.start()
    return data[:first], parts


def progressive_bomb(size, scans):
    head, parts = scans_of(encoded(np.zeros((size, size, 3), np.uint8), "JPEG", progressive=True))
    return head + b"".join(parts) + parts[-1] * (scans - len(parts)) + b"\xff\xd9"


@pytest.mark.parametrize(("size", "scans"), [(4096, 100), (2048, 1000), (64, 200_000)])
def test_a_jpeg_with_many_scans_over_a_large_picture_is_refused(size, scans):
    data = progressive_bomb(size, scans)
    for call in (
        lambda: images.picture_size(data, "rlds", "x", Budget()),
        lambda: images.decode_picture(data, (size, size, 3), "rlds", "x", Budget()),
    ):
        with pytest.raises(FormatError, match=r"x: a JPEG of .* scans, rejected as a bomb"):
            call()


@pytest.mark.parametrize(
    "options", [{}, {"progressive": True}, {"progressive": True, "quality": 100}, {"restart_marker_rows": 1}]
)
def test_jpegs_that_cameras_write_are_read_as_pillow_reads_them(rng, options):
    pixels = rng.integers(0, 256, (96, 128, 3), dtype=np.uint8)
    data = encoded(pixels, "JPEG", exif=b"Exif\0\0" + bytes(100), **options)
    found = images.decode_picture(data, (96, 128, 3), "rlds", "x", Budget())
    np.testing.assert_array_equal(found, np.asarray(PIL.open(io.BytesIO(data))))


def part(name, content):
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


BOMB = zlib.compress(bytes(1 << 20))
PARTS = {
    "text": part(b"zTXt", b"a\0\0" + BOMB),
    "international text": part(b"iTXt", b"a\0\1\0\0\0" + BOMB),
    "profile": part(b"iCCP", b"a\0\0" + BOMB),
    "animation": part(b"acTL", struct.pack(">II", 1 << 30, 0)),
}


@pytest.mark.parametrize("extra", PARTS.values(), ids=PARTS)
@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "P", "I;16"])
def test_texts_and_profiles_of_a_png_are_not_unpacked(rng, extra, mode):
    pixels = rng.integers(0, 256, (16, 24, 3), dtype=np.uint8)
    image = PIL.fromarray(pixels[..., 0].astype(np.uint16)) if mode == "I;16" else PIL.fromarray(pixels).convert(mode)
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    plain = buffer.getvalue()
    data = plain[:33] + extra * 50 + plain[33:]  # behind the header
    assert images.checked_picture(data, "x", Budget()) == plain
    assert images.checked_picture(plain, "x", Budget()) is plain
    shape, _ = images.picture_size(data, "rlds", "x", Budget())
    found = images.decode_picture(data, shape, "rlds", "x", Budget())
    np.testing.assert_array_equal(found, images.decode_picture(plain, shape, "rlds", "x", Budget()))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xd8",
        b"\xff\xd8\xff\xc0\0\x11\x08\xff\xff\xff\xff\x03" + bytes(9),
        b"\xff\xd8" + b"\xff\xe0\0\0" * 10,
        b"\xff\xd8\xff\xe0\xff",
        b"\x89PNG\r\n\x1a\n",
        b"\x89PNG\r\n\x1a\n" + part(b"IHDR", struct.pack(">IIBBBBB", 2**31 - 1, 2**31 - 1, 8, 2, 0, 0, 0)),
        b"GIF89a" + bytes(100),
    ],
)
def test_what_is_no_whole_picture_is_refused(data):
    with pytest.raises(FormatError, match="x"):
        images.picture_size(data, "rlds", "x", Budget())


def test_a_picture_that_was_changed_anywhere_is_refused_or_decoded(rng):
    """Whatever the bytes are, nothing but FormatError leaves."""
    pixels = rng.integers(0, 256, (16, 24, 3), dtype=np.uint8)
    for kind, options in (("PNG", {}), ("JPEG", {}), ("JPEG", {"progressive": True})):
        data = encoded(pixels, kind, **options)
        for _ in range(200):
            changed = bytearray(data)
            for at in rng.integers(0, len(data), 3):
                changed[at] = rng.integers(0, 256)
            try:
                shape, dtype = images.picture_size(bytes(changed), "rlds", "x", Budget(max_bytes=1 << 26))
                found = images.decode_picture(bytes(changed), shape, "rlds", "x", Budget(max_bytes=1 << 26))
                assert found.shape == shape
                assert found.dtype == dtype
            except FormatError:
                pass


@pytest.mark.parametrize("options", [{"subsampling": 0}, {"subsampling": 2, "quality": 40}, {"optimize": True}])
@pytest.mark.parametrize("shape", [(7, 9), (7, 9, 3)], ids=["gray", "color"])
def test_the_size_of_a_baseline_jpeg_is_read_as_pillow_reads_it(shape, options, monkeypatch):
    data = encoded(np.arange(np.prod(shape), dtype=np.uint8).reshape(shape), "JPEG", **options)
    padded = data[:2] + b"\xff\xff" + data[2:]  # fill bytes before a marker
    monkeypatch.setattr(images, "need", None)  # without Pillow
    for picture in (data, padded):
        size = images.picture_size(picture, "mcap", "here", Budget())
        assert size == ((7, 9, shape[2] if len(shape) == 3 else 1), "uint8")


@pytest.mark.parametrize("junk", [b"\0\0", b"\x12\x34\x56\x78", b"\xff\0", b"\xff\xd7\xff\xd3", b"\1\xff\xff"])
@pytest.mark.parametrize("options", [{}, {"progressive": True}])
def test_bytes_between_the_segments_of_a_jpeg_are_skipped_as_pillow_skips_them(rng, junk, options):
    pixels = rng.integers(0, 256, (24, 32, 3), dtype=np.uint8)
    plain = encoded(pixels, "JPEG", **options)
    data = plain[:20] + junk + plain[20:]  # behind APP0
    expected = np.asarray(PIL.open(io.BytesIO(data)))
    np.testing.assert_array_equal(expected, np.asarray(PIL.open(io.BytesIO(plain))))
    assert images.picture_size(data, "mcap", "here", Budget()) == ((24, 32, 3), "uint8")
    np.testing.assert_array_equal(images.decode_picture(data, (24, 32, 3), "mcap", "here", Budget()), expected)


KINDS = {"gray": (6, 8, 1), "color": (6, 8, 3), "alpha": (6, 8, 4), "depth": (6, 8)}


@pytest.mark.parametrize("stream", KINDS)
@pytest.mark.parametrize("picture", KINDS)
def test_a_picture_is_not_reduced_to_what_its_stream_has(picture, stream):
    """Depth became white, color gray, and alpha was dropped."""
    shape, order = KINDS[picture], ["gray", "color", "alpha"]
    pixels = np.full(shape, 200, np.uint16 if picture == "depth" else np.uint8)
    data = encoded(pixels.reshape(6, 8) if picture == "gray" else pixels, "PNG")
    if picture == stream or (picture in order and stream in order[order.index(picture) :]):
        decoded = images.decode_picture(data, KINDS[stream], "mcap", "here", Budget())
        assert decoded.flat[0] == 200
        return
    with pytest.raises(FormatError, match=r"here: the image has .* bits, but the stream has .* bits"):
        images.decode_picture(data, KINDS[stream], "mcap", "here", Budget())


@pytest.mark.parametrize("options", [{}, {"progressive": True}])
def test_a_jpeg_of_12_bits_is_named_with_the_fix(options):
    data = bytearray(encoded(np.zeros((8, 8, 3), np.uint8), "JPEG", **options))
    data[data.index(b"\xff\xc2" if options else b"\xff\xc0") + 4] = 12
    with pytest.raises(FormatError, match=r"here: the picture is a JPEG of 12 bits per sample, .* convert it to 8"):
        images.picture_size(bytes(data), "mcap", "here", Budget())


def test_a_baseline_jpeg_is_refused_by_the_size_that_its_header_declares():
    data = bytearray(encoded(np.zeros((8, 8, 3), np.uint8), "JPEG"))
    at = data.index(b"\xff\xc0")
    data[at + 5 : at + 9] = struct.pack(">HH", 65_535, 65_535)
    with pytest.raises(FormatError):
        images.picture_size(bytes(data), "mcap", "here", Budget(max_bytes=1 << 20))
