"""What the readers of text share."""

import re

import numpy as np

from unlower.errors import FormatError
from unlower.readers.limits import Limits

__all__ = ["check_nesting", "decode_utf8", "first_token"]

_QUOTED = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_BRACKETS_FOR_EACH = 10
"""Brackets inside each other for each level of nesting that is allowed: a loop in text opens two or three."""

_BLANK = re.compile(rb"(?:\xef\xbb\xbf|\s+|//[^\n]*(?:\n|$)|/\*.*?\*/)*", re.DOTALL)


def first_token(data: bytes, length: int = 64) -> bytes:
    """Returns the first `length` bytes after blanks and comments (`//`, `/* */`)."""
    match = _BLANK.match(data)
    start = match.end() if match else 0
    return data[start : start + length]


def decode_utf8(data: bytes) -> str:
    """Decodes text; raises FormatError with the offset of the first byte that is not UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise FormatError(
            "text that is not UTF-8",
            where=f"byte {error.start}, line {line}",
            mend="the file is damaged; copy it again",
        ) from None


def check_nesting(text: str, limits: Limits, opening: str, closing: str) -> None:
    """Refuses text with more brackets inside each other than the limits allow: a parser that recurses would die of it."""
    allowed = limits.nesting * _BRACKETS_FOR_EACH
    if _deepest(text, opening, closing) > allowed:
        # Brackets in strings count for nothing.
        depth = _deepest(_QUOTED.sub("", text), opening, closing)
        levels = -(-depth // _BRACKETS_FOR_EACH)
        limits.check(
            "nesting", levels, f"the text has {depth:,} brackets inside each other, as for {levels:,} levels of nesting"
        )


def _deepest(text: str, opening: str, closing: str) -> int:
    step = np.zeros(256, np.int8)
    step[list(opening.encode())] = 1
    step[list(closing.encode())] = -1
    steps = step[np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8)]
    # Few characters are brackets.
    depths = np.cumsum(steps[steps != 0], dtype=np.int32)
    if not depths.size:
        return 0
    # Where more close than open, a parser is back at the outside.
    return int((depths - np.minimum.accumulate(np.minimum(depths, 0))).max())
