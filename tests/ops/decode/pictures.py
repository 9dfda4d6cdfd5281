"""Pictures for the tests of decode: made from a seed, encoded in every way that Pillow and OpenCV can write."""

import io

import numpy as np
from PIL import Image


def photo(height, width, seed=0):
    """A smooth picture with some texture and noise, like a photograph."""
    rng = np.random.default_rng([seed, height, width])
    y, x = np.mgrid[0:height, 0:width]
    waves = [128 + 80 * np.sin(x / 17 + y / 31 + c + seed) + 30 * np.cos(y / 7 * (c + 1)) for c in range(3)]
    return np.clip(np.stack(waves, -1) + rng.normal(0, 8, (height, width, 3)), 0, 255).astype(np.uint8)


def noise(height, width, seed=0):
    return np.random.default_rng([seed, height, width]).integers(0, 256, (height, width, 3), dtype=np.uint8)


def jpeg(pixels, **options):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", **options)
    return file.getvalue()


def with_sampling(height, width, factors, seed=0):
    """A JPEG of random coefficients with any sampling factors ``((h, v), ...)``: no encoder here writes all of them."""
    rng = np.random.default_rng([seed, height, width])
    whole = jpeg(photo(8, 8), quality=50, subsampling="4:4:4")
    codes = {}  # of 0: luma or 1: chroma, DC; 16, 17: AC
    for marker, begin, end in segments(whole):
        body = whole[begin + 4 : end]
        while marker == 0xC4 and body:
            counts, at, code = body[1:17], 17, 0
            for length, count in enumerate(counts, 1):
                for _ in range(count):
                    codes[body[0], body[at]] = f"{code:0{length}b}"
                    at, code = at + 1, code + 1
                code *= 2
            body = body[at:]

    def value(table, run, number):
        size = int(number).bit_length() if number > 0 else int(-number).bit_length()
        low = int(number) if number > 0 else int(number) + (1 << size) - 1
        return codes[table, run << 4 | size] + (f"{low:0{size}b}" if size else "")

    columns, rows = (-(-length // (8 * max(f[i] for f in factors))) for i, length in ((0, width), (1, height)))
    bits = []
    for _ in range(columns * rows):
        for c, (h, v) in enumerate(factors):
            for _ in range(h * v):
                bits.append(value(c > 0, 0, rng.integers(-8, 9)))
                bits += [value(16 + (c > 0), int(rng.integers(0, 6)), x) for x in rng.choice([-3, -1, 1, 2, 9], 4)]
                bits.append(codes[16 + (c > 0), 0])  # the rest of the block is 0
    text = "".join(bits)
    text += "1" * (-len(text) % 8)
    scan = int(text, 2).to_bytes(len(text) // 8, "big").replace(b"\xff", b"\xff\0")

    def frame(segment):
        segment[5:9] = height.to_bytes(2, "big") + width.to_bytes(2, "big")
        for c, (h, v) in enumerate(factors):
            segment[11 + 3 * c] = h << 4 | v
        return segment

    made = with_segment(whole, 0xC0, frame)
    return made[: segments(made)[-1][2]] + scan + b"\xff\xd9"


def png(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def by_pillow(data, mode="RGB"):
    return np.asarray(Image.open(io.BytesIO(data)).convert(mode))


def resized_by_pillow(pixels, box, size, resampling):
    """Crop, then one pass along rows and one along columns. A single call of newer Pillow may begin with columns."""
    image = Image.fromarray(pixels).crop(box)
    image = image.resize((size[1], image.height), resampling)
    return np.asarray(image.resize((size[1], size[0]), resampling))


def segments(data):
    """(marker, begin, end) of every segment before the scan, and of the scan's header."""
    at, found = 2, []
    while True:
        length = int.from_bytes(data[at + 2 : at + 4], "big")
        found.append((data[at + 1], at, at + 2 + length))
        at += 2 + length
        if found[-1][0] == 0xDA:
            return found


def without(data, *markers):
    """The picture without the segments of these markers."""
    parts, kept = segments(data), [data[:2]]
    kept += [data[begin:end] for marker, begin, end in parts if marker not in markers]
    return b"".join(kept) + data[parts[-1][2] :]


def with_segment(data, marker, change):
    """The picture with the bytes of its first segment of a marker changed by a function."""
    _, begin, end = next(part for part in segments(data) if part[0] == marker)
    return data[:begin] + bytes(change(bytearray(data[begin:end]))) + data[end:]
