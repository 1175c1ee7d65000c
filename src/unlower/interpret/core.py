"""`Interpreter`: the table of rules and hooks that a user writes, and the questions that a walk over a program asks it."""

import functools
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import jax

from unlower._jax_compat_interpret import Primitive, strip_weak_type, typematch
from unlower._registry import Registry
from unlower.errors import RuleError, UnsupportedOpError
from unlower.interpret.context import Context
from unlower.interpret.front import interpret_jaxpr, transform
from unlower.interpret.higher_order.registry import find_handler, hidden_programs, is_opaque
from unlower.interpret.values import Box, Type, all_plain, convert_leaf, flatten, is_box, promote, type_of

__all__ = ["Interpreter"]

F = TypeVar("F", bound=Callable[..., Any])

POLICIES = ("auto", "transform", "keep", "drop")
FALLBACKS = ("materialize", "raise")


class _RuleDecorator:
    """`Interpreter.rule`, which files a rule with a class or with one interpreter, whichever it is read from."""

    def __get__(self, instance: Any, owner: type) -> Callable[..., Callable[[F], F]]:
        table = owner._class_rules if instance is None else instance._own_rules

        def rule(*primitives: Any) -> Callable[[F], F]:
            if instance is not None:
                instance._check_open("rules")
            elif owner is Interpreter:
                raise RuleError(
                    "a rule for every interpreter there is", mend="subclass Interpreter, or call `rule` on an instance"
                )
            return table.register(*map(_rule_key, primitives))

        return rule


def _rule_key(primitive: Any) -> Any:
    if isinstance(primitive, (str, Primitive)):
        return primitive
    raise RuleError(f"a rule for {primitive!r}", mend='name a primitive ("add") or pass one (jax.lax.add_p)')


