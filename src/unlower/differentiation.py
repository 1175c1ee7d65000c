"""Says how a program is differentiated: what was recovered, and what was not."""

import collections
import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.interpreters import ad

from unlower._jax_compat import open_closed_jaxpr
from unlower._jax_compat_interpret import sub_jaxprs
from unlower.errors import UnlowerError
from unlower.evaluate.library import differentiated_as, library_name, own_gradient
from unlower.ir.module import CALLS, CONSTANTS, CUSTOM_CALLS, Module, walk
from unlower.ops.reemit import Call, is_differentiable, reemit_p
from unlower.raising.loops import Bounds, Loop
from unlower.raising.outline import OUTLINED, outline
from unlower.report import DerivativeReport, Idiom, LoopDerivative

__all__ = ["report_of"]


def report_of(
    module: Module, loops: Sequence[Loop], bounds: Bounds, gradients: Mapping[str, Callable[..., Any]], closed: Any
) -> DerivativeReport:
    """Reports on a program.

    Args:
      module: the program.
      loops: its loops.
      bounds: at most how often those run that are not counted.
      gradients: the caller's own functions by name.
      closed: its Jaxpr, or None where sizes are not known yet.
    """
    idioms = tuple(_idioms(outline(module), gradients))
    notes = [] if closed is not None else ["sizes are known when it is called, so its operations are not looked at"]
    return DerivativeReport(
        name=module.name,
        loops=tuple(_loop(loop, bounds) for loop in loops),
        idioms=idioms,
        custom_calls=_counted(
            str(op.attributes.get("call_target_name"))
            for function in module.functions.values()
            for op in walk(function.body)
            if op.name in CUSTOM_CALLS
        ),
        without_derivative={} if closed is None else _counted(_without_derivative(closed)),
        lost_rules=tuple(_lost_rules(module, {idiom.function for idiom in idioms if idiom.proved})),
        notes=tuple(notes),
    )


def _loop(loop: Loop, bounds: Bounds) -> LoopDerivative:
    bound = bounds.get(loop.name) if isinstance(bounds, Mapping) else bounds
    return LoopDerivative(
        name=loop.name,
        place=loop.place,
        trip_count=loop.trip_count,
        reason=loop.reason,
        max_iterations=bound if loop.trip_count is None else None,
    )


def _idioms(module: Module, gradients: Mapping[str, Callable[..., Any]]) -> Iterator[Idiom]:
    calls = collections.Counter(
        str(op.attributes["callee"])
        for function in module.functions.values()
        for op in walk(function.body)
        if op.name in CALLS
    )
    for function in module.functions:
        known = library_name(function)
        if known is None and own_gradient(function, gradients) is None:
            continue
        try:
            proved = differentiated_as(module, function, gradients) is not None
        except UnlowerError:
            proved = False
        inlined = function.startswith(OUTLINED)
        yield Idiom(
            name=(known or function).removeprefix(OUTLINED),
            function=None if inlined else function,
            calls=calls[function],
            proved=proved,
        )


def _without_derivative(closed: Any) -> Iterator[str]:
    for equation in open_closed_jaxpr(closed).eqns:
        inner = list(sub_jaxprs(equation.params))
        for jaxpr in inner:
            yield from _without_derivative(jaxpr)
        moving = [any(_moves(v) for v in values) for values in (equation.invars, equation.outvars)]
        if inner or not all(moving):
            continue
        if equation.primitive is reemit_p:
            call = Call(**equation.params)
            if not is_differentiable(call):
                yield call.key
        elif equation.primitive not in ad.primitive_jvps:
            yield str(equation.primitive)


def _moves(value: Any) -> bool:
    return jax.dtypes.issubdtype(value.aval.dtype, np.inexact)


_RULE = re.compile(r"^(.*?(?:custom_jvp_call|custom_vjp_call)[^/]*)(?:/|$)")


def _lost_rules(module: Module, proved: Container[str | None]) -> list[str]:
    """The scopes that JAX puts around functions with a rule of their own, of operations outside the functions `proved`."""
    found: dict[str, None] = {}
    for function in module.functions.values():
        for op in walk(function.body) if function.name not in proved else ():
            name = None if op.location is None or op.name in CALLS | CONSTANTS else op.location.name
            match = _RULE.match(name) if name and "custom_" in name else None
            if match is not None:
                found[match[1]] = None
    return list(found)


def _counted(names: Iterator[str]) -> dict[str, int]:
    return dict(sorted(collections.Counter(names).items(), key=lambda item: (-item[1], item[0])))
