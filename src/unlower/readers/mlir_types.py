"""The types of MLIR bytecode -> `unlower.ir.types`.

Most have an encoding of their own, one code for each kind; the rest (quantized types) stand in the file as MLIR's
text. Source: the table of codes in MLIR's `BuiltinDialectBytecode.td`.
"""

import re
from typing import Any

from unlower.ir.types import (
    DTYPES,
    FutureType,
    OpaqueType,
    QuantizedElement,
    TensorType,
    TokenType,
    TupleType,
    Type,
)
from unlower.readers.mlir_bytecode import Cursor, Reader

__all__ = ["UNKNOWN_SIZE", "Bounds", "decode_type", "parse_element", "parse_type", "split_top_level"]

UNKNOWN_SIZE = -(1 << 63)
"""How MLIR writes a size that only the call tells."""

_TENSOR = re.compile(
    r"tensor<((?:(?:\d+|\?)x)*)([a-z]\w*|complex<\w+>|!quant\.uniform<.*>)(?:, ([^>]*<[^>]*>))?>", re.DOTALL
)
_BOUNDS = re.compile(r"#stablehlo\.bounds<(.*)>|#mhlo\.type_extensions<bounds = \[(.*)\]>")
_QUANTIZED = re.compile(r"!quant\.uniform<([iu]\d+)(?:<(-?\d+):(-?\d+)>)?:(\w+)(?::(\d+))?, (.*)>", re.DOTALL)
_OPEN, _CLOSE = "<[({", ">])}"


class Bounds(tuple):
    """The attribute that stands in a tensor type for its upper bounds."""


_ELEMENT_CODES = {
    1: "index",
    3: "bf16",
    4: "f16",
    5: "f32",
    6: "f64",
    7: "f80",
    8: "f128",
    12: "none",
    21: "tf32",
    22: "f8E5M2",
    23: "f8E4M3",
    24: "f8E4M3FN",
    25: "f8E5M2FNUZ",
    26: "f8E4M3FNUZ",
    27: "f8E4M3B11FNUZ",
    28: "f8E3M4",
    29: "f4E2M1FN",
    30: "f6E2M3FN",
    31: "f6E3M2FN",
    32: "f8E8M0FNU",
}
_SIGNS = ("i", "si", "ui")


def decode_type(dialect: str, reader: Reader, cursor: Cursor) -> Any:
    """Decodes a type; an element type becomes its name.

    Raises:
      ValueError: a code that is not known.
    """
    code = cursor.varint()
    if dialect in ("stablehlo", "mhlo") and code in (0, 1):
        if code == 0:
            return TokenType()
        types = _types(reader, cursor)
        return FutureType(types) if dialect == "stablehlo" else OpaqueType(f"!mhlo.async_bundle<{_listed(types)}>")
    if dialect != "builtin":
        raise ValueError(f"type {code} of the dialect {dialect}")
    if code in _ELEMENT_CODES:
        return _ELEMENT_CODES[code]
    if code == 0:
        width = cursor.varint()
        return f"{_SIGNS[width & 3]}{width >> 2}"
    if code == 2:
        inputs, results = _types(reader, cursor), _types(reader, cursor)
        return OpaqueType(f"({_listed(inputs)}) -> ({_listed(results)})")
    if code == 9:
        return f"complex<{reader.type(cursor.varint())}>"
    if code in (13, 14):
        encoding = reader.attribute(cursor.varint()) if code == 14 else None
        return _tensor(encoding, cursor.signed_list(), str(reader.type(cursor.varint())))
    if code == 15:
        return TupleType(_types(reader, cursor))
    if code == 18:
        return OpaqueType(f"tensor<*x{reader.type(cursor.varint())}>")
    if code == 19:
        sizes = "".join(f"{size}x" for size in cursor.signed_list())
        return OpaqueType(f"vector<{sizes}{reader.type(cursor.varint())}>")
    raise ValueError(f"type {code} of the dialect builtin")


def _types(reader: Reader, cursor: Cursor) -> tuple[Any, ...]:
    return tuple([reader.type(cursor.varint()) for _ in range(cursor.varint())])


