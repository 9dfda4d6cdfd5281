"""Videos for tests: small moving scenes in every codec, as files and as the packets of an episode."""

import fractions
import functools
import io

import numpy as np
from picture_cases import HEIGHT, WIDTH, CameraSource, scene
from robocache.cache.episode import Episode, EpisodeStream, StreamSpec
from robocache.cache.video import Video, VideoIndex
from robocache.ops.decode.video import Track
from robocache.sources.lerobot.write_video import kept_scheduling

try:
    import av
except ImportError:  # a machine with a GPU may have only what the other tests need
    av = None

ENCODERS = {
    "h264": ("libx264", {"bf": "2", "preset": "veryfast"}),
    "hevc": ("libx265", {"x265-params": "log-level=none:ctu=16", "preset": "veryfast"}),
    "av1": ("libsvtav1", {"crf": "30", "preset": "12"}),
    "vp9": ("libvpx-vp9", {"cpu-used": "8"}),
    "mpeg4": ("mpeg4", {"bf": "2"}),
}

IN_ORDER = {
    "h264": {"bf": "0", "preset": "veryfast"},
    "hevc": {"x265-params": "log-level=none:ctu=16:bframes=0:keyint=5:repeat-headers=1", "preset": "veryfast"},
    "vp9": {"cpu-used": "8", "lag-in-frames": "0"},
    "av1": {"crf": "30", "preset": "12", "svtav1-params": "pred-struct=1"},
}
"""Settings without B-frames: frames are shown in the order of their packets."""


def film(rng, count, height=HEIGHT, width=WIDTH):
    """Frames of one scene that moves."""
    wide = scene(rng, height, width + 3 * count)
    return np.stack([np.ascontiguousarray(wide[:, 3 * i : 3 * i + width]) for i in range(count)])


def packets_of(frames, codec, gop=5, pixels="yuv420p", **options):
    """One packet for each frame, without a container: parameter sets are before the keyframes."""
    encoder = av.CodecContext.create(ENCODERS[codec][0], "w")
    encoder.height, encoder.width, encoder.pix_fmt = *frames.shape[1:3], pixels
    encoder.time_base, encoder.framerate = fractions.Fraction(1, 30), 30
    encoder.options = {**IN_ORDER[codec], "g": str(gop), **options}
    packets = []
    with kept_scheduling():  # SVT-AV1 changes it
        encoder.open()
    for i, frame in enumerate(frames):
        picture = av.VideoFrame.from_ndarray(frame, format="rgb24")
        picture.pts = i
        packets += encoder.encode(picture)
    return [bytes(packet) for packet in [*packets, *encoder.encode(None)]]


def mp4(frames, codec, gop=5, pixels="yuv420p", rate=10, path=None, muxer=None, **options):
    """A file with these frames, as bytes, or at ``path``. ``muxer``: options of the container."""
    name, usual = ENCODERS[codec]
    file = io.BytesIO() if path is None else str(path)
    with av.open(file, "w", format="mp4", options=muxer or {}) as container:
        stream = container.add_stream(name, rate=rate, options={"g": str(gop), **usual, **options})
        stream.height, stream.width, stream.pix_fmt = *frames.shape[1:3], pixels
        with kept_scheduling():  # SVT-AV1 changes it
            stream.codec_context.open()
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    return file.getvalue() if path is None else path


def frames_of(file, form="rgb24"):
    """All frames in the order they are shown, by PyAV."""
    with av.open(io.BytesIO(file) if isinstance(file, bytes) else str(file)) as container:
        return [frame if form is None else frame.to_ndarray(format=form) for frame in container.decode(video=0)]


def video_of(file, codec):
    """The packets of a whole file; a row for each frame."""
    with av.open(io.BytesIO(file)) as container:
        stream = container.streams.video[0]
        packets = [packet for packet in container.demux(stream) if packet.size]
        context = stream.codec_context
        track = Track(
            codec, context.width, context.height, context.pix_fmt, int(context.colorspace), int(context.color_range),
            bytes(context.extradata or b""),
        )  # fmt: skip
        base = (stream.time_base.numerator, stream.time_base.denominator)
    times = np.array([packet.pts for packet in packets])
    data = [bytes(packet) for packet in packets]
    keys = [packet.is_keyframe for packet in packets]
    index = VideoIndex(track, base, [len(x) for x in data], times, keys, np.argsort(times, kind="stable"))
    return Video.join(data, index)


def spec_of(codec, height=HEIGHT, width=WIDTH, name="film"):
    return StreamSpec(name, "uint8", (height, width, 3), "image", codec=codec, rate_hz=10.0)


FILMS = {f"film_{codec}": spec_of(codec, name=f"film_{codec}") for codec in ("h264", "av1") if av is not None}


@functools.lru_cache
def encoded_film(seed, codec, count, height, width):
    """A video that is encoded once: an encoder need not give the same bytes twice."""
    frames = film(np.random.default_rng(seed), count, height, width)
    return video_of(mp4(frames, codec, 2 if codec == "av1" else 5), codec)


class FilmSource(CameraSource):
    """Also cameras whose frames are in videos; the h264 one in short GOPs with B-frames, the av1 one in pairs."""

    def episode(self, index):
        films = {name: spec for name, spec in self.specs.items() if spec.codec in ENCODERS}
        all_specs, self.specs = self.specs, {n: s for n, s in self.specs.items() if n not in films}
        try:
            episode = super().episode(index)
        finally:
            self.specs = all_specs
        count = self.messages - 2 * index
        for name, spec in films.items():
            video = encoded_film((self.seed, index, 7), spec.codec, count, *spec.shape[:2])
            episode.streams[name] = EpisodeStream(spec, video, np.arange(count) * 100_000_000)
        return Episode(index, episode.streams, episode.task, episode.meta)
