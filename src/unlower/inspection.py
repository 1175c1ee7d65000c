"""`inspect`: what a file holds, without running any of it."""

import collections
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from unlower.errors import FormatError
from unlower.evaluate.support import unsupported_ops
from unlower.ir.check import check
from unlower.ir.interface import ExportRecord, Source
from unlower.ir.module import CONSTANTS, CUSTOM_CALLS, Function, Location, Op, Value, walk
from unlower.ir.printer import print_op
from unlower.ir.types import TensorType
from unlower.ops import op_rules
from unlower.raising.normalize import normalize
from unlower.readers.detect import contents, read_source, source_path
from unlower.report import Entry, Inspection, Loop, UnsupportedOp
from unlower.signature import argument_of, signature_of

__all__ = ["inspect", "list_contents"]

_LOOPS = ("stablehlo.while", "mhlo.while")


def inspect(
    source: Any,
    *,
    rules: Mapping[str, Callable[..., Any]] | None = None,
    signature: str | None = None,
    module: str | None = None,
) -> Inspection:
    """Says what a program is made of: signature, sizes, operations, custom calls, loops, what is unsupported.

    Nothing runs, and unlike in `load` nothing is refused: constants whose values the file left out and operations
    without a rule are listed.

    Args:
      source: whatever `load` takes.
      rules: the rules by which operations count as supported, `unlower.op_rules` unless given.
      signature: as for `load`.
      module: as for `load`.

    Raises:
      FormatError: the source is damaged, or no XLA program, or it holds several and none was chosen.
      InvalidModuleError: the program is ill-formed.

    Example:
      >>> found = inspect("HloModule m\\nENTRY e { x = f32[2] parameter(0)  ROOT y = f32[2] negate(x) }")
      >>> found.inputs[0].type, dict(found.histogram)
      ('float32[2]', {'stablehlo.negate': 1})
    """
    (found, interface), elided = _read(source, {"signature": signature, "module": module})
    check(found)
    plain = normalize(found)
    call = signature_of(plain, interface)
    ops = [(function.name, index, op) for function in found.functions.values() for index, op in _numbered(function)]
    constants = [op for *_, op in ops if op.name in CONSTANTS]
    supported = op_rules if rules is None else rules
    return Inspection(
        name=found.name,
        signature=call,
        inputs=tuple(map(argument_of, plain.main.body.arguments, interface.inputs)),
        outputs=tuple(map(argument_of, plain.main.body.results, interface.outputs)),
        functions=len(found.functions),
        operations=len(ops),
        histogram=_counted(op.name for *_, op in ops),
        custom_calls=_counted(str(op.attributes.get("call_target_name")) for *_, op in ops if op.name in CUSTOM_CALLS),
        loops=tuple(
            Loop(function=function, index=index, carried=len(op.results), location=_place(op.location))
            for function, index, op in ops
            if op.name in _LOOPS
        ),
        constants=len(constants),
        constant_bytes=sum(_bytes(op.results[0]) or 0 for op in constants),
        elided=elided,
        unsupported=tuple(
            UnsupportedOp(function=function, index=index, op=print_op(op), reason=reason, location=_place(op.location))
            for function, index, op, reason in unsupported_ops(plain, supported)
        ),
        export=None if interface.export is None else _export(interface.export),
        contents=list_contents(source),
    )


def list_contents(source: Any) -> tuple[Entry, ...]:
    """Lists what is in a folder: programs, with what to pass to `load` for each, and other files; nothing for a file."""
    path = source_path(source)
    if path is None:
        return ()
    return tuple(
        Entry(name=x.name, what=x.what, bytes=x.size, option=x.option, chosen=x.chosen) for x in contents(path)
    )


def _export(record: ExportRecord) -> dict[str, Any]:
    """What a jax.export file says of itself; what it leaves open is left out."""
    pullbacks, inner = 0, record.vjp
    while inner is not None:
        pullbacks, inner = pullbacks + 1, inner.vjp
    said = {
        "function": record.function_name,
        "jax_version": record.jax_version,
        "serialization_version": record.serialization_version,
        "calling_convention_version": record.calling_convention_version,
        "devices": record.num_devices,
        "ordered_effects": list(record.ordered_effects),
        "unordered_effects": list(record.unordered_effects),
        "disabled_checks": list(record.disabled_checks),
        "nested_pullbacks": pullbacks,
    }
    return {name: value for name, value in said.items() if value or name == "devices"}


def _read(source: Any, choice: Mapping[str, Any]) -> tuple[Source, tuple[str, ...]]:
    """Reads a program, and what was left out of it."""
    try:
        return read_source(source, **choice), ()
    except FormatError as refused:
        try:
            found = read_source(source, elided="zeros", **choice)
        except FormatError:
            raise refused from None
        return found, tuple((refused.where or "").split(", "))


def _numbered(function: Function) -> Sequence[tuple[int, Op]]:
    return list(enumerate(walk(function.body)))


def _counted(names: Any) -> dict[str, int]:
    return dict(sorted(collections.Counter(names).items(), key=lambda item: (-item[1], item[0])))


def _bytes(value: Value) -> int | None:
    type_ = value.type
    if not isinstance(type_, TensorType) or not type_.is_static or not isinstance(type_.element, str):
        return None
    return type_.size * type_.dtype.itemsize


def _place(location: Location | None) -> str | None:
    return None if location is None else str(location)
