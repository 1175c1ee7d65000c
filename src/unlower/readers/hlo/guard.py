"""Checks that stand before XLA's converter: what passes them does not end the process there.

Every check names computation and instruction. The order is that of cost: columns over all instructions first, then the
instructions whose opcode needs a look, then the module as a whole.
"""

import secrets

import numpy as np

from unlower.errors import FormatError
from unlower.readers.hlo.checks import CHECKS, FIELD_CHECKS
from unlower.readers.hlo.devices import check_sharding
from unlower.readers.hlo.faults import Fault
from unlower.readers.hlo.model import Model, Ragged
from unlower.readers.hlo.opcodes import ARITIES, INLINED, VARIADIC, words
from unlower.readers.hlo.shapes import Shape
from unlower.readers.hlo.stack_frames import check_stack_frames
from unlower.readers.hlo.wire import repeated_integers
from unlower.readers.limits import Limits
from unlower.readers.wire import BYTES, fields, first

__all__ = ["guard"]

_MEND = "the file is damaged or was changed; write it again"

_ELEMENTWISE = words(
    """abs acos acosh add and asin asinh atan2 atanh bitcast-convert cbrt ceil compare complex convert cosine cosh
    count-leading-zeros divide erf exponential exponential-minus-one floor imag is-finite log log-plus-one logistic maximum
    minimum multiply negate not or popcnt power real reduce-precision remainder round-nearest-afz round-nearest-even rsqrt
    shift-left shift-right-arithmetic shift-right-logical sign sine sinh sqrt stochastic-convert subtract tan tanh
    xor"""
)
_ARRAYS = _ELEMENTWISE | words("clamp select reshape dynamic-reshape rng-get-and-update-state collective-broadcast")
"""Opcodes that take and give arrays; of the first, arrays of the same sizes (a `bitcast-convert` may change the last)."""

_MIX = np.uint64(0x9E3779B97F4A7C15)
_MASK = (1 << 64) - 1

_FREE_SIZES = frozenset(["bitcast-convert"])


def guard(model: Model, limits: Limits) -> None:
    """Checks a module.

    Raises:
      FormatError: the first fault, with its place.
    """
    limits.check("operations", len(model.ids), f"the module has {len(model.ids):,} instructions")
    _check_constants(model, limits)
    _check_parameters(model)
    _check_instructions(model)
    _check_expanded_size(model, limits)
    _check_entry(model)
    _check_module_fields(model)


def _check_constants(model: Model, limits: Limits) -> None:
    size = sum(v.stop - v.start for index in model.with_field(8) for v in model.extras(index)[8])
    limits.check("constant_bytes", size, f"the module has {size:,} bytes of constants")


def _check_parameters(model: Model) -> None:
    """Finds the parameters of each computation; their numbers must be 0, 1, 2, ..."""
    found: list[list[tuple[int, int]]] = [[] for _ in model.computations]
    for index, opcode in enumerate(model.opcodes):
        if opcode == "parameter":
            found[model.home[index]].append((model.numbers[index], index))
    for computation, pairs in zip(model.computations, found, strict=True):
        pairs.sort()
        if any(number != wanted for wanted, (number, _) in enumerate(pairs)):
            numbers = ", ".join(str(number) for number, _ in pairs)
            raise model.computation_error(f"its parameters have the numbers {numbers}", computation)
        computation.parameters = [index for _, index in pairs]


def _check_instructions(model: Model) -> None:
    """Checks each instruction: operands, what its opcode asks for, and the fields that any instruction may have.

    Most are like another: of the same opcode, shapes, computations and fields. One of each kind is checked.
    """
    index = 0
    try:
        for index in _one_of_each(model):
            _check_instruction(model, index, model.opcodes[index])
        for index, opcode in enumerate(model.opcodes):
            if opcode == "constant":
                CHECKS[opcode](model, index)
    except Fault as fault:
        raise model.error(fault, index) from None
    except FormatError as error:
        raise model.error(error.what, index) from None


def _one_of_each(model: Model) -> list[int]:
    """The first instruction of each kind, in order; kinds are told apart by a hash that no file can foresee."""
    count = len(model.opcodes)
    seed = iter(np.frombuffer(secrets.token_bytes(8 * 32), np.uint64) | np.uint64(1))

    def mixed(values: np.ndarray) -> np.ndarray:
        values = (values.astype(np.uint64) + next(seed)) * next(seed)
        return (values ^ (values >> np.uint64(32))) * _MIX

    def summed(ragged: Ragged, values: np.ndarray) -> np.ndarray:
        """Mixes the integers of each instruction, in their places."""
        offsets = np.array(ragged.offsets)
        places = np.arange(len(values)) - np.repeat(offsets[:-1], ragged.counts)
        sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mixed(values) * mixed(places))])
        return sums[offsets[1:]] - sums[offsets[:-1]] + ragged.counts.astype(np.uint64) * next(seed)

    numbers: dict[str, int] = {}
    opcodes = np.array([numbers.setdefault(opcode, len(numbers)) for opcode in model.opcodes], np.int64)
    shapes = np.array([shape.number for shape in model.shapes], np.int64)
    kinds = mixed(opcodes * (1 << 32) + shapes) + mixed(np.array(model.tuple_indices, np.int64))
    kinds += summed(model.operands, shapes[np.array(model.operands.values, np.int64)])
    for ragged in (model.dimensions, model.called):
        kinds += summed(ragged, np.array(ragged.values, np.int64))
    for index in model.all_extras():
        kinds[index] ^= np.uint64(hash(tuple(model.extra_key(index))) & _MASK)
    _, firsts = np.unique(kinds, return_index=True)
    assert len(kinds) == count
    return np.sort(firsts).tolist()


