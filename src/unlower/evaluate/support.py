"""What a rule table covers: finds the rule of an operation, and lists all operations that have none."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from unlower._jax_compat import is_registered_target
from unlower.errors import UnsupportedOpError
from unlower.ir.module import CALLS, CONSTANTS, CUSTOM_CALLS, Module, Op, walk
from unlower.ir.printer import print_place
from unlower.ir.types import DTYPES, QuantizedElement, TensorType, TokenType, Type
from unlower.ops.custom_calls.misc import ffi_fallback

__all__ = ["check_supported", "find_rule", "is_static", "unsupported_ops"]

_STRUCTURAL = CALLS | CONSTANTS
"""Operations that the evaluators handle themselves."""

_SHOWN = 20
"""How many unsupported operations an error message draws in full."""


def find_rule(op: Op, rules: Mapping[str, Callable[..., Any]]) -> Callable[..., Any] | None:
    """Returns the rule of an operation (by target name for custom calls), or None."""
    if op.name in CUSTOM_CALLS:
        return _find_target(str(op.attributes.get("call_target_name", "")), rules)
    return rules.get(op.name)


def _find_target(target: str, rules: Mapping[str, Callable[..., Any]]) -> Callable[..., Any] | None:
    rule = rules.get(target)
    return ffi_fallback if rule is None and is_registered_target(target) else rule


def unsupported_ops(module: Module, rules: Mapping[str, Callable[..., Any]]) -> Iterator[tuple[str, int, Op, str]]:
    """Yields function, index, operation and reason for everything in the module that cannot be evaluated."""
    vocabulary = module.vocabulary
    reasons = {
        name: f"no rule for {name}" for name in vocabulary.names - _STRUCTURAL - CUSTOM_CALLS if name not in rules
    }
    targets = {
        target: f"no rule for the custom call {target!r}"
        for target in vocabulary.targets
        if _find_target(target, rules) is None
    }
    types = {id(type_): f"no arrays of type {type_}" for type_ in vocabulary.types if not _is_array(type_)}
    if not (reasons or targets or types):
        return
    for function in module.functions.values():
        for index, op in enumerate(walk(function.body)):
            values = (*op.operands, *op.results)
            reason = next((types[id(value.type)] for value in values if id(value.type) in types), None)
            if reason is None:
                is_custom = op.name in CUSTOM_CALLS
                reason = targets.get(op.attributes.get("call_target_name", "")) if is_custom else reasons.get(op.name)
            if reason is not None:
                yield function.name, index, op, reason


def _is_array(type_: Type) -> bool:
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
    vocabulary = module.vocabulary
    if not vocabulary.names.isdisjoint(_READS_SHAPES):
        return False
    return all(type_.is_static for type_ in vocabulary.types if isinstance(type_, TensorType))


_READS_SHAPES = frozenset(
    {
        "stablehlo.dynamic_conv",
        "stablehlo.dynamic_gather",
        "stablehlo.dynamic_pad",
        "stablehlo.real_dynamic_slice",
    }
)
"""Operations whose meaning depends on the values of operands that are computed in the module."""
