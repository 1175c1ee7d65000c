"""Derivatives of a loop that runs as often as its data says.

Forward mode needs nothing but the loop. Reverse mode goes back through the iterations, so it needs a bound for what it keeps:

- without one, the loop's tangents carry a mark that raises an error when a cotangent comes back;
- with one, tangents go through a nest of scans, each step of which is skipped once the loop has ended and is computed again on
  the way back. That keeps about the square or cube root of the bound in memory, takes time for the iterations that are run, and
  has derivatives of every order. A loop that would have run on has no derivative there: its tangents are NaN.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.interpreters import ad, batching

from unlower._jax_compat import eval_closed_jaxpr, mlir, new_primitive, open_closed_jaxpr, zero_tangent
from unlower.errors import UnlowerError

__all__ = ["forward_only", "run_bounded"]

_TWO_LEVELS = 4096
"""Nests of up to so many iterations are two scans deep, larger ones three."""


def run_bounded(
    cond: Any, body: Any, of_cond: Sequence[Any], of_body: Sequence[Any], bound: int, operands: Sequence[Any]
) -> tuple[tuple[Any, ...], Any]:
    """Runs a loop, at most `bound` times, in a form that has a reverse mode.

    Args:
      cond: a closed Jaxpr that takes `of_cond`, then the slots, and returns whether to go on.
      body: a closed Jaxpr that takes `of_body`, then the slots, and returns the slots.
      of_cond: what the condition captures.
      of_body: what the body captures.
      bound: at most how often the body runs, 1 or more.
      operands: the slots at first.

    Returns:
      the slots at last, and whether the loop would have run on.
    """
    levels = 2 if bound <= _TWO_LEVELS else 3
    length = _root(bound, levels)

    parts = open_closed_jaxpr(body)
    pairs = zip(parts.invars[len(of_body) :], parts.outvars, strict=True)
    carried = [i for i, (before, after) in enumerate(pairs) if before is not after]

    def whole(state: Sequence[Any]) -> list[Any]:
        """All slots: those that the body returns unchanged are no part of what is kept for each iteration."""
        slots = list(operands)
        for i, value in zip(carried, state, strict=True):
            slots[i] = value
        return slots

    def proceeds(state: Sequence[Any]) -> Any:
        return eval_closed_jaxpr(cond, *of_cond, *whole(state))[0]

    def step(state: Any) -> Any:
        _, count, inner = state
        slots = eval_closed_jaxpr(body, *of_body, *whole(inner))
        inner = tuple(slots[i] for i in carried)
        count = lax.add(count, np.int32(1))
        return lax.bitwise_and(proceeds(inner), lax.lt(count, np.int32(bound))), count, inner

    def nest(inner: Callable[[Any], Any]) -> Callable[[Any], Any]:
        # The choice is computed again as well, or what the branch reads would be kept for each iteration. Scans keep what goes
        # forwards from what comes back, so nothing else has to be kept from being shared.
        chosen = jax.checkpoint(lambda state: lax.cond(state[0], inner, lambda state: state, state), prevent_cse=False)
        return lambda state: lax.scan(lambda state, _: (chosen(state), None), state, None, length=length)[0]

    run = step
    for _ in range(levels):
        run = nest(run)
    first = tuple(operands[i] for i in carried)
    _, _, last = run((proceeds(first), lax.full((), 0, np.int32), first))
    return tuple(whole(last)), proceeds(last)


def _root(bound: int, degree: int) -> int:
    """The least number whose power is the bound or more."""
    root = max(1, round(bound ** (1 / degree)) - 1)
    while root**degree < bound:
        root += 1
    return root


def forward_only(loop: str, place: str, tangents: Sequence[Any]) -> tuple[Any, ...]:
    """Returns the tangents of a loop's results; what comes back through them raises UnlowerError.

    Args:
      loop: its name.
      place: where it stands.
      tangents: arrays; those of integers are passed on.
    """
    moving = [i for i, tangent in enumerate(tangents) if tangent.dtype != jax.dtypes.float0]
    marked = list(tangents)
    for i, tangent in zip(
        moving, forward_only_p.bind(*[tangents[i] for i in moving], loop=loop, place=place), strict=True
    ):
        marked[i] = tangent
    return tuple(marked)


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, loop: str, place: str) -> tuple[Any, Any]:
    results = forward_only_p.bind(*primals, loop=loop, place=place)
    moving = [i for i, tangent in enumerate(tangents) if type(tangent) is not ad.Zero]
    out = [zero_tangent(result) for result in results]
    for i, tangent in zip(
        moving, forward_only_p.bind(*[tangents[i] for i in moving], loop=loop, place=place), strict=True
    ):
        out[i] = tangent
    return results, out


def _transpose(cotangents: Sequence[Any], *operands: Any, loop: str, place: str) -> Any:
    raise UnlowerError(
        f"the loop {loop} has no reverse mode without a bound, since it runs as often as its data says",
        where=place,
        mend=f'pass max_iterations= to unlower.load, or use program.bound_loops({{"{loop}": N}}), with N at least as large as '
        "the number of its iterations; jax.jvp and jax.jacfwd need no bound",
    )


forward_only_p = new_primitive("forward_only")
forward_only_p.def_abstract_eval(lambda *avals, loop, place: list(avals))
mlir.register_lowering(forward_only_p, lambda context, *values, loop, place: values)
batching.primitive_batchers[forward_only_p] = lambda operands, dims, **params: (
    forward_only_p.bind(*operands, **params),
    dims,
)
ad.primitive_jvps[forward_only_p] = _jvp
ad.primitive_transposes[forward_only_p] = _transpose
