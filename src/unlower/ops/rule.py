"""`@op_rule`, and what a rule receives.

A rule is a function `rule(op, *operands, **attributes_and_regions)` that returns the op's result, or a tuple of results:

- `op` is the `ir.Op`: read result types from it (`op.type.shape`, `op.type.dtype`), never operand values;
- operands are positional JAX arrays (tracers), one for each operand;
- attributes are keyword-only, under the specification's names, as the values of `unlower.ir.attributes`; an attribute with
  a dialect prefix has its dot replaced (`mhlo.backend_config` -> `mhlo_backend_config`);
- regions are keyword-only `Subprogram`s, under the names in `REGION_NAMES`.

The signature is the declaration: an attribute that a rule does not name is an error, so none gets lost. The exceptions are
`HINTS`, and attributes with a dialect prefix, which MLIR defines as discardable.
"""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from unlower._registry import Registry
from unlower.errors import RuleError
from unlower.ir.module import Op, Region

__all__ = ["HINTS", "REGION_NAMES", "Subprogram", "apply_rule", "is_specialized", "op_rule", "op_rules"]

F = TypeVar("F", bound=Callable[..., Any])

op_rules = Registry("op")
"""Every rule that ships with `unlower`, by op name (`"stablehlo.add"`) or custom-call target (`"TopK"`)."""

REGION_NAMES: Mapping[str, tuple[str, ...]] = {
    "stablehlo.all_reduce": ("computation",),
    "stablehlo.case": ("*branches",),
    "stablehlo.if": ("true_branch", "false_branch"),
    "stablehlo.map": ("computation",),
    "stablehlo.reduce": ("body",),
    "stablehlo.reduce_scatter": ("computation",),
    "stablehlo.reduce_window": ("body",),
    "stablehlo.scatter": ("update_computation",),
    "stablehlo.select_and_scatter": ("select", "scatter"),
    "stablehlo.sort": ("comparator",),
    "stablehlo.while": ("cond", "body"),
    "mhlo.scan": ("body",),
    "chlo.scan": ("body",),
    "raised.counted_while": ("cond", "body"),
    "raised.uncounted_while": ("cond", "body"),
}
"""Op name -> names of its regions in order; a name with a star takes all that are left, as a tuple."""

HINTS: Mapping[str, str] = {
    "result_layout": "layouts have no bearing on values, except in mhlo.bitcast, whose rule names it",
    "xla_shape": "XLA's own spelling of the result type, kept by the HLO converter",
    "operand_layouts": "layouts of a custom call's operands; rules of custom calls work on logical shapes",
    "result_layouts": "as operand_layouts",
}
"""Attributes with no bearing on values, each with its reason; a rule that names one still receives it."""


class Subprogram(Protocol):
    """A region as a rule sees it: call it with arrays, or take its Jaxpr.

    Attributes:
      region: the region itself, for matching by structure.
      captures: the values it uses from around, in the order in which its Jaxpr takes them.
    """

    region: Region
    captures: Sequence[Any]

    def __call__(self, *arguments: Any) -> tuple[Any, ...]:
        """Runs the region on arrays, captures supplied."""
        ...

    def jaxpr(self, *arguments: Any) -> Any:
        """Returns the closed Jaxpr that takes `(*captures, *arguments)`; only the arguments' types are looked at."""
        ...


_SPECIALIZED = "_unlower_specialized"


def op_rule(*names: str, specialize: bool = False) -> Callable[[F], F]:
    """Registers a rule in `op_rules`, and returns the function unchanged.

    Args:
      *names: op names (`"stablehlo.add"`) or custom-call targets (`"TopK"`).
      specialize: operands that are small constants of the module (at most 1024 elements) arrive as NumPy arrays instead
        of tracers, so that the rule may look at their values.

    Raises:
      DuplicateRuleError: a rule of that name exists.
    """

    def decorate(rule: F) -> F:
        if specialize:
            setattr(rule, _SPECIALIZED, True)
        return op_rules.register(*names)(rule)

    return decorate


def is_specialized(rule: Callable[..., Any]) -> bool:
    """Whether `rule` asked for constant operands as NumPy arrays."""
    return getattr(rule, _SPECIALIZED, False)


@functools.cache
def _keywords(rule: Callable[..., Any]) -> tuple[frozenset[str], bool]:
    parameters = inspect.signature(rule).parameters.values()
    named = frozenset(p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD))
    return named, any(p.kind is p.VAR_KEYWORD for p in parameters)


def apply_rule(
    rule: Callable[..., Any], op: Op, operands: Sequence[Any], subprograms: Sequence[Subprogram] = ()
) -> tuple[Any, ...]:
    """Runs `rule` on `op`, attributes and regions bound to the names it declares; returns the results as a tuple.

    Raises:
      RuleError: the op carries an attribute that the rule does not name.
    """
    named, takes_all = _keywords(rule)
    keywords: dict[str, Any] = {}
    for name, value in op.attributes.items():
        spelled = name.replace(".", "_")
        if takes_all or spelled in named:
            keywords[spelled] = value
        elif "." not in name and name not in HINTS:
            raise RuleError(f"the rule of {op.name} does not take the attribute {name}={value!r}")
    names = REGION_NAMES.get(op.name)
    if names is None:
        keywords.update({"regions": tuple(subprograms)} if subprograms else {})
    elif names[0].startswith("*"):
        keywords[names[0][1:]] = tuple(subprograms)
    else:
        keywords.update(zip(names, subprograms, strict=True))
    results = rule(op, *operands, **keywords)
    return tuple(results) if isinstance(results, tuple | list) else (results,)
