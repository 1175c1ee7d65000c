"""What the operations of MLIR bytecode refer to by number: types, attributes, and locations, decoded when first asked for."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from unlower.ir.attributes import DenseElements, Symbol, Unparsed
from unlower.ir.module import Location
from unlower.ir.types import DTYPES, TensorType
from unlower.readers.constants import LONGEST_ELEMENT, dense_from_blob, dense_from_storage
from unlower.readers.elision import Elision
from unlower.readers.mlir_attributes import CODES, parse_structured
from unlower.readers.mlir_bytecode import Bytecode, Cursor, Reader, varint
from unlower.readers.mlir_texts import attribute_texts
from unlower.readers.mlir_types import decode_type, parse_type

__all__ = ["Table", "Tables"]

_NO_CODES: Mapping[int, Any] = MappingProxyType({})
_STRING, _CALL_SITE, _FILE, _FUSED, _NAMED, _FILE_RANGE = 2, 10, 11, 12, 14, 22
_MOST_FUSED = 8
_LOCATIONS = frozenset([*range(_CALL_SITE, 16), _FILE_RANGE])


class Table:
    """A table that decodes an entry when it is first asked for.

    Args:
      count: how many entries there are.
      decode: from the number of an entry to its value, never None.
    """

    __slots__ = ("_decode", "values")

    def __init__(self, count: int, decode: Callable[[int], Any]):
        self.values: list[Any] = [None] * count
        self._decode = decode

    def __getitem__(self, index: int) -> Any:
        value = self.values[index]
        if value is None:
            value = self.values[index] = self._decode(index)
        return value


class Tables:
    """The tables of one file.

    Args:
      bytecode: the file.
      elision: decides about constants without values.
      named: the locations that stand for some names.

    Attributes:
      types: by number; equal types are one object, an element type is its name.
      attributes: by number.
      locations: those asked for already, by number; False for one that is unknown, None for one not asked for.
      symbols: the functions that attributes decoded since this was last emptied refer to.
    """

    def __init__(self, bytecode: Bytecode, elision: Elision, named: Mapping[str, Location]):
        self._bytecode, self._data, self._elision = bytecode, bytecode.data, elision
        self._entries, self._named = bytecode.entries, named
        count = bytecode.attribute_count
        self.types = Table(bytecode.entry_count - count, self._read_type)
        self.attributes = Table(count, self._read_attribute)
        self.locations: list[Any] = [None] * count
        self.symbols: list[str] = []
        self._interned: dict[Any, Any] = {}
        self._places: dict[Any, Any] = {}
        self._frames: dict[int, tuple[str | None, int | None]] = {}
        self._reader = Reader(
            self.attributes.__getitem__,
            self.types.__getitem__,
            bytecode.string,
            self._read_resource,
            self._read_storage,
        )

    def _read_type(self, index: int) -> Any:
        dialect, encoded = self._bytecode.entry(self._bytecode.attribute_count + index)
        if isinstance(encoded, str):
            type_ = encoded if encoded in DTYPES else parse_type(encoded)
        else:
            type_ = decode_type(dialect, self._reader, encoded)
        return self._interned.setdefault(type_, type_)

    def _read_attribute(self, index: int) -> Any:
        code, at = self._code(index)
        if code == _STRING:  # most are names of locations
            return self._bytecode.string(varint(self._data, at)[0])
        dialect, encoded = self._bytecode.entry(index)
        if isinstance(encoded, str):
            return parse_structured(encoded)
        code = encoded.varint()
        decoder = CODES.get(dialect, {}).get(code)
        if decoder is None:
            return self._unknown(index)
        try:
            value = decoder(self._reader, encoded)
        except LookupError:
            return self._unknown(index)
        if type(value) is Symbol:
            self.symbols.append(value)
        return value

    def _unknown(self, index: int) -> Any:
        """Asks MLIR for the text of an attribute without a structure here, and of all others without a decoder."""
        bytecode, unknown = self._bytecode, [index]
        for i in range(bytecode.attribute_count):
            dialect, encoded = bytecode.entry(i)
            if isinstance(encoded, Cursor):
                code = encoded.varint()
                if code not in CODES.get(dialect, _NO_CODES) and (dialect != "builtin" or code not in _LOCATIONS):
                    unknown.append(i)
        location = next(i for i in range(bytecode.attribute_count) if self._code(i)[0] in _LOCATIONS)
        for i, text in zip(unknown, attribute_texts(bytecode, unknown, location), strict=True):
            self.attributes.values[i] = parse_structured(text)
        return self.attributes.values[index]

    def _read_resource(self, index: int, type_: Any) -> Any:
        name, blob = self._bytecode.resource(index)
        if not isinstance(type_, TensorType):
            return Unparsed(f"dense_resource<{name}> : {type_}")
        if blob is None:
            return self._elision.fill(name, type_)
        self._elision.count(len(blob))
        return dense_from_blob(blob, type_, name)

    def _read_storage(self, blob: memoryview, type_: TensorType) -> DenseElements:
        marks = self._elision.marks
        name = marks.get(bytes(blob)) if marks and len(blob) <= LONGEST_ELEMENT else None
        if name is not None:
            return self._elision.fill(name, type_)
        self._elision.count(len(blob))
        return dense_from_storage(blob, type_)

    def location(self, index: int) -> Location | None:
        """Returns a location: its name, and the line of the innermost frame. The table holds False for one that is unknown."""
        found = self.locations[index]
        if found is None:
            name, place = None, index
            code, at = self._code(index)
            if code == _NAMED:
                name, at = varint(self._data, at)
                place, _ = varint(self._data, at)
                name = self.attributes.values[name] or self.attributes[name]
                if name in self._named:
                    found = self.locations[index] = self._named[name]
                    return found
            elif code == _FUSED:
                return self._fused(index, at)
            key = (name, *(self._frames.get(place) or self._frame(place)))
            found = self._places.get(key)
            if found is None:
                found = self._places[key] = Location(*key) if key != (None, None, None) else False
            self.locations[index] = found
        return found or None

    def _fused(self, index: int, at: int) -> Location | None:
        """Returns a location that XLA's converter made of an instruction's name and source line, side by side."""
        parts: list[Location] = []
        count, at = varint(self._data, at)
        for _ in range(min(count, _MOST_FUSED)):
            part, at = varint(self._data, at)
            found = None if self._code(part)[0] == _FUSED else self.location(part)
            if found is not None:
                parts.append(found)
        name = next((part.name for part in parts if part.name), None)
        file, line = next(((part.file, part.line) for part in parts if part.file), (None, None))
        known = (name, file, line) != (None, None, None)
        self.locations[index] = Location(name, file, line) if known else False
        return self.locations[index] or None

    def _frame(self, index: int) -> tuple[str | None, int | None]:
        """Returns file and line of a location, of the innermost frame where there are several. Many names share one."""
        frame = self._frames.get(index)
        if frame is None:
            data = self._data
            frame = None, None
            code, at = self._code(index)
            if code == _CALL_SITE:
                frame = self._frame(varint(data, at)[0])
            elif code == _NAMED:
                # A frame of Python: `"function"("file":line)`.
                _, at = varint(data, at)
                code, at = self._code(varint(data, at)[0])
            if code in (_FILE, _FILE_RANGE):
                file, at = varint(data, at)
                if code == _FILE_RANGE:  # a list: line, column, and where it ends
                    _, at = varint(data, at)
                file = self.attributes[file]
                # A dash is MLIR's own: the place in the text that was read.
                frame = "<text>" if file == "-" else file, varint(data, at)[0]
            self._frames[index] = frame
        return frame

    def _code(self, index: int) -> tuple[int, int]:
        """Returns the code of a builtin attribute, and where what it holds starts; -1 for any other."""
        dialect, encoded, start, _ = self._entries[index]
        if dialect != "builtin" or not encoded:
            return -1, start
        code = self._data[start]
        return (code >> 1, start + 1) if code & 1 else varint(self._data, start)
