"""Instructions of HLO that StableHLO has no operation for; `readers/hlo/carried.py` brings them through XLA's converter."""

import functools
import math

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from unlower._jax_compat import mulhi_p, primitives
from unlower.errors import RuleError
from unlower.ir.attributes import IntArray
from unlower.ir.module import Op
from unlower.ops.rule import op_rule

__all__: list[str] = []


@op_rule("hlo.atan")
def atan(op: Op, operand: Array) -> Array:
    """Takes the inverse tangent elementwise. Source: HLO's `atan`."""
    return primitives.atan_p.bind(operand)


@op_rule("hlo.exp2")
def exp2(op: Op, operand: Array) -> Array:
    """Raises 2 to a power elementwise. Source: HLO's `exp2`."""
    return lax.exp2(operand)


@op_rule("hlo.log2")
def log2(op: Op, operand: Array) -> Array:
    """Takes the logarithm to base 2 elementwise.

    Source: HLO's `log2`. As `jax.numpy.log2` has it, since JAX has no primitive for it.
    """
    return lax.div(lax.log(operand), lax.full_like(operand, math.log(2)))


@op_rule("hlo.mulhi")
def mulhi(op: Op, lhs: Array, rhs: Array) -> Array:
    """Takes the high half of the product of integers elementwise. Source: HLO's `mulhi`."""
    return mulhi_p.bind(lhs, rhs)


_PRECISIONS = (lax.Precision.DEFAULT, lax.Precision.HIGH, lax.Precision.HIGHEST)


@op_rule("hlo.scaled-dot")
def scaled_dot(
    op: Op,
    lhs: Array,
    rhs: Array,
    lhs_scale: Array,
    rhs_scale: Array,
    *,
    lhs_contracting_dimensions: IntArray,
    rhs_contracting_dimensions: IntArray,
    lhs_batching_dimensions: IntArray,
    rhs_batching_dimensions: IntArray,
    precision_config: IntArray,
) -> Array:
    """Multiplies matrices of narrow elements, each block of which has a scale.

    Source: XLA's `scaled_dot_rewriter.cc`, and the decomposition of `jax.lax.scaled_dot`. Element and scale are widened to
    bfloat16, unless they are wide already, and multiplied; then come the products, in the result's type.
    """
    left, right = _scaled(op, lhs, lhs_scale), _scaled(op, rhs, rhs_scale)
    common = functools.reduce(_wider, (left.dtype, right.dtype))
    left, right = (lax.convert_element_type(x, common) for x in (left, right))
    numbers = (
        (tuple(lhs_contracting_dimensions), tuple(rhs_contracting_dimensions)),
        (tuple(lhs_batching_dimensions), tuple(rhs_batching_dimensions)),
    )
    asked = [_PRECISIONS[i] for i in precision_config[:2] if i < len(_PRECISIONS)]
    precision = (asked[0], asked[1]) if len(asked) == 2 else None
    return lax.dot_general(left, right, numbers, precision=precision, preferred_element_type=op.type.dtype)


def _wider(first: np.dtype, second: np.dtype) -> np.dtype:
    """The type that both may be converted to; of bfloat16 and float16, neither of which holds the other, float32."""
    if first == second:
        return first
    if first.itemsize == second.itemsize:
        return np.dtype(np.float32)
    return first if first.itemsize > second.itemsize else second


def _widened(array: Array) -> Array:
    narrow = array.dtype.itemsize < 2
    return lax.convert_element_type(array, jnp.bfloat16) if narrow else array


def _scaled(op: Op, operand: Array, scale: Array) -> Array:
    """Multiplies each block of an operand by its scale: as many blocks along each dimension as there are scales."""
    operand, scale = _widened(operand), _widened(scale)
    common = _wider(operand.dtype, scale.dtype)
    operand, scale = (lax.convert_element_type(x, common) for x in (operand, scale))
    if not scale.ndim:
        return lax.mul(operand, lax.broadcast_in_dim(scale, operand.shape, ()))
    sizes = zip(operand.shape, scale.shape, strict=False)
    if scale.ndim != operand.ndim or any(count == 0 or size % count for size, count in sizes if size):
        raise RuleError(f"{op.name} has scales of shape {scale.shape} for an operand of shape {operand.shape}")
    spread = []
    for size, count in zip(operand.shape, scale.shape, strict=True):
        spread += [count, size // max(count, 1)]
    scale = lax.broadcast_in_dim(scale, spread, range(0, 2 * scale.ndim, 2))
    return lax.mul(operand, lax.reshape(scale, operand.shape))
