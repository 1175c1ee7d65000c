"""Types of a program's arrays: how they are spelled, and where the caller's array has another class than the module's."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from unlower.ir.interface import Input, Output
from unlower.ir.module import Value
from unlower.ir.types import TensorType

__all__ = ["KEYS", "as_seen", "is_key", "list_avals", "spell_aval", "structs_of", "tensor_of", "typeof"]

KEYS = {"key<fry>": "threefry2x32", "key<rbg>": "rbg", "key<urbg>": "unsafe_rbg"}
"""The dtype of a PRNG key -> the name of its implementation."""

_MOST_SHOWN = 12
"""How many types an error message lists."""


def typeof(array: Any) -> Any:
    """Shape and dtype as they are, where `jax.typeof` would narrow NumPy's 64-bit types."""
    return array if isinstance(array, np.ndarray | np.generic) else jax.typeof(array)


def is_key(array: Any) -> bool:
    """Whether an array holds PRNG keys."""
    return hasattr(array, "dtype") and jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key)


def as_seen(array: Any, dtype: str | None) -> Any:
    """A result as the original's caller saw it: a PRNG key, or the tangent of an integer."""
    if dtype in KEYS:
        return jax.random.wrap_key_data(array, impl=KEYS[dtype])
    return array if dtype is None else np.zeros(np.shape(array), jax.dtypes.float0)


def spell_aval(aval: Any) -> str:
    """Spells shape and dtype, e.g. `float32[2,3]`."""
    return f"{aval.dtype.name}[{','.join(str(size).replace(' ', '') for size in aval.shape)}]"


def list_avals(arrays: Sequence[Any]) -> str:
    """Spells the types of arrays, as many as an error message has room for."""
    spelled = [spell_aval(a) if hasattr(a, "dtype") else type(a).__name__ for a in arrays[:_MOST_SHOWN]]
    return ", ".join(spelled + [f"and {len(arrays) - _MOST_SHOWN} more"] * (len(arrays) > _MOST_SHOWN))


def tensor_of(value: Value) -> TensorType:
    """The type of a value that is a tensor."""
    assert isinstance(value.type, TensorType)
    return value.type


def structs_of(
    values: Sequence[Value], declared: Sequence[Input | Output], shown: Sequence[int], prefix: str, scope: Any
) -> tuple[jax.ShapeDtypeStruct, ...]:
    """Shapes and dtypes of the inputs or outputs at the positions `shown`; sizes without a name get one with `prefix`."""
    structs = []
    for position in shown:
        type_ = values[position].type
        if not isinstance(type_, TensorType):
            structs.append(jax.ShapeDtypeStruct((0,), np.dtype(bool)))
            continue
        shape = type_.shape
        if None in shape:
            # Sizes that the file does not spell get names of their own.
            spelled = [*(declared[position].shape or ()), *[None] * len(shape)]
            sizes = [
                str(n if n is not None else f"{prefix}{position}_{i}" if spelled[i] is None else spelled[i])
                for i, n in enumerate(shape)
            ]
            shape = jax.export.symbolic_shape(", ".join(sizes), scope=scope)
        structs.append(jax.ShapeDtypeStruct(shape, type_.dtype))
    return tuple(structs)
