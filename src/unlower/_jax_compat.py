"""The one file that touches `jax._src`, `jax.extend` and `jaxlib`: everything private that `unlower` needs of JAX.

Supported: jax 0.10.2 to 0.12. Each shim states its versions and when it can go.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax._src import ad_util, core, dispatch, effects, source_info_util, tree_util
from jax._src import api as _api
from jax._src import compiler as _compiler
from jax._src import literals as _literals
from jax._src.export import _export
from jax._src.interpreters import mlir
from jax._src.lax import lax as _lax
from jax._src.lax import linalg as _linalg
from jax._src.lib import _jax as _jaxlib
from jax._src.lib import xla_client as _xla_client
from jax._src.lib.mlir import ir as mlir_ir
from jax._src.lib.mlir.dialects import hlo as mlir_hlo
from jax.extend.core import primitives
from jaxlib import _hlo  # pyright: ignore[reportAttributeAccessIssue]  (no stubs)
from jaxlib.cpu import _lapack

from unlower.errors import UnsupportedOpError

__all__ = [
    "JaxprEqn",
    "JaxprParts",
    "Literal",
    "Tracer",
    "Var",
    "closed_jaxpr",
    "core",
    "equation_context",
    "eval_closed_jaxpr",
    "jit_equation_params",
    "jit_p",
    "mlir",
    "mlir_hlo",
    "mlir_ir",
    "open_closed_jaxpr",
    "primitives",
    "scoped_source_info",
    "shaped_array",
]

# --- Jaxprs: taken apart, and built from equations

Var = core.Var
Literal = core.Literal
Tracer = core.Tracer
JaxprEqn = core.JaxprEqn


class JaxprParts(NamedTuple):
    """A closed Jaxpr, taken apart: the same fields on every JAX version."""

    invars: Sequence[Any]
    outvars: Sequence[Any]
    eqns: Sequence[Any]
    constvars: Sequence[Any]
    consts: Sequence[Any]


def _inner_jaxpr(closed: Any) -> Any:
    """The Jaxpr inside a closed one. jax 0.10 has a class ClosedJaxpr; 0.12 keeps `consts` in Jaxpr itself."""
    return closed.jaxpr if hasattr(core, "ClosedJaxpr") and isinstance(closed, core.ClosedJaxpr) else closed


def open_closed_jaxpr(closed: Any) -> JaxprParts:
    """Takes a closed Jaxpr apart."""
    inner = _inner_jaxpr(closed)
    return JaxprParts(inner.invars, inner.outvars, inner.eqns, inner.constvars, closed.consts)


def closed_jaxpr(parts: JaxprParts, name: str, effects: frozenset[Any] = frozenset()) -> Any:
    """Builds a closed Jaxpr from its parts. The class differs as in `_inner_jaxpr`."""
    names = tuple(f"arg{i}" for i in range(len(parts.invars)))
    paths = tuple(f"result[{i}]" for i in range(len(parts.outvars)))
    debug = core.DebugInfo("unlower", name, names, paths)
    arguments = (list(parts.constvars), list(parts.invars), list(parts.outvars), list(parts.eqns), effects, debug)
    if hasattr(core, "ClosedJaxpr"):
        return core.ClosedJaxpr(core.Jaxpr(*arguments), list(parts.consts))
    return core.Jaxpr(*arguments, consts=list(parts.consts))  # pyright: ignore[reportCallIssue]  (jax 0.12)


def shaped_array(shape: tuple[int, ...], dtype: np.dtype) -> Any:
    """The abstract value of an array."""
    return core.ShapedArray(shape, dtype)


def equation_context() -> Any:
    """What an equation records of the configuration around it (mesh, compute type, ...)."""
    return core.JaxprEqnContext()


@functools.lru_cache(maxsize=65536)
def scoped_source_info(scope: str) -> Any:
    """The source info of an equation under the name scope `scope`, `/` between its parts."""
    stack = source_info_util.new_name_stack()
    for part in scope.split("/") if scope else ():
        stack = stack.extend(part)
    return source_info_util.SourceInfo(None, stack)


def eval_closed_jaxpr(closed: Any, *arguments: Any) -> list[Any]:
    """Evaluates a closed Jaxpr equation by equation, under whatever trace is current."""
    return core.eval_jaxpr(_inner_jaxpr(closed), closed.consts, *arguments)


@functools.lru_cache(maxsize=1)
def _jit_example() -> Any:
    (equation,) = open_closed_jaxpr(jax.make_jaxpr(jax.jit(lambda x: -x))(np.float32(0))).eqns
    return equation


jit_p = primitives.jit_p if hasattr(primitives, "jit_p") else _jit_example().primitive


def jit_equation_params(closed: Any, inputs: int, outputs: int, name: str) -> dict[str, Any]:
    """The parameters of a `jit` equation around `closed`: nothing specified, nothing donated.

    Taken from a traced example, since their number grows with releases.
    """
    params = dict(_jit_example().params)
    for key in ("in_shardings", "in_layouts", "donated_invars"):
        params[key] = params[key] * inputs
    for key in ("out_shardings", "out_layouts"):
        params[key] = params[key] * outputs
    return params | {"jaxpr": closed, "name": name}


INLINED: Any = getattr(getattr(_api, "Inline", None), "JAX_LATE", True)
"""The `inline` parameter of a `jit` equation whose body is lowered in place: no function of its own in the module.

