"""What each instruction must be, so that XLA's converter can take it: one function for each opcode that needs a look.

The converter builds StableHLO operations whose own verifier finds much of what can be wrong. Checked here is what it relies on
before that: numbers that it uses as indices, enumerations that it has no case for, shapes that it takes apart.
"""

from collections.abc import Callable, Sequence

from unlower.readers.hlo import checks_arrays, expect
from unlower.readers.hlo.devices import (
    check_device_list,
    check_device_range,
    check_mesh_groups,
    check_replica_groups,
    check_sharding,
)
from unlower.readers.hlo.expect import CHECKS
from unlower.readers.hlo.faults import Fault
from unlower.readers.hlo.literals import check_literal, has_payload
from unlower.readers.hlo.model import Model
from unlower.readers.hlo.shapes import PRED, Shape
from unlower.readers.hlo.wire import repeated_integers
from unlower.readers.wire import first

__all__ = ["CHECKS", "FIELD_CHECKS"]

# The checks of arrays register when their file is imported.
_ = checks_arrays

_U32, _S32 = 8, 4


# --- values and tuples


@expect.check("constant")
def _constant(model: Model, index: int) -> None:
    literal = model.message(index, 8)
    # One without elements was left out by whoever wrote the file, which is dealt with elsewhere.
    if literal is not None and (has_payload(literal) or model.shapes[index].parts is not None):
        check_literal(literal, model.shapes[index], model.shape_table)


@expect.check("iota")
def _iota(model: Model, index: int) -> None:
    expect.dimension(model, index, len(expect.array(model, index).dimensions))


@expect.check("partition-id", "replica-id")
def _own_id(model: Model, index: int) -> None:
    shape = model.shapes[index]
    if not (shape.element == _U32 and not shape.dimensions):
        raise Fault(f"it gives {shape}, not u32[]")


@expect.check("get-tuple-element")
def _get_tuple_element(model: Model, index: int) -> None:
    (operand,) = expect.operands(model, index)
    element = model.tuple_indices[index]
    if operand.parts is None or not 0 <= element < len(operand.parts):
        raise Fault(f"it takes element {element} of {operand}")
    expect.same("its result", model.shapes[index], operand.parts[element])


@expect.check("tuple")
def _tuple(model: Model, index: int) -> None:
    parts, shape = expect.operands(model, index), model.shapes[index]
    if shape.parts is None:
        raise Fault(f"it gives {shape}, no tuple")
    assert shape.parts is not None
    if len(parts) != len(shape.parts):
        raise Fault(f"it has {len(parts)} operands, and gives {shape}")
    for place, (part, wanted) in enumerate(zip(parts, shape.parts, strict=True)):
        expect.same(f"its operand {place}", part, wanted)


@expect.check("copy", "opt-barrier", "add-dependency")
def _passed_on(model: Model, index: int) -> None:
    expect.same("its operand", expect.operands(model, index)[0], model.shapes[index])


@expect.check("domain")
def _domain(model: Model, index: int) -> None:
    _passed_on(model, index)
    for number, what in ((54, "entry"), (55, "exit")):
        expect.message(model, index, number, f"sharding at its {what}")


@expect.check("after-all")
def _after_all(model: Model, index: int) -> None:
    for shape in (*expect.operands(model, index), model.shapes[index]):
        if not shape.is_token:
            raise Fault(f"it has to do with {shape}, no token")


@expect.check("bitcast")
def _bitcast(model: Model, index: int) -> None:
    for shape in (*expect.arrays(model, index), expect.array(model, index)):
        if shape.minor_to_major is None:
            raise Fault(f"it has to do with {shape} without a layout")


# --- control flow


@expect.check("while")
def _while(model: Model, index: int) -> None:
    cond, body = _while_computations(model, index)
    (carry,) = expect.operands(model, index)
    expect.same("its result", model.shapes[index], carry)
    expect.fits_call(model, body, [carry], carry)
    expect.fits_call(model, cond, [carry], None)
    expect.is_predicate(model, cond)


