"""Checks of MLIR bytecode that stand before MLIR's own reader, which ends the process, or never ends, on some damage.

The tables of a file (strings, dialects, attributes, types, resources) must be what `mlir_bytecode` says of them; each
attribute and type must hold what its code asks for, refer to what is there and is of the right kind, and never to itself.
What operations hold is left to MLIR, which checks it. Source: `BuiltinDialectBytecode.td` of MLIR; StableHLO's
`VhloBytecode.cpp` and `StablehloBytecode.cpp`; Shardy's `bytecode.td`. Codes and dialects that are not listed here are no
damage: nobody can say.
"""

import math
from collections.abc import Callable, Mapping

from unlower.readers.mlir_bytecode import (
    DIALECTS,
    ENTRIES,
    MAGIC,
    OFFSETS,
    STRINGS,
    Cursor,
    Section,
    dialect_strings,
    entry_groups,
    header_stop,
    sections,
    string_lengths,
    varint,
)
from unlower.readers.mlir_types import UNKNOWN_SIZE

__all__ = ["DamageError", "UnknownError", "guard_bytecode"]

_IR, _RESOURCES, _RESOURCE_OFFSETS, _PROPERTIES = 4, 5, 6, 8
_ONE_OPERATION = 1 << 1
"""How a block of one operation and no arguments begins."""

_LAST_SECTION, _LAST_VERSION = 8, 6
_DEEPEST = 1000
"""References in a row, from which on MLIR's reader may run out of stack."""


class DamageError(ValueError):
    """The file is damaged; the message says where."""


class UnknownError(ValueError):
    """The file holds what cannot be checked here, and may be whole."""


def _forms(text: str) -> dict[int, str]:
    """A table by code, written as `code=form` or `first-last=form`."""
    table = {}
    for codes, form in (entry.split("=") for entry in text.split()):
        first, _, last = codes.partition("-")
        table |= dict.fromkeys(range(int(first), int(last or first) + 1), form)
    return table


# `n` an unsigned number, `i` a signed one, `b` a byte, `g` a string, `r` a resource; `t` a type, `a` an attribute, `o` one or
# none, `s` a string attribute, `l` a location, `y` a symbol; in capitals, a number and as many of them; `P` pairs of names and
# values, `D` of attributes; `e` and a digit, an enumeration of so many cases.
_FORMS = {
    b"builtin": _forms("0=A 1=P 2=g 3=gt 4=s 5=sY 6=t 7= 10=ll 11=snn 12=L 13=La 14=sl 15= 16=tr 22=sN"),
    b"vhlo": _forms("0=IiIn 1=A 2=n 3=e6 4-5=e5 6=D 7=e4 10=IiI 11-13=e3 14=g 16=e4 17=t 18=I 19=e3"),
    b"stablehlo": _forms(
        "1=ii 2=e6 3=e5 4=iiIiiIiiI 5=IIII 6=e4 7=IIIIIi 8-10=e3 11=IIIIIi 12=e4 13=I 14=IiI 15=tttiiib 16=e3"
    ),
    b"chlo": _forms("0=e6 1=e5"),
    b"sdy": _forms(
        "0=S 1=gi 2=AI 3=ii 4=go 5=Abn 6=aAA 7=A 8=I 9=A 10=IAAIIIIb 11-12=A 13=Aii 14=A 15=aAAA 16=A 17=aAAAi"
    ),
}
"""What attributes hold, by dialect and code."""

_TYPE_FORMS = {
    b"builtin": _forms("1= 2=TT 3-6= 9=t 12= 15=T 18=t 21-32="),
    b"vhlo": _forms("0= 1=t 2-7= 8=TT 9-19= 22= 23=T 25=t 26-40="),
    b"stablehlo": _forms("0= 1=T"),
}
"""What types hold, likewise."""

