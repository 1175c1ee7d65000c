"""Functions beyond the StableHLO core: CHLO (JAX's client dialect) and what XLA's converter leaves in MHLO."""

import re
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from unlower._jax_compat import HLO_HAS_HYPERBOLIC_FUNCTIONS, mulhi_p, primitives
from unlower.errors import RuleError
from unlower.ir.attributes import DenseElements, Enum, IntArray, ResultAccuracy
from unlower.ir.module import Op
from unlower.ir.types import TensorType
from unlower.ops.bits import reinterpret
from unlower.ops.elementwise import accuracy_of, batch_elementwise, reemit_elementwise
from unlower.ops.reemit import Call, batching_rule, equivalent, jvp_rule
from unlower.ops.rule import op_rule, op_rules
from unlower.ops.shape import broadcast_to, reshape_to


def _register(name: str, primitive: Any) -> None:
    accurate = name.partition(".")[2] in _ACCURATE

    def rule(op: Op, *operands: Array, result_accuracy: ResultAccuracy | None = None) -> Array:
        accuracy = {"accuracy": accuracy_of(result_accuracy)} if accurate else {}
        return primitive.bind(*operands, **accuracy)

    rule.__doc__ = f"Applies `{primitive.name}` elementwise."
    rule.__name__ = rule.__qualname__ = name.replace(".", "_")
    op_rule(name)(rule)


_ACCURATE = frozenset({"tan"})

for _name, _primitive in {
    "acos": primitives.acos_p,
    "acosh": primitives.acosh_p,
    "asin": primitives.asin_p,
    "asinh": primitives.asinh_p,
    "atan": primitives.atan_p,
    "atanh": primitives.atanh_p,
    "bessel_i1e": primitives.bessel_i1e_p,
    "cosh": primitives.cosh_p,
    "digamma": primitives.digamma_p,
    "erf": primitives.erf_p,
    "erf_inv": primitives.erf_inv_p,
    "erfc": primitives.erfc_p,
    "mulhi": mulhi_p,
    "next_after": primitives.nextafter_p,
    "polygamma": primitives.polygamma_p,
    "sinh": primitives.sinh_p,
    "square": primitives.square_p,
    "tan": primitives.tan_p,
    "zeta": primitives.zeta_p,
}.items():
    _register(f"chlo.{_name}", _primitive)

for _name in ("atan", "erf", "mulhi"):
    op_rule(f"mhlo.{_name}")(op_rules[f"chlo.{_name}"])


def _register_instruction(name: str, primitive: Any) -> None:
    def rule(op: Op, operand: Array) -> Array:
        if HLO_HAS_HYPERBOLIC_FUNCTIONS and not jnp.issubdtype(operand.dtype, jnp.complexfloating):
            return reemit_elementwise(op, operand)
        return primitive.bind(operand)

    rule.__doc__ = (
        f"Applies `{primitive.name}` elementwise.\n\n"
        "HLO has an instruction of its own for this, whose last bits are not those of CHLO's formula; of complex numbers, and\n"
        "on the CPU before jaxlib 0.12, XLA does not implement it."
    )
    rule.__name__ = rule.__qualname__ = name.replace(".", "_")
    op_rule(name)(rule)
    equivalent(name)(lambda call, operand: (primitive.bind(operand),))
    batching_rule(name)(batch_elementwise)


for _name, _primitive in {
    "acos": primitives.acos_p,
    "acosh": primitives.acosh_p,
    "asin": primitives.asin_p,
    "asinh": primitives.asinh_p,
    "atanh": primitives.atanh_p,
    "cosh": primitives.cosh_p,
    "sinh": primitives.sinh_p,
}.items():
    _register_instruction(f"mhlo.{_name}", _primitive)


@op_rule("chlo.lgamma")
def lgamma(op: Op, operand: Array) -> Array:
    """Takes the logarithm of the gamma function's magnitude.

    Re-emitted, since jax 0.12 lowers its primitive to formulas that give other bits; the derivative is the primitive's.
    """
    return reemit_elementwise(op, operand)


