"""Names for constants that have none: by the scope and the operand slot of what first uses them.

A weight that `encoder/layer_0` multiplies with is `encoder/layer_0/dot_general.rhs`; where the file has no scopes it is
`const_000_f32_384x1536`.
"""

import re
from collections import defaultdict

import numpy as np

from unlower.ir.module import CALLS, Module, Op, Region, Value
from unlower.ir.types import element_of_dtype

__all__ = ["Uses", "name_constant"]

_PASSED_ON = frozenset(
    f"stablehlo.{name}"
    for name in (
        "transpose",
        "reshape",
        "convert",
        "broadcast_in_dim",
        "optimization_barrier",
        "bitcast_convert",
        "copy",
    )
) | {"mhlo.copy", "mhlo.bitcast"}
"""What a weight goes through on its way to the operation that it is a weight of."""

_SLOTS = {
    "gather": ("operand", "start_indices"),
    "dynamic_slice": ("operand",),
    "select": ("pred", "on_true", "on_false"),
    "clamp": ("min", "operand", "max"),
    "batch_norm_inference": ("operand", "scale", "offset", "mean", "variance"),
    "batch_norm_training": ("operand", "scale", "offset"),
}
_TWO = ("lhs", "rhs")
_WRAPPED = re.compile(r"(\w+)\((.*)\)")
_STRUCTURE = frozenset(
    {"body", "branch_0_fun", "branch_1_fun", "checkpoint", "closed_call", "cond", "core_call", "main", "pjit", "remat"}
    | {"rematted_computation", "scan", "while"}
)
_LONGEST_WAY = 20


class Uses:
    """Who uses each value of a module first."""

    def __init__(self, module: Module):
        self._module = module
        self._users: dict[Value, list[tuple[Op, int]]] = defaultdict(list)
        for function in module.functions.values():
            self._gather(function.body)

    def _gather(self, region: Region) -> None:
        for op in region.ops:
            for slot, value in enumerate(op.operands):
                self._users[value].append((op, slot))
            for inner in op.regions:
                self._gather(inner)

    def consumer(self, value: Value) -> tuple[Op, int] | None:
        """The first operation that computes with a value, and its operand slot: through copies, into calls and loops."""
        for _ in range(_LONGEST_WAY):
            users = self._users.get(value)
            if not users:
                return None
            op, slot = users[0]
            if op.name in _PASSED_ON and len(op.results) > slot:
                value = op.results[slot]
            elif op.name in CALLS:
                value = self._module.functions[str(op.attributes["callee"])].body.arguments[slot]
            elif op.name in ("stablehlo.while", "mhlo.while"):
                value = op.regions[1].arguments[slot]
            else:
                return op, slot
        return None


def name_constant(uses: Uses, source: tuple[str, Value], array: np.ndarray, index: int) -> str:
    """Names a constant.

    Args:
      uses: of the module.
      source: the function it is in, and its value.
      array: its elements.
      index: its number among the constants named.
    """
    found = uses.consumer(source[1])
    if found is not None:
        op, slot = found
        scope = _scope(op.location.name) if op.location is not None and op.location.name else ""
        if scope:
            return f"{scope}.{_slot(op, slot)}"
    sizes = "x".join(map(str, array.shape))
    element = element_of_dtype(array.dtype).replace("<", "_").replace(">", "")
    return f"const_{index:03d}_{element}_{sizes}"


def _slot(op: Op, slot: int) -> str:
    short = op.name.rpartition(".")[2]
    names = _SLOTS.get(short) or (_TWO if len(op.operands) == 2 else ())
    if slot < len(names):
        return names[slot]
    return "operand" if len(op.operands) == 1 else f"operand_{slot}"


def _scope(name: str) -> str:
    """The scopes of a location without what JAX's transformations put around and between them."""
    parts = []
    for part in _split(name):
        match = _WRAPPED.fullmatch(part)
        while match:
            # `jit(f)` and its kin name a function; `jvp(encoder)` wraps a scope.
            part = "" if match[1] in ("jit", "pjit", "shard_map") else match[2]
            match = _WRAPPED.fullmatch(part)
        if part and part not in _STRUCTURE:
            parts.append(part)
    return "/".join(parts)


def _split(name: str) -> list[str]:
    """Splits at slashes outside of parentheses."""
    parts, depth, part = [], 0, ""
    for character in name:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "/" and depth == 0:
            parts.append(part)
            part = ""
        else:
            part += character
    return [*parts, part]