jax 0.12 does so while lowering; 0.10 knows only to copy the equations when the call is staged.
"""


# --- MLIR: contexts, parsing and conversion


def convert_hlo_to_stablehlo(module: bytes) -> bytes:
    """Converts a serialized HloModuleProto to MLIR bytecode; raises JaxRuntimeError."""
    return _jaxlib.mlir.hlo_to_stablehlo(module)


# --- evaluate: constants in equations, custom-call registration

splat_p = primitives.broadcast_in_dim_p


def canonical_constant(array: np.ndarray) -> Any:
    """Wraps an array as JAX wraps those a Jaxpr closes over: its dtype is what it says, whatever the x64 flag."""
    return _literals.TypedNdArray(array)


@functools.cache
def _splat_example() -> dict[str, Any]:
    return traced_params(lambda x: jax.lax.broadcast_in_dim(x, (2,), ()), np.float32(0))


def splat_equation_params(shape: tuple[int, ...]) -> dict[str, Any]:
    """The parameters of the equation that spreads a scalar over `shape`."""
    return _splat_example() | {"shape": shape, "broadcast_dimensions": ()}


# --- readers: parsing text and bytecode


def new_mlir_context() -> Any:
    """Creates an MLIR context of one's own. jax 0.12 hands one context out ten times, and what is read would live on in it."""
    create = getattr(mlir, "_create_ir_context", mlir.make_ir_context)
    return create()


@contextlib.contextmanager
def collect_diagnostics(context: Any) -> Iterator[list[str]]:
    """Collects what MLIR would print to stderr while it reads bytecode."""
    messages: list[str] = []

    def collect(diagnostic: Any) -> bool:
        try:
            messages.append(diagnostic.message)
        except RuntimeError:  # it quotes a name that is not UTF-8
            messages.append("a name that is not UTF-8")
        return True

    handler = context.attach_diagnostic_handler(collect)
    try:
        yield messages
    finally:
        handler.detach()


def hlo_text_to_proto(text: str) -> bytes:
    """Parses HLO text and serializes it as an HloModuleProto; raises JaxRuntimeError. The same in jaxlib 0.10 to 0.12."""
    return _hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()


def deserialize_portable_artifact(context: Any, artifact: bytes) -> Any:
    """Deserializes a StableHLO portable artifact (VHLO bytecode) to a module; raises ValueError."""
    return mlir_hlo.deserialize_portable_artifact(context, artifact)


def current_stablehlo_version() -> str:
    """Returns the StableHLO version that this jaxlib writes, the newest that it promises to read."""
    return mlir_hlo.get_current_version()


