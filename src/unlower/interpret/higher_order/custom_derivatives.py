"""Functions that bring their own derivatives: `custom_jvp`, `custom_vjp`, and the linear calls and remat marks made of them.

What becomes of a derivative rule is the interpreter's `custom_rules`. Dropping it means to interpret the function in place, so
that its primitives are differentiated. So it is wherever a rule could not go along: it knows nothing of boxes, nor of values
from outside that the interpreter's rules have used.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from unlower._jax_compat_interpret import (
    SymbolicZero,
    Zero,
    call_wrapped,
    close_jaxpr,
    constants_first,
    cotangent_aval,
    strip_weak_type,
    wrap_like,
)
from unlower.errors import RuleError
from unlower.interpret.higher_order.registry import higher_order
from unlower.interpret.staging import Staged, call_staged
from unlower.interpret.structure import equal
from unlower.interpret.values import all_plain, convert_leaf, plain_type, type_of

Function = Callable[..., Any]


def _is_quiet(interpreter: Any, params: dict[str, Any]) -> bool:
    """A rule is a program too, but one that shows only when it is asked for."""
    return interpreter.custom_rules in ("auto", "keep") or (
        interpreter.custom_rules == "transform" and interpreter.is_inert
    )


def decide(ctx: Any, jaxpr: Any, values: tuple[Any, ...]) -> tuple[str, tuple[Any, ...], Staged | None]:
    """Chooses between `"transform"`, `"same"`, `"keep"` and `"drop"` for one function.

    Returns:
      the choice, which is `"same"` where a rule is to be kept and the function is what it was; the function's inputs; and the
      function as staged unless its rule is dropped.
    """
    policy = ctx.interpreter.custom_rules
    if policy == "drop" or not all_plain(values):
        return "drop", values, None
    results = None
    if policy == "keep":
        # The rule is written for the declared types, so the function meets it there.
        values = tuple(convert_leaf(v, aval) for v, aval in zip(values, ctx.in_avals, strict=True))
        results = [plain_type(v.aval) for v in jaxpr.outvars]
    staged = ctx.stage(jaxpr, values, results=results, is_open=True)
    if staged.hoisted or not all(t.is_plain for t in staged.results):
        return "drop", values, None
    if policy != "transform" and is_same(staged, jaxpr):
        policy = "same"
    return "drop" if policy == "auto" else policy, values, staged


def is_same(staged: Staged, jaxpr: Any) -> bool:
    """Whether a function does what it did, apart from what it emits."""
    return not staged.changed or equal(staged.muted, jaxpr, dce=bool(staged.emissions))


def emit_beside(ctx: Any, staged: Staged, values: Sequence[Any]) -> None:
    """Emits what a function with a derivative rule does, from a second run of it, which the compiler merges with the first."""
    if staged.emissions:
        ctx.pass_on(staged.split(call_staged(staged.jaxpr, list(values)))[1])


def keep_rule(
    ctx: Any,
    name: str,
    jaxpr: Any,
    values: tuple[Any, ...],
    transform: Callable[[tuple[Any, ...], Staged], dict[str, Any]],
    derive: Callable[[Function, Function], Function] | None,
) -> list[Any]:
    """Interprets a function that brings a derivative rule, by the policy.

    Args:
      ctx: the equation.
      name: the parameter that holds the function.
      jaxpr: the function.
      values: its inputs.
      transform: makes the parameters that hold the transformed rule, from the inputs and the function as staged.
      derive: makes the function with the value of one and the derivative of the other; None where the rule brings no values.
    """
    policy, values, staged = decide(ctx, jaxpr, values)
    if policy == "drop" or staged is None:
        return ctx.sub(jaxpr, *values)
    emit_beside(ctx, staged, values)
    if policy == "keep" and derive is not None:
        return derive(lambda *v: call_staged(staged.muted, v), lambda *v: ctx.rebind(v))(*values)
    rule = transform(values, staged) if policy == "transform" else {}
    return ctx.rebind(values, **{name: staged.muted}, **rule)


def with_tangents_of(value: Function, derivative: Function) -> Function:
    """The function that has the value of one and the tangents of another, for forward and reverse mode.

    A derivative rule computes the value too, its own: what it says about tangents is all that is taken from it.
    """

    @jax.custom_jvp
    def function(*primals: Any) -> list[Any]:
        return list(value(*primals))

    def rule(primals: Any, tangents: Any) -> tuple[Any, Any]:
        moving = [i for i, t in enumerate(tangents) if not isinstance(t, SymbolicZero)]
        along = _restrict(derivative, primals, moving)
        _, out = jax.jvp(along, [primals[i] for i in moving], [tangents[i] for i in moving])
        return function(*primals), list(out)

    function.defjvp(rule, symbolic_zeros=True)
    return function


def with_cotangents_of(value: Function, derivative: Function) -> Function:
    """The function that has the value of one and the cotangents of another, for reverse mode."""

    @jax.custom_vjp
    def function(*primals: Any) -> list[Any]:
        return list(value(*primals))

    def forward(*primals: Any) -> tuple[Any, Any]:
        values = [p.value for p in primals]
        moving = [i for i, p in enumerate(primals) if p.perturbed]
        _, pull_back = jax.vjp(_restrict(derivative, values, moving), *(values[i] for i in moving))
        # Which inputs move is told by the structure of the residuals, which is static.
        return list(value(*values)), (pull_back, [() if p.perturbed else None for p in primals])

    def backward(residuals: Any, cotangents: Any) -> tuple[Any, ...]:
        pull_back, moved = residuals
        given = list(map(_as_array, cotangents))
        found = iter(pull_back(given))
        return tuple(None if flag is None else next(found) for flag in moved)

    function.defvjp(forward, backward, symbolic_zeros=True)
    return function


def _as_array(cotangent: Any) -> Any:
    if not isinstance(cotangent, SymbolicZero):
        return cotangent
    aval: Any = cotangent.aval
    return np.zeros(aval.shape, aval.dtype)


def _restrict(function: Function, values: Sequence[Any], moving: Sequence[int]) -> Function:
    """The function of some of its arguments, the others fixed."""

    def restricted(*moved: Any) -> Any:
        filled = list(values)
        for place, value in zip(moving, moved, strict=True):
            filled[place] = value
        return list(function(*filled))

    return restricted


def memoize(function: Callable[..., Any]) -> Callable[..., Any]:
    """JAX asks for a rule at the same zeros more than once."""
    known: dict[Any, Any] = {}

    def remembered(*key: Any) -> Any:
        if key not in known:
            known[key] = function(*key)
        return known[key]

    return remembered


def stage_rule(ctx: Any, name: str, jaxpr: Any, types: Sequence[Any], results: Sequence[Any] | None) -> tuple[Any, Any]:
    """Interprets a rule's Jaxpr; returns it open, with its constants."""
    jaxpr = ctx.interpreter.prepare(jaxpr, types, results)
    staged = ctx.stage(jaxpr, types, results=results, name=name, is_open=True, cached=False)
    if staged.emissions:
        raise no_emissions(ctx, name, staged.emissions[0].name)
    return constants_first(staged.jaxpr, len(staged.hoisted)), list(staged.hoisted)


