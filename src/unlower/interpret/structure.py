"""Jaxprs looked at from outside: all their equations, whether two are equal, and where they differ."""

import inspect
from collections.abc import Callable, Iterator
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
      path: the primitives around it, outermost first.
      source: the line it comes from, or the empty string.
    """

    equation: Any
    path: tuple[str, ...]
    source: str


def walk(jaxpr: Any, path: tuple[str, ...] = ()) -> Iterator[Visit]:
    """Yields every equation of a Jaxpr, in order and at every depth, each followed by those inside it.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> closed = jax.make_jaxpr(jax.jit(lambda x: jnp.sin(x) + 1))(1.0)
      >>> [visit.equation.primitive.name for visit in walk(closed)]
      ['jit', 'sin', 'add']
    """
    for equation in jaxpr_parts(jaxpr).eqns:
        yield Visit(equation, path, source_summary(equation.source_info))
        for inner in hidden_programs(equation.primitive, equation.params):
            yield from walk(inner, (*path, equation.primitive.name))


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
    return first is second or _first_difference(first, second, "") is None


def diff(first: Any, second: Any) -> str:
    """Says where two Jaxprs first differ; the empty string if they do not.

    Example:
      >>> import jax
      >>> diff(jax.make_jaxpr(lambda x: x + 1)(1.0), jax.make_jaxpr(lambda x: x * 1)(1.0))
      'equation 0: primitive add, mul'
    """
    return _first_difference(first, second, "") or ""


def _first_difference(first: Any, second: Any, place: str) -> str | None:
    a, b = jaxpr_parts(first), jaxpr_parts(second)
    for field in ("constvars", "invars", "outvars"):
        if len(getattr(a, field)) != len(getattr(b, field)):
            return f"{place}{len(getattr(a, field))} {field}, {len(getattr(b, field))}"
    same = _Renaming()
    for field in ("constvars", "invars"):
        for i, (x, y) in enumerate(zip(getattr(a, field), getattr(b, field), strict=True)):
            if not same(x, y):
                return f"{place}{field}[{i}]: {_show(x)}, {_show(y)}"
    for i, (x, y) in enumerate(zip(a.consts, b.consts, strict=False)):
        if not _same_constant(x, y):
            return f"{place}constant {i} differs"
    for i, (e, g) in enumerate(zip(a.eqns, b.eqns, strict=False)):
        if (found := _equation_difference(e, g, same, f"{place}equation {i}: ")) is not None:
            return found
    if len(a.eqns) != len(b.eqns):
        return f"{place}{len(a.eqns)} equations, {len(b.eqns)}"
    for i, (x, y) in enumerate(zip(a.outvars, b.outvars, strict=True)):
        if not same(x, y):
            return f"{place}outvars[{i}]: {_show(x)}, {_show(y)}"
    if sorted(map(_effect_name, jaxpr_effects(first))) != sorted(map(_effect_name, jaxpr_effects(second))):
        return f"{place}effects differ"
    return None


def _equation_difference(e: Any, g: Any, same: Callable[[Any, Any], bool], place: str) -> str | None:
    if e.primitive is not g.primitive:
        return f"{place}primitive {e.primitive}, {g.primitive}"
    place += f"{e.primitive} "
    for field in ("invars", "outvars"):
        xs, ys = getattr(e, field), getattr(g, field)
        if len(xs) != len(ys):
            return f"{place}{len(xs)} {field}, {len(ys)}"
        for i, (x, y) in enumerate(zip(xs, ys, strict=True)):
            if not same(x, y):
                return f"{place}{field}[{i}]: {_show(x)}, {_show(y)}"
    if e.params.keys() != g.params.keys():
        return f"{place}parameters {sorted(e.params)}, {sorted(g.params)}"
    for key, value in e.params.items():
        if (found := _parameter_difference(value, g.params[key], f"{place}{key}")) is not None:
            return found
    return None


def _parameter_difference(x: Any, y: Any, place: str) -> str | None:
    if x is y:
        return None
    if isinstance(x, JAXPR_TYPES):
        return _first_difference(x, y, f"{place}: ") if isinstance(y, JAXPR_TYPES) else f"{place}: a Jaxpr, {y!r}"
    if isinstance(x, (tuple, list)):
        if type(x) is not type(y) or len(x) != len(y):
            return f"{place}: {x!r}, {y!r}"
        pairs = enumerate(zip(x, y, strict=True))
        return next((found for i, (a, b) in pairs if (found := _parameter_difference(a, b, f"{place}[{i}]"))), None)
    if isinstance(x, np.ndarray) or isinstance(y, np.ndarray):
        return None if np.array_equal(x, y) else f"{place}: arrays differ"
    if is_rule(x) or (callable(x) and not inspect.isclass(x)):
        # Functions that make a program when they are called have no equality of their own: traced twice, they are two.
        return None if is_rule(y) or callable(y) else f"{place}: {x!r}, {y!r}"
    try:
        return None if x == y or _text(x) == _text(y) else f"{place}: {x!r}, {y!r}"
    except Exception:  # noqa: BLE001 - whatever a parameter's `==` may raise, it is then not known to be equal
        return f"{place}: {x!r}, {y!r}"


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
