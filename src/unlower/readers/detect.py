"""Finds the reader for a source, by content and never by name.

A new format is one line in `FORMATS` (bytes) or `LIVE` (objects); what looks like a program but is none that can be
read is one line in `FOREIGN`, so that the error says what the file is and what to do with it.
"""

import gzip
import io
import os
import pathlib
import re
import zlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.export

from unlower._jax_compat import mlir_ir as ir
from unlower.errors import FormatError
from unlower.ir.module import Module
from unlower.readers.elision import Elision
from unlower.readers.hlo_proto import is_hlo_proto, read_hlo_proto
from unlower.readers.hlo_text import is_hlo_text, read_hlo_text
from unlower.readers.isolation import Isolation
from unlower.readers.limits import DEFAULT_LIMITS, Limits
from unlower.readers.mlir_module import module_from_mlir
from unlower.readers.stablehlo_bytecode import MAGIC, is_bytecode, read_bytecode
from unlower.readers.stablehlo_text import is_stablehlo_text, read_stablehlo_text
from unlower.readers.text import first_token

__all__ = ["FOREIGN", "FORMATS", "LIVE", "Foreign", "Format", "read", "source_bytes"]


class Format(NamedTuple):
    """A format that can be read: its name, whether bytes are of it, and how they become a module."""

    name: str
    matches: Callable[[bytes], bool]
    read: Callable[[bytes, Elision], Module]


class Foreign(NamedTuple):
    """What bytes can be besides: its name, whether bytes are of it, and what the caller should do."""

    name: str
    matches: Callable[[bytes], bool]
    mend: str


FORMATS: list[Format] = [
    Format("MLIR bytecode", is_bytecode, read_bytecode),
    Format("HLO text", is_hlo_text, read_hlo_text),
    Format("StableHLO text", is_stablehlo_text, read_stablehlo_text),
    Format("HLO proto", is_hlo_proto, read_hlo_proto),
]
"""Tried in order; the first that matches reads."""

LIVE: list[tuple[type, Callable[[Any, Elision], Module]]] = [
    (jax.stages.Lowered, lambda lowered, elision: module_from_mlir(lowered.compiler_ir("stablehlo"), elision)),
    (jax.export.Exported, lambda exported, elision: read_bytecode(bytes(exported.mlir_module_serialized), elision)),
    (ir.Module, module_from_mlir),
]
"""Live objects, by class."""


def _starts(*magics: bytes, at: int = 0) -> Callable[[bytes], bool]:
    return lambda data: data[at:].startswith(magics) if at == 0 else data[at : at + 16].startswith(magics)


def _is_saved_model(data: bytes) -> bool:
    # SavedModel: schema version 1, then a MetaGraphDef whose MetaInfoDef comes first.
    return data.startswith(b"\x08\x01\x12") and b"\n" in data[3:8]


FOREIGN: list[Foreign] = [
    Foreign(
        "a pickle (a serialized PJRT executable, perhaps)",
        lambda data: data[:1] == b"\x80" and data[1:2] in b"\x02\x03\x04\x05" and len(data) > 2,
        "pickles are never loaded, since they can run code; keep the lowered module instead, jax.jit(f).lower(...)",
    ),
    Foreign(
        "a TFLite model",
        _starts(b"TFL3", at=4),
        "TFLite is no XLA program; load the model before its conversion to TFLite",
    ),
    Foreign(
        "an IREE module (.vmfb)",
        _starts(b"IREE", at=4),
        "it is compiled code; load the StableHLO that was given to IREE",
    ),
    Foreign(
        "a zip archive (a PyTorch .pt2 or checkpoint, or .npz, perhaps)",
        _starts(b"PK\x03\x04", b"PK\x05\x06"),
        "export the program to StableHLO, for PyTorch with torchax.export.exported_program_to_stablehlo",
    ),
    Foreign(
        "a TensorFlow SavedModel graph",
        _is_saved_model,
        "get the module by tf.function(...).experimental_get_compiler_ir(...)(stage='hlo_serialized')",
    ),
    Foreign(
        "a FlatBuffer of jax.export",
        lambda data: MAGIC + b"\rStableHLO_v" in data,
        "pass jax.export.deserialize(data), the Exported itself",
    ),
    Foreign("NumPy array data", _starts(b"\x93NUMPY"), "this holds weights, no program"),
    Foreign("an HDF5 file", _starts(b"\x89HDF\r\n\x1a\n"), "this holds weights, no program"),
    Foreign(
        "a safetensors file",
        lambda data: len(data) > 8 and data[8:9] == b"{" and int.from_bytes(data[:8], "little") < len(data),
        "this holds weights, no program",
    ),
    Foreign(
        "machine code or LLVM bitcode",
        _starts(b"\x7fELF", b"BC\xc0\xde", b"\xcf\xfa\xed\xfe", b"MZ"),
        "it is compiled already; load the module it was compiled from",
    ),
]
"""What is no program, tried in order after `FORMATS`."""

_DAMAGED = "the file is damaged or was made to do this; write it again"
_PIECE = 1 << 20
_EXPORT_HINT = "pass an HLO or StableHLO module, as text, proto or bytecode"
_TEXT_START = re.compile(rb"HloModule\b|module\b|\"?builtin\.module\b|\"?func\.func\b|//|/\*")


