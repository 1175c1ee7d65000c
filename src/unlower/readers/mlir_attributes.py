"""The attributes of MLIR bytecode -> `unlower.ir.attributes`.

Builtin, StableHLO, MHLO and CHLO attributes have encodings of their own, one code for each kind; `CODES` lists what each
holds. Those without an encoding (dot algorithms, ragged dots, everything of Shardy) stand in the file as MLIR's text.
Source: the tables of codes in MLIR's `BuiltinDialectBytecode.td`, and in the bytecode files of StableHLO and MLIR-HLO.
"""

import re
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from unlower.ir.attributes import (
    ChannelHandle,
    ConvDimensionNumbers,
    DotAlgorithm,
    DotDimensionNumbers,
    Enum,
    Float,
    GatherDimensionNumbers,
    Int,
    IntArray,
    OutputOperandAlias,
    RaggedDotDimensionNumbers,
    ResultAccuracy,
    ScatterDimensionNumbers,
    Symbol,
    Unit,
    Unparsed,
)
from unlower.ir.types import DTYPES, TensorType
from unlower.readers.mlir_bytecode import Cursor, Reader
from unlower.readers.mlir_types import UNKNOWN_SIZE, Bounds, split_top_level

__all__ = ["CODES", "parse_structured"]


_Decoder = Callable[[Reader, Cursor], Any]

# --- builtin


def _array(reader: Reader, cursor: Cursor) -> tuple[Any, ...]:
    return tuple([reader.attribute(cursor.varint()) for _ in range(cursor.varint())])


def _dictionary(reader: Reader, cursor: Cursor) -> dict[str, Any]:
    pairs = [(cursor.varint(), cursor.varint()) for _ in range(cursor.varint())]
    return {reader.attribute(name): reader.attribute(value) for name, value in pairs}


def _typed_string(reader: Reader, cursor: Cursor) -> Unparsed:
    text = reader.string(cursor.varint()).replace("\\", "\\\\").replace('"', '\\"')
    return Unparsed(f'"{text}" : {reader.type(cursor.varint())}')


def _symbol(reader: Reader, cursor: Cursor) -> Symbol:
    return Symbol(reader.attribute(cursor.varint()))


def _nested_symbol(reader: Reader, cursor: Cursor) -> Unparsed:
    root = reader.attribute(cursor.varint())
    return Unparsed("::".join(f"@{part}" for part in (root, *_array(reader, cursor))))


def _bits(cursor: Cursor, width: int) -> int:
    """Reads the bits of a number of a known width, as an unsigned integer."""
    if width > 64:
        raise LookupError(width)
    return (cursor.byte() if width <= 8 else cursor.signed()) & ((1 << width) - 1)


def _integer(reader: Reader, cursor: Cursor) -> Any:
    element = str(reader.type(cursor.varint()))
    width = 64 if element == "index" else int(element.lstrip("sui"))
    value = _bits(cursor, width)
    if element == "i1":
        return bool(value)
    is_negative = not element.startswith("u") and value >> (width - 1)
    return Int(value - (1 << width) if is_negative else value, element)


def _float(reader: Reader, cursor: Cursor) -> Float:
    element = str(reader.type(cursor.varint()))
    dtype = DTYPES[element]
    # The width stands in the name; four and six bits come in a byte.
    width = int(element.lstrip("bf").partition("E")[0])
    return Float(np.array(_bits(cursor, width), f"u{dtype.itemsize}").view(dtype).item(), element)


def _dense_array(reader: Reader, cursor: Cursor) -> IntArray:
    element, _, blob = str(reader.type(cursor.varint())), cursor.varint(), cursor.blob()
    if element == "i1":
        return IntArray([bool(byte) for byte in blob], element)
    if not element.startswith("i"):
        raise LookupError(element)
    return IntArray(np.frombuffer(blob, DTYPES[element]).tolist(), element)


def _dense(reader: Reader, cursor: Cursor) -> Any:
    type_, blob = reader.type(cursor.varint()), cursor.blob()
    if isinstance(type_, TensorType):
        return reader.storage(blob, type_)
    shape = re.fullmatch(r"(?:tensor|vector)<(\d+)xindex>", str(type_))
    if shape is None:
        raise ValueError(f"constants of type {type_}")
    values = blob.cast("q").tolist()
    return IntArray(values * int(shape.group(1)) if len(values) == 1 else values, "index")  # layouts


