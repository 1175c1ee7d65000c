"""Fields of many protobuf messages at once: NumPy walks all messages side by side, one field of each per step."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from unlower.errors import FormatError
from unlower.readers.wire import BYTES, VARINT, encode_field, encode_varint, fields

__all__ = ["Table", "decode_fields", "encode_number", "encode_packed", "integers", "packed_integers"]

_LONGEST_VARINT = 10
_MANY = 200
"""Bytes of integers from which NumPy is faster than a loop."""

_WIDTHS = {1: 8, 5: 4}
"""Bytes of a value of fixed width, by wire type."""


class Table(NamedTuple):
    """The fields of several messages, as columns; the fields of one message are in their order in the file.

    Attributes:
      owner: which message, an index.
      number: the field number.
      kind: the wire type.
      start: where the value begins in the data; after its length, for one that has a length.
      stop: where the value ends.
      value: the integer of a varint; of no meaning for other fields.
    """

    owner: np.ndarray
    number: np.ndarray
    kind: np.ndarray
    start: np.ndarray
    stop: np.ndarray
    value: np.ndarray

    def where(self, mask: np.ndarray) -> "Table":
        """Returns the rows that `mask` chooses."""
        return Table(*[column[mask] for column in self])


def _damaged(what: str, at: int) -> FormatError:
    return FormatError(
        f"damaged protobuf: {what}",
        where=f"byte {at}",
        mend="copy or write the file again; it is cut off or changed",
    )


def _read_varints(buffer: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Reads an integer at each place; returns the integers, and the places after them."""
    byte = buffer[at]
    value = (byte & 0x7F).astype(np.int64)
    after = at + 1
    more = np.flatnonzero(byte > 0x7F)
    shift = 7
    while more.size:
        if shift >= 7 * _LONGEST_VARINT:
            raise _damaged("a number of more than ten bytes", int(at[more[0]]))
        byte = buffer[after[more]]
        value[more] |= (byte & 0x7F).astype(np.int64) << shift
        after[more] += 1
        shift += 7
        more = more[byte > 0x7F]
    return value, after


def decode_fields(data: bytes, starts: Sequence[int], stops: Sequence[int]) -> Table:
    """Decodes the fields of the messages `data[start:stop]`.

    Raises:
      FormatError: a message is damaged; the offset is named.
    """
    buffer = np.frombuffer(data, np.uint8)
    at, end = np.array(starts, np.int64), np.array(stops, np.int64)
    owner = np.arange(len(at))
    steps: list[Table] = []
    keep = at < end
    at, end, owner = at[keep], end[keep], owner[keep]
    while at.size:
        try:
            key, after_key = _read_varints(buffer, at)
            kind = key & 7
            fixed = (kind != VARINT) & (kind != BYTES)
            if fixed.any():
                value, start, stop = _mixed_values(buffer, at, kind, after_key)
            else:
                value, after = _read_varints(buffer, after_key)
                long = kind == BYTES
                start = np.where(long, after, after_key)
                stop = np.where(long, after + value, after)
        except IndexError:
            raise _damaged("it ends inside a field", int(at[-1])) from None
        number = key >> 3
        # A length near 2^63 makes `stop` wrap around, to before its start.
        wrong = np.flatnonzero((stop > end) | (stop < start) | (number <= 0))
        if wrong.size:
            first = int(wrong[0])
            raise _damaged(f"field {number[first]} runs past the end of its message", int(at[first]))
        steps.append(Table(owner, number, kind, start, stop, value))
        keep = stop < end
        at, end, owner = stop[keep], end[keep], owner[keep]
    if not steps:
        return Table(*[np.zeros(0, np.int64)] * 6)
    return Table(*map(np.concatenate, zip(*steps, strict=True)))


def _mixed_values(
    buffer: np.ndarray, at: np.ndarray, kind: np.ndarray, after_key: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """As the plain case, where some values have a fixed width."""
    value, start, stop = np.zeros_like(at), after_key.copy(), after_key.copy()
    long = kind == BYTES
    coded = (kind == VARINT) | long
    value[coded], stop[coded] = _read_varints(buffer, after_key[coded])
    start[long] = stop[long]
    stop[long] += value[long]
    for wire_type, width in _WIDTHS.items():
        stop[kind == wire_type] += width
    unknown = np.flatnonzero(~coded & (kind != 1) & (kind != 5))
    if unknown.size:
        first = int(unknown[0])
        raise _damaged(f"a field of the unknown wire type {kind[first]}", int(at[first]))
    return value, start, stop


def packed_integers(data: bytes, starts: np.ndarray, stops: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Decodes packed integers: those of all the ranges `data[start:stop]`, and how many each range holds."""
    if not len(starts):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    buffer = np.frombuffer(data, np.uint8)
    lengths = stops - starts
    begins = np.cumsum(lengths) - lengths
    places = np.repeat(starts - begins, lengths) + np.arange(int(lengths.sum()))
    last = buffer[places] < 0x80
    ends = np.flatnonzero(last)
    # Every integer ends in the range in which it begins.
    if len(places) and not last[(begins + lengths)[lengths > 0] - 1].all():
        raise _damaged("it ends inside a number", int(starts[0]))
    counts = np.diff(np.searchsorted(ends, begins), append=len(ends))
    firsts = np.concatenate([[0], ends[:-1] + 1]) if len(ends) else ends
    values, _ = _read_varints(buffer, places[firsts])
    return values, counts


def integers(data: bytes) -> list[int]:
    """Decodes packed integers, signed."""
    if data.isascii():
        return list(data)
    if len(data) > _MANY:
        return packed_integers(data, np.array([0]), np.array([len(data)]))[0].tolist()
    values = []
    value = shift = 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            value &= (1 << 64) - 1
            values.append(value - (1 << 64) if value >> 63 else value)
            value = shift = 0
    if shift:
        raise _damaged("it ends inside a number", 0)
    return values


def repeated_integers(data: bytes, number: int) -> list[int]:
    """Returns every integer of the repeated field `number` of a message, packed or not, signed."""
    values: list[int] = []
    for found, kind, start, stop in fields(data):
        if found == number and kind in (VARINT, BYTES):
            values += integers(data[start:stop])
    return values


def encode_number(number: int, value: int) -> bytes:
    """Encodes a varint field; negative numbers take ten bytes."""
    return encode_varint(number << 3 | VARINT) + encode_varint(value & (1 << 64) - 1)


def encode_packed(number: int, values: Sequence[int]) -> bytes:
    """Encodes a field of packed integers; nothing for none."""
    if not values:
        return b""
    return encode_field(number, b"".join([encode_varint(value & (1 << 64) - 1) for value in values]))
