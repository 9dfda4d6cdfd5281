"""The frames of one LeRobot episode out of a video, by PyAV, matched to the table's rows by time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._core import FormatError
from .._episode import StreamSpec
from ._paths import need
from ._repair import Repairer

CONTAINERS = {"format_whitelist": "mov,mp4,matroska,webm,avi", "protocol_whitelist": "file"}
"""A playlist with the name of a video would make FFmpeg open whatever files and addresses it lists."""
EARLY_S = 0.5
"""Videos of several episodes are cut at times that were summed in floats: look a little before."""


def read_video(
    clip: tuple[Path, float], spec: StreamSpec, seconds: NDArray[np.float64], rate_hz: float, repairer: Repairer
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Pictures and the rows they belong to. A row takes the frame nearest to its time, at most half a row away."""
    path, begin_s = clip
    av = need("av", "lerobot")
    values = np.empty((0, *spec.shape), np.uint8)
    error_s = np.full(len(seconds), np.inf)
    if len(seconds):
        try:
            with av.open(str(path), options=CONTAINERS) as container:
                video = _checked(container, spec)
                values = np.empty((len(seconds), *spec.shape), np.uint8)
                _decode(container, video, spec, begin_s + seconds, 0.5 / rate_hz, values, error_s)
        except av.error.FFmpegError as error:
            raise FormatError(f"{repairer.where}, stream {spec.name}: {path}: {error}") from error
    found = np.isfinite(error_s)
    if not found.all():
        row = int((~found).argmax())
        what = f"row {row}: {path} has no frame at {begin_s + seconds[row]:.4f} s"
        repairer.ask("missing", spec.name, int((~found).sum()), what)
        values = values[found]
    return values, np.flatnonzero(found)


def _checked(container: Any, spec: StreamSpec) -> Any:
    """The video, whose pictures are as large as declared; frames that grow later are not decoded."""
    if not container.streams.video:
        raise FormatError(f"lerobot: {container.name}: there is no video in it")
    video = container.streams.video[0]
    if (video.height, video.width) != spec.shape[:2]:
        raise FormatError(
            f"lerobot: {container.name}: the video is {video.height} x {video.width}, declared is {spec.shape[:2]}"
        )
    # Codecs round sizes up to whole blocks, of at most 128 pixels.
    video.codec_context.options = {"max_pixels": str((video.height + 128) * (video.width + 128))}
    return video


def _decode(
    container: Any,
    video: Any,
    spec: StreamSpec,
    wanted_s: NDArray[np.float64],
    reach_s: float,
    values: NDArray[Any],
    error_s: NDArray[np.float64],
) -> None:
    order = np.argsort(wanted_s, kind="stable")  # dirty rows may be in any order; NaN is last and takes no frame
    wanted_s = wanted_s[order]
    origin_s = float((video.start_time or 0) * video.time_base)
    if wanted_s[0] > EARLY_S:
        container.seek(int((wanted_s[0] + origin_s - EARLY_S) / video.time_base), stream=video)
    for frame in container.decode(video):
        if frame.pts is None:
            continue
        at_s = float(frame.pts * video.time_base) - origin_s
        for place in range(*np.searchsorted(wanted_s, (at_s - reach_s, at_s + reach_s))):
            row, off_s = order[place], abs(wanted_s[place] - at_s)
            if off_s < min(error_s[row], reach_s):
                error_s[row] = off_s
                values[row] = frame.to_ndarray(format="rgb24" if spec.shape[2] == 3 else "gray").reshape(spec.shape)
        if at_s > wanted_s[-1] + EARLY_S:
            break
