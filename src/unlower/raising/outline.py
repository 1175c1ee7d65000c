"""Makes functions of operations that a primitive of JAX was lowered to in place, so that they can be recognised as one.

`lax.logistic` leaves a negation, an exponential, an addition and a division behind, among others. Where such operations stand
in this pattern and nothing else reads what is between them, they are moved into a function. The pattern is a hint and no more:
what the function is differentiated as is proved later, by its canonical form.
"""

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from unlower.ir.attributes import DenseElements, Symbol
from unlower.ir.module import CONSTANTS, Function, Module, Op, Region, Value, replace_ops, walk

__all__ = ["OUTLINED", "outline"]

OUTLINED = "unlower."
"""What the names of these functions begin with; what follows is the name of the pattern."""

Pattern = Any
"""A number, for a constant of that value; the name of an operand; or an operation and the patterns of its operands."""

_NAN = ("compare", "x", "x")
_X2 = ("multiply", "x", "x")
PATTERNS: Mapping[str, Pattern] = {
    "logistic": ("divide", 1.0, ("add", 1.0, ("exponential", ("negate", "x")))),
    "logaddexp": (
        "select",
        ("compare", ("subtract", "x", "y"), ("subtract", "x", "y")),
        ("add", "x", "y"),
        (
            "add",
            ("maximum", "x", "y"),
            ("log_plus_one", ("exponential", ("negate", ("abs", ("subtract", "x", "y"))))),
        ),
    ),
    "softplus": (
        "select",
        ("compare", "x", "x"),
        "x",
        ("add", ("maximum", "x", 0.0), ("log_plus_one", ("exponential", ("negate", ("abs", "x"))))),
    ),
    "entr": (
        "select",
        ("compare", "x", 0.0),
        -np.inf,
        ("negate", ("func.call", ("or", ("compare", "x", 0.0), _NAN), ("multiply", "x", ("log", "x")), 0.0)),
    ),
    "logit": ("log", ("divide", "x", ("subtract", 1.0, "x"))),
    "asin": ("atan2", "x", ("sqrt", ("multiply", ("subtract", 1.0, "x"), ("add", 1.0, "x")))),
    "power_of_minus_4": ("divide", 1.0, ("multiply", _X2, _X2)),
    "power_of_minus_3": ("divide", 1.0, ("multiply", "x", _X2)),
    "power_of_minus_2": ("divide", 1.0, _X2),
}
"""Name -> pattern, what holds another before it. Attributes are not looked at, nor the order of what is added or multiplied."""


def _names(pattern: Pattern) -> set[str]:
    """The names of the operations in a pattern."""
    if not isinstance(pattern, tuple):
        return set()
    return {_full(pattern[0])}.union(*map(_names, pattern[1:]))


def _full(name: str) -> str:
    """The name of an operation, which in a pattern is one of StableHLO unless it says otherwise."""
    return name if "." in name else f"stablehlo.{name}"


_NAMES = {name: _names(pattern) for name, pattern in PATTERNS.items()}


def outline(module: Module) -> Module:
    """Moves what stands in a pattern into functions; returns the module as it is where nothing does."""
    roots: dict[str, list[tuple[str, Pattern]]] = {}
    for name, pattern in PATTERNS.items():
        if _NAMES[name] <= module.vocabulary.names:
            roots.setdefault(_full(pattern[0]), []).append((name, pattern))
    if not roots:
        return module
    outliner = _Outliner(module, roots)
    functions = {name: outliner.function(function) for name, function in module.functions.items()}
    if not outliner.made:
        return module
    made = {function.name: function for function in outliner.made.values()}
    return dataclasses.replace(module, functions={**functions, **made})


class _Outliner:
    def __init__(self, module: Module, roots: Mapping[str, Sequence[tuple[str, Pattern]]]):
        self._roots = roots
        self._taken = set(module.functions)
        self.made: dict[Any, Function] = {}

    def function(self, function: Function) -> Function:
        ops = list(walk(function.body))
        roots = [op for op in ops if op.name in self._roots]
        if not roots:
            return function
        makers: dict[Value, Op] = {op.results[0]: op for op in ops if len(op.results) == 1}
        found = []
        for op in roots:
            for name, pattern in self._roots[op.name]:
                match = _Match(makers)
                if match.value(op.results[0], pattern):
                    found.append((name, op, match))
                    break
        if not found:
            return function
        uses = collections.Counter(_reads(function.body))
        replaced: dict[Op, Op | None] = {}
        views: dict[Op, None] = {}
        for name, op, match in found:
            between = [x for x in match.ops if x is not op and x.name not in _VIEWS]
            own = collections.Counter(value for x in match.ops for value in x.operands)
            if op in replaced or any(x in replaced or uses[x.results[0]] != own[x.results[0]] for x in between):
                continue
            replaced.update(dict.fromkeys(between))
            replaced[op] = call = self._call(name, op, match)
            uses.update(call.operands)
            views.update(dict.fromkeys(x for x in (*match.ops, *match.spare) if x.name in _VIEWS))
        if not replaced:
            return function
        # A constant that nothing else reads goes, too; what it is made of after it.
        read = collections.Counter(value for x in replaced for value in x.operands)
        for view in reversed(list(views)):
            if uses[view.results[0]] == read[view.results[0]]:
                replaced[view] = None
                read.update(view.operands)
        return dataclasses.replace(function, body=replace_ops(function.body, replaced))

    def _call(self, name: str, op: Op, match: "_Match") -> Op:
        operands = tuple(match.operands.values())
        places = {value: i for i, value in enumerate(operands)}
        places.update((other, places[value]) for other, value in match.aliases.items())
        places.update((x.results[0], -1 - i) for i, x in enumerate(match.ops))
        wiring = tuple(_spelled(x, places) for x in match.ops)
        key = (name, *(str(value.type) for value in operands), wiring)
        function = self.made.get(key)
        if function is None:
            function = self.made[key] = self._function(name, op, match, operands)
        return Op("func.call", operands, op.results, {"callee": Symbol(function.name)}, (), op.location)

    def _function(self, name: str, op: Op, match: "_Match", operands: Sequence[Value]) -> Function:
        numbers: dict[Value, Value] = {}

        def fresh(value: Value) -> Value:
            numbers[value] = Value(len(numbers), value.type)
            return numbers[value]

        arguments = tuple(map(fresh, operands))
        numbers.update((other, numbers[value]) for other, value in match.aliases.items())
        ops = tuple(
            Op(x.name, tuple(numbers[v] for v in x.operands), tuple(map(fresh, x.results)), x.attributes)
            for x in match.ops
        )
        spelled = f"{OUTLINED}{name}"
        number = 0
        while spelled in self._taken:
            spelled, number = f"{OUTLINED}{name}_{number}", number + 1
        self._taken.add(spelled)
        return Function(spelled, Region(arguments, ops, (numbers[op.results[0]],)))


