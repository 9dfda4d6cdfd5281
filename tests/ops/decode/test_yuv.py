"""Frames of video to RGB: byte-equal to swscale as PyAV calls it, on every device."""

import numpy as np
import pytest
import robocache
from arrays import to_numpy
from decode_calls import DEVICES
from robocache.ops.decode.video import MATRICES
from robocache.ops.decode.yuv import decode_frames

SIZES = [(96, 96), (480, 640), (34, 66), (34, 65), (2, 2), (2, 1), (4, 3), (6, 17), (6, 94), (224, 223)]
TAGS = [(2, 0), (2, 1), (1, 1), (5, 1), (6, 1), (4, 1), (7, 1), (9, 1), (2, 2), (1, 2), (5, 2), (9, 2)]


def planes(rng, height, width):
    """Random samples of a frame."""
    return rng.integers(0, 256, height * width + 2 * ((height + 1) // 2) * ((width + 1) // 2), dtype=np.uint8)


def random_frame(rng, height, width):
    """A frame of FFmpeg, and its planes without padding."""
    av = pytest.importorskip("av")
    frame = av.VideoFrame(width, height, "yuv420p")
    samples = []
    for i, plane in enumerate(frame.planes):
        plane.update(rng.integers(0, 256, plane.buffer_size, dtype=np.uint8).tobytes())
        rows, columns = (height, width) if i == 0 else ((height + 1) // 2, (width + 1) // 2)
        samples.append(np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)[:rows, :columns].reshape(-1))
    return frame, np.concatenate(samples)


def pixels_of(frames, shapes, device="cpu", **edits):
    offsets = np.concatenate([[0], np.cumsum([len(x) for x in frames])]).astype(np.int64)
    where = None if device == "cpu" else device
    return to_numpy(decode_frames(np.concatenate(frames), offsets, np.array(shapes, np.int32), device=where, **edits))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("size", SIZES)
def test_pixels_are_those_of_swscale(device, size, rng):
    frames, shapes, expected = [], [], []
    for matrix, color_range in TAGS:
        frame, samples = random_frame(rng, *size)
        frame.colorspace, frame.color_range = matrix, color_range
        frames.append(samples)
        shapes.append((*size, 3, 1 + 2 * MATRICES[matrix] + (color_range == 2)))
        expected.append(frame.to_ndarray(format="rgb24"))
    np.testing.assert_array_equal(pixels_of(frames, shapes, device), expected)


@pytest.mark.parametrize("device", DEVICES[1:])
@pytest.mark.parametrize("size", [*SIZES, (41, 57), (3, 1)])
def test_a_gpu_gives_the_bits_of_the_cpu(device, size, rng):
    shapes = [(*size, 3, form) for form in range(1, 11)]
    frames = [planes(rng, *size) for _ in shapes]
    for edits in ({}, {"size": (17, 30), "layout": "CHW", "dtype": "float32"}, {"channels": 1}):
        np.testing.assert_array_equal(pixels_of(frames, shapes, device, **edits), pixels_of(frames, shapes, **edits))


@pytest.mark.parametrize("device", DEVICES)
def test_edits_are_those_of_pictures(device, rng):
    """The same as the edits of the RGB pixels."""
    samples = planes(rng, 40, 57)
    whole = pixels_of([samples], [(40, 57, 3, 3)])[0]
    for x0 in (0, 1, 6, 7):
        box = (x0, 3, 50, 38)
        np.testing.assert_array_equal(pixels_of([samples], [(40, 57, 3, 3)], device, crop=box)[0], whole[3:38, x0:50])
    options = {"crop": (5, 3, 50, 38), "size": (24, 20), "flip": True, "layout": "CHW", "dtype": "float32"}
    plain = pixels_of([whole.reshape(-1)], [(40, 57, 3, 0)], **options)
    np.testing.assert_array_equal(pixels_of([samples], [(40, 57, 3, 3)], device, **options), plain)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("channels", [1, 3])
def test_alpha_of_pixels_is_ignored(device, channels, rng):
    rgba = rng.integers(0, 256, (2, 11, 13, 4), dtype=np.uint8)
    color = np.ascontiguousarray(rgba[..., :3])
    for edits in ({}, {"crop": (2, 1, 13, 9), "size": (5, 7), "flip": True, "dtype": "float32", "layout": "CHW"}):
        options = {"channels": channels, **edits}
        found = pixels_of([x.reshape(-1) for x in rgba], [(11, 13, 4, 0)] * 2, device, **options)
        expected = pixels_of([x.reshape(-1) for x in color], [(11, 13, 3, 0)] * 2, **options)
        np.testing.assert_array_equal(found, expected)
        if not edits and channels == 3:
            np.testing.assert_array_equal(found, color)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((40, 57, 3, 11), "a known format"),
        ((40, 57, 3, -1), "a known format"),
        ((40, 57, 1, 3), "a known format"),
        ((40, 57, 2, 0), "1, 3 or 4 channels"),
        ((40, 57, 4, 3), "a known format"),
        ((40, 56, 3, 3), r"have 3360 bytes of pixels, got 3440"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(shape, message, rng):
    samples = planes(rng, 40, 57)
    with pytest.raises(robocache.FormatError, match=message):
        pixels_of([samples], [shape])
