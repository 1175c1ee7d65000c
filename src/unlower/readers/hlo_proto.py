"""HLO protos -> `ir.Module`: HloModuleProto, and the messages that wrap one.

The wrappers are told apart by the wire format alone. An HloModuleProto has a string in field 1 (name), a string in
field 2 (entry computation) and messages in field 3 (computations); HloProto and HloUnoptimizedSnapshot hold a module in
field 1, and HloSnapshot an HloProto in field 1.
"""

from collections.abc import Mapping

from unlower._jax_compat import NATIVE_ERRORS, convert_hlo_to_stablehlo, new_mlir_context
from unlower._jax_compat import mlir_ir as ir
from unlower.errors import FormatError
from unlower.ir.interface import Source
from unlower.ir.module import Location, Module
from unlower.readers.elision import Elision
from unlower.readers.hlo.guard import guard
from unlower.readers.hlo.model import read_model
from unlower.readers.hlo.rewrite import rewrite
from unlower.readers.hlo_tuples import with_tuples
from unlower.readers.isolation import read_isolated
from unlower.readers.limits import DEFAULT_LIMITS, Limits
from unlower.readers.mlir_module import bytecode_of, module_from_bytecode
from unlower.readers.mlir_properties import UnknownPropertiesError
from unlower.readers.stablehlo_text import mlir_message
from unlower.readers.wire import BYTES, fields

__all__ = ["is_hlo_proto", "module_from_hlo_proto", "module_range", "prepare", "read_hlo_proto", "unwrap"]

_LONGEST_NAME = 1 << 20


def is_hlo_proto(data: bytes) -> bool:
    """Whether `data` holds an HLO module, wrapped or not."""
    return unwrap(data) is not None


def read_hlo_proto(data: bytes, elision: Elision) -> Module | Source:
    """Reads an HloModuleProto, HloProto, HloSnapshot or HloUnoptimizedSnapshot.

    Raises:
      FormatError: damaged bytes, literals without payload, what the converter refuses, more than the limits allow.
    """
    module = unwrap(data)
    assert module is not None, "sniffed before"
    return module_from_hlo_proto(module, elision)


def module_from_hlo_proto(
    module: bytes, elision: Elision, locations: Mapping[str, Location] | None = None
) -> Module | Source:
    """Checks and rewrites a serialized HloModuleProto, converts it to StableHLO and reads that.

    Args:
      module: the bytes.
      elision: decides about constants without values.
      locations: the locations that stand for some names of instructions.
    """
    if elision.isolation is not None:
        return with_tuples(read_isolated("HLO proto", module, elision)[0], module)
    try:
        bytecode = convert_hlo_to_stablehlo(prepare(module, elision.limits))
    except NATIVE_ERRORS as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(
            f"XLA cannot convert this HLO module: {str(error).splitlines()[0]}",
            mend="if the file is whole, remove or rewrite the instruction named, or export the program as StableHLO",
        ) from None
    try:
        built = module_from_bytecode(bytecode, elision, locations)
    except UnknownPropertiesError:
        built = module_from_bytecode(_without_properties(bytecode), elision, locations)
    return with_tuples(built, module)


def _without_properties(bytecode: bytes) -> bytes:
    """Has MLIR write bytecode again, in a version in which every attribute stands with its name."""
    context = new_mlir_context()
    with context:
        try:
            return bytecode_of(ir.Module.parse(bytecode))
        except (ir.MLIRError, *NATIVE_ERRORS) as error:
            what, where = mlir_message(str(error))
            raise FormatError(
                f"XLA converted this HLO module to StableHLO that does not verify: {what}",
                where=where,
                mend="the module breaks HLO's own rules, or uses an instruction that StableHLO cannot say",
            ) from None


def prepare(module: bytes, limits: Limits = DEFAULT_LIMITS) -> bytes:
    """Returns the module as XLA's converter can take it: checked, and rewritten where it must be.

    Raises:
      FormatError: it is ill-formed, with computation and instruction; or there is more of it than the limits allow.
    """
    model = read_model(module, limits.nesting)
    guard(model, limits)
    return rewrite(model)


def unwrap(data: bytes) -> bytes | None:
    """Finds the HloModuleProto in `data`, at most two wrappers deep; None if there is none."""
    found = module_range(data)
    return None if found is None else data[found[0] : found[1]]


def module_range(data: bytes | memoryview) -> tuple[int, int] | None:
    """Finds where in `data` the HloModuleProto starts and stops; None if there is none."""
    start, stop = 0, len(data)
    for _ in range(3):
        values: dict[int, tuple[int, int]] = {}
        try:
            for field in fields(data, start, stop):
                if field.kind == BYTES and field.number not in values:
                    values[field.number] = field.start, field.stop
                    if field.number == 3 and 1 in values and 2 in values:
                        break
        except FormatError:
            # Cut off further on, perhaps; what was seen says whether it is an HLO module.
            pass
        if 1 not in values:
            return None
        if 2 in values and 3 in values and _is_text(data, *values[1]) and _is_text(data, *values[2]):
            return start, stop
        start, stop = values[1]
    return None


def _is_text(data: bytes | memoryview, start: int, stop: int) -> bool:
    try:
        return stop - start <= _LONGEST_NAME and bytes(data[start:stop]).decode().isprintable()
    except UnicodeDecodeError:
        return False
