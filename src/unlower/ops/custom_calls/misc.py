"""Custom calls that are no library's: assertions, JAX's dynamic shapes, and kernels that this process happens to know."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from unlower.errors import RuleError, SignatureError
from unlower.ir.attributes import DenseElements, IntArray
from unlower.ir.module import Op
from unlower.ir.types import TensorType, TokenType
from unlower.ops.dynamic_shape import known_integers
from unlower.ops.random import rng_bits
from unlower.ops.reemit import reemit
from unlower.ops.rule import Subprogram, op_rule
from unlower.ops.window import reduce_window

__all__ = ["ffi_fallback"]


def ffi_fallback(op: Op, *operands: Any, regions: Sequence[Subprogram] = (), **attributes: Any) -> tuple[Array, ...]:
    """Calls a kernel by its target name, for targets that have no rule and are registered with XLA in this process.

    Spec: `custom_call`. Every attribute goes with it, so none is named here. It has no derivative, and batches by a loop.

    Raises:
      RuleError: the call takes or returns tokens, or results of unknown size.
    """
    target = op.attributes["call_target_name"]
    if any(isinstance(value.type, TokenType) for value in (*op.operands, *op.results)):
        raise RuleError(f"the custom call {target!r} takes part in an order of side effects, which is not kept here")
    if not all(type_.is_static for type_ in op.types):
        raise RuleError(f"the custom call {target!r} has results whose sizes are not known before it runs")
    jaxprs = [region.jaxpr() for region in regions]
    return reemit(op.name, operands, op.types, op.attributes, jaxprs, [region.captures for region in regions])


@op_rule("shape_assertion", specialize=True)
def shape_assertion(op: Op, assert_what: Any, *inputs: Any, error_message: str, **_: Any) -> tuple[()]:
    """Checks the sizes of the program's arguments, while they are traced.

    Source: JAX's export of programs with symbolic dimensions.

    Raises:
      SignatureError: the sizes do not fit; the message is the exporter's, with the sizes in it.
    """
    (holds,) = known_integers(op, "condition", assert_what)
    if not holds:
        sizes = [known_integers(op, "size", value)[0] for value in inputs]
        raise SignatureError(
            _filled(error_message, sizes), mend="pass arrays of the shapes that the program was exported for"
        )
    return ()


def _filled(message: str, sizes: Sequence[int]) -> str:
    """Puts sizes in the places `{0}`, `{1}`, ...; other braces stay."""
    for place, size in enumerate(sizes):
        message = message.replace(f"{{{place}}}", str(size))
    return message


@op_rule("stablehlo.dynamic_rng_bit_generator", specialize=True)
def dynamic_rng_bit_generator(
    op: Op, initial_state: Array, shape: Any, *, rng_algorithm: str, **_: Any
) -> tuple[Array, ...]:
    """Draws uniform bits in a shape that is an operand, and known while tracing.

    Source: JAX's export of `rng_bit_generator` with symbolic dimensions.
    """
    bits = TensorType(known_integers(op, "shape", shape), op.types[1].element)
    return rng_bits(initial_state, bits, rng_algorithm)


@op_rule("stablehlo.dynamic_reduce_window", specialize=True)
def dynamic_reduce_window(op: Op, *operands: Any, regions: tuple[Subprogram, ...], **_: Any) -> tuple[Array, ...]:
    """Reduces windows whose sizes, strides, dilations and padding are operands, and known while tracing.

    Source: JAX's export of `reduce_window` with symbolic dimensions. The last five operands are, in order, `window_dimensions`,
    `window_strides`, `base_dilations`, `window_dilations` and `padding`.
    """
    *arrays, sizes, strides, base_dilations, window_dilations, padding = operands
    (body,) = regions

    def integers(name: str, value: Any) -> IntArray:
        return IntArray(known_integers(op, name, value))

    pairs = np.array(known_integers(op, "padding", padding), np.int64).reshape(-1, 2)
    attributes = {
        "window_dimensions": integers("window size", sizes),
        "window_strides": integers("stride", strides),
        "base_dilations": integers("dilation", base_dilations),
        "window_dilations": integers("dilation", window_dilations),
        "padding": DenseElements(TensorType(pairs.shape, "i64"), pairs),
    }
    plain = dataclasses.replace(op, name="stablehlo.reduce_window", attributes=attributes)
    return reduce_window(plain, *map(jnp.asarray, arrays), body=body, **attributes)


@op_rule("cu_lu_pivots_to_permutation", "hip_lu_pivots_to_permutation")
def lu_pivots_to_permutation(op: Op, pivots: Array, **_: Any) -> Array:
    """Turns the row exchanges of an LU factorization into a permutation.

    Source: `jaxlib/gpu/linalg_kernels.cc`. The permutation has as many elements as the result type says; an exchange with a row
    that does not exist is none.
    """
    size = op.type.shape[-1]
    own = lax.broadcasted_iota(pivots.dtype, pivots.shape, pivots.ndim - 1)
    exists = lax.bitwise_and(lax.ge(pivots, lax.full_like(pivots, 0)), lax.lt(pivots, lax.full_like(pivots, size)))
    return lax.linalg.lu_pivots_to_permutation(lax.select(exists, pivots, own), size)
