"""Puts the operations of a loop that came through HLO back in an order that gives the same HLO again.

On its way to HLO a loop's carry is rearranged: what the body returns unchanged goes last, in the order in which condition and
body first use it. The order of the body's operations is lost in HLO, but the carry's tells of it. So the first uses of the
unchanged values are moved to the front, in the carry's order. Operations with effects stay where they are, and so does
everything where that order is impossible.
"""

import dataclasses
from collections.abc import Iterator

from unlower.ir.module import Function, Module, Op, Region, Value

__all__ = ["order_loops"]

_PURE_CALLS = frozenset({"stablehlo.while", "stablehlo.if", "stablehlo.case", "stablehlo.reduce", "func.call"})


def order_loops(module: Module) -> Module:
    """Reorders the bodies of the loops of `module`; returns it as it is where nothing is out of order."""
    changed = {}
    for name, function in module.functions.items():
        body = _region(function.body)
        if body is not function.body:
            changed[name] = dataclasses.replace(function, body=body)
    if not changed:
        return module
    functions: dict[str, Function] = {**module.functions, **changed}
    return dataclasses.replace(module, functions=functions)


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
    if len(waiting) < 2 or any(op.attributes.get("has_side_effect") for op in body.ops):
        return body
    reads = {op: set(_uses(op)) for op in body.ops}
    met = [value for op in body.ops for value in _uses(op) if value in waiting]
    if list(dict.fromkeys(met)) == [value for value in waiting if value in met]:
        return body
    maker = {value: op for op in body.ops for value in op.results}
    place = {op: i for i, op in enumerate(body.ops)}
    placed: dict[Op, None] = {}
    late = set(waiting)
    for value in waiting:
        late.discard(value)
        for user in body.ops:
            if value not in reads[user]:
                continue
            cone = _cone(user, reads, maker, placed)
            if not any(reads[op] & late for op in cone):
                placed.update(dict.fromkeys(sorted(cone, key=place.__getitem__)))
                break
        else:
            if value in met:
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
