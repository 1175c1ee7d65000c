"""Sort: a comparator that `lax.sort` has is a `lax.sort`, any other stays the operation it is."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import Array, lax

from unlower._jax_compat import Literal, eval_closed_jaxpr, open_closed_jaxpr, primitives, sort_comparator
from unlower.ir.attributes import Int
from unlower.ir.module import Op
from unlower.ir.types import TensorType
from unlower.ops.reemit import (
    Call,
    batch_by_loop,
    batching_rule,
    jvp_rule,
    materialize_batch,
    reemit,
    reemit_p,
    types_of,
)
from unlower.ops.rule import Subprogram, op_rule

__all__ = ["sort", "take_along"]


@op_rule("stablehlo.sort")
def sort(
    op: Op, *operands: Array, dimension: Int | None = None, is_stable: bool = False, comparator: Subprogram
) -> tuple[Array, ...]:
    """Sorts along `dimension` so that `comparator` holds between neighbors.

    Spec: `sort`. A comparator that is the one of `lax.sort` for some number of keys is a `lax.sort`.
    """
    dimension = Int(operands[0].ndim - 1 if dimension is None else dimension)
    region = comparator.jaxpr()
    keys = None if comparator.captures else _key_count(region, tuple(x.dtype for x in operands))
    if keys is not None:
        params = {"dimension": int(dimension), "is_stable": is_stable, "num_keys": keys}
        return tuple(primitives.sort_p.bind(*operands, **params))
    attributes = {"dimension": dimension, "is_stable": is_stable}
    types = types_of(op, *[x.shape for x in operands])
    return reemit(op.name, operands, types, attributes, [region], [comparator.captures])


# --- comparators, compared


def _key_count(region: Any, dtypes: tuple[np.dtype, ...]) -> int | None:
    """For how many keys `lax.sort` has this very comparator, or None."""
    spelled = _spell(region)
    return next((n for n in range(1, len(dtypes) + 1) if spelled == _lax_comparator(dtypes, n)), None)


@functools.lru_cache(maxsize=256)
def _lax_comparator(dtypes: tuple[np.dtype, ...], num_keys: int) -> Any:
    return _spell(sort_comparator(dtypes, num_keys))


_COMPARISONS = {
    primitives.eq_p: ("EQ", False),
    primitives.lt_p: ("LT", False),
    primitives.le_p: ("LE", False),
    primitives.eq_to_p: ("EQ", True),
    primitives.lt_to_p: ("LT", True),
    primitives.le_to_p: ("LE", True),
}


def _spell(region: Any) -> Any:
    """Writes what a closed Jaxpr returns as one nested tuple, so that equal programs are equal whatever their order."""
    parts = open_closed_jaxpr(region)
    known: dict[Any, Any] = {v: ("argument", i) for i, v in enumerate(parts.invars)}
    known |= {v: _constant(c) for v, c in zip(parts.constvars, parts.consts, strict=True)}

    def read(atom: Any) -> Any:
        return _constant(atom.val) if isinstance(atom, Literal) else known[atom]

    for equation in parts.eqns:
        what, atoms = _operation(equation), tuple(map(read, equation.invars))
        for i, v in enumerate(equation.outvars):
            known[v] = (what, i, atoms)
    return tuple(map(read, parts.outvars))


def _constant(value: Any) -> Any:
    array = np.asarray(value)
    return ("constant", array.dtype.name, array.shape, array.tobytes())


def _operation(equation: Any) -> Any:
    is_float = jax.numpy.issubdtype(equation.invars[0].aval.dtype, np.floating)
    if equation.primitive in _COMPARISONS:
        direction, total = _COMPARISONS[equation.primitive]
        # All orders are total but that of floats.
        return ("compare", direction, total and is_float)
    params = equation.params
    if equation.primitive is reemit_p and params["name"] == "stablehlo.compare":
        attributes = params["attributes"]
        return (
            "compare",
            str(attributes["comparison_direction"]),
            is_float and attributes["compare_type"] == "TOTALORDER",
        )
    return (equation.primitive.name, tuple(sorted((name, repr(value)) for name, value in params.items())))


# --- rules of the general sort


@batching_rule("stablehlo.sort")
def _batch_sort(call: Call, size: int, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
    count = len(call.result_types)
    if any(dim is not None for dim in dims[count:]):
        return batch_by_loop(call, size, operands, dims)
    moved = [materialize_batch(x, dim, size) for x, dim in zip(operands[:count], dims, strict=False)]
    batched = call.batched(size, attributes={"dimension": Int(call.attributes["dimension"] + 1)})
    return batched.bind(*moved, *operands[count:]), (0,) * count


@jvp_rule("stablehlo.sort")
def _jvp_sort(call: Call, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """Sorts positions along, and moves the tangents as the values moved."""
    count = len(call.result_types)
    shape, dimension = call.result_types[0].shape, int(call.attributes["dimension"])
    type_ = TensorType(shape, "i32" if shape[dimension] < 2**31 else "i64")
    positions = lax.broadcasted_iota(type_.dtype, shape, dimension)
    (region,), scalar = call.regions, jax.ShapeDtypeStruct((), type_.dtype)
    ignoring = jax.make_jaxpr(lambda *xs: eval_closed_jaxpr(region, *xs[:-2]))(*region.in_avals, scalar, scalar)
    longer = call.replace(result_types=(*call.result_types, type_), regions=(ignoring,))
    *results, order = longer.bind(*primals[:count], positions, *primals[count:])
    moved = [None if t is None else take_along(t, order, dimension) for t in tangents[:count]]
    return results, moved


def take_along(operand: Any, positions: Any, dimension: int) -> Any:
    """Takes from each line of `operand` along `dimension` the elements at `positions`."""
    others = tuple(i for i in range(operand.ndim) if i != dimension)
    numbers = lax.GatherDimensionNumbers(
        offset_dims=(),
        collapsed_slice_dims=(dimension,),
        start_index_map=(dimension,),
        operand_batching_dims=others,
        start_indices_batching_dims=others,
    )
    places = lax.expand_dims(positions, (positions.ndim,))
    return lax.gather(operand, places, numbers, (1,) * operand.ndim, mode="promise_in_bounds")
