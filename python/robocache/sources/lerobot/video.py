"""The frames of one LeRobot episode out of a video, by PyAV, matched to the table's rows by time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..._core import FormatError
from ...cache.episode import StreamSpec
from ..reading.budget import Budget, add_stored
from ..reading.paths import need
from ..reading.repair import Repairer
from .depth import CODES, LAST_CODE

CONTAINERS = {"format_whitelist": "mov,mp4,matroska,webm,avi", "protocol_whitelist": "file"}
"""A playlist with the name of a video would make FFmpeg open whatever files and addresses it lists."""
EARLY_S = 0.5
"""Videos of several episodes are cut at times that were summed in floats: look a little before."""
BLOCK = 128
"""Codecs round sizes up to whole blocks, of at most so many pixels."""
MIN_PIXELS = 1 << 20
"""FFmpeg's MPEG-4 decoder makes buffers of its own that are larger than a small picture."""
DECODED_PER_STORED = 64
"""A decoded byte allows the processor time of 1 / 64 stored one: a long video of a scene at rest is small."""


class Frames:
    """How the frames of a stream become rows. ``codes``: the depth of each code, where it is a depth map."""

    def __init__(self, spec: StreamSpec, codes: NDArray[Any] | None) -> None:
        self.spec, self.codes = spec, codes
        self.pixels = "rgb24" if codes is None and spec.shape[2] == 3 else "gray"

    def row(self, frame: Any, where: str) -> NDArray[Any]:
        if self.codes is None:
            return np.asarray(frame.to_ndarray(format=self.pixels)).reshape(self.spec.shape)
        if frame.format.name != CODES:
            raise FormatError(f"{where}: frames of a depth map must be {CODES}, got {frame.format.name}")
        plane, (height, width) = frame.planes[0], self.spec.shape
        codes = np.frombuffer(plane, np.uint16).reshape(-1, plane.line_size // 2)[:height, :width]
        return np.asarray(self.codes[np.minimum(codes, LAST_CODE)])


def read_video(
    clip: tuple[Path, float],
    frames: Frames,
    seconds: NDArray[np.float64],
    rate_hz: float,
    repairer: Repairer,
    budget: Budget,
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Pictures and the rows they belong to. A row takes the frame nearest to its time, at most half a row away."""
    path, begin_s = clip
    av = need("av", "lerobot")
    spec = frames.spec
    values = np.empty((0, *spec.shape), spec.numpy_dtype)
    error_s = np.full(len(seconds), np.inf)
    if len(seconds):
        try:
            with av.open(str(path), options=CONTAINERS) as container:
                video = checked_video(container, spec)
                values = np.empty((len(seconds), *spec.shape), spec.numpy_dtype)
                _decode(container, video, frames, begin_s + seconds, 0.5 / rate_hz, values, error_s, budget)
        except av.error.FFmpegError as error:
            raise FormatError(f"{repairer.where}, stream {spec.name}: {path}: {error}") from error
    found = np.isfinite(error_s)
    if not found.all():
        row = int((~found).argmax())
        what = f"row {row}: {path} has no frame at {begin_s + seconds[row]:.4f} s"
        repairer.apply_policy("missing", spec.name, int((~found).sum()), what)
        values = values[found]
    return values, np.flatnonzero(found)


def checked_video(container: Any, spec: StreamSpec) -> Any:
    """The video, whose pictures are as large as declared; frames that grow later are not decoded."""
    if not container.streams.video:
        raise FormatError(f"lerobot: {container.name}: there is no video in it")
    video = container.streams.video[0]
    if (video.height, video.width) != spec.shape[:2]:
        raise FormatError(
            f"lerobot: {container.name}: the video is {video.height} x {video.width}, but {spec.shape[:2]} is declared"
        )
    pixels = max(MIN_PIXELS, (video.height + BLOCK) * (video.width + BLOCK))
    video.codec_context.options = {"max_pixels": str(pixels)}
    return video


def _decode(
    container: Any,
    video: Any,
    frames: Frames,
    wanted_s: NDArray[np.float64],
    reach_s: float,
    values: NDArray[Any],
    error_s: NDArray[np.float64],
    budget: Budget,
) -> None:
    order = np.argsort(wanted_s, kind="stable")  # dirty rows may be in any order; NaN is last and takes no frame
    wanted_s = wanted_s[order]
    origin_s = float((video.start_time or 0) * video.time_base)
    if wanted_s[0] > EARLY_S:
        container.seek(int((wanted_s[0] + origin_s - EARLY_S) / video.time_base), stream=video)
    for frame in container.decode(video):
        budget.count(container.name)
        budget.check_time(container.name)
        if frame.pts is None:
            continue
        at_s = float(frame.pts * video.time_base) - origin_s
        for place in range(*np.searchsorted(wanted_s, (at_s - reach_s, at_s + reach_s))):
            row, off_s = order[place], abs(wanted_s[place] - at_s)
            if off_s < min(error_s[row], reach_s):
                error_s[row] = off_s
                values[row] = frames.row(frame, container.name)
                add_stored(values[row].nbytes // DECODED_PER_STORED)
        if at_s > wanted_s[-1] + EARLY_S:
            break
