"""`ir.Module` <-> bytes, for the pipe between a reader in a process of its own and this one.

Plain data only: JSON for the structure, and the elements of arrays as they are. Decoding makes the classes listed here and
nothing else, whatever the bytes say.
"""

import dataclasses
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from unlower.ir import attributes, types
from unlower.ir.attributes import DenseElements, Enum, Float, Int, IntArray, Symbol, Unit, UnitType, Unparsed
from unlower.ir.module import Function, Location, Module, Op, Region, Value
from unlower.ir.types import DTYPES, TensorType, element_of_dtype
from unlower.readers.constants import own

__all__ = ["decode_module", "encode_module"]

_LENGTH = struct.Struct("<Q")

_PLAIN: Mapping[str, type] = {
    cls.__name__: cls
    for cls in (
        attributes.ChannelHandle,
        attributes.ConvDimensionNumbers,
        attributes.DotAlgorithm,
        attributes.DotDimensionNumbers,
        attributes.GatherDimensionNumbers,
        attributes.OutputOperandAlias,
        attributes.RaggedDotDimensionNumbers,
        attributes.ResultAccuracy,
        attributes.ScatterDimensionNumbers,
        types.FutureType,
        types.OpaqueType,
        types.QuantizedElement,
        types.TensorType,
        types.TokenType,
        types.TupleType,
    )
}
"""The dataclasses that are encoded field by field."""

_TYPES = (types.FutureType, types.OpaqueType, types.TensorType, types.TokenType, types.TupleType)


class _Encoder:
    """Turns objects into lists; what occurs again and again is encoded once, and named by its index."""

    def __init__(self) -> None:
        self.blobs: list[bytes] = []
        self.tables: dict[str, list[Any]] = {"types": [], "attributes": [], "locations": []}
        self._known: dict[int, int] = {}
        # Whatever is known by its address must stay alive.
        self._kept: list[Any] = []

    def _index(self, table: str, value: Any, encode: Callable[[Any], Any]) -> int:
        index = self._known.get(id(value))
        if index is None:
            entry = encode(value)
            index = self._known[id(value)] = len(self.tables[table])
            self.tables[table].append(entry)
            self._kept.append(value)
        return index

    def type(self, value: Any) -> int:
        return self._index("types", value, self._dataclass)

    def dictionary(self, value: Mapping[str, Any]) -> int:
        return self._index("attributes", value, self._pairs) if value else -1

    def location(self, value: Location | None) -> int:
        return -1 if value is None else self._index("locations", value, lambda at: [at.name, at.file, at.line])

    def _pairs(self, value: Mapping[str, Any]) -> list[Any]:
        return [[key, self.value(inner)] for key, inner in value.items()]

    def _dataclass(self, value: Any) -> list[Any]:
        name = type(value).__name__
        assert _PLAIN[name] is type(value)
        return ["class", name, *[self.value(getattr(value, field.name)) for field in dataclasses.fields(value)]]

    def value(self, value: Any) -> Any:
        kind = type(value)
        encode = _ENCODERS.get(kind)
        if encode is not None:
            return encode(self, value)
        if isinstance(value, _TYPES):
            return ["type", self.type(value)]
        return self._dataclass(value)

    def dense(self, value: DenseElements) -> list[Any]:
        array = value.array
        self.blobs.append(array.tobytes())
        where = [len(self.blobs) - 1, element_of_dtype(array.dtype), list(array.shape)]
        return ["dense", self.type(value.type), *where, value.elided]

    def region(self, region: Region) -> list[Any]:
        return [self._values(region.arguments), [self._op(op) for op in region.ops], _numbers(region.results)]

    def _values(self, values: Sequence[Value]) -> list[int]:
        return [number for value in values for number in (value.number, self.type(value.type))]

    def _op(self, op: Op) -> list[Any]:
        return [
            op.name,
            _numbers(op.operands),
            self._values(op.results),
            self.dictionary(op.attributes),
            [self.region(region) for region in op.regions],
            self.location(op.location),
        ]

    def function(self, function: Function) -> list[Any]:
        return [
            function.name,
            self.region(function.body),
            function.visibility,
            [self.dictionary(each) for each in function.argument_attributes],
            [self.dictionary(each) for each in function.result_attributes],
            [self.location(each) for each in function.argument_locations],
            self.dictionary(function.attributes),
        ]


def _numbers(values: Sequence[Value]) -> list[int]:
    return [value.number for value in values]


def _float_bits(value: float) -> str:
    return struct.pack("<d", value).hex()


_ENCODERS: dict[type, Callable[[_Encoder, Any], Any]] = {
    type(None): lambda encoder, value: None,
    bool: lambda encoder, value: value,
    str: lambda encoder, value: value,
    int: lambda encoder, value: ["int", value, None],
    Int: lambda encoder, value: ["int", int(value), value.element],
    float: lambda encoder, value: ["float", _float_bits(value), None],
    Float: lambda encoder, value: ["float", _float_bits(value), value.element],
    Symbol: lambda encoder, value: ["symbol", str(value)],
    Unparsed: lambda encoder, value: ["unparsed", str(value)],
    Enum: lambda encoder, value: ["enum", str(value), value.dialect, value.mnemonic],
    IntArray: lambda encoder, value: ["integers", value.element, list(value)],
    tuple: lambda encoder, value: ["tuple", *[encoder.value(each) for each in value]],
    dict: lambda encoder, value: ["dict", encoder._pairs(value)],
    UnitType: lambda encoder, value: ["unit"],
    DenseElements: lambda encoder, value: encoder.dense(value),
}


