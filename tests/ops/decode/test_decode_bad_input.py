"""Bad calls of decode_images: ValueError with argument, rule and what was given."""

import re

import numpy as np
import pytest
import robocache
from pictures import jpeg, photo, png
from robocache import _core

PICTURES = [jpeg(photo(48, 64)), jpeg(photo(48, 64, 1))]

# what is wrong: (changes to a good call, the message after "decode_images: ")
BAD = {
    "pictures that are a number": ({"pictures": 3}, "pictures must be a list of bytes, or (bytes, offsets), got int"),
    "a picture that is text": ({"pictures": ["a"]}, "pictures[0] must be bytes, got str"),
    "int32 offsets": (
        {"pictures": (np.zeros(9, np.uint8), np.zeros(2, np.int32))}, "offsets must have dtype int64, got int32"),
    "float bytes": ({"pictures": (np.zeros(9), np.zeros(2, np.int64))}, "bytes must have dtype uint8, got float64"),
    "offsets that decrease": (
        {"pictures": (np.zeros(9, np.uint8), np.array([0, 5, 3]))}, "offsets must not decrease, got 3 after 5"),
    "offsets past the bytes": (
        {"pictures": (np.zeros(9, np.uint8), np.array([0, 10]))}, "offsets must end within the 9 bytes, got 10"),
    "a crop outside": (
        {"crop": (0, 0, 65, 48)},
        "crop[0] must be pixels (x0, y0, x1, y1) of a picture of 64 x 48, got (0, 0, 65, 48)"),
    "an empty crop": ({"crop": (5, 5, 5, 9)}, "crop[0] must be pixels (x0, y0, x1, y1) of a picture of 64 x 48"),
    "a crop of three numbers": (
        {"crop": (1, 2, 3)}, "crop must be (x0, y0, x1, y1) in whole pixels, or one of them for each picture, got (1"),
    "a crop of parts of pixels": ({"crop": (0, 0, 1.5, 2)}, "crop must be (x0, y0, x1, y1) in whole pixels"),
    "crops of several lengths": ({"crop": [(0, 0, 4, 4), (1, 2)]}, "crop must be (x0, y0, x1, y1) in whole pixels"),
    "three crops": ({"crop": [(0, 0, 4, 4)] * 3}, "crop must have one entry per picture (2), got 3"),
    "a flip that is a number": ({"flip": 1}, "flip must be True or False, or one of them for each picture, got 1"),
    "three flips": ({"flip": [True] * 3}, "flip must have one entry per picture (2), got 3"),
    "a negative color": ({"color": (1, -1, 1)}, "color[0] must be finite and not negative, got -1"),
    "a color of two numbers": ({"color": (1, 1)}, "color must be (brightness, contrast, saturation)"),
    "a size of 0": ({"size": (0, 5)}, "size must be from 1 to 65535 pixels, got (0, 5)"),
    "a size of one number": ({"size": 224}, "size must be (height, width) in whole pixels, got 224"),
    "an endless size": ({"size": (float("inf"), 5)}, "size must be (height, width) in whole pixels, got (inf, 5)"),
    "an unknown device": ({"device": "tpu"}, "device must be 'cpu' or a GPU like 'cuda', got 'tpu'"),
    "an unknown filter": ({"filter": "cubic"}, "filter must be 'bilinear' or 'area', got 'cubic'"),
    "an unknown layout": ({"layout": "chw"}, "layout must be 'HWC' or 'CHW', got 'chw'"),
    "an int32 dtype": ({"dtype": "int32"}, "dtype must be uint8, float16, bfloat16 or float32, got int32"),
    "two channels": ({"channels": 2}, "channels must be 1 or 3, got 2"),
    "uint8 with normalize": ({"normalize": "imagenet"}, "dtype must be floating with normalize, got uint8"),
    "a deviation of 0": (
        {"normalize": (0, 0), "dtype": "float32"}, "normalize must have positive deviations, got 0"),
    "an unknown normalization": ({"normalize": "mine"}, "normalize must be 'imagenet' or (mean, std), got 'mine'"),
    "an index that is a list": ({"index": []}, "index must be a PictureIndex (index_pictures), got list"),
    "a row too far": ({"rows": [0, 2]}, "rows must be from 0 to 1, got 2"),
    "rows that are floats": ({"rows": [0.5]}, "rows must be whole numbers (N,), got float64 of shape (1,)"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_a_bad_call_is_refused_with_argument_rule_and_value(what):
    changes, message = BAD[what]
    call = {"pictures": PICTURES, **changes}
    with pytest.raises(ValueError, match="^" + re.escape(f"decode_images: {message}")):
        robocache.decode_images(call.pop("pictures"), **call)


def test_pictures_that_rows_leave_out_are_not_read():
    broken = [b"", b"text", png(photo(48, 64))[:-9], jpeg(photo(48, 64), progressive=True)[:99], PICTURES[0][:-300]]
    data = np.frombuffer(b"".join([*broken, *PICTURES, png(photo(48, 64))]), np.uint8)
    offsets = np.cumsum([0, *map(len, broken), *map(len, PICTURES), len(png(photo(48, 64)))])
    for pictures in ([*broken, *PICTURES, png(photo(48, 64))], (data, offsets)):
        for rows, expected in (([6, 5, 6], [1, 0, 1]), ([7, 5], [2, 0])):
            made = robocache.decode_images(pictures, rows=rows)
            whole = robocache.decode_images([*PICTURES, png(photo(48, 64))])
            np.testing.assert_array_equal(made, whole[expected])
        with pytest.raises(robocache.FormatError, match=re.escape("decode_images: pictures[2] must be a whole pic")):
            robocache.decode_images(pictures, rows=[5, 2])


DEPTH = [png(np.full((48, 64), 300, np.uint16))] * 2
# what is refused for uint16 as for 8 bits: all but the size and the values of color and normalize
SAME = [
    "a picture that is text", "int32 offsets", "float bytes", "offsets that decrease", "offsets past the bytes",
    "a crop outside", "an empty crop", "a crop of three numbers", "three crops", "a flip that is a number",
    "three flips", "an unknown device", "an unknown filter", "an unknown layout", "two channels",
    "an unknown normalization", "a row too far", "rows that are floats",
]  # fmt: skip
BAD_DEPTH = {what: BAD[what] for what in SAME} | {
    "a color": ({"color": (1, 1, 1)}, "color must be None for dtype 'uint16', whose values are unchanged; got (1, 1"),
    "normalize": ({"normalize": "imagenet"}, "dtype must be floating with normalize, got uint16"),
    "an index": (
        {"index": robocache.index_pictures([])},
        "index must be None for dtype 'uint16', since PNG has no entry points; got PictureIndex"),
    "a JPEG": (
        {"pictures": [DEPTH[0], PICTURES[0]]},
        "pictures[1] must be a gray PNG of 16 bits for dtype 'uint16', got a JPEG"),
    "8 bits": (
        {"pictures": [png(photo(4, 4))]}, "pictures[0] must be a gray PNG of 16 bits for dtype 'uint16', got uint8"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD_DEPTH)
def test_a_bad_call_for_16_bits_is_refused_as_for_8_bits(what):
    changes, message = BAD_DEPTH[what]
    call = {"pictures": DEPTH, **changes}
    with pytest.raises(ValueError, match="^" + re.escape(f"decode_images: {message}")):
        robocache.decode_images(call.pop("pictures"), dtype="uint16", **call)


@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
def test_a_gpu_that_is_not_there_is_named(dtype, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(_core, "cuda_status", lambda: {"reason": "no driver"})
    with pytest.raises(NotImplementedError, match="decode_images: device 'cuda:0' is not available: no driver"):
        robocache.decode_images(DEPTH if dtype == "uint16" else PICTURES, dtype=dtype, device="cuda:0")


def test_an_index_of_other_pictures_is_refused():
    index = robocache.index_pictures(PICTURES)
    with pytest.raises(ValueError, match="offsets must have one entry more than the index has pictures, got 2 for 2"):
        robocache.decode_images(PICTURES[:1], index=index)
    with pytest.raises(ValueError, match=r"pictures\[0\] must have the \d+ bytes that its index tells, got \d+"):
        robocache.decode_images([jpeg(photo(48, 64), quality=20)] * 2, index=index)


@pytest.mark.parametrize("every", [0, -1, 2.5, "8"])
def test_every_must_be_a_whole_number(every):
    with pytest.raises(ValueError, match=f"index_pictures: every must be a whole number from 1, got {every!r}"):
        robocache.index_pictures(PICTURES, every=every)
