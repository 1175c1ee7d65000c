"""What the readers of text share."""

import re

from unlower.errors import FormatError

__all__ = ["decode_utf8", "first_token"]

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
