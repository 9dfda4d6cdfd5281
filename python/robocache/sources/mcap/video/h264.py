"""H.264: parameter sets and the first slice of a picture (ITU-T H.264, 7.3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .bits import Bits, header, nal_units
from .packet import Form, Packet, pixel_format

SLICE, IDR, SPS, PPS = 1, 5, 7, 8
WITH_CHROMA = (100, 110, 122, 244, 44, 83, 86, 118, 128, 138, 139, 134, 135)
"""Profiles whose parameter sets declare the chroma format."""
B_SLICES = (1, 6)


@dataclass(frozen=True)
class _Sequence:
    form: Form
    number_bits: int
    order_type: int
    frames_only: bool
    separate: bool


class H264:
    def __init__(self) -> None:
        self._sequence: _Sequence | None = None

    def read(self, data: bytes, count: Callable[[], None]) -> Packet:
        sets, pictures = [], []
        for unit in nal_units(data, count):
            kind = unit[0] & 31
            if kind == SPS:
                self._sequence = _sequence(header(unit, 1))
            if kind in (SPS, PPS):
                sets.append(unit)
            if kind in (SLICE, IDR):
                bits = header(unit[:64], 1)
                if bits.ue() == 0:  # the first macroblock of a picture
                    pictures.append((kind, bits))
        if len(pictures) != 1:
            raise ValueError(f"a message must have one picture, got {len(pictures)}")
        kind, bits = pictures[0]
        form = None if self._sequence is None else self._sequence.form
        order = None if self._sequence is None else _order(self._sequence, kind, bits)
        kept = b"".join(b"\0\0\0\1" + unit for unit in sets)
        return Packet(kind == IDR, form, kept, order, kind == IDR)


def _order(sequence: _Sequence, kind: int, bits: Bits) -> int | None:
    slice_type = bits.ue()
    bits.ue()  # number of the picture's parameter set
    if sequence.separate:
        bits.u(2)
    bits.u(sequence.number_bits)
    if not sequence.frames_only and bits.u(1):
        raise ValueError("interlaced video (fields) is not supported")
    if kind == IDR:
        bits.ue()
    if sequence.order_type == 1 and slice_type in B_SLICES:
        raise ValueError("it has B-frames, so frames are not shown in the order of the messages")
    return bits.u(sequence.form.order_bits) if sequence.order_type == 0 else None


def _sequence(bits: Bits) -> _Sequence:
    profile = bits.u(8)
    bits.u(16)  # constraints, level
    bits.ue()
    chroma, depth, separate = 1, 8, False
    if profile in WITH_CHROMA:
        chroma = bits.ue()
        separate = chroma == 3 and bits.u(1) == 1
        depth = 8 + bits.ue()
        bits.ue()
        bits.u(1)
        if bits.u(1):
            for i in range(8 if chroma != 3 else 12):
                if bits.u(1):
                    _skip_scaling_list(bits, 16 if i < 6 else 64)
    number_bits = 4 + bits.ue()
    order_type = bits.ue()
    order_bits = 0
    if order_type == 0:
        order_bits = 4 + bits.ue()
    elif order_type == 1:
        bits.u(1)
        bits.se()
        bits.se()
        for _ in range(min(bits.ue(), 256)):
            bits.se()
    if number_bits > 16 or order_bits > 16 or order_type > 2:
        raise ValueError("the sequence parameter set is not valid")
    bits.ue()
    bits.u(1)
    width, height = 16 * (bits.ue() + 1), 16 * (bits.ue() + 1)
    frames_only = bits.u(1) == 1
    height *= 1 if frames_only else 2
    if not frames_only:
        bits.u(1)
    bits.u(1)
    if bits.u(1):
        across = 2 if chroma in (1, 2) else 1
        down = (2 if chroma == 1 else 1) * (1 if frames_only else 2)
        width -= across * (bits.ue() + bits.ue())
        height -= down * (bits.ue() + bits.ue())
    form = Form(height, width, pixel_format(chroma, depth), order_bits)
    return _Sequence(form, number_bits, order_type, frames_only, separate)


def _skip_scaling_list(bits: Bits, size: int) -> None:
    last = following = 8
    for _ in range(size):
        if following:
            following = (last + bits.se()) % 256
        last = following or last
