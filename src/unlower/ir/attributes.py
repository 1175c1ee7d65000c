"""Attribute values: what stands beside an operation's operands.

Plain attributes are subclasses of the builtin they mean, so a rule computes with them directly while the printer still
knows how MLIR spells them:

=================  ==================================  =====================================
here               is a                                MLIR
=================  ==================================  =====================================
Int                int, with `.element`                `3 : i64`, `76 : ui8`
Float              float, with `.element`              `1.0 : f32`
bool               bool                                `true`
str                str                                 `"text"`
Symbol             str                                 `@name`
Enum               str, with `.mnemonic`               `#stablehlo<comparison_direction EQ>`
IntArray           tuple of int, with `.element`       `array<i64: 1, 2>` (i1: of bool)
tuple              tuple of attributes                 `[...]`
dict               mapping of attributes               `{...}`
Unit               singleton, truthy                   `unit`
DenseElements      constant data                       `dense<...> : tensor<...>`
Type               itself                              `tensor<2xf32>`
Unparsed           str, MLIR's own text                anything else
=================  ==================================  =====================================

Structured ones (dimension numbers and their kin) are frozen dataclasses with the field names of the specification.
"""

import dataclasses

import numpy as np

from unlower.ir.types import TensorType

__all__ = [
    "ChannelHandle",
    "ConvDimensionNumbers",
    "DenseElements",
    "DotAlgorithm",
    "DotDimensionNumbers",
    "Enum",
    "Float",
    "GatherDimensionNumbers",
    "Int",
    "IntArray",
    "OutputOperandAlias",
    "RaggedDotDimensionNumbers",
    "ResultAccuracy",
    "ScatterDimensionNumbers",
    "Symbol",
    "Unit",
    "UnitType",
    "Unparsed",
    "repeats_one_element",
]

_PIECE = 1 << 16


class Int(int):
    """An integer attribute; `element` is its MLIR type."""

    element: str

    def __new__(cls, value: int, element: str = "i64"):
        """Makes an integer attribute of MLIR type `element`."""
        self = super().__new__(cls, value)
        self.element = element
        return self


class Float(float):
    """A float attribute; `element` is its MLIR type."""

    element: str

    def __new__(cls, value: float, element: str = "f64"):
        """Makes a float attribute of MLIR type `element`."""
        self = super().__new__(cls, value)
        self.element = element
        return self


class Symbol(str):
    """A reference to a function, printed `@name`."""

    __slots__ = ()


class Unparsed(str):
    """An attribute without a structure here, kept as MLIR's own text."""

    __slots__ = ()


class Enum(str):
    """A case of an enumeration; `mnemonic` is e.g. `"stablehlo<comparison_direction"`'s middle, dialect included."""

    dialect: str
    mnemonic: str

    def __new__(cls, value: str, dialect: str = "stablehlo", mnemonic: str = ""):
        """Makes a case of the enumeration `#dialect<mnemonic ...>`."""
        self = super().__new__(cls, value)
        self.dialect, self.mnemonic = dialect, mnemonic
        return self


class IntArray(tuple):
    """A dense array of integers (or booleans, for `i1`); `element` is their MLIR type."""

    element: str

    def __new__(cls, values=(), element: str = "i64"):
        """Makes an array attribute of elements of MLIR type `element`."""
        self = super().__new__(cls, values)
        self.element = element
        return self


class UnitType:
    """The type of `Unit`, the attribute that means something by being there."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "Unit"


Unit = UnitType()


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class DenseElements:
    """Constant data: `array` has the tensor's dtype, and shape `type.shape`, or `()` for a splat.

    Attributes:
      type: the tensor type.
      array: the elements; one element where every element is the same (`is_splat`).
      elided: the name under which the file left the values out, or None. Readers resolve it or raise.
    """

    type: TensorType
    array: np.ndarray
    elided: str | None = None

    @property
    def is_splat(self) -> bool:
        """Whether `array` holds one element that stands for all."""
        return self.array.shape != self.type.shape

    def expanded(self) -> np.ndarray:
        """The elements in the tensor's full shape (a view for splats)."""
        return np.broadcast_to(self.array, self.type.shape)  # pyright: ignore[reportArgumentType]


