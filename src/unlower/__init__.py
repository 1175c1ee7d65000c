"""Bring XLA programs back to life as JAX functions.

Example:
  >>> import jax, jax.numpy as jnp, unlower
  >>> program = unlower.load(jax.jit(lambda x: jnp.sin(x) * 2).lower(1.0))
  >>> jax.grad(program)(0.0)
  Array(2., dtype=float32)
"""

from unlower import amp, interpret, transforms
from unlower.errors import (
    DuplicateRuleError,
    FormatError,
    InvalidModuleError,
    RuleError,
    SignatureError,
    UnhandledHigherOrderError,
    UnlowerError,
    UnsupportedOpError,
)
from unlower.inspection import inspect
from unlower.ops import op_rule, op_rules
from unlower.program import Program, load
from unlower.readers.isolation import Isolation
from unlower.readers.limits import Limits
from unlower.verification import verify

__all__ = [
    "DuplicateRuleError",
    "FormatError",
    "InvalidModuleError",
    "Isolation",
    "Limits",
    "Program",
    "RuleError",
    "SignatureError",
    "UnhandledHigherOrderError",
    "UnlowerError",
    "UnsupportedOpError",
    "amp",
    "inspect",
    "interpret",
    "load",
    "op_rule",
    "op_rules",
    "transforms",
    "verify",
]
