"""Where arithmetic on integers may wrap around, judged by floating-point estimates that err to the safe side."""

from typing import Any

import jax.numpy as jnp


def is_integer(value: Any) -> bool:
    """Whether an array holds integers."""
    return jnp.issubdtype(value.dtype, jnp.integer)


def as_real(value: Any) -> Any:
    """An estimate of integers that does not wrap around."""
    return jnp.asarray(value).astype(jnp.float32)


def leaves_range(dtype: Any, *estimates: Any) -> Any:
    """Whether one of some estimates, element by element, may lie outside what an integer dtype holds."""
    info = jnp.iinfo(dtype)
    low, high = float(info.min), float(info.max)
    if info.bits > 16:  # float32 does not hold these exactly
        low, high = low * (1 - 1e-5), high * (1 - 1e-5)
    found: Any = jnp.zeros((), bool)
    for estimate in estimates:
        found = found | ~((estimate > low - 0.5) & (estimate < high + 0.5))
    return found


def is_below(lhs: Any, rhs: Any) -> Any:
    """Whether a difference of unsigned integers is negative: known exactly, whatever their size."""
    return lhs < rhs if jnp.issubdtype(lhs.dtype, jnp.unsignedinteger) else jnp.zeros((), bool)


def whole_range_where(wraps: Any, lower: Any, upper: Any) -> tuple[Any, Any]:
    """Two ends, or the least and the greatest integer of their dtype where `wraps` holds."""
    info = jnp.iinfo(lower.dtype)
    least, greatest = jnp.asarray(info.min, lower.dtype), jnp.asarray(info.max, lower.dtype)
    return jnp.where(wraps, least, lower), jnp.where(wraps, greatest, upper)
