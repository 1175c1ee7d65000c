"""Makes instructions, and puts them in the place of others in the bytes of a module."""

from collections.abc import Sequence

from unlower.readers.hlo.model import Model
from unlower.readers.hlo.shapes import PRED, Shape, encode_array_shape
from unlower.readers.hlo.wire import encode_number, encode_packed
from unlower.readers.wire import encode_field, fields

__all__ = ["Editor", "Rewritten"]

Rewritten = list[bytes]
"""Encoded instructions that stand in the place of one; the last has its id."""

_NAME, _OPCODE, _SHAPE, _LITERAL, _ID, _OPERANDS, _CALLED = 1, 2, 3, 8, 35, 36, 38


class Editor:
    """Collects replacements for instructions of `model`, and writes the module that has them."""

    def __init__(self, model: Model):
        self.model = model
        self._replaced: dict[int, Rewritten] = {}
        self._names: dict[int, str] = {}
        self._next: dict[int, int] = {}
        self._elided: dict[str, int] = {}
        self._users: dict[int, list[int]] | None = None
        self._taken: set[str] | None = None

    # --- what a rule asks for

    def users(self, index: int) -> list[int]:
        """The instructions that have `index` as an operand."""
        if self._users is None:
            self._users = {}
            for user in range(len(self.model.ids)):
                for operand in self.model.operands[user]:
                    self._users.setdefault(operand, []).append(user)
        return self._users.get(index, [])

    def elided_name(self, index: int) -> str:
        """The name under which a constant whose values were left out is known: the second `c` is `c#2`."""
        name = self.model.name(index)
        self._elided[name] = count = self._elided.get(name, 0) + 1
        return name if count == 1 else f"{name}#{count}"

    def operand_ids(self, index: int) -> list[int]:
        """The ids of an instruction's operands."""
        return [self.model.ids[operand] for operand in self.model.operands[index]]

    # --- what a rule makes

    def changed(
        self,
        index: int,
        opcode: str,
        *,
        operands: Sequence[int] | None = None,
        without: Sequence[int] = (),
        extra: bytes = b"",
    ) -> Rewritten:
        """The instruction itself with another opcode; other operands (by id), fields left out or added, if asked for."""
        return [self._changed(index, opcode, None, None, operands, without, extra)]

    def append_changed(
        self, made: Rewritten, index: int, opcode: str, shape: bytes, *, without: Sequence[int] = (), extra: bytes = b""
    ) -> int:
        """Appends a copy of an instruction with another opcode, shape and id; returns the id."""
        ident = self._new_id(index)
        made.append(self._changed(index, opcode, shape, ident, None, without, extra))
        return ident

    def append(
        self,
        made: Rewritten,
        index: int,
        opcode: str,
        shape: bytes,
        *,
        operands: Sequence[int] = (),
        called: Sequence[int] = (),
        extra: bytes = b"",
    ) -> int:
        """Appends a new instruction that belongs to the one at `index`; returns its id."""
        ident = self._new_id(index)
        made.append(
            b"".join(
                [
                    encode_field(_NAME, self._new_name(index, ident).encode()),
                    encode_field(_OPCODE, opcode.encode()),
                    encode_field(_SHAPE, shape),
                    extra,
                    encode_number(_ID, ident),
                    encode_packed(_OPERANDS, operands),
                    encode_packed(_CALLED, called),
                ]
            )
        )
        return ident

    def append_zeros(self, made: Rewritten, index: int, shape: Shape) -> int:
        """Appends a value of any shape that nobody looks at: zeros, and tokens; returns its id."""
        if shape.parts is not None:
            parts = [self.append_zeros(made, index, part) for part in shape.parts]
            return self.append(made, index, "tuple", shape.encoded, operands=parts)
        if not shape.is_array:
            return self.append(made, index, "after-all", shape.encoded)
        # A predicate is a constant in every jaxlib; not every element type is.
        scalar = encode_array_shape(PRED)
        literal = encode_field(_LITERAL, encode_field(1, scalar) + encode_field(2, b"\0"))
        zero = self.append(made, index, "constant", scalar, extra=literal)
        zero = self.append(made, index, "convert", encode_array_shape(shape.element), operands=[zero])
        if not shape.dimensions:
            return zero
        return self.append(made, index, "broadcast", shape.encoded, operands=[zero])

    def _changed(
        self,
        index: int,
        opcode: str,
        shape: bytes | None,
        ident: int | None,
        operands: Sequence[int] | None,
        without: Sequence[int],
        extra: bytes,
    ) -> bytes:
        model = self.model
        left_out = {_OPCODE, _SHAPE, *without}
        new = [encode_field(_OPCODE, opcode.encode()), encode_field(_SHAPE, shape or model.shapes[index].encoded)]
        if ident is not None:
            left_out |= {_ID, _NAME}
            new = [encode_field(_NAME, self._new_name(index, ident).encode()), *new, encode_number(_ID, ident)]
        if operands is not None:
            left_out.add(_OPERANDS)
            new.append(encode_packed(_OPERANDS, operands))
        kept, at = [], model.starts[index]
        for number, _, _, stop in fields(model.data, at, model.stops[index]):
            if number not in left_out:
                kept.append(model.data[at:stop])
            at = stop
        return b"".join([*kept, *new, extra])

    def _new_id(self, index: int) -> int:
        home = self.model.home[index]
        if home not in self._next:
            computation = self.model.computations[home]
            self._next[home] = max(self.model.ids[computation.first : computation.last], default=0) + 1
        self._next[home] += 1
        return self._next[home] - 1

    def _new_name(self, index: int, ident: int) -> str:
        """A name like that of the instruction at `index`, which no other of the module has: XLA asks for that."""
        if self._taken is None:
            self._taken = {self.model.name(i) for i in range(len(self.model.ids))}
        number = ident & 0xFFFFFFFF
        while (name := f"{self.model.name(index)}.{number}") in self._taken:
            number += 1
        self._taken.add(name)
        return name

    # --- the module

    def replace(self, index: int, instructions: Rewritten) -> None:
        """Puts instructions in the place of the one at `index`."""
        self._replaced[index] = instructions

    def rename(self, computation: int, name: str) -> None:
        """Gives a computation another name."""
        self._names[computation] = name

    def finish(self, program_shape: bytes | None) -> bytes:
        """Writes the module; `program_shape` replaces the one that it has, unless it is None."""
        model = self.model
        if not self._replaced and not self._names and program_shape is None:
            return model.data
        changed: dict[int, list[int]] = {place: [] for place in self._names}
        for index in self._replaced:
            changed.setdefault(model.home[index], []).append(index)
        pieces, at = [], 0
        begins = {computation.start: place for place, computation in enumerate(model.computations)}
        for number, _, start, stop in fields(model.data):
            if number == 3 and start in begins and begins[start] in changed:
                pieces.append(encode_field(3, self._computation(begins[start], changed[begins[start]])))
            elif number == 4 and program_shape is not None:
                pieces.append(encode_field(4, program_shape))
            else:
                pieces.append(model.data[at:stop])
            at = stop
        return b"".join(pieces)

    def _computation(self, place: int, changed: Sequence[int]) -> bytes:
        model = self.model
        computation = model.computations[place]
        replaced = {model.starts[index]: self._replaced[index] for index in changed}
        pieces, at = [], computation.start
        for number, _, start, stop in fields(model.data, at, computation.stop):
            if number == 2 and start in replaced:
                pieces += [encode_field(2, instruction) for instruction in replaced[start]]
            elif number == 1 and place in self._names:
                pieces.append(encode_field(1, self._names[place].encode()))
            else:
                pieces.append(model.data[at:stop])
            at = stop
        return b"".join(pieces)
