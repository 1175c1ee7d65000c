"""Instructions that StableHLO has no operation for, carried through XLA's converter by a custom call.

The call's target is `unlower.hlo.` and the opcode; its configuration holds the instruction's attributes as an MLIR dictionary.
What reads StableHLO makes of it an operation `hlo.<opcode>`, which has a rule or is listed as unsupported, under its own name.
"""

from collections.abc import Callable

from unlower.readers.hlo.editor import Editor, Rewritten
from unlower.readers.hlo.faults import Fault
from unlower.readers.hlo.model import Model
from unlower.readers.hlo.wire import encode_number, repeated_integers
from unlower.readers.wire import encode_field, fields

__all__ = ["CARRIED_TARGET", "all_to_all", "blocks", "carry", "several_operands", "target", "transfer"]

CARRIED_TARGET = "unlower.hlo."
"""What the targets of carrying custom calls begin with."""

_TYPED_FFI = 4
_KEPT = (1, 7, 35, 36, 37, 38, 40, 68)
"""The fields that a custom call has as any instruction: name, metadata, ids, sharding, frontend attributes."""


def target(name: str, config: bytes, api_version: int = 1) -> bytes:
    """Encodes the fields of a custom call."""
    return encode_field(28, name.encode()) + encode_field(43, config) + encode_number(77, api_version)


def carry(editor: Editor, index: int) -> Rewritten:
    """Makes the custom call that carries an instruction."""
    model = editor.model
    opcode = model.opcodes[index]
    entries = [f"{name} = {value}" for name, value in _ATTRIBUTES.get(opcode, _unknown)(model, index)]
    gone = {number for number, *_ in fields(model.data, model.starts[index], model.stops[index])} - {*_KEPT}
    config = "{" + ", ".join(entries) + "}"
    extra = target(CARRIED_TARGET + opcode, config.encode(), _TYPED_FFI)
    return editor.changed(index, "custom-call", without=tuple(gone), extra=extra)


Entries = list[tuple[str, str]]


def _array(values: list[int]) -> str:
    return f"array<i64: {', '.join(map(str, values))}>" if values else "array<i64>"


def _none(model: Model, index: int) -> Entries:
    return []


def _unknown(model: Model, index: int) -> Entries:
    """The whole instruction, for a rule of the user's own."""
    return [("instruction", f'"{model.data[model.starts[index] : model.stops[index]].hex()}"')]


def _scaled_dot(model: Model, index: int) -> Entries:
    operands = model.operands[index]
    if len(operands) != 4:
        raise Fault(f"it has {len(operands)} operands, not 4")
    numbers = model.message(index, 30) or b""
    names = ("lhs_contracting", "rhs_contracting", "lhs_batching", "rhs_batching")
    entries = [(f"{name}_dimensions", _array(repeated_integers(numbers, i))) for i, name in enumerate(names, 1)]
    precisions = repeated_integers(model.message(index, 51) or b"", 1)
    return [*entries, ("precision_config", _array(precisions))]


def _all_to_all(model: Model, index: int) -> Entries:
    (dimension,) = model.dimensions[index]
    return [("split_dimension", f"{dimension} : i64"), ("channel_id", f"{model.integer(index, 26)} : i64")]


def _transfer(model: Model, index: int) -> Entries:
    host = "true" if model.integer(index, 47) else "false"
    return [("channel_id", f"{model.integer(index, 26)} : i64"), ("is_host_transfer", host)]


_ATTRIBUTES: dict[str, Callable[[Model, int], Entries]] = {
    "atan": _none,
    "exp2": _none,
    "log2": _none,
    "mulhi": _none,
    "scaled-dot": _scaled_dot,
    "all-to-all": _all_to_all,
    "send": _transfer,
    "send-done": _transfer,
    "recv": _transfer,
    "recv-done": _transfer,
}
"""Opcode -> what its configuration holds; unknown ones hold all of the instruction."""


def all_to_all(editor: Editor, index: int) -> Rewritten | None:
    """Carries an `all-to-all` of an array among all participants, whose number the module does not say."""
    model = editor.model
    is_array = bool(model.dimensions[index])
    groups = any(model.data[v.start : v.stop] for number in (49, 87) for v in model.extras(index).get(number, ()))
    return carry(editor, index) if is_array and not groups else None


def blocks(editor: Editor, index: int) -> Rewritten | None:
    """Carries a product of sparse or scaled blocks, of which the converter would make an ordinary one."""
    return carry(editor, index) if {98, 101} & editor.model.extras(index).keys() else None


def several_operands(editor: Editor, index: int) -> Rewritten | None:
    """Carries a collective of several operands, where StableHLO's takes one."""
    return None if len(editor.model.operands[index]) == 1 else carry(editor, index)


def transfer(editor: Editor, index: int) -> Rewritten | None:
    """Carries a transfer to or from another process, unless it is a pair on a channel, as StableHLO has it."""
    model = editor.model
    begin = index if model.opcodes[index] in ("send", "recv") else model.operands[index][0]
    return None if _is_pair(editor, begin) else carry(editor, index)


def _is_pair(editor: Editor, begin: int) -> bool:
    model = editor.model
    opcode, parts, users = model.opcodes[begin], model.shapes[begin].parts, editor.users(begin)
    if opcode not in ("send", "recv") or parts is None or len(parts) != 3 or len(users) != 1:
        return False
    if model.opcodes[users[0]] != f"{opcode}-done" or model.integer(begin, 26) <= 0:
        return False
    data, _, token = parts
    ended = model.shapes[users[0]]
    wanted = [token.key] if opcode == "send" else [data.key, token.key]
    given = [ended.key] if ended.parts is None else [part.key for part in ended.parts]
    sent = [model.shapes[operand].key for operand in model.operands[begin]]
    fits = sent == ([data.key, token.key] if opcode == "send" else [token.key])
    return fits and data.is_array and token.is_token and given == wanted