class Interpreter:
    """Rules that say what becomes of the primitives of a JAX program, and the means to apply them to any program.

    A rule takes a `Context`, the operands, and the equation's parameters by keyword, and returns the results. Primitives
    without a rule go to `default`, which binds them again; those that carry programs (`jit`, `scan`, `cond`, `custom_vjp`, ...)
    are kept and the program inside is interpreted. After its first use an interpreter cannot be changed.

    Args:
      rules: primitive, or name of one -> rule; `rule` files them one by one.
      default: takes the place of the method `default`; likewise `lift`, `lower` and `join`.
      fallback: what `default` does with a `Box` where there is no rule: `"materialize"` it, or `"raise"`.
      custom_rules: what becomes of the derivative rules of `custom_jvp` and `custom_vjp`: `"transform"` them too, `"keep"` them
        as they are (then the value is the transformed function's, and the derivative what the rule says), `"drop"` them and
        differentiate the transformed function, or `"auto"`: keep where the function is unchanged, else drop.
      opaque: names of primitives whose program inside is to be left alone although it holds primitives with rules.

    Raises:
      RuleError: a key of `rules` is no primitive, or an option has no such value.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> swap = Interpreter()
      >>> @swap.rule("add")
      ... def _(ctx, x, y, **params):
      ...     return jax.lax.mul(x, y)
      >>> swap.transform(jax.jit(lambda x, y: x + y))(3.0, 5.0)
      Array(15., dtype=float32, weak_type=True)
    """

    fallback: str = "materialize"
    custom_rules: str = "auto"
    opaque: frozenset[str] = frozenset()
    default_is_local: bool = False
    """Whether `default` matters only to equations whose operands have changed their types; the others are then copied."""

    _class_rules: ClassVar[Registry] = Registry("primitive")
    _used = False

    rule = _RuleDecorator()
    """Files a rule under primitives or their names: `@interpreter.rule("add", lax.sub_p)`, or on a subclass for all of it."""

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        cls._class_rules = Registry("primitive")

    def __init__(
        self,
        rules: Mapping[Any, Callable[..., Any]] | None = None,
        *,
        default: Callable[..., Any] | None = None,
        lift: Callable[[Any, Type], Any] | None = None,
        lower: Callable[[Any], Any] | None = None,
        join: Callable[[Type, Type, int], Type] | None = None,
        fallback: str | None = None,
        custom_rules: str | None = None,
        opaque: Iterable[str] | None = None,
    ):
        self._own_rules = Registry("primitive")
        for primitive, rule in (rules or {}).items():
            self._own_rules.add(_rule_key(primitive), rule)
        hooks = {"default": default, "lift": lift, "lower": lower, "join": join}
        for name, hook in hooks.items():
            if hook is not None:
                setattr(self, name, hook)
        if fallback is not None:
            self.fallback = fallback
        if custom_rules is not None:
            self.custom_rules = custom_rules
        if opaque is not None:
            self.opaque = frozenset(opaque)
        _check_option("fallback", self.fallback, FALLBACKS)
        _check_option("custom_rules", self.custom_rules, POLICIES)

    # --- hooks, for subclasses to override

    def default(self, ctx: Context, *values: Any, **params: Any) -> Any:
        """Says what becomes of a first-order primitive without a rule: it is bound again, boxes made arrays before."""
        if not all_plain(values):
            if self.fallback == "raise":
                raise ctx.error(UnsupportedOpError, "no rule for a primitive that meets a box", "add a rule for it")
            values = tuple(map(self.lower, values))
        return ctx.bind(*values)

    def prepare(
        self, jaxpr: Any, types: Sequence[Type] | None = None, results: Sequence[Type | None] | None = None
    ) -> Any:
        """Rewrites a closed Jaxpr as a whole before its equations are interpreted, for a transform that has to look ahead.

        It is called with the outermost program, and with each program that a derivative rule makes when JAX calls it; all
        others stand inside one of these. By default they stay as they are.

        Args:
          jaxpr: the program.
          types: the types of the values it will get, where they may differ from what it declares.
          results: the types that its results will be converted to; None for all of them, or for one, if nobody minds.
        """
        return jaxpr

    def lower(self, value: Any) -> Any:
        """Turns a value into the array that it stands for."""
        return value.materialize() if isinstance(value, Box) else value

    def lift(self, value: Any, like: Type) -> Any:
        """Turns an array into a box of a given type: a loop's initial carry, or the result of one branch of two."""
        raise RuleError(
            f"an array where {like} is needed",
            mend="override `lift`, which makes the box out of the array, or `join`, which chose this type",
        )

    def join(self, first: Type, second: Type, round: int) -> Type:
        """Chooses the type of a loop's carry, or of a branch's result, where two disagree.

        Args:
          first: the type so far.
          second: the type that the loop's body, or the next branch, gives.
          round: how often this very value's type has changed before. By default a carry takes the type that the body gives it
            at first, and from then on the dtype that holds both, so that it settles.
        """
        if first.tree != second.tree:
            return first if second.is_plain else second
        if round == 0:
            pairs = zip(first.avals, second.avals, strict=True)
            return first.replace(a if typematch(a, b) else strip_weak_type(b) for a, b in pairs)
        return first.replace(map(promote, first.avals, second.avals))

    # --- the ways to apply it

    def transform(
        self,
        function: Callable[..., Any],
        *,
        style: str = "initial",
        static_argnums: int | Sequence[int] = (),
        static_argnames: str | Sequence[str] = (),
        with_log: bool = False,
    ) -> Callable[..., Any]:
        """Returns the function that runs `function` by these rules.

        It takes and returns what `function` does, pytrees and keyword arguments included, boxes where `function` has arrays
        if you like, and composes with `jit`, `grad`, `vmap` and other interpreters, outside and inside.

        Args:
          function: a function of JAX arrays.
          style: `"initial"` traces the whole function first and then interprets its equations, which is fast to trace and
            keeps every sub-program shared. `"final"` interprets while the function runs, so that Python control flow sees
            concrete values, as in a debugger.
          static_argnums: positions of arguments that are not arrays.
          static_argnames: names of such arguments.
          with_log: return also what rules have emitted, as a `Log`.

        Raises:
          UnhandledHigherOrderError: a primitive nobody has taught hides a program that holds primitives with rules.
          RuleError: a rule's results do not fit.

        Example:
          >>> import jax, jax.numpy as jnp
          >>> negate = Interpreter({"sin": lambda ctx, x, **params: -ctx.bind(x)})
          >>> jax.grad(negate.transform(jnp.sin))(0.0)
          Array(-1., dtype=float32, weak_type=True)
        """
        self._close()
        return transform(self, function, style, static_argnums, static_argnames, with_log)

    def jaxpr(self, closed: Any, *types: Any) -> Any:
        """Interprets a closed Jaxpr and returns a closed Jaxpr: the same object if no rule touches it.

        Args:
          closed: what `jax.make_jaxpr` returns.
          types: the types of the inputs where they differ from the Jaxpr's, as `Type`s or abstract values. A box is passed as
            its leaves.

        Returns:
          a closed Jaxpr over leaves: the outputs, then what was emitted, in order.
        """
        self._close()
        return interpret_jaxpr(self, closed, types)

    def extend(self, rules: Mapping[Any, Callable[..., Any]], **options: Any) -> "Interpreter":
        """Returns a new interpreter with more rules, or others in their place, and with some options changed."""
        made = object.__new__(type(self))
        made.__dict__.update({k: v for k, v in self.__dict__.items() if k not in _DERIVED})
        made._own_rules = self._own_rules | {_rule_key(k): rule for k, rule in rules.items()}
        for name, value in options.items():
            if not hasattr(type(self), name) or name.startswith("_"):
                raise RuleError(f"{type(self).__name__} has no option {name!r}")
            setattr(made, name, frozenset(value) if name == "opaque" else value)
        return made

    # --- what the walk asks

    def touches(self, jaxpr: Any) -> bool:
        """Whether interpreting a Jaxpr may change it: whether any equation in it, at whatever depth, meets a rule."""
        known = self._touched.get(jaxpr)
        if known is None:
            eqns = jaxpr.eqns
            known = self._touched[jaxpr] = any(not self.is_quiet(eqn.primitive, eqn.params) for eqn in eqns)
        return known

    def is_quiet(self, primitive: Any, params: dict[str, Any]) -> bool:
        """Whether an equation whose operands are unchanged stays as it is."""
        quiet = self._quiet.get(primitive)
        if quiet is None:
            quiet = self._quiet[primitive] = self._is_quiet(primitive)
        if quiet == "no" or self.is_inert:
            return quiet != "no"
        if quiet == "inside":
            handler = find_handler(primitive)
            return handler.is_quiet(self, params) and not any(map(self.touches, hidden_programs(primitive, params)))
        return not self.hides_rules(primitive, params)

    def _is_quiet(self, primitive: Any) -> str:
        if self.find_rule(primitive) is not None:
            return "no"
        if primitive.name in self.opaque:
            return "yes"
        if find_handler(primitive) is not None:
            return "inside"
        return "no" if self.overrides_default else "yes"

    def hides_rules(self, primitive: Any, params: dict[str, Any]) -> bool:
        """Whether a primitive that nobody has taught hides a program in which a primitive with a rule stands."""
        if primitive.name in self.opaque or is_opaque(primitive):
            return False
        return any(map(self.has_rule_inside, hidden_programs(primitive, params)))

    def has_rule_inside(self, jaxpr: Any) -> bool:
        """Whether a primitive with a rule of its own stands in a Jaxpr, at whatever depth."""
        known = self._ruled.get(jaxpr)
        if known is None:
            known = self._ruled[jaxpr] = any(
                self.find_rule(eqn.primitive) is not None
                or any(map(self.has_rule_inside, hidden_programs(eqn.primitive, eqn.params)))
                for eqn in jaxpr.eqns
            )
        return known

    def find_rule(self, primitive: Any) -> Callable[..., Any] | None:
        """The rule for a primitive: the instance's before its class's, an object's before a name's."""
        for table in self._tables:
            rule = table.get(primitive) or table.get(primitive.name)
            if rule is not None:
                return rule
        return None

    def find_rule_named(self, name: str) -> Callable[..., Any] | None:
        """The rule filed under a name, for what is no primitive of its own."""
        return next((table[name] for table in self._tables if name in table), None)

    @functools.cached_property
    def _tables(self) -> tuple[Mapping[Any, Callable[..., Any]], ...]:
        classes = (cls._class_rules for cls in type(self).__mro__ if issubclass(cls, Interpreter))
        return (self._own_rules, *classes)

    @functools.cached_property
    def is_inert(self) -> bool:
        """Whether this interpreter has no rule at all and drops none, so that every program stays as it is."""
        return not any(map(len, self._tables)) and not self.overrides_default and self.custom_rules != "drop"

    @functools.cached_property
    def overrides_default(self) -> bool:
        """Whether primitives without a rule may be changed too."""
        return not self.default_is_local and self.has_default

    @functools.cached_property
    def has_default(self) -> bool:
        """Whether `default` is the user's own."""
        return "default" in self.__dict__ or type(self).default is not Interpreter.default

    @functools.cached_property
    def _quiet(self) -> dict[Any, str]:
        return {}

    @functools.cached_property
    def _touched(self) -> weakref.WeakKeyDictionary[Any, bool]:
        return weakref.WeakKeyDictionary()

    @functools.cached_property
    def _ruled(self) -> weakref.WeakKeyDictionary[Any, bool]:
        return weakref.WeakKeyDictionary()

    @functools.cached_property
    def staged(self) -> weakref.WeakKeyDictionary[Any, dict[Any, Any]]:
        """Jaxpr -> what has become of it, by the types of its inputs."""
        return weakref.WeakKeyDictionary()

    def coerce(self, value: Any, wanted: Type) -> Any:
        """Converts a value to a type: boxes it or makes it an array where needed, and converts its leaves."""
        found = type_of(value)
        if found.matches(wanted):
            return value
        if found.tree != wanted.tree:
            value = self.lower(value) if is_box(value) else value
            if not wanted.is_plain:
                value = self.lift(value, wanted)
            found = type_of(value)
        if found.tree != wanted.tree:
            raise RuleError(
                f"{found} where {wanted} is needed", mend="let `lift` and `lower` return what they are asked for"
            )
        leaves = [convert_leaf(leaf, aval) for leaf, aval in zip(flatten([value]), wanted.avals, strict=True)]
        return leaves[0] if wanted.is_plain else jax.tree.unflatten(wanted.tree, leaves)

    def _close(self) -> None:
        self.__dict__["_used"] = True

    def _check_open(self, what: str) -> None:
        if self._used:
            raise RuleError(
                f"the {what} of an interpreter that has been used cannot change",
                mend="derive another: interpreter.extend({primitive: rule}, option=value)",
            )

    def __setattr__(self, name: str, value: Any) -> None:
        self._check_open("attributes")
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} with {sum(map(len, self._tables))} rules>"


_DERIVED = (
    "_tables",
    "is_inert",
    "overrides_default",
    "has_default",
    "_quiet",
    "_touched",
    "_ruled",
    "staged",
    "_used",
)


def _check_option(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise RuleError(f"{name}={value!r}", mend=f"choose one of {', '.join(map(repr, allowed))}")
