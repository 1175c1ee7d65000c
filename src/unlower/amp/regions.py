"""Regions whose precision the caller chooses: name scopes that colouring knows."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax

from unlower.amp.policy import MARKERS

__all__ = ["full_precision", "half_precision"]

F = TypeVar("F", bound=Callable[..., Any])


def full_precision(function: F) -> F:
    """Marks a function: under `autocast` all of it is computed in float32, backwards too.

    Where `autocast` is not at work it changes nothing. Of nested marks the innermost holds.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from unlower import amp
      >>> head = amp.full_precision(lambda x, w: x @ w)
      >>> f = amp.autocast(lambda x, w: head(jnp.tanh(x @ w), w))
      >>> f(jnp.ones((2, 32)), jnp.ones((32, 4))[:, :1] * jnp.ones(32)).shape
      (2, 32)
    """
    return _marked(function, MARKERS["full"])


def half_precision(function: F) -> F:
    """Marks a function: under `autocast` all of its float32 arithmetic is computed in the low dtype, brittle or not.

    Conversions, linear solves and calls of foreign code keep the dtypes that they declare. Of nested marks the innermost holds.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from unlower import amp
      >>> f = amp.autocast(amp.half_precision(lambda x: jnp.exp(x) * 2))
      >>> float(f(jnp.float32(0.1)))
      2.203125
    """
    return _marked(function, MARKERS["low"])


def _marked(function: F, marker: str) -> F:
    @functools.wraps(function)
    def marked(*args: Any, **kwargs: Any) -> Any:
        with jax.named_scope(marker):
            return function(*args, **kwargs)

    return marked  # pyright: ignore[reportReturnType]
