"""The primitives that carry programs, one file by family; importing them fills the table in `registry`."""

from unlower.interpret.higher_order import (
    calls,
    conditionals,
    custom_derivatives,
    hijax,
    linear_solve,
    loops,
    opaque,
    sharding,
)
from unlower.interpret.higher_order.registry import OPAQUE, higher_order

__all__ = [
    "OPAQUE",
    "calls",
    "conditionals",
    "custom_derivatives",
    "higher_order",
    "hijax",
    "linear_solve",
    "loops",
    "opaque",
    "sharding",
]
