"""Symbolic sizes: `"2*b+1"` as JAX spells them, their values, and the equations that arguments pose.

The grammar is that of `jax.export.symbolic_shape`: sums of products of integers, variables, powers, and `mod`, `floordiv`,
`max` and `min` of two such.
"""

import dataclasses
import operator
import re
from collections.abc import Callable, Mapping, Sequence

from unlower.errors import FormatError, SignatureError

__all__ = ["Dimension", "Equation", "parse_dimension", "print_dimension", "solve_dimensions"]

_TOKEN = re.compile(r"\s*(?:(\d+)|([^\W\d]\w*)|([-+*^(),]))")
_FUNCTIONS: Mapping[str, Callable[[int, int], int]] = {
    "floordiv": operator.floordiv,
    "max": max,
    "min": min,
    "mod": operator.mod,
}
_MOST_TOKENS = 256
_MOST_NESTED = 64
_HIGHEST_POWER = 64


@dataclasses.dataclass(frozen=True, slots=True)
class Dimension:
    """A node of a symbolic size.

    Attributes:
      kind: `"number"`, `"variable"`, `"+"`, `"*"`, `"^"`, or a function, `"mod"`, `"floordiv"`, `"max"`, `"min"`.
      value: the number, or the variable's name.
      operands: the nodes below.
    """

    kind: str
    value: int | str = 0
    operands: "tuple[Dimension, ...]" = ()

    @property
    def variables(self) -> frozenset[str]:
        """The names of the variables in it."""
        if self.kind == "variable":
            return frozenset([str(self.value)])
        return frozenset().union(*(operand.variables for operand in self.operands))

    def evaluate(self, sizes: Mapping[str, int]) -> int:
        """Computes the size; raises KeyError for a variable without a value, ZeroDivisionError as integers do."""
        if self.kind == "number":
            return int(self.value)
        if self.kind == "variable":
            return sizes[str(self.value)]
        left, right = (operand.evaluate(sizes) for operand in self.operands)
        if self.kind == "+":
            return left + right
        if self.kind == "*":
            return left * right
        return left**right if self.kind == "^" else _FUNCTIONS[self.kind](left, right)

    def linear(self, variable: str, sizes: Mapping[str, int]) -> tuple[int, int] | None:
        """Writes the size as `factor * variable + rest`, the other variables known; None where it is not linear."""
        if variable not in self.variables:
            return 0, self.evaluate(sizes)
        if self.kind == "variable":
            return 1, 0
        parts = [operand.linear(variable, sizes) for operand in self.operands]
        if None in parts:
            return None
        (a, b), (c, d) = parts  # pyright: ignore[reportGeneralTypeIssues]
        if self.kind == "+":
            return a + c, b + d
        if self.kind == "*" and 0 in (a, c):
            return a * d + b * c, b * d
        return (a, b) if self.kind == "^" and (c, d) == (0, 1) else None


def parse_dimension(text: str) -> Dimension:
    """Parses a symbolic size.

    Raises:
      FormatError: the text is no such size.

    Example:
      >>> parse_dimension("2*b + mod(c, 3)").evaluate({"b": 5, "c": 4})
      11
    """
    return _Parser(text).parse()