# --- verification: running a module as it is


def compile_with_xla(module: str | bytes) -> Any:
    """Compiles a StableHLO module (text, bytecode or portable artifact) as `jax.jit` would compile its own.

    The executable takes and returns lists of arrays on the first device. The same in jax 0.10 to 0.12; it can go once JAX has a
    public way to compile a module. A module after XLA's optimisations can abort the process here.
    """
    # JAX's own lowering would see to this.
    initialize_lapack()
    device = jax.local_devices()[0]
    options = _compiler.get_compile_options(num_replicas=1, num_partitions=1, detailed_logging=False)
    executable = device.client.compile_and_load(module, _xla_client.DeviceList((device,)), options)

    def run(arguments: Sequence[Any]) -> list[Any]:
        placed = [jax.device_put(argument, device) for argument in arguments]
        results = executable.execute_sharded(placed).disassemble_into_single_device_arrays()
        return jax.block_until_ready([result[0] for result in results])

    return run


# --- ops: primitives of our own


zero_tangent = ad_util.p2tz
"""The symbolic zero tangent of a value; no public name."""


class OpEffect(effects.Effect):
    """The effect of an operation that must run although nobody reads its results."""

    def __str__(self) -> str:
        return "unlower"


for _allowed in (
    "lowerable",
    "control_flow_allowed",
    "remat_allowed",
    "custom_derivatives_allowed",
    "partial_eval_kept",
):
    getattr(effects, f"{_allowed}_effects").add_type(OpEffect)


def new_primitive(name: str, *, several: bool = True) -> Any:
    """Creates a primitive with several results, or with one, that runs eagerly by compiling itself."""
    primitive = core.Primitive(name)
    primitive.multiple_results = several
    primitive.def_impl(functools.partial(dispatch.apply_primitive, primitive))
    return primitive


def result_aval(operands: Sequence[Any], shape: tuple[int, ...], dtype: np.dtype) -> Any:
    """The abstract value of a result: inside a shard_map it varies along every axis along which an operand does."""
    like = next(
        (operand for operand in operands if isinstance(operand, core.ShapedArray) and operand.mat.varying), None
    )
    if like is None:
        return core.ShapedArray(shape, dtype)
    varying = frozenset().union(*(operand.mat.varying for operand in operands if isinstance(operand, core.ShapedArray)))
    sharding = like.sharding.update(spec=jax.sharding.PartitionSpec(*[None] * len(shape)))
    mat = like.mat.update(varying=varying)
    return core.ShapedArray(shape, dtype, sharding=sharding, manual_axis_type=mat)


def lower_to_block(context: Any, block: Any, closed: Any, captured: Sequence[Any], terminator: str) -> None:
    """Lowers a closed Jaxpr into an MLIR block whose arguments are the Jaxpr's last; `captured` are MLIR values, its first."""
    if closed.effects:
        # A region has no token to thread an effect through; JAX refuses effects in its own reductions as well.
        raise UnsupportedOpError(
            f"an operation with side effects inside a region that is re-emitted ({closed.effects})",
            mend="move the effect out of the region, or give the operation around it a rule of your own through rules=",
        )
    with mlir_ir.InsertionPoint(block):
        results, _ = mlir.jaxpr_subcomp(
            context.module_context,
            _inner_jaxpr(closed),
            source_info_util.new_name_stack(),
            mlir.TokenSet(),
            [mlir.ir_constant(np.asarray(const)) for const in closed.consts],
            *captured,
            *block.arguments,
            dim_var_values=context.dim_var_values,
            const_lowering=context.const_lowering,
            outer_traceback=context.traceback,
        )
        mlir_ir.Operation.create(terminator, operands=results)  # pyright: ignore[reportArgumentType]  (a value each)


def traced_params(function: Any, *structs: Any) -> dict[str, Any]:
    """The parameters of the one equation that `function` traces to on arrays like `structs`.

    Primitives gain parameters between releases (`out_sharding` of the reductions, `is_stable` of top_k), so a rule takes
    those of an example and replaces the ones it knows.
    """
    (equation,) = open_closed_jaxpr(jax.make_jaxpr(function)(*structs)).eqns
    return dict(equation.params)


