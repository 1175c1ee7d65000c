"""Control flow: `while`, `if`, `case`, and what wraps a function under a name.

Loops and branches bind the primitives themselves, captures passed as their constants, so that they lower again to the very
op; `lax.cond` and `lax.switch` would add a comparison or a clamp.
"""

from collections.abc import Sequence
from typing import Any

from jax import Array, lax

from unlower._jax_compat import JaxprParts, Var, closed_jaxpr, open_closed_jaxpr, primitives
from unlower.ir.module import Op
from unlower.ops.rule import Subprogram, op_rule


@op_rule("stablehlo.while")
def while_(op: Op, *operands: Array, cond: Subprogram, body: Subprogram) -> tuple[Array, ...]:
    """Runs `body` on the carry while `cond` holds.

    Spec: `while`. Forward-mode differentiable only.
    """
    cond_jaxpr, body_jaxpr = cond.jaxpr(*operands), body.jaxpr(*operands)
    return primitives.while_p.bind(
        *cond.captures,
        *body.captures,
        *operands,
        cond_jaxpr=cond_jaxpr,
        body_jaxpr=body_jaxpr,
        cond_nconsts=len(cond.captures),
        body_nconsts=len(body.captures),
    )


@op_rule("stablehlo.case")
def case(op: Op, index: Array, *, branches: tuple[Subprogram, ...]) -> tuple[Array, ...]:
    """Runs the branch that `index` chooses; the last one where it is out of range.

    Spec: `case`.
    """
    return _choose(index, branches)


@op_rule("stablehlo.if")
def if_(op: Op, pred: Array, *, true_branch: Subprogram, false_branch: Subprogram) -> tuple[Array, ...]:
    """Runs one of two branches.

    Spec: `if`. JAX has one primitive for `if` and `case`, which takes an integer.
    """
    return _choose(lax.convert_element_type(pred, "int32"), (false_branch, true_branch))


def _choose(index: Array, branches: Sequence[Subprogram]) -> tuple[Array, ...]:
    jaxprs = [branch.jaxpr() for branch in branches]
    # All branches of the primitive take the same inputs: every branch's captures, each once.
    positions: dict[int, int] = {}
    inputs: list[Any] = []
    owned: list[list[int]] = []
    for branch in branches:
        own = []
        for value in branch.captures:
            position = positions.setdefault(id(value), len(inputs))
            if position == len(inputs):
                inputs.append(value)
            own.append(position)
        owned.append(own)
    avals: list[Any] = [None] * len(inputs)
    for jaxpr, own in zip(jaxprs, owned, strict=True):
        for variable, position in zip(open_closed_jaxpr(jaxpr).invars, own, strict=True):
            avals[position] = variable.aval
    widened = tuple(_with_inputs(jaxpr, own, avals) for jaxpr, own in zip(jaxprs, owned, strict=True))
    if len(widened) == 1:
        # A choice between one branch: the primitive asks for two.
        widened *= 2
    return primitives.cond_p.bind(index, *inputs, branches=widened)


def _with_inputs(jaxpr: Any, own: Sequence[int], avals: Sequence[Any]) -> Any:
    """Returns the closed Jaxpr with inputs of all `avals`, of which it reads those at the positions `own`."""
    parts = open_closed_jaxpr(jaxpr)
    invars = [Var(aval) for aval in avals]
    for variable, position in zip(parts.invars, own, strict=True):
        invars[position] = variable
    return closed_jaxpr(JaxprParts(invars, parts.outvars, parts.eqns, parts.constvars, parts.consts), "branch", jaxpr.effects)
