"""Counted loops: a `while` whose number of iterations is proved becomes one that has a reverse mode.

Index algebra is evaluated, not matched: the slots of a loop that hold integer scalars and depend on nothing but such slots
and constants are *known*. If the condition reads known slots alone, the loop is run on them, in their own types, and its
iterations are counted. So countdowns, `!=`, other steps, wrap-around and counters behind calls need no case of their own.
"""

import dataclasses
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from unlower.ir.attributes import Int
from unlower.ir.module import CALLS, CONSTANTS, Module, Op, Region, Value, replace_ops, walk
from unlower.ir.types import TensorType

__all__ = ["COUNTED", "MOST_ITERATIONS", "Loop", "find_loops", "raise_loops"]

COUNTED = "raised.counted_while"
"""A `stablehlo.while` that runs `trip_count` times; `starts` holds the first values of slots that are known, by number."""

MOST_ITERATIONS = 1 << 17
"""The loops of a module are run on their counters up to this many iterations together: a hostile file may hold many."""

_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "stablehlo.add": np.add,
    "stablehlo.and": np.bitwise_and,
    "stablehlo.maximum": np.maximum,
    "stablehlo.minimum": np.minimum,
    "stablehlo.multiply": np.multiply,
    "stablehlo.or": np.bitwise_or,
    "stablehlo.subtract": np.subtract,
    "stablehlo.xor": np.bitwise_xor,
}

_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    name.upper(): getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")
}


class Loop(NamedTuple):
    """A loop of a module.

    Attributes:
      function: the function it stands in.
      op: the loop.
      trip_count: how often its body runs, or None where that is not proved.
      reason: the condition that failed, or the empty string.
      starts: the first value of each slot that is known before the loop runs, by its number.
    """

    function: str
    op: Op
    trip_count: int | None
    reason: str
    starts: Mapping[str, Int]


class _Unknown(Exception):  # noqa: N818 (no error: the value depends on more than counters)
    """A value that does not follow from the known ones."""


def find_loops(module: Module) -> list[Loop]:
    """Lists the loops of a module, outer before inner, and counts the iterations of each where they are proved."""
    if "stablehlo.while" not in module.vocabulary.names:
        return []
    counter = _Counter(module)
    loops: list[Loop] = []
    for function in module.functions.values():
        for op in walk(function.body):
            if op.name == "stablehlo.while":
                first = counter.first(op)
                found = counter.count(op, first)
                count, reason = (None, found) if isinstance(found, str) else (found, "")
                elements = {i: cast(TensorType, op.operands[i].type).element for i in first}
                starts = {str(i): Int(int(array[0]), str(elements[i])) for i, array in first.items()}
                loops.append(Loop(function.name, op, count, reason, starts))
    return loops


def raise_loops(module: Module, loops: Sequence[Loop]) -> Module:
    """Names those of a module's loops `COUNTED` whose iterations are proved; everything else stays as it is.

    Args:
      module: the module.
      loops: what `find_loops` says of it.
    """
    counted: dict[str, dict[Op, Op | None]] = {}
    for loop in loops:
        if loop.trip_count is not None:
            attributes = {**loop.op.attributes, "trip_count": loop.trip_count, "starts": loop.starts}
            raised = dataclasses.replace(loop.op, name=COUNTED, attributes=attributes)
            counted.setdefault(loop.function, {})[loop.op] = raised
    functions = dict(module.functions)
    for name, replaced in counted.items():
        function = functions[name]
        functions[name] = dataclasses.replace(function, body=replace_ops(function.body, replaced))
    return dataclasses.replace(module, functions=functions) if counted else module


