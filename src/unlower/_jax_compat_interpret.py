"""What `unlower.interpret` needs of JAX's private modules, beside `_jax_compat`, and the only other file that touches them.

Supported: jax 0.10.2 to 0.12. Each shim states its versions and when it can go.
"""

import copy
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import jax
from jax._src import ad_util, api_util, config, core, dtypes, source_info_util
from jax._src import linear_util as lu
from jax._src import mesh as _mesh
from jax._src import shard_map as _shard_map
from jax._src.interpreters import partial_eval as pe
from jax._src.sharding_impls import UNSPECIFIED

from unlower._jax_compat import JaxprParts

__all__ = [
    "DEVICE_MEMORY",
    "UNSPECIFIED",
    "AbstractValue",
    "EquationCopier",
    "JaxprEqn",
    "Literal",
    "Primitive",
    "SymbolicZero",
    "Trace",
    "TraceTag",
    "Tracer",
    "Var",
    "Zero",
]

DEVICE_MEMORY = core.MemorySpace.Device
AbstractValue = core.AbstractValue
JaxprEqn = core.JaxprEqn
Literal = core.Literal
Primitive = core.Primitive
SymbolicZero = ad_util.SymbolicZero
Trace = core.Trace
TraceTag = core.TraceTag
Tracer = core.Tracer
Var = core.Var
Zero = ad_util.Zero

typeof = core.typeof
typematch = core.typematch
mapped_aval = core.mapped_aval
set_current_trace = core.set_current_trace
take_current_trace = core.take_current_trace
to_concrete_value = core.to_concrete_value
canonicalize_value = dtypes.canonicalize_value
current_name_stack = source_info_util.current_name_stack
user_context = source_info_util.user_context

# --- Jaxprs: one face for both versions. jax 0.12 merged ClosedJaxpr into Jaxpr, which carries its constants itself.

Jaxpr = core.Jaxpr
_CLOSED: Any = getattr(core, "ClosedJaxpr", None)
JAXPR_TYPES: Any = (Jaxpr,) if _CLOSED in (None, Jaxpr) else (Jaxpr, _CLOSED)


def jaxpr_parts(jaxpr: Any) -> JaxprParts:
    """Takes a Jaxpr apart, open or closed; an open one has constant variables and no constants."""
    inner = _inner(jaxpr)
    return JaxprParts(inner.invars, inner.outvars, inner.eqns, inner.constvars, getattr(jaxpr, "consts", ()))


def _inner(jaxpr: Any) -> Any:
    return jaxpr.jaxpr if len(JAXPR_TYPES) > 1 and isinstance(jaxpr, JAXPR_TYPES[1]) else jaxpr


def jaxpr_debug_info(jaxpr: Any) -> Any:
    """The names of a Jaxpr's function, arguments and results."""
    return _inner(jaxpr).debug_info


def jaxpr_effects(jaxpr: Any) -> Any:
    """The effects of a Jaxpr."""
    return _inner(jaxpr).effects


def jaxpr_is_high(jaxpr: Any) -> bool:
    """Whether a Jaxpr holds hijax types or primitives."""
    return _inner(jaxpr).is_high


def close_jaxpr(jaxpr: Any, consts: Sequence[Any]) -> Any:
    """Closes an open Jaxpr over constants, one for each of its constant variables."""
    return jaxpr.with_consts(consts) if len(JAXPR_TYPES) == 1 else _CLOSED(jaxpr, list(consts))


def hoist_consts(jaxpr: Any, hoisted: Sequence[bool]) -> Any:
    """Turns some constant variables of an open Jaxpr into its first arguments; the others stay where they are."""
    constvars, debug = jaxpr.constvars, jaxpr.debug_info
    if len(JAXPR_TYPES) == 1:  # without its constants, a Jaxpr of jax 0.12 has arguments only
        constvars, invars = jaxpr.all_invars[: len(hoisted)], jaxpr.all_invars[len(hoisted) :]
        names = debug.arg_names and debug.arg_names[len(hoisted) :]
    else:
        invars, names = jaxpr.invars, debug.arg_names
    moved = [v for v, move in zip(constvars, hoisted, strict=True) if move]
    kept = [v for v, move in zip(constvars, hoisted, strict=True) if not move]
    debug = debug._replace(arg_names=None if names is None else ("",) * len(moved) + tuple(names))
    # The first constant variables of a Jaxpr are those that get values: the kept ones.
    return Jaxpr(kept, [*moved, *invars], jaxpr.outvars, jaxpr.eqns, jaxpr.effects, debug, jaxpr.is_high)


def like_param(jaxpr: Any, original: Any) -> Any:
    """The closed Jaxpr without constants, as the parameter that held `original` wants it: open or closed (jax 0.10)."""
    return _inner(jaxpr) if not isinstance(original, JAXPR_TYPES[-1]) else jaxpr


