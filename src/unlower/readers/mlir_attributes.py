"""MLIR attributes -> `unlower.ir.attributes`.

StableHLO's own attributes are read from their text: the bindings of the supported jaxlibs give no structure for most of
them, and each distinct attribute is read once.
"""

import re
import struct
from collections.abc import Callable
from typing import Any

from unlower._jax_compat import mlir_ir as ir
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
from unlower.readers.constants import dense_from_text
from unlower.readers.mlir_types import split_top_level

__all__ = ["parse_structured", "plain_decoders"]

_ENUM = re.compile(r"#(\w+)<(\w+) (\w+)>|#(\w+)\.(\w+)<([A-Z]\w*)>")
_STRUCT = re.compile(r"#(\w+)\.(\w+)<(.*)>", re.DOTALL)
_CONV = re.compile(r"\[(.*)\]x\[(.*)\]->\[(.*)\]")
_ENTRY = re.compile(r'("(?:[^"\\]|\\.)*"|[\w$.]+)(?: = (.*))?', re.DOTALL)
_FIELD = re.compile(r"(\w+) = (.*)", re.DOTALL)


def _text(attribute: Any) -> str:
    # A string attribute is bytes in MLIR: backend configs hold some that are not UTF-8.
    return attribute.value_bytes.decode("utf-8", "surrogateescape")


def _string(attribute: Any) -> str:
    text = str(attribute)
    return Unparsed(text) if text[-1] != '"' else _text(attribute)


def _name(text: str) -> str:
    """Reads a key as MLIR prints it: bare, or quoted and escaped."""
    if not text.startswith('"'):
        return text
    return _string(ir.Attribute.parse(text))


def plain_decoders(
    decode: Callable[[Any], Any], decode_type: Callable[[Any], Any], careful: bool = False
) -> dict[type, Callable[[Any], Any]]:
    """Returns a table from the class of an MLIR attribute to the function that decodes it.

    Args:
      decode: decodes any attribute.
      decode_type: decodes a type, or its text.
      careful: names may be other than UTF-8.
    """

    def integers(element: str) -> Callable[[Any], IntArray]:
        return lambda a: IntArray(tuple(a), element)

    def array(attribute: Any) -> Any:
        try:
            return tuple([decode(part) for part in attribute])
        except TypeError:  # a complex constant among the parts: the bindings do not hand it out
            return from_text(str(attribute))

    def dictionary(attribute: Any) -> Any:
        text = str(attribute)
        if careful or "complex<" in text:
            # A named attribute ends the process when its name is not UTF-8, or its value a complex constant.
            return from_text(text)
        return {attribute[i].name: decode(attribute[i].attr) for i in range(len(attribute))}

    def from_text(text: str) -> Any:
        if text.startswith("["):
            return tuple([from_text(part) for part in split_top_level(text[1:-1])])
        if text.startswith("{"):
            entries = [(m.group(1), m.group(2)) for m in map(_ENTRY.fullmatch, split_top_level(text[1:-1])) if m]
            return {_name(name): Unit if value is None else from_text(value) for name, value in entries}
        if text.startswith("dense<") and "complex<" in text:
            type_ = decode_type(text[text.rindex(" : ") + 3 :])
            return dense_from_text(text, type_)
        return decode(ir.Attribute.parse(text))

    return {
        ir.IntegerAttr: lambda a: Int(a.value, str(a.type)),
        ir.BoolAttr: lambda a: a.value,
        ir.FloatAttr: lambda a: Float(a.value, str(a.type)),
        ir.StringAttr: _string,
        ir.FlatSymbolRefAttr: lambda a: Symbol(a.value),
        ir.UnitAttr: lambda a: Unit,
        ir.TypeAttr: lambda a: decode_type(a.value),
        ir.ArrayAttr: array,
        ir.DictAttr: dictionary,
        ir.DenseI64ArrayAttr: integers("i64"),
        ir.DenseI32ArrayAttr: integers("i32"),
        ir.DenseI16ArrayAttr: integers("i16"),
        ir.DenseI8ArrayAttr: integers("i8"),
        ir.DenseBoolArrayAttr: integers("i1"),
    }


