"""Elementwise ops of StableHLO: one JAX primitive each, bound with exact parameters so that it lowers to the very op."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from unlower._jax_compat import optimization_barrier_p, primitives
from unlower.ir.attributes import Enum, ResultAccuracy
from unlower.ir.module import Op
from unlower.ops.reemit import Call, batching_rule, jvp_rule, materialize_batch, reemit, types_of
from unlower.ops.rule import HINTS, op_rule

__all__ = ["accuracy_of", "batch_elementwise", "reemit_elementwise"]


def _register(name: str, primitive: Any) -> None:
    def rule(op: Op, *operands: Array) -> Array:
        return primitive.bind(*operands)

    rule.__doc__ = f"Applies `{primitive.name}` elementwise. Spec: `{name.partition('.')[2]}`."
    rule.__name__ = rule.__qualname__ = name.replace(".", "_")
    op_rule(name)(rule)


# Operands only, and exactly one primitive.
for _name, _primitive in {
    "stablehlo.and": primitives.and_p,
    "stablehlo.atan2": primitives.atan2_p,
    "stablehlo.ceil": primitives.ceil_p,
    "stablehlo.clamp": primitives.clamp_p,
    "stablehlo.complex": primitives.complex_p,
    "stablehlo.count_leading_zeros": primitives.clz_p,
    "stablehlo.divide": primitives.div_p,
    "stablehlo.floor": primitives.floor_p,
    "stablehlo.is_finite": primitives.is_finite_p,
    # Complex operands compare by real part, then by imaginary part: the primitives' lowering spells that out.
    "stablehlo.maximum": primitives.max_p,
    "stablehlo.minimum": primitives.min_p,
    "stablehlo.negate": primitives.neg_p,
    "stablehlo.not": primitives.not_p,
    "stablehlo.or": primitives.or_p,
    "stablehlo.popcnt": primitives.population_count_p,
    "stablehlo.shift_left": primitives.shift_left_p,
    "stablehlo.shift_right_arithmetic": primitives.shift_right_arithmetic_p,
    "stablehlo.shift_right_logical": primitives.shift_right_logical_p,
    "stablehlo.subtract": primitives.sub_p,
    "stablehlo.xor": primitives.xor_p,
}.items():
    _register(_name, _primitive)


@op_rule("stablehlo.add")
def add(op: Op, lhs: Array, rhs: Array) -> Array:
    """Adds elementwise.

    Spec: `add`. Integers wrap, floats follow IEEE 754, booleans combine with OR.
    """
    # The primitive rejects booleans, for which XLA has an addition of its own.
    return reemit_elementwise(op, lhs, rhs) if lhs.dtype == bool else primitives.add_p.bind(lhs, rhs)


@op_rule("stablehlo.multiply")
def multiply(op: Op, lhs: Array, rhs: Array) -> Array:
    """Multiplies elementwise. Spec: `multiply`; booleans combine with AND."""
    return reemit_elementwise(op, lhs, rhs) if lhs.dtype == bool else primitives.mul_p.bind(lhs, rhs, out_dtype=None)


@op_rule("stablehlo.power")
def power(op: Op, lhs: Array, rhs: Array) -> Array:
    """Raises to a power elementwise.

    Spec: `power`. The primitive takes integers as exponents only, and XLA's integer powers have rules of their own
    (negative exponents give 0, 1 or -1), so those are re-emitted.
    """
    if jnp.issubdtype(lhs.dtype, jnp.integer):
        return reemit_elementwise(op, lhs, rhs)
    return primitives.pow_p.bind(lhs, rhs)


@op_rule("stablehlo.remainder")
def remainder(op: Op, lhs: Array, rhs: Array) -> Array:
    """Takes the remainder elementwise; its sign is the dividend's. Spec: `remainder`."""
    return primitives.rem_p.bind(lhs, rhs)


@op_rule("stablehlo.sign")
def sign(op: Op, operand: Array) -> Array:
    """Takes the sign elementwise, of -0 and NaN itself. Spec: `sign`."""
    return primitives.sign_p.bind(operand)


@op_rule("stablehlo.select")
def select(op: Op, pred: Array, on_true: Array, on_false: Array) -> Array:
    """Chooses elementwise, by a predicate of the same shape or a scalar. Spec: `select`."""
    return primitives.select_n_p.bind(pred, on_false, on_true)


@op_rule("stablehlo.real")
def real(op: Op, operand: Array) -> Array:
    """Takes the real part; of a real array, the array itself. Spec: `real`."""
    return primitives.real_p.bind(operand) if jnp.issubdtype(operand.dtype, jnp.complexfloating) else operand


