"""Literals, the values of constants (`LiteralProto`): checked against their shape, and taken apart where they are tuples."""

from collections.abc import Iterator

from unlower.readers.hlo.faults import Fault
from unlower.readers.hlo.shapes import ELEMENTS, Shape, Shapes
from unlower.readers.wire import BYTES, Field, fields, first

__all__ = ["check_literal", "has_payload", "parts_of_literal"]

_SHAPE, _PARTS, _SPARSE = 1, 10, 14


def has_payload(data: bytes) -> bool:
    """Whether a literal holds any elements."""
    return any(field.number not in (_SHAPE, _SPARSE) for field in fields(data))


def parts_of_literal(data: bytes) -> Iterator[bytes]:
    """Yields the parts of the literal of a tuple."""
    for number, kind, start, stop in fields(data):
        if number == _PARTS and kind == BYTES:
            yield data[start:stop]


def check_literal(data: bytes, shape: Shape, shapes: Shapes) -> None:
    """Checks a literal: of the shape of its instruction, and large enough for it, since XLA sets memory aside before it looks.

    Raises:
      Fault: it is not.
    """
    own = first(data, _SHAPE)
    if own is None:
        raise Fault("its literal has no shape")
    assert own is not None
    found = shapes[own]
    if found.key != shape.key:
        raise Fault(f"its literal is {found}, not {shape}")
    if shape.parts is not None:
        parts = list(parts_of_literal(data))
        if len(parts) != len(shape.parts):
            raise Fault(f"its literal has {len(parts)} parts, not {len(shape.parts)}")
        for part, of in zip(parts, shape.parts, strict=True):
            check_literal(part, of, shapes)
        return
    if not shape.is_array:
        raise Fault("its literal is a token")
    element = ELEMENTS[shape.element]
    if not element.literal:
        raise Fault(f"constants of {element.name} are not supported by XLA's own converter")
    if any(size < 0 for size in shape.dimensions):
        raise Fault("its literal has a dimension without a size")
    if found.minor_to_major is None and found.dimensions:
        raise Fault("its literal has no layout")
    same = found.minor_to_major == shape.minor_to_major or shape.minor_to_major is None
    if not same:
        raise Fault("its literal is in another layout than its shape")
    payload = [field for field in fields(data) if field.number == element.literal]
    stored = sum(field.stop - field.start for field in payload)
    least = (shape.size * element.stored + 7) // 8
    if stored < least:
        raise Fault(f"its literal holds {stored} bytes, fewer than the {least} that {shape} needs")
    exact = all(field.kind == BYTES for field in payload) and _is_plain(payload, element.stored, element.bits)
    if exact and stored != least:
        raise Fault(f"its literal holds {stored} bytes, not the {least} of {shape}")


def _is_plain(payload: list[Field], stored: int, bits: int) -> bool:
    """Whether the number of bytes follows from the shape: not for integers of varying length."""
    return len(payload) == 1 and stored == bits and bits >= 8