def no_emissions(ctx: Any, name: str, emitted: Any) -> RuleError:
    """The error for what is emitted where no caller can be given it."""
    return ctx.error(
        RuleError,
        f"{emitted!r} is emitted in the {name} rule, which JAX runs elsewhere, or not at all",
        "differentiate inside: transform(jax.grad(f)), or leave the rule alone: custom_rules='keep'",
    )


@higher_order("custom_jvp_call", is_quiet=_is_quiet)
def custom_jvp(
    ctx: Any, *values: Any, call_jaxpr: Any, jvp_jaxpr_fun: Any, num_consts: int, **params: Any
) -> list[Any]:
    """Keeps the function and its rule for tangents, by the policy."""

    def transform(values: tuple[Any, ...], staged: Staged) -> dict[str, Any]:
        primals = [type_of(v, a).avals[0] for v, a in zip(values, ctx.in_avals, strict=True)][num_consts:]
        outs = [t.avals[0] for t in staged.results]

        @memoize
        def tangent_rule(*zeros: bool) -> tuple[Any, Any, Any]:
            jaxpr, consts, out_zeros = call_wrapped(jvp_jaxpr_fun, *zeros)
            tangents = [a.to_tangent_aval() for a, zero in zip(primals, zeros, strict=True) if not zero]
            out_tangents = [a.to_tangent_aval() for a, zero in zip(outs, out_zeros, strict=True) if not zero]
            closed = close_jaxpr(jaxpr, consts)
            types = ctx.types_of([*primals, *tangents], closed.invars)
            results = list(map(plain_type, [*outs, *out_tangents]))
            return *stage_rule(ctx, "jvp", closed, types, results), out_zeros

        return {"jvp_jaxpr_fun": wrap_like(tangent_rule, jvp_jaxpr_fun)}

    return keep_rule(ctx, "call_jaxpr", call_jaxpr, values, transform, with_tangents_of)


@higher_order("custom_vjp_call", is_quiet=_is_quiet)
def custom_vjp(
    ctx: Any,
    *values: Any,
    call_jaxpr: Any,
    fwd_jaxpr_thunk: Any,
    bwd: Any,
    num_consts: int,
    out_trees: Any,
    **params: Any,
) -> list[Any]:
    """Keeps the function and its rule for cotangents, by the policy."""

    def transform(values: tuple[Any, ...], staged: Staged) -> dict[str, Any]:
        fwd, new_bwd = _transform_vjp(ctx, values, staged, fwd_jaxpr_thunk, bwd, num_consts, out_trees)
        return {"fwd_jaxpr_thunk": wrap_like(fwd, fwd_jaxpr_thunk), "bwd": wrap_like(new_bwd, bwd)}

    return keep_rule(ctx, "call_jaxpr", call_jaxpr, values, transform, with_cotangents_of)


