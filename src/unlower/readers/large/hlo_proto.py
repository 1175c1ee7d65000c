"""Cuts large literals out of HLO protos: each constant becomes the custom call that stands for a constant without values."""

import functools
import math
from collections.abc import Iterator

from unlower.errors import FormatError
from unlower.readers.elision import ELIDED_TARGET, Elision
from unlower.readers.hlo.carried import target
from unlower.readers.hlo.faults import Fault
from unlower.readers.hlo.shapes import ELEMENTS, Shape, Shapes
from unlower.readers.large.literals import Integers, Raw, dense_from_literal
from unlower.readers.large.source import Large
from unlower.readers.wire import BYTES, Field, encode_field, fields

__all__ = ["cut_hlo_proto"]

_COMPUTATION, _INSTRUCTION = 3, 2
_OPCODE, _SHAPE, _LITERAL, _OPERANDS = 2, 3, 8, 36
_LITERAL_SHAPE = 1
_BYTE = 8
_MOST_OTHER = 1 << 16
"""Bytes that an instruction has besides its literal, at most, for the literal to be cut."""


def cut_hlo_proto(source: Large, start: int, stop: int, elision: Elision, threshold: int) -> bytes:
    """Returns the HloModuleProto in a range of `source` without literals of `threshold` bytes or more.

    Only what is well-formed is cut, so that whatever is not meets the checks of the reader.

    Raises:
      FormatError: more bytes of constants than the limits allow.
    """
    cutter = _Cutter(source, elision, threshold)
    try:
        return cutter.message(start, stop, _COMPUTATION, _INSTRUCTION)
    except _DamagedError:
        return source.copy(start, stop)


class _DamagedError(Exception):
    """The module ends too early, or is none."""


class _Cutter:
    def __init__(self, source: Large, elision: Elision, threshold: int):
        self._source, self._elision, self._threshold = source, elision, threshold
        self._shapes = Shapes(elision.limits.nesting)

    def message(self, start: int, stop: int, field: int, *below: int) -> bytes:
        """Copies a message; fields of these numbers lead on to the instructions."""
        source = self._source
        pieces, copied, at = [], start, start
        for number, kind, begin, end in _fields(source, start, stop):
            if number == field and kind == BYTES and end - begin >= self._threshold:
                inner = self.message(begin, end, *below) if below else self._instruction(begin, end)
                if inner is not None:
                    pieces += [source.copy(copied, at), encode_field(number, inner)]
                    copied = end
            at = end
        return b"".join([*pieces, source.copy(copied, stop)])

    def _instruction(self, start: int, stop: int) -> bytes | None:
        """Returns the custom call in the place of a constant; None for any other instruction."""
        source = self._source
        kept: list[tuple[int, int]] = []
        found: dict[int, tuple[int, int]] = {}
        at = start
        for number, _, begin, end in _fields(source, start, stop):
            if number in found and number in (_OPCODE, _SHAPE, _LITERAL):
                return None
            found[number] = begin, end
            if number not in (_OPCODE, _LITERAL):
                kept.append((at, end))
            at = end
        if not {_OPCODE, _SHAPE, _LITERAL} <= found.keys() or _OPERANDS in found:
            return None
        if sum(end - begin for begin, end in kept) > _MOST_OTHER or source.copy(*found[_OPCODE]) != b"constant":
            return None
        name = self._literal(*found[_LITERAL], source.copy(*found[_SHAPE]))
        if name is None:
            return None
        opcode = encode_field(_OPCODE, b"custom-call")
        return b"".join([*(source.copy(*each) for each in kept), opcode, target(ELIDED_TARGET, name.encode())])

    def _literal(self, start: int, stop: int, encoded: bytes) -> str | None:
        """Cuts a literal, if it is an array of this shape whose elements are bytes or integers; returns its name."""
        found = {field.number: field for field in _fields(self._source, start, stop)}
        if len(found) != 2 or _LITERAL_SHAPE not in found:
            return None
        own = found.pop(_LITERAL_SHAPE)
        ((number, payload),) = found.items()
        if (
            payload.kind != BYTES
            or payload.stop - payload.start < self._threshold
            or own.stop - own.start > _MOST_OTHER
        ):
            return None
        try:
            shape, mine = self._shapes[encoded], self._shapes[self._source.copy(own.start, own.stop)]
        except Fault:
            return None
        if not _agree(shape, mine) or ELEMENTS[mine.element].literal != number:
            return None
        element, size = ELEMENTS[mine.element], math.prod(mine.dimensions)
        layout = None if mine.minor_to_major == tuple(reversed(range(len(mine.dimensions)))) else mine.minor_to_major
        if element.stored < _BYTE:
            return None
        if element.stored < element.bits:
            literal = Integers(self._source, payload.start, payload.stop, layout)
            if payload.stop - payload.start < size:
                return None
        else:
            literal = Raw(self._source, payload.start, payload.stop, layout)
            if (payload.stop - payload.start) * _BYTE != size * element.bits:
                return None
        return self._elision.cut(size * element.bits // _BYTE, functools.partial(dense_from_literal, literal))


def _fields(source: Large, start: int, stop: int) -> Iterator[Field]:
    try:
        yield from fields(source.view, start, stop)
    except FormatError:
        raise _DamagedError from None


def _agree(shape: Shape, literal: Shape) -> bool:
    """Whether a literal is an array of static size, of a shape and in its layout."""
    return (
        shape.parts is None
        and literal.is_array
        and shape.key == literal.key
        and not literal.dynamic
        and not literal.tiles
        and literal.minor_to_major is not None
        and (shape.minor_to_major is None or shape.minor_to_major == literal.minor_to_major)
        and sorted(literal.minor_to_major) == list(range(len(literal.dimensions)))
    )
