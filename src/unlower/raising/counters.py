"""The integers that a loop counts with: evaluated, and where their steps are even, in closed form.

A slot of a loop is *known* if it holds an integer or a boolean that depends on known slots and constants alone. Its values
are computed in its own type. Most are even: the same amount is added in every iteration, modulo the size of the type, by
induction: the body is evaluated on values `first + step * k`, k unknown, and must return `first + step * (k + 1)`. A condition
on such values changes only where the line of one crosses that of another, or wraps around, so its first change is computed.
Everything else is run, iteration by iteration, within a budget.
"""

import dataclasses
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from unlower.ir.module import CALLS, CONSTANTS, Module, Op, Region, Value, walk
from unlower.ir.types import TensorType

__all__ = ["MOST_ITERATIONS", "Counters", "is_counter"]

MOST_ITERATIONS = 1 << 17
"""Loops without a closed form are run on their counters up to this many iterations together: a hostile file may hold many."""

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

State = Mapping[int, np.ndarray]
"""Values of slots, by number, each an array of one element, since those wrap around without a warning."""


class _Unknown(Exception):  # noqa: N818 (no error: the value depends on more than counters)
    """A value that does not follow from the known ones."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Crossing:
    """A comparison of two lines, itself by identity; its outcome changes where their order does."""

    left: "_Line"
    right: "_Line"

    def next_change(self, k: int) -> int | None:
        """The first iteration after `k` in which the outcome may differ; None if there is none."""
        a, b = self.left.at(k), self.right.at(k)
        changes = [distance for line, x in ((self.left, a), (self.right, b)) if (distance := line.until_wrap(x))]
        difference, slope = a - b, self.left.step - self.right.step
        if slope and difference == 0:
            changes.append(1)
        elif difference * slope < 0:
            changes.append(-(-abs(difference) // abs(slope)))
        return k + min(changes) if changes else None


class _Line(NamedTuple):
    """A value over the iterations: `first + step * k`, wrapped around; or a boolean that changes where `crossings` do."""

    first: np.ndarray
    step: int = 0
    crossings: frozenset[_Crossing] = frozenset()

    @property
    def constant(self) -> bool:
        return not self.step and not self.crossings

    def at(self, k: int) -> int:
        """The value in iteration `k`."""
        info = np.iinfo(self.first.dtype)
        size = 1 << info.bits
        return (int(self.first[0]) + self.step * k - info.min) % size + int(info.min)

    def until_wrap(self, value: int) -> int | None:
        """How many iterations after it has `value` it wraps around; None if never."""
        if not self.step:
            return None
        info = np.iinfo(self.first.dtype)
        room = int(info.max) - value if self.step > 0 else value - int(info.min)
        return room // abs(self.step) + 1


def _step(before: np.ndarray, after: np.ndarray) -> int:
    """What is added, as the number of the smallest magnitude."""
    if before.dtype == bool:
        return 0
    size = 1 << np.iinfo(before.dtype).bits
    return (int(after[0]) - int(before[0]) + size // 2) % size - size // 2


class Counters:
    """Counts the iterations of the loops of a module, within one budget."""

    def __init__(self, module: Module):
        self._functions = module.functions
        self._around: Mapping[Value, np.ndarray] = {}
        self._left = MOST_ITERATIONS
        self._makers: dict[Value, Op] = {
            value: op for function in module.functions.values() for op in walk(function.body) for value in op.results
        }

    def first(self, op: Op) -> dict[int, np.ndarray]:
        """The first values of the slots of a loop that are known before it runs."""
        state: dict[int, np.ndarray] = {}
        for i, value in enumerate(op.operands):
            if is_counter(value):
                try:
                    state[i] = self._value(value, {})
                except _Unknown:
                    continue
        return state

    def count(self, op: Op, first: State, around: Mapping[Value, np.ndarray] | None = None) -> int | str:
        """Returns how often the body of a loop runs, or why that is not known.

        Args:
          op: the loop.
          first: the first values of its slots, as far as known.
          around: what else is known of the values that its regions use from around.
        """
        self._around = around or {}
        condition, body = op.regions
        state, after = self._known(body, first)
        try:
            if not self._holds(condition, state):
                return 0
            found = self._count_lines(condition, self._lines(body, state, after))
            return self._run(condition, body, state) if found is None else found
        except _Unknown:
            return "its condition depends on data"

    def _known(self, body: Region, first: State) -> tuple[State, State]:
        """The slots that depend on known ones alone: their first values and their second."""
        state = dict(first)
        while True:
            after: dict[int, np.ndarray] = {}
            for i in state:
                try:
                    (after[i],) = self._results(body, state, (i,))
                except _Unknown:
                    continue
            if len(after) == len(state):
                return state, after
            state = {i: state[i] for i in after}

    # --- iteration by iteration

    def _holds(self, condition: Region, state: State) -> bool:
        return bool(self._results(condition, state, (0,))[0].item())

    def _run(self, condition: Region, body: Region, state: State) -> int | str:
        count = 0
        while self._holds(condition, state):
            if self._left == 0:
                return f"it, or the loops before it together, run more than {MOST_ITERATIONS} times"
            self._left -= 1
            state = dict(zip(state, self._results(body, state, tuple(state)), strict=True))
            count += 1
        return count

    def _results(self, region: Region, state: State, wanted: Sequence[int]) -> list[np.ndarray]:
        environment = {**self._around, **{region.arguments[i]: array for i, array in state.items()}}
        return [self._value(region.results[i], environment) for i in wanted]

    def _value(self, value: Value, environment: dict[Value, np.ndarray]) -> np.ndarray:
        """Evaluates an integer scalar."""
        if value in environment:
            return environment[value]
        op = self._makers.get(value)
        if op is None or not is_counter(value):
            raise _Unknown
        if op.name in CALLS:
            inner, result = self._inside(op, value, environment, self._value)
            environment[value] = array = self._value(result, inner)
        else:
            operands = () if op.name in CONSTANTS else op.operands
            environment[value] = array = _evaluate(op, value, [self._value(x, environment) for x in operands])
        return array

    def _inside(self, op: Op, value: Value, environment: Any, evaluate: Callable[..., Any]) -> tuple[Any, Value]:
        """What is known of the arguments of the function that `op` calls, and which of its results `value` is."""
        body = self._functions[str(op.attributes["callee"])].body
        inner = {}
        for argument, operand in zip(body.arguments, op.operands, strict=True):
            try:
                inner[argument] = evaluate(operand, environment)
            except _Unknown:
                continue
        return inner, body.results[op.results.index(value)]

    # --- in closed form

    def _lines(self, body: Region, state: State, after: State) -> dict[int, _Line]:
        """The slots that take even steps, by induction."""
        lines = {i: _Line(first, _step(first, after[i])) for i, first in state.items()}
        while True:
            environment = self._environment(body, lines)
            even = {}
            for i, line in lines.items():
                try:
                    result = self._line(body.results[i], environment)
                except _Unknown:
                    continue
                # A boolean is even if it never changes.
                stays = line.first.dtype != bool or (not result.crossings and result.first[0] == line.first[0])
                if result.step == line.step and stays:
                    even[i] = line
            if len(even) == len(lines):
                return even
            lines = even

    def _count_lines(self, condition: Region, lines: Mapping[int, _Line]) -> int | str | None:
        """Returns in which iteration the condition first fails; None where it takes more than lines to know."""
        try:
            holds = self._line(condition.results[0], self._environment(condition, lines))
        except _Unknown:
            return None
        k = 0
        while self._left:
            self._left -= 1
            state = {
                i: np.array([line.at(k)], line.first.dtype) if line.step else line.first for i, line in lines.items()
            }
            if not self._holds(condition, state):
                return k
            changes = [change for crossing in holds.crossings if (change := crossing.next_change(k)) is not None]
            if not changes:
                return "it never ends"
            k = min(changes)
        return None

    def _environment(self, region: Region, lines: Mapping[int, _Line]) -> dict[Value, _Line]:
        around = {value: _Line(array) for value, array in self._around.items()}
        return {**around, **{region.arguments[i]: line for i, line in lines.items()}}

    def _line(self, value: Value, environment: dict[Value, _Line]) -> _Line:
        if value in environment:
            return environment[value]
        op = self._makers.get(value)
        if op is None or not is_counter(value):
            raise _Unknown
        if op.name in CALLS:
            inner, result = self._inside(op, value, environment, self._line)
            line = self._line(result, inner)
        else:
            operands = () if op.name in CONSTANTS else op.operands
            line = _line_of(op, value, [self._line(x, environment) for x in operands])
        environment[value] = line
        return line


def _evaluate(op: Op, value: Value, operands: Sequence[np.ndarray]) -> np.ndarray:
    dtype = value.type.dtype  # pyright: ignore[reportAttributeAccessIssue]  (a counter has a tensor type)
    if op.name in CONSTANTS:
        return np.asarray(op.attributes["value"].array, dtype).reshape(1)
    if op.name in _BINARY:
        return _BINARY[op.name](*operands)
    if op.name not in _OTHERS:
        raise _Unknown
    return np.asarray(_OTHERS[op.name](op, *operands), dtype).reshape(1)


def _line_of(op: Op, value: Value, operands: Sequence[_Line]) -> _Line:
    first = _evaluate(op, value, [line.first for line in operands])
    if all(line.constant for line in operands):
        return _Line(first)
    if op.name == "stablehlo.compare" and operands[0].first.dtype != bool:
        return _Line(first, 0, frozenset([_Crossing(*operands)]))
    if first.dtype == bool:
        if op.name == "stablehlo.convert" and operands[0].first.dtype != bool:
            raise _Unknown
        # Booleans of booleans change only where these do.
        return _Line(first, 0, frozenset().union(*(line.crossings for line in operands)))
    if any(line.crossings for line in operands) or op.name not in _SLOPES:
        raise _Unknown
    slope = _SLOPES[op.name](*operands)
    size = 1 << np.iinfo(first.dtype).bits
    if op.name == "stablehlo.convert" and np.iinfo(operands[0].first.dtype).bits < np.iinfo(first.dtype).bits:
        # Where it wraps around, the wider one would not.
        raise _Unknown
    return _Line(first, (slope + size // 2) % size - size // 2)


def _slope_of_product(x: _Line, y: _Line) -> int:
    if x.step and y.step:
        raise _Unknown
    return x.step * int(y.first[0]) if x.step else y.step * int(x.first[0])


_SLOPES: dict[str, Callable[..., int]] = {
    "stablehlo.add": lambda x, y: x.step + y.step,
    "stablehlo.convert": lambda x: x.step,
    "stablehlo.multiply": _slope_of_product,
    "stablehlo.negate": lambda x: -x.step,
    "stablehlo.not": lambda x: -x.step,
    "stablehlo.reshape": lambda x: x.step,
    "stablehlo.subtract": lambda x, y: x.step - y.step,
}
"""The step of a result, given the lines of its operands."""


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


def is_counter(value: Value) -> bool:
    """Whether a value is an integer or boolean scalar that NumPy computes with itself."""
    type_ = value.type
    return (
        isinstance(type_, TensorType)
        and type_.shape == ()
        and type_.is_static
        and type_.dtype is not None
        and (np.dtype(type_.dtype) == bool or np.dtype(type_.dtype).char in "bhilqBHILQ")
    )
