"""decode_images in functions that JAX traces: bytes and offsets are arrays, everything else is known while tracing."""

from __future__ import annotations

import hashlib
from functools import partial
from typing import Any

import numpy as np

from ... import _core
from ..decode.edits import as_colors, as_crops, as_flips
from ..decode.index import PictureIndex, selected_rows
from .call import (
    Array,
    Result,
    abstract,
    call,
    has_cuda,
    index_operand,
    jax,
    jnp,
    one_by_one,
    operand,
    refuse_choices,
    require_handlers,
)

OP = "decode_images"


def run(
    pictures: Any, index: PictureIndex | None, rows: Any, edits: tuple[Any, Any, Any], style: Any, device: Any
) -> Any:
    """One array: without ``size``, all crops must have one size."""
    require_handlers(OP)
    refuse_choices(OP, None, device)
    if not isinstance(pictures, tuple) or len(pictures) != 2:
        raise ValueError(f"{OP}: pictures must be (bytes, offsets) in a traced call, got {type(pictures).__name__}")
    if not isinstance(index, PictureIndex):
        raise ValueError(
            f"{OP}: index must be given in a traced call, where the bytes cannot be read: make it with index_pictures "
            f"before jax.jit; got {type(index).__name__}"
        )
    picked = np.arange(len(index)) if rows is None else selected_rows(OP, rows)
    count = len(picked)
    arrays = (as_crops(edits[0], count), as_flips(edits[1], count), as_colors(edits[2], count))
    static = (index, picked, arrays, style, key_of(index, picked, arrays, style))
    data, offsets = operand(OP, "bytes", pictures[0]), index_operand(OP, "offsets", pictures[1])
    return decode(static, data, offsets)


def key_of(index: PictureIndex, rows: Any, edits: tuple[Any, ...], style: Any) -> str:
    """Of the contents: the same call has the same key in every process (Note [Specs by content], jax/decode.cpp)."""
    digest = hashlib.blake2b(digest_size=16)
    for array in (index.to_bytes(), rows, *edits):
        digest.update(b"-" if array is None else f"{array.dtype}{array.shape}".encode() + array.tobytes())
    digest.update(repr(style).encode())
    return digest.hexdigest()


def decode(static: tuple[Any, ...], data: Array, offsets: Array) -> Array:
    compute = jax.custom_batching.custom_vmap(partial(decode_one, static))
    # An index belongs to certain bytes, so elements do not fold into pictures.
    compute.def_vmap(lambda n, batched, data, offsets: one_by_one(partial(decode, static), batched, (data, offsets)))
    return compute(data, offsets)


def decode_one(static: tuple[Any, ...], data: Array, offsets: Array) -> Array:
    index, rows, edits, style, key = static
    # On a GPU kernels read the index too, as a constant of the compiled function.
    copy = jnp.asarray(index.to_bytes()) if has_cuda() else jnp.zeros(1, np.uint8)

    def plan(cuda: bool) -> Any:
        return _core.trace_decode(
            key, abstract(OP, "bytes", data, cuda), abstract(OP, "offsets", offsets, cuda, wide=True), index.native,
            abstract(OP, "device_index", copy, cuda) if cuda else None, rows, *edits, *style,
        )  # fmt: skip

    return call("robocache_decode", plan, [Result(*plan(False)[0][0])], [data, offsets, copy])[0]
