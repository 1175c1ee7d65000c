"""Constant data of MLIR attributes -> NumPy arrays, exact for every element type, copied once."""

import re
from typing import Any

import numpy as np

from unlower._jax_compat import mlir_ir as ir
from unlower.errors import FormatError
from unlower.ir.attributes import DenseElements
from unlower.ir.types import TensorType

__all__ = ["dense_from_attribute", "dense_from_text", "own"]

_BUFFERED = frozenset(["i1", "i8", "i16", "i32", "i64", "ui8", "ui16", "ui32", "ui64", "f16", "f32", "f64"])
"""Element types whose attributes the bindings of every supported jaxlib show as a buffer."""

_ALIGNMENT = 64
_TOKEN = re.compile(r"\(|\)|\[|\]|,|[^\s,()\[\]]+")


def own(view: np.ndarray) -> np.ndarray:
    """Copies a view into memory of its own, aligned so that a CPU device takes large arrays as they are; read-only."""
    if view.nbytes < 4096:
        array = np.array(view)
    else:
        buffer = np.empty(view.nbytes + _ALIGNMENT, np.uint8)
        start = -buffer.ctypes.data % _ALIGNMENT
        array = buffer[start : start + view.nbytes].view(view.dtype).reshape(view.shape)
        array[...] = view
    array.flags.writeable = False
    return array


def dense_from_attribute(attribute: Any, type_: TensorType) -> DenseElements:
    """Decodes a `dense<...>` attribute that the bindings can show."""
    if type_.element in _BUFFERED:
        view = np.asarray(attribute)
        if view.dtype == type_.dtype:
            if view.size and type_.shape and attribute.is_splat:
                return DenseElements(type_, own(view.reshape(-1)[:1].reshape(())))
            return DenseElements(type_, own(view.reshape(type_.shape)))
    return dense_from_text(str(attribute), type_)


def dense_from_text(text: str, type_: TensorType) -> DenseElements:
    """Decodes the printed form of a `dense<...>` attribute, which is exact: decimals round-trip, the rest is bits."""
    body = text[text.index("dense<") + 6 : text.rindex(">", 0, text.rindex(" : "))]
    splat = not body.startswith("[") and not body.startswith('"') and bool(type_.shape)
    if body.startswith('"0x'):
        raw = np.frombuffer(bytes.fromhex(body[3:-1]), np.uint8)
        array = _from_storage(raw, type_)
        splat = array.size == 1 and type_.shape != () and type_.size != 1
        return DenseElements(type_, own(array.reshape(() if splat else type_.shape)))
    tokens = [token for token in _TOKEN.findall(body) if token not in "()[],"]
    array = _from_tokens(tokens, type_)
    return DenseElements(type_, own(array.reshape(() if splat and array.size == 1 else type_.shape)))


def _from_storage(raw: np.ndarray, type_: TensorType) -> np.ndarray:
    """Reads MLIR's storage: little-endian, a whole byte for each element narrower than one."""
    dtype = type_.dtype
    if type_.element in ("i1", "i2", "i4", "ui2", "ui4"):
        return _narrow(raw.astype(np.int64), type_)
    return raw.view(dtype)


def _narrow(values: np.ndarray, type_: TensorType) -> np.ndarray:
    """Wraps integers into an element of less than a byte. Through int8: ml_dtypes keeps a byte, sign-extended."""
    element = str(type_.element)
    width = int(element.lstrip("ui"))
    if element == "i1":
        return (values & 1).astype(np.bool_)
    values = values & ((1 << width) - 1)
    if element.startswith("i"):
        values = np.where(values >> (width - 1), values - (1 << width), values)
    return values.astype(np.int8).astype(type_.dtype)


def _from_tokens(tokens: list[str], type_: TensorType) -> np.ndarray:
    element = str(type_.element)
    if element.startswith(("i", "ui")):
        words = {"true": 1, "false": 0}
        values = [words[token] if token in words else int(token, 0) for token in tokens]
        if element in ("i1", "i2", "i4", "ui2", "ui4"):
            return _narrow(np.array(values, np.int64), type_)
        mask = (1 << 8 * type_.dtype.itemsize) - 1
        bits = np.array([v & mask for v in values], np.uint64)
        return bits.astype(f"u{type_.dtype.itemsize}").view(type_.dtype)
    if element.startswith("complex<"):
        part = TensorType((len(tokens),), element[8:-1])
        return _from_tokens(tokens, part).view(type_.dtype)
    return _floats(tokens, type_.dtype)


def _floats(tokens: list[str], dtype: np.dtype) -> np.ndarray:
    """Reads decimals, and bit patterns written `0x...` (NaN, infinity, and what decimals cannot say)."""
    array = np.zeros(len(tokens), dtype)
    bits = array.view(f"u{dtype.itemsize}")
    hexadecimal = np.array([token.startswith(("0x", "-0x")) for token in tokens], np.bool_)
    decimal = [i for i, is_hex in enumerate(hexadecimal) if not is_hex]
    if decimal:
        if dtype in (np.float32, np.float64):
            # MLIR rounds a decimal to the element type in one step; so must we, and NumPy goes through float64.
            element = "f32" if dtype == np.float32 else "f64"
            listed = ", ".join(tokens[i] for i in decimal)
            parsed = ir.Attribute.parse(f"dense<[{listed}]> : tensor<{len(decimal)}x{element}>")
            array[decimal] = np.asarray(parsed)
        else:
            # Narrower types have at most 11 significant bits and MLIR prints at least 6 digits, so no decimal is close
            # enough to the middle of two neighbours for the step through float64 to matter.
            array[decimal] = np.array([float(tokens[i]) for i in decimal], np.float64).astype(dtype)
    for i in np.flatnonzero(hexadecimal):
        bits[i] = int(tokens[i], 16)
    return array


def resources_from_text(text: str) -> dict[str, bytes]:
    """Returns the blobs of a printed module's `dialect_resources`, by key, alignment prefix cut off."""
    start = text.rfind("{-#")
    if start < 0:
        return {}
    blobs = {}
    for match in re.finditer(r'([\w.$-]+|"(?:[^"\\]|\\.)*"): "0x([0-9A-Fa-f]*)"', text[start:]):
        name, digits = match.groups()
        blobs[name.strip('"')] = bytes.fromhex(digits)[4:]
    return blobs


def dense_from_blob(blob: bytes, type_: TensorType, name: str) -> DenseElements:
    """Decodes a `dense_resource` blob; raises FormatError when its size does not fit the type."""
    if type_.element in ("i1",) and len(blob) == (type_.size + 7) // 8 != type_.size:
        array = np.unpackbits(np.frombuffer(blob, np.uint8), bitorder="little")[: type_.size].astype(np.bool_)
        return DenseElements(type_, own(array.reshape(type_.shape)))
    width = 1 if type_.element in ("i1", "i2", "i4", "ui2", "ui4") else type_.dtype.itemsize
    if len(blob) != width * type_.size:
        raise FormatError(
            f"the resource {name} holds {len(blob)} bytes, but {type_} needs {width * type_.size}",
            mend="write the file again without cutting large constants",
        )
    return DenseElements(type_, own(_from_storage(np.frombuffer(blob, np.uint8), type_).reshape(type_.shape)))