def _resource(reader: Reader, cursor: Cursor) -> Any:
    type_ = reader.type(cursor.varint())
    return reader.resource(cursor.varint(), type_)


_BUILTIN: dict[int, _Decoder] = {
    0: _array,
    1: _dictionary,
    2: lambda reader, cursor: reader.string(cursor.varint()),
    3: _typed_string,
    4: _symbol,
    5: _nested_symbol,
    6: lambda reader, cursor: reader.type(cursor.varint()),
    7: lambda reader, cursor: Unit,
    8: _integer,
    9: _float,
    16: _resource,
    17: _dense_array,
    18: _dense,
}
"""Locations (10 to 15, 22) are read by `mlir_tables`. A decoder raises LookupError for what has no structure here."""

# --- StableHLO, MHLO, CHLO


def _enum(dialect: str, mnemonic: str, *cases: str) -> _Decoder:
    return lambda reader, cursor: Enum(cases[cursor.varint()], dialect, mnemonic)


def _numbers(cls: type, form: str) -> _Decoder:
    """Reads fields in order: `n` is a number, `l` a list of numbers."""
    return lambda reader, cursor: cls(*[cursor.signed() if c == "n" else cursor.signed_list() for c in form])


def _algorithm(reader: Reader, cursor: Cursor) -> DotAlgorithm:
    types = [str(reader.type(cursor.varint())) for _ in range(3)]
    counts = [cursor.signed() for _ in range(3)]
    return DotAlgorithm(types[0], types[1], types[2], counts[0], counts[1], counts[2], bool(cursor.byte()))


def _accuracy(reader: Reader, cursor: Cursor) -> ResultAccuracy:
    atol, rtol = [struct.unpack("<d", _bits(cursor, 64).to_bytes(8, "little"))[0] for _ in range(2)]
    ulps = cursor.signed()
    return ResultAccuracy(str(reader.attribute(cursor.varint())), atol, rtol, ulps)


def _bounds(reader: Reader, cursor: Cursor) -> Bounds:
    return Bounds(None if size == UNKNOWN_SIZE else size for size in cursor.signed_list())


def _alias(reader: Reader, cursor: Cursor) -> Unparsed:
    """Reads which argument a result shares its buffer with; no rule asks, so it is kept as text."""
    argument, result, path, must = cursor.signed_list(), cursor.signed(), cursor.signed_list(), cursor.varint()
    parts = [f"tuple_indices = {list(argument)}"] if argument else []
    parts += [f"result_index = {[result, *path]}", *(["must_alias"] if must else [])]
    return Unparsed(f"#mhlo.result_alias<{', '.join(parts)}>")


_DIRECTIONS = ("EQ", "NE", "GE", "GT", "LE", "LT")
_COMPARISONS = ("NOTYPE", "FLOAT", "TOTALORDER", "SIGNED", "UNSIGNED")


def _hlo(dialect: str) -> dict[int, _Decoder]:
    """The codes that StableHLO and MHLO share."""
    return {
        1: _numbers(ChannelHandle, "nn"),
        2: _enum(dialect, "comparison_direction", *_DIRECTIONS),
        3: _enum(dialect, "comparison_type", *_COMPARISONS),
        4: _numbers(ConvDimensionNumbers, "nnlnnlnnl"),
        5: _numbers(DotDimensionNumbers, "llll"),
        6: _enum(dialect, "fft_type", "FFT", "IFFT", "RFFT", "IRFFT"),
        7: _numbers(GatherDimensionNumbers, "llllln"),
        8: _enum(dialect, "precision", "DEFAULT", "HIGH", "HIGHEST", "PACKED_NIBBLE"),
        9: _enum(dialect, "rng_algorithm", "DEFAULT", "THREE_FRY", "PHILOX"),
        10: _enum(dialect, "rng_distribution", "", "UNIFORM", "NORMAL"),
        11: _numbers(ScatterDimensionNumbers, "llllln"),
        12: _enum(dialect, "transpose", "TRANSPOSE_INVALID", "NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"),
        13: _bounds,
    }


