"""Crop, resize, flip, color and normalize: against Pillow and plain NumPy."""

import numpy as np
import pytest
import robocache
import torch
from arrays import to_numpy
from decode_calls import DEVICES, decode
from pictures import by_pillow, jpeg, photo, png, resized_by_pillow
from PIL import Image

FILTERS = {"bilinear": Image.Resampling.BILINEAR, "area": Image.Resampling.BOX}
VGA = jpeg(photo(480, 640), quality=90)
SMALL = [jpeg(photo(37 + i, 61 - 2 * i, i), quality=80, subsampling=i % 3) for i in range(9)]


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
@pytest.mark.parametrize("every", [1, 3, 1000])
def test_a_crop_is_the_crop_of_the_whole_picture(subsampling, every, device):
    data = jpeg(photo(90, 130), quality=80, subsampling=subsampling, restart_marker_blocks=5)
    whole, rng = by_pillow(data), np.random.default_rng(every)
    x, y = np.sort(rng.integers(0, 131, (40, 2))), np.sort(rng.integers(0, 91, (40, 2)))
    boxes = [(a, c, b, d) for (a, b), (c, d) in zip(x.tolist(), y.tolist(), strict=True) if a < b and c < d]
    index = robocache.index_pictures([data] * len(boxes), every=every)
    for (x0, y0, x1, y1), pixels in zip(
        boxes, decode([data] * len(boxes), device, crop=boxes, index=index), strict=True
    ):
        np.testing.assert_array_equal(pixels, whole[y0:y1, x0:x1])


@pytest.mark.parametrize("filter", FILTERS)
@pytest.mark.parametrize("size", [(224, 224), (480, 640), (1, 1), (500, 37), (37, 500), (700, 900), (480, 100)])
@pytest.mark.parametrize("box", [(0, 0, 640, 480), (13, 27, 333, 401), (100, 50, 101, 51), (320, 0, 640, 480)])
def test_a_resize_is_that_of_pillow(filter, size, box, device):
    pixels = decode([VGA], device, size=size, crop=box, filter=filter)[0]
    np.testing.assert_array_equal(pixels, resized_by_pillow(by_pillow(VGA), box, size, FILTERS[filter]))
    once = Image.fromarray(by_pillow(VGA)).crop(box).resize(size[::-1], FILTERS[filter])
    assert np.abs(pixels.astype(int) - np.asarray(once)).max() <= 1


def test_pictures_far_larger_than_the_result_are_resized_too(device):
    wide, tall = jpeg(photo(3, 20000), quality=50), jpeg(photo(9000, 3), quality=50)
    for data, box in ((wide, (0, 0, 20000, 3)), (tall, (0, 0, 3, 9000))):
        for filter, resampling in FILTERS.items():
            pixels = decode([data], device, size=(2, 1), filter=filter)[0]
            np.testing.assert_array_equal(pixels, resized_by_pillow(by_pillow(data), box, (2, 1), resampling))


def test_mixed_sizes_crops_and_flips_in_one_call(device):
    boxes = [(i, 2 * i, 40 - i, 37 - i) for i in range(9)]
    flips = [i % 2 == 1 for i in range(9)]
    made = decode(SMALL, device, crop=boxes, flip=flips, size=(20, 24))
    for data, box, flip, pixels in zip(SMALL, boxes, flips, made, strict=True):
        expected = resized_by_pillow(by_pillow(data), box, (20, 24), FILTERS["bilinear"])
        np.testing.assert_array_equal(pixels, expected[:, ::-1] if flip else expected)


def test_rows_select_pictures_in_any_order(device):
    index = robocache.index_pictures(SMALL)
    made = decode(SMALL, device, rows=[5, 0, 5], index=index, size=(10, 10))
    whole = decode(SMALL, device, size=(10, 10))
    np.testing.assert_array_equal(made, whole[[5, 0, 5]])


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_joined_bytes_may_be_those_of_python(kind):
    offsets = np.cumsum([0, *map(len, SMALL)])
    for given in (offsets, offsets.tolist()):
        made = robocache.decode_images((kind(b"".join(SMALL)), given), size=(10, 10))
        np.testing.assert_array_equal(made, robocache.decode_images(SMALL, size=(10, 10)))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("layout", ["HWC", "CHW"])
