"""Hijax: `call_hi_primitive`, whose program sits in a Python object. New `custom_jvp`, `custom_vjp` and `checkpoint` are such.

JAX makes them where the flags `jax_custom_jvp3`, `jax_custom_vjp3` and `jax_remat3` are on. For those objects it is known which
of their parameters are programs and which are derivative rules. Any other object is expanded, and what it expands to
interpreted, unless nothing in there meets a rule. A rule for the class's name (`"Einsum"`) comes before all that.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from unlower._jax_compat_interpret import (
    expand_hijax,
    is_traced,
    replace_hijax_params,
    replace_traced_jaxpr,
    typematch,
    typeof,
)
from unlower.interpret.higher_order.custom_derivatives import (
    emit_beside,
    is_same,
    with_cotangents_of,
    with_tangents_of,
)
from unlower.interpret.higher_order.registry import higher_order
from unlower.interpret.staging import call_staged
from unlower.interpret.values import all_plain, convert_leaf, plain_type

RULES = {
    "CustomJVPTraced": ("jvp_rule",),
    "CustomVJPTraced": ("fwd", "bwd", "remat_rules", "bwd_accums"),
}
"""Classes of functions with derivative rules -> the parameters that are rules."""

DERIVE = {"CustomJVPTraced": with_tangents_of, "CustomVJPTraced": with_cotangents_of}
"""The same classes -> what keeps a function's rule when its value changes."""

CALLS = ("RematTraced",)
"""Classes of plain calls."""

SAME_AS = {"CheckpointName": "name"}
"""Classes that are what an older primitive was."""


def _programs(params: dict[str, Any]) -> Iterator[Any]:
    hijax = params["_prim"]
    if _kind(hijax) in (*RULES, *CALLS):
        yield _program(hijax)[1]
    else:
        yield expand_hijax(hijax)


def _kind(hijax: Any) -> str:
    """The name of JAX's own class; the empty string for anybody else's."""
    kind = type(hijax)
    return kind.__name__ if kind.__module__.startswith("jax.") else ""


def _program(hijax: Any) -> tuple[str, Any]:
    """The parameter that holds the function, and its Jaxpr."""
    for name in ("traced", "jaxpr"):
        held = hijax.params.get(name)
        if held is not None:
            return name, held.jaxpr if is_traced(held) else held
    raise AssertionError(f"{type(hijax).__name__} holds no program")


def _is_quiet(interpreter: Any, params: dict[str, Any]) -> bool:
    hijax = params["_prim"]
    if _find_rule(interpreter, hijax) is not None:
        return False
    if _kind(hijax) in RULES:
        policy = interpreter.custom_rules
        return policy in ("auto", "keep") or (policy == "transform" and interpreter.is_inert)
    return True


def _find_rule(interpreter: Any, hijax: Any) -> Callable[..., Any] | None:
    name = type(hijax).__name__
    return interpreter.find_rule_named(name) or interpreter.find_rule_named(SAME_AS.get(_kind(hijax), name))


@higher_order("call_hi_primitive", programs=_programs, is_quiet=_is_quiet)
def call_hi_primitive(ctx: Any, *values: Any, _prim: Any) -> Any:
    """Rewrites the object's program, and its derivative rules by the policy; or expands it."""
    rule = _find_rule(ctx.interpreter, _prim)
    if rule is not None:
        out = rule(ctx, *ctx.arrays(values), **_prim.params)
        return list(out) if isinstance(out, (list, tuple)) else [out]
    if all_plain(values):
        rewritten = None
        if _kind(_prim) in RULES:
            rewritten = _rewrite_function(ctx, values, _prim)
        elif _kind(_prim) in CALLS:
            rewritten = _rewrite_call(ctx, values, _prim)
        elif not ctx.interpreter.touches(expand_hijax(_prim)) and _as_declared(values, _prim):
            return ctx.rebind(values)
        if rewritten is not None:
            return rewritten
    return ctx.sub(expand_hijax(_prim), *values)


def _as_declared(values: Sequence[Any], hijax: Any) -> bool:
    return all(typematch(typeof(v), a) for v, a in zip(values, hijax.in_avals_flat, strict=True))