_TENSORS = {b"builtin": (13, 14), b"vhlo": (20, 21)}
_STRING, _SYMBOL, _LOCATIONS = 2, 4, frozenset([*range(10, 16), 22])
_COMPLEX = {b"builtin": 9, b"vhlo": 1}
_WIDTHS = {
    b"builtin": _forms("1=64 3-4=16 5=32 6=64 21=19 22-32=8"),
    b"vhlo": _forms(
        "0=1 2-3=16 4=32 5=64 6-7=8 9=64 10=4 11=8 12=16 13=32 14=64 15=4 16=8 17=16 18=32 19=64 27-29=8 31-32=2 34=19"
    )
    | _forms("35-40=8"),
}
"""Code of a type without parts -> how many bits a number of it has; those below a byte count as one where they are stored."""


def guard_bytecode(data: bytes) -> None:
    """Checks the tables of a file.

    Raises:
      DamageError: it is damaged.
      UnknownError: it has attributes or types that are not known here.
    """
    try:
        _Tables(data).check()
    except (IndexError, KeyError) as error:
        raise DamageError("it is cut off, or refers to what is not there") from error
    except UnicodeDecodeError as error:
        raise UnknownError("a string that is not UTF-8") from error
    except ValueError as error:
        raise error if isinstance(error, DamageError | UnknownError) else DamageError(str(error)) from error


