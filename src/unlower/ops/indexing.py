"""Gather and the dynamic slices."""

from collections.abc import Sequence
from typing import Any

from jax import Array, lax

from unlower._jax_compat import primitives
from unlower.ir.attributes import GatherDimensionNumbers, IntArray
from unlower.ir.module import Op
from unlower.ops.dynamic_shape import known_integers
from unlower.ops.reemit import Call, equivalent, reemit, types_of
from unlower.ops.rule import op_rule
from unlower.ops.scatter import last_index_vector

__all__ = ["dynamic_gather", "dynamic_slice", "dynamic_update_slice", "gather", "torch_index_select"]


@op_rule("stablehlo.gather")
def gather(
    op: Op,
    operand: Array,
    start_indices: Array,
    *,
    dimension_numbers: GatherDimensionNumbers,
    slice_sizes: IntArray,
    indices_are_sorted: bool = False,
) -> Array:
    """Gathers slices of `operand` that start at `start_indices`.

    Spec: `gather`. Starts are clamped so that every slice lies inside, which `lax` calls `CLIP`: it lowers to the bare
    operation, and clamps in the derivative alone.
    """
    # Of an empty result the primitive makes a constant.
    empty = op.type.is_static and op.type.size == 0
    if dimension_numbers.index_vector_dim == start_indices.ndim - 1 and not empty:
        return _lax_gather(operand, start_indices, dimension_numbers, slice_sizes, indices_are_sorted)
    attributes = {
        "dimension_numbers": dimension_numbers,
        "slice_sizes": slice_sizes,
        "indices_are_sorted": indices_are_sorted,
    }
    batch = [n for i, n in enumerate(start_indices.shape) if i != dimension_numbers.index_vector_dim]
    dropped = (*dimension_numbers.collapsed_slice_dims, *dimension_numbers.operand_batching_dims)
    shape = batch[:]
    for place, n in zip(
        dimension_numbers.offset_dims, (n for i, n in enumerate(slice_sizes) if i not in dropped), strict=True
    ):
        shape.insert(place, int(n))
    return reemit("stablehlo.gather", [operand, start_indices], types_of(op, shape), attributes)[0]


def _lax_gather(
    operand: Any, indices: Any, numbers: GatherDimensionNumbers, slice_sizes: Sequence[int], indices_are_sorted: bool
) -> Any:
    return primitives.gather_p.bind(
        operand,
        indices,
        dimension_numbers=lax.GatherDimensionNumbers(
            offset_dims=numbers.offset_dims,
            collapsed_slice_dims=numbers.collapsed_slice_dims,
            start_index_map=numbers.start_index_map,
            operand_batching_dims=numbers.operand_batching_dims,
            start_indices_batching_dims=numbers.start_indices_batching_dims,
        ),
        slice_sizes=tuple(map(int, slice_sizes)),
        unique_indices=False,
        indices_are_sorted=indices_are_sorted,
        mode=lax.GatherScatterMode.CLIP,
        fill_value=None,
    )


@equivalent("stablehlo.gather", batches=True)
def _gather_equivalent(call: Call, operand: Any, indices: Any) -> tuple[Any, ...]:
    numbers = call.attributes["dimension_numbers"]
    indices = last_index_vector(indices, numbers.index_vector_dim)
    return (
        _lax_gather(operand, indices, numbers, call.attributes["slice_sizes"], call.attributes["indices_are_sorted"]),
    )


@op_rule("stablehlo.dynamic_gather", specialize=True)
def dynamic_gather(
    op: Op,
    operand: Array,
    start_indices: Array,
    slice_sizes: Array,
    *,
    dimension_numbers: GatherDimensionNumbers,
    indices_are_sorted: bool = False,
) -> Array:
    """Gathers slices whose sizes are an operand, known while tracing.

    Spec: `dynamic_gather`.
    """
    sizes = IntArray(known_integers(op, "slice size", slice_sizes))
    return gather(
        op,
        operand,
        start_indices,
        dimension_numbers=dimension_numbers,
        slice_sizes=sizes,
        indices_are_sorted=indices_are_sorted,
    )


@op_rule("stablehlo.torch_index_select")
def torch_index_select(op: Op, operand: Array, index: Array, *, dim: int, batch_dims: int = 0) -> Array:
    """Replaces dimension `dim` of `operand` by what `index` selects along it, batch by batch.

    Source: the StableHLO dialect (the operation is not in the specification). Indices out of bounds are clamped.
    """
    dim, batch = int(dim), tuple(range(int(batch_dims)))
    selected = range(dim, dim + index.ndim - len(batch))
    numbers = GatherDimensionNumbers(
        offset_dims=tuple(i for i in range(len(batch), operand.ndim - 1 + len(selected)) if i not in selected),
        collapsed_slice_dims=(dim,),
        operand_batching_dims=batch,
        start_indices_batching_dims=batch,
        start_index_map=(dim,),
    )
    sizes = [1 if i in (*batch, dim) else n for i, n in enumerate(operand.shape)]
    return _lax_gather(operand, lax.expand_dims(index, (index.ndim,)), numbers, sizes, False)


@op_rule("stablehlo.dynamic_slice")
def dynamic_slice(op: Op, operand: Array, *start_indices: Array, slice_sizes: IntArray) -> Array:
    """Slices `operand` at starts that are clamped so that the slice lies inside.

    Spec: `dynamic_slice`. `lax.dynamic_slice` would count negative starts from the end.
    """
    return primitives.dynamic_slice_p.bind(operand, *start_indices, slice_sizes=tuple(map(int, slice_sizes)))


@op_rule("stablehlo.dynamic_update_slice")
def dynamic_update_slice(op: Op, operand: Array, update: Array, *start_indices: Array) -> Array:
    """Replaces a slice of `operand` by `update`, at starts that are clamped so that the slice lies inside.

    Spec: `dynamic_update_slice`. `lax.dynamic_update_slice` would count negative starts from the end.
    """
    return primitives.dynamic_update_slice_p.bind(operand, update, *start_indices)
