"""Takes baked weights out of a module: constants become arguments of the entry function, with names.

A constant in a private function is handed down through every call of it, and one in a loop or a branch is captured by its
region. Constants with the same bytes become one argument. What cannot take an argument keeps its constants: functions that
something else than a plain call refers to (a composite, a custom call), and regions that must not see the values around
them (reducers, comparators).
"""

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from unlower.ir.attributes import DenseElements, Symbol, repeats_one_element
from unlower.ir.module import CALLS, CONSTANTS, Function, Location, Module, Op, Region, Value, next_number, walk
from unlower.ir.types import TensorType
from unlower.raising.constant_names import Uses, name_constant

__all__ = ["Lifted", "content_key", "lift_constants"]

_OPEN = frozenset({"stablehlo.while", "stablehlo.case", "stablehlo.if", "mhlo.while", "mhlo.case", "mhlo.if"})
"""Operations whose regions may use the values around them."""

Key = tuple[str, tuple[int, ...], bytes]


@dataclasses.dataclass(frozen=True, slots=True)
class Lifted:
    """One lifted constant: its name, its value, and which argument of the new entry function it is."""

    name: str
    array: np.ndarray
    position: int


def content_key(array: np.ndarray) -> Key:
    """What is equal for arrays of one type, shape and bytes."""
    data = np.ascontiguousarray(array)
    digest = hashlib.blake2b(data.reshape(-1).view(np.uint8).data, digest_size=20).digest() if data.size else b""
    return data.dtype.name, data.shape, digest


def lift_constants(
    module: Module,
    chosen: Callable[[np.ndarray], bool],
    names: Callable[[Key, np.ndarray], str | None] = lambda key, array: None,
    taken: Sequence[str] = (),
) -> tuple[Module, tuple[Lifted, ...]]:
    """Makes arguments of the constants of a module.

    Args:
      module: a module; not changed.
      chosen: whether a constant is to be lifted; never asked about splats.
      names: a name for a constant that is known by its content, or None.
      taken: names that are not to be given again.

    Returns:
      the new module, whose entry function takes the lifted constants after its own arguments, and those constants.
      Where nothing is lifted the module itself.
    """
    lifter = _Lifter(module, chosen)
    if not lifter.arrays:
        return module, ()
    first = len(module.main.body.arguments)
    uses = Uses(module)
    given = set(taken)
    lifted = []
    for index, (key, array) in enumerate(lifter.arrays.items()):
        wanted = names(key, array) or name_constant(uses, lifter.sources[key], array, index)
        name, count = wanted, 1
        while name in given:
            name = f"{wanted}_{count}"
            count += 1
        given.add(name)
        lifted.append(Lifted(name, array, first + index))
    return lifter.rewrite([item.name for item in lifted]), tuple(lifted)


