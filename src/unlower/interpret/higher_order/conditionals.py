"""Conditionals: `cond`, whose branches must agree on the types of their results and on what they emit."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from unlower._jax_compat_interpret import Tracer, close_jaxpr, debug_info, trace_to_jaxpr, typeof
from unlower.interpret.emissions import EmissionType
from unlower.interpret.higher_order.registry import higher_order
from unlower.interpret.staging import Staged, call_staged
from unlower.interpret.values import Type, same_types


@higher_order("cond")
def cond(ctx: Any, index: Any, *operands: Any, branches: tuple[Any, ...], **params: Any) -> list[Any]:
    """Keeps the choice. Where branches differ in the type of a result, `join` chooses one and the others convert.

    Each branch emits what any of them does: zeros, and `present` False, for the names that are not its own.
    """
    index = ctx.interpreter.lower(index)
    types = ctx.types(branches[0], operands)
    names = [f"branch{i}" for i in range(len(branches))]
    staged = [ctx.stage(b, types, name=n) for b, n in zip(branches, names, strict=True)]
    results = _agree(ctx.interpreter, staged)
    if not all(same_types(results, s.results) for s in staged):
        staged = [ctx.stage(b, types, results=results, name=n) for b, n in zip(branches, names, strict=True)]
    if any(s.hoisted or s.emissions for s in staged):
        staged = _align(ctx.interpreter, branches, staged)
    leaves = ctx.rebind([index, *staged[0].arguments(operands)], branches=tuple(s.jaxpr for s in staged))
    return ctx.finish(staged[0], leaves)


def _agree(interpreter: Any, staged: Sequence[Staged]) -> list[Type]:
    """The types that all branches' results can take."""
    types = list(staged[0].results)
    for count, branch in enumerate(staged[1:], start=1):
        types = [
            a if a.matches(b) else interpreter.join(a, b, count) for a, b in zip(types, branch.results, strict=True)
        ]
    return types


def _align(interpreter: Any, branches: Sequence[Any], staged: Sequence[Staged]) -> list[Staged]:
    """Gives all branches the same inputs from outside and the same emissions."""
    known = interpreter.staged.setdefault(branches[0], {})
    key = ("aligned", *staged)
    if key in known:
        return known[key]
    hoisted = [value for branch in staged for value in branch.hoisted]
    emissions: dict[Any, EmissionType] = {}
    for branch in staged:
        for number, e in enumerate(branch.emissions):
            emissions.setdefault(_emission_key(branch, number), e._replace(may_be_absent=True))
    first = 0
    aligned = []
    for branch in staged:
        jaxpr = _with_inputs(branch, hoisted, first, emissions)
        aligned.append(Staged(jaxpr, branch.results, tuple(hoisted), tuple(emissions.values())))
        first += len(branch.hoisted)
    if not any(isinstance(value, Tracer) for value in hoisted):
        known[key] = aligned
    return aligned


def _emission_key(branch: Staged, number: int) -> Any:
    """Emissions of two branches are one if they have one name and type; of appended ones, the first meets the first."""
    e = branch.emissions[number]
    earlier = sum(e.name == other.name for other in branch.emissions[:number])
    return e.name, e.mode, e.type, earlier


def _with_inputs(branch: Staged, hoisted: Sequence[Any], first: int, emissions: dict[Any, EmissionType]) -> Any:
    own = len(branch.hoisted)
    n_results = sum(len(t.avals) for t in branch.results)

    def run(*leaves: Any) -> list[Any]:
        mine, operands = leaves[first : first + own], leaves[len(hoisted) :]
        out = call_staged(branch.jaxpr, [*mine, *operands])
        _, emitted = branch.split(out)
        found = {_emission_key(branch, number): e for number, e in enumerate(emitted)}
        extra: list[Any] = []
        for key, wanted in emissions.items():
            e = found.get(key)
            if e is None:
                extra += [*(jnp.zeros(a.shape, a.dtype) for a in wanted.type.avals), jnp.zeros((), bool)]
            else:
                extra += [*flatten_emission(e.value), jnp.ones((), bool) if e.present is None else e.present]
        return [*out[:n_results], *extra]

    avals = [*map(typeof, hoisted), *(v.aval for v in branch.jaxpr.invars[own:])]
    return close_jaxpr(*trace_to_jaxpr(run, avals, debug_info("cond", run, avals, {})))


def flatten_emission(value: Any) -> list[Any]:
    """The leaves of an emitted value."""
    import jax

    return jax.tree.leaves(value)
