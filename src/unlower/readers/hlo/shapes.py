"""Shapes of HLO values: element type, sizes, layout, parts of tuples (`ShapeProto`)."""

import dataclasses
import math
from typing import NamedTuple

from unlower._jax_compat import HLO_HAS_FLOAT6
from unlower.errors import FormatError
from unlower.readers.hlo.faults import Fault
from unlower.readers.hlo.wire import encode_number, encode_packed, integers, repeated_integers
from unlower.readers.wire import BYTES, VARINT, encode_field, fields

__all__ = [
    "COMPLEX",
    "ELEMENTS",
    "FLOATS",
    "PRED",
    "TUPLE",
    "Shape",
    "Shapes",
    "encode_array_shape",
    "encode_tuple_shape",
    "with_default_layout",
]


class Element(NamedTuple):
    """An element type: how HLO spells it, its bits, the field of a literal that holds its values, their least bits there."""

    name: str
    bits: int
    literal: int
    stored: int


ELEMENTS: dict[int, Element] = {
    1: Element("pred", 8, 2, 8),
    2: Element("s8", 8, 15, 8),
    3: Element("s16", 16, 17, 16),
    4: Element("s32", 32, 4, 8),
    5: Element("s64", 64, 5, 8),
    6: Element("u8", 8, 3, 8),
    7: Element("u16", 16, 16, 16),
    8: Element("u32", 32, 6, 8),
    9: Element("u64", 64, 7, 8),
    10: Element("f16", 16, 11, 16),
    11: Element("f32", 32, 8, 32),
    12: Element("f64", 64, 9, 64),
    15: Element("c64", 64, 12, 64),
    16: Element("bf16", 16, 13, 16),
    18: Element("c128", 128, 18, 128),
    19: Element("f8e5m2", 8, 19, 8),
    20: Element("f8e4m3fn", 8, 20, 8),
    21: Element("s4", 4, 21, 4),
    22: Element("u4", 4, 22, 4),
    23: Element("f8e4m3b11fnuz", 8, 23, 8),
    24: Element("f8e5m2fnuz", 8, 24, 8),
    25: Element("f8e4m3fnuz", 8, 25, 8),
    26: Element("s2", 2, 26, 2),
    27: Element("u2", 2, 27, 2),
    28: Element("f8e4m3", 8, 28, 8),
    29: Element("f8e3m4", 8, 29, 8),
    32: Element("f4e2m1fn", 4, 32, 4),
    33: Element("f8e8m0fnu", 8, 33, 8),
}
"""`PrimitiveType` -> element type, for those that StableHLO has too."""

if HLO_HAS_FLOAT6:
    # Literals of these end the process, so no field holds one.
    ELEMENTS |= {35: Element("f6e3m2fn", 6, 0, 6), 36: Element("f6e2m3fn", 6, 0, 6)}

PRED, TUPLE, TOKEN = 1, 13, 17
COMPLEX = frozenset([number for number, element in ELEMENTS.items() if element.name.startswith("c")])
FLOATS = frozenset([number for number, element in ELEMENTS.items() if element.name.startswith(("f", "bf"))])
_NO_TENSOR = {
    0: "no element type",
    14: "opaque values",
    30: "elements of type s1",
    31: "elements of type u1",
    34: "buffers",
}
_UNBOUNDED = -(1 << 63)
_MOST_ELEMENTS = 1 << 60
_MOST_DIMENSIONS = 255


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """A shape. Two shapes are the same up to their layouts when their `key` is the same number.

    Attributes:
      number: identifies the shape, layout and all.
      key: identifies element type, sizes and parts.
      element: the `PrimitiveType`; TUPLE and TOKEN among them.
      dimensions: sizes, upper bounds where they are dynamic.
      parts: what a tuple holds; None for other shapes.
      minor_to_major: the layout of an array; None where the shape has none.
      tiles: sizes of the tiles of a tiled layout, outermost first.
      dynamic: which dimensions are dynamic; empty for none.
      encoded: the shape as bytes, without what older converters refuse (tiles, memory spaces) and no value depends on.
      is_plain: whether nothing had to go for that.
      leaves: how many arrays and tokens it holds.
    """

    number: int
    key: int
    element: int
    dimensions: tuple[int, ...]
    parts: "tuple[Shape, ...] | None"
    minor_to_major: tuple[int, ...] | None
    tiles: tuple[tuple[int, ...], ...]
    dynamic: tuple[int, ...]
    encoded: bytes
    is_plain: bool
    leaves: int

    @property
    def is_array(self) -> bool:
        """Whether it is neither a tuple nor a token."""
        return self.element in ELEMENTS

    @property
    def is_scalar(self) -> bool:
        """Whether it is an array without dimensions."""
        return self.is_array and not self.dimensions

    @property
    def is_token(self) -> bool:
        """Whether it orders effects and holds no values."""
        return self.element == TOKEN

    @property
    def size(self) -> int:
        """The number of elements of an array."""
        return math.prod(self.dimensions)

    def __str__(self) -> str:
        if self.parts is not None:
            return f"({', '.join(map(str, self.parts))})"
        if self.element == TOKEN:
            return "token[]"
        return f"{ELEMENTS[self.element].name}[{','.join(map(str, self.dimensions))}]"


