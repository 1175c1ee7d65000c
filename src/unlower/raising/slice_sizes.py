"""Says the size of a slice whose start depends on the data: what `dynamic_slice` becomes where a size is symbolic.

JAX writes it as `real_dynamic_slice(x, start, start + sizes)`. The sizes are known when the program is called, the start and
the limit are not; so the sizes take the limit's place, and the operation becomes `raised.dynamic_slice`.
"""

import dataclasses
from collections.abc import Mapping

from unlower.ir.module import Function, Module, Op, Region, Value

__all__ = ["size_slices"]

_SLICE = "stablehlo.real_dynamic_slice"


def size_slices(module: Module) -> Module:
    """Rewrites `module`; returns it as it is when there is nothing to do."""
    if _SLICE not in module.vocabulary.names:
        return module
    changed: dict[str, Function] = {}
    for name, function in module.functions.items():
        body = _region(function.body, {})
        if body is not function.body:
            changed[name] = dataclasses.replace(function, body=body)
    return dataclasses.replace(module, functions={**module.functions, **changed}) if changed else module


def _region(region: Region, outer: Mapping[Value, Op]) -> Region:
    made = dict(outer)
    ops = []
    for op in region.ops:
        regions = tuple(_region(inner, made) for inner in op.regions)
        if any(new is not old for new, old in zip(regions, op.regions, strict=True)):
            op = dataclasses.replace(op, regions=regions)
        if op.name == _SLICE:
            op = _sized(op, made)
        made.update((result, op) for result in op.results)
        ops.append(op)
    same = all(new is old for new, old in zip(ops, region.ops, strict=True))
    return region if same else dataclasses.replace(region, ops=tuple(ops))


def _sized(op: Op, made: Mapping[Value, Op]) -> Op:
    operand, start, limit, strides = op.operands
    total = made.get(limit)
    if total is None or total.name != "stablehlo.add" or start not in total.operands:
        return op
    first, second = total.operands
    sizes = second if first is start else first
    return dataclasses.replace(op, name="raised.dynamic_slice", operands=(operand, start, sizes, strides))
