"""Configurations of calls: text that XLA's converter parses, and believes to be what it parsed."""

import json

from unlower._jax_compat import is_dictionary_attribute
from unlower.readers.hlo.editor import Editor, Rewritten
from unlower.readers.hlo.faults import Fault
from unlower.readers.hlo.model import Model
from unlower.readers.hlo.wire import encode_number
from unlower.readers.wire import BYTES, encode_field, fields, first

__all__ = ["call", "custom_call"]

_CONFIG, _HINTS, _API_VERSION, _IS_COMPOSITE = 43, 68, 77, 89
_STATUS_RETURNING, _TYPED_FFI = 2, 4
_INT32 = 1 << 31


def custom_call(editor: Editor, index: int) -> Rewritten | None:
    """Makes the configuration of a typed call a dictionary, or the call an untyped one; checks what else it says."""
    model = editor.model
    _check_layouts(model, index)
    version = model.integer(index, _API_VERSION)
    if not 0 <= version <= _TYPED_FFI:
        raise Fault(f"it is of the unknown API version {version}")
    if not 0 <= model.integer(index, 76) <= 2:
        raise Fault("it has an unknown schedule")
    config = (model.message(index, _CONFIG) or b"").decode("utf-8", "replace")
    name = model.message(index, 28) or b""
    if name.startswith(b"mhlo."):
        # The converter makes an operation of it, by what the configuration says.
        if not _is_dictionary(model, config):
            raise Fault(f"its configuration {config[:80]!r} is no dictionary")
        return None
    if version != _TYPED_FFI or not config or _is_dictionary(model, config):
        return None
    attributes = _attributes_in_json(config)
    if attributes is not None and _is_dictionary(model, attributes):
        return editor.changed(
            index, "custom-call", without=(_CONFIG,), extra=encode_field(_CONFIG, attributes.encode())
        )
    return editor.changed(
        index, "custom-call", without=(_API_VERSION,), extra=encode_number(_API_VERSION, _STATUS_RETURNING)
    )


def _is_dictionary(model: Model, text: str) -> bool:
    key = text.encode()
    if key in model.checked:
        return True
    depth = deepest = 0
    for character in text:
        depth += (character in "{[<(") - (character in ")>]}")
        deepest = max(deepest, depth)
    if deepest > 50 or not is_dictionary_attribute(text):
        return False
    model.checked.add(key)
    return True


def _attributes_in_json(config: str) -> str | None:
    """Finds the attributes of a typed call in XLA's own configuration of GPU instructions, which is JSON."""
    try:
        found = json.loads(config)
        found = found["custom_call_backend_config"]["attributes"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return found if isinstance(found, str) else None


def _check_layouts(model: Model, index: int) -> None:
    """Checks a call that asks for layouts: XLA takes those of every operand, and of every result."""
    if not model.integer(index, 56):
        return
    asked = [model.shape_table[data] for data in model.messages(index, 57)]
    operands = [model.shapes[operand] for operand in model.operands[index]]
    if len(asked) != len(operands):
        raise Fault(f"it asks for layouts of {len(asked)} operands, of {len(operands)}")
    for place, (layout, operand) in enumerate(zip(asked, operands, strict=True)):
        if layout.key != operand.key:
            raise Fault(f"it asks for operand {place} as {layout}, and has {operand}")
    waiting = [*asked, model.shapes[index]]
    while waiting:
        shape = waiting.pop()
        waiting += shape.parts or ()
        if shape.is_array and shape.minor_to_major is None:
            raise Fault(f"it asks for a layout of {shape}, and says none")


def call(editor: Editor, index: int) -> Rewritten | None:
    """Makes a composite without a name, attributes and a version an ordinary call, which means the same."""
    model = editor.model
    if not model.integer(index, _IS_COMPOSITE):
        return None
    found: dict[bytes, bytes] = {}
    for number, kind, start, stop in fields(hints := model.message(index, _HINTS) or b""):
        if number == 1 and kind == BYTES:
            entry = hints[start:stop]
            found[first(entry, 1) or b""] = first(entry, 2) or b""
    attributes = found.get(b"composite.attributes", b"").decode("utf-8", "replace")
    version = found.get(b"composite.version", b"")
    if (
        found.get(b"composite.name")
        and version.removeprefix(b"-").isdigit()
        and -_INT32 <= int(version) < _INT32
        and _is_dictionary(model, attributes)
    ):
        return None
    return editor.changed(index, "call", without=(_IS_COMPOSITE,))
