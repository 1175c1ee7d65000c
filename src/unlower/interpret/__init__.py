"""Interpreters of JAX programs: rules that say what becomes of a primitive, applied at every depth of a program.

Example:
  >>> import jax
  >>> from unlower import interpret
  >>> swap = interpret.Interpreter({"add": lambda ctx, x, y, **params: jax.lax.mul(x, y)})
  >>> swap.transform(jax.jit(lambda x, y: x + y))(3.0, 5.0)
  Array(15., dtype=float32, weak_type=True)
"""

import pathlib

from unlower._jax_compat_interpret import hide_frames
from unlower.interpret.context import Context
from unlower.interpret.core import Interpreter
from unlower.interpret.emissions import Log
from unlower.interpret.fold import Fold, FoldError
from unlower.interpret.higher_order import OPAQUE, higher_order
from unlower.interpret.propagate import Place, Propagate, PropagateError
from unlower.interpret.staging import Staged
from unlower.interpret.structure import Visit, diff, equal, walk
from unlower.interpret.values import Box, Type

__all__ = [
    "OPAQUE",
    "Box",
    "Context",
    "Fold",
    "FoldError",
    "Interpreter",
    "Log",
    "Place",
    "Propagate",
    "PropagateError",
    "Staged",
    "Type",
    "Visit",
    "diff",
    "equal",
    "higher_order",
    "walk",
]

_HERE = pathlib.Path(__file__).parent
hide_frames(*(str(_HERE / name) for name in ("context", "core", "front", "staging", "trace", "walker", "higher_order")))
