"""Values as the dtype and the rows that a dataset declares: what does not fit is an error, never another value."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..._core import FormatError
from .paths import need


def as_declared(values: NDArray[Any], dtype: str, where: str) -> NDArray[Any]:
    """Rows as ``dtype``. Floats are rounded to the floats that are declared; all else must stay the same number."""
    have, want = values.dtype, np.dtype(dtype)
    if have == want or have.kind == "b":
        return values.astype(want, copy=False)
    with np.errstate(all="ignore"):
        found = values.astype(want)
        back = found.astype(have)
    if want.kind == "b":
        bad = (values != 0) & (values != 1)
    elif have.kind == want.kind == "f":
        bad = np.isfinite(values) & ~np.isfinite(found)
    elif have.kind == "f" or want.kind == "f":  # beyond the integers a cast gives any number
        floats, limits = (values, np.iinfo(want)) if have.kind == "f" else (found, np.iinfo(have))
        wide = floats.astype(np.float64)
        bad = ~((wide >= float(limits.min)) & (wide < float(limits.max) + 1)) | (back != values)
    else:
        limits = np.iinfo(want)
        bad = (values < limits.min) | (values > limits.max)
    if bad.any():
        at = np.unravel_index(int(bad.argmax()), bad.shape)
        raise FormatError(f"{where}, row {at[0]}: the value is {values[at]} where {dtype} is declared")
    return found


def flat_values(column: Any, where: str, shape: tuple[int, ...] = ()) -> NDArray[Any]:
    """The numbers of a Parquet column, row after row: none is null, and the lists of a level have the same length.
    Lists of lists must have the sizes of ``shape``: as many numbers in another shape are other rows."""
    lengths_of = need("pyarrow.compute", "lerobot").list_value_length
    per_row = 1
    sizes: list[int] = []
    while True:
        if column.null_count:
            row = int(column.is_valid().to_numpy(zero_copy_only=False).argmin()) // per_row
            raise FormatError(f"{where}, row {row}: the value is null")
        if not hasattr(column, "flatten") or not hasattr(column.type, "value_type"):
            wide = [size for size in sizes if size != 1]
            if len(wide) > 1 and wide != [size for size in shape if size != 1]:
                raise FormatError(f"{where}: rows of shape {tuple(sizes)} where {shape} is declared")
            return np.asarray(column.to_numpy(zero_copy_only=False))
        lengths = lengths_of(column).to_numpy(zero_copy_only=False)
        if (odd := lengths != lengths[:1]).any():
            at = int(odd.argmax())
            raise FormatError(
                f"{where}, row {at // per_row}: a list of length {lengths[at]}, but row 0 has length {lengths[0]}"
            )
        if len(lengths):
            sizes.append(int(lengths[0]))
        per_row *= int(lengths[0]) if len(lengths) else 1
        column = column.flatten()