_ACCURACY_MODES = ("DEFAULT", "HIGHEST", "TOLERANCE")

CODES: dict[str, dict[int, _Decoder]] = {
    "builtin": _BUILTIN,
    "stablehlo": _hlo("stablehlo")
    | {
        14: _numbers(OutputOperandAlias, "lnl"),
        15: _algorithm,
        16: _enum("stablehlo", ".result_accuracy_mode", *_ACCURACY_MODES),
        17: _accuracy,
    },
    "mhlo": _hlo("mhlo")
    | {
        0: _alias,
        14: _enum("mhlo", "kind", "sharding"),
        15: _enum("mhlo", "fusion_kind", "kLoop", "kInput", "kOutput", "kCustom"),
        16: _numbers(OutputOperandAlias, "lnl"),
        17: _enum("mhlo", ".result_accuracy_mode", *_ACCURACY_MODES),
        18: _accuracy,
    },
    "chlo": {
        0: _enum("chlo", "comparison_direction", *_DIRECTIONS),
        1: _enum("chlo", "comparison_type", *_COMPARISONS),
    },
}
"""Dialect -> code -> what decodes an attribute."""

# --- attributes that stand in the file as text

_ENUM = re.compile(r"#(\w+)<(\w+) (\w+)>|#(\w+)\.(\w+)<([A-Z]\w*)>")
_STRUCT = re.compile(r"#(\w+)\.(\w+)<(.*)>", re.DOTALL)
_FIELD = re.compile(r"(\w+) = (.*)", re.DOTALL)


def parse_structured(text: str) -> Any:
    """Reads one of StableHLO's, CHLO's or MHLO's own attributes from its text; `Unparsed` if it has no structure here.

    Example:
      >>> parse_structured("#chlo<precision HIGHEST>")
      'HIGHEST'
    """
    match = _ENUM.fullmatch(text)
    if match:
        dialect, mnemonic, value, dialect2, mnemonic2, value2 = match.groups()
        return Enum(value or value2, dialect or dialect2, mnemonic or f".{mnemonic2}")
    match = _STRUCT.fullmatch(text)
    if match is None or match.group(1) not in ("stablehlo", "mhlo", "chlo"):
        return Unparsed(text)
    _, kind, body = match.groups()
    reader = _STRUCTS.get(kind)
    try:
        return Unparsed(text) if reader is None else reader(body)
    except (KeyError, TypeError, ValueError):
        return Unparsed(text)


def _fields(body: str) -> dict[str, str]:
    fields = {}
    for part in split_top_level(body):
        match = _FIELD.fullmatch(part)
        if match is None:
            raise ValueError(part)
        fields[match.group(1)] = match.group(2)
    return fields


def _listed(text: str) -> tuple[int, ...]:
    inner = text[1:-1].strip()
    return tuple(map(int, inner.split(","))) if inner else ()


def _ragged_dot(body: str) -> RaggedDotDimensionNumbers:
    fields = _fields(body)
    ragged = [_listed(fields.pop(name, "[]")) for name in ("lhs_ragged_dimensions", "rhs_group_dimensions")]
    if "dot_dimension_numbers" in fields:  # MHLO nests them, CHLO does not
        inner = fields.pop("dot_dimension_numbers")
        fields |= _fields(inner[inner.index("<") + 1 : -1])
    return RaggedDotDimensionNumbers(DotDimensionNumbers(**{k: _listed(v) for k, v in fields.items()}), *ragged)


def _algorithm_text(body: str) -> DotAlgorithm:
    values: dict[str, Any] = dict(_fields(body))
    for name in ("lhs_component_count", "rhs_component_count", "num_primitive_operations"):
        values[name] = int(values[name])
    values["allow_imprecise_accumulation"] = values["allow_imprecise_accumulation"] == "true"
    return DotAlgorithm(**values)


_STRUCTS: dict[str, Callable[[str], Any]] = {"ragged_dot": _ragged_dot, "dot_algorithm": _algorithm_text}