class Shapes:
    """Decodes shapes, each distinct one once.

    Args:
      nesting: how many tuples may be inside each other.
    """

    def __init__(self, nesting: int):
        self._nesting = nesting
        self._decoded: dict[bytes, Shape] = {}
        self._keys: dict[object, int] = {}
        self._layouts: dict[bytes, tuple[tuple[int, ...], tuple[tuple[int, ...], ...], bool]] = {}

    def __getitem__(self, data: bytes) -> Shape:
        """Returns the shape that `data` encodes; raises Fault where it is none."""
        shape = self._decoded.get(data)
        if shape is None:
            try:
                shape = self._decode(data, 0)
            except FormatError as error:
                raise Fault(f"its shape is damaged: {error.what}") from None
        return shape

    def _decode(self, data: bytes, depth: int) -> Shape:
        shape = self._decoded.get(data)
        if shape is not None:
            return shape
        if depth > self._nesting:
            raise Fault(f"its shape has more than {self._nesting} tuples inside each other")
        element, sizes, dynamic, layout = 0, [], [], None
        parts: list[Shape] = []
        has_parts = False
        for number, kind, start, stop in fields(data):
            if number == 2 and kind == VARINT:
                (element,) = integers(data[start:stop])
            elif number == 3:
                sizes += integers(data[start:stop])
            elif number == 4 and kind == BYTES:
                parts.append(self._decode(data[start:stop], depth + 1))
                has_parts = True
            elif number == 5 and kind == BYTES:
                if layout is not None:
                    raise Fault("its shape has two layouts")
                layout = data[start:stop]
            elif number == 6:
                dynamic += integers(data[start:stop])
        if element == TUPLE:
            if sizes:
                raise Fault("its shape is a tuple with dimensions")
            key = (TUPLE, tuple([part.key for part in parts]))
            is_plain = all(part.is_plain for part in parts)
            shape = Shape(
                number=len(self._decoded),
                key=self._keys.setdefault(key, len(self._keys)),
                element=element,
                dimensions=(),
                parts=tuple(parts),
                minor_to_major=None,
                tiles=(),
                dynamic=(),
                encoded=data if is_plain else encode_tuple_shape([part.encoded for part in parts]),
                is_plain=is_plain,
                leaves=sum(part.leaves for part in parts),
            )
        else:
            if has_parts and element != 34:
                raise Fault("its shape has parts, and is no tuple")
            shape = self._array(data, element, tuple(sizes), tuple(dynamic), layout)
        self._decoded[data] = shape
        return shape

    def _array(
        self, data: bytes, element: int, sizes: tuple[int, ...], dynamic: tuple[int, ...], layout: bytes | None
    ) -> Shape:
        if element == TOKEN:
            if sizes:
                raise Fault("its shape is a token with dimensions")
            return Shape(
                number=len(self._decoded),
                key=self._keys.setdefault(TOKEN, len(self._keys)),
                element=element,
                dimensions=(),
                parts=None,
                minor_to_major=None,
                tiles=(),
                dynamic=(),
                encoded=data,
                is_plain=True,
                leaves=1,
            )
        if element not in ELEMENTS:
            what = _NO_TENSOR.get(element, f"elements of the unknown type {element}")
            raise Fault(f"its shape has {what}, which StableHLO has no type for")
        if len(sizes) > _MOST_DIMENSIONS:
            raise Fault(f"its shape has {len(sizes)} dimensions")
        if len(dynamic) not in (0, len(sizes)):
            raise Fault("its shape says of too few or too many dimensions whether they are dynamic")
        for place, size in enumerate(sizes):
            unbounded = size == _UNBOUNDED and dynamic and dynamic[place]
            if size < 0 and not unbounded:
                raise Fault(f"its shape has a dimension of size {size}")
        known = math.prod([size for size in sizes if size > 0])
        if known >= _MOST_ELEMENTS:
            raise Fault(f"its shape has {known} elements")
        minor_to_major, tiles, is_plain = None, (), True
        if layout is not None:
            if layout not in self._layouts:
                self._layouts[layout] = tuple(repeated_integers(layout, 1)), *_read_layout(layout)
            minor_to_major, tiles, is_plain = self._layouts[layout]
            if sorted(minor_to_major) != list(range(len(sizes))):
                raise Fault(
                    f"the layout {{{','.join(map(str, minor_to_major))}}} is no permutation of its {len(sizes)} dimensions"
                )
        dynamic = dynamic if any(dynamic) else ()
        key = (element, sizes, dynamic)
        return Shape(
            number=len(self._decoded),
            key=self._keys.setdefault(key, len(self._keys)),
            element=element,
            dimensions=sizes,
            parts=None,
            minor_to_major=minor_to_major,
            tiles=tiles,
            dynamic=dynamic,
            encoded=data if is_plain else encode_array_shape(element, sizes, dynamic, minor_to_major),
            is_plain=is_plain,
            leaves=1,
        )


