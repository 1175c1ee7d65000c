"""The text form of a module, of one operation, of one attribute: MLIR's generic form, which MLIR reads back.

Two uses: `print_op` draws one operation for an error message, short; `print_module` and `format_attribute` are exact:
parsing the text gives the same operations and the identical attributes.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from unlower.ir.attributes import (
    ChannelHandle,
    ConvDimensionNumbers,
    DenseElements,
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
    UnitType,
    Unparsed,
)
from unlower.ir.module import Function, Module, Op, Region, Value
from unlower.ir.types import DTYPES, FutureType, OpaqueType, TensorType, TokenType, TupleType

__all__ = ["format_attribute", "print_module", "print_op", "print_place"]

_BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_$.]*")
_DIALECTS = ("stablehlo", "chlo", "mhlo")
_AS_DECIMALS = 16
"""Constants of more elements are printed as their bytes."""


def print_place(op: Op) -> str:
    """Draws an operation for an error message, with where it came from as far as the file tells."""
    place = f", from {op.location}" if op.location else ""
    return f"`{print_op(op)}`{place}"


def print_op(op: Op, *, full: bool = False) -> str:
    """Draws an operation in generic form.

    Args:
      op: the operation.
      full: print regions, and every element of large constants. Otherwise regions are `{...}`, and the text is one
        short line for people.

    Example:
      >>> from unlower.ir.types import TensorType
      >>> x, y = (Value(i, TensorType((2,), "f32")) for i in range(2))
      >>> print_op(Op("stablehlo.negate", (x,), (y,)))
      '%1 = "stablehlo.negate"(%0) : (tensor<2xf32>) -> tensor<2xf32>'
    """
    return _op(op, "", full)


def print_module(module: Module) -> str:
    """Prints a module so that MLIR parses the same operations, types and attributes; locations are left out."""
    attributes = dict(module.attributes)
    meshes = attributes.pop("sdy.meshes", {})
    lines = [f"module {_symbol(module.name)}{_attributes(attributes, ' attributes ')} {{"]
    for name, mesh in meshes.items():
        lines.append(f"  sdy.mesh {_symbol(name)} = {str(mesh).removeprefix('#sdy.mesh')}")
    lines.extend(_function(function) for function in module.functions.values())
    return "\n".join([*lines, "}", ""])


def format_attribute(attribute: Any, dialect: str = "stablehlo") -> str:
    """Spells an attribute as MLIR does; what MLIR parses from it is the identical attribute.

    Args:
      attribute: a value of `unlower.ir.attributes`, a type, or a plain `bool`, `str`, `int` (i64) or `float` (f64).
      dialect: the dialect whose dimension numbers and handles are meant; that of the operation.

    Example:
      >>> format_attribute(IntArray((1, 2))), format_attribute(Enum("EQ", "stablehlo", "comparison_direction"))
      ('array<i64: 1, 2>', '#stablehlo<comparison_direction EQ>')
    """
    writer = _WRITERS.get(type(attribute))
    if writer is None:
        raise TypeError(f"{attribute!r} is no attribute of the IR")
    return writer(attribute, dialect)


# --- operations and functions


def _op(op: Op, indent: str, full: bool) -> str:
    dialect = op.name.partition(".")[0]
    if dialect not in _DIALECTS:
        dialect = "stablehlo"
    results = f"{_values(op.results)} = " if op.results else ""
    regions = ""
    if op.regions:
        ends = (
            "mhlo.return" if dialect == "mhlo" else "sdy.return" if op.name.startswith("sdy.") else "stablehlo.return"
        )
        drawn = [_region(region, indent, ends) if full else "{...}" for region in op.regions]
        regions = f" ({', '.join(drawn)})"
    attributes = _attributes(op.attributes, " ", dialect, full)
    types = ", ".join(str(v.type) for v in op.operands)
    out = ", ".join(str(v.type) for v in op.results)
    if len(op.results) != 1 or out.startswith("("):
        out = f"({out})"
    return f'{results}"{op.name}"({_values(op.operands)}){regions}{attributes} : ({types}) -> {out}'


def _values(values: Iterable[Value]) -> str:
    return ", ".join([f"%{value.number}" for value in values])


def _return(name: str, values: tuple[Value, ...]) -> str:
    return f'"{name}"({_values(values)}) : ({", ".join(str(v.type) for v in values)}) -> ()'


def _region(region: Region, indent: str, ends: str) -> str:
    inner = indent + "  "
    lines = ["{"]
    if region.arguments:
        lines.append(f"{indent}^bb0({', '.join(f'%{v.number}: {v.type}' for v in region.arguments)}):")
    lines.extend(inner + _op(op, inner, True) for op in region.ops)
    lines.append(inner + _return(ends, region.results))
    return "\n".join([*lines, indent + "}"])


def _function(function: Function) -> str:
    body = function.body
    arguments = [
        f"%{value.number}: {value.type}{_attributes(attributes, ' ')}"
        for value, attributes in zip(body.arguments, _padded(function.argument_attributes, body.arguments), strict=True)
    ]
    results = [
        f"{value.type}{_attributes(attributes, ' ')}"
        for value, attributes in zip(body.results, _padded(function.result_attributes, body.results), strict=True)
    ]
    arrow = f" -> ({', '.join(results)})" if results else ""
    lines = [
        f"  func.func {function.visibility} {_symbol(function.name)}({', '.join(arguments)}){arrow}"
        f"{_attributes(function.attributes, ' attributes ')} {{"
    ]
    lines.extend("    " + _op(op, "    ", True) for op in body.ops)
    return "\n".join([*lines, "    " + _return("func.return", body.results), "  }"])


def _padded(attributes: tuple[Mapping[str, Any], ...], values: tuple[Value, ...]) -> tuple[Mapping[str, Any], ...]:
    return attributes or ({},) * len(values)


# --- attributes


def _attributes(attributes: Mapping[str, Any], before: str, dialect: str = "stablehlo", full: bool = True) -> str:
    if not attributes:
        return ""
    parts = []
    for name, value in attributes.items():
        if isinstance(value, UnitType):
            parts.append(_key(name))
        elif not full and isinstance(value, DenseElements) and not value.is_splat and value.array.size > _AS_DECIMALS:
            parts.append(f"{_key(name)} = dense<...> : {value.type}")
        else:
            parts.append(f"{_key(name)} = {format_attribute(value, dialect)}")
    return f"{before}{{{', '.join(parts)}}}"


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _string(name)


def _symbol(name: str) -> str:
    return f"@{name}" if _BARE.fullmatch(name) else f"@{_string(name)}"


def _string(text: str) -> str:
    escaped = []
    for byte in text.encode("utf-8", "surrogateescape"):
        if byte in b'"\\' or not 0x20 <= byte < 0x7F:
            escaped.append(f"\\{byte:02X}")
        else:
            escaped.append(chr(byte))
    return f'"{"".join(escaped)}"'


def _float(value: float, element: str) -> str:
    """Spells a float of an element type: decimals where they are finite, else the bits."""
    if math.isfinite(value):
        mantissa, exponent, power = repr(float(value)).partition("e")
        return f"{mantissa if '.' in mantissa else mantissa + '.0'}{exponent}{power}"
    return _bits(np.array(value, np.float64).astype(DTYPES[element]))


def _bits(scalar: np.ndarray) -> str:
    width = scalar.dtype.itemsize
    return f"0x{int(scalar.reshape(1).view(f'u{width}')[0]):0{2 * width}X}"


def _element(scalar: np.ndarray, element: str) -> str:
    if element == "i1":
        return "true" if scalar else "false"
    if element.startswith("complex"):
        part = element[8:-1]
        parts = scalar.reshape(1).view(DTYPES[part])
        return f"({', '.join(_element(parts[i], part) for i in range(2))})"
    if "f" in element:
        # A NaN must keep its payload, so its bits are those of the array.
        value = float(scalar)
        return _float(value, element) if math.isfinite(value) else _bits(np.asarray(scalar))
    return str(int(scalar))


def _dense(dense: DenseElements, dialect: str) -> str:
    array, type_ = dense.array, dense.type
    element = str(type_.element)
    if array.size == 0:
        return f"dense<> : {type_}"
    if dense.is_splat or array.size == 1:
        return f"dense<{_element(array.reshape(-1)[0], element)}> : {type_}"
    if array.size > _AS_DECIMALS:
        return f'dense<"0x{array.tobytes().hex().upper()}"> : {type_}'
    return f"dense<{_nested(array, element)}> : {type_}"


def _nested(array: np.ndarray, element: str) -> str:
    if array.ndim == 0:
        return _element(array, element)
    return f"[{', '.join(_nested(array[i], element) for i in range(array.shape[0]))}]"


def _int_array(array: IntArray, dialect: str) -> str:
    if array.element == "index":
        # There is no `array<index>`: layouts are dense tensors.
        inner = f"[{', '.join(map(str, array))}]" if array else ""
        return f"dense<{inner}> : tensor<{len(array)}xindex>"
    spell = (lambda v: "true" if v else "false") if array.element == "i1" else str
    return f"array<{array.element}{': ' if array else ''}{', '.join(map(spell, array))}>"


def _enum(enum: Enum, dialect: str) -> str:
    if enum.mnemonic.startswith("."):
        return f"#{enum.dialect}{enum.mnemonic}<{enum}>"
    return f"#{enum.dialect}<{enum.mnemonic} {enum}>"


def _numbers(numbers: Iterable[int]) -> str:
    return f"[{', '.join(map(str, numbers))}]"


def _fields(struct: Any, keep_empty: bool = False) -> str:
    parts = []
    for field in dataclasses.fields(struct):
        value = getattr(struct, field.name)
        if isinstance(value, tuple):
            if value or keep_empty:
                parts.append(f"{field.name} = {_numbers(value)}")
        elif value or keep_empty:
            parts.append(f"{field.name} = {value}")
    return ", ".join(parts)


def _struct(mnemonic: str, keep_empty: bool = False) -> Callable[[Any, str], str]:
    return lambda struct, dialect: f"#{dialect}.{mnemonic}<{_fields(struct, keep_empty)}>"


def _conv(numbers: ConvDimensionNumbers, dialect: str) -> str:
    def labels(spatial: tuple[int, ...], first: int, second: int, names: str) -> str:
        places = {first: names[0], second: names[1]} | {place: str(i) for i, place in enumerate(spatial)}
        return f"[{', '.join(places[i] for i in sorted(places))}]"

    sides = (
        labels(numbers.input_spatial_dimensions, numbers.input_batch_dimension, numbers.input_feature_dimension, "bf"),
        labels(
            numbers.kernel_spatial_dimensions,
            numbers.kernel_input_feature_dimension,
            numbers.kernel_output_feature_dimension,
            "io",
        ),
        labels(
            numbers.output_spatial_dimensions, numbers.output_batch_dimension, numbers.output_feature_dimension, "bf"
        ),
    )
    return f"#{dialect}.conv<{sides[0]}x{sides[1]}->{sides[2]}>"


def _ragged_dot(numbers: RaggedDotDimensionNumbers, dialect: str) -> str:
    dot = _fields(numbers.dot_dimension_numbers)
    if dialect == "mhlo":
        dot = f"dot_dimension_numbers = #mhlo.dot<{dot}>"
    groups = [
        f"{name} = {_numbers(getattr(numbers, name))}" for name in ("lhs_ragged_dimensions", "rhs_group_dimensions")
    ]
    return f"#{dialect}.ragged_dot<{', '.join(filter(None, [dot, *groups]))}>"


def _algorithm(algorithm: DotAlgorithm, dialect: str) -> str:
    fields = dataclasses.asdict(algorithm)
    fields["allow_imprecise_accumulation"] = str(algorithm.allow_imprecise_accumulation).lower()
    return f"#{dialect}.dot_algorithm<{', '.join(f'{name} = {value}' for name, value in fields.items())}>"


def _accuracy(accuracy: ResultAccuracy, dialect: str) -> str:
    parts = [f"{name} = {_float(value, 'f64')}" for name in ("atol", "rtol") if (value := getattr(accuracy, name))]
    if accuracy.ulps:
        parts.append(f"ulps = {accuracy.ulps}")
    parts.append(f"mode = #{dialect}.result_accuracy_mode<{accuracy.mode}>")
    return f"#{dialect}.result_accuracy<{', '.join(parts)}>"


def _dict(entries: Mapping[str, Any], dialect: str) -> str:
    return _attributes(entries, "", dialect) or "{}"


_WRITERS: dict[type, Callable[[Any, str], str]] = {
    bool: lambda a, d: "true" if a else "false",
    int: lambda a, d: f"{a} : i64",
    float: lambda a, d: f"{_float(a, 'f64')} : f64",
    str: lambda a, d: _string(a),
    Int: lambda a, d: f"{int(a)} : {a.element}",
    Float: lambda a, d: f"{_float(a, a.element)} : {a.element}",
    Symbol: lambda a, d: _symbol(a),
    Enum: _enum,
    IntArray: _int_array,
    tuple: lambda a, d: f"[{', '.join(format_attribute(part, d) for part in a)}]",
    dict: _dict,
    UnitType: lambda a, d: "unit",
    DenseElements: _dense,
    Unparsed: lambda a, d: str(a),
    DotDimensionNumbers: _struct("dot"),
    GatherDimensionNumbers: _struct("gather"),
    ScatterDimensionNumbers: _struct("scatter"),
    ChannelHandle: _struct("channel_handle", keep_empty=True),
    OutputOperandAlias: _struct("output_operand_alias", keep_empty=True),
    ConvDimensionNumbers: _conv,
    RaggedDotDimensionNumbers: _ragged_dot,
    DotAlgorithm: _algorithm,
    ResultAccuracy: _accuracy,
    **{type_: lambda a, d: str(a) for type_ in (TensorType, TupleType, TokenType, FutureType, OpaqueType)},
}