def _check_instruction(model: Model, index: int, opcode: str) -> None:
    operands, shape = model.operands[index], model.shapes[index]
    arity = ARITIES.get(opcode, VARIADIC)
    if arity not in (VARIADIC, len(operands)):
        raise Fault(f"it has {len(operands)} operands, and {opcode} takes {arity}")
    if opcode in _ARRAYS:
        if not shape.is_array:
            raise Fault(f"it gives {shape}, no array")
        strict = opcode in _ELEMENTWISE and opcode not in _FREE_SIZES
        for operand in operands:
            given = model.shapes[operand]
            if not given.is_array:
                raise Fault(f"it takes {given}, no array")
            if strict and given.dimensions != shape.dimensions:
                raise Fault(f"it takes {given} to {shape}")
    check = CHECKS.get(opcode)
    if check is not None and opcode != "constant":
        check(model, index)
    for number in model.extras(index):
        check_field = FIELD_CHECKS.get(number)
        if check_field is not None:
            check_field(model, index, number)


def _check_expanded_size(model: Model, limits: Limits) -> None:
    """Counts what the converter would make: it copies the body of each region to every place of use."""
    sizes: list[int] = [computation.last - computation.first for computation in model.computations]
    depths = [1] * len(sizes)
    for index, opcode in enumerate(model.opcodes):
        if opcode in INLINED:
            home = model.home[index]
            for callee in model.called[index]:
                sizes[home] += sizes[callee]
                if depths[callee] >= depths[home]:
                    depths[home] = depths[callee] + 1
    for computation, depth in zip(model.computations, depths, strict=True):
        what = f"the module has {depth} regions inside each other"
        limits.check("nesting", depth, what, where=f"computation {computation.name}")
    total = sum(sizes)
    worst = model.computations[sizes.index(max(sizes))].name if sizes else ""
    what = f"with every shared computation copied to where it is used, the module has {total:,} operations"
    limits.check("expanded_operations", total, what, where=f"most of them in computation {worst}")


def _error(what: str) -> FormatError:
    return FormatError(f"ill-formed HLO: {what}", where="the module itself", mend=_MEND)


def _check_entry(model: Model) -> None:
    """Checks the entry computation against the program shape of the module."""
    for number in (1, 2, 4, 5, 6, 8, 17, 18, 19):
        if len(model.fields.get(number, ())) > 1:
            raise _error(f"it has field {number} twice")
    entry = next((c for c in model.computations if c.ident == model.entry_id), None)
    if entry is None:
        raise _error(f"its entry, computation {model.entry_id}, is not there")
    declared = _message(model, 4)
    if declared is None:
        raise _error("it has no program shape")
    try:
        parameters = [model.shape_table[part] for part in _submessages(declared, 1)]
        results = [model.shape_table[part] for part in _submessages(declared, 2)]
    except Fault as fault:
        raise _error(f"in its program shape, {fault}") from None
    if len(results) != 1:
        raise _error(f"its program shape has {len(results)} results")
    found = [model.shapes[index] for index in entry.parameters]
    if [shape.key for shape in found] != [shape.key for shape in parameters]:
        raise _error(f"its program shape has the parameters {_spell(parameters)}, and its entry has {_spell(found)}")
    if results[0].key != model.shapes[entry.root].key:
        raise _error(f"its program shape has the result {results[0]}, and its entry gives {model.shapes[entry.root]}")
    _check_aliases(model, found, results[0])


def _spell(shapes: list[Shape]) -> str:
    return f"({', '.join(map(str, shapes))})"


def _message(model: Model, number: int) -> bytes | None:
    found = [f for f in model.fields.get(number, ()) if f.kind == BYTES]
    return model.data[found[0].start : found[0].stop] if found else None


def _submessages(data: bytes, number: int) -> list[bytes]:
    return [data[f.start : f.stop] for f in fields(data) if f.number == number and f.kind == BYTES]


def _check_aliases(model: Model, parameters: list[Shape], result: Shape) -> None:
    """Checks `HloInputOutputAliasProto` and `HloBufferDonorProto`: XLA looks up what they name without a check."""
    for entry in _submessages(_message(model, 8) or b"", 1):
        _find_leaf(repeated_integers(entry, 1), result, "output")
        _find_parameter(sum(repeated_integers(entry, 2)), repeated_integers(entry, 3), parameters)
    for entry in _submessages(_message(model, 18) or b"", 1):
        _find_parameter(sum(repeated_integers(entry, 1)), repeated_integers(entry, 2), parameters)


def _find_parameter(number: int, path: list[int], parameters: list[Shape]) -> None:
    if not 0 <= number < len(parameters):
        raise _error(f"it gives away the buffer of parameter {number}, of {len(parameters)}")
    _find_leaf(path, parameters[number], f"parameter {number}")


def _find_leaf(path: list[int], shape: Shape, what: str) -> None:
    for step in path:
        if shape.parts is None or not 0 <= step < len(shape.parts):
            raise _error(f"it gives away the buffer of {what}, at {path}, which is not there")
        shape = shape.parts[step]


def _check_module_fields(model: Model) -> None:
    try:
        for number in (12, 14):
            for field in model.fields.get(number, ()):
                check_sharding(model.data[field.start : field.stop])
        for entry in _submessages(_message(model, 19) or b"", 1):
            if not first(entry, 1):
                raise Fault("it has a frontend attribute without a name")
        check_stack_frames(_message(model, 17) or b"")
    except Fault as fault:
        raise _error(str(fault)) from None
