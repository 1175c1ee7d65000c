"""Random numbers of StableHLO and MHLO: with a state that is an operand, and from the device's own."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jax import Array, lax

from unlower._jax_compat import primitives
from unlower.ir.attributes import Enum, Int
from unlower.ir.module import Op
from unlower.ir.types import TensorType
from unlower.ops.dynamic_shape import known_integers
from unlower.ops.reemit import Call, jvp_rule, reemit
from unlower.ops.rule import op_rule

__all__ = ["rng_bits"]

_ALGORITHMS: Mapping[str, lax.RandomAlgorithm] = {
    "DEFAULT": lax.RandomAlgorithm.RNG_DEFAULT,
    "THREE_FRY": lax.RandomAlgorithm.RNG_THREE_FRY,
    "PHILOX": lax.RandomAlgorithm.RNG_PHILOX,
}

_DRAWN = frozenset(map(np.dtype, (np.uint8, np.uint16, np.uint32, np.uint64)))
"""The types that are drawn as they are."""


@op_rule("stablehlo.rng_bit_generator")
def rng_bit_generator(op: Op, initial_state: Array, *, rng_algorithm: str) -> tuple[Array, ...]:
    """Draws uniform bits, and returns the next state before them.

    Spec: `rng_bit_generator`. The state is 2 or 3 words of 64 bits, depending on the algorithm. Where JAX has the primitive, a
    batch is drawn as JAX draws one: from the first state of the batch.
    """
    return rng_bits(initial_state, op.types[1], rng_algorithm)


def rng_bits(state: Array, bits: TensorType, algorithm: str) -> tuple[Array, ...]:
    """Draws an array of type `bits`; returns the next state, and the bits."""
    if state.shape == (2,) and bits.dtype in _DRAWN:
        return primitives.rng_bit_generator_p.bind(
            state, shape=bits.shape, dtype=bits.dtype, algorithm=_ALGORITHMS[algorithm], out_sharding=None
        )
    if bits.dtype not in _DRAWN:
        # XLA draws unsigned integers whatever the type says, and trips over the difference inside a loop.
        state, drawn = rng_bits(state, TensorType(bits.shape, f"ui{8 * bits.dtype.itemsize}"), algorithm)
        return state, lax.bitcast_convert_type(drawn, bits.dtype)
    # A state of three words is XLA's alone.
    types = (TensorType(state.shape, "ui64"), bits)
    attributes = {"rng_algorithm": Enum(algorithm, "stablehlo", "rng_algorithm")}
    return reemit("stablehlo.rng_bit_generator", (state,), types, attributes)


@op_rule("stablehlo.rng", specialize=True)
def rng(op: Op, a: Array, b: Array, shape: Any, *, rng_distribution: str) -> Array:
    """Draws from the device's own generator: uniform between `a` and `b`, or normal with mean `a` and deviation `b`.

    Spec: `rng`. What is drawn differs from run to run, under XLA as here.
    """
    del rng_distribution
    sizes = known_integers(op, "shape", shape)
    size = np.asarray(sizes, np.int64)
    return reemit(op.name, (a, b, size), (TensorType(sizes, op.type.element),), op.attributes)[0]


@jvp_rule("stablehlo.rng")
def _rng_jvp(call: Call, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """Moves what was drawn with the parameters of its distribution."""
    a, b, _ = primals
    (drawn,) = call.bind(*primals)
    a_dot, b_dot, _ = tangents
    zero = lax.full_like(drawn, 0)
    a_dot, b_dot = (zero if dot is None else lax.broadcast(dot, drawn.shape) for dot in (a_dot, b_dot))
    a, b = lax.broadcast(a, drawn.shape), lax.broadcast(b, drawn.shape)
    uniform = call.attributes["rng_distribution"] == "UNIFORM"
    standard = (drawn - a) / (b - a if uniform else b)
    return (drawn,), (a_dot + standard * (b_dot - a_dot if uniform else b_dot),)


@op_rule("mhlo.xla.rng_get_and_update_state")
def rng_get_and_update_state(op: Op, *, delta: Int) -> Array:
    """Returns the device's 128 bits of generator state as two words, and adds `delta` to them.

    Source: XLA's `RngGetAndUpdateState`. What comes out depends on what ran before.
    """
    return reemit(op.name, (), (op.type,), {"delta": delta})[0]
