"""Words for what an instruction is expected to be; each raises Fault where it is not."""

from collections.abc import Callable, Sequence

from unlower.readers.hlo.faults import Fault
from unlower.readers.hlo.model import Model
from unlower.readers.hlo.shapes import PRED, Shape
from unlower.readers.hlo.wire import repeated_integers
from unlower.readers.wire import BYTES, fields

__all__ = [
    "CHECKS",
    "array",
    "arrays",
    "calls",
    "check",
    "dimension",
    "dimensions",
    "fits_call",
    "is_predicate",
    "message",
    "one",
    "one_element",
    "operands",
    "parameters",
    "results",
    "root",
    "same",
    "submessages",
    "works_on_scalars",
]

Check = Callable[[Model, int], None]

CHECKS: dict[str, Check] = {}
"""Opcode -> check; raises Fault."""


def check(*opcodes: str) -> Callable[[Check], Check]:
    """Registers `function(model, index)` as the check of opcodes."""

    def register(function: Check) -> Check:
        CHECKS.update(dict.fromkeys(opcodes, function))
        return function

    return register


def operands(model: Model, index: int) -> list[Shape]:
    """The shapes of its operands."""
    return [model.shapes[operand] for operand in model.operands[index]]


def arrays(model: Model, index: int, least: int = 1) -> list[Shape]:
    """The shapes of its operands, which must be arrays, and no fewer than `least`."""
    shapes = operands(model, index)
    if len(shapes) < least:
        raise Fault(f"it has {len(shapes)} operands, and needs {least}")
    for place, shape in enumerate(shapes):
        if not shape.is_array:
            raise Fault(f"its operand {place} is {shape}, no array")
    return shapes


def array(model: Model, index: int) -> Shape:
    """The shape of its result, which must be an array."""
    shape = model.shapes[index]
    if not shape.is_array:
        raise Fault(f"it gives {shape}, no array")
    return shape


def one_element(shapes: Sequence[Shape]) -> None:
    """Checks that arrays have elements of one type."""
    for shape in shapes:
        if shape.element != shapes[0].element:
            raise Fault(f"it mixes {shapes[0]} and {shape}")


def same(what: str, shape: Shape, wanted: Shape) -> None:
    """Checks that two shapes are the same up to their layouts."""
    if shape.key != wanted.key:
        raise Fault(f"{what} is {shape}, not {wanted}")


def results(model: Model, index: int, count: int) -> Sequence[Shape]:
    """The results of an operation that gives an array, or a tuple of `count` of them."""
    shape = model.shapes[index]
    results = (shape,) if shape.parts is None and count == 1 else shape.parts
    fits = results is not None and len(results) == count and all(result.is_array for result in results)
    if not fits:
        raise Fault(f"it gives {shape}, not {count} arrays")
    assert results is not None
    return results


def dimensions(values: Sequence[int], rank: int, what: str = "dimensions", *, distinct: bool = True) -> None:
    """Checks that numbers are dimensions of an array of `rank`."""
    if not all(0 <= value < rank for value in values):
        raise Fault(f"its {what} {list(values)} are not all below {rank}")
    if distinct and len(set(values)) != len(values):
        raise Fault(f"its {what} {list(values)} have one twice")


def dimension(model: Model, index: int, rank: int) -> int:
    """The only number in the field `dimensions`, which must be a dimension of an array of `rank`."""
    values = model.dimensions[index]
    if not (len(values) == 1 and 0 <= values[0] < rank):
        raise Fault(f"its dimensions {values} are not one below {rank}")
    return values[0]


def parameters(model: Model, computation: int) -> list[Shape]:
    """The shapes of a computation's parameters."""
    return [model.shapes[parameter] for parameter in model.computations[computation].parameters]


def root(model: Model, computation: int) -> Shape:
    """The shape of a computation's result."""
    return model.shapes[model.computations[computation].root]


def calls(model: Model, index: int, count: int) -> list[int]:
    """The computations that it calls, of which there must be `count`."""
    called = model.called[index]
    if len(called) != count:
        raise Fault(f"it calls {len(called)} computations, not {count}")
    return called


def fits_call(model: Model, computation: int, arguments: Sequence[Shape], result: Shape | None) -> None:
    """Checks a computation that is called with `arguments`."""
    name = model.computations[computation].name
    taken = parameters(model, computation)
    if len(taken) != len(arguments):
        raise Fault(f"{name} has {len(taken)} parameters, and is given {len(arguments)} operands")
    for place, (argument, parameter) in enumerate(zip(arguments, taken, strict=True)):
        same(f"operand {place} of {name}", argument, parameter)
    if result is not None:
        same(f"the result of {name}", root(model, computation), result)


def works_on_scalars(model: Model, computation: int, inputs: int, outputs: int) -> None:
    """Checks a computation that works on one element of each array at a time."""
    name = model.computations[computation].name
    found = parameters(model, computation)
    if len(found) != inputs:
        raise Fault(f"{name} has {len(found)} parameters, not {inputs}")
    for place, shape in enumerate(found):
        if not shape.is_scalar:
            raise Fault(f"parameter {place} of {name} is {shape}, no scalar")
    given = root(model, computation)
    parts = (given,) if given.parts is None else given.parts
    fits = len(parts) == outputs and all(part.is_scalar for part in parts)
    if not fits:
        raise Fault(f"{name} gives {given}, not {outputs} scalars")


def is_predicate(model: Model, computation: int) -> None:
    """Checks that a computation gives a scalar predicate."""
    given = root(model, computation)
    fits = given.element == PRED and not given.dimensions
    if not fits:
        raise Fault(f"{model.computations[computation].name} gives {given}, not pred[]")


def message(model: Model, index: int, number: int, what: str) -> bytes:
    """The value of a field that must be there."""
    data = model.message(index, number)
    if data is None:
        raise Fault(f"it has no {what}")
    assert data is not None
    return data


def submessages(data: bytes, number: int) -> list[bytes]:
    """The values of a repeated field of messages."""
    return [data[f.start : f.stop] for f in fields(data) if f.number == number and f.kind == BYTES]


def one(data: bytes, number: int) -> int:
    """The value of an integer field of a message; 0 where it has none."""
    return sum(repeated_integers(data, number))
