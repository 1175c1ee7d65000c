"""Cuts large literals out of MLIR bytecode: dense attributes, builtin or of the portable dialect VHLO.

Dense data of one element stands for a tensor in which all are equal. A literal is replaced by such an element, chosen so
that no dense attribute of the file has its bytes; the type stays, so MLIR can verify and upgrade the module as it is.
Verifiers look at the elements of some attributes (padding, sizes), a few hundred bytes at most: far below any threshold.
"""

import functools
import itertools
import math
import secrets
from collections.abc import Iterator
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
    Section,
    encode_varint,
    header_stop,
    sections,
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
    attributes, groups = _groups(data, by_key)
    entries = [entry for _, _, group in groups for entry in group]
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


_Groups = list[tuple[int, int, list[_Entry]]]
"""The number of a dialect, how many entries, the entries."""


def _groups(data: memoryview, by_key: dict[int, Section]) -> tuple[int, _Groups]:
    """Reads the table of attributes and types; returns how many attributes there are, and the entries by dialect."""
    dialects = _dialects(data, by_key)
    _, _, at, stop = by_key[OFFSETS]
    attributes, at = varint(data, at)
    _, at = varint(data, at)
    _, _, start, limit = by_key[ENTRIES]
    groups: _Groups = []
    while at < stop:
        index, at = varint(data, at)
        count, at = varint(data, at)
        group = []
        for _ in range(count):
            size, at = varint(data, at)
            group.append(_Entry(dialects[index], bool(size & 1), start, start + (size >> 1)))
            start += size >> 1
        groups.append((index, count, group))
    if start > limit:
        raise ValueError("an attribute ends after its section")
    return attributes, groups


def _dialects(data: memoryview, by_key: dict[int, Section]) -> list[bytes]:
    _, _, start, _ = by_key[STRINGS]
    count, start = varint(data, start)
    lengths = []
    for _ in range(count):
        length, start = varint(data, start)
        lengths.append(length)
    ends = list(itertools.accumulate(reversed(lengths), initial=start))
    names = []
    version, _ = varint(data, len(MAGIC))
    _, _, at, _ = by_key[DIALECTS]
    count, at = varint(data, at)
    for _ in range(count):
        name, at = varint(data, at)
        if version > 0:
            name, has_version = name >> 1, name & 1
            if has_version:  # as a section
                length, at = varint(data, at + 1)
                at += length
        names.append(bytes(data[ends[name] : ends[name + 1] - 1]))
    return names


def _dense(data: memoryview, entry: _Entry) -> _Dense | None:
    if not entry.encoded or entry.dialect not in _DENSE:
        return None
    code, at = varint(data, entry.start)
    if code != _DENSE[entry.dialect]:
        return None
    type_, at = varint(data, at)
    size, at = varint(data, at)
    return _Dense(type_, at, at + size) if at + size == entry.stop else None


def _width(data: memoryview, type_: _Entry, size: int) -> int | None:
    """How many bytes each element takes, where that is a whole number."""
    if not type_.encoded or type_.dialect not in _TENSOR:
        return None
    code, at = varint(data, type_.start)
    if code != _TENSOR[type_.dialect]:
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
    groups: _Groups,
    attributes: int,
    replaced: dict[int, bytes],
) -> bytes:
    """Writes the file with other attributes."""
    offsets = [encode_varint(attributes), encode_varint(len(entries) - attributes)]
    index = 0
    for dialect, count, group in groups:
        offsets += [encode_varint(dialect), encode_varint(count)]
        for entry in group:
            size = len(replaced[index]) if index in replaced else entry.stop - entry.start
            offsets.append(encode_varint(size << 1 | entry.encoded))
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
