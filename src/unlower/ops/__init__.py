"""Op rules: one function for each operation, one file for each family of the specification."""

import importlib
import pkgutil

from unlower.ops.rule import HINTS, REGION_NAMES, Subprogram, apply_rule, op_rule, op_rules

__all__ = ["HINTS", "REGION_NAMES", "Subprogram", "apply_rule", "op_rule", "op_rules"]

# Rules register when their file is imported, so every file of the package is.
for _module in pkgutil.walk_packages(__path__, f"{__name__}."):
    importlib.import_module(_module.name)
