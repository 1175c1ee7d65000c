"""The same bits as elements of another type: `bitcast_convert`, and what `mhlo.bitcast` makes of a buffer."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from unlower._jax_compat import primitives
from unlower.ir.module import Op
from unlower.ir.types import TensorType, element_of_dtype
from unlower.ops.elementwise import batch_elementwise
from unlower.ops.reemit import Call, batching_rule, jvp_rule, reemit
from unlower.ops.rule import op_rule

__all__ = ["reinterpret"]


@op_rule("stablehlo.bitcast_convert")
def bitcast_convert(op: Op, operand: Array) -> Array:
    """Reinterprets the bits; a change of width adds or removes the last dimension.

    Spec: `bitcast_convert`, where a boolean is one bit. XLA, and so the primitive, changes neither the width of complex
    numbers nor that of booleans: those are taken apart here, lowest bits first.
    """
    old, new = operand.dtype, op.type.dtype
    if old != new and new == np.bool_:
        return _to_booleans(operand)
    if old != new and old == np.bool_:
        return _from_booleans(operand, new)
    if old != new and jnp.issubdtype(old, jnp.complexfloating):
        return _halved(operand, new) if old.itemsize > new.itemsize else _doubled(operand, new)
    return _bitcast(operand, new)


def _bitcast(operand: Array, dtype: np.dtype) -> Array:
    dtype = np.dtype(dtype)
    if operand.dtype == np.bool_ or _width(operand.dtype) >= _width(dtype):
        return primitives.bitcast_convert_type_p.bind(operand, new_dtype=dtype)
    # The last dimension goes, and the primitive's batching rule may have put the batch there.
    type_ = TensorType(operand.shape[:-1], element_of_dtype(dtype))
    return reemit("stablehlo.bitcast_convert", [operand], [type_], {})[0]


batching_rule("stablehlo.bitcast_convert")(batch_elementwise)


@jvp_rule("stablehlo.bitcast_convert")
def _bitcast_jvp(call: Call, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """A float that moves is another number with other bits; JAX, too, takes the derivative to be zero."""
    return call.bind(*primals), (None,)


def _width(dtype: np.dtype) -> int:
    """The bits of an element that is no boolean."""
    return (jnp.finfo if jnp.issubdtype(dtype, jnp.inexact) else jnp.iinfo)(dtype).bits


def _unsigned(width: int) -> np.dtype:
    return np.dtype(getattr(jnp, f"uint{width}"))


def _to_booleans(operand: Array) -> Array:
    """The bits of each element, lowest first, in a new last dimension."""
    word = _unsigned(_width(operand.dtype))
    shape = (*operand.shape, _width(word))
    words = lax.broadcast_in_dim(_bitcast(operand, word), shape, range(operand.ndim))
    # Integers of a few bits shift on few backends, so theirs are widened.
    words = lax.convert_element_type(words, _shiftable(word))
    places = lax.broadcasted_iota(words.dtype, shape, operand.ndim)
    return lax.ne(
        lax.bitwise_and(lax.shift_right_logical(words, places), lax.full_like(words, 1)), lax.full_like(words, 0)
    )


def _from_booleans(bits: Array, dtype: np.dtype) -> Array:
    """Elements whose bits are along the last dimension, which goes."""
    word = _unsigned(_width(dtype))
    digits = lax.convert_element_type(bits, _shiftable(word))
    places = lax.broadcasted_iota(digits.dtype, digits.shape, digits.ndim - 1)
    words = lax.reduce_or(lax.shift_left(digits, places), (digits.ndim - 1,))
    return _bitcast(lax.convert_element_type(words, word), dtype)


def _shiftable(word: np.dtype) -> np.dtype:
    return np.dtype(np.uint8) if _width(word) < 8 else word


def _part(operand: Array, i: int) -> Array:
    return lax.index_in_dim(operand, i, operand.ndim - 1, keepdims=False)


def _pair(first: Array, second: Array) -> Array:
    """Two arrays side by side in a new last dimension."""
    axis = (first.ndim,)
    return lax.concatenate([lax.expand_dims(first, axis), lax.expand_dims(second, axis)], first.ndim)


def _halved(operand: Array, dtype: np.dtype) -> Array:
    """Complex numbers of half the width, two for each: one in the bits of the real part, one in those of the other."""
    part = np.real(np.empty(0, dtype)).dtype
    halves = [_bitcast(x, part) for x in (lax.real(operand), lax.imag(operand))]
    return _pair(*[lax.complex(_part(half, 0), _part(half, 1)) for half in halves])


def _doubled(operand: Array, dtype: np.dtype) -> Array:
    """The inverse of `_halved`: complex numbers out of pairs in the last dimension, which goes."""
    part = np.real(np.empty(0, dtype)).dtype
    numbers = [_part(operand, i) for i in range(2)]
    return lax.complex(*[_bitcast(_pair(lax.real(number), lax.imag(number)), part) for number in numbers])


def reinterpret(buffer: Array, dtype: np.dtype) -> Array:
    """Reads a flat buffer as elements of another type, laid out as XLA does: a boolean a byte, a complex number two reals."""
    if buffer.dtype == np.bool_:
        buffer = lax.convert_element_type(buffer, np.dtype(np.uint8))
    elif jnp.issubdtype(buffer.dtype, jnp.complexfloating):
        buffer = lax.reshape(_pair(lax.real(buffer), lax.imag(buffer)), (buffer.size * 2,))
    if dtype == np.bool_:
        octets = reinterpret(buffer, np.dtype(np.uint8))
        return lax.ne(octets, lax.full_like(octets, 0))
    if jnp.issubdtype(dtype, jnp.complexfloating):
        parts = reinterpret(buffer, np.real(np.empty(0, dtype)).dtype)
        pairs = lax.reshape(parts, (parts.size // 2, 2))
        return lax.complex(_part(pairs, 0), _part(pairs, 1))
    old, new = _width(buffer.dtype), _width(dtype)
    if new > old:
        buffer = lax.reshape(buffer, (buffer.size * old // new, new // old))
    elements = _bitcast(buffer, dtype)
    return lax.reshape(elements, (elements.size,)) if elements.ndim > 1 else elements
