"""Checks of MLIR text that stand before MLIR's own parser, which ends the process on some of it, or takes all memory."""

import re

from unlower.errors import FormatError
from unlower.readers.limits import Limits
from unlower.readers.text import check_nesting

__all__ = ["guard_mlir_text"]

_CONVOLUTION = re.compile(r"\[[^\[\]]*\]\s*x\s*\[[^\[\]]*\]\s*->\s*\[[^\[\]]*\]")
_LARGE = re.compile(r"\d{4,}")


def guard_mlir_text(text: str, limits: Limits) -> None:
    """Refuses text that MLIR does not survive.

    Raises:
      FormatError: it nests too deeply, or names a dimension of a convolution that it would make an array of billions for.
    """
    check_nesting(text.replace("->", "") if "<" in text else text, limits, "([{<", ")]}>")
    for match in _CONVOLUTION.finditer(text):
        if _LARGE.search(match.group()):
            line = text.count("\n", 0, match.start()) + 1
            raise FormatError(
                "a convolution with dimensions that no array has",
                where=f"line {line}: {match.group()[:120]}",
                mend="the file is damaged or was changed; write it again",
            )
