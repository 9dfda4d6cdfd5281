"""Pixels are byte-equal to libjpeg-turbo, as Pillow, OpenCV and simplejpeg have it."""

import hashlib
import io
import itertools
from pathlib import Path

import numpy as np
import pytest
import robocache
from decode_calls import DEVICES, decode, equal
from pictures import by_pillow, jpeg, noise, photo, png, with_sampling, with_segment, without
from PIL import Image

SIZES = [(1, 1), (1, 2), (2, 3), (3, 1), (5, 5), (7, 9), (8, 8), (16, 16), (17, 15), (31, 33), (48, 64), (101, 100)]


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


def encoded(height, width, subsampling, quality):
    yield jpeg(photo(height, width), quality=quality, subsampling=subsampling)
    yield jpeg(photo(height, width, 1), quality=quality, subsampling=subsampling, optimize=True)
    yield jpeg(noise(height, width), quality=quality, subsampling=subsampling, restart_marker_blocks=3)
    yield jpeg(photo(height, width, 2), quality=quality, subsampling=subsampling, restart_marker_rows=1)


@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
@pytest.mark.parametrize("quality", [1, 10, 50, 75, 90, 95, 100])
def test_every_sampling_quality_and_size_is_byte_equal_to_pillow(subsampling, quality, device):
    pictures = [data for size in SIZES for data in encoded(*size, subsampling, quality)]
    for data, pixels in zip(pictures, decode(pictures, device), strict=True):
        np.testing.assert_array_equal(pixels, by_pillow(data))


@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0", "gray"])
def test_pictures_of_many_bytes_are_byte_equal_with_an_index_of_any_spacing(subsampling):
    """The CPU decodes two halves of these in turns, and pairs of coefficients at once."""
    mode = {"subsampling": subsampling} if subsampling != "gray" else {}
    for seed, options in enumerate([{"quality": 100}, {"quality": 90, "optimize": True}, {"quality": 97}]):
        pixels = noise(130, 170, seed) if seed == 0 else photo(250, 330, seed)
        data = jpeg(pixels if mode else pixels[..., 0], **options, **mode)
        assert len(data) > 16 << 10
        expected = by_pillow(data)
        height, width = expected.shape[:2]
        for every in (None, 1, 7, 50, 10_000):
            index = robocache.index_pictures([data], every=every)
            np.testing.assert_array_equal(robocache.decode_images([data], index=index)[0], expected)
            crop = (seed * 5, height // 3, width - 40, height - seed)
            cut = robocache.decode_images([data], index=index, crop=crop)[0]
            np.testing.assert_array_equal(cut, expected[crop[1] : crop[3], crop[0] : crop[2]])


@pytest.mark.parametrize("luma", [(1, 1), (2, 1), (4, 1), (1, 2), (2, 2), (4, 2), (1, 4), (2, 4)])
@pytest.mark.parametrize("chroma", [(1, 1), (2, 1), (1, 2)])
def test_every_sampling_is_byte_equal_to_pillow(luma, chroma, device):
    """4:4:0, 4:1:1, 4:1:0 and rarer ones, also with another sampling for each component."""
    factors = (luma, chroma, (1, 1))
    if sum(h * v for h, v in factors) > 10:
        with pytest.raises(robocache.FormatError, match="must have at most 10 blocks per MCU, got 11"):
            decode([with_sampling(16, 16, factors)], device)
        return
    pictures = [with_sampling(*size, factors, seed) for seed, size in enumerate(SIZES)]
    for data, pixels in zip(pictures, decode(pictures, device), strict=True):
        np.testing.assert_array_equal(pixels, by_pillow(data))


def test_pixels_are_those_that_opencv_and_simplejpeg_have_decoded(device):
    """Of every sampling that they write, by the checksums of make_samplings.py."""
    with np.load(Path(__file__).with_name("samplings") / "samplings.npz") as file:
        made = {name: file[name] for name in file}
    pictures = [made["data"][a:b].tobytes() for a, b in itertools.pairwise(made["offsets"].tolist())]
    assert sorted(set(made["factors"].tolist())) == [0, 0x111111, 0x121111, 0x211111, 0x221111, 0x411111]
    for channels, sums in ((3, made["sha256"][:, 0]), (1, made["sha256"][:, 1])):
        decoded = decode(pictures, device, channels=channels)
        for pixels, size, expected in zip(decoded, made["sizes"], sums, strict=True):
            assert pixels.shape == (*size, channels)
            assert hashlib.sha256(pixels.tobytes()).digest() == expected.tobytes()


@pytest.mark.parametrize("factors", [0x411111, 0x221111, 0x211111, 0x121111, 0x111111])
def test_samplings_that_only_opencv_writes_are_byte_equal(factors, device):
    cv2 = pytest.importorskip("cv2")
    pictures = []
    for height, width in SIZES:
        made, data = cv2.imencode(".jpg", photo(height, width), [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, factors])
        if made:
            pictures.append(data.tobytes())
    for data, pixels in zip(pictures, decode(pictures, device), strict=True):
        np.testing.assert_array_equal(pixels, by_pillow(data))


def test_gray_pictures_and_gray_results_are_those_of_libjpeg(device):
    cv2 = pytest.importorskip("cv2")
    gray = [jpeg(photo(h, w)[..., 0], quality=80) for h, w in SIZES]
    for data, pixels in zip(gray, decode(gray, device), strict=True):
        np.testing.assert_array_equal(pixels, by_pillow(data))
    colored = [jpeg(photo(h, w), quality=80) for h, w in SIZES]
    for data, pixels in zip(gray + colored, decode(gray + colored, device, channels=1), strict=True):
        expected = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_GRAYSCALE)
        np.testing.assert_array_equal(pixels[..., 0], expected)


