"""Rewrites that stand before XLA's converter: what it cannot express becomes something that it can.

- Opcodes without a StableHLO operation become custom calls that carry the instruction (`carried.py`).
- Everything asynchronous happens at its start: `async-start`, `copy-start` and the collectives' starts become the call, copy
  or collective itself, in a tuple of the very shape that the start had, so that updates, ends, loops and tuples around them
  stay as they are.
- A constant tuple becomes a tuple of constants; a constant whose values the file left out, a custom call with its name.
- Configurations of custom calls that are not what their API version promises become what they are: text.
- Tiles, memory spaces and their kin go from layouts.
"""

from collections.abc import Callable

from unlower.errors import FormatError
from unlower.readers.elision import ELIDED_TARGET
from unlower.readers.hlo import asynchronous, carried, configs
from unlower.readers.hlo.editor import Editor, Rewritten
from unlower.readers.hlo.faults import Fault
from unlower.readers.hlo.literals import has_payload, parts_of_literal
from unlower.readers.hlo.model import Model
from unlower.readers.hlo.opcodes import is_convertible
from unlower.readers.hlo.shapes import Shape, with_default_layout
from unlower.readers.wire import BYTES, encode_field, fields

__all__ = ["rewrite"]

Rule = Callable[[Editor, int], Rewritten | None]


def _constant(editor: Editor, index: int) -> Rewritten | None:
    model = editor.model
    literal, shape = model.message(index, 8), model.shapes[index]
    if shape.parts is not None:
        if literal is None:
            raise Fault("its literal was left out, and it is a tuple")
        assert literal is not None
        return _constant_tuple(editor, index, literal, shape)
    if literal is None or (not has_payload(literal) and 0 not in shape.dimensions):
        return editor.changed(
            index, "custom-call", without=(8,), extra=carried.target(ELIDED_TARGET, editor.elided_name(index).encode())
        )
    return None


def _constant_tuple(editor: Editor, index: int, literal: bytes, shape: Shape) -> Rewritten:
    made: Rewritten = []
    assert shape.parts is not None
    parts = [
        _part(editor, index, made, part, of) for part, of in zip(parts_of_literal(literal), shape.parts, strict=True)
    ]
    return [*made, *editor.changed(index, "tuple", operands=parts, without=(8,))]


def _part(editor: Editor, index: int, made: Rewritten, literal: bytes, shape: Shape) -> int:
    """Appends the instruction that makes a part of a constant tuple; returns its id."""
    if shape.parts is None:
        if not has_payload(literal) and 0 not in shape.dimensions:
            raise Fault("the values of a part of it were left out")
        return editor.append(made, index, "constant", shape.encoded, extra=encode_field(8, literal))
    parts = [
        _part(editor, index, made, part, of) for part, of in zip(parts_of_literal(literal), shape.parts, strict=True)
    ]
    return editor.append(made, index, "tuple", shape.encoded, operands=parts)


_RULES: dict[str, Rule] = {
    "constant": _constant,
    "custom-call": configs.custom_call,
    "call": configs.call,
    "all-to-all": carried.all_to_all,
    "convolution": carried.blocks,
    "dot": carried.blocks,
    "ragged-dot": carried.blocks,
    "collective-permute": carried.several_operands,
    "collective-broadcast": carried.several_operands,
    "send": carried.transfer,
    "send-done": carried.transfer,
    "recv": carried.transfer,
    "recv-done": carried.transfer,
    **asynchronous.RULES,
}
"""Opcode -> what becomes of it; None where it may stay."""


def rewrite(model: Model) -> bytes:
    """Rewrites a module that passed the guard; returns the very bytes where nothing has to change.

    Raises:
      FormatError: an instruction that cannot be rewritten, with its place.
    """
    editor = Editor(model)
    rules = _RULES.get
    shapes = model.shapes
    index = 0
    # Most opcodes and most shapes may stay.
    opcodes = {opcode for opcode in set(model.opcodes) if opcode in _RULES or not is_convertible(opcode)}
    try:
        for index, opcode in enumerate(model.opcodes):
            if opcode not in opcodes and shapes[index].is_plain:
                continue
            rule = rules(opcode)
            if rule is not None:
                replaced = rule(editor, index)
            elif not is_convertible(opcode):
                replaced = carried.carry(editor, index)
            else:
                replaced = None
            if replaced is None and not shapes[index].is_plain:
                replaced = _plain_shape(editor, index)
            if replaced is not None:
                editor.replace(index, replaced)
    except Fault as fault:
        raise model.error(fault, index) from None
    except FormatError as error:
        raise error if error.where else model.error(error.what, index) from None
    _rename_main(editor)
    return editor.finish(_program_shape(model))


def _rename_main(editor: Editor) -> None:
    """Gives another name to a computation that has the one under which the converter looks for the entry."""
    for place, computation in enumerate(editor.model.computations):
        if computation.name == "main" and computation.ident != editor.model.entry_id:
            editor.rename(place, "main.computation")


def _plain_shape(editor: Editor, index: int) -> Rewritten:
    model = editor.model
    if model.opcodes[index] == "bitcast":
        _check_tiles(model, index)
    return editor.changed(index, model.opcodes[index])


def _check_tiles(model: Model, index: int) -> None:
    """A bitcast of a tiled buffer is no permutation of elements unless both sides are tiled alike."""
    (operand,) = model.operands[index]
    old, new = model.shapes[operand], model.shapes[index]
    same = old.tiles == new.tiles and old.dimensions == new.dimensions and old.minor_to_major == new.minor_to_major
    if not same:
        raise Fault(f"it reads a buffer in tiles {old.tiles} as one in tiles {new.tiles}, which is not supported")


def _program_shape(model: Model) -> bytes | None:
    """The program shape in default layouts, where the one that is there has what the converter cannot take; else None."""
    (field,) = model.fields[4]
    data = model.data[field.start : field.stop]
    spans = [(f.number, data[f.start : f.stop]) for f in fields(data) if f.kind == BYTES]
    shapes = [model.shape_table[value] for number, value in spans if number in (1, 2)]
    if not any(not shape.is_plain or _is_nested(shape) for shape in shapes):
        return None
    pieces: list[bytes] = []
    for number, value in spans:
        pieces.append(
            encode_field(number, with_default_layout(model.shape_table[value]) if number in (1, 2) else value)
        )
    return b"".join(pieces)


def _is_nested(shape: Shape) -> bool:
    return shape.parts is not None and any(part.parts is not None for part in shape.parts)