def _while_computations(model: Model, index: int) -> tuple[int, int]:
    body, cond = expect.calls(model, index, 2)
    return cond, body


@expect.check("conditional")
def _conditional(model: Model, index: int) -> None:
    called, operands = model.called[index], expect.operands(model, index)
    if not called:
        raise Fault("it calls no computation")
    if len(operands) != len(called) + 1:
        raise Fault(f"it has {len(operands)} operands for {len(called)} branches")
    chooser = operands[0]
    fits = chooser.is_scalar and (chooser.element == _S32 or (chooser.element == PRED and len(called) == 2))
    if not fits:
        raise Fault(f"{chooser} chooses between its {len(called)} branches")
    for branch, operand in zip(called, operands[1:], strict=True):
        expect.fits_call(model, branch, [operand], model.shapes[index])


@expect.check("call", "fusion")
def _call(model: Model, index: int) -> None:
    (called,) = expect.calls(model, index, 1)
    expect.fits_call(model, called, expect.operands(model, index), model.shapes[index])


@expect.check("scan")
def _scan(model: Model, index: int) -> None:
    (called,) = expect.calls(model, index, 1)
    parameters, operands = expect.parameters(model, called), expect.operands(model, index)
    name = model.computations[called].name
    if not operands:
        raise Fault("it has no operands")
    if len(parameters) != len(operands):
        raise Fault(f"{name} has {len(parameters)} parameters for {len(operands)} operands")
    results, root = model.shapes[index], expect.root(model, called)
    count = 1 if results.parts is None else len(results.parts)
    given = 1 if root.parts is None else len(root.parts)
    if count != given:
        raise Fault(f"{name} gives {root}, for results {results}")
    if not all(shape.is_array for shape in (*operands, *parameters)):
        raise Fault("it works on tuples")
    carries = model.integer(index, 95)
    if not 0 <= carries <= len(operands):
        raise Fault(f"it carries {carries} of its {len(operands)} operands")
    if not 0 <= model.integer(index, 96) <= 2:
        raise Fault("whether it is associative is neither known nor unknown")
    ranks = [len(shape.dimensions) for shape in operands[: len(operands) - carries]]
    expect.dimension(model, index, min(ranks, default=1))


# --- the outside


@expect.check("infeed")
def _infeed(model: Model, index: int) -> None:
    parts, operand = model.shapes[index].parts, expect.operands(model, index)[0]
    fits = operand.is_token and parts is not None and len(parts) == 2 and parts[1].is_token
    if not fits:
        raise Fault(f"it gives {model.shapes[index]}, not values and a token")
    assert parts is not None
    data = (parts[0],) if parts[0].parts is None else parts[0].parts
    if not all(part.is_array for part in data):
        raise Fault(f"it gives {parts[0]}, with a tuple in a tuple")


@expect.check("outfeed")
def _outfeed(model: Model, index: int) -> None:
    data, token = expect.operands(model, index)
    if not (token.is_token and model.shapes[index].is_token):
        raise Fault("it has no token")
    declared = model.shape_table[expect.message(model, index, 29, "shape of what it sends")]
    expect.same("what it sends", data, declared)


@expect.check("all-reduce", "all-reduce-start", "reduce-scatter", "all-gather", "all-gather-start")
def _collective(model: Model, index: int) -> None:
    operands, opcode = expect.arrays(model, index), model.opcodes[index]
    if not opcode.endswith("-start"):
        results = expect.results(model, index, len(operands))
        if opcode == "all-reduce":
            for result, operand in zip(results, operands, strict=True):
                expect.same("its result", result, operand)
        if not all(len(r.dimensions) == len(o.dimensions) for r, o in zip(results, operands, strict=True)):
            raise Fault("its results have other dimensions than its operands")
    if not opcode.startswith("all-gather"):
        (called,) = expect.calls(model, index, 1)
        expect.works_on_scalars(model, called, 2, 1)
    if not opcode.startswith("all-reduce"):
        expect.dimension(model, index, len(operands[0].dimensions))


