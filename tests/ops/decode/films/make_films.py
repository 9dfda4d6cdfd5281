"""Writes films.npz: small videos of H.264 and HEVC, and checksums of their planes as PyAV decodes them.

    python tests/ops/decode/films/make_films.py

A machine with a GPU may have no PyAV; its tests compare what NVDEC decodes with these. Encoders need not give the same
bytes in every version, so the file is kept; tests/ops/decode/test_films.py compares it with PyAV.
"""

import io
import json
import sys
import zlib
from pathlib import Path

import av
import numpy as np

FILE = Path(__file__).with_name("films.npz")
X264 = {"preset": "medium", "crf": "32"}
X265 = "log-level=none:crf=34:pools=1:frame-threads=1"
OPEN = "keyint=6:min-keyint=6:bframes=2:open-gop=1:scenecut=0"

FILMS = {
    # name: codec, height, width, frames, options
    "h264_wrist": ("h264", 96, 96, 40, {"g": "12", "bf": "3", "x264-params": "b-pyramid=normal:ref=4"}),
    "h264_vga": ("h264", 480, 640, 10, {"g": "5", "bf": "2"}),
    "h264_realsense": ("h264", 480, 848, 8, {"g": "8", "bf": "0"}),
    "h264_1080": ("h264", 1080, 1920, 3, {"g": "3", "bf": "1"}),
    "h264_crop": ("h264", 90, 134, 16, {"g": "8", "bf": "2", "x264-params": "cabac=0:slices=3"}),
    "h264_open": ("h264", 96, 128, 24, {"g": "6", "bf": "2", "x264-params": "open-gop=1:scenecut=0"}),
    "h264_long": ("h264", 64, 96, 120, {"g": "120", "bf": "3", "x264-params": "ref=8:scenecut=0"}),
    "h264_base": ("h264", 96, 96, 12, {"g": "4", "bf": "0", "profile": "baseline"}),
    "h264_fields": ("h264", 96, 96, 12, {"g": "6", "bf": "2", "x264-params": "tff=1"}),
    "h264_full": ("h264", 96, 96, 6, {"g": "6", "bf": "2", "x264-params": "fullrange=on:colormatrix=bt709"}),
    "h264_tiny": ("h264", 32, 32, 6, {"g": "3"}),
    "hevc_vga": ("hevc", 480, 640, 10, {"x265-params": f"{X265}:keyint=5:min-keyint=5:bframes=3"}),
    "hevc_realsense": ("hevc", 480, 848, 8, {"x265-params": f"{X265}:keyint=8:bframes=0"}),
    "hevc_crop": ("hevc", 150, 202, 24, {"x265-params": f"{X265}:keyint=8:bframes=4:b-pyramid=1:ctu=16:ref=4"}),
    "hevc_open": ("hevc", 144, 176, 24, {"x265-params": f"{X265}:{OPEN}"}),
    "hevc_long": ("hevc", 144, 144, 90, {"x265-params": f"{X265}:keyint=90:bframes=3:scenecut=0:ctu=32"}),
    "hevc_small": ("hevc", 96, 96, 6, {"x265-params": f"{X265}:keyint=3:ctu=16"}),
}


def scene(rng, count, height, width):
    """Waves and boxes that move over a still background with some texture."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    still = rng.integers(0, 12, (height // 8 + 1, width // 8 + 1, 3)).repeat(8, 0).repeat(8, 1)[:height, :width]
    for i in range(count):
        wave = 90 + 60 * np.sin((x + 5 * i) / 37) + 40 * np.cos((y - 3 * i) / 23)
        frame = wave[..., None] * np.array([1.0, 0.8, 0.6]) + still
        top, left = (3 * i) % (height - height // 4), (7 * i) % (width - width // 4)
        frame[top : top + height // 4, left : left + width // 4] = (220, 40, (9 * i) % 256)
        yield np.clip(frame, 0, 255).astype(np.uint8)


def encoded(codec, height, width, count, options, full_range):
    """The bytes of a file."""
    file = io.BytesIO()
    rng = np.random.default_rng([height, width, count])
    with av.open(file, "w", format="mp4") as container:
        name = {"h264": "libx264", "hevc": "libx265"}[codec]
        stream = container.add_stream(name, rate=10, options=options | (X264 if codec == "h264" else {}))
        stream.height, stream.width = height, width
        stream.pix_fmt = "yuvj420p" if full_range else "yuv420p"
        stream.codec_context.thread_count = 1
        for frame in scene(rng, count, height, width):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    return file.getvalue()


def checksums(frame):
    """Of Y, U and V without padding."""
    made = []
    for i, plane in enumerate(frame.planes):
        height, width = frame.height >> (i > 0), frame.width >> (i > 0)
        samples = np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)[:height, :width]
        made.append(zlib.crc32(np.ascontiguousarray(samples)))
    return made


def packed(file):
    """What is kept of a file: its packets in decode order and the checksums of its frames in that of presentation."""
    with av.open(io.BytesIO(file)) as container:
        stream = container.streams.video[0]
        packets = [packet for packet in container.demux(stream) if packet.size]
        context = stream.codec_context
        facts = [context.name, context.width, context.height, context.pix_fmt, int(context.colorspace)]
        facts += [int(context.color_range), stream.time_base.numerator, stream.time_base.denominator]
        extradata = bytes(context.extradata)
    with av.open(io.BytesIO(file)) as container:
        sums = [checksums(frame) for frame in container.decode(video=0)]
    return {
        "facts": np.frombuffer(json.dumps(facts).encode(), np.uint8),
        "extradata": np.frombuffer(extradata, np.uint8),
        "data": np.frombuffer(b"".join(map(bytes, packets)), np.uint8),
        "sizes": np.array([packet.size for packet in packets], np.int32),
        "times": np.array([packet.pts for packet in packets], np.int32),
        "keys": np.array([packet.is_keyframe for packet in packets], bool),
        "checksums": np.array(sums, np.uint32),
    }


def main():
    arrays = {}
    for name, (codec, height, width, count, options) in FILMS.items():
        made = packed(encoded(codec, height, width, count, options, name == "h264_full"))
        assert len(made["checksums"]) == len(made["sizes"]) == count, name
        print(f"{name}: {len(made['data'])} bytes, {bytes(made['facts'])}", file=sys.stderr)
        arrays |= {f"{name}/{key}": value for key, value in made.items()}
    np.savez_compressed(FILE, **arrays)


if __name__ == "__main__":
    main()
