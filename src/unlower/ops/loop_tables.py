"""What primitives mean on tables: the values of an integer over the iterations of a loop, computed by NumPy in its own type."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

__all__ = ["NUMPY", "Table"]

Table = np.ndarray
"""The values of an integer scalar, one for each iteration; or one value, for all."""


def _truncated(x: Table, y: Table) -> Table:
    """Integer division towards zero; by zero it is -1, as XLA has it."""
    safe = np.where(y == 0, np.ones_like(y), y)
    quotient = np.floor_divide(x, safe)
    quotient = quotient + ((quotient * safe != x) & ((x < 0) != (safe < 0)))
    return np.where(y == 0, -1, quotient)


def _remainder(x: Table, y: Table) -> Table:
    return np.where(y == 0, x, x - _truncated(x, y) * y)


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda params, *inputs: function(*inputs)


NUMPY: Mapping[str, Callable[..., Any]] = {
    **{name: _plain(getattr(np, name)) for name in ("add", "sign", "abs")},
    "sub": _plain(np.subtract),
    "mul": _plain(np.multiply),
    "max": _plain(np.maximum),
    "min": _plain(np.minimum),
    "and": _plain(np.bitwise_and),
    "or": _plain(np.bitwise_or),
    "xor": _plain(np.bitwise_xor),
    "not": _plain(np.invert),
    "neg": _plain(np.negative),
    "div": _plain(_truncated),
    "rem": _plain(_remainder),
    "eq": _plain(np.equal),
    "ne": _plain(np.not_equal),
    "lt": _plain(np.less),
    "le": _plain(np.less_equal),
    "gt": _plain(np.greater),
    "ge": _plain(np.greater_equal),
    "clamp": _plain(lambda low, x, high: np.minimum(np.maximum(x, low), high)),
    "select_n": lambda params, which, no, yes: np.where(which, yes, no),
    "convert_element_type": lambda params, x: x != 0 if params["new_dtype"] == bool else x.astype(params["new_dtype"]),
    "broadcast_in_dim": lambda params, x: x,
    "reshape": lambda params, x: x,
    "squeeze": lambda params, x: x,
    "copy": lambda params, x: x,
    "reduce_and": lambda params, x: x,
}
"""What primitives mean on integers of one element; others are not asked."""
