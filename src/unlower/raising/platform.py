"""Fixes the platform index of a module that was lowered for several platforms.

Such a module takes the place of the running platform among its platforms, passes it from function to function, and chooses by
it with `stablehlo.case`, directly or through a second `case` that turns it into the number of a branch. With the index known,
only the chosen branches stay, so that what another platform would have run needs neither rules nor gradients.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from unlower.ir.attributes import DenseElements, Symbol
from unlower.ir.module import CALLS, CONSTANTS, Function, Module, Op, Region, Value, walk
from unlower.ir.types import TensorType

__all__ = ["count_platforms", "fix_platform"]

_CASE = "stablehlo.case"
_PASSES_ON = frozenset({"stablehlo.convert", "stablehlo.optimization_barrier"})


def fix_platform(module: Module, position: int, index: int) -> Module:
    """Returns the module with the flat input at `position` gone, and `index` in its place."""
    return _Folder(module).run(position, index)


def count_platforms(module: Module, position: int) -> int | None:
    """Returns how many platforms a module chooses between: the branches of the first `case` by its platform index."""
    waiting = [(module.main, module.main.body.arguments[position])]
    seen: set[Value] = set()
    while waiting:
        function, value = waiting.pop(0)
        if value in seen:
            continue
        seen.add(value)
        for op in walk(function.body):
            if value not in op.operands:
                continue
            if op.name == _CASE:
                return len(op.regions)
            if op.name in CALLS:
                callee = module.functions[str(op.attributes["callee"])]
                waiting.append((callee, callee.body.arguments[op.operands.index(value)]))
            elif op.name in _PASSES_ON:
                waiting.append((function, op.results[op.operands.index(value)]))
    return None


class _Folder:
    def __init__(self, module: Module):
        self._module = module
        self._functions: dict[str, Function] = {}
        self._variants: dict[tuple[str, tuple[tuple[int, int], ...]], str] = {}

    def run(self, position: int, index: int) -> Module:
        entry = self._variant(self._module.entry, ((position, index),))
        # In the order in which the module had them, the entry first among its variants.
        order = {name: i for i, name in enumerate(self._module.functions)}
        names = sorted(self._functions, key=lambda name: order.get(name, len(order)))
        return dataclasses.replace(self._module, functions={n: self._functions[n] for n in names}, entry=entry)

    def _variant(self, name: str, known: tuple[tuple[int, int], ...]) -> str:
        """The name of a function in which the arguments at some positions have known values."""
        if (name, known) in self._variants:
            return self._variants[name, known]
        own, number = name, 0
        while own in self._functions or (own != name and own in self._module.functions):
            number += 1
            own = f"{name}_{number}"
        self._variants[name, known] = own
        function = self._module.functions[name]
        self._functions[own] = function  # holds the name
        self._functions[own] = _Body(self, function, dict(known)).function(own)
        return own

    def call(self, op: Op, known: Mapping[Value, int]) -> Op:
        """A call with its known operands gone."""
        fixed = tuple((i, known[value]) for i, value in enumerate(op.operands) if value in known)
        name = self._variant(str(op.attributes["callee"]), fixed)
        operands = tuple(value for value in op.operands if value not in known)
        return dataclasses.replace(op, operands=operands, attributes={**op.attributes, "callee": Symbol(name)})

    def reference(self, attribute: Any) -> Any:
        """An attribute, with the functions that it names taken along."""
        if isinstance(attribute, Symbol) and str(attribute) in self._module.functions:
            return Symbol(self._variant(str(attribute), ()))
        if type(attribute) is tuple:
            return tuple(map(self.reference, attribute))
        return attribute


class _Body:
    """Rewrites the body of one function. `known` are the values that follow from the index."""

    def __init__(self, folder: _Folder, function: Function, known: Mapping[int, int]):
        self._folder, self._function, self._positions = folder, function, known
        self._known: dict[Value, int] = {function.body.arguments[i]: value for i, value in known.items()}
        self._replaced: dict[Value, Value] = {}
        self._constants: dict[Value, int] = {}
        for op in walk(function.body):
            if op.name in CONSTANTS and _is_scalar_integer(op.results[0]):
                self._constants[op.results[0]] = int(op.attributes["value"].array.reshape(-1)[0])

    def function(self, name: str) -> Function:
        function = self._function
        ops = list(self._ops(function.body.ops))
        results = self._use(function.body.results)
        if self._known:
            # What still reads the index finds a constant.
            read = {value for op in _all_ops(ops) for value in op.operands} | set(results)
            read |= {value for op in _all_ops(ops) for region in op.regions for value in region.results}
            ops = [_constant(value, number) for value, number in self._known.items() if value in read] + ops

        def kept(items: Sequence[Any]) -> tuple[Any, ...]:
            return tuple(item for i, item in enumerate(items) if i not in self._positions)

        return dataclasses.replace(
            function,
            name=name,
            body=Region(kept(function.body.arguments), tuple(ops), results),
            argument_attributes=kept(function.argument_attributes),
            argument_locations=kept(function.argument_locations),
        )

    def _use(self, values: Sequence[Value]) -> tuple[Value, ...]:
        return tuple([self._replaced.get(value, value) for value in values])

    def _ops(self, ops: Sequence[Op]) -> Iterator[Op]:
        for op in ops:
            operands = self._use(op.operands)
            if op.name == _CASE and operands[0] in self._known:
                index = self._known[operands[0]]
                # Out of range, it is the last branch.
                region = op.regions[index if 0 <= index < len(op.regions) else -1]
                yield from self._ops(region.ops)
                for result, value in zip(op.results, self._use(region.results), strict=True):
                    # The constant itself may serve elsewhere; only what the branch made of it follows from the index.
                    if value in self._constants:
                        self._known[result] = self._constants[value]
                    elif value in self._known:
                        self._known[result] = self._known[value]
                    else:
                        self._replaced[result] = value
                continue
            if op.name in _PASSES_ON and len(operands) == 1 and operands[0] in self._known:
                (result,) = op.results
                if _is_scalar_integer(result):
                    self._known[result] = self._known[operands[0]]
                    continue
            op = dataclasses.replace(op, operands=operands)
            if op.name in CALLS:
                yield self._folder.call(op, self._known)
                continue
            attributes = {name: self._folder.reference(value) for name, value in op.attributes.items()}
            regions = tuple(
                Region(region.arguments, tuple(self._ops(region.ops)), self._use(region.results))
                for region in op.regions
            )
            yield dataclasses.replace(op, attributes=attributes, regions=regions)


def _all_ops(ops: Sequence[Op]) -> Iterator[Op]:
    for op in ops:
        yield op
        for region in op.regions:
            yield from walk(region)


def _is_scalar_integer(value: Value) -> bool:
    type_ = value.type
    return isinstance(type_, TensorType) and type_.shape == () and type_.element in ("i32", "i64", "ui32", "i8")


def _constant(value: Value, number: int) -> Op:
    array = np.asarray(number, value.type.dtype)  # pyright: ignore[reportAttributeAccessIssue]
    return Op("stablehlo.constant", (), (value,), {"value": DenseElements(value.type, array)})  # pyright: ignore[reportArgumentType]
