"""Automatic mixed precision for any JAX function.

Example:
  >>> import jax, jax.numpy as jnp
  >>> from unlower import amp
  >>> loss = lambda w, x: jnp.mean(jnp.tanh(x @ w) @ w)
  >>> jax.grad(amp.autocast(loss))(jnp.ones((32, 32)), jnp.ones((4, 32))).dtype
  dtype('float32')
"""

from unlower.amp.explain import Explanation, explain
from unlower.amp.loss_scale import LossScale, LossScaleError, grad, value_and_grad
from unlower.amp.policy import Policy, PolicyError
from unlower.amp.regions import full_precision, half_precision
from unlower.amp.transform import autocast

__all__ = [
    "Explanation",
    "LossScale",
    "LossScaleError",
    "Policy",
    "PolicyError",
    "autocast",
    "explain",
    "full_precision",
    "grad",
    "half_precision",
    "value_and_grad",
]
