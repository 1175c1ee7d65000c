"""Scatter: the known update computations are primitives of `lax`, any other stays the operation it is."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import Array, lax

from unlower._jax_compat import open_closed_jaxpr, primitives, traced_params
from unlower.ir.attributes import ScatterDimensionNumbers
from unlower.ir.module import Op
from unlower.ops.monoids import elementwise, find_monoid, promote
from unlower.ops.reemit import (
    Call,
    batch_by_loop,
    batching_rule,
    jvp_rule,
    materialize_batch,
    move_batch,
    partial_jvp,
    reemit,
    transpose_rule,
    transpose_through,
    types_of,
)
from unlower.ops.rule import Subprogram, op_rule

__all__ = ["scatter", "scatter_by_loop"]

_SCATTERS = {
    "replace": (primitives.scatter_p, lax.scatter),
    "sum": (primitives.scatter_add_p, lax.scatter_add),
    "prod": (primitives.scatter_mul_p, lax.scatter_mul),
    "min": (primitives.scatter_min_p, lax.scatter_min),
    "max": (primitives.scatter_max_p, lax.scatter_max),
}


@op_rule("stablehlo.scatter")
def scatter(
    op: Op,
    *operands: Array,
    scatter_dimension_numbers: ScatterDimensionNumbers,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    update_computation: Subprogram,
) -> tuple[Array, ...]:
    """Combines `updates` into `inputs` at `scatter_indices` with `update_computation`.

    Spec: `scatter`. A window that reaches out of bounds is left out, which `lax` calls `FILL_OR_DROP`.
    """
    region, captures = update_computation.jaxpr(), update_computation.captures
    count = len(operands) // 2
    indices = operands[count]
    arrays = promote(region, len(captures), [*operands[:count], *operands[count + 1 :]])
    numbers, kind = scatter_dimension_numbers, _kind(region)
    # The primitive's own derivative gives up where a product may take several factors.
    if kind == "prod" and not unique_indices:
        kind = None
    if count == 1 and kind is not None and numbers.index_vector_dim == indices.ndim - 1:
        return (_lax_scatter(kind, arrays[0], indices, arrays[1], numbers, indices_are_sorted, unique_indices),)
    attributes = {
        "scatter_dimension_numbers": numbers,
        "indices_are_sorted": indices_are_sorted,
        "unique_indices": unique_indices,
    }
    types = types_of(op, *[x.shape for x in arrays[:count]])
    operands = (*arrays[:count], indices, *arrays[count:])
    return reemit(op.name, operands, types, attributes, [region], [captures])


def _kind(region: Any) -> str | None:
    """Which scatter of `lax` has this update computation, or None."""
    parts = open_closed_jaxpr(region)
    if not parts.eqns and len(parts.invars) == 2 and parts.outvars[0] is parts.invars[1]:
        return "replace"
    monoid = find_monoid(region)
    return monoid.name if monoid is not None and monoid.name in _SCATTERS else None


@functools.cache
def _params(kind: str, dtype: np.dtype) -> dict[str, Any]:
    numbers = lax.ScatterDimensionNumbers((), (0,), (0,))
    structs = [jax.ShapeDtypeStruct((1,), dtype), jax.ShapeDtypeStruct((1,), np.int32), jax.ShapeDtypeStruct((), dtype)]
    return traced_params(lambda x, i, u: _SCATTERS[kind][1](x, i, u, numbers), *structs)


def _lax_scatter(
    kind: str,
    operand: Any,
    indices: Any,
    updates: Any,
    numbers: ScatterDimensionNumbers,
    indices_are_sorted: bool,
    unique_indices: bool,
) -> Any:
    params = _params(kind, np.dtype(operand.dtype)) | {
        "dimension_numbers": lax_numbers(numbers),
        "indices_are_sorted": indices_are_sorted,
        "unique_indices": unique_indices,
        "mode": lax.GatherScatterMode.FILL_OR_DROP,
    }
    return _SCATTERS[kind][0].bind(operand, indices, updates, **params)


def lax_numbers(numbers: ScatterDimensionNumbers) -> lax.ScatterDimensionNumbers:
    """Spells dimension numbers as `lax` does, where the index vector is always the last dimension."""
    return lax.ScatterDimensionNumbers(
        update_window_dims=numbers.update_window_dims,
        inserted_window_dims=numbers.inserted_window_dims,
        scatter_dims_to_operand_dims=numbers.scatter_dims_to_operand_dims,
        operand_batching_dims=numbers.input_batching_dims,
        scatter_indices_batching_dims=numbers.scatter_indices_batching_dims,
    )


def last_index_vector(indices: Any, index_vector_dim: int) -> Any:
    """Makes the index vector the last dimension of an array of indices."""
    if index_vector_dim == indices.ndim:
        return lax.expand_dims(indices, (indices.ndim,))
    return move_batch(indices, index_vector_dim, indices.ndim - 1)


@jvp_rule("stablehlo.scatter")
def _jvp_scatter(call: Call, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    count = len(call.result_types)
    kind = _kind(call.regions[0]) if count == 1 else None
    if kind == "prod" and tangents[2] is not None and not call.attributes["unique_indices"]:
        kind = None
    return call.bind(*primals), partial_jvp(lambda *xs: _meaning(call, kind, xs), primals, tangents)


def _meaning(call: Call, kind: str | None, operands: Sequence[Any]) -> tuple[Any, ...]:
    """The scatter in `lax`: as the kind that it has there, or by a loop."""
    count = len(call.result_types)
    inputs, indices, updates = operands[:count], operands[count], operands[count + 1 : 2 * count + 1]
    numbers = call.attributes["scatter_dimension_numbers"]
    indices = last_index_vector(indices, numbers.index_vector_dim)
    if kind is not None:
        flags = call.attributes["indices_are_sorted"], call.attributes["unique_indices"]
        return (_lax_scatter(kind, inputs[0], indices, updates[0], numbers, *flags),)
    captures = operands[2 * count + 1 :]
    return scatter_by_loop(call.regions[0], captures, inputs, indices, updates, lax_numbers(numbers))


@transpose_rule("stablehlo.scatter")
@transpose_through
def _linear_scatter(call: Call, *operands: Any) -> tuple[Any, ...]:
    kind = _kind(call.regions[0]) if len(call.result_types) == 1 else None
    return _meaning(call, kind, operands)


def scatter_by_loop(
    region: Any,
    captures: Sequence[Any],
    inputs: Sequence[Any],
    indices: Any,
    updates: Sequence[Any],
    numbers: lax.ScatterDimensionNumbers,
) -> tuple[Any, ...]:
    """Scatters with any region, one window of updates after the other, in a form that differentiates."""
    shape = inputs[0].shape
    rank, batch_shape = len(shape), indices.shape[:-1]
    windowed = numbers.update_window_dims
    scattered = [i for i in range(updates[0].ndim) if i not in windowed]
    flat_indices = lax.reshape(indices, (int(np.prod(batch_shape)), indices.shape[-1]))
    kept = [i for i in range(rank) if i not in (*numbers.inserted_window_dims, *numbers.operand_batching_dims)]
    window = [1] * rank
    for i, place in zip(kept, windowed, strict=True):
        window[i] = updates[0].shape[place]
    flat_updates = [
        lax.reshape(lax.transpose(update, (*scattered, *windowed)), (flat_indices.shape[0], *window))
        for update in updates
    ]
    # Where a batching dimension stands, the index is the position in the batch itself.
    positions = np.indices(batch_shape).reshape(len(batch_shape), -1)
    starts: list[Any] = [np.zeros(flat_indices.shape[0], flat_indices.dtype)] * rank
    for i, place in zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True):
        starts[i] = positions[place].astype(flat_indices.dtype)
    for place, i in enumerate(numbers.scatter_dims_to_operand_dims):
        starts[i] = lax.index_in_dim(flat_indices, place, 1, keepdims=False)
    combine = elementwise(region, captures)

    def step(arrays: list[Any], at: tuple[Any, ...]) -> tuple[list[Any], None]:
        start, pieces = at
        inside = np.bool_(True)
        for i in range(rank):
            inside = inside & (start[i] >= 0) & (start[i] <= np.array(shape[i] - window[i]).astype(start[i].dtype))
        old = [lax.dynamic_slice_p.bind(array, *start, slice_sizes=tuple(window)) for array in arrays]
        new = combine(*old, *pieces)
        kept = [lax.select(lax.broadcast(inside, tuple(window)), n, o) for n, o in zip(new, old, strict=True)]
        return [lax.dynamic_update_slice_p.bind(a, k, *start) for a, k in zip(arrays, kept, strict=True)], None

    if any(w > n for w, n in zip(window, shape, strict=True)) or flat_indices.shape[0] == 0:
        return tuple(inputs)
    out, _ = lax.scan(step, list(inputs), (starts, flat_updates))
    return tuple(out)


@batching_rule("stablehlo.scatter")
def _batch_scatter(call: Call, size: int, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
    count = len(call.result_types)
    if any(dim is not None for dim in dims[2 * count + 1 :]):
        return batch_by_loop(call, size, operands, dims)
    numbers: ScatterDimensionNumbers = call.attributes["scatter_dimension_numbers"]
    moved = [materialize_batch(x, dim, size) for x, dim in zip(operands[: 2 * count + 1], dims, strict=False)]
    batched = ScatterDimensionNumbers(
        update_window_dims=tuple(1 + i for i in numbers.update_window_dims),
        inserted_window_dims=tuple(1 + i for i in numbers.inserted_window_dims),
        input_batching_dims=(0, *(1 + i for i in numbers.input_batching_dims)),
        scatter_indices_batching_dims=(0, *(1 + i for i in numbers.scatter_indices_batching_dims)),
        scatter_dims_to_operand_dims=tuple(1 + i for i in numbers.scatter_dims_to_operand_dims),
        index_vector_dim=1 + numbers.index_vector_dim,
    )
    # Indices of one element of the batch follow those of another, so the whole is sorted as its parts are.
    again = call.batched(size, attributes={"scatter_dimension_numbers": batched})
    return again.bind(*moved, *operands[2 * count + 1 :]), (0,) * count
