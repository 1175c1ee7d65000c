"""MLIR's text of a type -> `unlower.ir.types`.

Types arrive as text because the bindings know neither StableHLO's nor quantized types; each distinct one is read once.
"""

import re

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

__all__ = ["parse_element", "parse_type", "split_top_level"]

_TENSOR = re.compile(
    r"tensor<((?:(?:\d+|\?)x)*)([a-z]\w*|complex<\w+>|!quant\.uniform<.*>)(?:, ([^>]*<[^>]*>))?>", re.DOTALL
)
_BOUNDS = re.compile(r"#stablehlo\.bounds<(.*)>|#mhlo\.type_extensions<bounds = \[(.*)\]>")
_QUANTIZED = re.compile(r"!quant\.uniform<([iu]\d+)(?:<(-?\d+):(-?\d+)>)?:(\w+)(?::(\d+))?, (.*)>", re.DOTALL)
_OPEN, _CLOSE = "<[({", ">])}"


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