def trace_to_jaxpr(function: Callable[..., Any], avals: Sequence[Any], debug: Any) -> tuple[Any, list[Any]]:
    """Traces a function of flat arrays to an open Jaxpr and its constants; unlike `jax.make_jaxpr`, it takes references."""
    jaxpr, _, consts = pe.trace_to_jaxpr_dynamic(lu.wrap_init(function, debug_info=debug), avals)
    return jaxpr, consts


def debug_info(purpose: str, function: Any, args: Any, kwargs: Any, static: Sequence[int] = ()) -> Any:
    """The names of a function and its arguments, for error messages."""
    return api_util.debug_info(purpose, function, args, kwargs, static_argnums=static)


def unnamed(debug: Any) -> Any:
    """The same function with arguments and results that have no names."""
    return debug.with_unknown_names()


def wrap_like(function: Callable[..., Any], original: Any) -> Any:
    """Wraps a function as JAX wraps the rules in an equation's parameters."""
    return lu.wrap_init(function, debug_info=original.debug_info)


def is_rule(value: Any) -> bool:
    """Whether a parameter is a function as JAX wraps the rules in an equation's parameters."""
    return isinstance(value, lu.WrappedFun)


def call_wrapped(function: Any, *arguments: Any) -> Any:
    """Calls a rule out of an equation's parameters."""
    return function.call_wrapped(*arguments)


def bind_equation(primitive: Any, values: Sequence[Any], params: dict[str, Any]) -> Any:
    """Binds a primitive to the parameters of an equation, which differ from those that `bind` takes for some."""
    return primitive.bind(*values, **primitive.get_bind_params(params))


# --- contexts

current_trace: Callable[[], Any] = lambda: core.trace_ctx.trace


def tracing_context() -> Any:
    """What of the configuration, the mesh and the axis names may change a trace: part of the key of any cache of traces."""
    return config.trace_context()


def source_summary(source_info: Any) -> str:
    """`file.py:12 (function)`, or nothing if the line is unknown."""
    return source_info_util.summarize(source_info)


def current_source_info() -> Any:
    """Where the operation being bound was written."""
    return source_info_util.current()


def manual_axes(params: dict[str, Any]) -> AbstractContextManager[Any]:
    """Enters the body of a `shard_map`: its axis names, its mesh, its checks."""
    stack = ExitStack()
    mesh, axes = params["mesh"], params["newly_manual_axes"]
    stack.enter_context(_shard_map._extend_axis_env(mesh, axes))
    stack.enter_context(_mesh.use_abstract_mesh(_shard_map._as_manual_mesh(mesh, axes)))
    stack.enter_context(config._check_vma(params["check_vma"]))
    return stack


def shard_aval(params: dict[str, Any], spec: Any, aval: Any) -> Any:
    """The type of one shard, inside a `shard_map`."""
    return core.shard_aval(params["mesh"], params["newly_manual_axes"], params["check_vma"], spec, aval)


def varying_axes(aval: Any) -> frozenset[Any]:
    """The manual mesh axes along which a value differs."""
    return frozenset(aval.mat.varying) if isinstance(aval, core.ShapedArray) else frozenset()


def unmapped_spec(aval: Any) -> Any:
    """The spec of a value that every shard sees whole."""
    return _shard_map._repspec(aval)


# --- avals


def cotangent_aval(aval: Any) -> Any:
    """The type of the cotangent of a value. jax 0.10 spells it `to_cotangent_aval` or has tangents alone."""
    convert = getattr(aval, "to_ct_aval", None) or getattr(aval, "to_cotangent_aval", None) or aval.to_tangent_aval
    return convert()


def strip_weak_type(aval: Any) -> Any:
    """The type without the mark of a Python scalar."""
    return aval.strip_weak_type() if hasattr(aval, "strip_weak_type") else aval


def is_array_aval(aval: Any) -> bool:
    """Whether a type is that of an array, not of a reference, a token or a hijax value."""
    return isinstance(aval, core.ShapedArray)


def hide_frames(*paths: str) -> None:
    """Keeps our own frames out of what JAX shows as the user's source lines."""
    for path in paths:
        source_info_util.register_exclusion(path)


hide_frames(__file__)


# --- copying equations into the Jaxpr that is being traced


class _Anchor(weakref.ref):
    """An entry in a frame's list of equations that stands for none, and keeps tracers alive for as long as the frame.

    A frame skips references whose equation is gone. Without its tracer, a constant would be dropped from the frame although
    copied equations read its variable.
    """

    __slots__ = ("tracers",)


class _Gone:
    pass


