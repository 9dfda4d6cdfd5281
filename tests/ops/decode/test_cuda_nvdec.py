"""NVDEC: frames of H.264 and HEVC with the bits of PyAV, whose checksums films/ has; hostile packets; memory."""

import numpy as np
import pytest
import torch
from cuda_tools import DEVICE, assert_same_bits, needs_cuda
from film_cases import DECODED, TOO_SMALL, changed, film, planes, wrong_planes
from robocache import FormatError, _core
from robocache.ops.decode import nvdec
from robocache.ops.decode.video import Track
from robocache.ops.decode.yuv import decode_frames

pytestmark = needs_cuda
FLIPS = 100
"""Per film."""
CODECS = {"h264": "h264_wrist", "hevc": "hevc_crop"}


def gpu_memory(size):
    return torch.empty(size, dtype=torch.uint8, device=DEVICE)


def decoded(videos, rows):
    return planes(videos, rows, empty=gpu_memory, decode=nvdec.decode_gops)


def outcome(video):
    """Planes of all rows, or the message of a FormatError."""
    try:
        return [data for data, _ in decoded([video], [(0, row) for row in range(len(video))])[0]]
    except FormatError as error:
        return str(error)


@pytest.fixture(autouse=True)
def _needs_nvdec():
    """A driver without its video library is one that PyAV decodes for: nothing to test."""
    reason = nvdec.why_not(film("h264_wrist").index.track, 0)
    if "cannot be opened" in reason:
        pytest.skip(reason)


@pytest.mark.parametrize("name", DECODED)
def test_every_frame_has_the_bits_of_pyav(name):
    video = film(name)
    assert nvdec.why_not(video.index.track, 0) == ""
    rows = [*range(len(video))]
    made, _ = decoded([video], [(0, row) for row in rows])
    assert wrong_planes(name, video, rows, made) == []


@pytest.mark.parametrize("name", TOO_SMALL)
def test_what_the_gpu_does_not_decode_has_a_reason(name):
    track = film(name).index.track
    assert f"got {track.height} x {track.width}" in nvdec.why_not(track, 0)
    with pytest.raises(NotImplementedError, match="decode_video: this GPU decodes"):
        decoded([film(name)], [(0, 0)])


@pytest.mark.parametrize("name", DECODED)
def test_frames_in_any_order_and_more_than_once_are_the_same(name, rng):
    video = film(name)
    for count in (1, 1, 2, 5):
        rows = rng.integers(0, len(video), count).tolist()
        made, _ = decoded([video], [(0, row) for row in rows])
        assert wrong_planes(name, video, rows, made) == []


def test_a_batch_of_many_films_has_the_frames_of_each(rng):
    """Sizes and codecs change from GOP to GOP, so decoders are kept and taken again."""
    videos = [film(name) for name in DECODED]
    for _ in range(6):
        rows = [(i, int(rng.integers(0, len(videos[i])))) for i in rng.integers(0, len(videos), 64).tolist()]
        made, _ = decoded(videos, rows)
        for (i, row), one in zip(rows, made, strict=True):
            assert wrong_planes(DECODED[i], videos[i], [row], [one]) == [], DECODED[i]


def test_each_gop_is_sent_once_and_only_as_far_as_it_is_needed(monkeypatch):
    video = film("h264_wrist")
    calls = []
    right = _core.decode_video
    monkeypatch.setattr(_core, "decode_video", lambda tracks, gops, out: calls.append(gops) or right(tracks, gops, out))
    rows = (3, 3, 1, 20, 14, 2)
    decoded([video], [(0, row) for row in rows])
    (gops,) = calls
    wanted = video.index.gops[np.isin(video.index.rows, rows)]
    assert len(gops) == len(set(wanted.tolist())) == 3
    assert all(len(gop[2]) == max(gop[4]) + 2 for gop in gops)


def test_pixels_are_those_of_the_same_planes_on_the_cpu(rng):
    video = film("h264_full")
    made, (data, offsets, shapes, slots) = decoded([video], [(0, row) for row in (4, 0, 2)])
    assert {form for _, form in made} == {4}  # BT.709, 0 to 255
    got = decode_frames(data, offsets, shapes, slots, device=torch.device(DEVICE), size=(48, 40))
    want = decode_frames(data.cpu().numpy(), offsets, shapes, slots, size=(48, 40))
    assert_same_bits(got, torch.as_tensor(np.asarray(want)), "resized")