class _Counter:
    def __init__(self, module: Module):
        self._functions = module.functions
        self._left = MOST_ITERATIONS
        self._makers: dict[Value, Op] = {
            value: op for function in module.functions.values() for op in walk(function.body) for value in op.results
        }

    def count(self, op: Op, first: Mapping[int, np.ndarray]) -> int | str:
        """Returns how often the body of a loop runs, or why that is not known."""
        condition, body = op.regions
        state = dict(first)
        while True:
            unknown = self._unknown(body, state)
            if not unknown:
                break
            for i in unknown:
                del state[i]
        count = 0
        try:
            while self._results(condition, state, (0,))[0].item():
                if count == MOST_ITERATIONS or self._left == 0:
                    return f"it, or the loops before it together, run more than {MOST_ITERATIONS} times"
                self._left -= 1
                state = dict(zip(state, self._results(body, state, tuple(state)), strict=True))
                count += 1
        except _Unknown:
            return "its condition depends on data"
        return count

    def first(self, op: Op) -> dict[int, np.ndarray]:
        """The first values of the slots that are known before the loop runs."""
        state: dict[int, np.ndarray] = {}
        for i, value in enumerate(op.operands):
            if _is_counter(value):
                try:
                    state[i] = self._value(value, {})
                except _Unknown:
                    continue
        return state

    def _unknown(self, body: Region, state: Mapping[int, np.ndarray]) -> list[int]:
        unknown: list[int] = []
        for i in state:
            try:
                self._results(body, state, (i,))
            except _Unknown:
                unknown.append(i)
        return unknown

    def _results(self, region: Region, state: Mapping[int, np.ndarray], wanted: Sequence[int]) -> list[np.ndarray]:
        environment = {region.arguments[i]: array for i, array in state.items()}
        return [self._value(region.results[i], environment) for i in wanted]

    def _value(self, value: Value, environment: dict[Value, np.ndarray]) -> np.ndarray:
        """Evaluates an integer scalar, as an array of one element since those wrap around without a warning."""
        if value in environment:
            return environment[value]
        op = self._makers.get(value)
        if op is None or not _is_counter(value):
            raise _Unknown
        environment[value] = array = self._evaluate(op, value, environment)
        return array

    def _evaluate(self, op: Op, value: Value, environment: dict[Value, np.ndarray]) -> np.ndarray:
        assert isinstance(value.type, TensorType)
        dtype = value.type.dtype
        if op.name in CONSTANTS:
            return np.asarray(op.attributes["value"].array, dtype).reshape(1)
        if op.name in CALLS:
            return self._call(op, value, environment)
        if op.name not in _BINARY and op.name not in _OTHERS:
            raise _Unknown
        operands = [self._value(operand, environment) for operand in op.operands]
        if op.name in _BINARY:
            return _BINARY[op.name](*operands)
        return np.asarray(_OTHERS[op.name](op, *operands), dtype).reshape(1)

    def _call(self, op: Op, value: Value, environment: dict[Value, np.ndarray]) -> np.ndarray:
        body = self._functions[str(op.attributes["callee"])].body
        inner: dict[Value, np.ndarray] = {}
        for argument, operand in zip(body.arguments, op.operands, strict=True):
            try:
                inner[argument] = self._value(operand, environment)
            except _Unknown:
                continue
        return self._value(body.results[op.results.index(value)], inner)


def _compare(op: Op, lhs: np.ndarray, rhs: np.ndarray) -> Any:
    function = _COMPARE.get(str(op.attributes["comparison_direction"]))
    if function is None:
        raise _Unknown
    return function(lhs, rhs)


def _convert(op: Op, operand: np.ndarray) -> Any:
    return operand != 0 if op.type.dtype == bool else operand.astype(op.type.dtype)


def _not(op: Op, operand: np.ndarray) -> Any:
    return np.logical_not(operand) if operand.dtype == bool else np.invert(operand)


_OTHERS: dict[str, Callable[..., Any]] = {
    "stablehlo.compare": _compare,
    "stablehlo.convert": _convert,
    "stablehlo.negate": lambda op, operand: np.negative(operand),
    "stablehlo.not": _not,
    "stablehlo.reshape": lambda op, operand: operand,
    "stablehlo.select": lambda op, pred, yes, no: yes if pred.item() else no,
}


def _is_counter(value: Value) -> bool:
    """Whether a value is an integer or boolean scalar that NumPy computes with itself."""
    type_ = value.type
    return (
        isinstance(type_, TensorType)
        and type_.shape == ()
        and type_.is_static
        and type_.dtype is not None
        and (np.dtype(type_.dtype) == bool or np.dtype(type_.dtype).char in "bhilqBHILQ")
    )