class EquationCopier:
    """Copies equations into a Jaxpr being traced without binding their primitives: a tenth of the cost of tracing them.

    Written against `DynamicJaxprTrace` and its frame, the same in jax 0.10.2 to 0.12.
    """

    __slots__ = ("_append", "_frame", "_prefix", "_source", "_tracers", "trace")

    def __init__(self, trace: Any):
        self.trace = trace
        self._frame = trace.frame
        self._append = self._frame.tracing_eqns.append
        self._tracers: list[Any] = []
        anchor = _Anchor(_Gone())
        anchor.tracers = self._tracers  # pyright: ignore[reportAttributeAccessIssue]
        self._append(anchor)
        stack = current_name_stack()
        self._prefix = stack if len(stack) else None
        self._source = None

    def atom(self, value: Any, aval: Any) -> Any:
        """The variable or literal of a value of exactly the type `aval` in this trace; None if it has none."""
        trace = self.trace
        if not (isinstance(value, Tracer) and value._trace is trace):
            try:
                if (found := typeof(value)) is not aval and found != aval:
                    return None
                value = trace.to_jaxpr_tracer(canonicalize_value(value), source_info_util.current())
            except TypeError:  # a box
                return None
        if (found := value.aval) is not aval and found != aval:
            return None
        atom = value.val
        if type(atom) is not Literal:
            self._tracers.append(value)
        return atom

    def tracer(self, atom: Any) -> Any:
        """A tracer for a variable of a copied equation."""
        if self._source is None:
            self._source = source_info_util.current()
        return pe.DynamicJaxprTracer(self.trace, atom.aval, atom, self._source)

    def copy(self, equation: Any, invars: list[Any] | None, outvars: list[Any] | None) -> None:
        """Appends an equation; None stands for its own variables."""
        if invars is not None or outvars is not None or self._prefix is not None:
            source, effects = equation.source_info, equation.effects
            if self._prefix is not None:
                source = source.replace(name_stack=self._prefix + source.name_stack)
            if effects and invars is not None:
                effects = _rename_inputs(effects, dict(zip(map(id, equation.invars), invars, strict=True)))
            equation = JaxprEqn(
                equation.invars if invars is None else invars,
                equation.outvars if outvars is None else outvars,
                equation.primitive,
                equation.params,
                effects,
                source,
                equation.ctx,
            )
        self._append(equation)

    def mark_high(self) -> None:
        """Notes that a copied equation has hijax types or primitives."""
        self._frame.is_high = True


def _rename_inputs(effects: Any, renamed: dict[int, Any]) -> Any:
    """Effects on references name the variable of the reference."""
    return {e.replace(renamed.get(id(e.input), e.input)) if hasattr(e, "input") else e for e in effects}


def can_copy_into(trace: Any) -> bool:
    """Whether a Jaxpr is being traced, and hijax primitives need not be expanded in it."""
    return type(trace) is pe.DynamicJaxprTrace and not trace.requires_low


def new_var(aval: Any) -> Any:
    """A fresh variable."""
    return Var(aval)


def sub_jaxprs(params: dict[str, Any]) -> Iterator[Any]:
    """Yields the Jaxprs among an equation's parameters as they stand there, also inside tuples."""
    for value in params.values():
        if isinstance(value, JAXPR_TYPES):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from (item for item in value if isinstance(item, JAXPR_TYPES))


def replace_sub_jaxprs(params: dict[str, Any], jaxprs: Sequence[Any]) -> dict[str, Any]:
    """An equation's parameters with other Jaxprs, in the order in which `sub_jaxprs` yields them."""
    rest = iter(jaxprs)

    def replaced(value: Any) -> Any:
        if isinstance(value, JAXPR_TYPES):
            return next(rest)
        if isinstance(value, (tuple, list)) and any(isinstance(item, JAXPR_TYPES) for item in value):
            return type(value)(next(rest) if isinstance(item, JAXPR_TYPES) else item for item in value)
        return value

    return {name: replaced(value) for name, value in params.items()}


def reset_output_stores(functions: Sequence[Any]) -> None:
    """Empties the primal's store of the output tree if that of its derivative rule is full: JAX wants exactly one of them.

    Under `grad` in the final style the rule has run already when the primal returns.
    """
    primal, *rules = functions
    if rules and hasattr(primal, "stores") and any(map(_is_filled, rules[0].stores)):
        for store in primal.stores:
            if store is not None:
                store.reset()


def _is_filled(store: Any) -> bool:
    try:
        return store is not None and (store.val, True)[1]
    except lu.StoreException:
        return False


def with_equations(jaxpr: Any, invars: Sequence[Any], outvars: Sequence[Any], eqns: Sequence[Any]) -> Any:
    """The Jaxpr with other equations and results, and more inputs before its own; constants, effects and names stay."""
    inner = _inner(jaxpr)
    debug, more = inner.debug_info, len(invars) - len(inner.invars)
    if more and debug.arg_names is not None:
        debug = debug._replace(arg_names=("",) * more + tuple(debug.arg_names))
    parts = (list(inner.constvars), list(invars), list(outvars), list(eqns), inner.effects, debug)
    if len(JAXPR_TYPES) == 1:
        made: Any = Jaxpr
        return made(*parts, inner.is_high, consts=list(jaxpr.consts))
    opened = Jaxpr(*parts, inner.is_high)
    return opened if inner is jaxpr else _CLOSED(opened, jaxpr.consts)


