"""Jaxprs looked at from outside: all their equations, whether two are equal, and where they differ."""

import inspect
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from unlower._jax_compat_interpret import (
    JAXPR_TYPES,
    Literal,
    dce_jaxpr,
    is_rule,
    jaxpr_effects,
    jaxpr_parts,
    source_summary,
)
from unlower.interpret.higher_order.registry import hidden_programs

__all__ = ["Visit", "diff", "equal", "walk"]


class Visit(NamedTuple):
    """One equation met by `walk`.

    Attributes:
      equation: with its `primitive`, `params`, `invars` and `outvars`.
      path: the equations around it, outermost first: names of primitives, and where one carries several programs which of them,
        such as `("scan", "cond.branch1")` or `("while.body",)`.
      source: the line it comes from, or the empty string.
      times: how often it runs when the program runs once, branches counted as taken; None inside a `while`.
      parent: the equation that it stands in, or None.
    """

    equation: Any
    path: tuple[str, ...]
    source: str
    times: int | None = 1
    parent: Any = None


def walk(jaxpr: Any) -> Iterator[Visit]:
    """Yields every equation of a Jaxpr, in order and at every depth, each followed by those inside it.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> closed = jax.make_jaxpr(jax.jit(lambda x: jnp.sin(x) + 1))(1.0)
      >>> [(visit.equation.primitive.name, visit.path) for visit in walk(closed)]
      [('jit', ()), ('sin', ('jit',)), ('add', ('jit',))]
    """
    return _walk(jaxpr, (), 1, None)


def _walk(jaxpr: Any, path: tuple[str, ...], times: int | None, parent: Any) -> Iterator[Visit]:
    for equation in jaxpr_parts(jaxpr).eqns:
        yield Visit(equation, path, source_summary(equation.source_info), times, parent)
        programs = list(hidden_programs(equation.primitive, equation.params))
        if not programs:
            continue
        name, params = equation.primitive.name, equation.params
        inner = None if times is None or name == "while" else times * (params["length"] if name == "scan" else 1)
        for label, program in zip(_labels(name, params, len(programs)), programs, strict=True):
            yield from _walk(program, (*path, label), inner, equation)


def _labels(name: str, params: dict[str, Any], count: int) -> list[str]:
    if name == "while":
        return [f"while.{key.removesuffix('_jaxpr')}" for key in params if key in ("cond_jaxpr", "body_jaxpr")]
    if name == "cond":
        return [f"cond.branch{number}" for number in range(count)]
    return [name] * count


def equal(first: Any, second: Any, *, dce: bool = False) -> bool:
    """Whether two Jaxprs are the same up to the names of their variables: equations, parameters, types, programs inside.

    Args:
      first: a Jaxpr.
      second: another.
      dce: leave out equations whose results nobody reads.

    Example:
      >>> import jax
      >>> f, g = jax.make_jaxpr(lambda x: x + 1)(1.0), jax.make_jaxpr(lambda y: y + 1)(1.0)
      >>> equal(f, g), equal(f, jax.make_jaxpr(lambda x: x * 1)(1.0))
      (True, False)
    """
    if dce:
        first, second = dce_jaxpr(first), dce_jaxpr(second)
    return first is second or next(_differences(first, second, ""), None) is None


MOST_DIFFERENCES = 20


def diff(first: Any, second: Any) -> str:
    """Says where two Jaxprs differ, a line for each place; the empty string if they do not.

    Equations are compared one by one, those inside others too. A place is what stands around, such as
    `equation 3: scan jaxpr: equation 0`. After 20 differences it stops.

    Example:
      >>> import jax
      >>> print(diff(jax.make_jaxpr(lambda x: (x + 1) * 2)(1.0), jax.make_jaxpr(lambda x: (x - 1) / 2)(1.0)))
      equation 0: primitive add, sub
      equation 1: primitive mul, div
    """
    found = list(itertools.islice(_differences(first, second, ""), MOST_DIFFERENCES + 1))
    return "\n".join([*found[:MOST_DIFFERENCES], *(["..."] if len(found) > MOST_DIFFERENCES else [])])