@pytest.mark.parametrize("name", ["h264_wrist", "hevc_crop"])
def test_streams_with_start_codes_decode_like_those_with_lengths(name):
    """Annex B: parameter sets in the first packet of each GOP, no extradata."""
    video = film(name)
    index = video.index
    sets = parameter_sets(index.track)
    parts = []
    for i, (begin, end) in enumerate(zip(index.offsets[:-1], index.offsets[1:], strict=True)):
        units = b"".join(b"\0\0\0\1" + unit for unit in units_of(video.data[begin:end].tobytes(), 4))
        parts.append((sets if index.keys[i] else b"") + units)
    track = Track(index.track.codec, index.track.width, index.track.height, "yuv420p", 2, 0)
    sizes = [len(part) for part in parts]
    stream = changed(video, np.frombuffer(b"".join(parts), np.uint8), track=track, sizes=sizes)
    rows = [*range(len(video))]
    made, _ = decoded([stream], [(0, row) for row in rows])
    assert wrong_planes(name, video, rows, made) == []


def units_of(data, length_bytes):
    at, units = 0, []
    while at < len(data):
        size = int.from_bytes(data[at : at + length_bytes], "big")
        units.append(data[at + length_bytes : at + length_bytes + size])
        at += length_bytes + size
    return units


def parameter_sets(track):
    data, found = track.extradata, b""
    if track.codec == "h264":
        at = 5
        for mask in (31, 255):
            count, at = data[at] & mask, at + 1
            for _ in range(count):
                size = int.from_bytes(data[at : at + 2], "big")
                found, at = found + b"\0\0\0\1" + data[at + 2 : at + 2 + size], at + 2 + size
        return found
    at = 23
    for _ in range(data[22]):
        count, at = int.from_bytes(data[at + 1 : at + 3], "big"), at + 3
        for _ in range(count):
            size = int.from_bytes(data[at : at + 2], "big")
            found, at = found + b"\0\0\0\1" + data[at + 2 : at + 2 + size], at + 2 + size
    return found


def still_right(codec):
    """Later calls are right after a fault: decoders that have met one are not used again."""
    name = CODECS[codec]
    video = film(name)
    rows = [*range(len(video))]
    made, _ = decoded([video], [(0, row) for row in rows])
    assert wrong_planes(name, video, rows, made) == []


