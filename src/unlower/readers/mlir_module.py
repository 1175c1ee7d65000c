"""A module of the MLIR bindings -> `unlower.ir`, by way of its bytecode.

MLIR writes a module at a microsecond an operation; the bytes are read here at a fraction of what it costs to ask the
bindings for each operand, type and attribute. In version 4 of the format every operation names one attribute dictionary,
so what many operations share is decoded once and is one object. Nothing of MLIR stays referenced from the result.
"""

import io
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from unlower._collector import collector_paused
from unlower.errors import FormatError, InvalidModuleError
from unlower.ir.module import Function, Location, Module, Op, Region, Value
from unlower.readers.elision import ELIDED_TARGET, Elision
from unlower.readers.hlo.carried import CARRIED_TARGET
from unlower.readers.mlir_bytecode import Bytecode, varint
from unlower.readers.mlir_properties import Properties
from unlower.readers.mlir_tables import Tables

__all__ = ["bytecode_of", "module_from_bytecode", "module_from_mlir"]

_VERSION = 4
"""The last version of the format that keeps all attributes of an operation in one dictionary."""

_TERMINATORS = frozenset(["func.return", "mhlo.return", "sdy.return", "stablehlo.return", "vhlo.return_v1"])
_NO_ATTRIBUTES: Mapping[str, Any] = MappingProxyType({})
_HAS_ATTRIBUTES, _HAS_RESULTS, _HAS_OPERANDS, _HAS_SUCCESSORS, _HAS_REGIONS = 1, 2, 4, 8, 16
_HAS_USE_ORDERS, _HAS_PROPERTIES = 32, 64


def module_from_mlir(module: Any, elision: Elision | None = None) -> Module:
    """Builds the IR of an MLIR module.

    Functions that the entry cannot reach are left out: XLA's converter emits the body of every region once more as a
    private function, a quarter to nearly all of a module's functions.

    Args:
      module: a module of the bindings; only read, and not referenced afterwards.
      elision: decides about constants without values, and is to be finished by the caller. None: they are refused.

    Raises:
      InvalidModuleError: no entry function, or control flow between blocks.
      FormatError: constant data that is left out, or does not fit its type.
    """
    asked = Elision() if elision is None else elision
    built = module_from_bytecode(bytecode_of(module), asked)
    if elision is None:
        asked.finish()
    return built


def bytecode_of(module: Any) -> bytes:
    """Writes an MLIR module as the bytecode that `module_from_bytecode` reads; the module can go before that is read."""
    file = io.BytesIO()
    module.operation.write_bytecode(file, desired_version=_VERSION)
    return file.getvalue()


def module_from_bytecode(data: bytes, elision: Elision, locations: Mapping[str, Location] | None = None) -> Module:
    """Builds the IR of bytecode.

    Args:
      data: the file, in version 4 of the format, as `bytecode_of` has it written, or as XLA's converter writes it.
      elision: decides about constants without values.
      locations: the locations that stand for some names.

    Raises:
      InvalidModuleError: no entry function, or control flow between blocks.
      FormatError: damaged bytes; constant data that is left out, or does not fit its type.
    """
    try:
        with collector_paused():
            return _Builder(Bytecode(data), elision, locations or {}).build()
    except (IndexError, KeyError, TypeError, ValueError, OverflowError) as error:
        if isinstance(error, FormatError | InvalidModuleError):
            raise
        raise FormatError(f"damaged MLIR bytecode: {error}", mend="copy or write the file again") from error


class _Draft:
    """An `Op` that is being filled in, and becomes one by its class: a third of the cost of a frozen dataclass."""

    __slots__ = Op.__slots__

    def __init__(self, name: Any, operands: Any, results: Any, attributes: Any, regions: Any, location: Any):
        self.name = name
        self.operands = operands
        self.results = results
        self.attributes = attributes
        self.regions = regions
        self.location = location


class _Header(NamedTuple):
    """An operation at the top of a module: where its region starts, if it has one, and where it stops."""

    name: str
    attributes: Mapping[str, Any]
    region: int | None
    stop: int


