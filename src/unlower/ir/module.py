"""What a program is: modules, functions, regions, operations, values. Frozen dataclasses, no JAX, no MLIR.

The vocabulary is StableHLO's (with CHLO and the MHLO that XLA's converter leaves), in SSA form: a value is the argument
of a region or the result of an operation, and an operation in a region may use the values around it (its captures).
Regions have one block, and a terminator is not an operation here: its operands are the region's `results`.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from unlower.ir.types import Type

__all__ = [
    "CALLS",
    "CONSTANTS",
    "CUSTOM_CALLS",
    "EFFECTFUL",
    "Function",
    "Location",
    "Module",
    "Op",
    "Region",
    "Value",
    "Vocabulary",
    "next_number",
    "replace_ops",
    "walk",
]

CALLS = frozenset({"func.call", "stablehlo.call", "call"})
"""Operations that call the function named by `callee`."""

CONSTANTS = frozenset({"stablehlo.constant", "mhlo.constant"})
"""Operations that make the array in their attribute `value`."""

CUSTOM_CALLS = frozenset({"stablehlo.custom_call", "mhlo.custom_call"})
"""Operations whose meaning is that of `call_target_name`."""

EFFECTFUL = frozenset(
    {
        "mhlo.xla.rng_get_and_update_state",
        "stablehlo.infeed",
        "stablehlo.outfeed",
        "stablehlo.recv",
        "stablehlo.rng",
        "stablehlo.send",
    }
)
"""Operations that must run once each, in order; custom calls say so in `has_side_effect`."""


@dataclasses.dataclass(frozen=True, slots=True)
class Location:
    """Where an operation came from: its `name` (scopes joined by `/`) and the source line, as far as the file tells."""

    name: str | None = None
    file: str | None = None
    line: int | None = None

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.file else ""
        return " ".join(filter(None, [self.name, place and f"({place})"])) or "unknown"


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Value:
    """An SSA value; compared by identity. `number` is unique in its function and prints as `%number`."""

    number: int
    type: Type

    def __repr__(self) -> str:
        return f"%{self.number}: {self.type}"


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Region:
    """A block of operations: `arguments` come in, `results` (the terminator's operands) go out."""

    arguments: tuple[Value, ...]
    ops: "tuple[Op, ...]"
    results: tuple[Value, ...]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Op:
    """One operation.

    Attributes:
      name: dialect and mnemonic, e.g. `"stablehlo.add"`.
      operands: the values it reads.
      results: the values it makes.
      attributes: by the specification's names; see `unlower.ir.attributes` for the values.
      regions: the programs it holds.
      location: name scope and source line, or None.
    """

    name: str
    operands: tuple[Value, ...] = ()
    results: tuple[Value, ...] = ()
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    regions: tuple[Region, ...] = ()
    location: Location | None = None

    @property
    def type(self) -> Any:
        """The type of the only result."""
        (result,) = self.results
        return result.type

    @property
    def types(self) -> tuple[Any, ...]:
        """The types of all results; `Any`, since each rule knows what its operation has."""
        return tuple([value.type for value in self.results])


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Function:
    """A function of a module; `body` is its region. Attribute tuples match arguments and results one to one."""

    name: str
    body: Region
    visibility: str = "private"
    argument_attributes: tuple[Mapping[str, Any], ...] = ()
    result_attributes: tuple[Mapping[str, Any], ...] = ()
    argument_locations: tuple[Location | None, ...] = ()
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=dict)


class Vocabulary(NamedTuple):
    """What occurs in a module: names of operations, targets of custom calls, and types (equal ones may occur twice)."""

    names: frozenset[str]
    targets: frozenset[str]
    types: tuple[Type, ...]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Module:
    """A program: functions by name, one of which is the entry.

    Attributes:
      name: the module's symbol, or "module".
      functions: every function that the entry can reach, by name.
      entry: the name of the public function.
      attributes: the module's own attributes.
    """

    name: str
    functions: Mapping[str, Function]
    entry: str
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    _vocabulary: Vocabulary | None = dataclasses.field(default=None, init=False, repr=False)

    @property
    def vocabulary(self) -> Vocabulary:
        """What occurs in the module, gathered once: most questions about a module are about its few kinds of operations."""
        if self._vocabulary is None:
            object.__setattr__(self, "_vocabulary", _vocabulary(self))
        assert self._vocabulary is not None
        return self._vocabulary

    @property
    def main(self) -> Function:
        """The entry function."""
        return self.functions[self.entry]


def walk(region: Region) -> Iterator[Op]:
    """Yields every operation of `region`, outer before inner, nested regions included."""
    for op in region.ops:
        yield op
        for inner in op.regions:
            yield from walk(inner)


def replace_ops(region: Region, replaced: Mapping[Op, Op | None]) -> Region:
    """Returns the region with operations replaced, at any depth, or left out where None stands for them.

    What stands for an operation may have its regions, in which operations are replaced as well. A region in which nothing is
    replaced is returned as it is.
    """
    ops: list[Op] = []
    for op in region.ops:
        new = replaced.get(op, op)
        if new is None:
            continue
        if new.regions:
            regions = tuple([replace_ops(inner, replaced) for inner in new.regions])
            if any(a is not b for a, b in zip(regions, new.regions, strict=True)):
                new = dataclasses.replace(new, regions=regions)
        ops.append(new)
    same = len(ops) == len(region.ops) and all(a is b for a, b in zip(ops, region.ops, strict=True))
    return region if same else dataclasses.replace(region, ops=tuple(ops))


def next_number(region: Region) -> int:
    """Returns one more than the highest number of a value in `region`, nested regions included."""
    numbers = [value.number for value in region.arguments]
    for op in walk(region):
        for values in (op.results, *(inner.arguments for inner in op.regions)):
            numbers += [value.number for value in values]
    return 1 + max(numbers, default=-1)


def _vocabulary(module: Module) -> Vocabulary:
    names: set[str] = set()
    targets: set[str] = set()
    types: dict[int, Type] = {}
    regions = [function.body for function in module.functions.values()]
    for region in regions:  # grows while it is walked
        for value in region.arguments:
            types[id(value.type)] = value.type
        for op in region.ops:
            names.add(op.name)
            for value in op.results:
                types[id(value.type)] = value.type
            if op.regions:
                regions.extend(op.regions)
            elif op.name in CUSTOM_CALLS:
                targets.add(str(op.attributes.get("call_target_name", "")))
    return Vocabulary(frozenset(names), frozenset(targets), tuple(types.values()))
