"""Constant data -> NumPy arrays, exact for every element type, copied once.

MLIR stores elements little-endian, a whole byte for each one narrower than that, booleans eight to the byte, and a single
element where all are equal.
"""

import math

import numpy as np

from unlower.errors import FormatError
from unlower.ir.attributes import DenseElements
from unlower.ir.types import TensorType

__all__ = ["LONGEST_ELEMENT", "aligned", "dense_from_blob", "dense_from_storage", "own"]

LONGEST_ELEMENT = 16
"""Bytes of the widest element, a complex number."""

_ALIGNMENT = 64
_NARROW = frozenset(["i2", "i4", "ui2", "ui4"])


def own(view: np.ndarray) -> np.ndarray:
    """Copies a view into memory of its own, aligned so that a CPU device takes large arrays as they are; read-only."""
    if view.nbytes < 4096:
        array = np.array(view)
    else:
        array = aligned(view.shape, view.dtype)
        array[...] = view
    array.flags.writeable = False
    return array


def aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Makes an array without values, aligned so that a CPU device takes it as it is."""
    size = math.prod(shape) * dtype.itemsize
    buffer = np.empty(size + _ALIGNMENT, np.uint8)
    start = -buffer.ctypes.data % _ALIGNMENT
    return buffer[start : start + size].view(dtype).reshape(shape)


def dense_from_storage(blob: memoryview, type_: TensorType) -> DenseElements:
    """Decodes the bytes of a `dense<...>` attribute; raises ValueError when their number does not fit the type."""
    raw, size = np.frombuffer(blob, np.uint8), type_.size
    if type_.element != "i1":
        array = _elements(raw, type_)
    elif len(raw) == 1 and raw[0] in (0, 0xFF):
        array = np.array([raw[0] != 0])
    elif len(raw) == (size + 7) // 8:
        array = _booleans(raw, type_)
    else:
        array = np.zeros(0, np.bool_)
    if array.size == 1 and type_.shape != ():
        return DenseElements(type_, own(array.reshape(())))
    if array.size != size:
        raise ValueError(f"{len(raw)} bytes of constants for {type_}")
    return DenseElements(type_, own(array.reshape(type_.shape)))


def dense_from_blob(blob: memoryview, type_: TensorType, name: str) -> DenseElements:
    """Decodes a `dense_resource` blob; raises FormatError when its size does not fit the type."""
    raw = np.frombuffer(blob, np.uint8)
    if type_.element == "i1" and len(raw) == (type_.size + 7) // 8 != type_.size:
        return DenseElements(type_, own(_booleans(raw, type_).reshape(type_.shape)))
    width = 1 if type_.element == "i1" else type_.dtype.itemsize
    if len(raw) != width * type_.size:
        raise FormatError(
            f"the resource {name} holds {len(raw)} bytes, but {type_} needs {width * type_.size}",
            mend="write the file again without cutting large constants",
        )
    array = (raw & 1).astype(np.bool_) if type_.element == "i1" else _elements(raw, type_)
    return DenseElements(type_, own(array.reshape(type_.shape)))


def _booleans(raw: np.ndarray, type_: TensorType) -> np.ndarray:
    return np.unpackbits(raw, bitorder="little")[: type_.size].astype(np.bool_)


def _elements(raw: np.ndarray, type_: TensorType) -> np.ndarray:
    element = str(type_.element)
    if element not in _NARROW:
        return raw.view(type_.dtype)
    # Through int8: ml_dtypes keeps a byte for each element, sign-extended.
    width = int(element.lstrip("ui"))
    values = raw.astype(np.int64) & ((1 << width) - 1)
    if element.startswith("i"):
        values = np.where(values >> (width - 1), values - (1 << width), values)
    return values.astype(np.int8).astype(type_.dtype)
