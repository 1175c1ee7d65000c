"""What a rule table covers: finds the rule of an operation, and lists all operations that have none."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from unlower._jax_compat import is_registered_target
from unlower.errors import UnsupportedOpError
from unlower.ir.module import CALLS, CONSTANTS, CUSTOM_CALLS, Module, Op, Value, walk
from unlower.ir.printer import print_place
from unlower.ir.types import DTYPES, QuantizedElement, TensorType, TokenType
from unlower.ops.custom_calls.misc import ffi_fallback

__all__ = ["check_supported", "find_rule", "is_static", "unsupported_ops"]

_STRUCTURAL = CALLS | CONSTANTS
"""Operations that the evaluators handle themselves."""

_SHOWN = 20
"""How many unsupported operations an error message draws in full."""


def find_rule(op: Op, rules: Mapping[str, Callable[..., Any]]) -> Callable[..., Any] | None:
    """Returns the rule of an operation (by target name for custom calls), or None."""
    if op.name in CUSTOM_CALLS:
        target = op.attributes.get("call_target_name", "")
        rule = rules.get(target)
        if rule is None and is_registered_target(str(target)):
            return ffi_fallback
        return rule
    return rules.get(op.name)


def unsupported_ops(module: Module, rules: Mapping[str, Callable[..., Any]]) -> Iterator[tuple[str, int, Op, str]]:
    """Yields function, index, operation and reason for everything in the module that cannot be evaluated."""
    # Most operations and types occur again and again; what was once found good needs no second look.
    good_names, good_types = set(_STRUCTURAL), set[int]()
    for function in module.functions.values():
        for index, op in enumerate(walk(function.body)):
            reason = None
            for value in (*op.operands, *op.results):
                if id(value.type) not in good_types:
                    if not _has_array_type(value):
                        reason = f"no arrays of type {value.type}"
                        break
                    good_types.add(id(value.type))
            name = op.name
            if reason is None and name not in good_names:
                if find_rule(op, rules) is None:
                    target = op.attributes.get("call_target_name")
                    reason = f"no rule for {name}" if target is None else f"no rule for the custom call {target!r}"
                elif name not in CUSTOM_CALLS:
                    good_names.add(name)
            if reason is not None:
                yield function.name, index, op, reason


def _has_array_type(value: Value) -> bool:
    type_ = value.type
    if isinstance(type_, TensorType):
        return not isinstance(type_.element, QuantizedElement) and type_.element in DTYPES
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
        lines.append(f"@{function}, op {index}, {print_place(op)}")
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
    good: set[int] = set()
    for function in module.functions.values():
        values = [*function.body.arguments]
        for op in walk(function.body):
            if op.name in _READS_SHAPES:
                return False
            values.extend(op.results)
            for region in op.regions:
                values.extend(region.arguments)
        for value in values:
            type_ = value.type
            if id(type_) not in good:
                if isinstance(type_, TensorType) and not type_.is_static:
                    return False
                good.add(id(type_))
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
