"""The container of MLIR bytecode: sections, strings, and the tables of attributes, types and resources.

Source: "MLIR Bytecode Format" of the MLIR documentation, versions 2 to 6. The tables are decoded entry by entry, when one
is asked for; `mlir_attributes.py` and `mlir_types.py` know what the bytes of an entry mean. Nothing of MLIR runs here.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from unlower.errors import FormatError

__all__ = [
    "DIALECTS",
    "ENTRIES",
    "MAGIC",
    "OFFSETS",
    "PROPERTIES",
    "STRINGS",
    "Bytecode",
    "Cursor",
    "Groups",
    "Reader",
    "Section",
    "dialect_strings",
    "encode_varint",
    "entry_groups",
    "header_stop",
    "sections",
    "string_lengths",
    "varint",
]

MAGIC = b"ML\xefR"
STRINGS, DIALECTS, ENTRIES, OFFSETS, _IR, _RESOURCES, _RESOURCE_OFFSETS, _VERSIONS, PROPERTIES = range(9)
_NEEDED = {STRINGS: "strings", DIALECTS: "dialects", ENTRIES: "attributes", OFFSETS: "offsets", _IR: "operations"}


def varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """Reads MLIR's variable-length integer at `at`; returns it, and where it ends.

    The zeros at the low end of the first byte count the bytes that follow.

    Example:
      >>> varint(bytes([0x0B]), 0), varint(bytes([0x06, 0x04]), 0)
      ((5, 1), (257, 2))
    """
    first = data[at]
    if first & 1:
        return first >> 1, at + 1
    if first & 2:
        return (first | data[at + 1] << 8) >> 2, at + 2
    if first == 0:
        return int.from_bytes(data[at + 1 : at + 9], "little"), at + 9
    size = (first & -first).bit_length()
    return int.from_bytes(data[at : at + size], "little") >> size, at + size


def encode_varint(value: int) -> bytes:
    """Writes MLIR's variable-length integer.

    Example:
      >>> encode_varint(5).hex(), encode_varint(257).hex()
      ('0b', '0604')
    """
    size = max(1, -(-value.bit_length() // 7))
    if size > 8:
        return b"\0" + value.to_bytes(8, "little")
    return (value << size | 1 << (size - 1)).to_bytes(size, "little")


Groups = list[tuple[int, list[tuple[bool, int, int]]]]
"""Attributes and types by dialect; see `entry_groups`."""


class Section(NamedTuple):
    """A section of a file: its number, its alignment (1 for none), where its bytes start and stop."""

    key: int
    alignment: int
    start: int
    stop: int


def sections(data: bytes | memoryview) -> Iterator[Section]:
    """Yields the sections in the order of the file; raises IndexError or ValueError where it is damaged."""
    at = header_stop(data)
    while at < len(data):
        key = data[at]
        length, at = varint(data, at + 1)
        alignment = 1
        if key & 0x80:
            alignment, at = varint(data, at)
            if alignment == 0:
                raise ValueError("an alignment of zero bytes")
            at += -at % alignment
        yield Section(key & 0x7F, alignment, at, at + length)
        at += length


def header_stop(data: bytes | memoryview) -> int:
    """Returns where the version and the name of the producer end, and the sections begin."""
    _, at = varint(data, len(MAGIC))
    while data[at]:
        at += 1
    return at + 1


def string_lengths(data: bytes | memoryview, at: int) -> tuple[list[int], int]:
    """Reads how long the strings of a string section are, their zeros included; returns that, and where the first begins."""
    count, at = varint(data, at)
    lengths = []
    for _ in range(count):
        length = data[at]
        if length & 1:  # most are short
            length >>= 1
            at += 1
        else:
            length, at = varint(data, at)
        lengths.append(length)
    # Listed from the last string to the first.
    return lengths[::-1], at


def dialect_strings(data: bytes | memoryview, at: int, version: int) -> tuple[list[int], int]:
    """Reads which strings name the dialects, and where their table ends, in a version of the format."""
    count, at = varint(data, at)
    names = []
    for _ in range(count):
        name, at = varint(data, at)
        if version > 0:
            name, has_version = name >> 1, name & 1
            if has_version:  # as a section
                length, at = varint(data, at + 1)
                at += length
        names.append(name)
    return names, at


def entry_groups(data: bytes | memoryview, offsets: tuple[int, int], entries: tuple[int, int]) -> tuple[int, Groups]:
    """Reads the table of attributes and types.

    Args:
      data: the file.
      offsets: where the section of offsets starts and stops.
      entries: where that of the entries does.

    Returns:
      how many entries are attributes; the types follow them. And the entries by dialect: the number of the dialect, and for
      each entry whether it is in the dialect's own encoding, where it starts and where it stops.

    Raises:
      ValueError: an entry ends after its section.
    """
    at, stop = offsets
    attributes, at = varint(data, at)
    _, at = varint(data, at)
    start, limit = entries
    groups: Groups = []
    while at < stop:
        dialect, at = varint(data, at)
        count, at = varint(data, at)
        group = []
        for _ in range(count):
            size = data[at]
            if size & 1:  # most are small
                size >>= 1
                at += 1
            else:
                size, at = varint(data, at)
            end = start + (size >> 1)
            group.append((bool(size & 1), start, end))
            start = end
        groups.append((dialect, group))
    if start > limit:
        raise ValueError("an attribute ends after its section")
    return attributes, groups


class Cursor:
    """A place in the bytes of one entry."""

    __slots__ = ("_data", "at", "stop")

    def __init__(self, data: bytes, at: int, stop: int):
        self._data, self.at, self.stop = data, at, stop

    def varint(self) -> int:
        """Reads an unsigned integer."""
        value, self.at = varint(self._data, self.at)
        return value

    def signed(self) -> int:
        """Reads a signed integer: its lowest bit is the sign."""
        value, self.at = varint(self._data, self.at)
        return (value >> 1) ^ -(value & 1)

    def signed_list(self) -> tuple[int, ...]:
        """Reads a number, and as many signed integers."""
        return tuple([self.signed() for _ in range(self.varint())])

    def byte(self) -> int:
        """Reads one byte."""
        value = self._data[self.at]
        self.at += 1
        return value

    def blob(self) -> memoryview:
        """Reads a size in bytes, and as many bytes."""
        size = self.varint()
        start, self.at = self.at, self.at + size
        if self.at > self.stop:
            raise ValueError("a blob ends after its entry")
        return memoryview(self._data)[start : self.at]


class Bytecode:
    """A file of MLIR bytecode, taken apart as far as the tables.

    Args:
      data: the file.

    Attributes:
      data: the file.
      version: of the format, 2 to 6.
      dialects: the names of the dialects.
      op_names: dialect and mnemonic of each kind of operation.
      entries: of attributes, then types: the dialect, whether in its own encoding, where it starts and stops.
      entry_count: how many attributes and types there are.
      attribute_count: how many of the entries are attributes; the types follow them.
      ir: where the section of operations starts.

    Raises:
      FormatError: damaged bytes.
    """

    def __init__(self, data: bytes):
        self.data = data
        try:
            self._sections = self._find_sections()
            missing = [name for key, name in _NEEDED.items() if key not in self._sections]
            if missing:
                raise ValueError(f"without a section of {', '.join(missing)}")
            self._strings = self._read_strings()
            self.dialects, self.op_names = self._read_dialects()
            self.attribute_count, self.entries = self._read_entries()
            self.entry_count = len(self.entries)
            self._resources: list[tuple[str, memoryview | None]] | None = None
        except (IndexError, ValueError, ZeroDivisionError) as error:
            raise FormatError(f"damaged MLIR bytecode: {error}", mend="copy or write the file again") from None
        self.ir = self._sections[_IR][0]

    def _find_sections(self) -> dict[int, tuple[int, int]]:
        self.version, _ = varint(self.data, len(MAGIC))
        if not 2 <= self.version <= 6:
            raise ValueError(f"version {self.version} of the format, not 2 to 6")
        found: dict[int, tuple[int, int]] = {}
        for key, _, start, stop in sections(self.data):
            if stop > len(self.data):
                raise ValueError("a section ends after the file")
            found[key] = start, stop
        return found

    def _read_strings(self) -> list[bytes]:
        """The strings, without their zero."""
        start, stop = self._sections[STRINGS]
        lengths, at = string_lengths(self.data, start)
        strings = []
        for length in lengths:
            strings.append(self.data[at : at + length - 1])
            at += length
        if at > stop:
            raise ValueError("a string ends after its section")
        return strings

    def string(self, index: int) -> str:
        """Returns a string; bytes that are not UTF-8 (names and configs may hold some) become surrogates."""
        return self._strings[index].decode("utf-8", "surrogateescape")

    def _read_dialects(self) -> tuple[list[str], list[str]]:
        data, (at, stop) = self.data, self._sections[DIALECTS]
        numbers, at = dialect_strings(data, at, self.version)
        dialects = list(map(self.string, numbers))
        if self.version >= 4 or at < stop:
            _, at = varint(data, at)  # the number of operation names
        names = []
        while at < stop:
            dialect, at = varint(data, at)
            count, at = varint(data, at)
            for _ in range(count):
                name, at = varint(data, at)
                if self.version >= 5:  # the lowest bit says whether the dialect defines it
                    name >>= 1
                names.append(f"{dialects[dialect]}.{self.string(name)}")
        return dialects, names

    def _read_entries(self) -> tuple[int, list[tuple[str, bool, int, int]]]:
        attributes, groups = entry_groups(self.data, self._sections[OFFSETS], self._sections[ENTRIES])
        return attributes, [(self.dialects[dialect], *entry) for dialect, group in groups for entry in group]

    def section(self, key: int) -> bytes:
        """Returns the bytes of a section, by its number in the format."""
        start, stop = self._sections[key]
        return self.data[start:stop]

    def span(self, key: int) -> tuple[int, int]:
        """Returns where a section starts and stops; the same place twice if there is none."""
        return self._sections.get(key, (0, 0))

    def entry(self, index: int) -> tuple[str, Cursor | str]:
        """Returns the dialect of an attribute or type, and its encoded bytes, or its text where it has no encoding."""
        dialect, encoded, start, stop = self.entries[index]
        if encoded:
            return dialect, Cursor(self.data, start, stop)
        return dialect, self.data[start:stop].rstrip(b"\0").decode("utf-8", "surrogateescape")

    def resource(self, index: int) -> tuple[str, memoryview | None]:
        """Returns the name and the bytes of a resource that attributes refer to; None where it has no bytes."""
        if self._resources is None:
            self._resources = self._read_resources()
        return self._resources[index]

    def _read_resources(self) -> list[tuple[str, memoryview | None]]:
        data = self.data
        if _RESOURCE_OFFSETS not in self._sections:
            return []
        at, stop = self._sections[_RESOURCE_OFFSETS]
        place = self._sections.get(_RESOURCES, (0, 0))[0]
        external, at = varint(data, at)
        resources: list[tuple[str, memoryview | None]] = []
        group = 0
        while at < stop:
            _, at = varint(data, at)
            count, at = varint(data, at)
            for _ in range(count):
                key, at = varint(data, at)
                size, at = varint(data, at)
                kind, at = data[at], at + 1
                if group >= external:
                    resources.append((self.string(key), self._blob(place) if size and kind == 0 else None))
                place += size
            group += 1
        return resources

    def _blob(self, at: int) -> memoryview:
        alignment, at = varint(self.data, at)
        size, at = varint(self.data, at)
        at += -at % alignment if alignment else 0
        return memoryview(self.data)[at : at + size]


class Reader(NamedTuple):
    """What the decoder of an attribute or a type may ask for.

    Attributes:
      attribute: the attribute of a number.
      type: the type of a number; an element type is its name.
      string: the string of a number.
      resource: from the number of a resource and its type to its data.
      storage: from the bytes of a dense attribute and its type to its data.
    """

    attribute: Callable[[int], Any]
    type: Callable[[int], Any]
    string: Callable[[int], str]
    resource: Callable[[int, Any], Any]
    storage: Callable[[memoryview, Any], Any]