def max_identity(dtype: np.dtype) -> np.ndarray:
    """What `reduce_max` starts from: minus infinity where the type has one, else its least value. No public name."""
    return _lax._get_max_identity(dtype)


def min_identity(dtype: np.dtype) -> np.ndarray:
    """What `reduce_min` starts from; see `max_identity`."""
    return _lax._get_min_identity(dtype)


def sort_comparator(dtypes: Sequence[np.dtype], num_keys: int) -> Any:
    """The closed Jaxpr of the comparator that `lax.sort` lowers to: two scalars of each dtype in, a boolean out."""
    scalars = [core.ShapedArray((), dtype) for dtype in dtypes for _ in range(2)]
    return jax.make_jaxpr(functools.partial(_lax._sort_lt_comparator, num_keys=num_keys))(*scalars)


def lower_to_function(context: Any, name: str, closed: Any, terminator: str) -> Any:
    """Lowers a closed Jaxpr to a private function of the module and returns its symbol.

    `terminator` is how it returns; a function that is only named by a custom call ends as a region does.
    """
    inputs = [mlir.aval_to_ir_type(context.module_context, aval) for aval in closed.in_avals]
    outputs = [mlir.aval_to_ir_type(context.module_context, aval) for aval in closed.out_avals]
    with mlir_ir.InsertionPoint(context.module_context.module.body):
        function = mlir_ir.Operation.create(
            "func.func",
            attributes={
                "sym_name": mlir_ir.StringAttr.get(name),
                "sym_visibility": mlir_ir.StringAttr.get("private"),
                "function_type": mlir_ir.TypeAttr.get(mlir_ir.FunctionType.get(inputs, outputs)),
            },
            regions=1,
        )
        lower_to_block(context, function.regions[0].blocks.append(*inputs), closed, (), terminator)
    context.module_context.symbol_table.insert(function)
    return mlir_ir.FlatSymbolRefAttr.get(mlir_ir.StringAttr(function.attributes["sym_name"]).value)


# --- ops: primitives whose parameters differ between releases


@functools.cache
def with_sharding_none(primitive: Any) -> Any:
    """Returns `primitive.bind` with `sharding=None`, which broadcast, reshape and iota take (jax 0.10 to 0.12)."""
    return functools.partial(primitive.bind, sharding=None)


mulhi_p = _lax.mulhi_p
"""The high half of an integer product; not exported by jax 0.10 to 0.12."""


HLO_HAS_HYPERBOLIC_FUNCTIONS = jax.__version_info__ >= (0, 12)
"""Whether XLA compiles HLO's acos, acosh, asin, asinh, atanh, cosh and sinh on the CPU: jaxlib 0.12 does, 0.10 does not."""


# --- ops: custom-call targets


def initialize_lapack() -> None:
    """Loads the LAPACK kernels, which are empty pointers until then. The same in jax 0.10 to 0.12."""
    _linalg.initialize_lapack()


def lapack_kernels() -> Iterator[str]:
    """Yields the custom-call targets of jaxlib's LAPACK kernels. The same in jaxlib 0.10 to 0.12."""
    yield from _lapack.registrations()


def is_registered_target(name: str) -> bool:
    """Whether this process can run a custom call of that target, on any platform. The same in jaxlib 0.10 to 0.12.

    Python callbacks are left out: the number in their config is a place in a table of the process that traced the program,
    where this process may have another function, or nothing.
    """
    if "callback" in name:
        return False
    return any(name in _xla_client.custom_call_targets(platform) for platform in ("cpu", "CUDA", "ROCM"))


geqrf, geqp3 = _linalg.geqrf, _linalg.geqp3
"""QR factorizations that stay packed, as LAPACK's; not exported by jax 0.10 to 0.12."""


optimization_barrier_p = _lax.optimization_barrier_p
"""Binds several arrays together; exported by jax 0.10 but not by 0.12."""


