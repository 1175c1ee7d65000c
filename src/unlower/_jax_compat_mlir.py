"""What the readers need of the MLIR bindings beside `_jax_compat`: which attributes each operation has by its definition."""

import functools
import importlib
from typing import NamedTuple

from jax._src.lib.mlir import ir as mlir_ir

__all__ = ["InherentAttribute", "inherent_attributes"]

_DIALECTS = ("builtin", "chlo", "func", "mhlo", "sdy", "stablehlo")


class InherentAttribute(NamedTuple):
    """An attribute in the definition of an operation: its name, and whether it may be missing."""

    name: str
    optional: bool


@functools.cache
def _definitions() -> dict[str, type]:
    """Operation -> the class that was generated from its definition. The same in jaxlib 0.10 to 0.12."""
    modules = [importlib.import_module(f"jaxlib.mlir.dialects._{dialect}_ops_gen") for dialect in _DIALECTS]
    classes = [value for module in modules for value in vars(module).values() if isinstance(value, type)]
    found = [cls for cls in classes if cls is not mlir_ir.OpView and issubclass(cls, mlir_ir.OpView)]
    return {vars(cls)["OPERATION_NAME"]: cls for cls in found}


@functools.cache
def inherent_attributes(operation: str) -> tuple[InherentAttribute, ...] | None:
    """Returns the attributes in the definition of an operation, by name; None for an operation that the bindings do not know.

    Operands and results are read-only in the bindings, attributes can be set, and those that are optional deleted.
    """
    found = _definitions().get(operation)
    if found is None:
        return None
    properties = [(name, value) for name, value in vars(found).items() if isinstance(value, property)]
    return tuple(sorted(InherentAttribute(name, p.fdel is not None) for name, p in properties if p.fset is not None))
