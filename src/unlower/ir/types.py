"""Types of values: tensors, tuples, tokens, futures; element types and their NumPy dtypes.

Spec: "Types" of the StableHLO specification. Everything is frozen and hashable, and prints as MLIR does.
"""

import dataclasses
import functools
from typing import Any

import ml_dtypes
import numpy as np

__all__ = [
    "DTYPES",
    "FutureType",
    "OpaqueType",
    "QuantizedElement",
    "TensorType",
    "TokenType",
    "TupleType",
    "Type",
    "element_of_dtype",
]

_FLOAT8 = {
    "f8E3M4": ml_dtypes.float8_e3m4,
    "f8E4M3": ml_dtypes.float8_e4m3,
    "f8E4M3B11FNUZ": ml_dtypes.float8_e4m3b11fnuz,
    "f8E4M3FN": ml_dtypes.float8_e4m3fn,
    "f8E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "f8E5M2": ml_dtypes.float8_e5m2,
    "f8E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
    "f8E8M0FNU": ml_dtypes.float8_e8m0fnu,
}

DTYPES: dict[str, np.dtype] = {
    name: np.dtype(dtype)
    for name, dtype in {
        "i1": np.bool_,
        "i2": ml_dtypes.int2,
        "i4": ml_dtypes.int4,
        "i8": np.int8,
        "i16": np.int16,
        "i32": np.int32,
        "i64": np.int64,
        "ui2": ml_dtypes.uint2,
        "ui4": ml_dtypes.uint4,
        "ui8": np.uint8,
        "ui16": np.uint16,
        "ui32": np.uint32,
        "ui64": np.uint64,
        "f4E2M1FN": ml_dtypes.float4_e2m1fn,
        "f6E2M3FN": ml_dtypes.float6_e2m3fn,
        "f6E3M2FN": ml_dtypes.float6_e3m2fn,
        **_FLOAT8,
        "bf16": ml_dtypes.bfloat16,
        "f16": np.float16,
        "f32": np.float32,
        "f64": np.float64,
        "complex<f32>": np.complex64,
        "complex<f64>": np.complex128,
    }.items()
}
"""MLIR's spelling of an element type -> the NumPy dtype that holds one element."""

_ELEMENTS = {dtype: name for name, dtype in DTYPES.items()}


def element_of_dtype(dtype: np.dtype) -> str:
    """Spells a NumPy dtype as MLIR does, e.g. `"ui8"`; raises KeyError for a dtype that has no element type."""
    return _ELEMENTS[np.dtype(dtype)]


@dataclasses.dataclass(frozen=True, slots=True)
class QuantizedElement:
    """A quantized element type, `!quant.uniform<storage:expressed, ...>`.

    `scales` and `zero_points` hold one entry for a per-tensor type, one per slice of `axis` otherwise.
    """

    storage: str
    expressed: str
    scales: tuple[float, ...]
    zero_points: tuple[int, ...]
    axis: int | None
    storage_min: int
    storage_max: int
    text: str

    def __str__(self) -> str:
        return self.text


@dataclasses.dataclass(frozen=True, slots=True)
class TensorType:
    """A ranked tensor: `shape` in elements (None is a size unknown before the call) and the element type.

    `bounds` are the upper bounds of a bounded dynamic shape, from `#stablehlo.bounds` (None: no bound).

    Example:
      >>> str(TensorType((2, None), "f32"))
      'tensor<2x?xf32>'
    """

    # A size may be None; `int | Any` says so without asking every rule, which meets known sizes, for a check.
    shape: tuple[int | Any, ...]
    element: str | QuantizedElement
    bounds: tuple[int | None, ...] | None = None

    @property
    def dtype(self) -> np.dtype:
        """The NumPy dtype of one element; raises KeyError for quantized and unknown element types."""
        return DTYPES[self.element]  # pyright: ignore[reportArgumentType]

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def is_static(self) -> bool:
        """Whether every size is known."""
        return None not in self.shape

    @property
    def size(self) -> int:
        """The number of elements of a static tensor."""
        product = 1
        for extent in self.shape:
            assert extent is not None, "size of a dynamic tensor"
            product *= extent
        return product

    def __str__(self) -> str:
        return _tensor_text(self)


@functools.lru_cache(maxsize=4096)
def _tensor_text(type_: TensorType) -> str:
    sizes = "".join(f"{'?' if n is None else n}x" for n in type_.shape)
    bounds = ""
    if type_.bounds is not None:
        inner = ", ".join("?" if b is None else str(b) for b in type_.bounds)
        bounds = f", #stablehlo.bounds<{inner}>"
    return f"tensor<{sizes}{type_.element}{bounds}>"


@dataclasses.dataclass(frozen=True, slots=True)
class TupleType:
    """A tuple of types, possibly nested."""

    elements: "tuple[Type, ...]"

    def __str__(self) -> str:
        return f"tuple<{', '.join(map(str, self.elements))}>"


@dataclasses.dataclass(frozen=True, slots=True)
class TokenType:
    """The token that orders side effects."""

    def __str__(self) -> str:
        return "!stablehlo.token"


@dataclasses.dataclass(frozen=True, slots=True)
class FutureType:
    """What an `async_start` returns: the types its `async_done` will have."""

    elements: "tuple[Type, ...]"

    def __str__(self) -> str:
        return f"!stablehlo.future<{', '.join(map(str, self.elements))}>"


@dataclasses.dataclass(frozen=True, slots=True)
class OpaqueType:
    """A type without a meaning here, kept as its MLIR text."""

    text: str

    def __str__(self) -> str:
        return self.text


Type = TensorType | TupleType | TokenType | FutureType | OpaqueType