def _differences(first: Any, second: Any, place: str) -> Iterator[str]:
    a, b = jaxpr_parts(first), jaxpr_parts(second)
    same = _Renaming()
    for field in ("constvars", "invars"):
        xs, ys = getattr(a, field), getattr(b, field)
        if len(xs) != len(ys):
            yield f"{place}{len(xs)} {field}, {len(ys)}"
        for i, (x, y) in enumerate(zip(xs, ys, strict=False)):
            if not same(x, y):
                yield f"{place}{field}[{i}]: {_show(x)}, {_show(y)}"
    for i, (x, y) in enumerate(zip(a.consts, b.consts, strict=False)):
        if not _same_constant(x, y):
            yield f"{place}constant {i} differs"
    for i, (e, g) in enumerate(zip(a.eqns, b.eqns, strict=False)):
        yield from _equation_differences(e, g, same, f"{place}equation {i}: ")
    if len(a.eqns) != len(b.eqns):
        yield f"{place}{len(a.eqns)} equations, {len(b.eqns)}"
    if len(a.outvars) != len(b.outvars):
        yield f"{place}{len(a.outvars)} outvars, {len(b.outvars)}"
    for i, (x, y) in enumerate(zip(a.outvars, b.outvars, strict=False)):
        if not same(x, y):
            yield f"{place}outvars[{i}]: {_show(x)}, {_show(y)}"
    if sorted(map(_effect_name, jaxpr_effects(first))) != sorted(map(_effect_name, jaxpr_effects(second))):
        yield f"{place}effects differ"


def _equation_differences(e: Any, g: Any, same: "_Renaming", place: str) -> Iterator[str]:
    if e.primitive is not g.primitive:
        yield f"{place}primitive {e.primitive}, {g.primitive}"
        for x, y in zip(e.outvars, g.outvars, strict=False):
            same(x, y)  # what is made by two different equations is one value from here on
        return
    place += f"{e.primitive} "
    for field in ("invars", "outvars"):
        xs, ys = getattr(e, field), getattr(g, field)
        if len(xs) != len(ys):
            yield f"{place}{len(xs)} {field}, {len(ys)}"
        for i, (x, y) in enumerate(zip(xs, ys, strict=False)):
            if not same(x, y):
                yield f"{place}{field}[{i}]: {_show(x)}, {_show(y)}"
    if e.params.keys() != g.params.keys():
        yield f"{place}parameters {sorted(e.params)}, {sorted(g.params)}"
    for key in e.params.keys() & g.params.keys() if e.params.keys() != g.params.keys() else e.params:
        yield from _parameter_differences(e.params[key], g.params[key], f"{place}{key}")


def _parameter_differences(x: Any, y: Any, place: str) -> Iterator[str]:
    if x is y:
        return
    if isinstance(x, JAXPR_TYPES):
        if isinstance(y, JAXPR_TYPES):
            yield from _differences(x, y, f"{place}: ")
        else:
            yield f"{place}: a Jaxpr, {y!r}"
        return
    if isinstance(x, (tuple, list)) and type(x) is type(y) and len(x) == len(y):
        for i, (a, b) in enumerate(zip(x, y, strict=True)):
            yield from _parameter_differences(a, b, f"{place}[{i}]")
        return
    if not _same_parameter(x, y):
        yield f"{place}: {x!r}, {y!r}"


def _same_parameter(x: Any, y: Any) -> bool:
    if isinstance(x, np.ndarray) or isinstance(y, np.ndarray):
        return bool(np.array_equal(x, y))
    if is_rule(x) or (callable(x) and not inspect.isclass(x)):
        # Functions that make a program when they are called have no equality of their own: traced twice, they are two.
        return is_rule(y) or callable(y)
    try:
        return bool(x == y) or _text(x) == _text(y)
    except Exception:  # noqa: BLE001 - whatever a parameter's `==` may raise, it is then not known to be equal
        return False


def _text(value: Any) -> str:
    """Objects without `==` that print alike are taken for equal, unless they print their address."""
    text = str(value)
    return text if " at 0x" not in text else f"{text} {id(value)}"


class _Renaming:
    """Remembers which variable of one Jaxpr stands for which of the other."""

    def __init__(self):
        self._forth: dict[Any, Any] = {}
        self._back: dict[Any, Any] = {}

    def __call__(self, x: Any, y: Any) -> bool:
        if isinstance(x, Literal) or isinstance(y, Literal):
            return (
                isinstance(x, Literal) and isinstance(y, Literal) and x.aval == y.aval and _same_constant(x.val, y.val)
            )
        return x.aval == y.aval and self._forth.setdefault(x, y) is y and self._back.setdefault(y, x) is x


def _same_constant(x: Any, y: Any) -> bool:
    if x is y:
        return True
    if not (hasattr(x, "shape") and hasattr(y, "shape")):  # a scalar, or one that a Jaxpr keeps as a literal
        if type(x) is not type(y):
            return False
        # 0.0 == -0.0, yet they are two programs: 1 / x tells them apart.
        return (x == y and str(x) == str(y)) or (x != x and y != y)
    if x.dtype != y.dtype or x.shape != y.shape:
        return False
    try:
        first, second = np.asarray(x), np.asarray(y)
    except Exception:  # noqa: BLE001 - tracers and keys have no values to compare
        return False
    return first.tobytes() == second.tobytes()


def _effect_name(effect: Any) -> str:
    return type(effect).__name__


def _show(atom: Any) -> str:
    return f"{atom.val}" if isinstance(atom, Literal) else atom.aval.str_short(True)
