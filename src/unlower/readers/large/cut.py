"""Finds out what a large file is, and cuts its literals."""

from unlower.readers.elision import Elision
from unlower.readers.hlo_proto import module_range
from unlower.readers.hlo_text import is_hlo_text
from unlower.readers.large.bytecode import cut_bytecode
from unlower.readers.large.hlo_proto import cut_hlo_proto
from unlower.readers.large.source import Large
from unlower.readers.large.text import cut_hlo_text, cut_mlir_text
from unlower.readers.stablehlo_bytecode import is_bytecode
from unlower.readers.stablehlo_text import is_stablehlo_text

__all__ = ["THRESHOLD", "cut_literals"]

THRESHOLD = 1 << 16
"""Bytes of a literal, as it is written, from which it is cut."""

_HEAD = 1 << 16


def cut_literals(source: Large, elision: Elision, threshold: int = THRESHOLD) -> bytes:
    """Returns the bytes of a file without its large literals, which `elision` finds again; of an HLO proto, the module.

    Raises:
      FormatError: more bytes of constants than the limits allow.
    """
    if len(source) < threshold:
        return source.copy()
    head = source.copy(0, _HEAD)
    if is_bytecode(head):
        return cut_bytecode(source, elision, threshold)
    if is_hlo_text(head):
        return cut_hlo_text(source, elision, threshold)
    if is_stablehlo_text(head):
        return cut_mlir_text(source, elision, threshold)
    found = module_range(source.view)
    return source.copy() if found is None else cut_hlo_proto(source, *found, elision, threshold)
