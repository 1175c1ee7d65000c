"""FlatBuffers, as far as files need it: tables, vectors, strings, read in place and checked against the buffer's bounds.

A table starts with a signed offset to its vtable, which holds its size, the table's size, and the place of each field in the
table (0: the field has its default). References are unsigned and point forward, so no chain of them is endless.
Source: "FlatBuffer Internals" of the FlatBuffers documentation.
"""

import builtins
import struct
from typing import Any

from unlower.errors import FormatError

__all__ = ["Table", "root_table"]

_MEND = "copy or write the file again; it is cut off or changed"


def root_table(data: bytes) -> "Table":
    """Returns the root table of a buffer.

    Raises:
      FormatError: the buffer does not start as a FlatBuffer does.
    """
    return Table(data, _reference(data, 0))


class Table:
    """A table. Fields are named by their position in the schema; a missing one has the default.

    Attributes:
      position: where the table starts, in bytes.

    Raises:
      FormatError: from every method, where an offset leads out of the buffer.
    """

    __slots__ = ("_data", "_places", "_size", "position")

    def __init__(self, data: builtins.bytes, position: int):
        self._data, self.position = data, position
        vtable = position - _unpack(data, "<i", position)
        size, self._size = _unpack(data, "<H", vtable), _unpack(data, "<H", vtable + 2)
        if size < 4 or size % 2 or self._size < 4 or vtable + size > len(data) or position + self._size > len(data):
            raise _damaged(f"a table of {self._size} bytes with a vtable of {size}", position)
        self._places = struct.unpack_from(f"<{size // 2 - 2}H", data, vtable + 4)

    def has(self, field: int) -> bool:
        """Whether the field is there."""
        return self._place(field) is not None

    def number(self, field: int, kind: str, default: int = 0) -> int:
        """Reads a scalar; `kind` is a letter of `struct`: `b`, `B`, `h`, `H`, `i`, `I`, `?`."""
        place = self._place(field)
        if place is None:
            return default
        if place + struct.calcsize(kind) > self.position + self._size:
            raise _damaged(f"field {field} stands outside its table", self.position)
        return int(_unpack(self._data, f"<{kind}", place))

    def table(self, field: int) -> "Table | None":
        """Reads a table."""
        place = self._place(field)
        return None if place is None else Table(self._data, _reference(self._data, place))

    def string(self, field: int) -> str | None:
        """Reads a string."""
        place = self._place(field)
        return None if place is None else _string(self._data, _reference(self._data, place))

    def bytes(self, field: int) -> builtins.bytes | None:
        """Reads a vector of bytes."""
        place = self._place(field)
        if place is None:
            return None
        start, count = _vector(self._data, _reference(self._data, place), 1)
        return self._data[start : start + count]

    def begins(self, field: int, prefix: builtins.bytes) -> bool:
        """Whether a vector of bytes is there and begins with `prefix`."""
        place = self._place(field)
        if place is None:
            return False
        start, count = _vector(self._data, _reference(self._data, place), 1)
        return self._data.startswith(prefix, start, start + count)

    def numbers(self, field: int, kind: str) -> tuple[int, ...]:
        """Reads a vector of scalars; empty where the field is missing."""
        place = self._place(field)
        if place is None:
            return ()
        start, count = _vector(self._data, _reference(self._data, place), struct.calcsize(kind))
        return struct.unpack_from(f"<{count}{kind}", self._data, start)

    def tables(self, field: int) -> "list[Table]":
        """Reads a vector of tables; empty where the field is missing."""
        return [Table(self._data, at) for at in self._references(field)]

    def strings(self, field: int) -> tuple[str, ...]:
        """Reads a vector of strings; empty where the field is missing."""
        return tuple([_string(self._data, at) for at in self._references(field)])

    def _references(self, field: int) -> list[int]:
        place = self._place(field)
        if place is None:
            return []
        start, count = _vector(self._data, _reference(self._data, place), 4)
        return [_reference(self._data, start + 4 * i) for i in range(count)]

    def _place(self, field: int) -> int | None:
        offset = self._places[field] if field < len(self._places) else 0
        if not offset:
            return None
        if not 4 <= offset < self._size:
            raise _damaged(f"field {field} stands outside its table", self.position)
        return self.position + offset


def _reference(data: bytes, at: int) -> int:
    offset = _unpack(data, "<I", at)
    if offset < 4 or at + offset + 4 > len(data):
        raise _damaged(f"a reference over {offset} bytes", at)
    return at + offset


def _vector(data: bytes, at: int, size: int) -> tuple[int, int]:
    count = _unpack(data, "<I", at)
    if at + 4 + count * size > len(data):
        raise _damaged(f"a vector of {count} elements", at)
    return at + 4, count


def _string(data: bytes, at: int) -> str:
    start, count = _vector(data, at, 1)
    try:
        return data[start : start + count].decode()
    except UnicodeDecodeError:
        raise _damaged("a string that is not UTF-8", at) from None


def _unpack(data: bytes, kind: str, at: int) -> Any:
    if at < 0 or at + struct.calcsize(kind) > len(data):
        raise _damaged("an offset out of the buffer", at)
    return struct.unpack_from(kind, data, at)[0]


def _damaged(what: str, at: int) -> FormatError:
    return FormatError(f"damaged FlatBuffer: {what}", where=f"byte {at}", mend=_MEND)
