"""Truncated, corrupt and hostile pictures and indexes: refused by name, or decoded as libjpeg decodes them."""

import contextlib
import io
import re
import sys

import numpy as np
import pytest
import robocache
from decode_calls import DEVICES, decode
from pictures import by_pillow, jpeg, noise, photo, png, with_segment, without
from PIL import Image

GOOD = jpeg(photo(48, 64), quality=85)
RESTARTS = jpeg(photo(48, 64), quality=85, restart_marker_blocks=2)
SCAN = GOOD.index(b"\xff\xda") + 14


def sized(width, height):
    def change(frame):
        frame[5:9] = height.to_bytes(2, "big") + width.to_bytes(2, "big")
        return frame

    return with_segment(GOOD, 0xC0, change)


def changed(marker, at, value):
    def change(segment):
        segment[at] = value
        return segment

    return with_segment(GOOD, marker, change)


# what is wrong: (the picture, the rule in the message)
REFUSED = {
    "no bytes": (b"", "begin with a JPEG marker (ffd8), got "),
    "text": (b"hello, world", "begin with a JPEG marker (ffd8), got 68656c6c"),
    "only a beginning": (b"\xff\xd8\xff\xe0", "have whole marker segments, got marker ffe0 of 0 bytes at byte 2 of 4"),
    "a beginning and an end": (b"\xff\xd8\xff\xd9", "have a scan, got the end of the picture at byte 2"),
    "a cut header": (GOOD[:100], "have whole marker segments, got marker ff"),
    "a scan without data": (GOOD[:SCAN], "have a whole scan, got the end of its data: 0 bytes for 64 x 48"),
    "half of a scan": (GOOD[: (SCAN + len(GOOD)) // 2], "have a whole scan, got the end of its data in MCU "),
    "a bomb": (sized(65535, 65535), "have at most 100000000 pixels (max_pixels), got 65535 x 65535"),
    "a larger picture than its data": (sized(150, 150), "have a whole scan, got the end of its data in MCU "),
    "a much larger picture than its data": (
        sized(9000, 9000), f"have a whole scan, got the end of its data: {len(GOOD) - SCAN} bytes for 9000 x 9000"),
    "no width": (sized(0, 48), "have pixels, got 0 x 48"),
    "no height": (sized(64, 0), "have pixels, got 64 x 0"),
    "no frame": (without(GOOD, 0xC0), "have a frame before its scan, got none"),
    "no quantization tables": (without(GOOD, 0xDB), "have the quantization tables that its components use"),
    "a Huffman table that overruns": (changed(0xC4, 5, 3), "have Huffman tables without more codes than"),
    "a Huffman table that is cut": (changed(0xC4, 20, 99), "have a whole DHT segment, got 12 bytes for 111"),
    "a Huffman table with number 9": (changed(0xC4, 4, 9), "number Huffman tables from 0 to 3, got 9"),
    "a quantization table with number 9": (changed(0xDB, 4, 9), "number quantization tables from 0 to 3, got 9"),
    "a sampling factor of 0": (changed(0xC0, 11, 0x02), "have sampling factors from 1 to 4, got 0 x 2"),
    "a sampling factor of 5": (changed(0xC0, 11, 0x51), "have sampling factors from 1 to 4, got 5 x 1"),
    "16 blocks per MCU": (changed(0xC0, 11, 0x44), "have at most 10 blocks per MCU, got 18"),
    "another component in the scan": (changed(0xDA, 5, 7), "have the components of its frame in its scan"),
    "a scan header without coefficients": (
        GOOD[: SCAN - 12] + b"\0\x09" + GOOD[SCAN - 10 :], "have a whole SOS segment, got 0 bytes for 3"),
    "a scan header that is too long": (
        GOOD[: SCAN - 12] + b"\0\x0d" + GOOD[SCAN - 10 :], "have SOS segments of their length, got 1 bytes more"),
    "a frame that is too long": (
        with_segment(GOOD, 0xC0, lambda s: s[:3] + bytes([s[3] + 1]) + s[4:] + b"\0"),
        "have SOF segments of their length, got 1 bytes more"),
    "a restart interval that is too long": (
        with_segment(RESTARTS, 0xDD, lambda s: s[:3] + b"\5" + s[4:] + b"\0"),
        "have DRI segments of their length, got 1 bytes more"),
    "two beginnings": (GOOD[:2] + GOOD, "begin once, got a second begin at byte 2"),
    "a marker that no part of the standard names": (changed(0xE0, 1, 0xFA), "have known markers, got fffa"),
    "a Huffman table that has become one of arithmetic coding": (
        changed(0xC4, 1, 0xCC), "have valid DAC segments, got 5 for 1"),
    "no restart marker": (
        RESTARTS.replace(b"\xff\xd1", b"\xff\xd2"), "have the restart markers that its header declares"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_a_bad_picture_is_refused_with_its_number_and_the_rule(what):
    data, rule = REFUSED[what]
    for op in ("decode_images", "index_pictures"):
        with pytest.raises(robocache.FormatError, match=re.escape(f"{op}: pictures[1] must {rule}")):
            getattr(robocache, op)([GOOD, data])


def arithmetic(data):
    return data.replace(b"\xff\xc0", b"\xff\xc9", 1)


UNSUPPORTED = {
    "progressive": (jpeg(photo(48, 64), progressive=True), "a progressive JPEG"),
    "arithmetic": (arithmetic(GOOD), "an arithmetic-coded JPEG"),
    "12 bits": (changed(0xC0, 4, 12), "a JPEG with 12 bits per sample"),
    "one component of three": (changed(0xDA, 4, 1), "a JPEG with several scans"),
}


@pytest.mark.parametrize("what", UNSUPPORTED)
def test_a_jpeg_of_another_kind_is_named(what):
    data, given = UNSUPPORTED[what]
    rule = "be a sequential JPEG with Huffman codes, 8 bits, one scan, and 1 or 3 components"
    with pytest.raises(NotImplementedError, match=re.escape(f"index_pictures: pictures[1] must {rule}, got {given}")):
        robocache.index_pictures([GOOD, data])


def palette_png():
    file = io.BytesIO()
    Image.fromarray(photo(4, 4)).convert("P").save(file, "PNG")
    return file.getvalue()


def test_pillow_is_named_where_it_is_needed_and_missing(monkeypatch):
    given = ((UNSUPPORTED["progressive"][0], "a JPEG that is progressive"), (palette_png(), "a PNG of another kind"))
    monkeypatch.setitem(sys.modules, "PIL", None)
    for data, name in given:
        with pytest.raises(NotImplementedError, match=re.escape(f"decode_images: pictures[0] is {name}")) as caught:
            robocache.decode_images([data])
        assert "pip install 'robocache[images]'" in str(caught.value)


@pytest.mark.parametrize("frame", [0xC0, 0xC1, 0xC2, 0xC3])
def test_a_jpeg_of_12_bits_is_named_with_the_fix(frame):
    data = changed(0xC0, 4, 12).replace(b"\xff\xc0", bytes([0xFF, frame]), 1)
    rule = (
        "pictures[1] must have 8 bits per sample, got a JPEG of 12 bits, which neither RoboCache nor Pillow decodes; "
        "convert it to 8 bits first"
    )
    with pytest.raises(robocache.FormatError, match=re.escape(rule)):
        robocache.decode_images([GOOD, data])


def test_a_progressive_jpeg_of_thousands_of_scans_is_refused_before_it_is_decoded():
    """Each of a few bytes goes over the whole picture: 100 KB took minutes."""
    data = jpeg(np.zeros((1024, 1024, 3), np.uint8), progressive=True)
    last = data.rindex(b"\xff\xda")
    bomb = data[:last] + data[last:-2] * 2000 + b"\xff\xd9"
    rule = "must have at most 536870912 pixels in all scans together, got 1048576 in each of more than 512"
    with pytest.raises(robocache.FormatError, match=re.escape(f"decode_images: pictures[1] {rule}")):
        robocache.decode_images([GOOD, bomb])
    np.testing.assert_array_equal(robocache.decode_images([data])[0], by_pillow(data))


def test_a_cut_png_is_refused():
    with pytest.raises(robocache.FormatError, match=re.escape("decode_images: pictures[1] must be a whole picture")):
        robocache.decode_images([GOOD, png(photo(40, 40))[:-200]])


def by_libjpeg(data):
    """What libjpeg-turbo makes of it, or None where Pillow refuses it."""
    try:
        with Image.open(io.BytesIO(data), formats=("JPEG",)) as image:
            return np.asarray(image.convert("RGB")) if image.size == (64, 48) else None
    except (OSError, SyntaxError, ValueError):
        return None


@pytest.mark.parametrize("data", [GOOD, RESTARTS], ids=["plain", "restarts"])
def test_flipped_bits_are_refused_or_decoded_as_libjpeg_does(data):
    rng, accepted = np.random.default_rng(7), 0
    for _ in range(3000):
        flipped = bytearray(data)
        for at in rng.integers(2, len(data), rng.integers(1, 4)):
            flipped[at] ^= 1 << int(rng.integers(8))
        try:
            pixels = robocache.decode_images([bytes(flipped)])
        except (robocache.FormatError, NotImplementedError):
            continue
        expected = by_libjpeg(bytes(flipped))
        if expected is not None and pixels.shape[1:] == (48, 64, 3):
            accepted += 1
            np.testing.assert_array_equal(pixels[0], expected)
    assert accepted > 100


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


@pytest.mark.sanitize
def test_wrong_entry_points_never_read_outside(device):
    """On the CPU a fault is an error; on a GPU pixels are undefined and everything else goes on."""
    pictures = [GOOD, RESTARTS, jpeg(photo(33, 17), quality=30)]
    data, rng = robocache.index_pictures(pictures, every=2).to_bytes(), np.random.default_rng(3)
    for _ in range(200 if device == "cpu" else 20):
        wrong = data.copy()
        first = len(data) - 16 * (robocache.PictureIndex.from_bytes(data).num_entry_points * 10 // 16 + 2)
        for at in rng.integers(first, len(wrong), 20):
            wrong[at] = rng.integers(256)
        try:
            index = robocache.PictureIndex.from_bytes(wrong)
            decode(pictures, device, index=index, size=(24, 24))
        except robocache.FormatError:
            pass
    np.testing.assert_array_equal(decode(pictures[:1], device)[0], by_pillow(GOOD))


@pytest.mark.sanitize
def test_pictures_that_are_corrupted_after_their_index_was_made_never_read_outside(device):
    """A batch of flipped bits, zeros, ones and cut pictures; the intact ones in it keep their pixels."""
    good = [GOOD, RESTARTS, jpeg(photo(33, 17), quality=30, subsampling="4:4:4"), jpeg(photo(40, 40)[..., 0])]
    index, rng = robocache.index_pictures(good * 2, every=2), np.random.default_rng(5)
    for _ in range(200 if device == "cpu" else 10):
        bad = [bytearray(data) for data in good]
        for data in bad:
            begin, end = np.sort(rng.integers(2, len(data), 2))
            kind = rng.integers(4)
            if kind == 0:
                for at in rng.integers(2, len(data), 30):
                    data[at] ^= 1 << int(rng.integers(8))
            else:
                data[begin:end] = bytes([(0x00, 0xFF, 0xD9)[kind - 1]]) * (end - begin)
        if device == "cpu":
            with contextlib.suppress(robocache.FormatError):
                decode([*map(bytes, bad), *good], device, index=index, size=(24, 24))
        else:
            made = decode([*map(bytes, bad), *good], device, index=index, size=(24, 24))
            np.testing.assert_array_equal(made[4:], decode(good, "cpu", size=(24, 24)))


def test_bytes_of_an_index_are_checked():
    data = robocache.index_pictures([GOOD, RESTARTS]).to_bytes()
    again = robocache.PictureIndex.from_bytes(data.tobytes())
    np.testing.assert_array_equal(again.to_bytes(), data)
    for wrong, rule in (
        (data[:-8], "must have "),
        (data[:16], "must have at least 64 bytes, got 16"),
        (data[:-3], "must have a multiple of 8 bytes"),
    ):
        with pytest.raises(robocache.FormatError, match=re.escape(rule)):
            robocache.PictureIndex.from_bytes(wrong)
    version = data.copy()
    version[4] = 9
    with pytest.raises(robocache.FormatError, match="must have version 1, got 9"):
        robocache.PictureIndex.from_bytes(version)
    rng = np.random.default_rng(1)
    for _ in range(2000):
        wrong = data.copy()
        wrong[rng.integers(0, 64 + 2 * 64 + 96)] = rng.integers(256)
        with contextlib.suppress(robocache.FormatError, ValueError):
            decode([GOOD, RESTARTS], index=robocache.PictureIndex.from_bytes(wrong), size=(8, 8))


def with_entry(data, num_entries, entry, bits=None, predictor=None):
    """The bytes of an index with another position, or another first predictor, of an entry point."""
    wrong = data.copy()
    predictors = len(data) - (num_entries * 6 + 15) // 16 * 16
    at = predictors - (num_entries * 4 + 15) // 16 * 16
    if bits is not None:
        wrong[at : at + 4 * num_entries].view(np.uint32)[entry] += bits
    if predictor is not None:
        wrong[predictors : predictors + 6 * num_entries].view(np.int16)[3 * entry] += predictor
    return wrong


@pytest.mark.parametrize("change", [{"predictor": 20}, {"bits": 1}])
def test_wrong_entry_points_are_found_where_decoding_passes_them(change):
    for picture in (GOOD, jpeg(photo(48, 64), quality=85, restart_marker_blocks=5)):
        index = robocache.index_pictures([picture], every=2)
        count = index.num_entry_points
        assert count == 6
        begin = "PictureIndex: the index must begin each picture at bit 0 with predictors of 0, got others in picture 0"
        with pytest.raises(robocache.FormatError, match=re.escape(begin)):
            robocache.PictureIndex.from_bytes(with_entry(index.to_bytes(), count, 0, **change))
        for entry in range(1, count):
            wrong = robocache.PictureIndex.from_bytes(with_entry(index.to_bytes(), count, entry, **change))
            with pytest.raises(robocache.FormatError, match=r"pictures\[0\] must have "):
                robocache.decode_images([picture], index=wrong)
    # In a picture of many bytes, whose halves are decoded in turns.
    large = jpeg(noise(96, 128), quality=98)
    index = robocache.index_pictures([large], every=4)
    for entry in range(1, index.num_entry_points):
        wrong = robocache.PictureIndex.from_bytes(with_entry(index.to_bytes(), index.num_entry_points, entry, **change))
        with pytest.raises(robocache.FormatError, match=r"pictures\[0\] must have "):
            robocache.decode_images([large], index=wrong)
    # A crop that begins at the wrong entry: the next one shows it.
    index = robocache.index_pictures([GOOD], every=2)
    wrong = robocache.PictureIndex.from_bytes(with_entry(index.to_bytes(), 6, 2, **change))
    with pytest.raises(robocache.FormatError, match=r"pictures\[0\] must have "):
        robocache.decode_images([GOOD], index=wrong, crop=(0, 16, 64, 48))


def test_an_index_takes_at_most_3_percent_of_the_bytes():
    pictures = [jpeg(photo(480, 640, i), quality=90) for i in range(4)]
    index = robocache.index_pictures(pictures)
    assert index.size_bytes <= 0.03 * sum(map(len, pictures)) + 1500  # tables and head, once
    assert index.num_entry_points > 500
