"""Loops: `scan` and `while`, whose carry may change its type, so that it is looked for until it stays."""

from collections.abc import Callable, Sequence
from typing import Any

from unlower._jax_compat_interpret import (
    close_jaxpr,
    debug_info,
    mapped_aval,
    scan_groups,
    scan_params,
    trace_to_jaxpr,
)
from unlower.interpret.higher_order.registry import higher_order
from unlower.interpret.staging import Staged, call_staged
from unlower.interpret.values import Type, flatten, plain_type, same_types, type_of


def settle(
    interpreter: Any, carry: Sequence[Type], body: Callable[[Sequence[Type], Sequence[Type] | None], Staged]
) -> tuple[list[Type], Staged]:
    """Finds types for a loop's carry that the body gives back.

    Args:
      interpreter: whose `join` chooses between a carry's type and what the body makes of it.
      carry: the types of the initial values.
      body: types of the carry, and types of all results or None -> the body as staged; its first results are the carry.

    Returns:
      types and the body staged for them. Where `join` insists on a type that the body does not give, the body converts.
    """
    carry, count = list(carry), len(carry)
    changes = [0] * count
    # A change travels along the carry one place per round, and a type changes a few times at most.
    for _ in range(4 + 3 * count):
        staged = body(carry, None)
        if same_types(carry, staged.results[:count]):
            return carry, staged
        joined = [
            old if old.matches(new) else interpreter.join(old, new, n)
            for old, new, n in zip(carry, staged.results[:count], changes, strict=True)
        ]
        if same_types(joined, carry):
            break
        changes = [n + (not old.matches(new)) for n, old, new in zip(changes, carry, joined, strict=True)]
        carry = joined
    staged = body(carry, None)
    return carry, body(carry, [*carry, *staged.results[count:]])


@higher_order("scan")
def scan(ctx: Any, *values: Any, jaxpr: Any, length: int, **params: Any) -> list[Any]:
    """Keeps the loop. What its body emits is stacked, as its other results are."""
    n_consts, n_carry = scan_groups(params)
    consts, init, xs = values[:n_consts], values[n_consts : n_consts + n_carry], values[n_consts + n_carry :]
    avals = [v.aval for v in jaxpr.invars]
    const_types = list(map(type_of, consts, avals))
    x_types = [_element_type(type_of(x), length, a) for x, a in zip(xs, avals[n_consts + n_carry :], strict=True)]

    def body(carry: Sequence[Type], results: Sequence[Type] | None) -> Staged:
        return ctx.stage(jaxpr, [*const_types, *carry, *x_types], results=results)

    carry, staged = settle(ctx.interpreter, list(map(type_of, init, avals[n_consts:])), body)
    init = [ctx.interpreter.coerce(value, wanted) for value, wanted in zip(init, carry, strict=True)]
    groups = [staged.arguments(consts), flatten(init), flatten(xs)]
    overrides: dict[str, Any] = {"jaxpr": staged.jaxpr}
    if not staged.is_plain or list(map(len, groups)) != [n_consts, n_carry, len(xs)]:
        outputs = len(staged.jaxpr.outvars) - len(groups[1])
        overrides |= scan_params(len(groups[0]), len(groups[1]), len(groups[2]), outputs)
    return ctx.finish(staged, ctx.rebind([leaf for group in groups for leaf in group], **overrides))


def _element_type(stacked: Type, length: int, aval: Any) -> Type:
    """The type of one element of a value that a loop runs over."""
    elements = stacked.replace(mapped_aval(length, 0, leaf) for leaf in stacked.avals)
    return type_of(elements.avals[0], aval) if elements.is_plain else elements