class _Parser:
    def __init__(self, text: str):
        self._text, self._at, self._depth = text, 0, 0
        self._tokens: list[str] = []
        while self._at < len(text.rstrip()):
            match = _TOKEN.match(text, self._at)
            if match is None:
                raise self._error()
            self._tokens.append(match.group().strip())
            self._at = match.end()
        if len(self._tokens) > _MOST_TOKENS:
            raise self._error()
        self._tokens.reverse()

    def parse(self) -> Dimension:
        size = self._sum()
        if self._tokens:
            raise self._error()
        return size

    def _error(self) -> FormatError:
        return FormatError(
            f"{self._text[:80]!r} is no size: a number, or an expression such as 2*b+1, is expected",
            mend="the file is damaged; copy or write it again",
        )

    def _next(self, *wanted: str) -> str | None:
        return self._tokens.pop() if self._tokens and self._tokens[-1] in wanted else None

    def _sum(self) -> Dimension:
        self._depth += 1
        if self._depth > _MOST_NESTED:
            raise self._error()
        sign = self._next("+", "-")
        total = self._term(sign == "-")
        while sign := self._next("+", "-"):
            total = Dimension("+", 0, (total, self._term(sign == "-")))
        self._depth -= 1
        return total

    def _term(self, negated: bool) -> Dimension:
        product = self._power()
        while self._next("*"):
            product = Dimension("*", 0, (product, self._power()))
        return Dimension("*", 0, (Dimension("number", -1), product)) if negated else product

    def _power(self) -> Dimension:
        base = self._factor()
        if not self._next("^"):
            return base
        power = self._factor()
        if power.kind != "number" or not 0 <= int(power.value) <= _HIGHEST_POWER:
            raise self._error()
        return Dimension("^", 0, (base, power))

    def _factor(self) -> Dimension:
        sign = -1 if self._next("-") else 1
        token = self._tokens.pop() if self._tokens else ""
        if token.isdecimal() and len(token) < 20:
            return Dimension("number", sign * int(token))
        if sign < 0 or not token.isidentifier() or token == "_":
            raise self._error()
        if token in _FUNCTIONS:
            if not self._next("("):
                raise self._error()
            first = self._sum()
            if not self._next(","):
                raise self._error()
            second = self._sum()
            if not self._next(")"):
                raise self._error()
            return Dimension(token, 0, (first, second))
        return Dimension("variable", token)


@dataclasses.dataclass(frozen=True, slots=True)
class Equation:
    """A size that an argument has, and what the program says it is.

    Attributes:
      size: what the program says.
      actual: the size the argument has.
      place: which dimension of which argument, for messages.
    """

    size: Dimension
    actual: int
    place: str


def solve_dimensions(variables: Sequence[str], equations: Sequence[Equation]) -> dict[str, int]:
    """Finds the value of each variable; every equation holds for them.

    An equation is used once it has a single unknown variable, and is linear in it.

    Raises:
      SignatureError: no equation gives a variable, or the equations contradict each other.

    Example:
      >>> size = parse_dimension("2*b+1")
      >>> solve_dimensions(["b"], [Equation(size, 7, "dimension 0 of x")])
      {'b': 3}
    """
    found: dict[str, int] = {}
    places: dict[str, str] = {}
    waiting = list(equations)
    progress = True
    while progress:
        progress = False
        for equation in list(waiting):
            unknown = equation.size.variables - found.keys()
            if len(unknown) != 1:
                continue
            (variable,) = unknown
            linear = equation.size.linear(variable, found)
            if linear is None or linear[0] == 0:
                continue
            factor, rest = linear
            value, remainder = divmod(equation.actual - rest, factor)
            if remainder or value < 0:
                raise _contradiction(equation, found, places)
            found[variable], places[variable] = value, equation.place
            waiting.remove(equation)
            progress = True
    missing = [variable for variable in variables if variable not in found]
    if missing:
        raise SignatureError(
            f"the sizes of the arguments do not determine the symbolic dimension {', '.join(missing)}",
            where=", ".join(f"{e.place} is {e.actual}" for e in equations) or "no argument has a symbolic size",
            mend="export the program with an argument that has this dimension as a size of its own",
        )
    for equation in waiting:
        # What is left may hold variables that nobody asked for and no equation gives.
        if equation.size.variables <= found.keys() and equation.size.evaluate(found) != equation.actual:
            raise _contradiction(equation, found, places)
    return {variable: found[variable] for variable in variables}


def _contradiction(equation: Equation, found: Mapping[str, int], places: Mapping[str, str]) -> SignatureError:
    known = sorted(equation.size.variables & found.keys())
    given = ", ".join(f"{variable} = {found[variable]}, from {places[variable]}" for variable in known)
    return SignatureError(
        f"{equation.place} is {equation.actual}, which {print_dimension(equation.size)} cannot be",
        where=given or None,
        mend="pass arrays whose sizes fit together",
    )


def print_dimension(size: Dimension) -> str:
    """Spells a size as `parse_dimension` reads it."""
    if size.kind in ("number", "variable"):
        return str(size.value)
    left, right = map(print_dimension, size.operands)
    if size.kind == "+":
        return f"{left} + {right}"
    if size.kind == "*":
        # The grammar has no brackets: a product holds no sum.
        return f"{left}*{right}"
    return f"{left}^{right}" if size.kind == "^" else f"{size.kind}({left}, {right})"
