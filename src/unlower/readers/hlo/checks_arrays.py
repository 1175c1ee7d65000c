"""What instructions on arrays must be: shapes, linear algebra, computations on elements, random numbers."""

from collections.abc import Sequence

from unlower.readers.hlo import expect
from unlower.readers.hlo.faults import Fault
from unlower.readers.hlo.model import Model
from unlower.readers.hlo.shapes import COMPLEX, FLOATS, PRED, Shape
from unlower.readers.hlo.wire import repeated_integers
from unlower.readers.wire import first

__all__: list[str] = []


# --- computations on elements


@expect.check("select")
def _select(model: Model, index: int) -> None:
    chooser = expect.arrays(model, index, 3)[0]
    if chooser.element != PRED:
        raise Fault(f"it chooses by {chooser}, no predicate")


@expect.check("abs")
def _abs(model: Model, index: int) -> None:
    shape = expect.array(model, index)
    if shape.element in COMPLEX:
        raise Fault(f"it gives {shape}, no real numbers")


@expect.check("reduce", "reduce-window")
def _reduce(model: Model, index: int) -> None:
    operands = expect.arrays(model, index, 2)
    if len(operands) % 2 != 0:
        raise Fault(f"it has {len(operands)} operands, and needs two for each array")
    count = len(operands) // 2
    for shape in operands[count:]:
        if not shape.is_scalar:
            raise Fault(f"it starts from {shape}, no scalar")
    rank = len(operands[0].dimensions)
    if not all(len(shape.dimensions) == rank for shape in operands[:count]):
        raise Fault("its arrays differ in their dimensions")
    expect.results(model, index, count)
    (called,) = expect.calls(model, index, 1)
    expect.works_on_scalars(model, called, 2 * count, count)
    if model.opcodes[index] == "reduce":
        expect.dimensions(model.dimensions[index], rank)
        return
    window = _window(model, index, rank)
    sizes = [_windows_along(*pair) for pair in zip(operands[0].dimensions, window, strict=True)]
    for result in expect.results(model, index, count):
        if list(result.dimensions) != sizes:
            raise Fault(f"it gives {result}, and its window makes {sizes} of {operands[0]}")


def _window(model: Model, index: int, rank: int) -> list[bytes]:
    window = expect.message(model, index, 15, "window")
    sizes = expect.submessages(window, 1)
    if len(sizes) != rank:
        raise Fault(f"its window has {len(sizes)} dimensions, not {rank}")
    return sizes


