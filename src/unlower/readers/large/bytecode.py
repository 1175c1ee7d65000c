"""Cuts large literals out of MLIR bytecode: dense attributes, builtin or of the portable dialect VHLO.

Dense data of one element stands for a tensor in which all are equal. A literal is replaced by such an element, chosen so
that no dense attribute of the file has its bytes; the type stays, so MLIR can verify and upgrade the module as it is.
Verifiers look at the elements of some attributes (padding, sizes), a few hundred bytes at most: far below any threshold.
"""

import functools
import itertools
import math
import secrets
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from unlower.errors import FormatError
from unlower.readers.constants import LONGEST_ELEMENT
from unlower.readers.elision import Elision
from unlower.readers.large.literals import Raw, dense_from_literal
from unlower.readers.large.source import Large
from unlower.readers.mlir_bytecode import (
    DIALECTS,
    ENTRIES,
    MAGIC,
    OFFSETS,
    STRINGS,
    Groups,
    Section,
    dialect_strings,
    encode_varint,
    entry_groups,
    header_stop,
    sections,
    string_lengths,
    varint,
)

__all__ = ["cut_bytecode"]

_DENSE = {b"builtin": 18, b"vhlo": 15}
_TENSOR = {b"builtin": 13, b"vhlo": 20}
_TRIES = 1000


class _Entry(NamedTuple):
    """An attribute or type: its dialect, whether in its own encoding, where it starts and stops."""

    dialect: bytes
    encoded: bool
    start: int
    stop: int


class _Dense(NamedTuple):
    """A dense attribute: the number of its type, and where its data starts and stops."""

    type: int
    start: int
    stop: int


def cut_bytecode(source: Large, elision: Elision, threshold: int) -> bytes:
    """Returns the file without the data of dense attributes of `threshold` bytes or more.

    A file that is damaged is returned as it is, for MLIR to refuse.

    Raises:
      FormatError: more bytes of constants than the limits allow.
    """
    try:
        found = _cut(source, elision, threshold)
    except (IndexError, KeyError, ValueError) as error:
        if isinstance(error, FormatError):
            raise
        found = None
    return source.copy() if found is None else found


def _cut(source: Large, elision: Elision, threshold: int) -> bytes | None:
    data = source.view
    found = list(sections(data))
    by_key = {section.key: section for section in found}
    if any(section.stop > len(data) for section in found) or len(by_key) < len(found):
        return None
    dialects = _dialects(data, by_key)
    attributes, groups = entry_groups(data, by_key[OFFSETS][2:], by_key[ENTRIES][2:])
    entries = [_Entry(dialects[dialect], *entry) for dialect, group in groups for entry in group]
    dense = {i: _dense(data, entry) for i, entry in enumerate(entries[:attributes])}
    taken = {
        bytes(data[each.start : each.stop])
        for each in dense.values()
        if each is not None and each.stop - each.start <= LONGEST_ELEMENT
    }
    replaced: dict[int, bytes] = {}
    for i, each in dense.items():
        if each is None or each.stop - each.start < threshold:
            continue
        width = _width(data, entries[attributes + each.type], each.stop - each.start)
        mark = None if width is None else _free(width, taken)
        if mark is None:
            continue
        taken.add(mark)
        literal = Raw(source, each.start, each.stop)
        elision.mark(mark, elision.cut(each.stop - each.start, functools.partial(dense_from_literal, literal)))
        code = encode_varint(_DENSE[entries[i].dialect])
        replaced[i] = b"".join([code, encode_varint(each.type), encode_varint(len(mark)), mark])
    return _written(source, found, entries, groups, attributes, replaced) if replaced else None


def _dialects(data: memoryview, by_key: dict[int, Section]) -> list[bytes]:
    lengths, start = string_lengths(data, by_key[STRINGS].start)
    ends = list(itertools.accumulate(lengths, initial=start))
    version, _ = varint(data, len(MAGIC))
    names, _ = dialect_strings(data, by_key[DIALECTS].start, version)
    return [bytes(data[ends[name] : ends[name + 1] - 1]) for name in names]


def _content(data: memoryview, entry: _Entry, codes: Mapping[bytes, int]) -> int | None:
    """Where an entry goes on after its code; None if it is not what `codes` says, by dialect."""
    if not entry.encoded or entry.dialect not in codes:
        return None
    code, at = varint(data, entry.start)
    return at if code == codes[entry.dialect] else None


def _dense(data: memoryview, entry: _Entry) -> _Dense | None:
    at = _content(data, entry, _DENSE)
    if at is None:
        return None
    type_, at = varint(data, at)
    size, at = varint(data, at)
    return _Dense(type_, at, at + size) if at + size == entry.stop else None


def _width(data: memoryview, type_: _Entry, size: int) -> int | None:
    """How many bytes each element takes, where that is a whole number."""
    at = _content(data, type_, _TENSOR)
    if at is None:
        return None
    rank, at = varint(data, at)
    sizes = []
    for _ in range(rank):
        signed, at = varint(data, at)
        if signed & 1:
            return None
        sizes.append(signed >> 1)
    elements = math.prod(sizes)
    width = size // elements if elements else 0
    return width if width in (1, 2, 4, 8, LONGEST_ELEMENT) and width * elements == size else None


def _free(width: int, taken: set[bytes]) -> bytes | None:
    """Returns bytes of an element that no constant has; None where it is hard to find any."""
    # Of single bytes the small ones first: an element may be narrower than its byte.
    tried: Iterator[bytes] = (
        (bytes([i]) for i in range(1, 255)) if width == 1 else (secrets.token_bytes(width) for _ in range(_TRIES))
    )
    return next((mark for mark in tried if mark not in taken), None)


def _written(
    source: Large,
    found: list[Section],
    entries: list[_Entry],
    groups: Groups,
    attributes: int,
    replaced: dict[int, bytes],
) -> bytes:
    """Writes the file with other attributes."""
    offsets = [encode_varint(attributes), encode_varint(len(entries) - attributes)]
    index = 0
    for dialect, group in groups:
        offsets += [encode_varint(dialect), encode_varint(len(group))]
        for encoded, start, stop in group:
            size = len(replaced[index]) if index in replaced else stop - start
            offsets.append(encode_varint(size << 1 | encoded))
            index += 1
    pieces, at = [], next(section.start for section in found if section.key == ENTRIES)
    for i, content in sorted(replaced.items()):
        pieces += [source.copy(at, entries[i].start), content]
        at = entries[i].stop
    stop = next(section.stop for section in found if section.key == ENTRIES)
    contents = {OFFSETS: b"".join(offsets), ENTRIES: b"".join([*pieces, source.copy(at, stop)])}
    written = bytearray(source.copy(0, header_stop(source.view)))
    for key, alignment, start, stop in found:
        content = contents.get(key)
        content = source.copy(start, stop) if content is None else content
        written.append(key | (0x80 if alignment > 1 else 0))
        written += encode_varint(len(content))
        if alignment > 1:
            written += encode_varint(alignment)
            written += b"\xcb" * (-len(written) % alignment)
        written += content
    return bytes(written)
