"""Composites: operations that name a function with the same meaning."""

from collections.abc import Mapping
from typing import Any

from jax import Array

from unlower.ir.attributes import Symbol
from unlower.ir.module import Op
from unlower.ops.rule import Subprogram, op_rule

__all__: list[str] = []


@op_rule("stablehlo.composite")
def composite(
    op: Op,
    *inputs: Array,
    regions: tuple[Subprogram, ...],
    name: str,
    decomposition: Symbol,
    composite_attributes: Mapping[str, Any] | None = None,
    version: int = 0,
    composite_regions: tuple[Any, ...] = (),
) -> tuple[Array, ...]:
    """Runs the decomposition.

    Spec: `composite`. Its semantics are those of the decomposition; the name and the attributes only say where they come from.
    """
    (function,) = regions
    return function(*inputs)
