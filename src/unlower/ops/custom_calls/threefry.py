"""The threefry random generator, as JAX calls it on GPUs."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from unlower.ir.module import Op
from unlower.ops.custom_calls.conventions import refusal
from unlower.ops.custom_calls.lapack import known_types
from unlower.ops.rule import op_rule

__all__ = ["threefry2x32"]

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)


@op_rule(
    "cu_threefry2x32", "cu_threefry2x32_ffi", "hip_threefry2x32", "hip_threefry2x32_ffi", "oneapi_threefry2x32_ffi",
    specialize=True,
)  # fmt: skip
def threefry2x32(op: Op, *operands: Any, **_: Any) -> tuple[Array, ...]:
    """Draws two words of bits from two words of key and two of count, elementwise.

    Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011), with 20 rounds; `jaxlib/gpu_prng.py`. Calls
    of unknown size have that size among their operands, which is not needed.
    """
    types, kept = known_types(op, operands)
    if len(kept) < 4:
        raise refusal(op, f"has {len(kept)} operands, and not two words of key and two of count")
    key_0, key_1, x, y = (jnp.asarray(word) for word in kept[:4])
    keys = (key_0, key_1, key_0 ^ key_1 ^ _PARITY)
    x, y = x + keys[0], y + keys[1]
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            x = x + y
            y = x ^ _rotated(y, rotation)
        x = x + keys[(group + 1) % 3]
        y = y + keys[(group + 2) % 3] + np.uint32(group + 1)
    return tuple(lax.reshape(value, type_.shape) for value, type_ in zip((x, y), types, strict=True))


def _rotated(x: Array, by: int) -> Array:
    return (x << np.uint32(by)) | (x >> np.uint32(32 - by))
