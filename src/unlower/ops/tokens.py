"""Tokens: values that order side effects. Here they are empty arrays of booleans, since a Jaxpr orders by data alone."""

from typing import Any

import numpy as np

from unlower.ir.module import Op
from unlower.ops.rule import op_rule

__all__: list[str] = []


@op_rule("stablehlo.create_token")
def create_token(op: Op) -> np.ndarray:
    """Makes a token that nothing comes before.

    Spec: `create_token`, dropped from the specification in favor of `after_all` without operands.
    """
    return np.zeros((0,), bool)


@op_rule("stablehlo.after_all")
def after_all(op: Op, *inputs: Any) -> Any:
    """Makes a token that comes after all the given ones.

    Spec: `after_all`. No operation with a token has a rule that runs anything, so any of them will do.
    """
    return inputs[0] if inputs else create_token(op)
