"""Asynchronous instructions, made synchronous: all that they do happens at the start.

A start becomes the tuple that it declares, of operands, result and whatever else is in it, so that everything which takes it
(an update, an end, a loop that carries it, a tuple) may stay as it is. Numerically nothing changes.
"""

from collections.abc import Callable, Sequence

from unlower.readers.hlo.editor import Editor, Rewritten
from unlower.readers.hlo.faults import Fault
from unlower.readers.hlo.model import Model
from unlower.readers.hlo.shapes import Shape
from unlower.readers.hlo.wire import encode_number

__all__ = ["RULES"]

_TUPLE_INDEX, _CALLED = 13, 38


def _copy_start(editor: Editor, index: int) -> Rewritten:
    model = editor.model
    shape, (operand,) = model.shapes[index], editor.operand_ids(index)
    parts = list(shape.parts or ())
    key = model.shapes[model.operands[index][0]].key
    fits = len(parts) >= 2 and parts[0].key == parts[1].key == key
    if not fits:
        raise Fault(f"it copies {model.shapes[model.operands[index][0]]}, and gives {shape}")
    made: Rewritten = []
    copied = editor.append(made, index, "copy", parts[0].encoded, operands=[operand])
    return _bundle(editor, index, made, [copied, operand], parts[2:])


def _bundle(editor: Editor, index: int, made: Rewritten, values: list[int], rest: Sequence[Shape]) -> Rewritten:
    """The tuple that stands for a start: values, and something for the rest, which nobody looks at."""
    values = values + [editor.append_zeros(made, index, part) for part in rest]
    gone = tuple(number for number in editor.model.extras(index) if number != 68)
    return [*made, *editor.changed(index, "tuple", operands=values, without=(_CALLED, 14, *gone))]


def _copy_done(editor: Editor, index: int) -> Rewritten:
    return _take(editor, index, 0)


def _take(editor: Editor, index: int, element: int) -> Rewritten:
    """The end of what started: an element of its tuple, or all of it."""
    model = editor.model
    operand, shape = model.shapes[model.operands[index][0]], model.shapes[index]
    gone = (_CALLED, *model.extras(index))
    if operand.key == shape.key:
        return editor.changed(index, "copy", without=gone)
    fits = operand.parts is not None and len(operand.parts) > element and operand.parts[element].key == shape.key
    if not fits:
        raise Fault(f"it gives {shape}, the result of {operand}")
    return editor.changed(index, "get-tuple-element", without=gone, extra=encode_number(_TUPLE_INDEX, element))


def _done(editor: Editor, index: int) -> Rewritten:
    return _take(editor, index, 1)


def _collective_start(editor: Editor, index: int) -> Rewritten:
    """A collective's start gives its result alone, or operands, result, and places for its own use."""
    model = editor.model
    opcode, shape = model.opcodes[index].removesuffix("-start"), model.shapes[index]
    operands = [model.shapes[operand] for operand in model.operands[index]]
    ids = editor.operand_ids(index)
    if opcode == "collective-permute" and len(operands) != 1:
        raise Fault(f"it has {len(operands)} operands, and moves one")
    if shape.parts is None or (opcode == "all-reduce" and _are(shape.parts, operands) and len(operands) > 1):
        _check_result(opcode, operands, shape)
        return editor.changed(index, opcode)
    if len(shape.parts) < 2:
        raise Fault(f"it gives {shape}, not its operands and result")
    given, result = shape.parts[0], shape.parts[1]
    _check_result(opcode, operands, result)
    made: Rewritten = []
    done = editor.append_changed(made, index, opcode, result.encoded)
    if given.parts is None:
        if not _are([given], operands):
            raise Fault(f"it gives {given} for its operands")
        (first,) = ids
    else:
        if not _are(given.parts, operands):
            raise Fault(f"it gives {given} for its operands")
        first = editor.append(made, index, "tuple", given.encoded, operands=ids)
    return _bundle(editor, index, made, [first, done], shape.parts[2:])


