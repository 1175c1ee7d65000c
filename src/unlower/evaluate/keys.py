"""Structural identity: small integers that are equal exactly when types, attributes or regions mean the same.

Two operations with the same key have the same meaning whatever their operands are called, so one trace serves both.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from unlower.evaluate.cache import SharedTemplates
from unlower.ir.attributes import DenseElements, Enum, Float, Int, IntArray, Symbol
from unlower.ir.module import Op, Region, Value

__all__ = ["Interner", "RegionInfo"]

_INLINE_BYTES = 4096
"""Dense attributes up to this many bytes are compared by content, larger ones by identity."""


class RegionInfo(NamedTuple):
    """A region's structural key, and the values that it uses from around (scalar constants excepted)."""

    key: int
    captures: tuple[Value, ...]


class Interner:
    """Hands out the integers. Holds on to what it has seen, so an identity is never reused.

    Args:
      constants: the values that `stablehlo.constant` defines; scalar ones are part of a region, not captures of it.
      shared: where the integers come from; equal structure has equal integers in every load that shares it.
    """

    def __init__(self, constants: Mapping[Value, DenseElements], shared: SharedTemplates):
        self._constants = constants
        self._shared = shared
        self._module = shared.unique()
        self._identities: dict[int, int] = {}
        self._kept: list[Any] = []
        self._regions: dict[Region, RegionInfo] = {}

    def intern(self, thing: Any) -> int:
        """Returns the integer of a type or attribute; objects seen before cost one look-up by identity."""
        try:
            return self._identities[id(thing)]
        except KeyError:
            number = self._shared.number(self._frozen(thing))
            self._identities[id(thing)] = number
            self._kept.append(thing)
            return number

    def op(self, op: Op) -> tuple[Any, ...]:
        """Returns the key of an operation: everything about it but which values it reads and makes."""
        known, operands, results = self._identities, op.operands, op.results
        try:
            types = [known[id(value.type)] for value in operands]
            types += [known[id(value.type)] for value in results]
            attributes = known[id(op.attributes)]
        except KeyError:
            types = [self.intern(value.type) for value in (*operands, *results)]
            attributes = self.intern(op.attributes)
        regions = [self.region(region).key for region in op.regions] if op.regions else ()
        return (op.name, attributes, len(operands), *types, *regions)

    def region(self, region: Region) -> RegionInfo:
        """Returns the key and captures of a region."""
        info = self._regions.get(region)
        if info is None:
            info = self._regions[region] = self._analyze(region)
        return info

    def _analyze(self, region: Region) -> RegionInfo:
        local: dict[Value, int] = {value: i for i, value in enumerate(region.arguments)}
        captures: dict[Value, int] = {}

        def reference(value: Value) -> Any:
            index = local.get(value)
            if index is not None:
                return index
            constant = self._constants.get(value)
            if constant is not None and constant.type.shape == ():
                return ("constant", self.intern(constant))
            return -1 - captures.setdefault(value, len(captures))

        entries: list[Any] = [tuple(self.intern(value.type) for value in region.arguments)]
        for op in region.ops:
            nested = [reference(value) for inner in op.regions for value in self.region(inner).captures]
            entries.append((self.op(op), tuple(map(reference, op.operands)), tuple(nested)))
            for value in op.results:
                local[value] = len(local)
        entries.append(tuple(map(reference, region.results)))
        return RegionInfo(self._shared.number(("region", tuple(entries))), tuple(captures))

    def _frozen(self, thing: Any) -> Any:
        """A hashable stand-in for a type or an attribute; equal only where both spelling and value are."""
        if isinstance(thing, DenseElements):
            small = thing.array.nbytes <= _INLINE_BYTES
            content = thing.array.tobytes() if small else self._shared.unique()
            return ("dense", thing.type, thing.is_splat, content, thing.elided)
        if isinstance(thing, Symbol):
            # A function's name means something in its own module only.
            return (Symbol, str(thing), self._module)
        if isinstance(thing, Int | IntArray):
            return (type(thing), thing.element, tuple(thing) if isinstance(thing, IntArray) else int(thing))
        if isinstance(thing, Float):
            return (Float, thing.element, float(thing).hex())
        if isinstance(thing, Enum):
            return (Enum, thing.mnemonic, str(thing))
        if isinstance(thing, Mapping):
            return ("dict", tuple((name, self._frozen(value)) for name, value in sorted(thing.items())))
        if isinstance(thing, tuple | list):
            return ("tuple", tuple(map(self._frozen, thing)))
        return (type(thing), thing)
