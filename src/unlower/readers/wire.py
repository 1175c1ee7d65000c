"""The protobuf wire format: enough of it to find and read fields without a schema or a protobuf dependency.

A message is a run of fields: a varint key (`number << 3 | wire_type`), then the value. Only what is looked at is
decoded. Proto field numbers used by the readers are those of `xla/service/hlo.proto` and `xla/xla_data.proto`.
"""

from collections.abc import Iterator
from typing import NamedTuple

from unlower.errors import FormatError

__all__ = [
    "BYTES",
    "VARINT",
    "Field",
    "encode_field",
    "encode_varint",
    "fields",
    "first",
    "varint",
    "varints",
]

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


class Field(NamedTuple):
    """One field of a message: its value is `data[start:stop]` (for a varint, the varint itself)."""

    number: int
    kind: int
    start: int
    stop: int


def _damaged(what: str, offset: int) -> FormatError:
    return FormatError(
        f"damaged protobuf: {what}",
        where=f"byte {offset}",
        mend="copy or write the file again; it is cut off or changed",
    )


def varint(data: bytes | memoryview, at: int, stop: int) -> tuple[int, int]:
    """Reads an unsigned integer of at most ten bytes; returns it, and where it ends.

    Raises:
      FormatError: it does not end before `stop`, or has more bytes.

    Example:
      >>> varint(bytes([0x96, 0x01]), 0, 2)
      (150, 2)
    """
    value = shift = 0
    start = at
    while at < stop:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise _damaged("a number of more than ten bytes", start)
    raise _damaged("it ends inside a number", start)


def fields(data: bytes | memoryview, start: int = 0, stop: int | None = None) -> Iterator[Field]:
    """Yields the fields of the message `data[start:stop]`; raises FormatError at the offset where it is damaged."""
    at, stop = start, len(data) if stop is None else stop
    make = tuple.__new__  # what `Field(...)` comes to, without its call
    while at < stop:
        key = data[at]
        if key < 0x80:
            value = at + 1
        else:
            key, value = varint(data, at, stop)
        kind, number = key & 7, key >> 3
        if number == 0:
            raise _damaged("a field with the number 0", at)
        if kind == BYTES:
            if value < stop and data[value] < 0x80:
                end = value + 1 + data[value]
                value += 1
            else:
                length, value = varint(data, value, stop)
                end = value + length
        elif kind == VARINT:
            if value < stop and data[value] < 0x80:
                end = value + 1
            else:
                _, end = varint(data, value, stop)
        elif kind == FIXED64:
            end = value + 8
        elif kind == FIXED32:
            end = value + 4
        else:
            raise _damaged(f"a field of the unknown wire type {kind}", at)
        if end > stop:
            raise _damaged(f"field {number} runs past the end of its message", at)
        yield make(Field, (number, kind, value, end))
        at = end


def first(data: bytes, number: int, start: int = 0, stop: int | None = None) -> bytes | None:
    """Returns the value of the first length-delimited field `number`, or None."""
    for field in fields(data, start, stop):
        if field.number == number and field.kind == BYTES:
            return data[field.start : field.stop]
    return None


def varints(data: bytes, number: int) -> list[int]:
    """Returns every integer of the repeated varint field `number`, packed or not."""
    values = []
    for field in fields(data):
        if field.number == number and field.kind in (VARINT, BYTES):
            at = field.start
            while at < field.stop:
                value, at = varint(data, at, field.stop)
                values.append(value)
    return values


def encode_varint(value: int) -> bytes:
    """Encodes an unsigned integer."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def encode_field(number: int, value: bytes) -> bytes:
    """Encodes a length-delimited field."""
    return encode_varint(number << 3 | BYTES) + encode_varint(len(value)) + value
