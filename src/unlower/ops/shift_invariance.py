"""Maxima that cancel: what is subtracted from an exponent for the sake of range, and does not change what comes out.

`softmax` and `logsumexp` stop the gradient at the maximum that they subtract. Lowered, that is gone, and a derivative would go
through the maximum to find that it comes to nothing. Here it is proved that it does: the maximum is shifted by an unknown
amount, and the shift is followed. `x - m` is shifted by the opposite, `exp` makes a factor of a shift and `log` a shift of a
factor, sums over the axes of the maximum leave factors alone, quotients of equal factors have none; and everything that
depends on the maximum must lose the shift before it leaves.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from unlower._jax_compat import JaxprParts, Literal, Var, jit_p, open_closed_jaxpr

__all__ = ["find_cancelling_maxima"]


class _Shift(NamedTuple):
    """How a value changes with the shift: by a multiple that is added, or by a factor, its exponential.

    Attributes:
      multiple: what the shift is multiplied by.
      is_factor: whether the change is a factor.
      places: for each dimension of the value, the dimension of the maximum along which the shift varies, or None.
    """

    multiple: int
    is_factor: bool
    places: tuple[int | None, ...]


_ZERO = _Shift(0, True, ())
"""Stands for the constant zero, which any factor leaves alone."""


class _Remains(Exception):  # noqa: N818 (no error: the shift could not be followed)
    pass


def find_cancelling_maxima(parts: JaxprParts) -> list[Any]:
    """Returns the variables at which the gradient can be stopped: maxima whose shifts cancel."""
    if not any(str(equation.primitive) == "reduce_max" for equation in parts.eqns):
        return []
    found: list[Any] = []
    outputs = {v for v in parts.outvars if type(v) is Var}
    sources: set[Any] = set()
    for equation in parts.eqns:
        name = str(equation.primitive)
        if name == "reduce_max":
            sources.add(equation.outvars[0])
        elif name in ("max", "select_n", "broadcast_in_dim", "reshape") and any(
            type(a) is Var and a in sources for a in equation.invars
        ):
            # Kept finite, above minus infinity, or in its place.
            sources.add(equation.outvars[0])
        else:
            continue
        (source,) = equation.outvars
        places = tuple(i if n > 1 else None for i, n in enumerate(source.aval.shape))
        shifts = {source: _Shift(1, False, places)}
        try:
            _follow(parts.eqns, shifts)
        except _Remains:
            continue
        moving = {v for v, shift in shifts.items() if shift is not _ZERO}
        if outputs.isdisjoint(moving) and len(moving) > 1:
            found.append(source)
            sources.remove(source)
    return found


def _follow(equations: Sequence[Any], shifts: dict[Any, _Shift]) -> None:
    """Adds to `shifts` what depends on the shift."""
    for equation in equations:
        operands = [_shift_of(a, shifts) for a in equation.invars]
        name = str(equation.primitive)
        if not any(s is not None and s is not _ZERO for s in operands):
            if name in ("broadcast_in_dim", "convert_element_type") and operands[0] is _ZERO:
                shifts[equation.outvars[0]] = _ZERO
            continue
        if equation.primitive is jit_p:
            results = _inside(open_closed_jaxpr(equation.params["jaxpr"]), operands)
        else:
            rule = _RULES.get(name)
            if rule is None:
                raise _Remains
            if name != "select_n":
                operands = [None if s is _ZERO else s for s in operands]
            results = [rule(equation, *operands)]
        shifts.update((v, s) for v, s in zip(equation.outvars, results, strict=True) if s is not None)


def _shift_of(atom: Any, shifts: Mapping[Any, _Shift]) -> _Shift | None:
    if type(atom) is Var:
        return shifts.get(atom)
    return _ZERO if isinstance(atom, Literal) and np.size(atom.val) == 1 and np.all(np.asarray(atom.val) == 0) else None


def _inside(parts: JaxprParts, operands: Sequence[_Shift | None]) -> list[_Shift | None]:
    inner = {v: s for v, s in zip(parts.invars, operands, strict=True) if s is not None}
    _follow(parts.eqns, inner)
    return [_shift_of(v, inner) for v in parts.outvars]


# --- rules: the change of an equation's result, None where there is none


def _together(x: _Shift, y: _Shift) -> tuple[int | None, ...]:
    if x.is_factor != y.is_factor or len(x.places) != len(y.places):
        raise _Remains
    # A dimension of one may stand for a larger one, along which nothing varies.
    if x.places != y.places:
        raise _Remains
    return x.places


def _spread(x: _Shift | None, shape: Sequence[int]) -> _Shift | None:
    """The change of a number that is used for each element."""
    return x._replace(places=(None,) * len(shape)) if x is not None and x.places == () else x


def _sum(equation: Any, x: _Shift | None, y: _Shift | None) -> _Shift | None:
    sign = -1 if str(equation.primitive) == "sub" else 1
    shape = equation.outvars[0].aval.shape
    x, y = _spread(x, shape), _spread(y, shape)
    if any(s is not None and (s.is_factor or len(s.places) != len(shape)) for s in (x, y)):
        raise _Remains
    if x is not None and y is not None:
        return _changed(x.multiple + sign * y.multiple, False, _together(x, y))
    return x if y is None else _changed(sign * y.multiple, False, y.places)


def _product(equation: Any, x: _Shift | None, y: _Shift | None) -> _Shift | None:
    sign = -1 if str(equation.primitive) == "div" else 1
    shape = equation.outvars[0].aval.shape
    x, y = _spread(x, shape), _spread(y, shape)
    if any(s is not None and (not s.is_factor or len(s.places) != len(shape)) for s in (x, y)):
        raise _Remains
    if x is not None and y is not None:
        return _changed(x.multiple + sign * y.multiple, True, _together(x, y))
    return x if y is None else _changed(sign * y.multiple, True, y.places)


def _changed(multiple: int, is_factor: bool, places: tuple[int | None, ...]) -> _Shift | None:
    return _Shift(multiple, is_factor, places) if multiple else None


def _exp(equation: Any, x: _Shift) -> _Shift:
    if x.is_factor:
        raise _Remains
    return x._replace(is_factor=True)


def _log(equation: Any, x: _Shift) -> _Shift:
    if not x.is_factor:
        raise _Remains
    return x._replace(is_factor=False)


def _same(equation: Any, x: _Shift) -> _Shift:
    return x


def _factor(equation: Any, x: _Shift) -> _Shift:
    """Of a function that passes positive factors on."""
    if not x.is_factor:
        raise _Remains
    return x


def _reduce(equation: Any, x: _Shift) -> _Shift:
    axes = equation.params["axes"]
    if not x.is_factor or any(x.places[axis] is not None for axis in axes):
        raise _Remains
    return x._replace(places=tuple(p for i, p in enumerate(x.places) if i not in axes))


def _broadcast(equation: Any, x: _Shift, *sizes: None) -> _Shift:
    places: list[int | None] = [None] * len(equation.params["shape"])
    for at, place in zip(equation.params["broadcast_dimensions"], x.places, strict=True):
        places[at] = place
    return x._replace(places=tuple(places))


def _reshape(equation: Any, x: _Shift, *sizes: None) -> _Shift:
    """Of one that adds or drops dimensions of one."""
    before, after = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
    kept = [(n, p) for n, p in zip(before, x.places, strict=True) if n != 1]
    if [n for n, _ in kept] != [n for n in after if n != 1]:
        raise _Remains
    places = iter([p for _, p in kept])
    return x._replace(places=tuple(None if n == 1 else next(places) for n in after))


def _select(equation: Any, which: _Shift | None, *cases: _Shift | None) -> _Shift:
    """Of factors, or of zeros in their place."""
    shifted = {case for case in cases if case is not _ZERO}
    if which is not None or len(shifted) != 1:
        raise _Remains
    (case,) = shifted
    if case is None or not case.is_factor:
        raise _Remains
    return case


def _none(equation: Any, *operands: _Shift | None) -> None:
    """Of a function without a derivative: what it returns changes nowhere but in steps."""
    return


_RULES: Mapping[str, Any] = {
    "abs": _factor,
    "add": _sum,
    "broadcast_in_dim": _broadcast,
    "convert_element_type": _same,
    "copy": _same,
    "div": _product,
    "exp": _exp,
    "is_finite": _none,
    "log": _log,
    "mul": _product,
    "neg": lambda equation, x: x if x.is_factor else x._replace(multiple=-x.multiple),
    "reduce_sum": _reduce,
    "reshape": _reshape,
    "select_n": _select,
    "sign": _none,
    "squeeze": _reshape,
    "sub": _sum,
}
