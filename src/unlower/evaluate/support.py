"""What a rule table covers: finds the rule of an operation, and lists all operations that have none."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from unlower._jax_compat import is_registered_target
from unlower.errors import UnsupportedOpError
from unlower.ir.module import Module, Op, Value, walk
from unlower.ir.printer import print_op
from unlower.ir.types import QuantizedElement, TensorType, TokenType
from unlower.ops.custom_calls.misc import ffi_fallback

__all__ = ["check_supported", "find_rule", "is_static", "unsupported_ops"]

_STRUCTURAL = frozenset({"stablehlo.constant", "mhlo.constant", "func.call", "call", "stablehlo.call"})
"""Operations that the evaluators handle themselves."""

_SHOWN = 20
"""How many unsupported operations an error message draws in full."""


def find_rule(op: Op, rules: Mapping[str, Callable[..., Any]]) -> Callable[..., Any] | None:
    """Returns the rule of an operation (by target name for custom calls), or None."""
    if op.name in ("stablehlo.custom_call", "mhlo.custom_call"):
        target = op.attributes.get("call_target_name", "")
        rule = rules.get(target)
        if rule is None and is_registered_target(str(target)):
            return ffi_fallback
        return rule
    return rules.get(op.name)


def unsupported_ops(module: Module, rules: Mapping[str, Callable[..., Any]]) -> Iterator[tuple[str, int, Op, str]]:
    """Yields function, index, operation and reason for everything in the module that cannot be evaluated."""
    for function in module.functions.values():
        for index, op in enumerate(walk(function.body)):
            reason = _reason(op, rules)
            if reason:
                yield function.name, index, op, reason


def _reason(op: Op, rules: Mapping[str, Callable[..., Any]]) -> str | None:
    for value in (*op.operands, *op.results):
        if not _has_array_type(value):
            return f"no arrays of type {value.type}"
    if op.name in _STRUCTURAL or find_rule(op, rules):
        return None
    target = op.attributes.get("call_target_name")
    return f"no rule for the custom call {target!r}" if target is not None else f"no rule for {op.name}"


def _has_array_type(value: Value) -> bool:
    type_ = value.type
    if isinstance(type_, TensorType):
        if isinstance(type_.element, QuantizedElement):
            return False
        try:
            return type_.dtype is not None
        except KeyError:
            return False
    return isinstance(type_, TokenType)


def check_supported(module: Module, rules: Mapping[str, Callable[..., Any]]) -> None:
    """Raises UnsupportedOpError that lists every operation without a rule, with the place of each."""
    found = list(unsupported_ops(module, rules))
    if not found:
        return
    kinds: dict[str, int] = {}
    for *_, reason in found:
        kinds[reason] = kinds.get(reason, 0) + 1
    head = "; ".join(f"{reason} ({count}x)" if count > 1 else reason for reason, count in kinds.items())
    lines = []
    for function, index, op, _ in found[:_SHOWN]:
        place = f", from {op.location}" if op.location else ""
        lines.append(f"@{function}, op {index}, `{print_op(op)}`{place}")
    if len(found) > _SHOWN:
        lines.append(f"... and {len(found) - _SHOWN} more")
    key = found[0][2].attributes.get("call_target_name", found[0][2].name)
    raise UnsupportedOpError(
        head,
        where="\n         ".join(lines),
        mend=f'pass rules=unlower.op_rules | {{"{key}": my_rule}}, or export the program without these operations',
    )


def is_static(module: Module) -> bool:
    """Whether every size in the module is known, so that it can be evaluated before it is called."""
    for function in module.functions.values():
        values = [*function.body.arguments]
        for op in walk(function.body):
            if op.name in _READS_SHAPES:
                return False
            values.extend(op.results)
            for region in op.regions:
                values.extend(region.arguments)
        if any(isinstance(v.type, TensorType) and not v.type.is_static for v in values):
            return False
    return True


_READS_SHAPES = frozenset(
    {
        "stablehlo.dynamic_conv",
        "stablehlo.dynamic_gather",
        "stablehlo.dynamic_pad",
        "stablehlo.real_dynamic_slice",
    }
)
"""Operations whose meaning depends on the values of operands that are computed in the module."""