def encode_module(module: Module) -> list[bytes]:
    """Encodes a module, in pieces that are to be written one after another."""
    encoder = _Encoder()
    body = [
        module.name,
        module.entry,
        [encoder.function(function) for function in module.functions.values()],
        encoder.dictionary(module.attributes),
    ]
    sizes = [len(blob) for blob in encoder.blobs]
    text = json.dumps({"module": body, "blobs": sizes, **encoder.tables}, separators=(",", ":")).encode()
    return [_LENGTH.pack(len(text)), text, *encoder.blobs]


class _Decoder:
    def __init__(self, data: bytes | memoryview, fill: Callable[[str, TensorType], DenseElements]):
        view = memoryview(data)
        (length,) = _LENGTH.unpack(view[:8])
        self.parsed = json.loads(bytes(view[8 : 8 + length]))
        self._fill = fill
        at = 8 + length
        self._blobs: list[memoryview] = []
        for size in self.parsed["blobs"]:
            self._blobs.append(view[at : at + size])
            at += size
        # A type refers to earlier ones alone.
        self._types: list[Any] = []
        for entry in self.parsed["types"]:
            self._types.append(self._dataclass(entry))
        self._locations = [Location(*entry) for entry in self.parsed["locations"]]
        self._dictionaries = [self._pairs(entry) for entry in self.parsed["attributes"]]

    def _pairs(self, pairs: list[Any]) -> dict[str, Any]:
        return {key: self.value(inner) for key, inner in pairs}

    def _dataclass(self, entry: list[Any]) -> Any:
        _, name, *values = entry
        return _PLAIN[name](*[self.value(value) for value in values])

    def value(self, entry: Any) -> Any:
        if not isinstance(entry, list):
            return entry
        return _DECODERS[entry[0]](self, entry)

    def dense(self, entry: list[Any]) -> DenseElements:
        _, type_, blob, element, shape, elided = entry
        tensor = self._types[type_]
        if elided is not None:
            return self._fill(elided, tensor)
        array = np.frombuffer(self._blobs[blob], DTYPES[element]).reshape(shape)
        return DenseElements(tensor, own(array))

    def dictionary(self, index: int) -> dict[str, Any]:
        return {} if index < 0 else self._dictionaries[index]

    def location(self, index: int) -> Location | None:
        return None if index < 0 else self._locations[index]

    def type(self, index: int) -> Any:
        return self._types[index]

    def function(self, entry: list[Any]) -> Function:
        name, body, visibility, arguments, results, locations, own_attributes = entry
        return Function(
            name,
            self._region(body, {}),
            visibility,
            tuple([self.dictionary(each) for each in arguments]),
            tuple([self.dictionary(each) for each in results]),
            tuple([self.location(each) for each in locations]),
            self.dictionary(own_attributes),
        )

    def _region(self, entry: list[Any], values: dict[int, Value]) -> Region:
        arguments, ops, results = entry
        made = self._values(arguments, values)
        return Region(made, tuple([self._op(op, values) for op in ops]), tuple([values[number] for number in results]))

    def _values(self, flat: list[int], values: dict[int, Value]) -> tuple[Value, ...]:
        made = []
        for at in range(0, len(flat), 2):
            values[flat[at]] = value = Value(flat[at], self._types[flat[at + 1]])
            made.append(value)
        return tuple(made)

    def _op(self, entry: list[Any], values: dict[int, Value]) -> Op:
        name, operands, results, attributes_, regions, location = entry
        read = tuple([values[number] for number in operands])
        inner = tuple([self._region(region, values) for region in regions])
        made = self._values(results, values)
        return Op(name, read, made, self.dictionary(attributes_), inner, self.location(location))


_DECODERS: dict[str, Callable[[_Decoder, list[Any]], Any]] = {
    "int": lambda decoder, e: e[1] if e[2] is None else Int(e[1], e[2]),
    "float": lambda decoder, e: _float(e[1]) if e[2] is None else Float(_float(e[1]), e[2]),
    "symbol": lambda decoder, e: Symbol(e[1]),
    "unparsed": lambda decoder, e: Unparsed(e[1]),
    "enum": lambda decoder, e: Enum(e[1], e[2], e[3]),
    "integers": lambda decoder, e: IntArray(e[2], e[1]),
    "tuple": lambda decoder, e: tuple([decoder.value(each) for each in e[1:]]),
    "dict": lambda decoder, e: decoder._pairs(e[1]),
    "unit": lambda decoder, e: Unit,
    "dense": lambda decoder, e: decoder.dense(e),
    "type": lambda decoder, e: decoder.type(e[1]),
    "class": lambda decoder, e: decoder._dataclass(e),
}


def _float(bits: str) -> float:
    return struct.unpack("<d", bytes.fromhex(bits))[0]


def decode_module(data: bytes | memoryview, fill: Callable[[str, TensorType], DenseElements]) -> Module:
    """Decodes a module.

    Args:
      data: what `encode_module` made.
      fill: gives the elements of a constant that the file left out, by name and type.

    Raises:
      ValueError, KeyError, IndexError, TypeError: the bytes are no such thing.
    """
    decoder = _Decoder(data, fill)
    name, entry, functions, own_attributes = decoder.parsed["module"]
    decoded = [decoder.function(function) for function in functions]
    return Module(name, {function.name: function for function in decoded}, entry, decoder.dictionary(own_attributes))
