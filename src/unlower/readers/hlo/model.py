"""An `HloModuleProto`, decoded as far as checks and rewrites need: columns over all instructions, the rest on demand."""

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from unlower.errors import FormatError
from unlower.readers.hlo.faults import Fault
from unlower.readers.hlo.shapes import Shape, Shapes
from unlower.readers.hlo.wire import Table, decode_fields, integers, packed_integers
from unlower.readers.wire import BYTES, VARINT, Field, fields

__all__ = ["Computation", "Model", "Ragged", "Value", "read_model", "utf8"]

_MODULE_MEND = "the file is damaged or was changed; write it again"

_REPEATED = frozenset([14, 17, 20, 32, 34, 36, 37, 38, 49, 52, 57, 74, 86])
_LAST_KNOWN = 103
"""The fields of an instruction that may occur more than once, and the last whose meaning is known here."""

_IN_COLUMNS = [1, 2, 3, 7, 9, 13, 14, 35, 36, 38, 82]
"""Fields of an instruction that are read for all instructions at once, or (7, 82: metadata, statistics) not at all."""

_IS_IN_COLUMNS = np.isin(np.arange(_LAST_KNOWN + 2), _IN_COLUMNS)
_NONE: dict[int, "list[Value]"] = {}


class Value(NamedTuple):
    """One value of a field: `data[start:stop]`."""

    kind: int
    start: int
    stop: int


class Ragged:
    """A list of integers for each instruction, in one array.

    Attributes:
      values: all integers, the first instruction's first.
      offsets: where each instruction's begin; one more entry ends the last.
    """

    def __init__(self, data: bytes, rows: Table, count: int):
        order = np.argsort(rows.owner, kind="stable")
        values, counts = packed_integers(data, rows.start[order], rows.stop[order])
        self.counts = np.bincount(rows.owner[order], counts, count).astype(np.int64)
        self.values: list[int] = values.tolist()
        self.offsets: list[int] = np.concatenate([[0], np.cumsum(self.counts)]).tolist()

    def __getitem__(self, index: int) -> list[int]:
        return self.values[self.offsets[index] : self.offsets[index + 1]]


@dataclasses.dataclass(slots=True)
class Computation:
    """A computation.

    Attributes:
      name: its name.
      start, stop: its bytes in the data.
      first, last: its instructions are those from `first` up to, not including, `last`.
      ident: its id.
      root: the index of its root instruction.
      parameters: the indices of its parameters, in their order.
    """

    name: str
    start: int
    stop: int
    first: int = 0
    last: int = 0
    ident: int = 0
    root_id: int = 0
    root: int = -1
    parameters: list[int] = dataclasses.field(default_factory=list)


