"""Puts the operations of a loop that came through HLO back in an order that gives the same HLO again.

On its way to HLO a loop's carry is rearranged: what the body returns unchanged goes last, in the order in which condition and
body first use it. The order of the body's operations is lost in HLO, but the carry's tells of it. So the first uses of the
unchanged values are moved to the front, in the carry's order; where that is impossible, the body stays as it is.
"""

import dataclasses
from collections.abc import Iterator

from unlower.ir.module import EFFECTFUL, Function, Module, Op, Region, Value, walk

__all__ = ["came_through_hlo", "order_loops"]

_FROM_HLO = "mhlo.is_dynamic"
"""The attribute that jaxlib's converter gives to every module it makes from HLO."""


def came_through_hlo(module: Module) -> bool:
    """Whether jaxlib's converter made the module from HLO."""
    return _FROM_HLO in module.attributes


def order_loops(module: Module) -> Module:
    """Reorders the bodies of the loops of a module that came through HLO.

    Returns:
      the module as it is where nothing is out of order, where it was never HLO, and where the order of effects might matter.
    """
    if not came_through_hlo(module):
        return module
    changed = {}
    for name, function in module.functions.items():
        body = _region(function.body)
        if body is not function.body:
            changed[name] = dataclasses.replace(function, body=body)
    if not changed or any(_has_effects(op) for f in module.functions.values() for op in walk(f.body)):
        return module
    functions: dict[str, Function] = {**module.functions, **changed}
    return dataclasses.replace(module, functions=functions)


def _has_effects(op: Op) -> bool:
    return op.name in EFFECTFUL or bool(op.attributes.get("has_side_effect"))


def _region(region: Region) -> Region:
    ops = [_op(op) if op.regions else op for op in region.ops]
    if all(new is old for new, old in zip(ops, region.ops, strict=True)):
        return region
    return dataclasses.replace(region, ops=tuple(ops))


def _op(op: Op) -> Op:
    regions = tuple([_region(region) for region in op.regions])
    if op.name == "stablehlo.while":
        condition, body = regions
        regions = (condition, _ordered(condition, body))
    if all(new is old for new, old in zip(regions, op.regions, strict=True)):
        return op
    return dataclasses.replace(op, regions=regions)


def _uses(op: Op) -> Iterator[Value]:
    """What an operation reads, in its regions too."""
    yield from op.operands
    for region in op.regions:
        for inner in region.ops:
            yield from _uses(inner)
        yield from region.results


def _ordered(condition: Region, body: Region) -> Region:
    unchanged = [i for i, (a, r) in enumerate(zip(body.arguments, body.results, strict=True)) if a is r]
    tested = {value for op in condition.ops for value in _uses(op)} | set(condition.results)
    # Those that the condition reads are met there.
    waiting = [body.arguments[i] for i in unchanged if condition.arguments[i] not in tested]
    if len(waiting) < 2:
        return body
    late = set(waiting)
    users: dict[Value, list[Op]] = {}
    reads: dict[Op, set[Value]] = {}
    for op in body.ops:
        reads[op] = set(_uses(op))
        for value in _uses(op):
            if value in late:
                users.setdefault(value, []).append(op)
    if list(users) == [value for value in waiting if value in users]:
        return body
    maker = {value: op for op in body.ops for value in op.results}
    place = {op: i for i, op in enumerate(body.ops)}
    placed: dict[Op, None] = {}
    for value in waiting:
        late.discard(value)
        if value not in users:
            continue
        for user in users[value]:
            cone = _cone(user, reads, maker, placed)
            if not any(reads[op] & late for op in cone):
                placed.update(dict.fromkeys(sorted(cone, key=place.__getitem__)))
                break
        else:
            return body
    placed.update(dict.fromkeys(body.ops))
    return dataclasses.replace(body, ops=tuple(placed))


def _cone(op: Op, reads: dict[Op, set[Value]], maker: dict[Value, Op], placed: dict[Op, None]) -> set[Op]:
    """The operation and all that it depends on, as far as not placed yet."""
    cone, pending = {op}, [op]
    while pending:
        for value in reads[pending.pop()]:
            source = maker.get(value)
            if source is not None and source not in placed and source not in cone:
                cone.add(source)
                pending.append(source)
    return cone
