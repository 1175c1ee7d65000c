"""Which primitives carry programs, and who handles them: the table that `higher_order` adds to."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

from unlower._jax_compat_interpret import Primitive, sub_jaxprs
from unlower._registry import Registry
from unlower.errors import RuleError

__all__ = ["OPAQUE", "higher_order"]

F = TypeVar("F", bound=Callable[..., Any])


def _always(interpreter: Any, params: dict[str, Any]) -> bool:
    return True


def _programs(params: dict[str, Any]) -> Iterator[Any]:
    return sub_jaxprs(params)


class Handler(NamedTuple):
    """How the framework treats a primitive that carries programs.

    Attributes:
      apply: the rule, taking a context, values and the equation's parameters.
      programs: parameters -> the Jaxprs inside.
      is_quiet: whether an equation may stay as it is when no rule touches those Jaxprs; False where it carries programs that
        only show when they are called.
    """

    apply: Callable[..., Any]
    programs: Callable[[dict[str, Any]], Iterable[Any]]
    is_quiet: Callable[[Any, dict[str, Any]], bool]


_handlers: Registry = Registry("higher-order")
_by_primitive: dict[Any, Handler | None] = {}
OPAQUE: dict[str, str] = {}
"""Primitives whose program inside is never interpreted -> the reason."""


def higher_order(
    *primitives: Any,
    programs: Callable[[dict[str, Any]], Iterable[Any]] = _programs,
    is_quiet: Callable[[Any, dict[str, Any]], bool] = _always,
) -> Callable[[F], F]:
    """Teaches every interpreter a primitive that carries a program.

    The function decorated is a rule like any other. Its context interprets the program by `ctx.stage` and puts the equation
    together again by `ctx.rebind`; `ctx.sub` interprets it in place instead.

    Args:
      primitives: primitives or their names.
      programs: parameters -> the Jaxprs inside, where they are not parameters themselves.
      is_quiet: called with an interpreter and parameters when no rule touches those Jaxprs: whether the equation then stays as
        it is. To be given where a parameter is a Python function that makes a program when called.

    Raises:
      DuplicateRuleError: somebody has taught this primitive already.
      RuleError: an argument is no primitive.

    Example:
      >>> @higher_order("my_call")
      ... def my_call(ctx, *values, jaxpr, **params):
      ...     staged = ctx.stage(jaxpr, values)
      ...     return ctx.finish(staged, ctx.rebind(staged.arguments(values), jaxpr=staged.jaxpr))
    """
    for primitive in primitives:
        if not isinstance(primitive, (str, Primitive)):
            raise RuleError(f"higher_order({primitive!r})", mend="pass a primitive, or the name of one")

    def decorate(function: F) -> F:
        for primitive in primitives:
            _handlers.add(primitive, function)
            _details[primitive] = Handler(function, programs, is_quiet)
        _by_primitive.clear()
        return function

    return decorate


_details: dict[Any, Handler] = {}


def find_handler(primitive: Any) -> Any:
    """The `Handler` of a primitive, or None: a first-order primitive, or one that nobody has taught."""
    try:
        return _by_primitive[primitive]
    except KeyError:
        found = _by_primitive[primitive] = _details.get(primitive) or _details.get(primitive.name)
        return found


def is_opaque(primitive: Any) -> bool:
    """Whether a primitive's program is left alone on purpose."""
    return primitive.name in OPAQUE


def hidden_programs(primitive: Any, params: dict[str, Any]) -> Iterable[Any]:
    """The Jaxprs that a primitive carries."""
    handler = find_handler(primitive)
    return (_programs if handler is None else handler.programs)(params)
