"""Writes samplings.npz: small JPEG pictures of OpenCV, and checksums of the pixels that it and simplejpeg decode.

    pip install opencv-python-headless simplejpeg pillow
    python tests/ops/decode/samplings/make_samplings.py

CI has neither package, and Pillow writes 4:4:4, 4:2:2 and 4:2:0 only; so the file is kept. It was made with OpenCV
5.0.0.93 and simplejpeg 1.9.0. test_decode_pixels.py compares it with decode_images.
"""

import hashlib
import sys
from pathlib import Path

import cv2
import numpy as np
import simplejpeg

FILE = Path(__file__).with_name("samplings.npz")
FACTORS = (0x111111, 0x121111, 0x211111, 0x221111, 0x411111)  # OpenCV writes no others
SIZES = ((1, 2), (5, 5), (17, 15), (31, 33))


def main():
    sys.path.insert(0, str(FILE.parents[1]))
    from pictures import photo

    made = []
    for i, size in enumerate(SIZES):
        for factors in FACTORS:
            settings = [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, factors, cv2.IMWRITE_JPEG_QUALITY, 60]
            made.append((factors, size, cv2.imencode(".jpg", photo(*size, seed=i), settings)))
        made.append((0, size, cv2.imencode(".jpg", photo(*size, seed=i)[..., 0])))
    sums = []
    for factors, _, (worked, data) in made:
        assert worked, hex(factors)
        color = cv2.imdecode(data, cv2.IMREAD_COLOR)[..., ::-1]
        np.testing.assert_array_equal(color, simplejpeg.decode_jpeg(data.tobytes()))
        gray = cv2.imdecode(data, cv2.IMREAD_GRAYSCALE)
        sums.append([list(hashlib.sha256(np.ascontiguousarray(x)).digest()) for x in (color, gray)])
    np.savez_compressed(
        FILE,
        data=np.concatenate([data.reshape(-1) for *_, (_, data) in made]),
        offsets=np.cumsum([0, *(data.size for *_, (_, data) in made)]),
        factors=np.array([factors for factors, *_ in made]),  # of OpenCV; 0: one component
        sizes=np.array([size for _, size, _ in made]),
        sha256=np.array(sums, np.uint8),  # (pictures, 2, 32): RGB (height, width, 3), gray (height, width)
    )


if __name__ == "__main__":
    main()
