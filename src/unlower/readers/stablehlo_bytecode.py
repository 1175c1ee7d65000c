"""MLIR bytecode -> `ir.Module`: StableHLO portable artifacts (VHLO, which stays readable), and raw bytecode.

Both start with `ML\\xefR`, a version as varint, and the producer as a zero-terminated string: `StableHLO_v1.18.0` is
the version that a portable artifact targets, `MLIR23.0.0git` says raw bytecode, which only a like version reads.
"""

import re

from unlower._jax_compat import (
    NATIVE_ERRORS,
    collect_diagnostics,
    current_stablehlo_version,
    deserialize_portable_artifact,
    new_mlir_context,
)
from unlower._jax_compat import mlir_ir as ir
from unlower.errors import FormatError
from unlower.ir.module import Module
from unlower.readers.elision import Elision
from unlower.readers.isolation import Isolation, read_isolated
from unlower.readers.mlir_bytecode import MAGIC
from unlower.readers.mlir_bytecode_guard import DamageError, UnknownError, guard_bytecode
from unlower.readers.mlir_module import bytecode_of, module_from_bytecode
from unlower.readers.stablehlo_text import mlir_message

__all__ = ["is_bytecode", "parse_bytecode", "read_bytecode"]

_PRODUCER = re.compile(rb"ML\xefR[\x00-\xff]([\x20-\x7e]*)\x00")
_SECONDS = 20.0
_VERSION = re.compile(r"StableHLO_v(\d+)\.(\d+)\.(\d+)")


def is_bytecode(data: bytes) -> bool:
    """Whether `data` starts as MLIR bytecode does."""
    return data.startswith(MAGIC)


def read_bytecode(data: bytes, elision: Elision) -> Module:
    """Reads MLIR bytecode.

    Raises:
      FormatError: damaged bytes, or an artifact of a StableHLO newer than this jaxlib; both versions are named.
    """
    isolation = elision.isolation
    try:
        guard_bytecode(data)
    except DamageError as error:
        raise _error(*_producer(data), [str(error)]) from None
    except UnknownError:
        # MLIR may know more, and may as well not survive it: where it does not, that takes seconds for each megabyte at most.
        isolation = isolation or Isolation(seconds=_SECONDS + len(data) / (1 << 20))
    if isolation is not None:
        return read_isolated("MLIR bytecode", data, elision, isolation)[0]
    return parse_bytecode(data, elision)


def parse_bytecode(data: bytes, elision: Elision) -> Module:
    """Reads MLIR bytecode in this process, whatever the caller wishes; raises as `read_bytecode` does."""
    producer, version = _producer(data)
    context = new_mlir_context()
    with context, collect_diagnostics(context) as diagnostics:
        try:
            if version:
                module = deserialize_portable_artifact(context, data)
            else:
                module = ir.Module.parse(data)
                if any(op.operation.name.startswith("vhlo.") for op in module.body.operations):
                    # A portable artifact of the time (2023) when these were signed by MLIR.
                    module = deserialize_portable_artifact(context, data)
            data = bytecode_of(module)
        except (ir.MLIRError, *NATIVE_ERRORS) as error:
            raise _error(producer, version, [*diagnostics, str(error)]) from None
    # MLIR's own module goes now: memory holds one of the two at a time.
    del module, context
    return module_from_bytecode(data, elision)


def _producer(data: bytes) -> tuple[str, re.Match[str] | None]:
    """Who wrote the file, and of a portable artifact the version that it targets."""
    match = _PRODUCER.match(data)
    producer = match.group(1).decode() if match else ""
    return producer, _VERSION.fullmatch(producer)


def _error(producer: str, version: re.Match[str] | None, messages: list[str]) -> FormatError:
    what, _ = mlir_message(messages[0])
    where = f"MLIR bytecode written by {producer or 'an unknown producer'}"
    if version is None:
        return FormatError(
            f"damaged or incompatible MLIR bytecode: {what}",
            where=where,
            mend="raw bytecode is only readable by the MLIR that wrote it; save a StableHLO portable artifact instead",
        )
    current, written = current_stablehlo_version(), ".".join(version.groups())
    if tuple(map(int, version.groups())) > tuple(map(int, current.split("."))):
        return FormatError(
            f"the artifact is of StableHLO {written}, newer than the {current} that this jaxlib reads: {what}",
            where=where,
            mend=f"upgrade jaxlib, or serialize the artifact again for StableHLO {current}",
        )
    return FormatError(
        f"damaged StableHLO portable artifact: {what}",
        where=where,
        mend="copy or write the file again; it is cut off or changed",
    )