class Model:
    """A module: `computations`, and one entry for each instruction in the lists.

    Attributes:
      data: the bytes of the module.
      fields: the module's fields, by number, computations left out.
      computations: in the order of the file, callees first.
      starts, stops: the bytes of each instruction.
      opcodes: its opcode.
      shapes: its shape.
      ids: its id.
      operands: the indices of its operands.
      called: the indices of the computations that it calls.
      dimensions: its field of that name.
      home: the computation that it is in.
      numbers: the number of a parameter.
      tuple_indices: the index of a get-tuple-element.
    """

    def __init__(self, data: bytes, nesting: int):
        self.data = data
        self.shape_table = Shapes(nesting)
        self.fields: dict[int, list[Field]] = {}
        self.computations: list[Computation] = []
        self.starts: list[int] = []
        self.stops: list[int] = []
        self._find_instructions()
        count = len(self.starts)
        self.home: list[int] = []
        for place, computation in enumerate(self.computations):
            self.home += [place] * (computation.last - computation.first)
        self._table = table = decode_fields(data, self.starts, self.stops)
        self._refuse_duplicates(table, count)
        self.opcodes = [data[a:b].decode("utf-8", "replace") for a, b in self._strings(2, "opcode")]
        self._names = self._strings(1, "name")
        self.shapes = self._read_shapes()
        self.ids: list[int] = self._column(35)
        self.numbers: list[int] = self._column(9)
        self.tuple_indices: list[int] = self._column(13)
        self.operands = Ragged(data, table.where(table.number == 36), count)
        self.called = Ragged(data, table.where(table.number == 38), count)
        self.dimensions = Ragged(data, table.where(table.number == 14), count)
        self._extras = self._read_extras()
        self.checked: set[bytes] = set()
        self._resolve_operands()
        self._resolve_calls()

    @property
    def entry_id(self) -> int:
        """The id of the entry computation."""
        found = [f for f in self.fields.get(6, ()) if f.kind == VARINT]
        return integers(self.data[found[0].start : found[0].stop])[0] if found else 0

    # --- what an instruction says

    def name(self, index: int) -> str:
        """The name of an instruction."""
        start, stop = self._names[index]
        return utf8(self.data[start:stop])

    def all_extras(self) -> dict[int, dict[int, list[Value]]]:
        """The fields that are in no column, by instruction and number; most instructions have none."""
        return self._extras

    def extras(self, index: int) -> dict[int, list[Value]]:
        """The fields of an instruction that are in no column, by number."""
        return self._extras.get(index, _NONE)

    def extra_key(self, index: int) -> list[object]:
        """The values of these fields, the literal left out: equal where two instructions say the same."""
        data = self.data
        key: list[object] = []
        for number, found in self.extras(index).items():
            if number != 8:
                key.append(number)
                key += [data[value.start : value.stop] for value in found]
        return key

    def message(self, index: int, number: int) -> bytes | None:
        """The bytes of a field, which is a message or a string; None where the instruction has none."""
        found = self.extras(index).get(number)
        return self.data[found[0].start : found[0].stop] if found and found[0].kind == BYTES else None

    def messages(self, index: int, number: int) -> list[bytes]:
        """The bytes of each value of a repeated field."""
        return [self.data[v.start : v.stop] for v in self.extras(index).get(number, ()) if v.kind == BYTES]

    def integer(self, index: int, number: int) -> int:
        """The value of an integer field; 0 where the instruction has none."""
        found = self.extras(index).get(number)
        return integers(self.data[found[0].start : found[0].stop])[0] if found and found[0].kind == 0 else 0

    def integers(self, index: int, number: int) -> list[int]:
        """The values of a field of integers."""
        return [i for v in self.extras(index).get(number, ()) for i in integers(self.data[v.start : v.stop])]

    def with_field(self, number: int) -> Iterator[int]:
        """Yields the instructions that have the field `number`, which is in no column."""
        for index, found in self._extras.items():
            if number in found:
                yield index

    def where(self, index: int) -> str:
        """Names the place of an instruction."""
        computation = self.computations[self.home[index]].name
        return f"computation {computation}, instruction {self.name(index)} ({self.opcodes[index]})"

    def error(self, fault: Fault | str, index: int) -> FormatError:
        """Makes the error for what is wrong with an instruction."""
        return FormatError(f"ill-formed HLO: {fault}", where=self.where(index), mend=_MODULE_MEND)

    def computation_error(self, fault: Fault | str, computation: Computation) -> FormatError:
        """Makes the error for what is wrong with a computation."""
        return FormatError(f"ill-formed HLO: {fault}", where=f"computation {computation.name}", mend=_MODULE_MEND)

    # --- decoding

    def _find_instructions(self) -> None:
        data = self.data
        for field in fields(data):
            if field.number == 3 and field.kind == BYTES:
                self.computations.append(Computation("?", field.start, field.stop))
            else:
                self.fields.setdefault(field.number, []).append(field)
        for computation in self.computations:
            computation.first = len(self.starts)
            self._find_in(computation)
            computation.last = len(self.starts)

    def _find_in(self, computation: Computation) -> None:
        data, at, stop = self.data, computation.start, computation.stop
        starts, stops = self.starts, self.stops
        while at < stop:
            # Nearly every field is an instruction, of less than 2^14 bytes.
            if data[at] == 0x12 and at + 3 < stop:
                length, second = data[at + 1], data[at + 2]
                begin = at + 2
                if length > 0x7F:
                    length += (second << 7) - 0x80
                    begin = at + 3
                if second < 0x80 or begin == at + 2:
                    at = begin + length
                    if at > stop:
                        raise self._cut(computation)
                    starts.append(begin)
                    stops.append(at)
                    continue
            at = self._read_field(computation, at)

    def _read_field(self, computation: Computation, at: int) -> int:
        """Reads one field of a computation, and returns where the next begins."""
        number, kind, start, stop = next(fields(self.data, at, computation.stop))
        if number == 1:
            computation.name = utf8(self.data[start:stop])
        elif number == 2 and kind == BYTES:
            self.starts.append(start)
            self.stops.append(stop)
        elif number in (5, 6) and kind == 0:
            (value,) = integers(self.data[start:stop])
            if number == 5:
                computation.ident = value
            else:
                computation.root_id = value
        return stop

    def _cut(self, computation: Computation) -> FormatError:
        return self.computation_error("an instruction runs past its end", computation)

    def _refuse_duplicates(self, table: Table, count: int) -> None:
        """Refuses two values of a field that has one: protobuf would merge them."""
        known = (table.number <= _LAST_KNOWN) & ~np.isin(table.number, list(_REPEATED))
        keys = table.owner[known] * (_LAST_KNOWN + 1) + table.number[known]
        seen = np.zeros(count * (_LAST_KNOWN + 1), bool)
        seen[keys] = True
        if np.count_nonzero(seen) == len(keys):
            return
        ordered = np.sort(keys)
        owner, number = divmod(int(ordered[1:][ordered[1:] == ordered[:-1]][0]), _LAST_KNOWN + 1)
        computation = self.computations[self.home[owner]]
        raise self.computation_error(
            f"its instruction {owner - computation.first} has field {number} twice", computation
        )

    def _spans(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Where each instruction's value of a field of bytes is; (-1, -1) where it has none."""
        rows = self._table.where((self._table.number == number) & (self._table.kind == BYTES))
        spans = np.full((2, len(self.starts)), -1)
        spans[0, rows.owner] = rows.start
        spans[1, rows.owner] = rows.stop
        return spans[0], spans[1]

    def _strings(self, number: int, what: str) -> list[tuple[int, int]]:
        starts, stops = self._spans(number)
        missing = np.flatnonzero(stops <= starts)
        if missing.size:
            index = int(missing[0])
            computation = self.computations[self.home[index]]
            raise self.computation_error(f"its instruction {index - computation.first} has no {what}", computation)
        return list(zip(starts.tolist(), stops.tolist(), strict=True))

    def _read_extras(self) -> dict[int, dict[int, list[Value]]]:
        rows = self._table.where(~_IS_IN_COLUMNS[np.minimum(self._table.number, len(_IS_IN_COLUMNS) - 1)])
        # XLA writes empty messages: hints (68) for every instruction, sparsity and scales (98, 101) for products.
        rows = rows.where((rows.stop > rows.start) | ((rows.number != 68) & (rows.number != 98) & (rows.number != 101)))
        extras: dict[int, dict[int, list[Value]]] = {}
        for owner, number, kind, start, stop in zip(*[column.tolist() for column in rows[:5]], strict=True):
            found = extras.setdefault(owner, {})
            if number in found:
                found[number].append(Value(kind, start, stop))
            else:
                found[number] = [Value(kind, start, stop)]
        return extras

    def _column(self, number: int) -> list[int]:
        rows = self._table.where((self._table.number == number) & (self._table.kind == 0))
        column = np.zeros(len(self.starts), np.int64)
        column[rows.owner] = rows.value
        return column.tolist()

    def _read_shapes(self) -> list[Shape]:
        starts, stops = self._spans(3)
        if (starts < 0).any():
            raise self.error("it has no shape", int(np.flatnonzero(starts < 0)[0]))
        data = self.data
        encoded = [data[a:b] for a, b in zip(starts.tolist(), stops.tolist(), strict=True)]
        table: dict[bytes, Shape] = {}
        for text in dict.fromkeys(encoded):
            try:
                table[text] = self.shape_table[text]
            except Fault as fault:
                raise self.error(fault, encoded.index(text)) from None
        return [table[text] for text in encoded]

    def _resolve_operands(self) -> None:
        resolved: list[int] = []
        offsets, wanted = self.operands.offsets, self.operands.values
        for computation in self.computations:
            first, last = computation.first, computation.last
            places = dict(zip(self.ids[first:last], range(first, last), strict=True))
            if len(places) != last - first:
                raise self.computation_error("two of its instructions have the same id", computation)
            try:
                resolved += [places[ident] for ident in wanted[offsets[first] : offsets[last]]]
            except KeyError as missing:
                index = self._user(computation, int(missing.args[0]))
                raise self.error(f"its operand {missing.args[0]} is no instruction of its computation", index) from None
            if computation.root_id not in places:
                raise self.computation_error(f"its root {computation.root_id} is none of its instructions", computation)
            computation.root = places[computation.root_id]
        users = np.repeat(np.arange(len(self.starts)), self.operands.counts)
        late = np.flatnonzero(np.array(resolved, np.int64) >= users) if resolved else users[:0]
        if late.size:
            raise self.error("it comes before one of its operands", int(users[late[0]]))
        self.operands.values = resolved

    def _user(self, computation: Computation, ident: int) -> int:
        return next(i for i in range(computation.first, computation.last) if ident in self.operands[i])

    def _resolve_calls(self) -> None:
        places: dict[int, int] = {}
        callers = np.repeat(np.arange(len(self.starts)), self.called.counts).tolist()
        resolved: list[int] = []
        known = 0
        for index, ident in zip(callers, self.called.values, strict=True):
            # A computation is known to those that come after it, so none can contain itself.
            while known < self.home[index]:
                places[self.computations[known].ident] = known
                known += 1
            if ident not in places:
                raise self.error(f"it calls computation {ident}, which is not defined before it", index)
            resolved.append(places[ident])
        self.called.values = resolved
        identities = [computation.ident for computation in self.computations]
        if len(set(identities)) != len(identities):
            raise FormatError("ill-formed HLO: two computations have the same id", mend=_MODULE_MEND)


def utf8(data: bytes) -> str:
    """Decodes a name for a message."""
    return data.decode("utf-8", "replace")


def read_model(data: bytes, nesting: int) -> Model:
    """Decodes a serialized HloModuleProto.

    Args:
      data: the module.
      nesting: how many tuples may be inside each other.

    Raises:
      FormatError: it is damaged, or an instruction refers to what is not there; the place is named.
    """
    return Model(data, nesting)