class _Tables:
    """The tables of one file, and what was found of each entry."""

    def __init__(self, data: bytes):
        self._data = data
        self._sections = self._find_sections()
        self._version, start = varint(data, len(MAGIC))
        # MLIR quotes the producer in its errors, as it does names.
        data[start : header_stop(data)].decode()
        names = self._strings()
        self._dialects = self._read_dialects(names)
        self._resource_count = self._count_resources()
        offsets, entries = self._sections[OFFSETS], self._sections[ENTRIES]
        self._attributes, groups = entry_groups(data, offsets[2:], entries[2:])
        self._types, _ = varint(data, varint(data, offsets.start)[1])
        self._entries = [(self._dialects[dialect], *entry) for dialect, group in groups for entry in group]
        if len(self._entries) != self._attributes + self._types:
            raise DamageError(f"{len(self._entries)} attributes and types, not {self._attributes} and {self._types}")
        if self._entries and self._entries[-1][3] != entries.stop:
            raise DamageError("the attributes do not end where their section does")
        # Of each entry its code, -1 where it stands as text.
        self._codes = [varint(data, start)[0] if encoded else -1 for _, encoded, start, _ in self._entries]

    def check(self) -> None:
        """Checks each entry, and that none leads to itself; and that there is one operation at the top, as every writer has."""
        if varint(self._data, self._sections[_IR].start)[0] != _ONE_OPERATION:
            raise DamageError("not one operation at its top")
        edges: list[tuple[int, ...]] = []
        unknown = None
        for index, entry in enumerate(self._entries):
            try:
                edges.append(self._check_entry(index, *entry))
            except UnknownError as error:
                unknown = error
                edges.append(())
            except (IndexError, ValueError) as error:
                what = "attribute" if index < self._attributes else "type"
                said = "it is cut off" if isinstance(error, IndexError) else error
                raise DamageError(f"{what} {index} of {entry[0].decode()}: {said}") from None
        if unknown is not None:
            raise unknown
        _check_depth(edges)

    # --- the tables

    def _find_sections(self) -> dict[int, Section]:
        found: dict[int, Section] = {}
        stop = len(self._data)
        for section in sections(self._data):
            if section.key in found or section.key > _LAST_SECTION:
                raise DamageError(f"section {section.key} is there twice, or unknown")
            if section.stop > len(self._data):
                raise DamageError(f"section {section.key} ends after the file")
            found[section.key] = section
            stop = section.stop
        missing = [key for key in (STRINGS, DIALECTS, ENTRIES, OFFSETS, _IR) if key not in found]
        if missing or stop != len(self._data):
            raise DamageError(f"without section {missing[0]}" if missing else "bytes after the last section")
        return found

    def _strings(self) -> list[bytes]:
        data, section = self._data, self._sections[STRINGS]
        lengths, at = string_lengths(data, section.start)
        if at + sum(lengths) != section.stop:
            raise DamageError("the strings do not end where their section does")
        data[at : section.stop].decode()
        strings = []
        for length in lengths:
            if length < 1 or data[at + length - 1]:
                raise DamageError("a string without a zero at its end")
            strings.append(data[at : at + length - 1])
            at += length
        return strings

    def _read_dialects(self, strings: list[bytes]) -> list[bytes]:
        if self._version > _LAST_VERSION:
            raise UnknownError(f"version {self._version} of the format")
        self._string_count = len(strings)
        data, section = self._data, self._sections[DIALECTS]
        numbers, at = dialect_strings(data, section.start, self._version)
        dialects = [strings[number] for number in numbers]
        if self._version >= 4 and at < section.stop:
            _, at = varint(data, at)  # the number of operation names
        while at < section.stop:
            dialect, at = varint(data, at)
            count, at = varint(data, at)
            if dialect >= len(dialects) or count > section.stop - at:
                raise DamageError("operations of a dialect that is not there")
            for _ in range(count):
                name, at = varint(data, at)
                if (name >> 1 if self._version >= 5 else name) >= len(strings):
                    raise DamageError("an operation whose name is not there")
        if at != section.stop:
            raise DamageError("the dialects do not end where their section does")
        return dialects

    def _count_resources(self) -> int:
        """Checks the resources; returns how many attributes may refer to."""
        data, section = self._data, self._sections.get(_RESOURCE_OFFSETS)
        if section is None:
            return 0
        payload = self._sections.get(_RESOURCES)
        external, at = varint(data, section.start)
        size, referred, group = 0, 0, 0
        while at < section.stop:
            key, at = varint(data, at)
            count, at = varint(data, at)
            if count > section.stop - at or key >= (self._string_count if group < external else len(self._dialects)):
                raise DamageError("a resource of a dialect that is not there")
            for _ in range(count):
                name, at = varint(data, at)
                length, at = varint(data, at)
                kind, at = data[at], at + 1
                size += length
                if name >= self._string_count or kind > 2:
                    raise DamageError("a resource without a name, or of an unknown kind")
            referred += count if group >= external else 0
            group += 1
        if at != section.stop or group < external or size > (0 if payload is None else payload.stop - payload.start):
            raise DamageError("the resources do not end where their section does")
        return referred

    # --- attributes and types

    def _check_entry(self, index: int, dialect: bytes, encoded: bool, start: int, stop: int) -> tuple[int, ...]:
        """Checks one; returns the numbers of the entries that it refers to, types counted after the attributes."""
        data = self._data
        if not encoded:
            if stop <= start or data[stop - 1] or data.count(b"<", start, stop) + data.count(b"[", start, stop) > 200:
                raise DamageError("its text has no end, or nests too deeply")
            return ()
        code, is_attribute = self._codes[index], index < self._attributes
        special = _SPECIAL.get((dialect, code)) if is_attribute else _SPECIAL_TYPES.get((dialect, code))
        cursor = Cursor(data, start, stop)
        cursor.varint()
        if special is not None:
            edges = special(self, dialect, cursor)
        else:
            form = (_FORMS if is_attribute else _TYPE_FORMS).get(dialect, {}).get(code)
            if form is None:
                raise UnknownError(f"{'attribute' if is_attribute else 'type'} {code} of {dialect.decode()}")
            edges = self._fields(cursor, form)
        if cursor.at != stop:
            raise DamageError("it does not end where it should")
        return tuple(edges)

    def _fields(self, cursor: Cursor, form: str) -> list[int]:
        edges: list[int] = []
        if form[:1] == "e":
            case = cursor.varint()
            if case >= int(form[1:]):
                raise UnknownError(f"case {case} of an enumeration")
            return edges
        for letter in form:
            if letter == "o":
                encoded = cursor.varint()
                if encoded & 1:
                    edges.append(self._reference(encoded >> 1, "a"))
            elif letter in "PD":
                for _ in range(self._size(cursor)):
                    edges += [self._field(cursor, "s" if letter == "P" else "a"), self._field(cursor, "a")]
            elif letter.isupper():
                found = [self._field(cursor, letter.lower()) for _ in range(self._size(cursor))]
                edges += found if letter not in "NI" else []
            else:
                found = self._field(cursor, letter)
                edges += [found] if letter in "taysl" else []
        return edges

    def _size(self, cursor: Cursor) -> int:
        size = cursor.varint()
        if size > cursor.stop - cursor.at:
            raise DamageError(f"a list of {size} in fewer bytes")
        return size

    def _field(self, cursor: Cursor, letter: str) -> int:
        """Reads a field; of a reference, returns the number of the entry."""
        if letter == "b":
            return cursor.byte()
        value = cursor.varint()
        return value if letter in "ni" else self._reference(value, letter)

    def _reference(self, value: int, letter: str) -> int:
        limit = {"g": self._string_count, "r": self._resource_count, "t": self._types}.get(letter, self._attributes)
        if value >= limit:
            raise DamageError(f"it refers to number {value} of {limit}")
        if letter == "t":
            return value + self._attributes
        if letter in "syl":
            dialect, code = self._entries[value][0], self._codes[value]
            wanted = code == _STRING if letter == "s" else code == _SYMBOL if letter == "y" else code in _LOCATIONS
            if dialect != b"builtin" or not wanted:
                raise DamageError(f"it refers to attribute {value}, which is of another kind")
        return value

    def _number_type(self, cursor: Cursor) -> tuple[int, int]:
        """Reads a reference to the type of a number; returns that, and how many bits a number has."""
        index = self._field(cursor, "t")
        return index, self._bits(index)

    def _bits(self, index: int) -> int:
        dialect, encoded, start, stop = self._entries[index]
        code = self._codes[index]
        if dialect == b"builtin" and code == 0:
            return varint(self._data, start + 1)[0] >> 2
        if encoded and code == _COMPLEX.get(dialect):
            part = Cursor(self._data, start + 1, stop)
            return 2 * _stored(self._bits(self._field(part, "t")), of_complex=True)
        width = _WIDTHS.get(dialect, {}).get(code)
        if width is None:
            raise UnknownError(f"numbers of type {code} of {dialect.decode()}")
        return int(width)

    def number(self, dialect: bytes, cursor: Cursor) -> list[int]:
        """Checks a number: its type, its bits."""
        index, bits = self._number_type(cursor)
        if bits > 64:
            raise UnknownError("numbers of more than 64 bits")
        if bits <= 8:
            cursor.byte()
        else:
            cursor.varint()
        return [index]

    def accuracy(self, dialect: bytes, cursor: Cursor) -> list[int]:
        """Checks how accurate a result is to be: two numbers of 64 bits, one of ulps, the mode."""
        for _ in range(3):
            cursor.varint()
        return [self._field(cursor, "a")]

    def dense_array(self, dialect: bytes, cursor: Cursor) -> list[int]:
        """Checks an array of numbers: as many bytes as it says."""
        index, bits = self._number_type(cursor)
        count, size = cursor.varint(), len(cursor.blob())
        if size != count * _stored(bits) // 8:
            raise DamageError(f"{count} numbers of {bits} bits in {size} bytes")
        return [index]

    def dense(self, dialect: bytes, cursor: Cursor) -> list[int]:
        """Checks the data of a tensor: all elements, or one that stands for all."""
        index = self._field(cursor, "t")
        size = len(cursor.blob())
        of, _, start, stop = self._entries[index]
        if self._codes[index] not in _TENSORS.get(of, ()):
            raise UnknownError("data of what is no tensor")
        type_ = Cursor(self._data, start, stop)
        if type_.varint() == _TENSORS[of][1]:
            self._field(type_, "a")
        elements = math.prod(type_.signed_list())
        bits = self._bits(self._field(type_, "t"))
        width = _stored(bits) // 8
        allowed = {width, elements * width} | ({(elements + 7) // 8} if bits == 1 else set())
        if elements < 0 or size not in allowed:
            raise DamageError(f"{elements} elements of {width} bytes in {size} bytes")
        return [index]

    def tensor(self, dialect: bytes, cursor: Cursor) -> list[int]:
        """Checks the type of a tensor: its sizes, and what its elements are."""
        edges = []
        if self._code_of(cursor) == _TENSORS[dialect][1]:
            edges.append(self._field(cursor, "a"))
        count = self._size(cursor)
        for _ in range(count):
            size = cursor.signed()
            if size < 0 and size != UNKNOWN_SIZE:
                raise DamageError(f"a size of {size}")
        element = self._field(cursor, "t")
        of, code = self._entries[element][0], self._codes[element]
        if code in _TENSORS.get(of, ()):
            raise DamageError("a tensor of tensors")
        return [*edges, element]

    def _code_of(self, cursor: Cursor) -> int:
        """The code of the entry whose fields `cursor` is at: a single byte, of the tensors."""
        return self._data[cursor.at - 1] >> 1

    def integer(self, dialect: bytes, cursor: Cursor) -> list[int]:
        """Checks an integer type: its width, and whether it has a sign."""
        encoded = cursor.varint()
        if encoded & 3 == 3 or not 1 <= encoded >> 2 <= 64:
            raise DamageError(f"integers of {encoded >> 2} bits")
        return []


def _stored(bits: int, *, of_complex: bool = False) -> int:
    """How many bits a number takes in memory."""
    return 32 if bits == 19 else max(8, 1 << (bits - 1).bit_length()) if not of_complex else max(8, bits)


def _check_depth(edges: list[tuple[int, ...]]) -> None:
    """Finds entries that lead to themselves, and chains that are too long for MLIR's reader."""
    depths = [0] * len(edges)  # 0 not seen, -1 being looked at
    for root in range(len(edges)):
        if depths[root]:
            continue
        stack = [root]
        while stack:
            index = stack[-1]
            if depths[index] == 0:
                depths[index] = -1
                for other in edges[index]:
                    if depths[other] == 0:
                        stack.append(other)
                    elif depths[other] < 0:
                        raise DamageError(f"entry {other} of the attributes and types leads to itself")
            else:
                stack.pop()
                if depths[index] < 0:
                    depths[index] = depth = 1 + max([depths[other] for other in edges[index]], default=0)
                    if depth > _DEEPEST:
                        raise UnknownError(f"{depth} attributes inside each other")


_SPECIAL: Mapping[tuple[bytes, int], Callable[[_Tables, bytes, Cursor], list[int]]] = {
    (b"builtin", 8): _Tables.number,
    (b"builtin", 9): _Tables.number,
    (b"builtin", 17): _Tables.dense_array,
    (b"builtin", 18): _Tables.dense,
    (b"vhlo", 8): _Tables.number,
    (b"vhlo", 9): _Tables.number,
    (b"vhlo", 15): _Tables.dense,
    (b"vhlo", 20): _Tables.accuracy,
    (b"stablehlo", 17): _Tables.accuracy,
}
_SPECIAL_TYPES: Mapping[tuple[bytes, int], Callable[[_Tables, bytes, Cursor], list[int]]] = {
    (b"builtin", 0): _Tables.integer,
    (b"builtin", 13): _Tables.tensor,
    (b"builtin", 14): _Tables.tensor,
    (b"vhlo", 20): _Tables.tensor,
    (b"vhlo", 21): _Tables.tensor,
}
