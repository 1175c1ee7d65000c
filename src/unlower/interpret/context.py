"""What a rule sees: the equation before it, the program around it, and the means to build what takes its place."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from unlower._jax_compat_interpret import (
    bind_equation,
    canonicalize_value,
    is_array_aval,
    source_summary,
    typeof,
)
from unlower.errors import RuleError, UnhandledHigherOrderError, UnlowerError
from unlower.interpret.emissions import MODES, Emission, Emissions
from unlower.interpret.higher_order.registry import find_handler
from unlower.interpret.staging import Staged, stage
from unlower.interpret.trace import run_final
from unlower.interpret.values import Box, Type, all_plain, convert_leaf, is_box, type_of
from unlower.interpret.walker import walk

__all__ = ["Context", "Frame"]


class Frame:
    """One program under interpretation: the outermost, or one inside an equation of another.

    Attributes:
      interpreter: whose rules apply.
      path: names of the equations around, outermost first.
      emissions: what its rules have emitted.
      used_path: whether a rule asked for the path, so that the result holds for this place only.
    """

    __slots__ = ("_counts", "emissions", "interpreter", "path", "used_path")

    def __init__(self, interpreter: Any, path: tuple[str, ...] = ()):
        self.interpreter = interpreter
        self.path = path
        self.emissions = Emissions()
        self.used_path = False
        self._counts: dict[str, int] = {}

    def number(self, label: str) -> str:
        """The label, with a number from its second time on: the names of equations in a program differ."""
        count = self._counts[label] = self._counts.get(label, 0) + 1
        return label if count == 1 else f"{label}:{count}"

    def apply(
        self,
        primitive: Any,
        values: Sequence[Any],
        params: dict[str, Any],
        in_avals: Sequence[Any],
        out_avals: Sequence[Any],
        source: Any,
    ) -> list[Any]:
        """Applies the interpreter to one equation and returns its results."""
        ctx = Context(self, primitive, params, in_avals, out_avals, source)
        rule = self.interpreter.find_rule(primitive)
        try:
            if rule is None:
                return ctx.results(ctx.without_rule(values))
            return ctx.results(rule(ctx, *ctx.arrays(values), **params))
        except Exception as error:
            _note_place(error, ctx)
            raise


def _note_place(error: Exception, ctx: "Context") -> None:
    """Adds to an error, once, which equation it is about."""
    notes = getattr(error, "__notes__", ())
    if not any(note.startswith(_NOTE) for note in notes):
        error.add_note(f"{_NOTE} {ctx.where()}")


_NOTE = "while interpreting"


class Context:
    """The equation that a rule is called for.

    Attributes:
      primitive: its primitive.
      params: its parameters, which the rule gets by keyword too.
      in_avals: the types of its operands in the program, whatever the values at hand have become.
      out_avals: the types of its results in the program.
      interpreter: the interpreter at work.
    """

    __slots__ = ("_frame", "_label", "_source", "in_avals", "interpreter", "out_avals", "params", "primitive")

    def __init__(
        self,
        frame: Frame,
        primitive: Any,
        params: dict[str, Any],
        in_avals: Sequence[Any],
        out_avals: Sequence[Any],
        source: Any,
    ):
        self._frame, self._source = frame, source
        self.primitive, self.params, self.interpreter = primitive, params, frame.interpreter
        self.in_avals, self.out_avals = in_avals, out_avals
        self._label = None

    # --- where we are

    @property
    def path(self) -> str:
        """Where this equation stands, such as `jit(layer)/scan/tanh:2`: the second tanh in a loop in a jitted function.

        Within one program no two equations have the same path, so it will do for the name of an emission.
        """
        self._frame.used_path = True
        return "/".join((*self._frame.path, self._own_label()))

    @property
    def source(self) -> str:
        """The user's line that this equation comes from, such as `train.py:12 (loss)`; empty if unknown."""
        return source_summary(self._source)

    def _own_label(self) -> str:
        if self._label is None:
            name = self.params.get("name")
            label = f"{self.primitive.name}({name})" if isinstance(name, str) else self.primitive.name
            self._label = self._frame.number(label)
        return self._label

    def where(self) -> str:
        """The equation, its path and its source line, for messages."""
        place = "/".join((*self._frame.path, self.primitive.name))
        return f"`{self.primitive.name}` at {place}" + (f", from {self.source}" if self.source else "")

    def error(self, kind: type[UnlowerError], what: str, mend: str) -> UnlowerError:
        """Makes an error that says where it happened."""
        return kind(f"{what}: {self.primitive.name}", where=self.where(), mend=mend)

    # --- first-order rules

    def bind(self, *values: Any, **overrides: Any) -> Any:
        """Binds this equation's primitive to other operands.

        Args:
          values: arrays, as many as the equation has operands.
          overrides: parameters to change; the others are the equation's.

        Returns:
          an array, or a list of them if the primitive has several results.

        Raises:
          RuleError: the primitive has no such parameter, takes another number of operands, or got a box.
        """
        unknown = overrides.keys() - self.params.keys()
        if unknown:
            raise self.error(
                RuleError, f"no parameter {', '.join(sorted(unknown))}", f"it has {', '.join(self.params)}"
            )
        if len(values) != len(self.in_avals):
            raise self.error(
                RuleError,
                f"{len(values)} operands where {len(self.in_avals)} belong",
                "pass one for each the rule was given",
            )
        if not all_plain(values):
            raise self.error(
                RuleError, "a box cannot be bound", "take arrays out of it, or call ctx.interpreter.lower(box)"
            )
        out = bind_equation(self.primitive, values, {**self.params, **overrides} if overrides else self.params)
        return list(out) if self.primitive.multiple_results else out

    def bind_as_declared(self, *values: Any) -> Any:
        """Binds the primitive to operands made arrays of the dtypes that the program declares: for opaque primitives."""
        lowered = [self.interpreter.lower(v) for v in values]
        return self.bind(*(convert_leaf(v, aval) for v, aval in zip(lowered, self.in_avals, strict=True)))

    def default(self, *values: Any) -> Any:
        """Does what would be done if there were no rule for this primitive."""
        return self.without_rule(values)

    def emit(self, name: Any, value: Any, *, mode: str = "strict") -> None:
        """Sends a value out of the program: the caller of `transform(..., with_log=True)` finds it in the `Log`.

        In a `scan` the values are stacked; where a branch is not taken they are zero, and the log's `present` is False. A
        `while_loop` gives the last iteration's. In a `shard_map` the shards' values are stacked along a first axis, by
        device, where they may differ.

        Args:
          name: what to call it; any hashable value.
          value: a pytree of arrays, or a box.
          mode: `"strict"` makes a second value of this name an error, `"append"` makes a tuple of all, `"last"` replaces.
        """
        if mode not in MODES:
            raise self.error(RuleError, f"emit(mode={mode!r})", f"choose one of {', '.join(map(repr, MODES))}")
        self._frame.emissions.add(Emission(name, mode, jax.tree.map(jnp.asarray, value)))

    def sub(self, jaxpr: Any, *values: Any, name: str = "") -> list[Any]:
        """Interprets a Jaxpr in place, as if its equations stood here, and returns its results."""
        frame = Frame(self.interpreter, (*self._frame.path, name or self.primitive.name))
        frame.emissions = self._frame.emissions
        results = walk(frame, jaxpr, values)
        self._frame.used_path |= frame.used_path
        return results

    # --- higher-order rules

    def types(self, jaxpr: Any, values: Iterable[Any]) -> list[Type]:
        """The types of values about to enter a Jaxpr; what is unchanged keeps the Jaxpr's own."""
        return self.types_of(values, jaxpr.invars)

    @staticmethod
    def types_of(values: Iterable[Any], variables: Sequence[Any]) -> list[Type]:
        """The types of values, or of avals, for some of a Jaxpr's variables."""
        return [type_of(value, var.aval) for value, var in zip(values, variables, strict=False)]

    def stage(
        self,
        jaxpr: Any,
        values: Iterable[Any],
        *,
        results: Sequence[Type] | None = None,
        name: str = "",
        is_open: bool = False,
        cached: bool = True,
        emitted: Callable[[Any], Any] | None = None,
    ) -> Staged:
        """Interprets a Jaxpr to a Jaxpr over leaves, once for all equations that share it.

        Args:
          jaxpr: a Jaxpr out of the parameters.
          values: the values about to enter it, or their types.
          results: the types that its results must have, where they are given.
          name: what the program is called in paths, if it is one of several in this equation.
          is_open: whether the parameter takes no constants, so that all of them become arguments.
          cached: False for a Jaxpr that is made anew each time.
          emitted: applied to each array that leaves by an emission.
        """
        values = list(values)
        types = values if values and isinstance(values[0], Type) else self.types(jaxpr, values)
        label = (*self._frame.path, self._own_label() + (f".{name}" if name else ""))
        return stage(self._frame, jaxpr, types, results, label, is_open=is_open, cached=cached, emitted=emitted)

    def run_rule(
        self, name: str, function: Callable[..., Any], values: Sequence[Any], avals: Sequence[Any] | None = None
    ) -> Any:
        """Interprets a Python function out of the parameters in the final style, when JAX calls it.

        Args:
          name: what it is called in paths.
          function: takes arrays, returns a pytree of them.
          values: its arguments.
          avals: the types that it is written for, where they differ.

        Raises:
          RuleError: something is emitted there, which nobody could be given.
        """
        frame = Frame(self.interpreter, (*self._frame.path, f"{self.primitive.name}.{name}"))
        out = run_final(frame, function, values, avals)
        if frame.emissions.entries:
            raise self.error(
                RuleError,
                f"{frame.emissions.entries[0].name!r} is emitted in the {name} rule, which JAX runs elsewhere, or not at all",
                "differentiate or batch inside: transform(jax.grad(f)), or leave rules alone: custom_rules='keep'",
            )
        return out

    def rebind(self, values: Sequence[Any], **overrides: Any) -> list[Any]:
        """Binds the primitive to leaves, as many as the new parameters want."""
        return list(bind_equation(self.primitive, values, {**self.params, **overrides}))

    def finish(self, staged: Staged, leaves: Sequence[Any]) -> list[Any]:
        """Makes an equation's results of its leaves, and passes on what the program inside emitted."""
        return staged.finish(self._frame.emissions, leaves)

    def pass_on(self, emissions: Iterable[Emission]) -> None:
        """Emits what a program inside has emitted."""
        for emission in emissions:
            self._frame.emissions.add(emission)

    # --- for the walk

    def without_rule(self, values: Sequence[Any]) -> Any:
        """Handles the equation as one that has no rule."""
        primitive, interpreter = self.primitive, self.interpreter
        if primitive.name in interpreter.opaque:
            return self.bind_as_declared(*values)
        handler = find_handler(primitive)
        if handler is not None:
            return handler.apply(self, *values, **self.params)
        self.refuse_hidden()
        if interpreter.has_default:
            values = self.arrays(values)
        return interpreter.default(self, *values, **self.params)

    def refuse_hidden(self) -> None:
        """Raises UnhandledHigherOrderError if the primitive hides a program that the rules ought to reach."""
        if self.interpreter.hides_rules(self.primitive, self.params):
            name = self.primitive.name
            raise self.error(
                UnhandledHigherOrderError,
                "primitives with rules stand in a program that is out of reach, inside",
                f'leave it alone: Interpreter(..., opaque={{"{name}"}}), give `{name}` itself a rule, '
                f'or teach it: @unlower.interpret.higher_order("{name}")',
            )

    def arrays(self, values: Sequence[Any]) -> Sequence[Any]:
        """Makes arrays of the scalars that JAX keeps as literals, so that a rule may ask them for anything an array has."""
        return list(map(_as_array, values))

    def results(self, out: Any) -> list[Any]:
        """Checks what a rule returned, and makes a list of it."""
        if self.primitive.multiple_results:
            if not isinstance(out, (list, tuple)):
                raise self.error(RuleError, f"its rule returned {type(out).__name__}", "return a list of results")
            outs = list(out)
        else:
            outs = [out]
        if len(outs) != len(self.out_avals):
            what = f"its rule returned {len(outs)} results where {len(self.out_avals)} belong"
            raise self.error(RuleError, what, "return one for each of ctx.out_avals")
        pairs = zip(outs, self.out_avals, strict=True)
        return [o if isinstance(o, jax.Array) and _fits(o, a) else self._result(o, a) for o, a in pairs]

    def _result(self, out: Any, aval: Any) -> Any:
        if is_box(out):
            return out
        try:
            found = typeof(canonicalize_value(out))
        except TypeError:
            raise self.error(
                RuleError,
                f"its rule returned {type(out).__name__}",
                "return arrays, or instances of unlower.interpret.Box",
            ) from None
        if getattr(found, "shape", None) != getattr(aval, "shape", None):
            raise self.error(
                RuleError,
                f"its rule returned {found.str_short(True)} for {aval.str_short(True)}",
                "keep the shape, or return a Box, which may hold leaves of any shape",
            )
        return _as_array(out)


def _fits(value: Any, aval: Any) -> bool:
    return value.aval is aval or getattr(value, "shape", None) == getattr(aval, "shape", None)


def _as_array(value: Any) -> Any:
    """The array that a scalar or a NumPy array is; references, tokens and hijax values stay what they are."""
    if isinstance(value, (jax.Array, Box)):
        return value
    value = canonicalize_value(value)
    return jnp.asarray(value) if is_array_aval(typeof(value)) else value
