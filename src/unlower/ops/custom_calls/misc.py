"""Custom calls of no vendor in particular, and the way out for unknown ones."""

from typing import Any

from jax import Array

from unlower.ir.module import Op
from unlower.ops.reemit import reemit

__all__ = ["ffi_fallback"]


def ffi_fallback(op: Op, *operands: Array, **attributes: Any) -> tuple[Array, ...]:
    """Re-emits a custom call whose target this process can run. It has no derivative, and batches by a loop."""
    kept = {name: value for name, value in op.attributes.items() if "." not in name or name == "mhlo.backend_config"}
    return reemit(op.name, operands, op.types, kept)