@op_rule("stablehlo.imag")
def imag(op: Op, operand: Array) -> Array:
    """Takes the imaginary part; of a real array, zeros. Spec: `imag`."""
    if jnp.issubdtype(operand.dtype, jnp.complexfloating):
        return primitives.imag_p.bind(operand)
    return lax.full_like(operand, 0)


@op_rule("stablehlo.round_nearest_even")
def round_nearest_even(op: Op, operand: Array) -> Array:
    """Rounds to the nearest integer, ties to even. Spec: `round_nearest_even`."""
    return primitives.round_p.bind(operand, rounding_method=lax.RoundingMethod.TO_NEAREST_EVEN)


@op_rule("stablehlo.round_nearest_afz")
def round_nearest_afz(op: Op, operand: Array) -> Array:
    """Rounds to the nearest integer, ties away from zero. Spec: `round_nearest_afz`."""
    return primitives.round_p.bind(operand, rounding_method=lax.RoundingMethod.AWAY_FROM_ZERO)


@op_rule("stablehlo.reduce_precision")
def reduce_precision(op: Op, operand: Array, *, exponent_bits: int, mantissa_bits: int) -> Array:
    """Rounds to a float format of fewer bits and back. Spec: `reduce_precision`."""
    return primitives.reduce_precision_p.bind(
        operand, exponent_bits=int(exponent_bits), mantissa_bits=int(mantissa_bits)
    )


@op_rule("stablehlo.optimization_barrier")
def optimization_barrier(op: Op, *operands: Array) -> tuple[Array, ...]:
    """Passes its operands on together: nothing is moved across it. Spec: `optimization_barrier`."""
    return tuple(optimization_barrier_p.bind(*operands)) if operands else ()


# --- transcendental functions, which carry the accuracy asked of them


def accuracy_of(result_accuracy: ResultAccuracy | None) -> Any:
    """Translates the attribute to JAX's `accuracy` parameter; the default is None."""
    if result_accuracy is None or result_accuracy.mode == "DEFAULT":
        return None
    if result_accuracy.mode == "HIGHEST":
        return lax.AccuracyMode.HIGHEST
    return lax.Tolerance(atol=result_accuracy.atol, rtol=result_accuracy.rtol, ulps=result_accuracy.ulps)


def _register_accurate(name: str, primitive: Any) -> None:
    def rule(op: Op, operand: Array, *, result_accuracy: ResultAccuracy | None = None) -> Array:
        return primitive.bind(operand, accuracy=accuracy_of(result_accuracy))

    rule.__doc__ = (
        f"Applies `{primitive.name}` elementwise, to the accuracy asked for. Spec: `{name.partition('.')[2]}`."
    )
    rule.__name__ = rule.__qualname__ = name.replace(".", "_")
    op_rule(name)(rule)


for _name, _primitive in {
    "stablehlo.exponential": primitives.exp_p,
    "stablehlo.exponential_minus_one": primitives.expm1_p,
    "stablehlo.log": primitives.log_p,
    "stablehlo.log_plus_one": primitives.log1p_p,
    "stablehlo.rsqrt": primitives.rsqrt_p,
    "stablehlo.sqrt": primitives.sqrt_p,
    "stablehlo.tan": primitives.tan_p,
    "stablehlo.tanh": primitives.tanh_p,
}.items():
    _register_accurate(_name, _primitive)


# --- functions whose primitive lowers to something else


@op_rule("stablehlo.logistic")
def logistic(op: Op, operand: Array, *, result_accuracy: ResultAccuracy | None = None) -> Array:
    """Computes `1 / (1 + exp(-x))` elementwise.

    Spec: `logistic`. The primitive lowers to that formula, which rounds more often than the op, so the op is re-emitted; its
    derivative is the primitive's.
    """
    return reemit_elementwise(op, operand)


@op_rule("stablehlo.sine")
def sine(op: Op, operand: Array, *, result_accuracy: ResultAccuracy | None = None) -> Array:
    """Takes the sine elementwise. Spec: `sine`. Of complex numbers JAX has a formula of its own, so the op is re-emitted."""
    if jnp.issubdtype(operand.dtype, jnp.complexfloating):
        return reemit_elementwise(op, operand)
    return primitives.sin_p.bind(operand, accuracy=accuracy_of(result_accuracy))


@op_rule("stablehlo.cosine")
def cosine(op: Op, operand: Array, *, result_accuracy: ResultAccuracy | None = None) -> Array:
    """Takes the cosine elementwise. Spec: `cosine`. Complex as in `sine`."""
    if jnp.issubdtype(operand.dtype, jnp.complexfloating):
        return reemit_elementwise(op, operand)
    return primitives.cos_p.bind(operand, accuracy=accuracy_of(result_accuracy))


