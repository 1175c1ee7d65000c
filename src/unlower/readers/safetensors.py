"""The safetensors format: arrays by name in one file, which holds no code. Written, and read without copying.

Eight bytes of length, little-endian; a JSON object of that length with each array's type, shape and place; then the elements,
row-major and little-endian. Spec: https://huggingface.co/docs/safetensors
"""

import json
import math
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from unlower.errors import FormatError

__all__ = ["read_safetensors", "write_safetensors"]

_DTYPES: dict[str, np.dtype] = {
    name: np.dtype(dtype)
    for name, dtype in {
        "BOOL": np.bool_,
        "U8": np.uint8,
        "I8": np.int8,
        "I16": np.int16,
        "U16": np.uint16,
        "I32": np.int32,
        "U32": np.uint32,
        "I64": np.int64,
        "U64": np.uint64,
        "F8_E4M3": ml_dtypes.float8_e4m3fn,
        "F8_E5M2": ml_dtypes.float8_e5m2,
        "F8_E8M0": ml_dtypes.float8_e8m0fnu,
        "F16": np.float16,
        "BF16": ml_dtypes.bfloat16,
        "F32": np.float32,
        "F64": np.float64,
        "C64": np.complex64,
    }.items()
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_MEND = "copy or write the file again; it is cut off or changed"


def write_safetensors(path: str | os.PathLike[str], arrays: Mapping[str, Any]) -> None:
    """Writes arrays to a file.

    Raises:
      FormatError: an element type that the format does not have.

    Example:
      >>> import tempfile, numpy as np
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     write_safetensors(f"{folder}/w.safetensors", {"w": np.arange(3.0)})
      ...     read_safetensors(f"{folder}/w.safetensors")["w"].tolist()
      [0.0, 1.0, 2.0]
    """
    header: dict[str, Any] = {}
    # As the reference implementation has it, wide elements come first: so every array is aligned.
    ordered = sorted(arrays, key=lambda name: (-np.asarray(arrays[name]).dtype.itemsize, name))
    offset = 0
    for name in ordered:
        array = np.asarray(arrays[name])
        if array.dtype not in _NAMES:
            raise FormatError(
                f"safetensors has no element type for {array.dtype.name}",
                where=f"the array {name}",
                mend="write an .npz file instead, or convert the array",
            )
        header[name] = {
            "dtype": _NAMES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in ordered:
            array = np.ascontiguousarray(arrays[name])
            file.write(array.reshape(-1).view(np.uint8).data)


def read_safetensors(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Reads the arrays of a file, mapped and not copied; read-only.

    Raises:
      FormatError: this is no safetensors file, or a damaged one.
      OSError: it cannot be read.
    """
    path = pathlib.Path(path)
    size = path.stat().st_size
    data = np.memmap(path, np.uint8, "r") if size else np.zeros(0, np.uint8)
    if not (size > 8 and data[8] == ord("{") and int.from_bytes(data[:8].tobytes(), "little") <= size - 8):
        raise FormatError("this is no safetensors file", where=str(path), mend=_MEND)
    start = 8 + int.from_bytes(data[:8].tobytes(), "little")
    try:
        header = json.loads(data[8:start].tobytes())
        header.pop("__metadata__", None)
        return {name: _array(data, start, entry) for name, entry in header.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"damaged safetensors file: {error}", where=str(path), mend=_MEND) from None


def _array(data: np.ndarray, start: int, entry: Mapping[str, Any]) -> np.ndarray:
    dtype, shape = _DTYPES[entry["dtype"]], tuple(entry["shape"])
    begin, end = entry["data_offsets"]
    if end - begin != math.prod(shape) * dtype.itemsize or not 0 <= begin <= end <= data.size - start:
        raise ValueError(f"bytes {begin} to {end} for {dtype.name}{list(shape)}")
    return data[start + begin : start + end].view(dtype).reshape(shape)
