"""How ``ingest`` stores pictures: as the bytes that the source has, encoded here, or as pixels."""

from __future__ import annotations

import dataclasses
import io
import json
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._core import FormatError, num_threads
from ..cache.depth_codes import CODES
from ..cache.episode import Episode, EpisodeStream, StreamSpec
from ..cache.pictures import VIDEO_CODECS, Pictures, codec_problem
from ..sources.reading.images import PICTURES, WIDE_PICTURES, not_encoded
from ..sources.reading.isolated import decode_video
from .resize import need_pillow, resize

IMAGES = ("keep", "jpeg", "raw")
QUALITY = 95
SUBSAMPLING = "4:2:0"
DECODED_BYTES = 128 << 20
"""Frames of a video that are in memory at once."""
MARK = "encoded"
"""Key of ``StreamSpec.meta``: what the pictures were before ``ingest`` encoded them, and how."""


@dataclass(frozen=True)
class Stored:
    """The spec of a stream in the cache, and what is noted about its pictures (empty: they are as in the source)."""

    spec: StreamSpec
    note: str = ""


def check_images(images: str, quality: int) -> None:
    if images not in IMAGES:
        raise ValueError(f"ingest: images must be one of {', '.join(IMAGES)}, got {images!r}")
    if isinstance(quality, bool) or not isinstance(quality, int) or not 1 <= quality <= 100:
        raise ValueError(f"ingest: quality must be a whole number from 1 to 100, got {quality!r}")


def stored_pictures(had: StreamSpec, spec: StreamSpec, images: str, quality: int) -> Stored:
    """``had``: of the source. ``spec``: the same with name, dtype and size of the cache."""
    mark = not_encoded(had)
    meta = {key: value for key, value in spec.meta.items() if mark is None or key != PICTURES}
    if spec.kind not in ("image", "depth"):
        return Stored(spec)
    codec = wanted_codec(had, spec, images)
    if CODES in meta and (codec is None or spec.shape != had.shape):
        codec = None  # decoded here: codes are neither resized nor made
        del meta[CODES]
    was = str(mark or had.codec or had.meta.get("stored") or "pixels")
    resized = spec.shape != had.shape
    note = ""
    if codec is not None and (codec != had.codec or resized):
        how = {"quality": quality, "subsampling": SUBSAMPLING} if codec == "jpeg" else {}
        meta[MARK] = {"from": was, **how}
        loss = f"JPEG of quality {quality}" if codec == "jpeg" else "PNG, which is lossless"
        loss = "PNG" if codec == "png" and mark == WIDE_PICTURES else loss
        again = "decoded, resized and encoded again" if resized and had.codec else f"{was}, encoded"
        note = f"{spec.name}: {again} as {loss}"
    elif images == "jpeg" and codec != "jpeg":
        kept = {"png": "PNG", None: "pixels"}[codec]
        note = f"{spec.name}: {spec.dtype} {spec.kind} of shape {spec.shape} cannot be JPEG; stored as {kept}"
    elif images == "keep" and codec is None and had.codec is not None:
        note = f"{spec.name}: resized, so decoded; stored as {spec.dtype} pixels"
    elif images == "keep" and codec is None and mark is not None:
        note = f"{spec.name}: {was}: PNG cannot hold {spec.dtype} of shape {spec.shape}; stored as pixels"
    elif mark == WIDE_PICTURES:
        note = f"{spec.name}: {mark}"
    return Stored(dataclasses.replace(spec, codec=codec, meta=meta), note)


def wanted_codec(had: StreamSpec, spec: StreamSpec, images: str) -> str | None:
    def fits(codec: str) -> bool:
        return not codec_problem(codec, spec.kind, spec.dtype, spec.shape)

    if images == "raw":
        return None
    if images == "jpeg" and fits("jpeg"):
        return "jpeg"
    if had.codec in VIDEO_CODECS and spec.shape != had.shape:
        return "jpeg"  # there is no encoder of video here
    if had.codec is not None:
        return had.codec
    return "png" if not_encoded(had) is not None and fits("png") else None