@jvp_rule("chlo.lgamma")
def _lgamma_jvp(call: Call, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    return call.bind(*primals), (lax.mul(tangents[0], lax.digamma(primals[0])),)


_WITHOUT_PRIMITIVE = ("chlo.is_inf", "chlo.is_neg_inf", "chlo.is_pos_inf", "chlo._asin_acos_kernel")


@op_rule(*_WITHOUT_PRIMITIVE)
def without_primitive(op: Op, operand: Array) -> Array:
    """Re-emits a function that `lax` has no primitive for."""
    return reemit_elementwise(op, operand)


batching_rule("chlo.lgamma", *_WITHOUT_PRIMITIVE)(batch_elementwise)


@op_rule("chlo.conj")
def conj(op: Op, operand: Array) -> Array:
    """Conjugates elementwise; leaves real numbers alone."""
    return lax.conj(operand) if jnp.issubdtype(operand.dtype, jnp.complexfloating) else operand


@op_rule("chlo.constant")
def constant(op: Op, *, value: DenseElements) -> Array:
    """Makes a constant."""
    return lax.convert_element_type(np.array(value.expanded()), value.type.dtype)


@op_rule("chlo.constant_like")
def constant_like(op: Op, operand: Array, *, value: Any) -> Array:
    """Fills the operand's shape with a number."""
    return lax.full(operand.shape, _number(value), op.type.dtype)


_COMPLEX_NUMBER = re.compile(r"#complex\.number<:f(?:32|64) ([^,]+), ([^>]+)>")


def _number(attribute: Any) -> Any:
    """Reads a scalar attribute; complex ones, which belong to a dialect of their own, come as text."""
    parts = _COMPLEX_NUMBER.match(attribute) if isinstance(attribute, str) else None
    if parts is None and isinstance(attribute, str):
        raise RuleError(f"chlo.constant_like has the value {attribute}, which is no number")
    return attribute if parts is None else complex(float(parts[1]), float(parts[2]))


# --- CHLO's ops with implicit broadcasting

_BROADCASTING = {
    "broadcast_add": "stablehlo.add",
    "broadcast_and": "stablehlo.and",
    "broadcast_atan2": "stablehlo.atan2",
    "broadcast_compare": "stablehlo.compare",
    "broadcast_complex": "stablehlo.complex",
    "broadcast_divide": "stablehlo.divide",
    "broadcast_maximum": "stablehlo.maximum",
    "broadcast_minimum": "stablehlo.minimum",
    "broadcast_multiply": "stablehlo.multiply",
    "broadcast_next_after": "chlo.next_after",
    "broadcast_or": "stablehlo.or",
    "broadcast_polygamma": "chlo.polygamma",
    "broadcast_power": "stablehlo.power",
    "broadcast_remainder": "stablehlo.remainder",
    "broadcast_shift_left": "stablehlo.shift_left",
    "broadcast_shift_right_arithmetic": "stablehlo.shift_right_arithmetic",
    "broadcast_shift_right_logical": "stablehlo.shift_right_logical",
    "broadcast_subtract": "stablehlo.subtract",
    "broadcast_xor": "stablehlo.xor",
    "broadcast_zeta": "chlo.zeta",
}


def _broadcast_together(operands: tuple[Array, ...], dimensions: IntArray | None) -> list[Array]:
    """Brings operands to one shape: the smaller one's dimensions are placed by `dimensions`, else last with last."""
    rank = max(operand.ndim for operand in operands)
    places, shapes = [], []
    for operand in operands:
        where = tuple(range(rank - operand.ndim, rank))
        if dimensions is not None and operand.ndim < rank:
            where = tuple(dimensions)
        shape = [1] * rank
        for position, extent in zip(where, operand.shape, strict=True):
            shape[position] = extent
        places.append(where)
        shapes.append(shape)
    common = np.broadcast_shapes(*shapes)
    return [
        operand if operand.shape == common else broadcast_to(operand, common, where)
        for operand, where in zip(operands, places, strict=True)
    ]


def _register_broadcasting(name: str, plain: str) -> None:
    inner = op_rules[plain]

    def rule(op: Op, *operands: Array, broadcast_dimensions: IntArray | None = None, **attributes: Any) -> Array:
        together = _broadcast_together(operands, broadcast_dimensions)
        return inner(_plain_op(op, plain, together), *together, **attributes)

    rule.__doc__ = f"Broadcasts the operands together, then as `{plain}`."
    rule.__name__ = rule.__qualname__ = name
    op_rule(f"chlo.{name}")(rule)


def _plain_op(op: Op, name: str, operands: list[Array]) -> Op:
    """The op without its broadcast: same attributes, a result of the operands' common shape."""
    (value,) = op.results
    if not isinstance(value.type, TensorType):
        raise RuleError(f"{op.name} returns {value.type}, not a tensor")
    attributes = {
        # CHLO has enumerations of its own for what StableHLO calls by the same words.
        key: Enum(attribute, name.partition(".")[0], attribute.mnemonic) if isinstance(attribute, Enum) else attribute
        for key, attribute in op.attributes.items()
        if key != "broadcast_dimensions"
    }
    result = type(value)(value.number, TensorType(operands[0].shape, value.type.element))
    return Op(name, op.operands, (result,), attributes, (), op.location)


for _name, _plain in _BROADCASTING.items():
    _register_broadcasting(_name, _plain)


@op_rule("chlo.broadcast_select")
def broadcast_select(op: Op, pred: Array, on_true: Array, on_false: Array) -> Array:
    """Broadcasts predicate and values together, then chooses; a scalar predicate stays one."""
    if pred.ndim == 0:
        which, (yes, no) = pred, _broadcast_together((on_true, on_false), None)
    else:
        which, yes, no = _broadcast_together((pred, on_true, on_false), None)
    return primitives.select_n_p.bind(which, no, yes)


# --- MHLO


@op_rule("mhlo.copy")
def copy(op: Op, operand: Array) -> Array:
    """Passes its operand on: a copy changes the layout or the buffer, never the values."""
    return operand


@op_rule("mhlo.domain")
def domain(op: Op, operand: Array, *, kind: Any = None, entry_metadata: Any = None, exit_metadata: Any = None) -> Array:
    """Passes its operand on: a domain groups instructions for XLA's partitioner."""
    return operand


@op_rule("mhlo.add_dependency")
def add_dependency(op: Op, operand: Array, token: Array) -> Array:
    """Passes its operand on, which waits for a token."""
    return operand


@op_rule("mhlo.bitcast")
def bitcast(
    op: Op, operand: Array, *, source_layout: IntArray | None = None, result_layout: IntArray | None = None
) -> Array:
    """Reads the operand's buffer with another shape, layout or element type.

    Layouts list dimensions from minor to major. The operand is brought to its physical order, reshaped (reinterpreted where
    the element width changes), and brought back to the logical order of the result.
    """
    source = tuple(source_layout) if source_layout is not None else tuple(reversed(range(operand.ndim)))
    shape, dtype = op.type.shape, op.type.dtype
    target = tuple(result_layout) if result_layout is not None else tuple(reversed(range(len(shape))))
    value = _permuted(operand, tuple(reversed(source)))
    if dtype != operand.dtype:
        value = reinterpret(reshape_to(value, (operand.size,)), dtype)
    physical = tuple(shape[dimension] for dimension in reversed(target))
    if value.shape != physical:
        value = reshape_to(value, physical)
    # Physical position i of the result holds its logical dimension target[-1 - i].
    return _permuted(value, tuple(int(i) for i in np.argsort(tuple(reversed(target)))))


def _permuted(value: Array, permutation: tuple[int, ...]) -> Array:
    if permutation == tuple(range(value.ndim)):
        return value
    return primitives.transpose_p.bind(value, permutation=permutation)


@op_rule("mhlo.stochastic_convert")
def stochastic_convert(op: Op, operand: Array, random: Array) -> Array:
    """Rounds to a signed integer up or down at random, in proportion to the distance.

    XLA: `StochasticConvertDecomposer`, which knows no other result types. The magnitude grows by one where `random`, as a
    fraction of its range, is below the operand's fraction; values out of range saturate, and NaN becomes 0.
    """
    if not np.issubdtype(op.type.dtype, np.signedinteger):
        raise RuleError(f"stochastic_convert to {op.type.element}, which XLA does not define")
    info = np.iinfo(op.type.dtype)
    magnitude = lax.abs(operand)
    truncated = lax.convert_element_type(magnitude, random.dtype)
    fraction = lax.sub(magnitude, lax.convert_element_type(truncated, operand.dtype))
    scaled = lax.mul(
        lax.convert_element_type(fraction, np.dtype(np.float64)), np.float64(2.0 ** (8 * random.dtype.itemsize))
    )
    up = lax.lt(random, lax.convert_element_type(scaled, random.dtype))
    grown = lax.convert_element_type(lax.add(truncated, lax.convert_element_type(up, random.dtype)), op.type.dtype)
    signed = lax.select(lax.lt(operand, lax.full_like(operand, 0)), lax.neg(grown), grown)
    low, high = lax.full_like(operand, info.min), lax.full_like(operand, info.max)
    signed = lax.select(lax.le(operand, low), lax.full_like(signed, info.min), signed)
    signed = lax.select(lax.ge(operand, high), lax.full_like(signed, info.max), signed)
    return lax.select(lax.ne(operand, operand), lax.full_like(signed, 0), signed)