def repeats_one_element(array: np.ndarray) -> bool:
    """Whether every element of a contiguous array, of one element or more, has the bytes of the first.

    Looks at a piece at a time: for a gigabyte of weights, neither a second gigabyte nor more than the first piece.

    Example:
      >>> repeats_one_element(np.zeros(3)), repeats_one_element(np.array([0.0, -0.0]))
      (True, False)
    """
    width = array.dtype.itemsize
    data = array.reshape(-1).view(np.uint8)
    step = max(_PIECE // width, 1) * width
    for at in range(0, len(data), step):
        piece = data[max(at - width, 0) : at + step]
        if not np.array_equal(piece[:-width], piece[width:]):
            return False
    return True


@dataclasses.dataclass(frozen=True, slots=True)
class DotDimensionNumbers:
    """Spec: `dot_general`."""

    lhs_batching_dimensions: tuple[int, ...] = ()
    rhs_batching_dimensions: tuple[int, ...] = ()
    lhs_contracting_dimensions: tuple[int, ...] = ()
    rhs_contracting_dimensions: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class RaggedDotDimensionNumbers:
    """The dimension numbers of `chlo.ragged_dot` and `mhlo.ragged_dot`."""

    dot_dimension_numbers: DotDimensionNumbers
    lhs_ragged_dimensions: tuple[int, ...] = ()
    rhs_group_dimensions: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class ConvDimensionNumbers:
    """Spec: `convolution`. Every number is a dimension of the array it names."""

    input_batch_dimension: int
    input_feature_dimension: int
    input_spatial_dimensions: tuple[int, ...]
    kernel_input_feature_dimension: int
    kernel_output_feature_dimension: int
    kernel_spatial_dimensions: tuple[int, ...]
    output_batch_dimension: int
    output_feature_dimension: int
    output_spatial_dimensions: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class GatherDimensionNumbers:
    """Spec: `gather`."""

    offset_dims: tuple[int, ...] = ()
    collapsed_slice_dims: tuple[int, ...] = ()
    operand_batching_dims: tuple[int, ...] = ()
    start_indices_batching_dims: tuple[int, ...] = ()
    start_index_map: tuple[int, ...] = ()
    index_vector_dim: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class ScatterDimensionNumbers:
    """Spec: `scatter`."""

    update_window_dims: tuple[int, ...] = ()
    inserted_window_dims: tuple[int, ...] = ()
    input_batching_dims: tuple[int, ...] = ()
    scatter_indices_batching_dims: tuple[int, ...] = ()
    scatter_dims_to_operand_dims: tuple[int, ...] = ()
    index_vector_dim: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class DotAlgorithm:
    """Spec: `dot_general`, the algorithm that a dot must be computed with. Types are element types."""

    lhs_precision_type: str
    rhs_precision_type: str
    accumulation_type: str
    lhs_component_count: int
    rhs_component_count: int
    num_primitive_operations: int
    allow_imprecise_accumulation: bool


@dataclasses.dataclass(frozen=True, slots=True)
class ResultAccuracy:
    """The accuracy asked of a transcendental; `mode` is DEFAULT, HIGHEST or TOLERANCE."""

    mode: str = "DEFAULT"
    atol: float = 0.0
    rtol: float = 0.0
    ulps: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class ChannelHandle:
    """The channel of a collective or a host transfer."""

    handle: int
    type: int


@dataclasses.dataclass(frozen=True, slots=True)
class OutputOperandAlias:
    """Spec: `custom_call`, an output that shares the buffer of an operand."""

    output_tuple_indices: tuple[int, ...]
    operand_index: int
    operand_tuple_indices: tuple[int, ...]
