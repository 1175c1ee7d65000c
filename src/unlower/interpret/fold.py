"""Static analyses: one value for each equation, put together over a whole program by what its sub-programs mean.

A `scan` runs its body a known number of times, a `cond` one of its branches, a `while` nobody knows how often, a function with
a derivative rule itself and not its rule. `Fold` knows that; the analysis says what one equation is worth, and how values add
up.
"""

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import jax

from unlower._jax_compat_interpret import jaxpr_parts
from unlower.errors import UnlowerError
from unlower.interpret.higher_order.registry import hidden_programs, is_opaque

__all__ = ["Fold", "FoldError"]

V = TypeVar("V")


class FoldError(UnlowerError, ValueError):
    """An analysis met what it has no value for: a loop whose trip count is not known."""


class Fold(Generic[V]):
    """An analysis of programs that never runs them.

    Args:
      measure: the value of one equation that holds no programs; it has `primitive`, `params`, `invars` and `outvars`, whose
        `aval`s have shapes and dtypes.
      zero: the value of no equation.
      add: puts together what runs one after the other.
      repeat: `(value, count)` -> the value of running so often: the trips of a `scan`, the shards of a `shard_map`.
      choose: puts together the branches of a `cond`; by default the largest counts.
      loop: `(condition, body, name)` -> the value of a `while`; names are unique in a program (`while`, `while:2`). By default
        it raises FoldError.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> equations = Fold(lambda equation: 1)
      >>> def f(x):
      ...     return jax.lax.scan(lambda c, _: (jnp.sin(c) * 2, None), x, None, length=10)[0] + 1
      >>> equations.of(f)(1.0)
      21
    """

    def __init__(
        self,
        measure: Callable[[Any], V],
        *,
        zero: Any = 0,
        add: Callable[[V, V], V] = lambda a, b: a + b,  # pyright: ignore[reportOperatorIssue]
        repeat: Callable[[V, int], V] = lambda value, count: value * count,  # pyright: ignore[reportOperatorIssue]
        choose: Callable[[Sequence[V]], V] = max,  # pyright: ignore[reportArgumentType]
        loop: Callable[[V, V, str], V] | None = None,
    ):
        self.measure, self.zero, self.add, self.repeat, self.choose = measure, zero, add, repeat, choose
        self.loop = loop if loop is not None else _unknown_trips

    def of(self, function: Callable[..., Any]) -> Callable[..., V]:
        """Returns a function of the same arguments (arrays, or `jax.ShapeDtypeStruct`s) that gives the value of calling it."""
        return lambda *args, **kwargs: self.jaxpr(jax.make_jaxpr(function)(*args, **kwargs))

    def jaxpr(self, jaxpr: Any) -> V:
        """The value of a Jaxpr."""
        return _Run(self).program(jaxpr)


def _unknown_trips(condition: Any, body: Any, name: str) -> Any:
    raise FoldError(
        f"how often `{name}` runs is not known before it does",
        mend="pass Fold(..., loop=lambda condition, body, name: ...), which gives a bound or counts one trip",
    )


class _Run(Generic[V]):
    """One analysis of one program; what is shared is looked at once."""

    def __init__(self, fold: Fold[V]):
        self.fold = fold
        self.known: dict[int, tuple[Any, V]] = {}
        self.loops = 0

    def program(self, jaxpr: Any) -> V:
        found = self.known.get(id(jaxpr))
        if found is not None:
            return found[1]
        loops = self.loops
        total: V = self.fold.zero
        for equation in jaxpr_parts(jaxpr).eqns:
            total = self.fold.add(total, self.equation(equation))
        if self.loops == loops:  # a loop has a name of its own in each place
            self.known[id(jaxpr)] = (jaxpr, total)
        return total

    def equation(self, equation: Any) -> V:
        primitive, params = equation.primitive, equation.params
        programs = [] if is_opaque(primitive) else list(hidden_programs(primitive, params))
        if not programs:
            return self.fold.measure(equation)
        rule = _RULES.get(primitive.name, _in_a_row)
        return rule(self, params, programs)


def _in_a_row(run: _Run[V], params: Any, programs: Sequence[Any]) -> V:
    total: V = run.fold.zero
    for program in programs:
        total = run.fold.add(total, run.program(program))
    return total


def _scan(run: _Run[V], params: Any, programs: Sequence[Any]) -> V:
    return run.fold.repeat(run.program(programs[0]), params["length"])


def _while(run: _Run[V], params: Any, programs: Sequence[Any]) -> V:
    run.loops += 1
    name = "while" if run.loops == 1 else f"while:{run.loops}"
    condition, body = run.program(params["cond_jaxpr"]), run.program(params["body_jaxpr"])
    return run.fold.loop(condition, body, name)


def _cond(run: _Run[V], params: Any, programs: Sequence[Any]) -> V:
    return run.fold.choose([run.program(branch) for branch in params["branches"]])


def _shard_map(run: _Run[V], params: Any, programs: Sequence[Any]) -> V:
    mesh = params["mesh"]
    shards = 1
    for axis in params.get("manual_axes", mesh.axis_names) or mesh.axis_names:
        shards *= mesh.shape[axis]
    return run.fold.repeat(run.program(programs[0]), shards)


def _solve(run: _Run[V], params: Any, programs: Sequence[Any]) -> V:
    """Of a linear solve's four programs one runs: the others are for its derivatives."""
    return run.program(params["jaxprs"].solve)


_RULES: dict[str, Any] = {
    "scan": _scan,
    "while": _while,
    "cond": _cond,
    "shard_map": _shard_map,
    "custom_linear_solve": _solve,
}