_VIEWS = CONSTANTS | {"stablehlo.broadcast_in_dim"}


class _Match:
    """What stands for a pattern.

    Attributes:
      ops: the operations, in an order in which they can run.
      operands: by name in the pattern.
      aliases: values that are an operand once more.
      spare: what makes these.
    """

    def __init__(self, makers: Mapping[Value, Op]):
        self._makers = makers
        self.ops: dict[Op, None] = {}
        self.operands: dict[str, Value] = {}
        self.aliases: dict[Value, Value] = {}
        self.spare: dict[Op, None] = {}

    def value(self, value: Value, pattern: Pattern) -> bool:
        """Whether a value is what the pattern says; `ops` and `operands` are of no use where it is not."""
        if isinstance(pattern, str):
            first = self.operands.setdefault(pattern, value)
            return first is value or self._is_again(value, first)
        op = self._makers.get(value)
        if op is None:
            return False
        if isinstance(pattern, float):
            if op.name == "stablehlo.broadcast_in_dim" and not self.value(op.operands[0], pattern):
                return False
            if op.name in CONSTANTS:
                constant: DenseElements = op.attributes["value"]
                if constant.array.shape != () or constant.elided or not np.array_equal(constant.array, pattern):
                    return False
            elif op.name != "stablehlo.broadcast_in_dim":
                return False
        else:
            name, *inner = pattern
            if op.name != _full(name) or len(op.operands) != len(inner):
                return False
            if not self._values(op.operands, inner) and not (
                name in ("add", "multiply") and self._values(op.operands[::-1], inner)
            ):
                return False
        self.ops[op] = None
        return True

    def _is_again(self, value: Value, first: Value) -> bool:
        """Whether a value is the same constant as another, which JAX makes again for every use."""
        made, again = self._splat(first), self._splat(value)
        if made is None or again is None or made != again or first.type != value.type:
            return False
        self.aliases[value] = first
        while value in self._makers:
            self.spare = {self._makers[value]: None, **self.spare}
            operands = self._makers[value].operands
            if not operands:
                break
            (value,) = operands
        return True

    def _splat(self, value: Value) -> Any:
        op = self._makers.get(value)
        while op is not None and op.name == "stablehlo.broadcast_in_dim":
            op = self._makers.get(op.operands[0])
        if op is None or op.name not in CONSTANTS or op.attributes["value"].array.shape != ():
            return None
        constant: DenseElements = op.attributes["value"]
        return constant.type.element, constant.elided, constant.array.tobytes()

    def _may_be(self, value: Value, pattern: Pattern) -> bool:
        """Whether the operation that makes a value is the one in the pattern."""
        if isinstance(pattern, str):
            return True
        op = self._makers.get(value)
        if op is None:
            return False
        return op.name in _VIEWS if isinstance(pattern, float) else op.name == _full(pattern[0])

    def _values(self, values: Sequence[Value], patterns: Sequence[Pattern]) -> bool:
        for value, pattern in zip(values, patterns, strict=True):
            if not self._may_be(value, pattern):
                return False
        before = [dict(x) for x in (self.ops, self.operands, self.aliases, self.spare)]
        if all(self.value(*pair) for pair in zip(values, patterns, strict=True)):
            return True
        self.ops, self.operands, self.aliases, self.spare = before  # pyright: ignore[reportAttributeAccessIssue]
        return False


def _spelled(op: Op, places: Mapping[Value, int]) -> tuple[Any, ...]:
    attributes = tuple((name, str(value)) for name, value in op.attributes.items() if name != "value")
    constant = op.attributes.get("value")
    data = None if constant is None else constant.array.tobytes()
    return (op.name, str(op.type), attributes, data, *(places[value] for value in op.operands))


def _reads(region: Region) -> list[Value]:
    values = list(region.results)
    for op in region.ops:
        values += op.operands
        for inner in op.regions:
            values += _reads(inner)
    return values