def _transform_vjp(
    ctx: Any, values: Sequence[Any], staged: Staged, old_fwd: Any, old_bwd: Any, num_consts: int, out_trees: Any
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    in_types = [type_of(v, a) for v, a in zip(values, ctx.in_avals, strict=True)]
    primals, outs = in_types[num_consts:], list(staged.results)
    declared_residuals: list[Any] = []

    @memoize
    def fwd(*zeros: bool) -> tuple[Any, Any]:
        jaxpr, consts = call_wrapped(old_fwd, *zeros)
        closed = close_jaxpr(jaxpr, consts)
        n_residuals = len(closed.outvars) - len(outs)
        declared_residuals[:] = [v.aval for v in closed.outvars[:n_residuals]]
        prepared = ctx.interpreter.prepare(closed, primals, [*[None] * n_residuals, *outs])
        free = ctx.stage(prepared, primals, name="fwd", is_open=True, cached=False)
        if free.emissions:
            raise no_emissions(ctx, "fwd", free.emissions[0].name)
        # Residuals take what type they like, but the results are those of the function.
        return stage_rule(ctx, "fwd", closed, primals, [*free.results[:n_residuals], *outs])

    def bwd(*arguments: Any) -> Any:
        _, _, forwarded = out_trees()
        residuals = iter(declared_residuals)
        avals = [next(residuals) if place is None else ctx.in_avals[place] for place in forwarded]
        avals += map(cotangent_aval, ctx.out_avals)
        out = ctx.run_rule("bwd", lambda *a: call_wrapped(old_bwd, *a), arguments, avals)
        # jax 0.12 returns logs beside the cotangents.
        with_logs = isinstance(out, tuple) and len(out) == 2 and isinstance(out[0], list)
        cotangents = out[0] if with_logs else out
        wanted = [strip_weak_type(cotangent_aval(t.avals[0])) for t in primals]
        converted = [_convert_cotangent(ct, aval) for ct, aval in zip(cotangents, wanted, strict=True)]
        return (converted, out[1]) if with_logs else converted

    return fwd, bwd


def _convert_cotangent(cotangent: Any, aval: Any) -> Any:
    if isinstance(cotangent, (Zero, SymbolicZero)):
        return type(cotangent)(aval)
    return convert_leaf(cotangent, aval)


@higher_order("linear_call", is_quiet=_is_quiet)
def linear_call(
    ctx: Any, *values: Any, callee: Any, transpose_thunk: Any, num_callee_consts: int, num_res: int
) -> list[Any]:
    """Keeps the function and its transpose, by the policy."""

    def transform(values: tuple[Any, ...], staged: Staged) -> dict[str, Any]:
        types = [type_of(v, a) for v, a in zip(values, ctx.in_avals, strict=True)][num_callee_consts:]

        @memoize
        def transpose() -> tuple[Any, Any]:
            jaxpr, consts = transpose_thunk()
            given = [*(plain_type(v.aval) for v in jaxpr.invars[: len(consts)]), *types[:num_res], *staged.results]
            results = types[num_res:]
            inner = ctx.stage(jaxpr, given, results=results, name="transpose", is_open=True, cached=False)
            if inner.emissions:
                raise no_emissions(ctx, "transpose", inner.emissions[0].name)
            return inner.jaxpr, [*inner.hoisted, *consts]

        return {"transpose_thunk": transpose}

    return keep_rule(ctx, "callee", callee, values, transform, None)


@higher_order("remat_opt")
def remat_opt(ctx: Any, *values: Any, fwd_jaxpr: Any, fun_jaxpr_thunk: Any, num_consts: int, num_res: int) -> list[Any]:
    """Rewrites the forward rule, and the function that takes its place where nobody needs the residuals.

    The derivative rule is gone by now: this is what `grad` has made of a `custom_vjp` with `optimize_remat`.
    """
    staged = ctx.stage(fwd_jaxpr, values, is_open=True)
    if not (all_plain(values) and staged.is_plain):
        return ctx.sub(fwd_jaxpr, *values)
    types = [type_of(v, a) for v, a in zip(values, ctx.in_avals, strict=True)][num_consts:]

    @memoize
    def function() -> tuple[Any, Any]:
        jaxpr, consts = fun_jaxpr_thunk()
        return stage_rule(ctx, "fun", close_jaxpr(jaxpr, consts), types, staged.results[num_res:])

    return ctx.rebind(values, fwd_jaxpr=staged.jaxpr, fun_jaxpr_thunk=function)