def converted(stream: EpisodeStream, spec: StreamSpec, quality: int, where: str) -> EpisodeStream:
    """An image or depth stream as the cache stores it. The pictures of ``stream`` are whole. ``where`` names it."""
    same = stream.spec.shape == spec.shape
    if stream.content is not None and stream.spec.codec == spec.codec and same and MARK not in spec.meta:
        return EpisodeStream(spec, stream.content, stream.times)
    if stream.video is not None:
        return converted_video(stream, spec, quality, where)
    values = stream.values if same else resize(stream.values, spec)
    return EpisodeStream(spec, values if spec.codec is None else encode(values, spec, quality), stream.times)


def converted_video(stream: EpisodeStream, spec: StreamSpec, quality: int, where: str) -> EpisodeStream:
    """Frames of a video as pictures or pixels, in parts whose memory is bounded, decoded by the reader process."""
    video = stream.video
    assert video is not None
    step = max(1, DECODED_BYTES // stream.spec.row_bytes)
    pictures: list[bytes] = []
    values = np.empty((len(video) if spec.codec is None else 0, *spec.shape), np.uint8)
    for first in range(0, len(video), step):
        try:
            pixels = decode_video(video, stream.spec, range(first, min(first + step, len(video))))
        except FormatError as error:
            number, what = re.findall(r"(?:frame (\d+))?(.*)", str(error).partition(": ")[2], re.DOTALL)[0]
            raise FormatError(f"{where}: {f'frame {first + int(number)}' if number else ''}{what}") from None
        pixels = pixels if stream.spec.shape == spec.shape else resize(pixels, spec)
        if spec.codec is None:
            values[first : first + len(pixels)] = pixels
        else:
            pictures += [*encode(pixels, spec, quality)]
    return EpisodeStream(spec, values if spec.codec is None else pictures, stream.times)


def encode(values: NDArray[Any], spec: StreamSpec, quality: int = QUALITY) -> Pictures:
    """Pixels ``(n, *spec.shape)`` as pictures of the codec of ``spec``. Pillow encodes, on several threads."""
    pillow = need_pillow("images")
    options: dict[str, Any] = {"compress_level": 1}
    if spec.codec == "jpeg":
        options = {"quality": quality, "subsampling": SUBSAMPLING}

    def one(pixels: NDArray[Any]) -> bytes:
        file = io.BytesIO()
        pillow.fromarray(pixels[:, :, 0] if pixels.shape[2:] == (1,) else pixels).save(file, spec.codec, **options)
        return file.getvalue()

    with ThreadPoolExecutor(num_threads()) as threads:  # Pillow releases the GIL
        return Pictures.of([*threads.map(one, np.ascontiguousarray(values))])


def whole_pictures(episode: Episode, name: str, source: Any) -> EpisodeStream:
    """The encoded stream without damaged pictures; FormatError for those, unless ``repair`` of ``open`` drops them."""
    stream = episode.streams[name]
    if stream.pictures is None:
        return stream
    damaged = stream.pictures.problems(stream.spec)
    if not damaged:
        return stream
    first = min(damaged)
    what = f"picture {first} at {stream.times[first]} ns {damaged[first]}"
    if repairs_of(source).get("missing") != "drop":
        label = getattr(source, "label", None)
        where = label(episode.index) if callable(label) else f"{source.path}: episode {episode.index}"
        raise FormatError(
            f"ingest: {where}, stream {name}, {what}; to leave such pictures out, pass repair={{'missing': 'drop'}}"
        )
    for key, value in (("repairs", len(damaged)), ("repairs_at", f"row {first}: {what}")):
        of_stream = episode.meta.setdefault(key, {}).setdefault(name, {})
        of_stream["missing"] = of_stream.get("missing", 0) + value if key == "repairs" else value
    kept = np.setdiff1d(np.arange(len(stream)), list(damaged))
    return EpisodeStream(stream.spec, stream.pictures[kept], stream.times[kept])


def repairs_of(source: Any) -> Mapping[str, str]:
    """The repairs that the source was opened with."""
    try:
        found = json.loads(getattr(source, "open_options", "{}")).get("repair")
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {}