@pytest.mark.parametrize("codec", CODECS)
def test_flipped_bits_give_frames_or_an_error_that_names_the_frame(codec):
    video = film(CODECS[codec])
    rng = np.random.default_rng(11)
    refused = 0
    for _ in range(FLIPS):
        bad = video.data.copy()
        for at in rng.integers(0, 8 * len(bad), int(rng.integers(1, 6))):
            bad[at // 8] ^= np.uint8(1 << at % 8)
        found = outcome(changed(video, bad))
        if isinstance(found, str):
            refused += 1
            assert found.startswith(("film 0, frame ", "film 0, packet ")), found
    assert refused
    still_right(codec)


@pytest.mark.parametrize("codec", CODECS)
def test_truncated_packets_are_refused(codec):
    video = film(CODECS[codec])
    for keep in (1, 2, 7, 40):
        spans = zip(video.index.offsets[:-1], video.index.offsets[1:], strict=True)
        parts = [video.data[begin : min(end, begin + keep)].tobytes() for begin, end in spans]
        found = outcome(changed(video, np.frombuffer(b"".join(parts), np.uint8), sizes=[len(part) for part in parts]))
        assert isinstance(found, str), keep
        assert "cannot be decoded" in found or "must decode to a frame" in found or "is damaged" in found
    still_right(codec)


@pytest.mark.parametrize("codec", CODECS)
def test_packets_in_another_order_are_refused_or_decoded(codec, rng):
    video = film(CODECS[codec])
    offsets = video.index.offsets
    for _ in range(10):
        order = rng.permutation(len(video.index.sizes))
        data = np.concatenate([video.data[offsets[i] : offsets[i + 1]] for i in order])
        outcome(changed(video, data, sizes=video.index.sizes[order]))
    outcome(changed(video, keys=np.ones(len(offsets) - 1, bool)))  # entry points that are none
    still_right(codec)


@pytest.mark.parametrize("codec", CODECS)
def test_random_bytes_and_missing_parameter_sets_are_refused(codec, rng):
    video = film(CODECS[codec])
    for _ in range(10):
        assert isinstance(outcome(changed(video, rng.integers(0, 256, len(video.data), dtype=np.uint8))), str)
    track = video.index.track
    bare = Track(codec, track.width, track.height, "yuv420p", 2, 0)
    assert isinstance(outcome(changed(video, track=bare)), str)
    still_right(codec)


@pytest.mark.parametrize("codec", CODECS)
def test_frames_of_another_size_than_declared_are_refused(codec):
    video = film(CODECS[codec])
    track = video.index.track
    for height, width in ((track.height, track.width + 2), (track.height - 2, track.width), (400, 560)):
        found = outcome(changed(video, track=Track(codec, width, height, "yuv420p", 2, 0, track.extradata)))
        assert isinstance(found, str)
        assert f"must be {height} x {width}, got {track.height} x {track.width}" in found
    still_right(codec)


def test_a_size_that_changes_inside_a_gop_is_refused():
    """A packet of a larger film, with its parameter sets, after those of a small one: no frame of it is written."""
    small, large = film("h264_wrist"), film("h264_vga")
    index, first = small.index, large.data[: large.index.offsets[1]].tobytes()
    units = [unit[4:] for unit in split_start_codes(parameter_sets(large.index.track))]
    other = b"".join(len(unit).to_bytes(4, "big") + unit for unit in units) + first
    data = small.data[: index.offsets[4]].tobytes() + other + small.data[index.offsets[5] :].tobytes()
    sizes = index.sizes.copy()
    sizes[4] = len(other)
    found = outcome(changed(small, np.frombuffer(data, np.uint8), sizes=sizes))
    assert isinstance(found, str)
    assert "must be 96 x 96, got 480 x 640" in found
    still_right("h264")


def split_start_codes(data):
    return [b"\0\0\0\1" + unit for unit in data.split(b"\0\0\0\1")[1:]]


def test_the_fault_of_one_film_leaves_those_of_others_right():
    videos = [film("h264_wrist"), film("h264_vga")]
    noise = np.random.default_rng(0).integers(0, 256, len(videos[0].data), dtype=np.uint8)
    rows = [(i, row) for i in (0, 1) for row in range(10)]
    with pytest.raises(FormatError, match=r"^film 0, frame \d+ "):
        decoded([changed(videos[0], noise), videos[1]], rows)
    still_right("h264")


@pytest.mark.alone
def test_memory_of_the_gpu_is_flat_over_many_batches(rng):
    videos = [film(name) for name in ("h264_wrist", "h264_vga", "hevc_vga", "hevc_crop")]

    def batch():
        decoded(videos, [(i, int(rng.integers(0, len(videos[i])))) for i in rng.integers(0, 4, 16).tolist()])

    for _ in range(100):
        batch()
    torch.cuda.synchronize()
    before = torch.cuda.mem_get_info()[0]
    for _ in range(300):
        batch()
    torch.cuda.synchronize()
    assert before - torch.cuda.mem_get_info()[0] < 64 << 20


@pytest.mark.alone
def test_released_decoders_give_their_memory_back_and_are_made_again():
    still_right("h264")
    held = torch.cuda.mem_get_info()[0]
    _core.release_video_decoders()
    assert torch.cuda.mem_get_info()[0] > held
    still_right("h264")


def test_frames_are_written_on_the_stream_of_the_caller():
    """Work that is queued before the call reads its output as it was."""
    video = film("h264_vga")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        memory = torch.zeros(10 * video.index.track.frame_bytes, dtype=torch.uint8, device=DEVICE)
        torch.cuda._sleep(100_000_000)
        before = memory.clone()
        rows = [(0, row) for row in range(10)]
        made, _ = planes([video], rows, empty=lambda size: memory[:size], decode=nvdec.decode_gops)
    stream.synchronize()
    assert not before.any()
    assert wrong_planes("h264_vga", video, [*range(10)], made) == []