def test_normalize_is_one_rounding_of_an_exact_formula(dtype, layout, device):
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    plain = decode(SMALL, device, size=(30, 30)).astype(np.float64)
    scale = np.float32(1 / (255 * np.float32(std).astype(np.float64))).astype(np.float64)
    offset = np.float32(-np.float32(mean).astype(np.float64) / np.float32(std)).astype(np.float64)
    expected = torch.from_numpy((plain * scale + offset).astype(np.float32)).to(getattr(torch, dtype))
    made = decode(SMALL, device, size=(30, 30), dtype=dtype, layout=layout, normalize="imagenet")
    made = made if layout == "HWC" else np.moveaxis(made, 1, -1)
    np.testing.assert_array_equal(np.asarray(made, np.float64), np.asarray(to_numpy(expected), np.float64))


def test_floats_without_normalize_are_from_0_to_1(device):
    whole = decode(SMALL, device, size=(30, 30))
    made = decode(SMALL, device, size=(30, 30), dtype="float32")
    np.testing.assert_array_equal(made, whole.astype(np.float32) * np.float32(1 / 255))


def color_by_numpy(pixels, brightness, contrast, saturation):
    x = pixels.astype(np.float32)
    x = np.clip(x * np.float32(brightness), 0, 255)
    x = np.clip((x - np.float32(127.5)) * np.float32(contrast) + np.float32(127.5), 0, 255)
    gray = np.float32(0.299) * x[..., 0] + np.float32(0.587) * x[..., 1] + np.float32(0.114) * x[..., 2]
    return np.clip(gray[..., None] + (x - gray[..., None]) * np.float32(saturation), 0, 255)


def test_color_is_brightness_then_contrast_then_saturation(device):
    factors = np.random.default_rng(0).uniform(0.5, 1.5, (9, 3)).astype(np.float32)
    plain = decode(SMALL, device, size=(30, 30))
    expected = np.stack([color_by_numpy(x, *f) for x, f in zip(plain, factors, strict=True)])
    np.testing.assert_array_equal(
        decode(SMALL, device, size=(30, 30), color=factors), (expected + np.float32(0.5)).astype(np.uint8)
    )
    floats = decode(SMALL, device, size=(30, 30), color=factors, dtype="float32")
    np.testing.assert_array_equal(floats, expected * np.float32(1 / 255))


def test_png_and_jpeg_of_one_list_get_the_same_edits(device):
    mixed = [png(photo(50, 40)), jpeg(photo(50, 40)), png(photo(50, 40)[..., 1])]
    made = decode(mixed, device, size=(20, 30), crop=(3, 5, 33, 47), flip=True)
    for data, pixels in zip(mixed, made, strict=True):
        expected = resized_by_pillow(by_pillow(data), (3, 5, 33, 47), (20, 30), FILTERS["bilinear"])
        np.testing.assert_array_equal(pixels, expected[:, ::-1])


def test_pictures_of_several_sizes_give_a_list(device):
    for data, pixels in zip(SMALL, decode(SMALL, device), strict=True):
        np.testing.assert_array_equal(pixels, by_pillow(data))


def test_torch_tensors_give_torch_tensors():
    data = torch.frombuffer(bytearray(b"".join(SMALL)), dtype=torch.uint8)
    offsets = torch.tensor(np.cumsum([0, *map(len, SMALL)]))
    made = robocache.decode_images((data, offsets), size=(12, 14), layout="CHW", dtype=torch.bfloat16)
    assert isinstance(made, torch.Tensor)
    assert made.dtype == torch.bfloat16
    assert made.shape == (9, 3, 12, 14)


def test_no_pictures_give_an_empty_array():
    assert robocache.decode_images([], size=(4, 5)).shape == (0, 4, 5, 3)
    assert robocache.decode_images([]).shape == (0, 0, 0, 3)
