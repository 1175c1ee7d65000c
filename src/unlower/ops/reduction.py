"""Reductions over whole dimensions, and `map`."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import Array, lax

from unlower._jax_compat import primitives, traced_params
from unlower.ir.attributes import IntArray
from unlower.ir.module import Op
from unlower.ops.monoids import elementwise, find_monoid, is_identity, promote
from unlower.ops.reemit import Call, batch_by_loop, batching_rule, equivalent, materialize_batch, reemit, types_of
from unlower.ops.rule import Subprogram, op_rule

__all__ = ["map_", "reduce", "reduce_by_tree"]

_REDUCERS = {
    "sum": (primitives.reduce_sum_p, lax.reduce_sum),
    "prod": (primitives.reduce_prod_p, lax.reduce_prod),
    "max": (primitives.reduce_max_p, lax.reduce_max),
    "min": (primitives.reduce_min_p, lax.reduce_min),
    "or": (primitives.reduce_or_p, lax.reduce_or),
    "and": (primitives.reduce_and_p, lax.reduce_and),
    "xor": (primitives.reduce_xor_p, lax.reduce_xor),
}


@op_rule("stablehlo.reduce", specialize=True)
def reduce(op: Op, *operands: Array, dimensions: IntArray, body: Subprogram) -> tuple[Array, ...]:
    """Reduces along `dimensions` with `body`, starting from the initial values.

    Spec: `reduce`. A known reducer that starts from its identity is a reduction of `lax`. Anything else stays the operation
    it is: starting a `lax` reduction from another value would take one more operation, and round differently.
    """
    region = body.jaxpr()
    count = len(operands) // 2
    operands = (*promote(region, len(body.captures), operands[:count]), *operands[count:])
    monoid = find_monoid(region) if count == 1 else None
    if monoid is not None and is_identity(monoid, operands[1]):
        return (_reduce_monoid(monoid.name, operands[0], dimensions),)
    shape = tuple(n for i, n in enumerate(operands[0].shape) if i not in dimensions)
    types = types_of(op, *[shape] * count)
    return reemit(op.name, operands, types, {"dimensions": dimensions}, [region], [body.captures])


@functools.cache
def _params(name: str) -> dict[str, Any]:
    dtype = np.float32 if name in ("sum", "prod", "max", "min") else np.bool_
    return traced_params(lambda x: _REDUCERS[name][1](x, (0,)), jax.ShapeDtypeStruct((1,), dtype))


def _reduce_monoid(name: str, operand: Any, dimensions: Sequence[int]) -> Any:
    return _REDUCERS[name][0].bind(operand, **(_params(name) | {"axes": tuple(map(int, dimensions))}))


def split_operands(call: Call, operands: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
    """Splits what a reduction was bound to into inputs, initial values, and captures of its region."""
    count = len(call.result_types)
    return operands[:count], operands[count : 2 * count], operands[2 * count :]


@equivalent("stablehlo.reduce")
def _reduce_equivalent(call: Call, *operands: Any) -> tuple[Any, ...]:
    inputs, inits, captures = split_operands(call, operands)
    (region,), dimensions = call.regions, tuple(call.attributes["dimensions"])
    monoid = find_monoid(region, ordered=False) if len(inputs) == 1 else None
    if monoid is None:
        return _reduce_any(region, captures, inputs, inits, dimensions)
    whole = _reduce_monoid(monoid.name, inputs[0], dimensions)
    return elementwise(region, captures)(lax.broadcast(inits[0], whole.shape), whole)


def _reduce_any(
    region: Any, captures: Sequence[Any], inputs: Sequence[Any], inits: Sequence[Any], dimensions: Sequence[int]
) -> tuple[Any, ...]:
    kept = [i for i in range(inputs[0].ndim) if i not in dimensions]
    shape = tuple(inputs[0].shape[i] for i in kept)
    length = int(np.prod([inputs[0].shape[i] for i in dimensions], dtype=np.int64))
    order = (*sorted(dimensions), *kept)
    rows = [lax.reshape(lax.transpose(x, order), (length, *shape)) for x in inputs]
    return reduce_by_tree(elementwise(region, captures), [lax.broadcast(init, shape) for init in inits], rows)


def reduce_by_tree(combine: Callable[..., Any], starts: Sequence[Any], rows: Sequence[Any]) -> tuple[Any, ...]:
    """Reduces arrays along their first dimension by combining neighbors until one is left, then `starts` with that.

    Neighbors keep their order, so `combine` need be associative but not commutative.
    """
    if rows[0].shape[0] == 0:
        return tuple(starts)
    while (count := rows[0].shape[0]) > 1:
        even = count - count % 2
        pairs = combine(
            *[lax.slice_in_dim(row, 0, even, 2) for row in rows], *[lax.slice_in_dim(row, 1, even, 2) for row in rows]
        )
        rest = [lax.slice_in_dim(row, even, count) for row in rows]
        rows = [lax.concatenate(both, 0) if count % 2 else both[0] for both in zip(pairs, rest, strict=True)]
    return tuple(combine(*starts, *[lax.squeeze(row, (0,)) for row in rows]))


@batching_rule("stablehlo.reduce")
def _batch_reduce(call: Call, size: int, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
    count = len(call.result_types)
    if any(dim is not None for dim in dims[count:]):
        return batch_by_loop(call, size, operands, dims)
    inputs = [materialize_batch(x, dim, size) for x, dim in zip(operands[:count], dims[:count], strict=True)]
    dimensions = IntArray([1 + i for i in call.attributes["dimensions"]])
    batched = call.batched(size, attributes={"dimensions": dimensions})
    return batched.bind(*inputs, *operands[count:]), (0,) * count


@op_rule("stablehlo.map")
def map_(op: Op, *operands: Array, dimensions: IntArray, computation: Subprogram) -> tuple[Array, ...]:
    """Applies `computation` to each element.

    Spec: `map`. `dimensions` must name all dimensions in order, so it carries no choice.
    """
    del dimensions
    return elementwise(computation.jaxpr(), computation.captures)(*operands)
