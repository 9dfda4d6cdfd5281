"""Operators of PyTorch: ``register`` declares one, with its schema, implementation, fake implementation and gradient.

Every operator of the package goes through here. The modules in ``torch_ops`` only have schemas and functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name)
    for name in (
        "float32", "float16", "bfloat16", "float64", "int8", "int16", "int32", "int64",
        "uint8", "uint16", "uint32", "uint64", "bool",
    )
}  # fmt: skip
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}

_NAMESPACE = "robocache"
_DEVICES = ("CPU", "CUDA")
_library = torch.library.Library(_NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]


def register(
    schema: str,
    parts: tuple[Any, ...],
    *,
    compute: Callable[..., Any],
    fake: Callable[..., Any],
    remember: Callable[..., None] | None = None,
    gradient: Callable[..., dict[str, Any]] | None = None,
) -> None:
    """Registers ``robocache::<name>`` for tensors on the CPU and on CUDA devices.

    ``parts``: NamedTuple classes. Their fields, one class after the other, are the arguments of ``schema``, and every
    function receives a call as one instance of each class:

    - ``compute(*parts)`` returns new tensors.
    - ``fake(*parts)`` returns the same tensors without data. Sizes may be symbolic.
    - ``remember(ctx, parts, outputs)`` keeps what the gradient needs.
    - ``gradient(ctx, *grads)`` returns gradients by the name of their argument.
    """
    name = schema[: schema.index("(")]
    _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))  # type: ignore[no-untyped-call]
    arguments = [a.name for a in getattr(getattr(torch.ops, _NAMESPACE), name).default._schema.arguments]
    fields = [field for part in parts for field in part._fields]
    if arguments != fields:
        raise TypeError(f"{name}: the arguments of its schema are {arguments}, its parts have {fields}")
    ends = list(accumulate(len(part._fields) for part in parts))
    cuts = list(zip(parts, [0, *ends], ends, strict=False))

    def split(args: tuple[Any, ...]) -> list[Any]:
        return [part(*args[begin:end]) for part, begin, end in cuts]

    qualified = f"{_NAMESPACE}::{name}"
    for device in _DEVICES:
        _library.impl(name, lambda *args: compute(*split(args)), device)  # type: ignore[no-untyped-call]
    torch.library.register_fake(qualified, lambda *args: fake(*split(args)), lib=_library)
    if gradient is None:
        return

    def setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.absent = [_no_gradient(x) for x in inputs]
        if remember is not None:
            remember(ctx, split(inputs), output)

    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        found = gradient(ctx, *grads)
        return tuple(found.get(argument, none) for argument, none in zip(arguments, ctx.absent, strict=True))

    torch.library.register_autograd(qualified, backward, setup_context=setup, lib=_library)


def _no_gradient(argument: Any) -> list[None] | None:
    """What PyTorch expects for an argument without a gradient: a None for each tensor of a list of tensors, for which
    it also takes every empty list, else one None."""
    is_tensors = isinstance(argument, list) and all(isinstance(x, Tensor) for x in argument)
    return [None] * len(argument) if is_tensors else None


def refuse_second_order(op: str) -> Callable[..., dict[str, Any]]:
    """The gradient of an operator that is itself a gradient."""

    def refuse(ctx: Any, *grads: Any) -> dict[str, Any]:
        raise RuntimeError(
            f"{op}: the native gradient has no gradient of its own; pass backend='torch' for second derivatives"
        )

    return refuse


def is_traced(tensors: Iterable[Any]) -> bool:
    """Whether a compiler is at work, or there are tensors without data of their own, as compilers use them."""
    if torch.compiler.is_compiling():
        return True
    return any(type(x).__torch_dispatch__ is not Tensor.__torch_dispatch__ for x in tensors)


def detached(x: Any) -> Any:
    return x.detach() if isinstance(x, Tensor) and x.requires_grad else x


def raise_refusal(refusal: str | None) -> None:
    """A call that is refused while it is traced raises when it runs."""
    if refusal is not None:
        raise NotImplementedError(refusal)