def read(
    source: Any,
    *,
    elided: str | Mapping[str, Any] | None = None,
    limits: Limits = DEFAULT_LIMITS,
    isolate: bool | Isolation = False,
) -> Module:
    """Reads a program.

    Args:
      source: a path; the bytes or the text of a module; a `jax.stages.Lowered`, `jax.export.Exported` or MLIR module.
        A `str` is text if it holds a line break or starts as a module does, and a path otherwise.
      elided: what stands for constants whose values the file left out: None refuses them, `"zeros"` puts zeros, a
        mapping gives an array for each name.
      limits: how much the program may ask for.
      isolate: whether XLA's and MLIR's own code reads in a process of its own, and what that may take.

    Raises:
      FormatError: damaged, elided or foreign input; the message says what it is and what to do.
      OSError: a path that cannot be read.
      TypeError: a source of another class.

    Example:
      >>> module = read("HloModule m\\nENTRY e { x = f32[2] parameter(0)  ROOT y = f32[2] negate(x) }")
      >>> [op.name for op in module.main.body.ops]
      ['stablehlo.negate']
    """
    elision = Elision(elided, limits=limits, isolation=Isolation() if isolate is True else isolate or None)
    try:
        module = _read(source, elision)
    except MemoryError:
        raise FormatError("it takes more memory than there is", mend=_DAMAGED) from None
    except RecursionError:
        raise FormatError("it nests attributes or types too deeply", mend=_DAMAGED) from None
    elision.finish()
    return module


def _read(source: Any, elision: Elision) -> Module:
    for kind, reader in LIVE:
        if isinstance(source, kind):
            return reader(source, elision)
    return _read_bytes(source_bytes(source, elision.limits), elision)


def source_bytes(source: Any, limits: Limits = DEFAULT_LIMITS) -> bytes:
    """Returns the bytes of a path, of text or of bytes, unzipped, as far as the limits allow.

    Raises:
      FormatError: an empty string, a directory, or damaged gzip data.
      OSError: a path that cannot be read.
      TypeError: a source of another class.
    """
    if isinstance(source, str):
        if "\n" in source or _TEXT_START.match(source[:64].lstrip().encode()):
            return _unzipped(source.encode(), limits)
        if not source:
            raise FormatError("an empty string: neither a path nor a module", mend=_EXPORT_HINT)
        source = pathlib.Path(source)
    if isinstance(source, os.PathLike):
        return _unzipped(_load(pathlib.Path(source), limits), limits)
    if isinstance(source, bytes | bytearray | memoryview):
        return _unzipped(bytes(source), limits)
    raise TypeError(
        f"cannot load a {type(source).__module__}.{type(source).__qualname__}: a path, bytes, text, "
        "jax.stages.Lowered, jax.export.Exported or an MLIR module is expected"
    )


def _load(path: pathlib.Path, limits: Limits) -> bytes:
    if not path.is_dir():
        _check_size(path.stat().st_size, limits)
        return path.read_bytes()
    names = sorted(entry.name for entry in path.iterdir())
    if "saved_model.pb" in names:
        what = "a TensorFlow SavedModel"
        mend = "get the module by tf.function(...).experimental_get_compiler_ir(...)(stage='hlo_serialized')"
    elif "functions" in names:
        what, mend = "a torch_xla bundle", f"pass the module in it, {path / 'functions' / 'forward.bytecode'}"
    else:
        what, mend = "a directory", f"pass one file of it: {', '.join(names[:8]) or 'it is empty'}"
    raise FormatError(f"{path} is {what}, not a file with a program", mend=mend)


def _read_bytes(data: bytes, elision: Elision) -> Module:
    if not data.strip():
        raise FormatError("the input is empty", mend=_EXPORT_HINT)
    for format_ in FORMATS:
        if format_.matches(data):
            return format_.read(data, elision)
    for foreign in FOREIGN:
        if foreign.matches(data):
            raise FormatError(f"this is {foreign.name}, not an XLA program", mend=foreign.mend)
    start = first_token(data, 40)
    kind = (
        "text, but neither an HLO nor a StableHLO module"
        if _is_text(data[:4096])
        else "no XLA program in a known format"
    )
    raise FormatError(f"this is {kind}", where=f"it starts with {start!r}", mend=_EXPORT_HINT)


def _unzipped(data: bytes, limits: Limits) -> bytes:
    _check_size(len(data), limits)
    if not data.startswith(b"\x1f\x8b"):
        return data
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            # A few kilobytes can hold gigabytes of zeros, so piece by piece.
            pieces, size = [], 0
            while size <= limits.input_bytes and (piece := file.read(_PIECE)):
                pieces.append(piece)
                size += len(piece)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise FormatError(f"damaged gzip data: {error}", mend="copy the file again; it is cut off or changed") from None
    _check_size(size, limits)
    return b"".join(pieces)


def _check_size(size: int, limits: Limits) -> None:
    limits.check("input_bytes", size, f"the source has {size:,} bytes")


def _is_text(data: bytes) -> bool:
    try:
        return data.decode().replace("\n", "").replace("\t", "").replace("\r", "").isprintable()
    except UnicodeDecodeError:
        return False
