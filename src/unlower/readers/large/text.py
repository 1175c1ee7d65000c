"""Cuts large literals out of text: HLO's `constant({1, 2, ...})`, and MLIR's `dense<"0x...">`."""

import functools
import math
import re
from collections.abc import Iterator

from unlower.readers.elision import ELIDED_TARGET, Elision
from unlower.readers.large.literals import Decimals, Hexadecimal, dense_from_literal
from unlower.readers.large.source import PIECE, Large

__all__ = ["cut_hlo_text", "cut_mlir_text"]

_MOST_BEFORE = 1 << 12
"""Bytes in front of a literal, on its line, that are looked at."""

_HLO_LITERAL, _HLO_END = b" constant({", b"})"
_HLO_BEFORE = re.compile(rb"\s*(?:ROOT\s+)?%?[\w.\-]+ = (\w+)\[([\d,]*)\](?:\{[\d,]*\})?\Z")
# Neither NaNs, which may have a payload, nor the pairs of complex numbers.
_HLO_OTHER = re.compile(rb"[^-+0-9.eEinftrualse{},*/= ]|nan")
_MLIR_LITERAL, _MLIR_END = b'dense<"0x', b'"'
_MLIR_BEFORE = re.compile(rb'(?:stablehlo|mhlo)\.constant[^"\n]*\Z|"(?:stablehlo|mhlo)\.constant"\(\)[^"\n]*value = \Z')
_BITS = re.compile(rb"(?:b?f|[su]|c)(\d+)")
_NARROW = (b"pred", b"s8", b"u8", b"s16", b"u16", b"s32", b"u32", b"s64", b"u64")
_WIDE = (b"bf16", b"f16", b"f32", b"f64")


def cut_hlo_text(source: Large, elision: Elision, threshold: int) -> bytes:
    """Returns HLO text with a custom call in the place of each literal of `threshold` characters or more.

    Raises:
      FormatError: more bytes of constants than the limits allow.
    """
    pieces, copied = [], 0
    for at, line in _occurrences(source, _HLO_LITERAL):
        before = _HLO_BEFORE.match(line)
        start = at + len(_HLO_LITERAL) - 1
        if before is None or before.group(1) not in (*_NARROW, *_WIDE) or start < copied:
            continue
        found = source.find(_HLO_END, start)
        if found < 0 or found - start < threshold or not _is_literal(source, start, found):
            continue
        bits = _BITS.fullmatch(before.group(1))
        elements = math.prod(map(int, filter(None, before.group(2).split(b","))))
        if not 0 < 2 * elements <= found - start:
            continue  # too few digits, or too many: XLA says so
        size = elements * (int(bits.group(1)) // 8 if bits else 1)
        literal = Decimals(source, start, found + 1)
        name = elision.cut(size, functools.partial(dense_from_literal, literal))
        call = f' custom-call(), custom_call_target="{ELIDED_TARGET}", backend_config="{name}"'
        pieces += [source.copy(copied, at), call.encode()]
        copied = found + len(_HLO_END)
    return b"".join([*pieces, source.copy(copied)])


def cut_mlir_text(source: Large, elision: Elision, threshold: int) -> bytes:
    """Returns MLIR text with a resource without data in the place of each literal of `threshold` characters or more.

    Raises:
      FormatError: more bytes of constants than the limits allow.
    """
    pieces, copied = [], 0
    for at, line in _occurrences(source, _MLIR_LITERAL):
        start = at + len(_MLIR_LITERAL)
        if _MLIR_BEFORE.search(line) is None:
            continue
        found = source.find(_MLIR_END, start)
        if found - start < threshold or source.copy(found, found + 2) != b'">':
            continue
        literal = Hexadecimal(source, start, found)
        name = elision.cut((found - start) // 2, functools.partial(dense_from_literal, literal))
        pieces += [source.copy(copied, at), f'dense_resource<"{name}">'.encode()]
        copied = found + 2
    return b"".join([*pieces, source.copy(copied)])


def _occurrences(source: Large, wanted: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields where `wanted` begins, and what stands before it on its line."""
    at = source.find(wanted, 0)
    while at >= 0:
        before = bytes(source.view[max(at - _MOST_BEFORE, 0) : at])
        yield at, before[before.rfind(b"\n") + 1 :]
        at = source.find(wanted, at + len(wanted))


def _is_literal(source: Large, start: int, stop: int) -> bool:
    """Whether there is nothing but numbers, braces and comments in a range."""
    return not any(
        _HLO_OTHER.search(source.copy(max(at - 2, start), min(at + PIECE, stop))) for at in range(start, stop, PIECE)
    )
