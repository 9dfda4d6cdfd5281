"""Encoded pictures for tests: small scenes with edges and noise, and a source whose cameras are encoded."""

import io

import numpy as np
from cache_cases import MadeSource
from PIL import Image
from robocache.cache.episode import Episode, EpisodeStream, StreamSpec

HEIGHT, WIDTH = 40, 56


def scene(rng, height=HEIGHT, width=WIDTH, channels=3, dtype=np.uint8):
    """A gradient, a box and some noise: neither flat nor random."""
    y, x = np.mgrid[0:height, 0:width]
    top = np.iinfo(dtype).max
    picture = (np.sin(x / 7 + rng.uniform(0, 6)) + np.cos(y / 5))[..., None] * np.linspace(0.2, 0.3, channels) * top / 2
    picture = picture + top / 2 + rng.normal(0, top / 60, (height, width, channels))
    picture[height // 4 : height // 2, width // 3 : width // 2] = rng.uniform(0, top, channels)
    return np.clip(picture, 0, top).astype(dtype)


def encoded(pixels, format="JPEG", **options):
    file = io.BytesIO()
    Image.fromarray(pixels[:, :, 0] if pixels.shape[2:] == (1,) else pixels).save(file, format, **options)
    return file.getvalue()


def decoded(picture):
    """By Pillow, (height, width, channels) or uint16 (height, width)."""
    pixels = np.asarray(Image.open(io.BytesIO(picture)))
    return pixels.astype(np.uint16) if pixels.dtype != np.uint8 else pixels.reshape(*pixels.shape[:2], -1)


CAMERAS = {
    "front": StreamSpec("front", "uint8", (HEIGHT, WIDTH, 3), "image", codec="jpeg", rate_hz=10.0),
    "gray": StreamSpec("gray", "uint8", (HEIGHT, WIDTH, 1), "image", codec="jpeg"),
    "flat": StreamSpec("flat", "uint8", (HEIGHT, WIDTH, 3), "image", codec="png"),
    "alpha": StreamSpec("alpha", "uint8", (HEIGHT, WIDTH, 4), "image", codec="png"),
    "depth": StreamSpec("depth", "uint16", (HEIGHT, WIDTH), "depth", codec="png", unit="mm"),
}


def pictures_of(spec, rng, count, **options):
    form = "JPEG" if spec.codec == "jpeg" else "PNG"
    channels = spec.shape[2] if len(spec.shape) == 3 else 1
    made = [scene(rng, *spec.shape[:2], channels, spec.numpy_dtype) for _ in range(count)]
    return [encoded(pixels, form, **options) for pixels in made]


class CameraSource(MadeSource):
    """An arm at 50 Hz and encoded cameras at 10 Hz; episodes from a seed, of different lengths."""

    def __init__(self, cameras=CAMERAS, episodes=4, seed=0, frames=12):
        super().__init__({"arm": StreamSpec("arm", "float32", (3,), rate_hz=50.0), **cameras}, episodes, seed, frames)

    def episode(self, index):
        rng = np.random.default_rng([self.seed, index])
        frames = self.messages - 2 * index
        arm = np.cumsum(rng.normal(size=(5 * frames, 3)), axis=0).astype(np.float32)
        streams = {"arm": EpisodeStream(self.specs["arm"], arm, np.arange(5 * frames) * 20_000_000)}
        for name, spec in list(self.specs.items())[1:]:
            times = np.arange(frames) * 100_000_000
            streams[name] = EpisodeStream(spec, pictures_of(spec, rng, frames), times)
        return Episode(index, streams, task="sort", meta={})
