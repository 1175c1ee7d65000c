"""Reducer regions: which monoid they are, its identity, and how to run them over whole arrays."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax

from unlower._jax_compat import eval_closed_jaxpr, max_identity, min_identity, open_closed_jaxpr, primitives

__all__ = ["Monoid", "elementwise", "find_monoid", "is_identity", "promote"]


class Monoid(NamedTuple):
    """A reduction that `lax` has primitives for.

    Attributes:
      name: `sum`, `prod`, `max`, `min`, `or`, `and` or `xor`.
      identity: dtype -> what its primitives start from, which they put into the module themselves.
    """

    name: str
    identity: Callable[[np.dtype], np.ndarray]


def _all_ones(dtype: np.dtype) -> np.ndarray:
    return np.array(True) if dtype == bool else np.array(-1).astype(dtype)


_MONOIDS = {
    primitives.add_p: Monoid("sum", lambda dtype: np.array(0, dtype)),
    primitives.mul_p: Monoid("prod", lambda dtype: np.array(1, dtype)),
    primitives.max_p: Monoid("max", max_identity),
    primitives.min_p: Monoid("min", min_identity),
    primitives.or_p: Monoid("or", lambda dtype: np.array(0, dtype)),
    primitives.and_p: Monoid("and", _all_ones),
    primitives.xor_p: Monoid("xor", lambda dtype: np.array(0, dtype)),
}


def find_monoid(region: Any, *, ordered: bool = True) -> Monoid | None:
    """Returns the monoid that a region's closed Jaxpr computes: one operation of both arguments, returned.

    Args:
      region: a closed Jaxpr.
      ordered: ask that the operation take the arguments in their order, so that lowering gives the same text.
    """
    parts = open_closed_jaxpr(region)
    if len(parts.eqns) != 1 or len(parts.invars) != 2 or len(parts.outvars) != 1:
        return None
    (equation,) = parts.eqns
    inputs = list(equation.invars)
    if equation.outvars[0] is not parts.outvars[0] or equation.invars[0].aval.dtype != parts.outvars[0].aval.dtype:
        return None
    if inputs != list(parts.invars) and (ordered or inputs[::-1] != list(parts.invars)):
        return None
    return _MONOIDS.get(equation.primitive)


def is_identity(monoid: Monoid, value: Any) -> bool:
    """Whether a value is known, and has the bits of the monoid's identity (a sum may start from -0.0, which is none)."""
    if not isinstance(value, np.ndarray) or value.shape != ():
        return False
    return monoid.identity(value.dtype).tobytes() == value.tobytes()


def promote(region: Any, captured: int, operands: Sequence[Any]) -> list[Any]:
    """Converts operands to the types that a region's arguments have.

    The specification lets a region compute in wider types than its operands have; XLA does not.
    """
    wanted = [aval.dtype for aval in region.in_avals[captured:]]
    return [
        x if x.dtype == dtype else lax.convert_element_type(x, dtype)
        for x, dtype in zip(operands, wanted[: len(operands)], strict=True)
    ]


def elementwise(region: Any, captures: Sequence[Any]) -> Callable[..., tuple[Any, ...]]:
    """Returns the function that runs a region of scalars on arrays of one shape, element by element."""
    run = jax.vmap(lambda *scalars: tuple(eval_closed_jaxpr(region, *captures, *scalars)))

    def over_arrays(*arrays: Any) -> tuple[Any, ...]:
        shape = arrays[0].shape
        size = int(np.prod(shape))
        flat = run(*[lax.reshape(array, (size,)) for array in arrays])
        return tuple(lax.reshape(array, shape) for array in flat)

    return over_arrays
