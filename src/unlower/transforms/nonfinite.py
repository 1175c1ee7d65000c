"""`find_nonfinite`: where the first NaN or infinity comes from.

Two runs: the first finds which equation is to blame, and in which iterations of the loops around it; the second takes out what
that equation was given. Every array is computed as it would be without them.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from unlower._jax_compat import eval_closed_jaxpr
from unlower.interpret import Interpreter
from unlower.transforms.intermediates import is_float

__all__ = ["NonFinite", "find_nonfinite"]


@dataclass(frozen=True)
class NonFinite:
    """The equation that made the first NaN or infinity.

    Attributes:
      path: where it stands, such as `scan/log`.
      source: the user's line, or the empty string.
      iteration: of the loops around it, outermost first; empty outside loops. A `shard_map` counts its shards likewise.
      inputs: what it was given.
      output: what it made of that.
    """

    path: str
    source: str
    iteration: tuple[int, ...]
    inputs: tuple[np.ndarray, ...]
    output: np.ndarray

    def __str__(self) -> str:
        bad = self.output[~np.isfinite(self.output)]
        place = f" in iteration {', '.join(map(str, self.iteration))}" if self.iteration else ""
        text = f"{bad.size} of {self.output.size} elements are {bad.flat[0]} after {self.path}{place}"
        return f"{text}, from {self.source}" if self.source else text


def find_nonfinite(function: Callable[..., Any], **options: Any) -> Callable[..., NonFinite | None]:
    """Returns a function that runs `function` and tells which equation made the first value that is not finite.

    An equation is to blame if what it makes is not finite and what it was given is. The first is meant in the order of
    execution: an earlier iteration of a loop comes before a later one, whatever stands first in its body.

    Args:
      function: a function of JAX arrays.
      options: as `Interpreter.transform` takes them.

    Returns:
      a function of the same arguments that returns a `NonFinite`, or None. It runs at once: it is not for use under `jit`.

    Example:
      >>> import jax.numpy as jnp
      >>> found = find_nonfinite(lambda x: jnp.sum(jnp.log(x - 1)))(jnp.array([3.0, 1.0]))
      >>> found.path, found.inputs[0].tolist()
      ('log', [2.0, 0.0])
    """

    def run(*args: Any, **kwargs: Any) -> NonFinite | None:
        sources: dict[str, str] = {}

        def blame(ctx: Any, path: str, values: Any, results: Any) -> Iterable[tuple[Any, Any]]:
            made = [x for x in results if isinstance(x, jax.Array) and is_float(x)]
            if made:
                sources[path] = ctx.source
                guilty = ~_finite(made) & _finite([v for v in values if isinstance(v, jax.Array) and is_float(v)])
                # The last axis holds the flag, and will hold the iterations of the `while`s around it.
                yield path, jnp.expand_dims(guilty, -1).astype(jnp.int32)

        _, log = _Probe(blame, _first_iteration).apply(function, options)(*args, **kwargs)
        found = _first({path: np.asarray(marks) for path, marks in log.items()})
        if found is None:
            return None
        path, index, loops = found

        def take(ctx: Any, here: str, values: Any, results: Any) -> Iterable[tuple[Any, Any]]:
            if here == path:
                yield "found", (list(values), next(x for x in results if is_float(x)))

        def of_that_iteration(old: Any, new: Any, iteration: Any, loop: str) -> Any:
            return jax.tree.map(lambda a, b: lax.select(iteration == loops[loop], b, a), old, new)

        _, log = _Probe(take, of_that_iteration).apply(function, options)(*args, **kwargs)
        inputs, output = jax.tree.map(lambda x: np.asarray(x)[index], log["found"])
        return NonFinite(path, sources[path], tuple(loops.values()), tuple(inputs), output)

    return run


def _finite(values: Any) -> Any:
    finite = jnp.bool_(True)
    for value in values:
        finite &= jnp.isfinite(value).all()
    return finite


@dataclass(frozen=True)
class _Probe:
    """Looks at every equation, those in every iteration of a `while` included.

    Attributes:
      look: context, path, operands and results -> names and values to emit.
      merge: what is kept of one name in a `while`: what is kept so far, what an iteration gives, its number, path of the loop.
      prefix: the path of the program around.
    """

    look: Callable[[Any, str, Any, Any], Iterable[tuple[Any, Any]]]
    merge: Callable[[Any, Any, Any, str], Any]
    prefix: str = ""

    def apply(self, function: Callable[..., Any], options: Mapping[str, Any]) -> Callable[..., Any]:
        rules = {"while": self.while_loop}
        interpreter = Interpreter(rules, default=self.equation, custom_rules="drop")
        return interpreter.transform(function, with_log=True, **options)

    def equation(self, ctx: Any, *values: Any, **params: Any) -> Any:
        out = ctx.bind(*values)
        for name, value in self.look(
            ctx, self.prefix + ctx.path, values, out if ctx.primitive.multiple_results else [out]
        ):
            ctx.emit(name, value)
        return out

    def while_loop(
        self, ctx: Any, *values: Any, cond_jaxpr: Any, body_jaxpr: Any, cond_nconsts: int, body_nconsts: int
    ) -> Any:
        """Carries what is found along. The condition is looked at before each iteration, and after the last."""
        loop = self.prefix + ctx.path
        cond_consts, rest = values[:cond_nconsts], values[cond_nconsts:]
        body_consts, init = rest[:body_nconsts], list(rest[body_nconsts:])

        def probed(jaxpr: Any, name: str, consts: Any) -> Callable[..., Any]:
            inner = _Probe(self.look, self.merge, f"{loop}.{name}/")
            return lambda carry: inner.apply(lambda *v: eval_closed_jaxpr(jaxpr, *v), {})(*consts, *carry)

        check, body = probed(cond_jaxpr, "cond", cond_consts), probed(body_jaxpr, "body", body_consts)

        def merged(found: Any, log: Any, iteration: Any) -> Any:
            return found | {name: self.merge(found[name], value, iteration, loop) for name, value in log.items()}

        def step(carried: Any) -> Any:
            iteration, carry, found = carried
            found = merged(found, check(carry)[1], iteration)
            carry, log = body(carry)
            return iteration + 1, list(carry), merged(found, log, iteration)

        def go_on(carried: Any) -> Any:
            return eval_closed_jaxpr(cond_jaxpr, *cond_consts, *carried[1])[0]

        logs = jax.eval_shape(lambda: {**check(init)[1], **body(init)[1]})
        nothing = {name: jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), value) for name, value in logs.items()}
        empty = {name: self.merge(value, value, jnp.int32(0), loop) for name, value in nothing.items()}
        iteration, carry, found = lax.while_loop(go_on, step, (jnp.int32(0), init, empty))
        for name, value in merged(found, check(carry)[1], iteration).items():
            ctx.emit(name, value)
        return carry


def _first_iteration(old: Any, new: Any, iteration: Any, loop: str) -> Any:
    """Of a flag and its iterations, the first that is set; the loop's own iteration comes before those of the loops inside."""
    now = jnp.concatenate([new[..., :1], jnp.broadcast_to(iteration, (*new.shape[:-1], 1)), new[..., 1:]], axis=-1)
    return jnp.where(old[..., :1] > 0, old, now) if old.shape == now.shape else now


