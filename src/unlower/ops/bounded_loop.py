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

from unlower._jax_compat import eval_closed_jaxpr, mlir, new_primitive, zero_tangent
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

    def proceeds(slots: Sequence[Any]) -> Any:
        return eval_closed_jaxpr(cond, *of_cond, *slots)[0]

    def step(state: Any) -> Any:
        _, count, slots = state
        slots = tuple(eval_closed_jaxpr(body, *of_body, *slots))
        count = lax.add(count, np.int32(1))
        return lax.bitwise_and(proceeds(slots), lax.lt(count, np.int32(bound))), count, slots

    def nest(inner: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def advance(state: Any, _: None) -> tuple[Any, None]:
            return lax.cond(state[0], inner, lambda state: state, state), None

        return lambda state: lax.scan(advance, state, None, length=length)[0]

    run = nest(step)
    for _ in range(levels - 1):
        # Scans keep what goes forwards from what comes back, so nothing has to be kept from being shared.
        run = nest(jax.checkpoint(run, prevent_cse=False))
    slots = tuple(operands)
    _, _, slots = run((proceeds(slots), lax.full((), 0, np.int32), slots))
    return slots, proceeds(slots)


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
    for i, tangent in zip(moving, forward_only_p.bind(*[tangents[i] for i in moving], loop=loop, place=place), strict=True):
        marked[i] = tangent
    return tuple(marked)


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, loop: str, place: str) -> tuple[Any, Any]:
    results = forward_only_p.bind(*primals, loop=loop, place=place)
    moving = [i for i, tangent in enumerate(tangents) if type(tangent) is not ad.Zero]
    out = [zero_tangent(result) for result in results]
    for i, tangent in zip(moving, forward_only_p.bind(*[tangents[i] for i in moving], loop=loop, place=place), strict=True):
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
