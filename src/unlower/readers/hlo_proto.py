"""HLO protos -> `ir.Module`: HloModuleProto, and the messages that wrap one.

The wrappers are told apart by the wire format alone. An HloModuleProto has a string in field 1 (name), a string in
field 2 (entry computation) and messages in field 3 (computations); HloProto and HloUnoptimizedSnapshot hold a module in
field 1, and HloSnapshot an HloProto in field 1.
"""

from unlower._jax_compat import convert_hlo_to_stablehlo, new_mlir_context
from unlower._jax_compat import mlir_ir as ir
from unlower.errors import FormatError
from unlower.ir.module import Module
from unlower.readers.elision import ELIDED_TARGET, Elision
from unlower.readers.mlir_module import bytecode_of, module_from_bytecode
from unlower.readers.stablehlo_text import mlir_message
from unlower.readers.wire import BYTES, encode_field, fields, first, replace_messages, varints

__all__ = ["is_hlo_proto", "module_from_hlo_proto", "read_hlo_proto", "unwrap"]

_COMPUTATIONS, _INSTRUCTIONS = 3, 2
_NAME, _OPCODE, _SHAPE, _LITERAL, _TARGET, _BACKEND_CONFIG = 1, 2, 3, 8, 28, 43
_IS_CONSTANT = encode_field(_OPCODE, b"constant")


def is_hlo_proto(data: bytes) -> bool:
    """Whether `data` holds an HLO module, wrapped or not."""
    return unwrap(data) is not None


def read_hlo_proto(data: bytes, elision: Elision) -> Module:
    """Reads an HloModuleProto, HloProto, HloSnapshot or HloUnoptimizedSnapshot.

    Raises:
      FormatError: damaged bytes, literals without payload, what the converter refuses.
    """
    module = unwrap(data)
    assert module is not None, "sniffed before"
    return module_from_hlo_proto(_mark_elided(module), elision)


def module_from_hlo_proto(module: bytes, elision: Elision) -> Module:
    """Converts a serialized HloModuleProto to StableHLO and reads that."""
    try:
        bytecode = convert_hlo_to_stablehlo(module)
    except (RuntimeError, ValueError) as error:
        raise FormatError(
            f"XLA cannot convert this HLO module: {str(error).splitlines()[0]}",
            mend="if the file is whole, remove or rewrite the instruction named, or export the program as StableHLO",
        ) from None
    context = new_mlir_context()
    with context:
        try:
            bytecode = bytecode_of(ir.Module.parse(bytecode))
        except (ir.MLIRError, ValueError, RuntimeError) as error:
            what, where = mlir_message(str(error))
            raise FormatError(
                f"XLA converted this HLO module to StableHLO that does not verify: {what}",
                where=where,
                mend="the module breaks HLO's own rules, or uses an instruction that StableHLO cannot say",
            ) from None
    del context
    return module_from_bytecode(bytecode, elision)


def unwrap(data: bytes) -> bytes | None:
    """Finds the HloModuleProto in `data`, at most two wrappers deep; None if there is none."""
    for _ in range(3):
        values: dict[int, bytes] = {}
        try:
            for field in fields(data):
                if field.kind == BYTES and field.number not in values:
                    values[field.number] = data[field.start : field.stop]
                    if field.number == 3 and 1 in values and 2 in values:
                        break
        except FormatError:
            # Cut off further on, perhaps; what was seen says whether it is an HLO module.
            pass
        if 1 not in values:
            return None
        if _is_text(values[1]) and _is_text(values.get(2, b"\xff")) and 3 in values:
            return data
        data = values[1]
    return None


def _is_text(value: bytes) -> bool:
    try:
        return value.decode().isprintable()
    except UnicodeDecodeError:
        return False


def _mark_elided(module: bytes) -> bytes:
    """Puts a custom call in the place of each constant whose literal has no payload."""
    names: dict[str, int] = {}

    def instruction(data: bytes) -> bytes | None:
        if _IS_CONSTANT not in data:
            return None
        values = {f.number: data[f.start : f.stop] for f in fields(data) if f.kind == BYTES}
        if values.get(_OPCODE) != b"constant" or _has_payload(values.get(_LITERAL, b""), values.get(_SHAPE, b"")):
            return None
        name = values.get(_NAME, b"constant").decode("utf-8", "replace")
        names[name] = count = names.get(name, 0) + 1
        kept = [data[a:b] for number, a, b in _spans(data) if number not in (_OPCODE, _LITERAL)]
        return b"".join(
            [
                *kept,
                encode_field(_OPCODE, b"custom-call"),
                encode_field(_TARGET, ELIDED_TARGET.encode()),
                encode_field(_BACKEND_CONFIG, (name if count == 1 else f"{name}#{count}").encode()),
            ]
        )

    def computation(data: bytes) -> bytes | None:
        return replace_messages(data, _INSTRUCTIONS, instruction)

    return replace_messages(module, _COMPUTATIONS, computation) or module


def _spans(data: bytes) -> list[tuple[int, int, int]]:
    """Returns `(number, start, stop)` of each field, key included."""
    spans, at = [], 0
    for field in fields(data):
        spans.append((field.number, at, field.stop))
        at = field.stop
    return spans


def _has_payload(literal: bytes, shape: bytes) -> bool:
    """Whether a literal holds elements; LiteralProto: field 1 is the shape, every other one but 14 holds elements."""
    if any(field.number not in (1, 14) for field in fields(literal)):
        return True
    # No elements: right for an array of size 0 and for the empty tuple.
    shape = first(literal, 1) or shape
    element_types = varints(shape, 2)
    is_tuple = element_types == [13]
    return is_tuple or 0 in varints(shape, 3)
