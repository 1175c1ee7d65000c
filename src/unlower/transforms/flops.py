"""`count_flops`: floating-point operations, counted without running anything."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from unlower.errors import UnlowerError
from unlower.interpret import Fold

__all__ = ["Count", "CountError", "count_flops"]


class CountError(UnlowerError, ValueError):
    """A count that depends on how often a loop runs was asked for a number."""


class Count:
    """A number of operations, which may depend on the trips of `while` loops.

    Attributes:
      terms: names of the loops around, each once for each time that it multiplies -> operations.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> f = lambda x: jax.lax.while_loop(lambda c: c[0] < 9, lambda c: c * 2 + 1, x)
      >>> count = count_flops(f)(jnp.ones(10))
      >>> print(count)
      20 * while
      >>> count.at({"while": 4})
      80
    """

    def __init__(self, terms: Mapping[tuple[str, ...], int]):
        self.terms = {names: number for names, number in terms.items() if number}

    @classmethod
    def of(cls, number: int) -> "Count":
        """A number that depends on nothing."""
        return cls({(): number})

    def __add__(self, other: "Count") -> "Count":
        names = [*self.terms, *(n for n in other.terms if n not in self.terms)]
        return Count({n: self.terms.get(n, 0) + other.terms.get(n, 0) for n in names})

    def __mul__(self, times: int) -> "Count":
        return Count({names: number * times for names, number in self.terms.items()})

    def times(self, loop: str) -> "Count":
        """This count for each trip of a loop."""
        return Count({(loop, *names): number for names, number in self.terms.items()})

    def at(self, trips: Mapping[str, int]) -> int:
        """The number for given trips: name of a loop -> how often it runs.

        Raises:
          CountError: a loop is missing.
        """
        missing = sorted({name for names in self.terms for name in names if name not in trips})
        if missing:
            raise CountError(
                f"how often {', '.join(missing)} runs is not known before it does",
                mend="pass the trips: count.at({" + ", ".join(f"{name!r}: 100" for name in missing) + "})",
            )
        return sum(number * math.prod(trips[name] for name in names) for names, number in self.terms.items())

    def __int__(self) -> int:
        return self.at({})

    __index__ = __int__

    def __eq__(self, other: object) -> bool:
        terms = {(): other} if isinstance(other, int) and other else {} if other == 0 else getattr(other, "terms", None)
        return self.terms == terms

    def __hash__(self) -> int:
        return hash(frozenset(self.terms.items()))

    def __repr__(self) -> str:
        return f"Count({self})"

    def __str__(self) -> str:
        parts = [" * ".join([f"{number:,}".replace(",", "_"), *names]) for names, number in self.terms.items()]
        return " + ".join(parts) or "0"


def count_flops(function: Callable[..., Any]) -> Callable[..., Count]:
    """Counts the floating-point operations of a function.

    A product of m x k and k x n counts 2mkn, a convolution two for each term it sums; elementwise operations count one for each
    element of the result, reductions one for each of the operand; moving values, integers and comparisons count nothing. A
    `scan` counts its length times, a `cond` its most expensive branch, term by term where they depend on loops, a `shard_map`
    all shards, and a `while` by its trips, which `Count.at` takes.

    Args:
      function: a function of JAX arrays.

    Returns:
      a function of the same arguments (arrays, or `jax.ShapeDtypeStruct`s) that returns a `Count`; `int(count)` is the number.

    Example:
      >>> import jax.numpy as jnp
      >>> int(count_flops(lambda x, w: jnp.tanh(x @ w))(jnp.ones((8, 32)), jnp.ones((32, 4))))
      2080
    """
    return _FOLD.of(function)


def _measure(equation: Any) -> Count:
    out = equation.outvars[0].aval if equation.outvars else None
    name, operands = equation.primitive.name, [v.aval for v in equation.invars]
    if name in _PRODUCTS:
        return Count.of(_PRODUCTS[name](equation.params, operands, out))
    if out is None or not _is_float(out) or name in _FREE:
        return Count.of(0)
    counted = operands[0] if name.startswith(("reduce_", "cum")) or name == "argmax" else out
    if name.startswith("reduce_window") or name == "select_and_scatter_add":
        window = equation.params.get("window_dimensions", ())
        return Count.of(math.prod(out.shape) * math.prod(window))
    if name.startswith("scatter"):
        counted = operands[2]
    return Count.of(math.prod(counted.shape))


def _is_float(aval: Any) -> bool:
    return jnp.issubdtype(getattr(aval, "dtype", jnp.int32), jnp.inexact)


def _dot(params: Any, operands: Sequence[Any], out: Any) -> int:
    (contracted, _), _ = params["dimension_numbers"]
    return 2 * math.prod(out.shape) * math.prod(operands[0].shape[d] for d in contracted)


def _convolution(params: Any, operands: Sequence[Any], out: Any) -> int:
    spec = params["dimension_numbers"].rhs_spec
    return 2 * math.prod(out.shape) * math.prod(operands[1].shape[d] for d in spec[1:])


def _ragged(params: Any, operands: Sequence[Any], out: Any) -> int:
    numbers = params.get("ragged_dot_dimension_numbers")
    (contracted, _), _ = numbers.dot_dimension_numbers if numbers is not None else (((1,), ()), ())
    return 2 * math.prod(out.shape) * math.prod(operands[0].shape[d] for d in contracted)


_PRODUCTS = {
    "dot_general": _dot,
    "conv_general_dilated": _convolution,
    "ragged_dot_general": _ragged,
    "ragged_dot": _ragged,
}

_FREE = frozenset(
    [
        "all_gather", "all_to_all", "bitcast_convert_type", "broadcast_in_dim", "concatenate", "convert_element_type", "copy",
        "copy_p", "dynamic_slice", "dynamic_update_slice", "expand_dims", "gather", "iota", "name", "optimization_barrier",
        "pad", "pbroadcast", "pcast", "ppermute", "pvary", "reduce_precision", "reshape", "rev", "select_n",
        "sharding_constraint", "slice", "sort", "split", "squeeze", "stop_gradient", "tag", "transpose",
    ]
)  # fmt: skip


def _largest(branches: Sequence[Count]) -> Count:
    """The most expensive branch; term by term where they depend on loops, which is a bound."""
    names = dict.fromkeys(n for branch in branches for n in branch.terms)
    return Count({n: max(branch.terms.get(n, 0) for branch in branches) for n in names})


def _loop(condition: Count, body: Count, name: str) -> Count:
    return condition + (condition + body).times(name)


_FOLD: Fold[Count] = Fold(_measure, zero=Count({}), choose=_largest, loop=_loop)