@expect.check("all-to-all")
def _all_to_all(model: Model, index: int) -> None:
    operands = expect.arrays(model, index)
    if model.dimensions[index]:
        if len(operands) != 1:
            raise Fault(f"it has {len(operands)} operands, and splits one")
        expect.array(model, index)
        expect.dimension(model, index, len(operands[0].dimensions))
        return
    parts = model.shapes[index].parts
    if not (parts is not None and len(parts) == len(operands)):
        raise Fault(f"it gives {model.shapes[index]} from {len(operands)} operands")


@expect.check("collective-broadcast", "collective-permute", "collective-permute-start")
def _permute(model: Model, index: int) -> None:
    expect.arrays(model, index)
    if not model.opcodes[index].endswith("-start"):
        expect.results(model, index, len(model.operands[index]))


@expect.check("send", "recv", "send-done", "recv-done")
def _transfer(model: Model, index: int) -> None:
    shapes, opcode = expect.operands(model, index), model.opcodes[index]
    if opcode in ("send", "recv"):
        if not shapes[-1].is_token:
            raise Fault("it has no token")
    else:
        if shapes[0].parts is None:
            raise Fault(f"it ends {shapes[0]}, which no transfer gives")


# --- fields that any instruction may have


def _check_sharding_field(model: Model, index: int, number: int) -> None:
    for message in model.messages(index, number):
        if message not in model.checked:
            check_sharding(message)
            model.checked.add(message)


def _check_groups(model: Model, index: int, number: int) -> None:
    check_replica_groups(model.messages(index, number))


def _check_each(function: Callable[[bytes], None]) -> Callable[[Model, int, int], None]:
    def check_field(model: Model, index: int, number: int) -> None:
        for message in model.messages(index, number):
            function(message)

    return check_field


def _check_precision(model: Model, index: int, number: int) -> None:
    for message in model.messages(index, number):
        if message in model.checked:
            continue
        if not all(0 <= i <= 3 for i in repeated_integers(message, 1)):
            raise Fault("its precision is of an unknown kind")
        if not 0 <= expect.one(message, 2) <= 13:
            raise Fault("its precision is of an unknown algorithm")
        model.checked.add(message)


def _check_aliases(model: Model, index: int, number: int) -> None:
    """Checks `OutputOperandAliasing`s: paths into the result, operands, and paths into them."""
    operands = expect.operands(model, index)
    for message in model.messages(index, number):
        _path(repeated_integers(message, 1), model.shapes[index], "output")
        operand = expect.one(message, 2)
        if not 0 <= operand < len(operands):
            raise Fault(f"it shares the buffer of operand {operand}, of {len(operands)}")
        _path(repeated_integers(message, 3), operands[operand], "operand")


def _path(path: Sequence[int], shape: Shape, what: str) -> None:
    for step in path:
        if shape.parts is None or not 0 <= step < len(shape.parts):
            raise Fault(f"it shares the buffer of {what} {list(path)}, which there is not")
        shape = shape.parts[step]


def _check_replication(model: Model, index: int, number: int) -> None:
    leaves = model.shapes[index].leaves
    for message in model.messages(index, number):
        count = len(repeated_integers(message, 1))
        if count not in (0, leaves):
            raise Fault(f"it says of {count} of its {leaves} arrays whether they are replicated")


def _check_hints(model: Model, index: int, number: int) -> None:
    """Checks `FrontendAttributes`: an attribute without a name ends the process."""
    for message in model.messages(index, number):
        if message not in model.checked:
            for entry in expect.submessages(message, 1):
                if not first(entry, 1):
                    raise Fault("it has a frontend attribute without a name")
            model.checked.add(message)


FIELD_CHECKS: dict[int, Callable[[Model, int, int], None]] = {
    40: _check_sharding_field,
    49: _check_groups,
    51: _check_precision,
    54: _check_sharding_field,
    55: _check_sharding_field,
    61: _check_replication,
    68: _check_hints,
    74: _check_aliases,
    87: _check_each(check_device_list),
    92: _check_each(check_device_range),
    93: _check_each(check_mesh_groups),
}
"""Field number -> check of that field, wherever it occurs."""
