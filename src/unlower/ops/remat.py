"""Equations under the name scope `checkpoint`, which `jax.checkpoint` computes again on the way back, grouped as they were.

The scope is a hint, and that is enough: whatever is grouped computes the same. Repeated layers stand in a row and bear the same
scope, so a run of equations that repeats itself is cut where it does.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax

from unlower._jax_compat import (
    JaxprParts,
    Var,
    closed_jaxpr,
    eval_closed_jaxpr,
    open_closed_jaxpr,
    scoped_source_info,
)

__all__ = ["group_checkpoints"]

_SCOPE = "checkpoint"


def group_checkpoints(parts: JaxprParts) -> JaxprParts:
    """Puts the equations of each checkpoint into one of `jax.checkpoint`."""
    scopes = [_around(equation) for equation in parts.eqns]
    if not any(scope is not None for scope in scopes):
        return parts
    groups: list[tuple[int, int]] = []
    begin = 0
    while begin < len(scopes):
        end = begin + 1
        if scopes[begin] is not None:
            while end < len(scopes) and scopes[end] == scopes[begin]:
                end += 1
            length = _period(parts.eqns[begin:end])
            groups += [(i, i + length) for i in range(begin, end, length)]
        begin = end
    last: dict[Any, int] = {v: len(parts.eqns) for v in parts.outvars if type(v) is Var}
    for i in range(len(parts.eqns) - 1, -1, -1):
        for a in parts.eqns[i].invars:
            if type(a) is Var:
                last.setdefault(a, i)
    equations: list[Any] = []
    done = 0
    for begin, end in groups:
        equations += parts.eqns[done:begin]
        equations.append(_group(parts.eqns[begin:end], lambda v, end=end: last.get(v, -1) >= end))
        done = end
    return parts._replace(eqns=[*equations, *parts.eqns[done:]])


def _name_scope(equation: Any) -> str:
    """The name scope of an equation, `/` between its parts."""
    return str(equation.source_info.name_stack)


@functools.lru_cache(maxsize=4096)
def _checkpoint_in(scope: str) -> str | None:
    """The scope up to and with the checkpoint; None where there is none, or it is a piece of a derivative already."""
    path = scope.split("/")
    if _SCOPE not in path or any(part.startswith(("jvp(", "transpose(", "rematted_computation")) for part in path):
        return None
    return "/".join(path[: path.index(_SCOPE) + 1])


def _around(equation: Any) -> str | None:
    return None if equation.effects else _checkpoint_in(_name_scope(equation))


def _period(equations: Sequence[Any]) -> int:
    """The length of what a run of equations repeats, or all of it."""
    spelled = [
        (str(e.primitive), len(e.invars), tuple(str(v.aval) for v in e.outvars), e.params.get("name"))
        for e in equations
    ]
    count = len(spelled)
    for length in range(1, count // 2 + 1):
        if count % length == 0 and spelled[length:] == spelled[:-length]:
            return length
    return count


def _group(equations: Sequence[Any], is_read_later: Any) -> Any:
    made = {v for equation in equations for v in equation.outvars}
    inputs = list(dict.fromkeys(a for e in equations for a in e.invars if type(a) is Var and a not in made))
    outputs = [v for e in equations for v in e.outvars if is_read_later(v)]
    # Lowering puts the scope around the group again.
    prefix = _around(equations[0]) or ""
    inner = [e.replace(source_info=scoped_source_info(_name_scope(e)[len(prefix) :].lstrip("/"))) for e in equations]
    closed = closed_jaxpr(JaxprParts(inputs, outputs, inner, [], []), _SCOPE)
    structs = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in closed.in_avals]
    with jax.enable_x64(True):
        traced = jax.make_jaxpr(jax.checkpoint(lambda *xs: tuple(eval_closed_jaxpr(closed, *xs))))(*structs)
    (equation,) = open_closed_jaxpr(traced).eqns
    around = scoped_source_info(prefix.rpartition("/")[0])
    return equations[0].replace(
        primitive=equation.primitive, params=equation.params, invars=inputs, outvars=outputs, source_info=around
    )
