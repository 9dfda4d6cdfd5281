"""PNG: every filter, kind and size as Pillow reads it; damaged files and bombs are refused by name."""

import io
import struct
import zlib

import numpy as np
import pytest
import robocache
from robocache import _core

image = pytest.importorskip("PIL.Image")


def part(name, content):
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def filtered(rows, bpp, filters):
    """Rows (height, bytes) with these filters, by the definition of PNG, one byte after the other."""
    out, above = b"", np.zeros(rows.shape[1], int)
    for row, kind in zip(rows.astype(int), filters, strict=True):
        left = np.concatenate([np.zeros(bpp, int), row[:-bpp]])
        corner = np.concatenate([np.zeros(bpp, int), above[:-bpp]])
        guess = left + above - corner
        near = np.stack([abs(guess - left), abs(guess - above), abs(guess - corner)]).argmin(0)
        paeth = np.choose(near, [left, above, corner])
        difference = row - np.stack([0 * row, left, above, (left + above) // 2, paeth])[kind]
        out += bytes([kind]) + (difference % 256).astype(np.uint8).tobytes()
        above = row
    return out


def png(pixels, filters=None, cut=3, interlace=0):
    """A PNG with the filter of each row, its data in several parts."""
    height, width, *channels = pixels.shape
    bits = 8 * pixels.dtype.itemsize
    color = {(): 0, (3,): 2, (4,): 6}[tuple(channels)]
    rows = pixels.astype(pixels.dtype.newbyteorder(">")).reshape(height, -1).view(np.uint8)
    bpp = rows.shape[1] // width
    filters = [i % 5 for i in range(height)] if filters is None else filters
    packed = zlib.compress(filtered(rows, bpp, filters))
    step = -(-len(packed) // cut)
    parts = [part(b"IDAT", packed[i : i + step]) for i in range(0, len(packed), step)]
    head = part(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, color, 0, 0, interlace))
    return b"\x89PNG\r\n\x1a\n" + head + part(b"tEXt", b"a\0b") + b"".join(parts) + part(b"IEND", b"")


def pixels_of(rng, size, kind):
    shape, dtype = {"gray": ((), "u1"), "rgb": ((3,), "u1"), "rgba": ((4,), "u1"), "depth": ((), "u2")}[kind]
    smooth = np.add.outer(np.arange(size[0]) * 3, np.arange(size[1]) * 5)
    noise = rng.integers(0, 40, (*size, *shape))
    return (smooth.reshape(*size, *[1] * len(shape)) + noise).astype(dtype)


@pytest.mark.parametrize("kind", ["gray", "rgb", "rgba", "depth"])
@pytest.mark.parametrize("size", [(1, 1), (1, 9), (7, 1), (5, 3), (40, 33)])
def test_every_filter_gives_the_pixels_of_pillow(rng, kind, size):
    pixels = pixels_of(rng, size, kind)
    for filters in (None, *([i] * size[0] for i in range(5))):
        data = png(pixels, filters)
        with image.open(io.BytesIO(data)) as opened:
            np.testing.assert_array_equal(np.asarray(opened), pixels)
        if kind == "depth":
            found = robocache.decode_images([data], dtype="uint16")[0, :, :, 0]
        else:
            found = robocache.decode_images([data], channels=1 if kind == "gray" else 3)[0]
        expected = pixels[:, :, :3] if kind == "rgba" else pixels
        np.testing.assert_array_equal(found.reshape(expected.shape), expected)


@pytest.mark.parametrize("mode", ["P", "LA", "1", "I;16"])
def test_other_kinds_are_those_of_pillow(rng, mode):
    made = image.fromarray(pixels_of(rng, (12, 10), "depth" if mode == "I;16" else "gray"))
    file = io.BytesIO()
    (made if mode == "I;16" else made.convert(mode)).save(file, "PNG")
    if mode == "I;16":
        found = robocache.decode_images([file.getvalue()], dtype="uint16")[0, :, :, 0]
        np.testing.assert_array_equal(found, np.asarray(made))
    else:
        found = robocache.decode_images([file.getvalue()])[0]
        np.testing.assert_array_equal(found, np.asarray(image.open(file).convert("RGB")))


def test_threads_give_the_same_pixels(rng):
    pictures = [png(pixels_of(rng, (30, 20), "rgb")) for _ in range(9)]
    before = robocache.num_threads()
    try:
        results = []
        for count in (1, 4):
            robocache.set_num_threads(count)
            results.append(robocache.decode_images(pictures))
    finally:
        robocache.set_num_threads(before)
    np.testing.assert_array_equal(*results)


def bomb(width, height, content):
    head = part(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + part(b"IDAT", content) + part(b"IEND", b"")


BAD = {
    "truncated": (lambda data: data[:-20], "bytes without an end"),
    "flipped": (lambda data: data[:90] + bytes([data[90] ^ 4]) + data[91:], "a wrong checksum at byte"),
    "filter": (lambda data: bomb(2, 1, zlib.compress(b"\x05" + bytes(6))), "row 0 must have a filter of 0 to 4, got 5"),
    "no pixels": (lambda data: bomb(4, 4, b""), "got 0 bytes of 52"),
    "few pixels": (lambda data: bomb(4, 4, zlib.compress(bytes(20))), "got 20 bytes of 52"),
    "not zlib": (lambda data: bomb(4, 4, b"\x99" * 60), "incorrect header check"),
    "declared": (lambda data: bomb(65535, 65535, zlib.compress(bytes(9))), r"at most 100000000 pixels \(max_pixels\)"),
    "empty": (lambda data: bomb(0, 5, zlib.compress(bytes(9))), "pixels"),
    "thin": (lambda data: bomb(10000, 9999, zlib.compress(bytes(9))), "bytes for 10000 x 9999"),
}


@pytest.mark.parametrize("interlace", [0, 1])
@pytest.mark.parametrize("channels", [3, 4])
@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
def test_color_of_16_bits_is_refused_because_pillow_drops_the_lower_ones(rng, channels, dtype, interlace):
    pixels = rng.integers(0, 65536, (1, 1, channels)).astype(np.uint16)
    message = r"decode_images: pictures\[0\] must have 8 bits per channel, got a PNG of 16 bits in color"
    with pytest.raises(robocache.FormatError, match=message):
        robocache.decode_images([png(pixels, cut=1, interlace=interlace)], dtype=dtype)


@pytest.mark.parametrize("kind", BAD)
def test_damaged_pictures_are_refused_by_number_and_rule(rng, kind):
    good = png(pixels_of(rng, (30, 20), "rgb"))
    change, message = BAD[kind]
    with pytest.raises(robocache.FormatError, match=rf"decode_images: pictures\[1\] .*{message}"):
        robocache.decode_images([good, change(good)])


@pytest.mark.parametrize("mode", ["P", "LA", "1"])
def test_flipped_bits_are_found_in_pictures_that_pillow_decodes(rng, mode):
    """Pillow does not compare the checksums of pixels, and zlib's at the end is not reached."""
    file = io.BytesIO()
    image.fromarray(pixels_of(rng, (30, 20), "rgb")).convert(mode).save(file, "PNG", compress_level=0)
    good = file.getvalue()
    at = good.index(b"IDAT") + 4
    for i in range(at, int.from_bytes(good[at - 8 : at - 4], "big") + at):
        bad = good[:i] + bytes([good[i] ^ 4]) + good[i + 1 :]
        with pytest.raises(robocache.FormatError, match=r"decode_images: pictures\[0\] .* a wrong checksum at byte"):
            robocache.decode_images([bad])


def test_a_depth_bomb_is_refused_before_memory_is_allocated():
    head = part(b"IHDR", struct.pack(">IIBBBBB", 60000, 60000, 16, 0, 0, 0, 0))
    data = b"\x89PNG\r\n\x1a\n" + head + part(b"IDAT", zlib.compress(bytes(9))) + part(b"IEND", b"")
    with pytest.raises(robocache.FormatError, match=r"at most 100000000 pixels \(max_pixels\), got 60000 x 60000"):
        robocache.decode_images([data], dtype="uint16")


def test_more_bytes_than_an_index_can_count_are_refused_before_memory_is_allocated():
    data = bomb(40000, 40000, zlib.compress(bytes(9)))
    rule = r"pictures\[0\] must have at most 4294967295 bytes of pixels, got 40000 x 40000 x 3"
    with pytest.raises(robocache.FormatError, match=rule):
        robocache.decode_images([data], max_pixels=1 << 32)
    shapes = np.array([[40000, 40000, 3, 0]], np.int32)
    with pytest.raises(robocache.FormatError, match=rule):
        _core.index_pictures("decode_frames", np.zeros(5, np.uint8), np.array([0, 5]), 0, False, 1 << 32, shapes)


def test_data_beyond_the_last_row_is_not_unpacked():
    data = bomb(2, 2, zlib.compress(bytes(14) + bytes(1 << 27)))
    np.testing.assert_array_equal(robocache.decode_images([data]), np.zeros((1, 2, 2, 3)))


def test_flipped_bytes_never_give_anything_but_pixels_or_a_format_error(rng):
    good = png(pixels_of(rng, (9, 11), "rgb"))
    for i in range(len(good)):
        bad = bytearray(good)
        bad[i] ^= 1 << int(rng.integers(8))
        try:
            robocache.decode_images([bytes(bad)])
        except (robocache.FormatError, ValueError, NotImplementedError):
            continue