def _are(parts: Sequence[Shape], operands: Sequence[Shape]) -> bool:
    return [part.key for part in parts] == [operand.key for operand in operands]


def _check_result(opcode: str, operands: Sequence[Shape], result: Shape) -> None:
    results = (result,) if result.parts is None else result.parts
    alike = opcode == "all-gather" or _are(results, operands)
    ranks = [len(part.dimensions) for part in results] == [len(operand.dimensions) for operand in operands]
    if not (alike and ranks and all(part.is_array for part in results)):
        raise Fault(f"it gives {result} from its operands")


# --- async-start and its kin, which wrap a computation


def _wrapped(model: Model, index: int) -> tuple[int, list[Shape], Shape]:
    """The computation that an asynchronous instruction runs, what it takes, and what it gives."""
    called = model.called[index]
    if len(called) != 1:
        raise Fault(f"it runs {len(called)} computations, not one")
    computation = model.computations[called[0]]
    return called[0], [model.shapes[p] for p in computation.parameters], model.shapes[computation.root]


def _async_start(editor: Editor, index: int) -> Rewritten:
    return _run(editor, index, editor.model.operands[index])


def _async_update(editor: Editor, index: int) -> Rewritten:
    """Passes on what is there; newer HLO gives operands at an update, and all of them together run the computation."""
    model = editor.model
    operand, *late = model.operands[index]
    before, shape = model.shapes[operand], model.shapes[index]
    if not late:
        if before.key != shape.key:
            raise Fault(f"it gives {shape}, of {before}")
        return editor.changed(index, "copy", without=(_CALLED, *model.extras(index)))
    return _run(editor, index, [*_bound(model, operand), *late])


def _bound(model: Model, index: int) -> list[int]:
    """The operands that a start and the updates after it were given."""
    if model.opcodes[index] == "async-update":
        before, *late = model.operands[index]
        return [*_bound(model, before), *late]
    if model.opcodes[index] != "async-start":
        raise Fault("it gives operands to what is no start")
    return model.operands[index]


def _start_of(model: Model, index: int) -> int:
    while model.opcodes[index] == "async-update":
        index = model.operands[index][0]
    return index


def _run(editor: Editor, index: int, bound: list[int]) -> Rewritten:
    model = editor.model
    shape = model.shapes[index]
    parts = list(shape.parts or ())
    if len(parts) < 2:
        raise Fault(f"it gives {shape}, not its operands and result")
    given, result, *rest = parts
    caller = index if model.called[index] else _start_of(model, index)
    called, parameters, root = _wrapped(model, caller)
    operands = [model.shapes[operand] for operand in bound]
    made: Rewritten = []
    if len(bound) < len(parameters) or result.key != root.key:
        # Not all that it needs is there: nobody takes the result before it is.
        if result.parts != ():
            raise Fault(f"it gives {result} before it has its {len(parameters)} operands")
        values = [editor.append_zeros(made, index, given)]
        return _bundle(editor, index, made, values, [result, *rest])
    name = model.computations[called].name
    if not _are(parameters, operands):
        raise Fault(f"{name} takes other operands than it is given")
    ids = [model.ids[operand] for operand in bound]
    computation = model.computations[called].ident
    done = editor.append(made, index, "call", root.encoded, operands=ids, called=[computation])
    fits = given.parts is not None and _are(given.parts, operands)
    if not fits:
        raise Fault(f"it gives {given} for its operands")
    first = editor.append(made, index, "tuple", given.encoded, operands=ids)
    return _bundle(editor, index, made, [first, done], rest)


RULES: dict[str, Callable[[Editor, int], Rewritten]] = {
    "copy-start": _copy_start,
    "copy-done": _copy_done,
    "all-gather-start": _collective_start,
    "all-gather-done": _done,
    "all-reduce-start": _collective_start,
    "all-reduce-done": _done,
    "collective-permute-start": _collective_start,
    "collective-permute-done": _done,
    "async-start": _async_start,
    "async-update": _async_update,
    "async-done": _done,
}
"""Opcode -> what becomes of it."""
