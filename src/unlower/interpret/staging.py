"""Sub-programs: a Jaxpr and the types of its inputs -> a Jaxpr over leaves, kept for all equations that share the first."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from unlower._jax_compat_interpret import (
    Tracer,
    close_jaxpr,
    drop_outputs,
    hoist_consts,
    jaxpr_debug_info,
    like_param,
    trace_to_jaxpr,
    tracing_context,
    unnamed,
)
from unlower.interpret.emissions import Emission, Emissions, EmissionType
from unlower.interpret.values import LEAF, Type, all_plain, flatten, plain_type, same_types, unflatten
from unlower.interpret.walker import walk

__all__ = ["Staged", "stage"]


@dataclass(frozen=True, eq=False)
class Staged:
    """A sub-program after interpretation.

    Attributes:
      jaxpr: takes `hoisted`, then the leaves of its inputs; gives the leaves of its results, then those of its emissions. It
        is of the kind that the parameter held, and the very same object if nothing changed.
      hoisted: values from outside that rules have used inside, such as a traced weight.
      results: the types of its results.
      emissions: what its rules have emitted.
      changed: whether this is another program than before.
    """

    jaxpr: Any
    results: tuple[Type, ...]
    hoisted: tuple[Any, ...] = ()
    emissions: tuple[EmissionType, ...] = ()
    changed: bool = True

    @property
    def is_plain(self) -> bool:
        """Whether it gives arrays for arrays, one for one, and needs no more inputs."""
        return not self.hoisted and not self.emissions and all(t.is_plain for t in self.results)

    def arguments(self, values: Iterable[Any]) -> list[Any]:
        """The leaves it takes: the values from outside, then those of its inputs."""
        return [*self.hoisted, *flatten(values)]

    @property
    def extra(self) -> int:
        """How many outputs its emissions take."""
        return sum(e.leaves for e in self.emissions)

    def per_input(self, items: Sequence[Any], values: Sequence[Any], hoisted: Any) -> tuple[Any, ...]:
        """One item for each input, repeated for each of its leaves; `hoisted` for each value from outside."""
        repeated = [item for item, value in zip(items, values, strict=True) for _ in flatten([value])]
        return (*[hoisted] * len(self.hoisted), *repeated)

    def per_output(self, items: Sequence[Any], emitted: Any) -> tuple[Any, ...]:
        """One item for each result, repeated for each of its leaves; `emitted` for each leaf of an emission."""
        repeated = [item for item, type in zip(items, self.results, strict=True) for _ in type.avals]
        return (*repeated, *[emitted] * self.extra)

    def split(self, leaves: Sequence[Any]) -> tuple[list[Any], list[Emission]]:
        """Results and emissions out of the leaves that an equation gave."""
        values = unflatten(self.results, leaves)
        rest = iter(leaves[len(leaves) - self.extra :])
        emitted = []
        for name, mode, type, may_be_absent in self.emissions:
            (value,) = unflatten([type], [next(rest) for _ in type.avals])
            emitted.append(Emission(name, mode, value, next(rest) if may_be_absent else None))
        return values, emitted

    @property
    def muted(self) -> Any:
        """The Jaxpr without its emissions, for a primitive whose results are counted."""
        return drop_outputs(self.jaxpr, self.extra) if self.emissions else self.jaxpr

    def finish(self, emissions: Emissions, leaves: Sequence[Any]) -> list[Any]:
        """The results; what was emitted inside is emitted again around it."""
        values, emitted = self.split(leaves)
        for emission in emitted:
            emissions.add(emission)
        return values


class _Inert:
    """Just enough of a frame to copy a Jaxpr."""

    @staticmethod
    def is_quiet(primitive: Any, params: dict[str, Any]) -> bool:
        return True


class _InertFrame:
    interpreter = _Inert


def call_staged(jaxpr: Any, leaves: Sequence[Any]) -> list[Any]:
    """Runs a Jaxpr that has been interpreted already, in place."""
    return walk(_InertFrame, jaxpr, leaves)


def stage(
    frame: Any,
    jaxpr: Any,
    types: Sequence[Type],
    results: Sequence[Type] | None,
    path: tuple[str, ...],
    *,
    is_open: bool = False,
    cached: bool = True,
    emitted: Callable[[Any], Any] | None = None,
) -> Staged:
    """Interprets a sub-program; see `Context.stage`."""
    interpreter = frame.interpreter
    if not interpreter.touches(jaxpr) and _unchanged(jaxpr, types, results):
        return Staged(jaxpr, tuple(plain_type(v.aval) for v in jaxpr.outvars), changed=False)
    # Types and context decide what comes out; the path does too, if a rule has asked for it.
    key = (tuple(types), None if results is None else tuple(results), is_open, tracing_context())
    known = interpreter.staged.setdefault(jaxpr, {}) if cached else {}
    if (found := known.get(key)) is not None:
        return found
    if (found := known.get((key, path))) is not None:
        frame.used_path = True
        return found
    staged, used_path = _trace(frame, jaxpr, types, results, path, is_open, emitted)
    frame.used_path |= used_path
    if not any(isinstance(value, Tracer) for value in staged.hoisted):
        known[(key, path) if used_path else key] = staged
    return staged


def _unchanged(jaxpr: Any, types: Sequence[Type], results: Sequence[Type] | None) -> bool:
    inputs = all(t.is_plain and _same_aval(t.avals[0], v.aval) for t, v in zip(types, jaxpr.invars, strict=True))
    return inputs and (results is None or same_types(results, [plain_type(v.aval) for v in jaxpr.outvars]))


def _same_aval(first: Any, second: Any) -> bool:
    return first is second or first == second


def _trace(
    frame: Any,
    jaxpr: Any,
    types: Sequence[Type],
    results: Sequence[Type] | None,
    path: tuple[str, ...],
    is_open: bool,
    emitted: Callable[[Any], Any] | None,
) -> tuple[Staged, bool]:
    inner = type(frame)(frame.interpreter, path)
    found: dict[str, Any] = {}

    def run(*leaves: Any) -> list[Any]:
        outs = walk(inner, jaxpr, unflatten(types, leaves), owned=True)
        if results is not None:
            outs = [inner.interpreter.coerce(out, wanted) for out, wanted in zip(outs, results, strict=True)]
        found["results"] = [LEAF if all_plain([out]) else jax.tree.structure(out) for out in outs]
        leaves_out = flatten(outs)
        found["emissions"] = []
        for emission in inner.emissions.entries:
            value, tree = jax.tree.flatten(emission.value)
            found["emissions"].append(tree)
            sent = value if emission.present is None else [*value, emission.present]
            leaves_out += sent if emitted is None else map(emitted, sent)
        return leaves_out

    debug = jaxpr_debug_info(jaxpr)
    avals = [aval for type in types for aval in type.avals]
    if len(avals) != len(types) or not all(t.is_plain for t in types):
        debug = unnamed(debug)
    opened, consts = trace_to_jaxpr(run, avals, debug)
    hoist = [is_open or isinstance(const, Tracer) or not hasattr(const, "dtype") for const in consts]
    hoisted = tuple(const for const, move in zip(consts, hoist, strict=True) if move)
    kept = [const for const, move in zip(consts, hoist, strict=True) if not move]
    closed = close_jaxpr(hoist_consts(opened, hoist) if any(hoist) else opened, kept)
    outputs = iter(v.aval for v in closed.outvars)
    out_types = tuple(Type(tree, tuple(next(outputs) for _ in range(tree.num_leaves))) for tree in found["results"])
    emissions = []
    for entry, tree in zip(inner.emissions.entries, found["emissions"], strict=True):
        type_ = Type(tree, tuple(next(outputs) for _ in range(tree.num_leaves)))
        emissions.append(EmissionType(entry.name, entry.mode, type_, entry.present is not None))
        if entry.present is not None:
            next(outputs)
    return Staged(like_param(closed, jaxpr), out_types, hoisted, tuple(emissions)), inner.used_path
