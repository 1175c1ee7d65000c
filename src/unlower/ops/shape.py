"""Ops that move elements about: broadcast, reshape, transpose, slice, pad, concatenate, reverse, iota."""

import itertools
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from unlower._jax_compat import primitives, with_sharding_none
from unlower.errors import RuleError
from unlower.ir.attributes import IntArray
from unlower.ir.module import Op
from unlower.ir.types import TensorType, element_of_dtype
from unlower.ops.reemit import Call, equivalent, reemit
from unlower.ops.rule import op_rule


@op_rule("stablehlo.broadcast_in_dim")
def broadcast_in_dim(op: Op, operand: Array, *, broadcast_dimensions: IntArray) -> Array:
    """Spreads the operand over the result; dimension `i` of the operand is dimension `broadcast_dimensions[i]`.

    Spec: `broadcast_in_dim`.
    """
    return broadcast_to(operand, op.type.shape, broadcast_dimensions)


def broadcast_to(operand: Array, shape: tuple[int, ...], dimensions: tuple[int, ...]) -> Array:
    """Binds the broadcast itself, even where nothing changes."""
    if any(a > b for a, b in itertools.pairwise(dimensions)):
        # The primitive's transpose rule takes the dimensions to be in order.
        type_ = TensorType(tuple(shape), element_of_dtype(operand.dtype))
        attributes = {"broadcast_dimensions": IntArray(dimensions)}
        return reemit("stablehlo.broadcast_in_dim", [operand], [type_], attributes)[0]
    return with_sharding_none(primitives.broadcast_in_dim_p)(
        operand, shape=tuple(shape), broadcast_dimensions=tuple(dimensions)
    )


@equivalent("stablehlo.broadcast_in_dim", batches=True)
def _ordered_broadcast(call: Call, operand: Any) -> tuple[Any, ...]:
    """A transpose that brings the dimensions in order, and a broadcast."""
    dimensions = call.attributes["broadcast_dimensions"]
    order = sorted(range(len(dimensions)), key=lambda i: dimensions[i])
    shape = call.result_types[0].shape
    return (broadcast_to(lax.transpose(operand, order), shape, tuple(dimensions[i] for i in order)),)


@op_rule("stablehlo.broadcast")
def broadcast(op: Op, operand: Array, *, broadcast_sizes: IntArray) -> Array:
    """Puts dimensions in front. Dialect: `broadcast` (superseded by `broadcast_in_dim`)."""
    rank = len(broadcast_sizes)
    return broadcast_to(operand, (*broadcast_sizes, *operand.shape), tuple(range(rank, rank + operand.ndim)))


@op_rule("stablehlo.reshape")
def reshape(op: Op, operand: Array) -> Array:
    """Reads the elements in row-major order into another shape. Spec: `reshape`."""
    return reshape_to(operand, op.type.shape)


def reshape_to(operand: Array, shape: tuple[int, ...]) -> Array:
    """Binds the reshape itself, even where nothing changes."""
    return with_sharding_none(primitives.reshape_p)(operand, new_sizes=tuple(shape), dimensions=None)


@op_rule("stablehlo.transpose")
def transpose(op: Op, operand: Array, *, permutation: IntArray) -> Array:
    """Permutes the dimensions. Spec: `transpose`."""
    return primitives.transpose_p.bind(operand, permutation=tuple(permutation))


@op_rule("stablehlo.slice")
def slice_(
    op: Op, operand: Array, *, start_indices: IntArray, limit_indices: IntArray, strides: IntArray | None = None
) -> Array:
    """Takes a strided block. Spec: `slice`."""
    # The primitive spells strides of one as None.
    steps = None if strides is None or all(stride == 1 for stride in strides) else tuple(strides)
    return primitives.slice_p.bind(
        operand, start_indices=tuple(start_indices), limit_indices=tuple(limit_indices), strides=steps
    )


@op_rule("stablehlo.concatenate")
def concatenate(op: Op, *operands: Array, dimension: int) -> Array:
    """Joins arrays along a dimension. Spec: `concatenate`."""
    return primitives.concatenate_p.bind(*operands, dimension=int(dimension))


@op_rule("stablehlo.reverse")
def reverse(op: Op, operand: Array, *, dimensions: IntArray) -> Array:
    """Reverses the order of elements along dimensions. Spec: `reverse`."""
    return primitives.rev_p.bind(operand, dimensions=tuple(dimensions))


@op_rule("stablehlo.pad")
def pad(
    op: Op,
    operand: Array,
    padding_value: Array,
    *,
    edge_padding_low: IntArray,
    edge_padding_high: IntArray,
    interior_padding: IntArray,
) -> Array:
    """Pads at the edges, where negative amounts cut off, and between elements. Spec: `pad`."""
    config = tuple(zip(edge_padding_low, edge_padding_high, interior_padding, strict=True))
    return primitives.pad_p.bind(operand, padding_value, padding_config=config)


@op_rule("stablehlo.iota")
def iota(op: Op, *, iota_dimension: int) -> Array:
    """Counts along a dimension, from zero. Spec: `iota`."""
    return iota_of(op, op.type.shape, int(iota_dimension))


def iota_of(op: Op, shape: tuple[int, ...], dimension: int) -> Array:
    """Counts along `dimension` of an array of `shape` and of the op's element type."""
    if jnp.issubdtype(op.type.dtype, jnp.complexfloating):
        # The primitive counts in real numbers only.
        return reemit("stablehlo.iota", [], [type(op.type)(shape, op.type.element)], {"iota_dimension": dimension})[0]
    return with_sharding_none(primitives.iota_p)(dtype=op.type.dtype, shape=tuple(shape), dimension=dimension)


@op_rule("stablehlo.get_dimension_size")
def get_dimension_size(op: Op, operand: Array, *, dimension: int) -> np.ndarray:
    """Returns the size of a dimension, in elements. Spec: `get_dimension_size`."""
    size = operand.shape[dimension]
    if not isinstance(size, int):
        raise RuleError(
            f"it computes with sizes, and is called with one that is only a symbol, {size}",
            mend="trace or export it for sizes that are numbers, once for each",
        )
    # A NumPy array, which stays known where sizes are computed while tracing.
    return np.asarray(size, np.int32)


@op_rule("stablehlo.set_dimension_size", specialize=True)
def set_dimension_size(op: Op, operand: Array, size: Array | np.ndarray, *, dimension: int) -> Array:
    """Sets the run-time size of a dimension.

    Dialect: `set_dimension_size`. JAX arrays have the sizes of their shape, so only that size can be set.
    """
    if isinstance(size, np.ndarray) and int(size) == operand.shape[dimension]:
        return operand
    raise RuleError(
        f"the size of dimension {dimension} of {operand.dtype}{list(operand.shape)} is set while the program runs",
        mend="export the program with static shapes",
    )
