"""Elementwise ops of StableHLO, CHLO and MHLO."""

from jax import Array, lax

from unlower._jax_compat import primitives
from unlower.ir.module import Op
from unlower.ops.rule import op_rule


@op_rule("stablehlo.add")
def add(op: Op, lhs: Array, rhs: Array) -> Array:
    """Adds elementwise.

    Spec: `add`. Integers wrap, floats follow IEEE 754, booleans combine with OR.
    """
    # lax.add rejects booleans, so the boolean case needs its own branch.
    return primitives.or_p.bind(lhs, rhs) if lhs.dtype == bool else primitives.add_p.bind(lhs, rhs)
