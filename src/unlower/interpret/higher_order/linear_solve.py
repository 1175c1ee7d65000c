"""`custom_linear_solve`: four programs with shared operands, of which one runs and the others say how to differentiate it."""

from typing import Any

from unlower.interpret.higher_order.registry import higher_order
from unlower.interpret.staging import call_staged
from unlower.interpret.values import all_plain, plain_type


@higher_order("custom_linear_solve")
def custom_linear_solve(ctx: Any, *values: Any, const_lengths: Any, jaxprs: Any) -> list[Any]:
    """Rewrites the products and the solvers, all at the declared types of the right-hand side.

    With boxes the solver itself is interpreted in place: a box has no matrix to multiply by. What the solver emits comes from
    running it once more beside the equation, which the compiler merges.
    """
    n_consts = sum(const_lengths)
    b = values[n_consts:]
    if not all_plain(values):
        first = const_lengths.matvec + const_lengths.vecmat
        return ctx.sub(jaxprs.solve, *values[first : first + const_lengths.solve], *b)
    # The systems' types are pinned: each program must map them to themselves, and they all to each other.
    b_types = [plain_type(aval) for aval in ctx.in_avals[n_consts:]]
    b = [ctx.interpreter.coerce(value, wanted) for value, wanted in zip(b, b_types, strict=True)]
    consts, programs, counts, place = [], [], [], 0
    emitted = []
    for role, count, jaxpr in zip(const_lengths._fields, const_lengths, jaxprs, strict=True):
        mine = values[place : place + count]
        place += count
        if jaxpr is None:
            programs.append(None)
            counts.append(count)
            continue
        types = [*ctx.types_of(mine, jaxpr.invars), *b_types]
        staged = ctx.stage(jaxpr, types, results=[plain_type(v.aval) for v in jaxpr.outvars], name=role)
        arguments = staged.arguments(mine)
        consts += arguments
        counts.append(len(arguments))
        programs.append(staged.muted)
        if role == "solve" and staged.emissions:
            emitted = staged.split(call_staged(staged.jaxpr, [*arguments, *b]))[1]
    ctx.pass_on(emitted)
    return ctx.rebind([*consts, *b], const_lengths=type(const_lengths)(*counts), jaxprs=type(jaxprs)(*programs))