CHOLESKY_READS_A_TRIANGLE = jax.__version_info__ >= (0, 11)
"""Whether the derivative of JAX's Cholesky reads one triangle of its tangent, as jax 0.12 does and 0.10 does not."""


ragged_dot_in_lax = _lax._ragged_dot_general_impl
"""What `ragged_dot_general` expands to on the CPU, with the same arguments; not exported by jax 0.10 to 0.12."""


# --- readers: what HLO's converter knows


HLO_PARSER_CHECKS = jax.__version_info__ >= (0, 12)
"""Whether HLO's text parser counts operands and elements: that of jaxlib 0.12 does, 0.10 ends the process on some."""


HLO_HAS_EXP2 = jax.__version_info__ >= (0, 12)
"""Whether HLO's text parser knows `exp2` and `log2`: that of jaxlib 0.12 does, 0.10 does not."""


HLO_HAS_FLOAT6 = jax.__version_info__ >= (0, 12)
"""Whether HLO has element types of six bits: those of jaxlib 0.12 do, 0.10 does not."""


NATIVE_ERRORS = (RuntimeError, ValueError, IndexError, OverflowError)
"""What the bindings of XLA and MLIR raise: errors of the libraries' own, and C++ exceptions on their way through."""


def is_dictionary_attribute(text: str) -> bool:
    """Whether MLIR reads `text` as a dictionary attribute, which XLA's converter supposes of it without a look."""
    context = mlir_ir.Context()
    with context, collect_diagnostics(context):
        try:
            return isinstance(mlir_ir.Attribute.parse(text), mlir_ir.DictAttr)
        except (mlir_ir.MLIRError, *NATIVE_ERRORS):
            return False


# --- signature: trees, and what JAX knows of exported and lowered functions


def registered_node(name: str, data: bytes) -> Callable[[Sequence[Any]], Any] | None:
    """Returns what builds a node of the class registered with jax.export under `name`, or None.

    `data` is what the class's own `serialize_auxdata` wrote, and is read by its `deserialize_auxdata` only when a node is
    built. The same in jax 0.10 to 0.12; no public way to the registry.
    """
    found = _export.deserialization_registry.get(name)
    if found is None:
        return None
    _, deserialize, from_children = found
    return lambda children: from_children(deserialize(data), list(children))


def node_builder(definition: Any) -> Callable[[Sequence[Any]], Any]:
    """Returns what builds the top node of a tree structure from its children.

    The same in jaxlib 0.10 to 0.12; the registry has no public name.
    """
    leaf = jax.tree_util.tree_structure(0)
    children = [leaf] * len(definition.children())
    return leaf.from_node_data_and_children(tree_util.default_registry, definition.node_data(), children).unflatten


def kept_arguments(lowered: Any) -> tuple[int, ...] | None:
    """Returns the flat arguments that a lowered function kept, or None where it does not say.

    No public name in jax 0.10 to 0.12.
    """
    kept = getattr(getattr(lowered, "_lowering", None), "compile_args", {}).get("kept_var_idx")
    return None if kept is None else tuple(sorted(kept))


def exported_shardings(exported: Any) -> tuple[Sequence[Any], Sequence[Any]]:
    """Returns the shardings of the flat arguments and results of a live `Exported`, None where there is none.

    Each has a `spec` and a `mesh`. The same in jax 0.10 to 0.12; the public methods want a mesh of real devices in 0.10.
    """
    return exported._in_named_shardings, exported._out_named_shardings


# --- verification: originals with symbolic sizes


def refine_shapes(module: Any) -> bytes:
    """Computes the sizes in an MLIR module from those of its arguments, as JAX does before it compiles an export.

    Raises ValueError where it cannot. The same in jaxlib 0.10 to 0.12.
    """
    return _jaxlib.mlir.refine_polymorphic_shapes(
        mlir.module_to_bytecode(module), enable_shape_assertions=True, validate_static_shapes=True, enable_shardy=False
    )
