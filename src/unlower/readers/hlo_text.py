"""HLO text -> `ir.Module`: XLA dumps and `as_text()`, before and after optimisation.

XLA's own parser reads the text; `hlo_proto` takes it from there.
"""

import re

from unlower._jax_compat import NATIVE_ERRORS, hlo_text_to_proto
from unlower.errors import FormatError
from unlower.ir.interface import Source
from unlower.ir.module import Module
from unlower.readers.elision import Elision, mark_hlo_text
from unlower.readers.hlo.text_guard import guard_hlo_text
from unlower.readers.hlo.text_metadata import shorten_metadata
from unlower.readers.hlo_proto import module_from_hlo_proto
from unlower.readers.hlo_tuples import with_tuples
from unlower.readers.isolation import read_isolated
from unlower.readers.text import decode_utf8, first_token

__all__ = ["is_hlo_text", "keep_negative_zeros", "proto_from_hlo_text", "read_hlo_text"]

_LAYOUT = re.compile(r"^\s*HloModule\b[^\n]*entry_computation_layout=", re.MULTILINE)
# The literal comes first, which is how a regular expression is fast.
_ENTRY = re.compile(r"ENTRY\b")
_NEGATIVE_ZERO = re.compile(r"-0(?<=[({,\s]-0)(?=[)},\s])")
_FLOAT_CONSTANT = re.compile(r"(\b(?:b?f|c)\d\w*\[[^\]]*\](?:\{[^}]*\})? constant)(\([-\d.,\s{}()a-z+*/=]*)")
_WAS_PARSING = re.compile(r"was parsing (\d+):(\d+): error: ([^\n]*)")


def is_hlo_text(data: bytes) -> bool:
    """Whether `data` starts with the header of an HLO module."""
    return re.match(rb"HloModule\b", first_token(data)) is not None


def read_hlo_text(data: bytes, elision: Elision) -> Module | Source:
    """Reads the text of an HLO module.

    Raises:
      FormatError: text that XLA cannot parse, with its line and column; elided constants; what the converter refuses.
    """
    if elision.isolation is not None:
        module, proto = read_isolated("HLO text", data, elision)
        return with_tuples(module, proto)
    text = decode_utf8(data)
    try:
        shortened, locations = shorten_metadata(text)
        proto = _parse(shortened, elision)
    except FormatError:
        # The error quotes the text as it was.
        proto, locations = _parse(text, elision), {}
    return module_from_hlo_proto(proto, elision, locations)


def proto_from_hlo_text(data: bytes, elision: Elision) -> bytes:
    """Parses HLO text to a serialized HloModuleProto; raises as `read_hlo_text` does."""
    return _parse(decode_utf8(data), elision)


def _parse(text: str, elision: Elision) -> bytes:
    text = guard_hlo_text(mark_hlo_text(keep_negative_zeros(text)), elision.limits)
    if _LAYOUT.search(text) and not _has_entry(text):
        # XLA would take the last computation for the entry; its converter ends the process when the layout disagrees.
        raise FormatError("the HLO text has no ENTRY computation", mend="the file is cut off; copy or dump it again")
    try:
        return hlo_text_to_proto(text)
    except NATIVE_ERRORS as error:
        raise _error(str(error), text) from None


def _has_entry(text: str) -> bool:
    """Whether a line begins with `ENTRY`."""
    starts = [match.start() for match in _ENTRY.finditer(text)]
    return any(not text[text.rfind("\n", 0, start) + 1 : start].strip() for start in starts)


def keep_negative_zeros(text: str) -> str:
    """Spells the `-0` of float constants `-0.0`: XLA prints the former, and its parser reads that as the integer 0."""
    if not _NEGATIVE_ZERO.search(text):
        return text

    def constant(match: re.Match[str]) -> str:
        return match.group(1) + _NEGATIVE_ZERO.sub("-0.0", match.group(2))

    return _FLOAT_CONSTANT.sub(constant, text)


def _error(message: str, text: str) -> FormatError:
    mend = "the text is cut off, edited, or in a syntax that this jaxlib does not know; dump it again, best as a proto"
    match = _WAS_PARSING.search(message)
    if match is None:
        return FormatError(f"XLA cannot read this HLO text: {message.splitlines()[0]}", mend=mend)
    line, column, what = match.groups()
    lines = text.split("\n", int(line))
    source = f": {lines[int(line) - 1].strip()[:120]}" if len(lines) >= int(line) else ""
    return FormatError(
        f"XLA cannot read this HLO text: {what}", where=f"line {line}, column {column}{source}", mend=mend
    )