@op_rule("stablehlo.abs")
def abs_(op: Op, operand: Array) -> Array:
    """Takes the magnitude elementwise.

    Spec: `abs`. Complex as in `sine`, in jax 0.12; integers of 2 and 4 bits are no operands of the primitive.
    """
    if jnp.issubdtype(operand.dtype, jnp.complexfloating) or operand.dtype in _NARROW:
        return reemit_elementwise(op, operand)
    return primitives.abs_p.bind(operand)


_NARROW = (np.dtype(jnp.int2), np.dtype(jnp.int4))


@jvp_rule("stablehlo.logistic")
def _logistic_jvp(call: Call, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """The primitive's derivative, `y * (1 - y)`: of the result, so that nothing is computed twice."""
    (y,) = call.bind(*primals)
    slope = lax.mul(y, lax.sub(lax.full_like(y, 1), y))
    return (y,), (lax.mul(tangents[0], slope),)


@jvp_rule("stablehlo.abs")
def _abs_jvp(call: Call, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """The primitive's derivative of the magnitude of complex numbers; at 0 it is 0."""
    (x,), (y,) = primals, call.bind(*primals)
    length = lax.select(lax.eq(y, lax.full_like(y, 0)), lax.full_like(y, 1), y)
    direction = lax.div(lax.conj(x), lax.convert_element_type(length, x.dtype))
    return (y,), (lax.real(lax.mul(tangents[0], direction)),)


@jvp_rule("stablehlo.sine")
def _sine_jvp(call: Call, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    (slope,) = call.replace(name="stablehlo.cosine").bind(*primals)
    return call.bind(*primals), (lax.mul(tangents[0], slope),)


@jvp_rule("stablehlo.cosine")
def _cosine_jvp(call: Call, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    (slope,) = call.replace(name="stablehlo.sine").bind(*primals)
    return call.bind(*primals), (lax.neg(lax.mul(tangents[0], slope)),)


@op_rule("stablehlo.cbrt")
def cbrt(op: Op, operand: Array, *, result_accuracy: ResultAccuracy | None = None) -> Array:
    """Takes the cube root elementwise.

    Spec: `cbrt`. XLA and the primitive know real cube roots only; of complex numbers the principal one is taken.
    """
    if jnp.issubdtype(operand.dtype, jnp.complexfloating):
        return lax.pow(operand, lax.full_like(operand, 1 / 3))
    return primitives.cbrt_p.bind(operand, accuracy=accuracy_of(result_accuracy))


# --- comparison


_COMPARISONS = {
    "EQ": primitives.eq_p,
    "NE": primitives.ne_p,
    "LT": primitives.lt_p,
    "LE": primitives.le_p,
    "GT": primitives.gt_p,
    "GE": primitives.ge_p,
}


@op_rule("stablehlo.compare")
def compare(op: Op, lhs: Array, rhs: Array, *, comparison_direction: Enum, compare_type: Enum | None = None) -> Array:
    """Compares elementwise.

    Spec: `compare`. In the total order of floats, -NaN < -Inf < -0 < +0 < +Inf < +NaN; it is asked for by the compare type
    TOTALORDER, for which `lax` has not every direction, so the op is re-emitted. Other compare types follow from the dtype.
    """
    if compare_type == "TOTALORDER":
        return reemit_elementwise(op, lhs, rhs)
    return _COMPARISONS[comparison_direction].bind(lhs, rhs)


# --- conversion


@op_rule("stablehlo.convert")
def convert(op: Op, operand: Array) -> Array:
    """Converts to the result's element type.

    Spec: `convert`. To a boolean the primitive would lower to a comparison with zero, so that case is re-emitted.
    """
    if op.type.dtype == np.bool_:
        return reemit_elementwise(op, operand)
    return primitives.convert_element_type_p.bind(operand, new_dtype=op.type.dtype, weak_type=False, sharding=None)


# --- re-emitting elementwise ops


def reemit_elementwise(op: Op, *operands: Array) -> Array:
    """Re-emits an op whose result has the shape of its operands, whatever that is now."""
    attributes = {name: value for name, value in op.attributes.items() if "." not in name and name not in HINTS}
    return reemit(op.name, operands, types_of(op, operands[0].shape), attributes)[0]


@batching_rule(
    "stablehlo.abs",
    "stablehlo.add",
    "stablehlo.compare",
    "stablehlo.convert",
    "stablehlo.cosine",
    "stablehlo.logistic",
    "stablehlo.multiply",
    "stablehlo.power",
    "stablehlo.sine",
)
def batch_elementwise(
    call: Call, size: int, operands: Sequence[Any], dims: Sequence[int | None]
) -> tuple[Sequence[Any], Sequence[int]]:
    """Puts the batch in front of every operand; the op means the same on one dimension more."""
    moved = [materialize_batch(operand, dim, size) for operand, dim in zip(operands, dims, strict=True)]
    return call.batched(size).bind(*moved), (0,)
