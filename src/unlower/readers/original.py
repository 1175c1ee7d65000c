"""The original of a source as StableHLO, for XLA to run: as it is, or as XLA's own converter gives it."""

import io
from typing import Any

import jax
import jax.export

from unlower._jax_compat import convert_hlo_to_stablehlo, hlo_text_to_proto
from unlower.ir.interface import ExportRecord
from unlower.readers.detect import in_folder, source_bytes
from unlower.readers.hlo_proto import unwrap
from unlower.readers.hlo_text import is_hlo_text, keep_negative_zeros
from unlower.readers.jax_export import exported_module, is_jax_export
from unlower.readers.stablehlo_bytecode import is_bytecode
from unlower.readers.stablehlo_text import is_stablehlo_text
from unlower.readers.text import decode_utf8

__all__ = ["original_stablehlo"]


def original_stablehlo(source: Any, *, signature: str | None = None, module: str | None = None) -> str | bytes:
    """Returns the module of a source that `read` accepts: StableHLO text, MLIR bytecode, or a portable artifact.

    Only for sources that were read before, since damaged ones can crash XLA's converter.

    Args:
      source: as of `read`.
      signature: as of `read`.
      module: as of `read`.

    Raises:
      FormatError: the program was put together of several modules, so there is no original.

    Example:
      >>> type(original_stablehlo("HloModule m\\nENTRY e { x = f32[2] parameter(0)  ROOT y = f32[2] negate(x) }"))
      <class 'bytes'>
    """
    if isinstance(source, jax.stages.Traced):
        source = source.lower()
    if isinstance(source, jax.stages.Lowered):
        source = source.compiler_ir("stablehlo")
    if isinstance(source, jax.export.Exported):
        return bytes(source.mlir_module_serialized)
    if hasattr(source, "operation"):
        buffer = io.BytesIO()
        source.operation.write_bytecode(buffer)
        return buffer.getvalue()
    if isinstance(source, ExportRecord):
        return exported_module(source.data, source.position)
    data = in_folder(source, signature, module)
    if data is None:
        data = source_bytes(source)
    if is_bytecode(data):
        return data
    if is_jax_export(data):
        return exported_module(data)
    if is_hlo_text(data):
        return convert_hlo_to_stablehlo(hlo_text_to_proto(keep_negative_zeros(decode_utf8(data))))
    if is_stablehlo_text(data):
        return decode_utf8(data)
    proto = unwrap(data)
    assert proto is not None, "read before"
    return convert_hlo_to_stablehlo(proto)