def new_equation(equation: Any, invars: Sequence[Any], outvars: Sequence[Any], **changes: Any) -> Any:
    """An equation in the place of another: its source, context and effects; `primitive` and `params` may be changed."""
    return equation.replace(invars=list(invars), outvars=list(outvars), **changes)


def first_equation(invars: Sequence[Any], outvars: Sequence[Any], primitive: Any, params: dict[str, Any]) -> Any:
    """An equation without effects where there is no other whose place it could share."""
    return core.new_jaxpr_eqn(
        list(invars), list(outvars), primitive, params, core.no_effects, source_info_util.current()
    )


def drop_outputs(jaxpr: Any, count: int) -> Any:
    """The Jaxpr without its last outputs."""
    inner = _inner(jaxpr)
    keep = len(inner.outvars) - count
    debug = inner.debug_info
    debug = debug._replace(result_paths=None) if debug.result_paths is None else unnamed(debug)
    short = inner.replace(outvars=inner.outvars[:keep], debug_info=debug)
    return short if inner is jaxpr else _CLOSED(short, jaxpr.consts)


def constants_first(jaxpr: Any, count: int) -> Any:
    """The open Jaxpr with its first arguments as the constant variables that a rule's Jaxpr has."""
    inner = _inner(jaxpr)
    if len(JAXPR_TYPES) == 1 or not count:  # in jax 0.12, constant variables without values are arguments
        return inner
    debug = inner.debug_info
    names = debug.arg_names and debug.arg_names[count:]
    return inner.replace(
        constvars=inner.invars[:count], invars=inner.invars[count:], debug_info=debug._replace(arg_names=names)
    )


def dce_jaxpr(jaxpr: Any) -> Any:
    """The Jaxpr without equations whose results nobody reads; all inputs stay."""
    inner = _inner(jaxpr)
    consts = getattr(jaxpr, "consts", ())
    opened = pe.convert_constvars_jaxpr(inner) if consts or inner.constvars else inner
    return pe.dce_jaxpr(opened, [True] * len(opened.outvars), True)[0]


def scan_groups(params: dict[str, Any]) -> tuple[int, int]:
    """How many of a `scan`'s operands are constants, and how many the carry. jax 0.12 keeps them in trees."""
    if "num_carry" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()
    return len(consts), len(carry)


def scan_params(consts: int, carry: int, xs: int, ys: int) -> dict[str, Any]:
    """The parameters of a `scan` that count its operands and results."""
    if jax.__version_info__ < (0, 11):
        return {"num_consts": consts, "num_carry": carry}
    from jax._src import flattree as ft  # pyright: ignore[reportAttributeAccessIssue]  (jax 0.12)

    def groups(*sizes: int) -> Any:
        return ft.pack(tuple(ft.nones(size) for size in sizes))

    return {"ft_in": groups(consts, carry, xs), "ft_out": groups(carry, ys)}


# --- hijax objects


_expanded: dict[int, Any] = {}


def expand_hijax(hijax: Any) -> Any:
    """The closed Jaxpr that a hijax primitive stands for, the same for the same object."""
    known = _expanded.get(id(hijax))
    if known is None:

        def run(*leaves: Any) -> list[Any]:
            return jax.tree.leaves(hijax.expand(*jax.tree.unflatten(hijax.in_tree, leaves)))

        avals = hijax.in_avals_flat
        known = close_jaxpr(*trace_to_jaxpr(run, avals, debug_info("expand", run, avals, {})))
        _expanded[id(hijax)] = known
        weakref.finalize(hijax, _expanded.pop, id(hijax), None)
    return known


def is_traced(value: Any) -> bool:
    """Whether a parameter is what `jax.jit(f).trace(...)` returns."""
    return isinstance(value, jax.stages.Traced)


def replace_traced_jaxpr(traced: Any, jaxpr: Any) -> Any:
    """A `jax.stages.Traced` with another program of the same types."""
    made = copy.copy(traced)
    made._params = {**traced._params, "jaxpr": jaxpr}
    made._lojax = None
    if hasattr(made, "_closure_converted"):  # jax 0.12
        made._closure_converted = None
    return made


def replace_hijax_params(hijax: Any, params: dict[str, Any]) -> Any:
    """A hijax primitive with some parameters replaced by others of the same types."""
    made = copy.copy(hijax)
    made.params = {**hijax.params, **params}
    made.__dict__.update(made.params)
    return made
