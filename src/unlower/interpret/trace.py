"""The final style: a JAX trace that sends every primitive through an interpreter while the function runs.

The same rules as in the initial style: a primitive that takes Python functions to `bind` (`custom_jvp`, `custom_vjp`,
`shard_map`) is staged to one equation first. Conversely, Python functions in an equation's parameters (the `bwd` of a
`custom_vjp`) are run in this style by the initial one.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from unlower._jax_compat_interpret import (
    SymbolicZero,
    Trace,
    Tracer,
    TraceTag,
    Zero,
    close_jaxpr,
    current_source_info,
    debug_info,
    reset_output_stores,
    set_current_trace,
    take_current_trace,
    to_concrete_value,
    trace_to_jaxpr,
    typematch,
    typeof,
)
from unlower.interpret.values import Box, all_plain, is_box
from unlower.interpret.walker import walk

__all__ = ["run_final"]


class InterpreterTracer(Tracer):
    """What the running function sees: the program's type in front, the interpreter's value behind."""

    __slots__ = ("value",)

    def __init__(self, trace: "InterpreterTrace", value: Any, aval: Any):
        super().__init__(trace, aval)
        self.value = value

    def full_lower(self) -> Any:
        """Nothing simpler stands for this value."""
        return self

    def to_concrete_value(self) -> Any:
        """The array behind, so that Python's `if` can look at it; None for a box."""
        return None if isinstance(self.value, Box) else to_concrete_value(self.value)


class InterpreterTrace(Trace):
    """Interprets primitives as they are bound, in terms of the trace around."""

    __slots__ = ("frame", "parent", "tag")

    def __init__(self, frame: Any, parent: Any):
        super().__init__()
        self.frame, self.parent, self.tag = frame, parent, TraceTag()
        # Hijax primitives arrive as they are: their handler knows what to do with them.
        self.requires_low = False

    def unwrap(self, value: Any) -> Any:
        """The interpreter's value behind a tracer of this trace; anything else is a value already."""
        return value.value if isinstance(value, InterpreterTracer) and value._trace is self else value

    def wrap(self, value: Any, aval: Any = None) -> InterpreterTracer:
        """A tracer for the running function."""
        if aval is None:
            aval = value.aval if is_box(value) else typeof(value)
        return InterpreterTracer(self, value, aval)

    def stage_value(self, val: Any) -> Any:
        """Takes a constant in."""
        return self.wrap(self.unwrap(val))

    def process_primitive(self, primitive: Any, tracers: Sequence[Any], params: dict[str, Any], /) -> Any:
        """Interprets one primitive."""
        values = [self.unwrap(t) for t in tracers]
        with set_current_trace(self.parent):
            avals = [typeof(t) for t in tracers]
            quiet = self.frame.interpreter.is_quiet(primitive, params)
            if quiet and all_plain(values) and all(_declared(v, a) for v, a in zip(values, avals, strict=True)):
                out = primitive.bind(*values, **params)
                return [self.wrap(o) for o in out] if primitive.multiple_results else self.wrap(out)
            out_avals, _ = primitive.abstract_eval(*avals, **params)
            out_avals = list(out_avals) if primitive.multiple_results else [out_avals]
            outs = self.frame.apply(primitive, values, params, avals, out_avals, current_source_info())
            wrapped = [self.wrap(o, a) for o, a in zip(outs, out_avals, strict=True)]
        return wrapped if primitive.multiple_results else wrapped[0]

    def _staged(self, primitive: Any, tracers: Sequence[Any], params: dict[str, Any]) -> Any:
        """Interprets a primitive bound to Python functions by way of the equation that it would be."""
        values = [self.unwrap(t) for t in tracers]
        store: list[Any] = []

        def one(*arguments: Any) -> list[Any]:
            store.append(primitive.bind(*arguments, **params))
            return list(store[0])

        with set_current_trace(self.parent):
            avals = [typeof(t) for t in tracers]
            jaxpr, consts = trace_to_jaxpr(one, avals, debug_info("unlower.interpret", one, tracers, {}))
            consts = [self.unwrap(const) for const in consts]
            outs = walk(self.frame, close_jaxpr(jaxpr, consts), values)
            wrapped = [self.wrap(o, v.aval) for o, v in zip(outs, jaxpr.outvars, strict=True)]
        reset_output_stores(params["subfuns"])
        return store[0].update(wrapped) if hasattr(store[0], "update") else wrapped

    def process_custom_jvp_call(self, primitive: Any, fun: Any, jvp: Any, tracers: Any, /, **params: Any) -> Any:
        """Interprets a function with a rule for its tangents."""
        return self._staged(primitive, tracers, {**params, "subfuns": (fun, jvp)})

    def process_custom_vjp_call(
        self, primitive: Any, fun: Any, fwd: Any, bwd: Any, tracers: Any, /, **params: Any
    ) -> Any:
        """Interprets a function with a rule for its cotangents."""
        return self._staged(primitive, tracers, {**params, "subfuns": (fun, fwd, bwd)})

    def process_shard_map(self, primitive: Any, fun: Any, tracers: Any, /, **params: Any) -> Any:
        """Interprets a function of shards."""
        return self._staged(primitive, tracers, {**params, "subfuns": (fun,)})

    def process_call(self, primitive: Any, fun: Any, tracers: Any, params: dict[str, Any], /) -> Any:
        """Interprets a function under `closed_call`; jax 0.10 only."""
        return self._staged(primitive, tracers, {**params, "subfuns": (fun,)})


def _declared(value: Any, aval: Any) -> bool:
    """Whether a value has the dtype that the program declares, or a Python scalar does."""
    return not isinstance(value, jax.Array) or typematch(value.aval, aval)


def run_final(
    frame: Any, function: Callable[..., Any], values: Sequence[Any], avals: Sequence[Any] | None = None
) -> Any:
    """Runs a function in the final style.

    Args:
      frame: the program it becomes part of.
      function: takes arrays, returns a pytree of them.
      values: arrays or boxes for its arguments.
      avals: the types that the function takes them for, where they differ.

    Returns:
      what the function returns, with the interpreter's values for arrays.
    """
    with take_current_trace() as parent:
        trace = InterpreterTrace(frame, parent)
        with set_current_trace(trace):
            tracers = [
                v if isinstance(v, (Zero, SymbolicZero)) else trace.wrap(v, a)
                for v, a in zip(values, avals or [None] * len(values), strict=True)
            ]
            out = function(*tracers)
    return jax.tree.map(trace.unwrap, out)
