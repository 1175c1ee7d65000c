"""Loops: a `while` whose number of iterations is proved becomes one that has a reverse mode.

Index algebra is evaluated, not matched (`counters.py`), so countdowns, `!=`, other steps, wrap-around and counters behind calls
need no case of their own. A loop whose iterations depend on data gets its name and place, for the error that asks for a bound,
or the caller's bound.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

import numpy as np

from unlower.errors import SignatureError
from unlower.ir.attributes import Int
from unlower.ir.module import Module, Op, replace_ops, walk
from unlower.ir.types import TensorType
from unlower.raising.counters import Counters

__all__ = [
    "COUNTED",
    "KNOWLEDGE",
    "UNCOUNTED",
    "Bounds",
    "Loop",
    "as_counted",
    "check_bounds",
    "find_loops",
    "raise_loops",
]

COUNTED = "raised.counted_while"
"""A `stablehlo.while` that runs `trip_count` times; `starts` holds the first values of slots that are known, by number."""

UNCOUNTED = "raised.uncounted_while"
"""A `stablehlo.while` that runs as often as its data says; `loop` is its name, `place` says where it stands and why it is
not counted, `max_iterations` is the caller's bound for its reverse mode, or 0."""

KNOWLEDGE = frozenset(["trip_count", "starts", "loop", "place", "max_iterations"])
"""The attributes that raising adds; they have no bearing on what a loop computes."""

MOST_SCANNED = (1 << 31) - 1
"""Loops that run longer count as uncounted: JAX's scans count in 32 bits, and nobody has the memory to go back."""

Bounds = int | Mapping[str, int] | None


class Loop(NamedTuple):
    """A loop of a module.

    Attributes:
      name: its function's name, and its number among the loops there: `"main.while_0"`.
      function: the function it stands in.
      op: the loop.
      trip_count: how often its body runs, or None where that is not proved.
      reason: the condition that failed, or the empty string.
      starts: the first value of each slot that is known before the loop runs, by its number.
    """

    name: str
    function: str
    op: Op
    trip_count: int | None
    reason: str
    starts: Mapping[int, np.ndarray]

    @property
    def place(self) -> str:
        """Where it stands: its function, and name scope and source line where the file tells."""
        return f"@{self.function}" if self.op.location is None else f"@{self.function}, {self.op.location}"


def find_loops(module: Module) -> list[Loop]:
    """Lists the loops of a module, outer before inner, and counts the iterations of each where they are proved."""
    if "stablehlo.while" not in module.vocabulary.names:
        return []
    counters = Counters(module)
    loops: list[Loop] = []
    for function in module.functions.values():
        number = 0
        for op in walk(function.body):
            if op.name == "stablehlo.while":
                first = counters.first(op)
                found = counters.count(op, first)
                count, reason = (None, found) if isinstance(found, str) else (found, "")
                loops.append(Loop(f"{function.name}.while_{number}", function.name, op, count, reason, first))
                number += 1
    return loops


def check_bounds(bounds: Bounds, loops: Sequence[Loop]) -> None:
    """Raises SignatureError for a bound that is no positive number, or is given to a loop that is not there."""
    given = bounds if isinstance(bounds, Mapping) else {} if bounds is None else {"": bounds}
    for name, bound in given.items():
        if isinstance(bound, bool) or not isinstance(bound, int) or not 0 < bound <= MOST_SCANNED:
            raise SignatureError(
                f"max_iterations is {bound!r}" + (f" for {name}" if name else ""),
                mend=f"give a number from 1 to {MOST_SCANNED}",
            )
    names = [loop.name for loop in loops]
    if isinstance(bounds, Mapping) and (missing := [name for name in bounds if name not in names]):
        raise SignatureError(
            f"max_iterations names loops that the program does not have: {', '.join(missing)}",
            mend=f"it has {', '.join(names) or 'none'}",
        )


def as_counted(op: Op, trip_count: int, starts: Mapping[int, np.ndarray]) -> Op:
    """Returns a loop as one of `COUNTED`.

    Args:
      op: the loop.
      trip_count: how often it runs.
      starts: the first values of slots that are known, by number.
    """
    kept = {name: value for name, value in op.attributes.items() if name not in KNOWLEDGE}
    elements = {i: str(cast(TensorType, op.operands[i].type).element) for i in starts}
    known = {str(i): Int(int(array[0]), elements[i]) for i, array in starts.items()}
    return dataclasses.replace(op, name=COUNTED, attributes={**kept, "trip_count": trip_count, "starts": known})


def raise_loops(module: Module, loops: Sequence[Loop], bounds: Bounds = None) -> Module:
    """Names those of a module's loops `COUNTED` whose iterations are proved, and the others `UNCOUNTED`.

    Args:
      module: the module.
      loops: what `find_loops` says of it.
      bounds: at most how often loops run that are not counted, for their reverse mode: one number for all, or by name.
    """
    raised: dict[str, dict[Op, Op | None]] = {}
    for loop in loops:
        if loop.trip_count is not None and loop.trip_count <= MOST_SCANNED:
            op = as_counted(loop.op, loop.trip_count, loop.starts)
        else:
            bound = bounds.get(loop.name, 0) if isinstance(bounds, Mapping) else bounds or 0
            reason = loop.reason or f"it runs {loop.trip_count} times"
            known = {"loop": loop.name, "place": f"{loop.place}: {reason}", "max_iterations": bound}
            op = dataclasses.replace(loop.op, name=UNCOUNTED, attributes={**loop.op.attributes, **known})
        raised.setdefault(loop.function, {})[loop.op] = op
    functions = dict(module.functions)
    for name, replaced in raised.items():
        function = functions[name]
        functions[name] = dataclasses.replace(function, body=replace_ops(function.body, replaced))
    return dataclasses.replace(module, functions=functions) if raised else module