class _Block(NamedTuple):
    """The only block of a region: how many values the region defines, how many operations it has."""

    values: int
    ops: int
    has_arguments: bool


class _DraftValue:
    """A `Value` that is being filled in, likewise."""

    __slots__ = Value.__slots__

    def __init__(self, number: int, type_: Any):
        self.number = number
        self.type = type_


class _Builder:
    """The state of one pass: what was decoded already, and which functions are still to be read."""

    def __init__(self, bytecode: Bytecode, elision: Elision, locations: Mapping[str, Location]):
        self._bytecode, self._data, self._elision = bytecode, bytecode.data, elision
        self._tables = Tables(bytecode, elision, locations)
        self._properties = Properties(bytecode, self._tables.attributes)
        self._number = 0

    # --- the module, and its functions

    def build(self) -> Module:
        """Reads the module's own operation, then every function that can be reached from the entry."""
        data = self._data
        top = self._header(self._bytecode.ir + 1)  # after a block of one operation
        if top.name != "builtin.module" or top.region is None:
            raise InvalidModuleError(f"{top.name} where a module is expected", mend="only modules can be loaded")
        functions: dict[str, tuple[dict[str, Any], _Header]] = {}
        public: list[str] = []
        meshes: dict[str, Any] = {}
        block, at = self._open_block(varint(data, top.region)[1])
        for _ in range(block.ops):
            header = self._header(at)
            at = header.stop
            attributes = dict(header.attributes)
            if header.name == "func.func":
                name = attributes.pop("sym_name")
                functions[name] = attributes, header
                if attributes.get("sym_visibility", "public") == "public":
                    public.append(name)
            elif header.name == "sdy.mesh":
                meshes[attributes["sym_name"]] = attributes["mesh"]
            else:
                raise InvalidModuleError(
                    f"{header.name} at the top of a module", mend="only functions and meshes belong there"
                )
        if not public:
            raise InvalidModuleError(
                "the module has no public function", mend="mark the function to call `public`, or drop `private`"
            )
        entry = "main" if "main" in public else public[0]
        built: dict[str, Function] = {}
        waiting = [entry]
        self._tables.symbols.clear()
        while waiting:
            name = waiting.pop()
            if name in built or name not in functions:
                continue
            built[name] = self._function(name, *functions[name])
            # Attributes are decoded once, and only while a function is read: these are the functions it refers to.
            waiting.extend(reversed(self._tables.symbols))
            self._tables.symbols.clear()
        attributes = dict(top.attributes)
        name = attributes.pop("sym_name", "module")
        if meshes:
            attributes["sdy.meshes"] = meshes
        return Module(str(name), built, entry, attributes)

    def _function(self, name: str, attributes: dict[str, Any], header: "_Header") -> Function:
        self._number = 0
        blocks, at = (0, 0) if header.region is None else varint(self._data, header.region)
        if not blocks:
            raise InvalidModuleError(f"@{name} is declared but not defined", mend="link its definition into the module")
        body, locations, _ = self._region(at, blocks, [], name)
        inputs, outputs = len(body.arguments), len(body.results)
        visibility = attributes.pop("sym_visibility", "public")
        argument_attributes = attributes.pop("arg_attrs", ()) or ({},) * inputs
        result_attributes = attributes.pop("res_attrs", ()) or ({},) * outputs
        attributes.pop("function_type", None)
        return Function(name, body, visibility, argument_attributes, result_attributes, locations, attributes)

    def _header(self, at: int) -> "_Header":
        """Reads an operation at the top of a module, which has neither operands nor results, but not what is in it."""
        data = self._data
        name, at = varint(data, at)
        mask = data[at]
        _, at = varint(data, at + 1)
        attributes = _NO_ATTRIBUTES
        if mask & _HAS_ATTRIBUTES:
            index, at = varint(data, at)
            attributes = self._tables.attributes[index]
        if mask & _HAS_PROPERTIES:
            index, at = varint(data, at)
            attributes = self._properties.join(self._bytecode.op_names[name], index, attributes)
        if mask & ~(_HAS_ATTRIBUTES | _HAS_PROPERTIES | _HAS_REGIONS):
            raise ValueError("an operation with operands or results at the top of a module")
        region = None
        if mask & _HAS_REGIONS:
            count, at = varint(data, at)
            if count != 3:
                raise ValueError("a function of several regions, or that uses values from outside")
            region, at = self._section(at)
        return _Header(self._bytecode.op_names[name], attributes, region, at)

    def _section(self, at: int) -> tuple[int, int]:
        """Returns the start and the stop of the section that wraps the regions of an isolated operation."""
        data = self._data
        aligned = data[at] & 0x80
        length, at = varint(data, at + 1)
        if aligned:
            alignment, at = varint(data, at)
            at += -at % alignment
        return at, at + length

    # --- regions

    def _open_block(self, at: int) -> tuple["_Block", int]:
        """Opens the only block of the region whose number of values stands at `at`."""
        values, at = varint(self._data, at)
        encoding, at = varint(self._data, at)
        if values > len(self._data):
            raise ValueError("more values than bytes")
        return _Block(values, encoding >> 1, bool(encoding & 1)), at

    def _arguments(
        self, at: int, values: list[Any], first: int
    ) -> tuple[tuple[Value, ...], tuple[Location | None, ...], int]:
        data, types = self._data, self._tables.types
        count, at = varint(data, at)
        arguments: list[Any] = []
        locations: list[Location | None] = []
        for _ in range(count):
            encoding, at = varint(data, at)
            located = None
            if encoding & 1:
                index, at = varint(data, at)
                located = self._tables.location(index)
            value = _DraftValue(self._number, types[encoding >> 1])
            value.__class__ = Value  # pyright: ignore[reportAttributeAccessIssue]
            self._number += 1
            arguments.append(value)
            locations.append(located)
        values[first : first + count] = arguments
        at += 1
        if data[at - 1]:
            at = self._skip_use_orders(at, count)
        return tuple(arguments), tuple(locations), at

    def _skip_use_orders(self, at: int, results: int) -> int:
        """Skips the order in which the uses of values are listed in memory, which means nothing."""
        data = self._data
        count = 1
        if results > 1:
            count, at = varint(data, at)
        for _ in range(count):
            if results > 1:
                _, at = varint(data, at)
            indices, at = varint(data, at)
            for _ in range(indices >> 1):
                _, at = varint(data, at)
        return at

    def _region(
        self, at: int, blocks: int, values: list[Any], function: str
    ) -> tuple[Region, tuple[Location | None, ...], int]:
        """Reads a region whose number of values stands at `at`; its values are numbered on from those around it."""
        if blocks != 1:
            raise InvalidModuleError(
                f"a region with {blocks} blocks in @{function}",
                mend="use the structured control flow of StableHLO (while, if, case)",
            )
        outer = len(values)
        block, at = self._open_block(at)
        values.extend([None] * block.values)
        arguments: tuple[Value, ...] = ()
        locations: tuple[Location | None, ...] = ()
        if block.has_arguments:
            arguments, locations, at = self._arguments(at, values, outer)
        ops, results, at = self._operations(at, block.ops, values, outer + len(arguments), function)
        del values[outer:]
        return Region(arguments, ops, results), locations, at

    def _regions(self, at: int, values: list[Any], function: str) -> tuple[tuple[Region, ...], int]:
        """Reads the regions of an operation; those that use no value from around stand in a section, numbered anew."""
        data = self._data
        count, at = varint(data, at)
        stop = 0
        if count & 1:
            at, stop = self._section(at)
            values = []
        regions = []
        for _ in range(count >> 1):
            blocks, at = varint(data, at)
            if blocks:
                region, _, at = self._region(at, blocks, values, function)
                regions.append(region)
            else:
                regions.append(Region((), (), ()))
        return tuple(regions), stop or at

    def _operations(
        self, at: int, count: int, values: list[Any], following: int, function: str
    ) -> tuple[tuple[Op, ...], tuple[Value, ...], int]:
        """Reads the operations of a block. This loop is what reading costs, so short integers are read in place.

        Bytes: name, what follows, location, attributes?, properties?, (results, types)?, (operands, values)?, use orders?,
        regions?.
        """
        data, names = self._data, self._bytecode.op_names
        tables = self._tables
        types, attribute_values, places = tables.types.values, tables.attributes.values, tables.locations
        join, number = self._properties.join, self._number
        ops: list[Any] = []
        results: tuple[Value, ...] = ()
        for _ in range(count):
            b = data[at]
            if b & 1:
                at += 1
                name = names[b >> 1]
            else:
                b, at = varint(data, at)
                name = names[b]
            mask = data[at]
            b = data[at + 1]
            if b & 1:
                b >>= 1
                at += 2
            elif b & 2:
                b = (b | data[at + 2] << 8) >> 2
                at += 3
            else:
                b, at = varint(data, at + 1)
            location = places[b]
            if location is None:
                self._tables.location(b)
                location = places[b]
            attributes: Any = _NO_ATTRIBUTES
            if mask & _HAS_ATTRIBUTES:
                b = data[at]
                if b & 1:
                    b >>= 1
                    at += 1
                elif b & 2:
                    b = (b | data[at + 1] << 8) >> 2
                    at += 2
                else:
                    b, at = varint(data, at)
                attributes = attribute_values[b]
                if attributes is None:
                    attributes = self._tables.attributes[b]
            if mask & _HAS_PROPERTIES:
                b, at = varint(data, at)
                attributes = join(name, b, attributes)
            made: list[Any] = []
            if mask & _HAS_RESULTS:
                b = data[at]
                if b & 1:
                    result_count = b >> 1
                    at += 1
                else:
                    result_count, at = varint(data, at)
                for _ in range(result_count):
                    b = data[at]
                    if b & 1:
                        b >>= 1
                        at += 1
                    else:
                        b, at = varint(data, at)
                    type_ = types[b]
                    if type_ is None:
                        type_ = self._tables.types[b]
                    values[following] = value = _DraftValue(0, type_)
                    following += 1
                    made.append(value)
            if mask & _HAS_OPERANDS:
                b = data[at]
                if b & 1:
                    operand_count = b >> 1
                    at += 1
                else:
                    operand_count, at = varint(data, at)
                operands: Any = []
                for _ in range(operand_count):
                    b = data[at]
                    if b & 1:
                        b >>= 1
                        at += 1
                    elif b & 2:
                        b = (b | data[at + 1] << 8) >> 2
                        at += 2
                    else:
                        b, at = varint(data, at)
                    operands.append(values[b])
                operands = tuple(operands)
            else:
                operands = ()
            if mask & _HAS_SUCCESSORS:
                raise InvalidModuleError(f"{name} in @{function} jumps to another block")
            if mask & _HAS_USE_ORDERS:
                at = self._skip_use_orders(at, len(made))
            regions: tuple[Region, ...] = ()
            if mask & _HAS_REGIONS:
                self._number = number
                regions, at = self._regions(at, values, function)
                number = self._number
            if name in _TERMINATORS:
                results = operands
                continue
            for value in made:
                value.number = number
                value.__class__ = Value
                number += 1
            if name == "stablehlo.custom_call":
                target = str(attributes.get("call_target_name"))
                if target == ELIDED_TARGET:
                    name = "stablehlo.constant"
                    filled = self._elision.fill(attributes.get("backend_config", "constant"), made[0].type)
                    attributes = {"value": filled}
                elif target.startswith(CARRIED_TARGET):
                    name, attributes = _carried(target, attributes)
            draft = _Draft(name, operands, tuple(made), attributes, regions, location or None)
            draft.__class__ = Op  # pyright: ignore[reportAttributeAccessIssue]
            ops.append(draft)
        self._number = number
        return tuple(ops), results, at


def _carried(target: str, attributes: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """The name and attributes of an HLO instruction that a custom call carried through the converter."""
    config = attributes.get("mhlo.backend_config", attributes.get("backend_config"))
    kept = {key: attributes[key] for key in ("called_computations", "mhlo.sharding") if attributes.get(key)}
    return f"hlo.{target.removeprefix(CARRIED_TARGET)}", {**(config if isinstance(config, Mapping) else {}), **kept}