def _first(
    marks: Mapping[str, np.ndarray],
) -> tuple[str, tuple[int, ...], dict[str, int]] | None:
    """The first equation to blame: its path, its place in the stacked values, and path of each loop around -> iteration."""
    ranks: dict[str, int] = {}
    best = None
    for path, marked in marks.items():
        for end in [*(m.start() for m in re.finditer("[/.]", path)), len(path)]:
            ranks.setdefault(path[:end], len(ranks))
        for place in np.argwhere(marked[..., 0]):
            index = tuple(map(int, place))
            loops = _loops(path, index, marked[index][1:])
            order = []
            for end in [*(m.start() for m in re.finditer("[/.]", path)), len(path)]:
                order += [ranks[path[:end]], *([loops[path[:end]]] if path[:end] in loops else [])]
            if best is None or order < best[0]:
                best = order, path, index, loops
    return best[1:] if best else None


def _loops(path: str, index: tuple[int, ...], at: np.ndarray) -> dict[str, int]:
    """Path of each loop around an equation -> iteration, outermost first."""
    stacked, counted = iter(index), iter(map(int, at))
    names = list(re.finditer(r"(?:^|(?<=/))(?:(scan|shard_map)(?::\d+)?(?=/)|while(?::\d+)?(?=\.))", path))
    scans = sum(m.group(1) is not None for m in names)
    loops = {}
    for m in names:
        if m.group(1) == "shard_map" and scans > len(index):  # all shards agree
            scans -= 1
        else:
            loops[path[: m.end()]] = next(stacked if m.group(1) else counted)
    return loops
