"""`find_nonfinite`: where the first NaN or infinity comes from."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from unlower.interpret import Interpreter
from unlower.transforms.intermediates import is_float

__all__ = ["NonFinite", "find_nonfinite"]


@dataclass(frozen=True)
class NonFinite:
    """The equation that made the first NaN or infinity.

    Attributes:
      path: where it stands, such as `scan/log`.
      source: the user's line, or the empty string.
      iteration: of the loops around it, outermost first; empty outside loops.
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

    An equation is to blame if what it makes is not finite and what it was given is. Of a loop the first iteration counts, of a
    `while` only the last one.

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
    sources: dict[str, str] = {}

    def flags(ctx: Any, *values: Any, **params: Any) -> Any:
        out = ctx.bind(*values)
        leaves = [
            x for x in (out if ctx.primitive.multiple_results else [out]) if isinstance(x, jax.Array) and is_float(x)
        ]
        if leaves:
            blame = ~_finite(leaves) & _finite([v for v in values if isinstance(v, jax.Array) and is_float(v)])
            sources[ctx.path] = ctx.source
            ctx.emit(ctx.path, blame)
        return out

    def run(*args: Any, **kwargs: Any) -> NonFinite | None:
        mark = Interpreter(default=flags, custom_rules="drop").transform(function, with_log=True, **options)
        _, log = mark(*args, **kwargs)
        found = _first({path: np.asarray(flag) for path, flag in log.items()})
        if found is None:
            return None
        path, iteration = found
        inputs, output = _at(function, path, options, args, kwargs)
        taken = lambda x: np.asarray(x)[iteration]
        return NonFinite(path, sources[path], iteration, tuple(map(taken, inputs)), taken(output))

    return run


def _finite(values: Any) -> Any:
    finite = jnp.bool_(True)
    for value in values:
        finite &= jnp.isfinite(value).all()
    return finite


def _first(flags: dict[str, np.ndarray]) -> tuple[str, tuple[int, ...]] | None:
    """The first path to blame: equations of one outermost loop are compared by iteration, and then by place."""
    best: tuple[tuple[int, ...], int, str] | None = None
    group = None
    for place, (path, flag) in enumerate(flags.items()):
        outermost = path.split("/")[0] if flag.ndim else path
        if best is not None and outermost != group:
            break
        if flag.any():
            index = tuple(int(i) for i in np.argwhere(flag)[0])
            if best is None or (index, place) < best[:2]:
                best, group = (index, place, path), outermost
    return None if best is None else (best[2], best[0])


def _at(function: Callable[..., Any], path: str, options: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Operands and result of one equation, stacked over the loops around it."""

    def take(ctx: Any, *values: Any, **params: Any) -> Any:
        out = ctx.bind(*values)
        if ctx.path == path:
            results = out if ctx.primitive.multiple_results else [out]
            ctx.emit("found", (list(values), next(x for x in results if is_float(x))))
        return out

    _, log = Interpreter(default=take, custom_rules="drop").transform(function, with_log=True, **options)(
        *args, **kwargs
    )
    return log["found"]
