"""`swap`: other functions in the place of primitives."""

from collections.abc import Callable, Mapping
from typing import Any

from unlower.interpret import Interpreter

__all__ = ["swap"]


def swap(
    function: Callable[..., Any], replacements: Mapping[Any, Callable[..., Any]], **options: Any
) -> Callable[..., Any]:
    """Returns the function with other functions in the place of some of its primitives, at every depth.

    Args:
      function: a function of JAX arrays.
      replacements: primitive, or name of one -> a function of its operands, and of its parameters by keyword, that returns what
        the primitive does: arrays of the same shapes.
      options: as `Interpreter.transform` takes them (`style`, `static_argnums`, `static_argnames`).

    Example:
      >>> import jax, jax.numpy as jnp
      >>> f = lambda x: jnp.sin(x) + jnp.cos(x)
      >>> float(swap(f, {"sin": lambda x, **params: x * 0, "cos": lambda x, **params: x})(2.0))
      2.0
    """
    rules = {primitive: _without_context(replacement) for primitive, replacement in replacements.items()}
    return Interpreter(rules).transform(function, **options)


def _without_context(replacement: Callable[..., Any]) -> Callable[..., Any]:
    return lambda ctx, *values, **params: replacement(*values, **params)