def _read_layout(layout: bytes) -> tuple[tuple[tuple[int, ...], ...], bool]:
    """Returns the tiles of a layout, and whether it says only what every converter takes."""
    tiles, plain = [], True
    for number, kind, start, stop in fields(layout):
        value = integers(layout[start:stop]) if kind in (BYTES, VARINT) and number != 6 else []
        if number == 6 and kind == BYTES:
            tiles.append(tuple(repeated_integers(layout[start:stop], 1)))
            plain = False
        elif not (number == 1 or (number == 16 and value in ([0], [1])) or (number == 9 and not any(value))):
            plain = False
    return tuple(tiles), plain


def encode_array_shape(
    element: int,
    sizes: "tuple[int, ...] | list[int]" = (),
    dynamic: "tuple[int, ...] | list[int]" = (),
    minor_to_major: "tuple[int, ...] | list[int] | None" = None,
) -> bytes:
    """Encodes the shape of an array, in the layout given or in the one where the last dimension varies fastest."""
    layout = range(len(sizes) - 1, -1, -1) if minor_to_major is None else minor_to_major
    return b"".join(
        [
            encode_number(2, element),
            encode_packed(3, tuple(sizes)),
            encode_field(5, encode_packed(1, tuple(layout)) + encode_number(16, 1)),
            encode_packed(6, tuple(dynamic) or (0,) * len(sizes)),
        ]
    )


def encode_tuple_shape(parts: "list[bytes]") -> bytes:
    """Encodes the shape of a tuple of parts that are encoded already."""
    return encode_number(2, TUPLE) + b"".join([encode_field(4, part) for part in parts])


def with_default_layout(shape: Shape) -> bytes:
    """Encodes a shape, its arrays in the layout where the last dimension varies fastest."""
    if shape.parts is not None:
        return encode_tuple_shape([with_default_layout(part) for part in shape.parts])
    if not shape.is_array:
        return shape.encoded
    return encode_array_shape(shape.element, shape.dimensions, shape.dynamic)
