"""Finds the reader for a source, by content and never by name.

A new format is one line in `FORMATS` (bytes) or `LIVE` (objects); what looks like a program but is none that can be
read is one line in `foreign.FOREIGN`, so that the error says what the file is and what to do with it.
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
from unlower.ir.interface import ExportRecord, Source
from unlower.ir.module import Module
from unlower.readers import progress
from unlower.readers.elision import Elision
from unlower.readers.folders import Content, dump_contents, pick_from_dump
from unlower.readers.foreign import FOREIGN
from unlower.readers.hlo_proto import is_hlo_proto, read_hlo_proto
from unlower.readers.hlo_text import is_hlo_text, read_hlo_text
from unlower.readers.isolation import Isolation
from unlower.readers.jax_export import is_jax_export, read_jax_export, read_record
from unlower.readers.large.cut import cut_literals
from unlower.readers.large.source import Large
from unlower.readers.limits import DEFAULT_LIMITS, Limits
from unlower.readers.live import read_exported, read_lowered, read_traced
from unlower.readers.mlir_module import module_from_mlir
from unlower.readers.names import interface_from_names
from unlower.readers.stablehlo_bytecode import is_bytecode, read_bytecode
from unlower.readers.stablehlo_text import is_stablehlo_text, read_stablehlo_text
from unlower.readers.text import first_token
from unlower.readers.tf_saved_model import SavedModel, is_saved_model_path, read_saved_model, saved_model_bytes
from unlower.readers.torch_export import bundle_bytes, bundle_contents, is_torch_bundle, read_torch_bundle

__all__ = [
    "FORMATS",
    "LIVE",
    "Format",
    "contents",
    "in_folder",
    "read",
    "read_source",
    "sniff",
    "source_bytes",
    "source_path",
]


class Format(NamedTuple):
    """A format that can be read: its name, whether bytes are of it, and how they become a module.

    A reader that knows of the interface what the module does not say returns it beside the module.
    """

    name: str
    matches: Callable[[bytes], bool]
    read: Callable[[bytes, Elision], Module | Source]


FORMATS: list[Format] = [
    Format("MLIR bytecode", is_bytecode, read_bytecode),
    Format("jax.export file", is_jax_export, read_jax_export),
    Format("HLO text", is_hlo_text, read_hlo_text),
    Format("StableHLO text", is_stablehlo_text, read_stablehlo_text),
    Format("HLO proto", is_hlo_proto, read_hlo_proto),
]
"""Tried in order; the first that matches reads."""

LIVE: list[tuple[type, Callable[[Any, Elision], Module | Source]]] = [
    (jax.stages.Traced, read_traced),
    (jax.stages.Lowered, read_lowered),
    (jax.export.Exported, read_exported),
    (ExportRecord, read_record),
    (ir.Module, module_from_mlir),
]
"""Live objects, by class."""


_DAMAGED = "the file is damaged or was made to do this; write it again"
_PIECE = 1 << 20
_MAPPED = 1 << 20
_GZIP = b"\x1f\x8b"
_EXPORT_HINT = "pass an HLO or StableHLO module, as text, proto or bytecode"
_TEXT_START = re.compile(rb"HloModule\b|module\b|\"?builtin\.module\b|\"?func\.func\b|//|/\*")


def read_source(
    source: Any,
    *,
    elided: str | Mapping[str, Any] | None = None,
    signature: str | None = None,
    module: str | None = None,
    limits: Limits = DEFAULT_LIMITS,
    isolate: bool | Isolation = False,
) -> Source:
    """Reads a program and its interface.

    Args:
      source: a path of a file or folder; the bytes or the text of a module; a `jax.stages.Lowered`,
        `jax.export.Exported` or MLIR module. A `str` is text if it holds a line break or starts as a module does, and
        a path otherwise.
      elided: what stands for constants whose values the file left out: None refuses them, `"zeros"` puts zeros, a
        mapping gives an array for each name.
      signature: which signature or function of a SavedModel or bundle, where there are several.
      module: which module of a dump folder, or which XLA program inside a SavedModel.
      limits: how much the program may ask for.
      isolate: whether XLA's and MLIR's own code reads in a process of its own, and what that may take.

    Raises:
      FormatError: damaged, elided or foreign input; the message says what it is and what to do.
      OSError: a path that cannot be read.
      TypeError: a source of another class.

    Example:
      >>> found = read_source("HloModule m\\nENTRY e { x = f32[2] parameter(0)  ROOT y = f32[2] negate(x) }")
      >>> [op.name for op in found.module.main.body.ops], len(found.interface.inputs)
      (['stablehlo.negate'], 1)
    """
    elision = Elision(elided, limits=limits, isolation=Isolation() if isolate is True else isolate or None)
    try:
        found = _read(source, elision, signature, module)
    except MemoryError:
        raise FormatError("it takes more memory than there is", mend=_DAMAGED) from None
    except RecursionError:
        raise FormatError("it nests attributes or types too deeply", mend=_DAMAGED) from None
    elision.finish()
    return found if isinstance(found, Source) else Source(found, interface_from_names(found))


def read(
    source: Any,
    *,
    elided: str | Mapping[str, Any] | None = None,
    signature: str | None = None,
    module: str | None = None,
) -> Module:
    """Reads the module of a program; see `read_source`.

    Example:
      >>> module = read("HloModule m\\nENTRY e { x = f32[2] parameter(0)  ROOT y = f32[2] negate(x) }")
      >>> [op.name for op in module.main.body.ops]
      ['stablehlo.negate']
    """
    return read_source(source, elided=elided, signature=signature, module=module).module


def _read(source: Any, elision: Elision, signature: str | None, module: str | None) -> Module | Source:
    for kind, reader in LIVE:
        if isinstance(source, kind):
            _refuse_choice(type(source).__name__, signature, module)
            return reader(source, elision)
    path = source_path(source)
    if path is not None:
        if is_saved_model_path(path):
            return read_saved_model(path, elision, signature=signature, module=module)
        if path.is_dir() and is_torch_bundle(path):
            _refuse_choice("a torch_xla bundle", None, module)
            return read_torch_bundle(path, elision, function=signature)
        if path.is_dir():
            _refuse_choice("a folder of modules", signature, None)
            return _read(pick_from_dump(path, sniff, module), elision, None, None)
    _refuse_choice("a file with one program", signature, module)
    opened = _opened(source, path, elision.limits)
    with progress.reading("the program" if path is None else path.name, len(opened)) as opened.watch:
        try:
            return _read_bytes(cut_literals(opened, elision), elision)
        finally:
            opened.watch = None


def _refuse_choice(what: str, signature: str | None, module: str | None) -> None:
    for name, value in (("signature", signature), ("module", module)):
        if value is not None:
            raise FormatError(f"{what} has no {name} {value!r} to choose", mend=f"leave {name}= out")


def in_folder(source: Any, signature: str | None = None, module: str | None = None) -> bytes | None:
    """Returns the bytes of the module that a folder leads to; None where the source is no folder.

    Raises:
      FormatError: as of `read_source`, or the program was put together of several modules.
    """
    path = source_path(source) if isinstance(source, str | os.PathLike) else None
    if path is not None and is_saved_model_path(path):
        return saved_model_bytes(path, signature=signature, module=module)
    if path is None or not path.is_dir():
        return None
    if is_torch_bundle(path):
        return bundle_bytes(path, signature)
    return source_bytes(pick_from_dump(path, sniff, module))


def contents(path: pathlib.Path) -> list[Content]:
    """Lists what a folder holds, and how to load it; nothing for a file."""
    if is_saved_model_path(path):
        return SavedModel(path).contents()
    if not path.is_dir():
        return []
    return bundle_contents(path) if is_torch_bundle(path) else dump_contents(path, sniff)


def sniff(path: pathlib.Path) -> tuple[str, bool]:
    """Says what a file is by its content, and whether it is a program that can be read."""
    try:
        data = source_bytes(path)
    except (FormatError, OSError) as error:
        return f"not readable: {str(error).splitlines()[0]}", False
    for format_ in FORMATS:
        if format_.matches(data):
            return format_.name, True
    for foreign in FOREIGN:
        if foreign.matches(data):
            return f"{foreign.name}, no XLA program", False
    return ("text" if _is_text(data[:4096]) else "unknown"), False


def source_bytes(source: Any, limits: Limits = DEFAULT_LIMITS) -> bytes:
    """Returns the bytes of a path, of text or of bytes, unzipped, as far as the limits allow.

    Raises:
      FormatError: an empty string, a directory, or damaged gzip data.
      OSError: a path that cannot be read.
      TypeError: a source of another class.
    """
    path = source_path(source)
    if path is not None:
        if path.is_dir():
            raise FormatError(f"{path} is a folder, not a file with a program", mend="pass one file of it")
        _check_size(path.stat().st_size, limits)
        return _unzipped(path.read_bytes(), limits)
    if isinstance(source, str):
        return _unzipped(source.encode(), limits)
    if isinstance(source, bytes | bytearray | memoryview):
        return _unzipped(bytes(source), limits)
    hint = ""
    if isinstance(source, jax.stages.Compiled):
        hint = "; pass what it was compiled from, jax.jit(f).lower(...)"
    elif callable(source):
        hint = "; lower a function first, jax.jit(f).lower(...)"
    raise TypeError(
        f"cannot load a {type(source).__module__}.{type(source).__qualname__}: a path, bytes, text, "
        f"jax.stages.Lowered, jax.export.Exported or an MLIR module is expected{hint}"
    )


def _opened(source: Any, path: pathlib.Path | None, limits: Limits) -> Large:
    """Maps a file that is not small nor zipped; anything else is taken into memory."""
    if path is not None and path.is_file() and path.stat().st_size >= _MAPPED:
        _check_size(path.stat().st_size, limits)
        mapped = Large(path)
        if mapped.copy(0, len(_GZIP)) != _GZIP:
            return mapped
    return Large(source_bytes(source, limits))


def source_path(source: Any) -> pathlib.Path | None:
    """Returns the path that a source is, or None where it is text, bytes or an object.

    Raises:
      FormatError: an empty string.
    """
    if isinstance(source, str):
        if "\n" in source or _TEXT_START.match(source[:64].lstrip().encode()):
            return None
        if not source:
            raise FormatError("an empty string: neither a path nor a module", mend=_EXPORT_HINT)
        if "\0" in source:
            raise FormatError("a string with a zero byte: neither a path nor a module", mend=_EXPORT_HINT)
        return pathlib.Path(source)
    return pathlib.Path(source) if isinstance(source, os.PathLike) else None


def _read_bytes(data: bytes, elision: Elision) -> Module | Source:
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
    if not data.startswith(_GZIP):
        return data
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            # A few kilobytes can hold gigabytes of zeros, so piece by piece.
            unzipped, size = io.BytesIO(), 0
            while size <= limits.input_bytes and (piece := file.read(_PIECE)):
                size += unzipped.write(piece)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise FormatError(f"damaged gzip data: {error}", mend="copy the file again; it is cut off or changed") from None
    _check_size(size, limits)
    # Of a buffer that nobody else holds, this is no copy.
    return unzipped.getvalue()


def _check_size(size: int, limits: Limits) -> None:
    limits.check("input_bytes", size, f"the source has {size:,} bytes")


def _is_text(data: bytes) -> bool:
    try:
        return data.decode().replace("\n", "").replace("\t", "").replace("\r", "").isprintable()
    except UnicodeDecodeError:
        return False
