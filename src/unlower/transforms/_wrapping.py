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


def difference(lhs: Any, rhs: Any) -> Any:
    """An estimate of `lhs - rhs`: of unsigned integers its sign is exact, whatever their size."""
    estimate = as_real(lhs) - as_real(rhs)
    if not jnp.issubdtype(lhs.dtype, jnp.unsignedinteger):
        return estimate
    return jnp.where(lhs < rhs, jnp.minimum(estimate, -1), jnp.maximum(estimate, 0))


def both_signs(dtype: Any, size: Any) -> tuple[Any, ...]:
    """The estimates of a sum whose terms have this total size; it is not negative where they are unsigned."""
    return (size,) if jnp.issubdtype(dtype, jnp.unsignedinteger) else (size, -size)


def whole_range_where(wraps: Any, lower: Any, upper: Any) -> tuple[Any, Any]:
    """Two ends, or the least and the greatest integer of their dtype where `wraps` holds."""
    info = jnp.iinfo(lower.dtype)
    least, greatest = jnp.asarray(info.min, lower.dtype), jnp.asarray(info.max, lower.dtype)
    return jnp.where(wraps, least, lower), jnp.where(wraps, greatest, upper)