@higher_order("while")
def while_loop(
    ctx: Any, *values: Any, cond_jaxpr: Any, body_jaxpr: Any, cond_nconsts: int, body_nconsts: int
) -> list[Any]:
    """Keeps the loop. Of what its body emits, the last iteration's is passed on; of its condition, the last evaluation's."""
    cond_consts, rest = values[:cond_nconsts], values[cond_nconsts:]
    body_consts, init = rest[:body_nconsts], rest[body_nconsts:]
    avals = [v.aval for v in body_jaxpr.invars]
    const_types = list(map(type_of, body_consts, avals))

    def stage_body(carry: Sequence[Type], results: Sequence[Type] | None) -> Staged:
        return ctx.stage(body_jaxpr, [*const_types, *carry], results=results, name="body")

    carry, body = settle(ctx.interpreter, list(map(type_of, init, avals[body_nconsts:])), stage_body)
    init = [ctx.interpreter.coerce(value, wanted) for value, wanted in zip(init, carry, strict=True)]
    cond_types = [type_of(c, v.aval) for c, v in zip(cond_consts, cond_jaxpr.invars, strict=False)]
    truth = [plain_type(cond_jaxpr.outvars[0].aval)]
    cond = ctx.stage(cond_jaxpr, [*cond_types, *carry], results=truth, name="cond")
    cond_leaves, body_leaves, leaves = cond.arguments(cond_consts), body.arguments(body_consts), flatten(init)
    cond_program, body_program, n_carry = cond.jaxpr, body.jaxpr, len(leaves)
    if cond.emissions or body.emissions:
        cond_program, body_program, extra = _carry_emissions(
            ctx, cond, body, len(cond_leaves), len(body_leaves), n_carry
        )
        leaves = [*leaves, *extra]
    out = ctx.rebind(
        [*cond_leaves, *body_leaves, *leaves],
        cond_jaxpr=cond_program,
        body_jaxpr=body_program,
        cond_nconsts=len(cond_leaves),
        body_nconsts=len(body_leaves),
    )
    if body.emissions:
        *emitted, ran = out[n_carry:]
        for e in body.split([*out[:n_carry], *emitted])[1]:
            ctx.pass_on([e._replace(present=ran if e.present is None else e.present)])
    if cond.emissions:
        _, emitted = cond.split(call_staged(cond.jaxpr, [*cond_leaves, *out[:n_carry]]))
        ctx.pass_on(emitted)
    results = Staged(body.jaxpr, tuple(carry))
    return results.split(out[:n_carry])[0]


def _carry_emissions(
    ctx: Any, cond: Staged, body: Staged, n_cond: int, n_body: int, n_carry: int
) -> tuple[Any, Any, list[Any]]:
    """Makes what the body emits part of the carry, with a flag whether it has run at all.

    An emission that may be absent in one iteration (it stands in a branch) keeps what an earlier one gave.
    """
    import jax.numpy as jnp

    emitted = [v.aval for v in body.jaxpr.outvars[n_carry:]]
    optional = [
        flag for e in body.emissions for flag in (*[e.may_be_absent] * len(e.type.avals), *[False] * e.may_be_absent)
    ]
    flags = _flags(body)
    ran = _bool_aval()

    def run_body(*leaves: Any) -> list[Any]:
        inputs, old = leaves[: n_body + n_carry], leaves[n_body + n_carry : -1]
        out = call_staged(body.jaxpr, inputs)
        new = out[n_carry:]
        kept = []
        for place, (before, after) in enumerate(zip(old, new, strict=True)):
            if optional[place]:
                after = jnp.where(new[flags[place]], after, before)
            elif place in flags.values():
                after = before | after
            kept.append(after)
        return [*out[:n_carry], *kept, jnp.ones((), bool)]

    def run_cond(*leaves: Any) -> list[Any]:
        return call_staged(cond.jaxpr, leaves[: n_cond + n_carry])[:1]

    body_avals = [v.aval for v in body.jaxpr.invars]
    cond_avals = [v.aval for v in cond.jaxpr.invars]
    programs = [
        close_jaxpr(*trace_to_jaxpr(run, avals, debug_info("while", run, avals, {})))
        for run, avals in ((run_cond, [*cond_avals, *emitted, ran]), (run_body, [*body_avals, *emitted, ran]))
    ]
    return programs[0], programs[1], [*(jnp.zeros(a.shape, a.dtype) for a in emitted), jnp.zeros((), bool)]


def _flags(body: Staged) -> dict[int, int]:
    """Place of a leaf of an emission -> place of the flag that says whether it is there."""
    flags, place = {}, 0
    for e in body.emissions:
        if e.may_be_absent:
            flags |= {place + i: place + len(e.type.avals) for i in range(len(e.type.avals))}
        place += e.leaves
    return flags


def _bool_aval() -> Any:
    import jax

    return jax.typeof(jax.numpy.ones((), bool))