def test_opencv_and_simplejpeg_have_the_same_bytes():
    cv2, simplejpeg = pytest.importorskip("cv2"), pytest.importorskip("simplejpeg")
    data = jpeg(photo(123, 77), quality=85)
    pixels = robocache.decode_images([data])[0]
    np.testing.assert_array_equal(pixels, cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)[..., ::-1])
    np.testing.assert_array_equal(pixels, simplejpeg.decode_jpeg(data))


def test_a_4k_picture_is_byte_equal(device):
    data = jpeg(photo(2160, 3840), quality=90)
    np.testing.assert_array_equal(decode([data], device)[0], by_pillow(data))


def test_motion_jpeg_without_huffman_tables_has_those_of_annex_k(device):
    data = jpeg(photo(48, 64), quality=80)
    bare = without(data, 0xC4)
    assert len(bare) < len(data)
    np.testing.assert_array_equal(decode([bare], device)[0], by_pillow(data))


def test_bytes_after_the_end_and_a_missing_end_are_accepted(device):
    data = jpeg(photo(48, 64), quality=80)
    pictures = [data + b"\0" * 100, data[:-2]]
    for pixels in decode(pictures, device):
        np.testing.assert_array_equal(pixels, by_pillow(data))


@pytest.mark.parametrize(("at", "value"), [(11, 1), (11, 255), (12, 0), (12, 5), (12, 64), (13, 0x21)])
def test_a_sequential_scan_has_all_coefficients_whatever_its_header_says(at, value, device):
    def change(scan):
        scan[at] = value
        return scan

    data = jpeg(photo(48, 64), quality=80)
    made = with_segment(data, 0xDA, change)
    np.testing.assert_array_equal(by_pillow(made), by_pillow(data))
    np.testing.assert_array_equal(decode([made], device)[0], by_pillow(made))


def rgb_ids(frame):
    for i, letter in enumerate(b"RGB"):
        frame[10 + 3 * i] = letter
    return frame


def rgb_scan(scan):
    for i, letter in enumerate(b"RGB"):
        scan[5 + 2 * i] = letter
    return scan


def test_pictures_stored_as_rgb_follow_the_rules_of_libjpeg(device):
    plain = without(jpeg(photo(33, 41), quality=90, subsampling="4:4:4"), 0xE0)
    letters = with_segment(with_segment(plain, 0xC0, rgb_ids), 0xDA, rgb_scan)
    adobe = [plain[:2] + b"\xff\xee\x00\x0eAdobe\0\x64\0\0\0\0" + bytes([t]) + plain[2:] for t in (0, 1, 2)]
    pictures = [plain, letters, *adobe]
    for data, pixels in zip(pictures, decode(pictures, device), strict=True):
        np.testing.assert_array_equal(pixels, by_pillow(data))
    assert (decode([letters], device)[0] != decode([plain], device)[0]).any()


def test_orientation_in_exif_is_ignored(device):
    exif = Image.Exif()
    exif[0x0112] = 6
    data = jpeg(photo(20, 30), exif=exif)
    assert decode([data], device)[0].shape == (20, 30, 3)


def test_progressive_and_cmyk_pictures_are_decoded_by_pillow(device):
    progressive = jpeg(photo(40, 50), progressive=True)
    file = io.BytesIO()
    Image.fromarray(photo(40, 50)).convert("CMYK").save(file, "JPEG")
    mixed = [progressive, file.getvalue(), jpeg(photo(40, 50)), png(photo(40, 50)), png(photo(40, 50)[..., 0])]
    for data, pixels in zip(mixed, decode(mixed, device), strict=True):
        np.testing.assert_array_equal(pixels, by_pillow(data))


def test_png_of_16_bits_takes_rows_layout_and_kind_as_8_bits_do():
    depths = [np.arange(h * w, dtype=np.uint16).reshape(h, w) * 259 for h, w in ((4, 6), (4, 6), (5, 3))]
    pictures = [png(depth) for depth in depths]
    made = robocache.decode_images([*pictures, b"not read"], dtype="uint16", rows=[1, 0, 1], layout="CHW")
    np.testing.assert_array_equal(made, [[depths[1]], [depths[0]], [depths[1]]])
    several = robocache.decode_images(pictures, dtype="uint16", rows=[2, 1])
    equal(several, [depths[2][..., None], depths[1][..., None]])
    for layout, shape in (("HWC", (0, 0, 0, 1)), ("CHW", (0, 1, 0, 0))):
        nothing = robocache.decode_images([], dtype="uint16", layout=layout)
        assert (nothing.shape, nothing.dtype) == (shape, np.uint16)


def test_png_of_16_bits_in_tensors_gives_tensors():
    torch = pytest.importorskip("torch")
    depth = np.arange(24, dtype=np.uint16).reshape(4, 6) * 2731
    data = np.frombuffer(png(depth), np.uint8).copy()
    made = robocache.decode_images((torch.from_numpy(data), torch.tensor([0, len(data)])), dtype="uint16")
    assert made.dtype == torch.uint16
    np.testing.assert_array_equal(made.numpy()[0, ..., 0], depth)


def test_png_of_16_bits_keeps_its_values():
    depth = np.arange(20 * 30, dtype=np.uint16).reshape(20, 30) * 100
    made = robocache.decode_images([png(depth)] * 2, dtype="uint16", crop=(1, 2, 11, 12), flip=[False, True])
    np.testing.assert_array_equal(made[0, ..., 0], depth[2:12, 1:11])
    np.testing.assert_array_equal(made[1, ..., 0], depth[2:12, 1:11][:, ::-1])