def _windows_along(size: int, window: bytes) -> int:
    """How many windows lie along a dimension: those that fit, after dilation and padding."""
    extent, stride, low, high, dilation, base_dilation = (_signed(expect.one(window, field)) for field in range(1, 7))
    dilated = (size - 1) * max(base_dilation, 1) + 1 if size else 0
    free = dilated + low + high - ((extent - 1) * max(dilation, 1) + 1)
    return max(0, free // max(stride, 1) + 1)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


@expect.check("map")
def _map(model: Model, index: int) -> None:
    (called,) = expect.calls(model, index, 1)
    expect.works_on_scalars(model, called, len(expect.arrays(model, index)), 1)
    expect.dimensions(model.dimensions[index], len(expect.array(model, index).dimensions))


@expect.check("sort")
def _sort(model: Model, index: int) -> None:
    operands = expect.arrays(model, index)
    for result, operand in zip(expect.results(model, index, len(operands)), operands, strict=True):
        expect.same("its result", result, operand)
    expect.dimension(model, index, len(operands[0].dimensions))
    (called,) = expect.calls(model, index, 1)
    expect.works_on_scalars(model, called, 2 * len(operands), 1)
    expect.is_predicate(model, called)
    for place, parameter in enumerate(expect.parameters(model, called)):
        if parameter.element != operands[place // 2].element:
            raise Fault(f"it compares {operands[place // 2]} as {parameter}")


@expect.check("scatter")
def _scatter(model: Model, index: int) -> None:
    operands = expect.arrays(model, index, 3)
    if len(operands) % 2 != 1:
        raise Fault(f"it has {len(operands)} operands, and needs two for each array and one more")
    count = len(operands) // 2
    for result, operand in zip(expect.results(model, index, count), operands, strict=False):
        expect.same("its result", result, operand)
    (called,) = expect.calls(model, index, 1)
    expect.works_on_scalars(model, called, 2 * count, count)
    numbers = expect.message(model, index, 48, "dimension numbers")
    rank, indices, updates = (len(operands[i].dimensions) for i in (0, count, count + 1))
    expect.dimensions(repeated_integers(numbers, 1), updates, "update window dimensions")
    for field in (2, 3, 5):
        expect.dimensions(repeated_integers(numbers, field), rank, "operand dimensions")
    expect.dimensions(repeated_integers(numbers, 6), indices, "index dimensions")
    expect.dimensions([expect.one(numbers, 4)], indices + 1, "index vector dimension")


@expect.check("gather")
def _gather(model: Model, index: int) -> None:
    operand, indices = expect.arrays(model, index, 2)
    numbers = expect.message(model, index, 33, "dimension numbers")
    expect.dimensions(repeated_integers(numbers, 1), len(expect.array(model, index).dimensions), "offset dimensions")
    rank = len(operand.dimensions)
    for field in (2, 3, 5):
        expect.dimensions(repeated_integers(numbers, field), rank, "operand dimensions")
    expect.dimensions(repeated_integers(numbers, 6), len(indices.dimensions), "index dimensions")
    expect.dimensions([expect.one(numbers, 4)], len(indices.dimensions) + 1, "index vector dimension")
    sizes = model.integers(index, 34)
    if len(sizes) != rank:
        raise Fault(f"it takes slices of {len(sizes)} dimensions from {operand}")


@expect.check("select-and-scatter")
def _select_and_scatter(model: Model, index: int) -> None:
    operand, _, start = expect.arrays(model, index, 3)
    if not start.is_scalar:
        raise Fault(f"it starts from {start}, no scalar")
    expect.array(model, index)
    select, scatter = expect.calls(model, index, 2)
    expect.works_on_scalars(model, select, 2, 1)
    expect.is_predicate(model, select)
    expect.works_on_scalars(model, scatter, 2, 1)
    _window(model, index, len(operand.dimensions))


@expect.check("power")
def _power(model: Model, index: int) -> None:
    expect.one_element(expect.arrays(model, index))


# --- shapes


@expect.check("broadcast")
def _broadcast(model: Model, index: int) -> None:
    (operand,) = expect.arrays(model, index)
    values = model.dimensions[index]
    if len(values) != len(operand.dimensions):
        raise Fault(f"its dimensions {values} are not those of {operand}")
    expect.dimensions(values, len(expect.array(model, index).dimensions))


@expect.check("transpose")
def _transpose(model: Model, index: int) -> None:
    (operand,) = expect.arrays(model, index)
    values, shape = model.dimensions[index], expect.array(model, index)
    if sorted(values) != list(range(len(operand.dimensions))):
        raise Fault(f"its dimensions {values} are no permutation")
    fits = tuple([operand.dimensions[value] for value in values]) == shape.dimensions
    if not fits:
        raise Fault(f"it takes {operand} to {shape} by {values}")


@expect.check("reverse")
def _reverse(model: Model, index: int) -> None:
    (operand,) = expect.arrays(model, index)
    expect.dimensions(model.dimensions[index], len(operand.dimensions))


@expect.check("concatenate")
def _concatenate(model: Model, index: int) -> None:
    operands = expect.arrays(model, index)
    rank = len(expect.array(model, index).dimensions)
    if not all(len(operand.dimensions) == rank for operand in operands):
        raise Fault("its operands differ in their dimensions")
    expect.dimension(model, index, rank)


@expect.check("slice")
def _slice(model: Model, index: int) -> None:
    (operand,) = expect.arrays(model, index)
    count = len(model.extras(index).get(17, ()))
    if count != len(operand.dimensions):
        raise Fault(f"it takes a slice of {count} dimensions from {operand}")


@expect.check("pad")
def _pad(model: Model, index: int) -> None:
    operand, value = expect.arrays(model, index, 2)
    if not value.is_scalar:
        raise Fault(f"it pads with {value}, no scalar")
    count = len(expect.submessages(expect.message(model, index, 21, "padding"), 1))
    if count != len(operand.dimensions):
        raise Fault(f"it pads {count} dimensions of {operand}")


@expect.check("dynamic-slice", "dynamic-update-slice")
def _dynamic_slice(model: Model, index: int) -> None:
    updates = model.opcodes[index] == "dynamic-update-slice"
    operand, *rest = expect.arrays(model, index, 2 if updates else 1)
    starts, rank = rest[updates:], len(operand.dimensions)
    if not (len(starts) == rank and all(s.is_scalar for s in starts)):
        raise Fault(f"it has {len(starts)} scalars to say where in {operand}")
    if updates:
        if len(rest[0].dimensions) != rank:
            raise Fault(f"it puts {rest[0]} into {operand}")
        expect.same("its result", expect.array(model, index), operand)
    else:
        sizes = model.integers(index, 20)
        fits = len(sizes) == rank and tuple(sizes) == expect.array(model, index).dimensions
        if not fits:
            raise Fault(f"it takes {sizes} from {operand}")


@expect.check("get-dimension-size", "set-dimension-size")
def _dimension_size(model: Model, index: int) -> None:
    expect.dimension(model, index, len(expect.arrays(model, index)[0].dimensions))


# --- linear algebra


@expect.check("dot", "ragged-dot")
def _dot(model: Model, index: int) -> None:
    operands = expect.arrays(model, index, 2)
    if model.opcodes[index] == "dot":
        _dot_numbers(expect.message(model, index, 30, "dimension numbers"), operands)
        return
    numbers = expect.message(model, index, 90, "dimension numbers")
    _dot_numbers(first(numbers, 1) or b"", operands)
    for field, operand in ((2, operands[0]), (3, operands[1])):
        expect.dimensions(repeated_integers(numbers, field), len(operand.dimensions))


def _dot_numbers(numbers: bytes, operands: Sequence[Shape]) -> None:
    for contracting, batch, operand in ((1, 3, operands[0]), (2, 4, operands[1])):
        values = repeated_integers(numbers, contracting) + repeated_integers(numbers, batch)
        expect.dimensions(values, len(operand.dimensions), "contracting and batch dimensions")
    for left, right in ((1, 2), (3, 4)):
        counts = [len(repeated_integers(numbers, field)) for field in (left, right)]
        if counts[0] != counts[1]:
            raise Fault("it contracts or batches another number of dimensions left than right")


@expect.check("convolution")
def _convolution(model: Model, index: int) -> None:
    operands = expect.arrays(model, index, 2)
    if len(operands) != 2:
        raise Fault(f"it has {len(operands)} operands, not 2")
    rank = len(expect.array(model, index).dimensions)
    if not all(len(operand.dimensions) == rank for operand in operands):
        raise Fault("its operands differ in their dimensions")
    _window(model, index, rank - 2)
    numbers = expect.message(model, index, 16, "dimension numbers")
    for two, spatial in (((7, 8), 11), ((3, 4), 6), ((9, 10), 12)):
        values = [*[expect.one(numbers, field) for field in two], *repeated_integers(numbers, spatial)]
        if sorted(values) != list(range(rank)):
            raise Fault(f"its dimension numbers {values} are no permutation")


@expect.check("triangular-solve", "cholesky")
def _solve(model: Model, index: int) -> None:
    for operand in (*expect.arrays(model, index), expect.array(model, index)):
        if len(operand.dimensions) < 2:
            raise Fault(f"it has to do with {operand}, no matrix")
    matrix = expect.arrays(model, index)[0]
    if matrix.dimensions[-1] != matrix.dimensions[-2] or matrix.element not in FLOATS | COMPLEX:
        raise Fault(f"it takes {matrix}, no square matrix of floats")
    expect.one_element(expect.arrays(model, index))
    if model.opcodes[index] == "triangular-solve":
        transpose = expect.one(model.message(index, 59) or b"", 4)
        if not 0 <= transpose <= 3:
            raise Fault(f"it has the unknown kind of transposition {transpose}")


@expect.check("fft")
def _fft(model: Model, index: int) -> None:
    kind, lengths = model.integer(index, 31), model.integers(index, 32)
    if not 0 <= kind <= 3:
        raise Fault(f"it is of the unknown kind {kind}")
    if not 1 <= len(lengths) <= len(expect.array(model, index).dimensions):
        raise Fault(f"it has {len(lengths)} lengths")
    if len(lengths) > len(expect.arrays(model, index)[0].dimensions):
        raise Fault(f"it has {len(lengths)} lengths")


@expect.check("batch-norm-training", "batch-norm-grad", "batch-norm-inference")
def _batch_norm(model: Model, index: int) -> None:
    operands = expect.arrays(model, index)
    expect.one_element(operands)
    expect.results(model, index, 1 if model.opcodes[index] == "batch-norm-inference" else 3)
    expect.dimensions([model.integer(index, 25)], len(operands[0].dimensions), "feature index")


@expect.check("topk")
def _top_k(model: Model, index: int) -> None:
    if not expect.arrays(model, index)[0].dimensions:
        raise Fault("it takes the largest of a scalar")
    expect.results(model, index, 2)


# --- random numbers


@expect.check("rng")
def _rng(model: Model, index: int) -> None:
    if len(expect.arrays(model, index)) != 2:
        raise Fault("it needs two operands")
    expect.array(model, index)
    if model.integer(index, 23) not in (1, 2):
        raise Fault("it is of an unknown distribution")


@expect.check("rng-bit-generator")
def _rng_bit_generator(model: Model, index: int) -> None:
    expect.arrays(model, index)
    shape = model.shapes[index]
    if not shape.is_array and len(expect.results(model, index, 2)) != 2:
        raise Fault("it gives neither an array nor two")
    if not 0 <= model.integer(index, 70) <= 2:
        raise Fault("it is of an unknown algorithm")
