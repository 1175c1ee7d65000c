"""`name_intermediates`: every value inside a function, by where it is made."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from unlower.interpret import Interpreter, Log

__all__ = ["name_intermediates"]


def name_intermediates(
    function: Callable[..., Any], *, keep: Callable[[str, jax.ShapeDtypeStruct], bool] | None = None, **options: Any
) -> Callable[..., tuple[Any, Log]]:
    """Returns a function that gives, beside the results, all the values that are computed inside.

    Args:
      function: a function of JAX arrays.
      keep: called with a path and the shape and dtype of a value: whether to keep it. All arrays by default; each one kept
        stays in memory.
      options: as `Interpreter.transform` takes them.

    Returns:
      a function of the same arguments that returns `(results, log)`. The names in the log are paths: the equations around, and
      the equation itself, such as `jit(layer)/scan/tanh:2`; of several results the number follows, as in `.../split.1`.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> out, log = name_intermediates(jax.jit(lambda x: jnp.sin(x) * 2))(0.0)
      >>> sorted(log)
      ['jit(<lambda>)/mul', 'jit(<lambda>)/sin']
    """

    def default(ctx: Any, *values: Any, **params: Any) -> Any:
        out = ctx.bind(*values)
        several = ctx.primitive.multiple_results
        for number, value in enumerate(out if several else [out]):
            name = f"{ctx.path}.{number}" if several else ctx.path
            if isinstance(value, jax.Array) and (keep is None or keep(name, jax.typeof(value))):
                ctx.emit(name, value)
        return out

    return Interpreter(default=default, custom_rules="auto").transform(function, with_log=True, **options)


def is_float(value: Any) -> bool:
    """Whether an array holds floats or complex numbers."""
    return jnp.issubdtype(value.dtype, jnp.inexact)
