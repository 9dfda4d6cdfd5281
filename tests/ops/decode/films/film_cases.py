"""The videos of films.npz, with the checksums of their planes, and calls of both decoders for rows of them."""

import json
import zlib
from pathlib import Path

import numpy as np
from robocache.cache.video import Video, VideoIndex, decode_rows
from robocache.ops.decode.video import Track

with np.load(Path(__file__).with_name("films.npz")) as stored:
    ARRAYS = dict(stored)
NAMES = [*dict.fromkeys(name.split("/")[0] for name in ARRAYS)]
TOO_SMALL = ("h264_tiny", "hevc_small")
"""Below the smallest size of NVDEC."""
DECODED = [name for name in NAMES if name not in TOO_SMALL]


def film(name):
    arrays = {key.split("/")[1]: value for key, value in ARRAYS.items() if key.startswith(f"{name}/")}
    codec, width, height, pixels, matrix, color_range, *base = json.loads(bytes(arrays["facts"]))
    track = Track(codec, width, height, pixels, matrix, color_range, bytes(arrays["extradata"]))
    order = np.argsort(arrays["times"], kind="stable")
    return Video(
        arrays["data"], VideoIndex(track, tuple(base), arrays["sizes"], arrays["times"], arrays["keys"], order)
    )


def changed(video, data=None, **facts):
    """A video with other packets or another index."""
    index = video.index
    same = {"track": index.track, "time_base": index.time_base, "rows": index.rows}
    same |= {"sizes": index.sizes, "times": index.times, "keys": index.keys}
    return Video(video.data if data is None else data, VideoIndex(**same | facts))


def expected(name):
    """(frames, 3): checksums of Y, U and V."""
    return ARRAYS[f"{name}/checksums"]


def picked(videos, rows):
    """``frames`` of decode_rows: ``rows`` has pairs of a video's number and a row."""
    found = [(i, videos[i].index.rows[row], videos[i].index.gops[row]) for i, row in rows]
    return np.array(found, np.int64).reshape(-1, 3)


def planes(videos, rows, **how):
    """``[(planes, PixelFormat)]`` of each row, and what decode_rows has returned; ``how``: its empty and decode."""

    def read(spans):
        return [np.ascontiguousarray(videos[i].data[begin:end]) for i, begin, end in spans]

    made = decode_rows(picked(videos, rows), [v.index for v in videos], read, lambda i: f"film {i}, ", **how)
    data, offsets, shapes, slots = made
    data = data if isinstance(data, np.ndarray) else data.cpu().numpy()
    return [(data[offsets[i] : offsets[i + 1]], int(shapes[i, 3])) for i in slots.tolist()], made


def checksums(planes, height, width):
    ends = np.cumsum([height * width, height * width // 4, height * width // 4])
    return [zlib.crc32(np.ascontiguousarray(part)) for part in np.split(planes, ends[:-1])]


def wrong_planes(name, video, rows, made):
    """``(row, plane)`` of what differs from PyAV: compared as a list, so that a failure shows all of it."""
    track, want = video.index.track, expected(name)
    found = []
    for row, (data, _) in zip(rows, made, strict=True):
        sums = checksums(data, track.height, track.width)
        found += [(row, "YUV"[i]) for i in range(3) if sums[i] != want[row][i]]
    return found