class _Lifter:
    """Which constants each function needs, its own and those of what it calls; in the order in which they are met."""

    def __init__(self, module: Module, chosen: Callable[[np.ndarray], bool]):
        self._module = module
        self._chosen = chosen
        self.arrays: dict[Key, np.ndarray] = {}
        self.sources: dict[Key, tuple[str, Value]] = {}
        """The function and the value of the first constant with that content."""
        self._keys: dict[Value, Key] = {}
        self._needs: dict[str, dict[Key, None]] = {}
        self._seen: dict[int, tuple[DenseElements, Key | None]] = {}
        called_only = _called_only(module)
        self._collect(module.entry, called_only)
        needed = self._needs.get(module.entry, {})
        self.arrays = {key: self.arrays[key] for key in needed}

    def _collect(self, name: str, called_only: set[str]) -> dict[Key, None]:
        if name in self._needs:
            return self._needs[name]
        needs = self._needs[name] = {}
        if name != self._module.entry and name not in called_only:
            return needs
        function = self._module.functions[name]
        for op in _visible(function.body):
            if op.name in CONSTANTS:
                key = self._key(op)
                if key is not None:
                    self._keys[op.results[0]] = key
                    self.sources.setdefault(key, (name, op.results[0]))
                    needs[key] = None
            elif op.name in CALLS:
                needs.update(self._collect(str(op.attributes["callee"]), called_only))
        return needs

    def _key(self, op: Op) -> Key | None:
        value = op.attributes["value"]
        type_ = op.results[0].type
        if not (isinstance(value, DenseElements) and isinstance(type_, TensorType) and isinstance(type_.element, str)):
            return None
        if id(value) not in self._seen:
            key = None
            if (
                not value.is_splat
                and value.array.size > 1
                and self._chosen(value.array)
                and not repeats_one_element(np.ascontiguousarray(value.array))
            ):
                key = content_key(value.array)
                self.arrays.setdefault(key, value.array)
            self._seen[id(value)] = value, key
        return self._seen[id(value)][1]

    def rewrite(self, names: Sequence[str]) -> Module:
        named = dict(zip(self.arrays, names, strict=True))
        functions = {}
        for name, function in self._module.functions.items():
            needs = self._needs.get(name)
            functions[name] = self._function(function, needs, named) if needs else function
        return dataclasses.replace(self._module, functions=functions)

    def _function(self, function: Function, needs: Mapping[Key, None], names: Mapping[Key, str]) -> Function:
        number = next_number(function.body)
        arguments: dict[Key, Value] = {}
        for key in needs:
            arguments[key] = Value(number, self.sources[key][1].type)
            number += 1
        body = self._region(function.body, arguments)
        count, added = len(function.body.arguments), len(arguments)
        locations = function.argument_locations or (None,) * count
        return dataclasses.replace(
            function,
            body=dataclasses.replace(body, arguments=(*body.arguments, *arguments.values())),
            argument_attributes=(*(function.argument_attributes or ({},) * count), *[{}] * added),
            argument_locations=(*locations, *(Location(names[key]) for key in arguments)),
        )

    def _region(self, region: Region, arguments: Mapping[Key, Value]) -> Region:
        """Takes the constants out of a region, and gives calls what they now need; `arguments` are in its scope."""
        replaced: dict[Value, Value] = {}

        def read(value: Value) -> Value:
            return replaced.get(value, value)

        def inner(old: Region, is_open: bool) -> Region:
            ops = []
            for op in old.ops:
                if is_open and op.name in CONSTANTS and op.results[0] in self._keys:
                    replaced[op.results[0]] = arguments[self._keys[op.results[0]]]
                    continue
                ops.append(rebuilt(op, is_open))
            return Region(old.arguments, tuple(ops), tuple(map(read, old.results)))

        def rebuilt(op: Op, is_open: bool) -> Op:
            operands = tuple(map(read, op.operands))
            if is_open and op.name in CALLS:
                operands += tuple(arguments[key] for key in self._needs.get(str(op.attributes["callee"]), ()))
            regions = tuple(inner(old, is_open and op.name in _OPEN) for old in op.regions)
            return dataclasses.replace(op, operands=operands, regions=regions)

        return inner(region, True)


def _called_only(module: Module) -> set[str]:
    """The functions that nothing but plain calls, in the open, refers to."""
    called: set[str] = set()
    others: set[str] = set()
    for function in module.functions.values():
        in_open = set(map(id, _visible(function.body)))
        for op in walk(function.body):
            if op.name in CALLS and id(op) in in_open:
                called.add(str(op.attributes["callee"]))
            else:
                others.update(_symbols(op.attributes.values()))
    return called - others


def _symbols(values: object) -> Iterator[str]:
    if isinstance(values, Symbol):
        yield str(values)
    elif isinstance(values, Mapping):
        yield from _symbols(list(values.values()))
    elif not isinstance(values, str | bytes) and hasattr(values, "__iter__"):
        for value in values:  # pyright: ignore[reportGeneralTypeIssues]
            yield from _symbols(value)


def _visible(region: Region) -> Iterator[Op]:
    """The operations of a region and of those in it that may use the values around them."""
    for op in region.ops:
        yield op
        if op.name in _OPEN:
            for inner in op.regions:
                yield from _visible(inner)
