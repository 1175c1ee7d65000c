"""What low precision does to each primitive: the table that colouring starts from.

A primitive that stands in no row is computed in full precision. So is whatever may be brittle; the rows below name what is not.
"""

import enum
from collections.abc import Mapping
from typing import Any

import numpy as np

from unlower.amp.products import PRODUCTS

__all__ = ["AMPLIFIERS", "Kind", "kind_of"]


class Kind(enum.Enum):
    """How an equation takes to low precision."""

    LOW = "low"
    """A product: low wherever nothing speaks against it."""
    FULL = "full"
    """Brittle, or unknown: always in full precision."""
    FOLLOW = "follow"
    """Arithmetic that loses a little: low between products, full elsewhere."""
    CLEAR = "clear"
    """Moves or chooses values and is exact in any dtype: stays in the dtype that its operands have."""


FOLLOW = frozenset(
    ["add", "add_any", "sub", "mul", "div", "tanh", "logistic", "erf", "integer_pow", "square", "sinh_taylor", "cosh_taylor"]
)  # fmt: skip

CLEAR = frozenset(
    [
        "abs",
        "all_gather",
        "all_to_all",
        "and",
        "argmax",
        "argmin",
        "broadcast_in_dim",
        "ceil",
        "clamp",
        "concatenate",
        "copy",
        "copy_p",
        "dynamic_slice",
        "dynamic_update_slice",
        "eq",
        "expand_dims",
        "floor",
        "gather",
        "ge",
        "gt",
        "is_finite",
        "le",
        "lt",
        "max",
        "min",
        "name",
        "ne",
        "neg",
        "pad",
        "pbroadcast",
        "pcast",
        "ppermute",
        "pvary",
        "reduce_max",
        "reduce_min",
        "reduce_window_max",
        "reduce_window_min",
        "reshape",
        "rev",
        "round",
        "select_n",
        "sharding_constraint",
        "sign",
        "mesh_cast",
        "reshard",
        "slice",
        "split",
        "squeeze",
        "stop_gradient",
        "transpose",
        "optimization_barrier",
        "layout_constraint",
    ]
)

AMPLIFIERS = frozenset(
    [
        "exp",
        "exp2",
        "expm1",
        "log",
        "log1p",
        "log2",
        "pow",
        "sin",
        "cos",
        "tan",
        "sinh",
        "cosh",
        "asin",
        "acos",
        "atan",
        "asinh",
        "acosh",
        "atanh",
        "cumsum",
        "cumlogsumexp",
        "cumprod",
        "digamma",
        "lgamma",
        "erf_inv",
        "erfc",
    ]
)
"""Primitives that turn a small error of their operand into a large one: a softmax's exponential, a sine of a large angle."""

_RANGE_SENSITIVE = frozenset(["square", "integer_pow"])
"""In float16 these overflow from 256 on, and underflow below 2^-12."""

_EXACT_DEMANDS = ("HIGHEST", "HIGH")


def kind_of(name: str, params: Mapping[str, Any], low: np.dtype) -> tuple[Kind, str]:
    """How a primitive takes to a low dtype, and why.

    Args:
      name: of the primitive.
      params: its parameters.
      low: the low dtype.
    """
    if name in PRODUCTS:
        return _product_kind(params)
    if name in _RANGE_SENSITIVE and low.name == "float16":
        return Kind.FULL, f"{name} leaves the range of float16"
    if name in FOLLOW:
        return Kind.FOLLOW, ""
    if name in CLEAR:
        return Kind.CLEAR, ""
    return Kind.FULL, f"{name} needs full precision" if name in AMPLIFIERS else f"{name} is computed in full precision"


def _product_kind(params: Mapping[str, Any]) -> tuple[Kind, str]:
    precision = params.get("precision")
    demands = precision if isinstance(precision, tuple) else (precision,)
    for demand in demands:
        if demand is None:
            continue
        name = getattr(demand, "name", str(demand))
        # Algorithms name their types (F32_F32_F32, BF16_BF16_F32_X3); a precision is one of DEFAULT, HIGH and HIGHEST.
        if name in _EXACT_DEMANDS or ("_" in name and not name.startswith("DEFAULT")):
            return Kind.FULL, f"its precision is {name}, which its author asked for"
    return Kind.LOW, "a product"


def contraction_size(name: str, params: Mapping[str, Any], lhs: tuple[int, ...], rhs: tuple[int, ...]) -> int:
    """How many terms each element of a product sums."""
    if name == "dot_general":
        (contracted, _), _ = params["dimension_numbers"]
        return int(np.prod([lhs[d] for d in contracted], dtype=np.int64))
    if name == "conv_general_dilated":
        spec = params["dimension_numbers"].rhs_spec
        return int(np.prod([rhs[d] for d in spec[1:]], dtype=np.int64))
    return 1 << 30  # a ragged product contracts what its groups say
