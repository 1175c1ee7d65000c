"""Ops that take shapes as operands. By the time they are traced these are known, and arrive as NumPy arrays.

Where the result type states the shape, that is used; else the operands' values are.
"""

from typing import Any

import numpy as np
from jax import Array

from unlower._jax_compat import primitives
from unlower.errors import RuleError
from unlower.ir.attributes import IntArray
from unlower.ir.module import Op
from unlower.ops.rule import op_rule
from unlower.ops.shape import broadcast_to, iota_of, reshape_to

__all__ = ["known_integers", "result_shape"]


def known_integers(op: Op, what: str, value: Any) -> tuple[int, ...]:
    """Returns the integers in an operand; raises RuleError where they depend on the data."""
    if not isinstance(value, np.ndarray | np.generic):
        raise RuleError(
            f"{op.name} has a {what} that depends on the data", mend="export the program with shapes that do not"
        )
    return tuple(int(n) for n in np.asarray(value).reshape(-1))


def result_shape(op: Op, operand: Any) -> tuple[int, ...]:
    """The shape of the only result: as its type says, or as the shape operand does."""
    return op.type.shape if op.type.is_static else known_integers(op, "shape", operand)


@op_rule("stablehlo.dynamic_broadcast_in_dim", specialize=True)
def dynamic_broadcast_in_dim(
    op: Op,
    operand: Array,
    output_dimensions: Array,
    *,
    broadcast_dimensions: IntArray,
    known_expanding_dimensions: IntArray | None = None,
    known_nonexpanding_dimensions: IntArray | None = None,
) -> Array:
    """Spreads the operand over a shape given as an operand; the known dimensions are hints. Spec: as the op."""
    return broadcast_to(operand, result_shape(op, output_dimensions), broadcast_dimensions)


@op_rule("stablehlo.dynamic_reshape", "chlo.dynamic_reshape", specialize=True)
def dynamic_reshape(op: Op, operand: Array, output_shape: Array) -> Array:
    """Reshapes to a shape given as an operand, of which one size may be -1 (CHLO). Spec: `dynamic_reshape`."""
    shape = result_shape(op, output_shape)
    if -1 in shape:
        rest = int(np.prod([n for n in shape if n != -1]))
        shape = tuple(operand.size // max(rest, 1) if n == -1 else n for n in shape)
    return reshape_to(operand, shape)


@op_rule("stablehlo.dynamic_iota", specialize=True)
def dynamic_iota(op: Op, output_shape: Array, *, iota_dimension: int) -> Array:
    """Counts along a dimension of a shape given as an operand. Spec: `dynamic_iota`."""
    return iota_of(op, result_shape(op, output_shape), int(iota_dimension))


@op_rule("stablehlo.dynamic_pad", specialize=True)
def dynamic_pad(
    op: Op,
    operand: Array,
    padding_value: Array,
    edge_padding_low: Array,
    edge_padding_high: Array,
    interior_padding: Array,
) -> Array:
    """Pads by amounts given as operands. Spec: `dynamic_pad`."""
    amounts = (edge_padding_low, edge_padding_high, interior_padding)
    low, high, interior = (known_integers(op, "padding", amount) for amount in amounts)
    return primitives.pad_p.bind(operand, padding_value, padding_config=tuple(zip(low, high, interior, strict=True)))


@op_rule("stablehlo.real_dynamic_slice", specialize=True)
def real_dynamic_slice(op: Op, operand: Array, start_indices: Array, limit_indices: Array, strides: Array) -> Array:
    """Takes a strided block whose bounds are operands. Dialect: `real_dynamic_slice`."""
    steps = known_integers(op, "stride", strides)
    known = isinstance(start_indices, np.ndarray) and isinstance(limit_indices, np.ndarray)
    if not known and op.type.is_static and all(step == 1 for step in steps):
        # Where the size is fixed the limit follows from the start.
        return _dynamic_slice(operand, start_indices, op.type.shape)
    return primitives.slice_p.bind(
        operand,
        start_indices=known_integers(op, "start", start_indices),
        limit_indices=known_integers(op, "limit", limit_indices),
        strides=None if all(step == 1 for step in steps) else steps,
    )


@op_rule("raised.dynamic_slice", specialize=True)
def dynamic_slice(op: Op, operand: Array, start_indices: Array, slice_sizes: Array, strides: Array) -> Array:
    """Takes a strided block that starts where the data say, of a size given as an operand; see `raising.slice_sizes`."""
    sizes, steps = known_integers(op, "size", slice_sizes), known_integers(op, "stride", strides)
    if isinstance(start_indices, np.ndarray):
        starts = known_integers(op, "start", start_indices)
        limits = tuple(a + n for a, n in zip(starts, sizes, strict=True))
        block = primitives.slice_p.bind(operand, start_indices=starts, limit_indices=limits, strides=None)
    else:
        block = _dynamic_slice(operand, start_indices, sizes)
    if all(step == 1 for step in steps):
        return block
    return primitives.slice_p.bind(block, start_indices=(0,) * block.ndim, limit_indices=block.shape, strides=steps)


def _dynamic_slice(operand: Array, start_indices: Array, sizes: tuple[int, ...]) -> Array:
    starts = [
        primitives.squeeze_p.bind(
            primitives.slice_p.bind(start_indices, start_indices=(i,), limit_indices=(i + 1,), strides=None),
            dimensions=(0,),
        )
        for i in range(operand.ndim)
    ]
    return primitives.dynamic_slice_p.bind(operand, *starts, slice_sizes=sizes)