def _listed(types: tuple[Any, ...]) -> str:
    return ", ".join(map(str, types))


def _tensor(encoding: Any, sizes: tuple[int, ...], element: str) -> Type:
    shape = tuple([None if size == UNKNOWN_SIZE else size for size in sizes])
    parsed = parse_element(element)
    if parsed is None or not (encoding is None or isinstance(encoding, Bounds)):
        text = "".join(f"{'?' if size is None else size}x" for size in shape)
        return OpaqueType(f"tensor<{text}{element}{'' if encoding is None else f', {encoding}'}>")
    return TensorType(shape, parsed, None if encoding is None else tuple(encoding))


def split_top_level(text: str) -> list[str]:
    """Splits at the commas that no bracket and no string encloses; `->` closes nothing."""
    parts, depth, start, quoted = [], 0, 0, False
    previous = ""
    for i, c in enumerate(text):
        if quoted:
            if c == '"' and previous != "\\":
                quoted = False
            previous = "" if previous == "\\" else c
            continue
        if c == '"':
            quoted = True
        elif c in _OPEN:
            depth += 1
        elif c in _CLOSE and not (c == ">" and previous == "-"):
            depth -= 1
        elif c == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
        previous = c
    last = text[start:].strip()
    return [*parts, last] if last or parts else []


def parse_type(text: str) -> Type:
    """Reads a type; one without a structure here becomes an `OpaqueType` that keeps its text.

    Example:
      >>> parse_type("tensor<2x?xf32, #stablehlo.bounds<?, 16>>")
      TensorType(shape=(2, None), element='f32', bounds=(None, 16))
    """
    match = _TENSOR.fullmatch(text)
    if match:
        sizes, element, encoding = match.groups()
        parsed = parse_element(element)
        bounds = _bounds(encoding)
        if parsed is not None and (encoding is None or bounds is not None):
            return TensorType(tuple(map(_size, sizes.split("x")[:-1])), parsed, bounds)
    elif text.startswith("tuple<"):
        return TupleType(tuple(map(parse_type, split_top_level(text[6:-1]))))
    elif text.startswith("!stablehlo.future<"):
        return FutureType(tuple(map(parse_type, split_top_level(text[18:-1]))))
    elif text in ("!stablehlo.token", "!mhlo.token"):
        return TokenType()
    return OpaqueType(text)


def parse_element(text: str) -> str | QuantizedElement | None:
    """Reads an element type; None for one that has no NumPy dtype and is not quantized."""
    if text in DTYPES:
        return text
    match = _QUANTIZED.fullmatch(text)
    if match is None:
        return None
    storage, low, high, expressed, axis, parameters = match.groups()
    signed, width = storage[0] == "i", int(storage[1:])
    smallest, largest = (-(1 << width - 1), (1 << width - 1) - 1) if signed else (0, (1 << width) - 1)
    if parameters.startswith("{"):
        pairs = parameters[1:-1].split(",")
    else:
        pairs = [parameters]
    try:
        scales, zeros = zip(*[_scale(pair) for pair in pairs], strict=True)
    except ValueError:  # sub-channel parameters, or a scale in a form not known here
        return None
    return QuantizedElement(
        storage=storage if signed else f"ui{width}",
        expressed=expressed,
        scales=scales,
        zero_points=zeros,
        axis=None if axis is None else int(axis),
        storage_min=smallest if low is None else int(low),
        storage_max=largest if high is None else int(high),
        text=text,
    )


def _scale(text: str) -> tuple[float, int]:
    scale, _, zero = text.strip().partition(":")
    return float(scale), int(zero) if zero else 0


def _size(text: str) -> int | None:
    return None if text == "?" else int(text)


def _bounds(encoding: str | None) -> tuple[int | None, ...] | None:
    match = encoding and _BOUNDS.fullmatch(encoding)
    if not match:
        return None
    inner = match.group(1) if match.group(1) is not None else match.group(2)
    return tuple(_size(part.strip()) for part in inner.split(",")) if inner.strip() else ()