def _rewrite_call(ctx: Any, values: Sequence[Any], hijax: Any) -> list[Any] | None:
    name, jaxpr = _program(hijax)
    staged = ctx.stage(jaxpr, values)
    if not staged.is_plain or not _as_declared(values, hijax) or not _same_results(staged, hijax):
        # The object's types are those of its Jaxpr, and so are remade with it.
        return ctx.finish(staged, _remake(ctx, staged, values, hijax, name))
    return ctx.rebind(values, _prim=replace_hijax_params(hijax, {name: staged.jaxpr}))


def _same_results(staged: Any, hijax: Any) -> bool:
    return all(typematch(t.avals[0], a) for t, a in zip(staged.results, hijax.out_avals_flat, strict=True))


def _remake(ctx: Any, staged: Any, values: Sequence[Any], hijax: Any, name: str) -> list[Any]:
    params = {**hijax.params, name: staged.jaxpr}
    if isinstance(params.get("prevent_cse"), tuple):
        params["prevent_cse"] = staged.per_input(params["prevent_cse"], values, True)
    return ctx.rebind(staged.arguments(values), _prim=type(hijax)(**params))


def _rewrite_function(ctx: Any, values: Sequence[Any], hijax: Any) -> list[Any] | None:
    """A function with derivative rules; at its border the types are the declared ones. None if its rules are to be dropped."""
    policy = ctx.interpreter.custom_rules
    name, jaxpr = _program(hijax)
    if policy == "drop":
        return None
    types = list(map(plain_type, hijax.in_avals_flat))
    n_inputs = len(jaxpr.invars)
    # A CustomVJPTraced takes operands for its rules after the function's constants, which the function does not get.
    if n_inputs != len(types):
        types = [plain_type(v.aval) for v in jaxpr.invars]
    results = list(map(plain_type, hijax.out_avals_flat))
    staged = ctx.stage(jaxpr, types, results=results)
    if staged.hoisted:
        return None
    same = is_same(staged, jaxpr)
    if policy == "auto" and not (same and _as_declared(values, hijax)):
        return None
    values = [convert_leaf(v, a) for v, a in zip(values, hijax.in_avals_flat, strict=True)]
    if staged.emissions:
        emit_beside(ctx, staged, _function_inputs(hijax, values))
    if policy == "keep" and not same:
        run = lambda *v: call_staged(staged.muted, _function_inputs(hijax, v))
        return DERIVE[_kind(hijax)](run, lambda *v: ctx.rebind(v))(*values)
    held = hijax.params[name]
    program = staged.muted
    params = {name: replace_traced_jaxpr(held, program) if is_traced(held) else program}
    if policy == "transform":
        for key in RULES[_kind(hijax)]:
            if hijax.params.get(key) is not None:
                params[key] = _interpret_rule(ctx, key, hijax.params[key])
    return ctx.rebind(values, _prim=replace_hijax_params(hijax, params))


def _function_inputs(hijax: Any, values: Sequence[Any]) -> list[Any]:
    arguments = jax.tree.unflatten(hijax.in_tree, values)
    drop = getattr(hijax, "drop_fwd_consts", None)
    return jax.tree.leaves(arguments if drop is None else drop(*arguments))


def _interpret_rule(ctx: Any, key: str, rule: Any) -> Any:
    """A rule that is interpreted when it is called; of its arguments, the arrays are values."""
    if isinstance(rule, tuple):
        return tuple(_interpret_rule(ctx, key, item) for item in rule)

    def interpreted(*arguments: Any) -> Any:
        leaves, tree = jax.tree.flatten(arguments)
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)]

        def run(*arrays: Any) -> Any:
            filled = list(leaves)
            for place, array in zip(places, arrays, strict=True):
                filled[place] = array
            return rule(*jax.tree.unflatten(tree, filled))

        declared = [typeof(leaves[i]) for i in places]
        return ctx.run_rule(key, run, [leaves[i] for i in places], declared)

    interpreted.__name__ = getattr(rule, "__name__", key)
    return interpreted