def parse_structured(text: str) -> Any:
    """Reads one of StableHLO's, CHLO's or MHLO's own attributes from its text; `Unparsed` if it has no structure here.

    Example:
      >>> parse_structured("#stablehlo.dot<lhs_contracting_dimensions = [0]>").lhs_contracting_dimensions
      (0,)
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


def _numbers(text: str) -> tuple[int, ...]:
    inner = text[1:-1].strip()
    return tuple(map(int, inner.split(","))) if inner else ()


def _struct(cls: type) -> Callable[[str], Any]:
    """Returns a reader of `field = [1, 2], other = 3`; fields left out keep their default."""

    def read(body: str) -> Any:
        return cls(**{k: _numbers(v) if v.startswith("[") else int(v) for k, v in _fields(body).items()})

    return read


def _conv(body: str) -> ConvDimensionNumbers:
    if body == "raw" or (match := _CONV.fullmatch(body)) is None:
        raise ValueError(body)
    numbers: dict[str, Any] = {}
    for labels, (prefix, first, second) in zip(
        match.groups(),
        (("input", "b", "f"), ("kernel", "i", "o"), ("output", "b", "f")),
        strict=True,
    ):
        places = {label: i for i, label in enumerate(part.strip() for part in labels.split(","))}
        names = {"b": "batch", "f": "feature", "i": "input_feature", "o": "output_feature"}
        for label in (first, second):
            numbers[f"{prefix}_{names[label]}_dimension"] = places.pop(label)
        # A `?` is a dimension that no number names; it would be lost here.
        numbers[f"{prefix}_spatial_dimensions"] = tuple(places[str(i)] for i in range(len(places)))
    return ConvDimensionNumbers(**numbers)


def _ragged_dot(body: str) -> RaggedDotDimensionNumbers:
    fields = _fields(body)
    ragged = [_numbers(fields.pop(name, "[]")) for name in ("lhs_ragged_dimensions", "rhs_group_dimensions")]
    if "dot_dimension_numbers" in fields:  # MHLO nests them, CHLO does not
        inner = fields.pop("dot_dimension_numbers")
        fields |= _fields(inner[inner.index("<") + 1 : -1])
    return RaggedDotDimensionNumbers(DotDimensionNumbers(**{k: _numbers(v) for k, v in fields.items()}), *ragged)


def _algorithm(body: str) -> DotAlgorithm:
    values: dict[str, Any] = dict(_fields(body))
    for name in ("lhs_component_count", "rhs_component_count", "num_primitive_operations"):
        values[name] = int(values[name])
    values["allow_imprecise_accumulation"] = values["allow_imprecise_accumulation"] == "true"
    return DotAlgorithm(**values)


def _accuracy(body: str) -> ResultAccuracy:
    values: dict[str, Any] = {}
    for name, value in _fields(body).items():
        if name == "mode":
            values[name] = value[value.index("<") + 1 : -1].split()[-1]
        else:
            values[name] = int(value) if name == "ulps" else _float64(value)
    return ResultAccuracy(**values)


def _float64(text: str) -> float:
    # MLIR prints six digits where they are exact, and the bits otherwise.
    return struct.unpack("<d", int(text, 16).to_bytes(8, "little"))[0] if text.startswith("0x") else float(text)


_STRUCTS: dict[str, Callable[[str], Any]] = {
    "dot": _struct(DotDimensionNumbers),
    "gather": _struct(GatherDimensionNumbers),
    "scatter": _struct(ScatterDimensionNumbers),
    "channel_handle": _struct(ChannelHandle),
    "output_operand_alias": _struct(OutputOperandAlias),
    "conv": _conv,
    "ragged_dot": _ragged_dot,
    "dot_algorithm": _algorithm,
    "result_accuracy": _accuracy,
}
