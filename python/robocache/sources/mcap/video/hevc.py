"""HEVC: parameter sets and the first slice segment of a picture (ITU-T H.265, 7.3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .bits import Bits, header, nal_units
from .packet import Form, Packet, pixel_format

VPS, SPS, PPS = 32, 33, 34
INTRA = range(16, 24)
"""Kinds of pictures at which a decoder may begin (IRAP)."""
IDR = (19, 20)
RESTARTS = (16, 17, 18, *IDR)
"""BLA and IDR."""


@dataclass(frozen=True)
class _Picture:
    """Of a picture parameter set."""

    has_output_flag: bool
    extra_bits: int


class Hevc:
    def __init__(self) -> None:
        self._form: Form | None = None
        self._separate = False
        self._pictures: dict[int, _Picture] = {}

    def read(self, data: bytes, count: Callable[[], None]) -> Packet:
        sets, pictures = [], []
        for unit in nal_units(data, count):
            if len(unit) < 3:
                continue
            kind = unit[0] >> 1 & 63
            if kind in (VPS, SPS, PPS):
                sets.append(unit)
            if kind == SPS:
                self._form, self._separate = _sequence(header(unit, 2))
            elif kind == PPS:
                self._add_picture_set(header(unit, 2))
            elif kind < VPS and unit[2] & 0x80:  # the first segment of a picture
                pictures.append((kind, header(unit[:64], 2)))
        if len(pictures) != 1:
            raise ValueError(f"a message must have one picture, got {len(pictures)}")
        kind, bits = pictures[0]
        kept = b"".join(b"\0\0\0\1" + unit for unit in sets)
        return Packet(kind in INTRA, self._form, kept, self._order(kind, bits), kind in RESTARTS)

    def _add_picture_set(self, bits: Bits) -> None:
        number = bits.ue()
        if number > 63:
            raise ValueError("the picture parameter set is not valid")
        bits.ue()
        bits.u(1)
        self._pictures[number] = _Picture(bits.u(1) == 1, bits.u(3))

    def _order(self, kind: int, bits: Bits) -> int | None:
        if kind in IDR:
            return 0
        bits.u(1)
        if kind in INTRA:
            bits.u(1)
        picture = self._pictures.get(bits.ue())
        if picture is None or self._form is None:
            return None
        bits.u(picture.extra_bits)
        bits.ue()  # kind of the slice
        if picture.has_output_flag:
            bits.u(1)
        if self._separate:
            bits.u(2)
        return bits.u(self._form.order_bits)


def _sequence(bits: Bits) -> tuple[Form, bool]:
    bits.u(4)
    layers = bits.u(3)
    bits.u(1)
    bits.u(96)  # profile and level
    present = [(bits.u(1), bits.u(1)) for _ in range(layers)]
    if layers:
        bits.u(2 * (8 - layers))
    for has_profile, has_level in present:
        bits.u(88 * has_profile + 8 * has_level)
    bits.ue()
    chroma = bits.ue()
    separate = chroma == 3 and bits.u(1) == 1
    width, height = bits.ue(), bits.ue()
    if bits.u(1):
        width -= (2 if chroma in (1, 2) else 1) * (bits.ue() + bits.ue())
        height -= (2 if chroma == 1 else 1) * (bits.ue() + bits.ue())
    depth = 8 + bits.ue()
    bits.ue()
    order_bits = 4 + bits.ue()
    if order_bits > 16:
        raise ValueError("the sequence parameter set is not valid")
    return Form(height, width, pixel_format(chroma, depth), order_bits), separate
