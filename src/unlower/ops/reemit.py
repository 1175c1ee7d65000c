"""A primitive of our own for what `lax` cannot say: its lowering re-emits the very operation.

`reemit` binds it. An operation that comes out this way always batches, at worst by a loop over the batch, and differentiates
where its family has filed a rule in one of the tables here, keyed by op name or custom-call target. Rules receive the `Call`,
which knows everything but the operands, and which `Call.bind` binds again, usually changed by `Call.replace`.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
from jax import lax
from jax.interpreters import ad, batching

from unlower._jax_compat import (
    OpEffect,
    lower_to_block,
    lower_to_function,
    mlir,
    mlir_ir,
    new_primitive,
    result_aval,
    zero_tangent,
)
from unlower._registry import Registry
from unlower.errors import UnlowerError
from unlower.ir.module import CUSTOM_CALLS, Op
from unlower.ir.printer import format_attribute
from unlower.ir.types import TensorType

__all__ = [
    "Attributes",
    "Call",
    "batch_by_loop",
    "batching_rule",
    "equivalent",
    "is_differentiable",
    "jvp_of_moving",
    "jvp_rule",
    "materialize_batch",
    "move_batch",
    "none_for_zero",
    "partial_jvp",
    "reemit",
    "transpose_rule",
    "transpose_through",
    "types_of",
]


_batching_rules = Registry("batching")
_jvp_rules = Registry("jvp")
_transpose_rules = Registry("transpose")


class Attributes(Mapping[str, Any]):
    """Attributes of an operation, frozen: equal and hashed by MLIR's spelling, which tells `3 : i32` from `3 : i64`."""

    __slots__ = ("_values", "text")

    def __init__(self, values: Mapping[str, Any], dialect: str = "stablehlo"):
        self._values = dict(values)
        self.text = tuple(sorted((name, format_attribute(value, dialect)) for name, value in values.items()))

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Attributes) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"{{{', '.join(f'{name} = {text}' for name, text in self.text)}}}"


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """An operation without its operands.

    Attributes:
      name: the op name.
      result_types: types of its results.
      attributes: what it says beside its operands.
      regions: closed Jaxprs, one a region, each taking its captures and then the block's arguments. Those of a custom
        call are the functions it names in `called_computations`.
      captures: how many captures each region has; their values follow the operands in `bind`, region by region.
    """

    name: str
    result_types: tuple[TensorType, ...]
    attributes: Attributes
    regions: tuple[Any, ...] = ()
    captures: tuple[int, ...] = ()

    @property
    def key(self) -> str:
        """The name under which rules are filed: a custom call's target, else the op name."""
        return str(self.attributes["call_target_name"]) if self.name in CUSTOM_CALLS else self.name

    def bind(self, *operands: Any) -> tuple[Any, ...]:
        """Emits the operation on operands, which the regions' captures follow."""
        params = {field: getattr(self, field) for field in _FIELDS}
        return tuple(reemit_p.bind(*operands, **params))

    def replace(self, *, attributes: Mapping[str, Any] | None = None, **fields: Any) -> "Call":
        """Returns a changed copy; `attributes` are merged into those that are there."""
        if attributes:
            fields["attributes"] = Attributes({**self.attributes, **attributes}, self.name.partition(".")[0])
        return dataclasses.replace(self, **fields)

    def batched(self, size: int, *, at: int = 0, attributes: Mapping[str, Any] | None = None) -> "Call":
        """Returns a copy whose results have one more dimension of `size`, at position `at`."""
        types = [TensorType((*t.shape[:at], size, *t.shape[at:]), t.element) for t in self.result_types]
        return self.replace(result_types=tuple(types), attributes=attributes)

    def __repr__(self) -> str:
        return f"<{self.key} {self.attributes}>"


_FIELDS = tuple(field.name for field in dataclasses.fields(Call))


def reemit(
    name: str,
    operands: Sequence[Any],
    result_types: Sequence[TensorType],
    attributes: Mapping[str, Any],
    regions: Sequence[Any] = (),
    captures: Sequence[Sequence[Any]] = (),
) -> tuple[Any, ...]:
    """Binds the primitive whose lowering is the operation `name` itself.

    Args:
      name: the op name, e.g. `"stablehlo.sort"`.
      operands: arrays.
      result_types: static tensor types, one for each result.
      attributes: as in `ir.Op`; a custom call whose `has_side_effect` is true runs even if nobody reads its results.
      regions: closed Jaxprs that take captures and then the block's arguments, as `Subprogram.jaxpr` returns them.
      captures: the captured values of each region; none by default.

    Returns:
      the results, one array each.
    """
    captures = captures or [()] * len(regions)
    frozen = Attributes(attributes, name.partition(".")[0])
    call = Call(name, tuple(result_types), frozen, tuple(regions), tuple(map(len, captures)))
    return call.bind(*operands, *(value for values in captures for value in values))


def batching_rule(*names: str) -> Callable[[Any], Any]:
    """Registers `rule(call, size, operands, dims) -> (results, result_dims)`; `dims` holds None for what is not batched."""
    return _batching_rules.register(*names)


def jvp_rule(*names: str) -> Callable[[Any], Any]:
    """Registers `rule(call, primals, tangents) -> (results, result_tangents)`; None stands for a tangent that is zero."""
    return _jvp_rules.register(*names)


def is_differentiable(call: Call) -> bool:
    """Whether a derivative can pass the operation."""
    return _jvp_rules.get(call.key) is not None


def transpose_rule(*names: str) -> Callable[[Any], Any]:
    """Registers `rule(call, cotangents, operands) -> operand_cotangents`, for operations that tangents flow through.

    A zero cotangent is None, on both sides; linear operands arrive as `jax.interpreters.ad.UndefinedPrimal`.
    """
    return _transpose_rules.register(*names)


def equivalent(*names: str, batches: bool = False) -> Callable[[Any], Any]:
    """Registers `function(call, *operands) -> results`, the operation's meaning in `lax`, for its derivative.

    Args:
      *names: op names or custom-call targets.
      batches: use it under `vmap` too, where it gives the same bits as the operation.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        def differentiate(call: Call, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
            return call.bind(*primals), partial_jvp(lambda *xs: function(call, *xs), primals, tangents)

        def batch(call: Call, size: int, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
            del size
            results = jax.vmap(lambda *xs: tuple(function(call, *xs)), in_axes=tuple(dims))(*operands)
            return results, (0,) * len(results)

        _jvp_rules.register(*names)(differentiate)
        _transpose_rules.register(*names)(transpose_through(function))
        if batches:
            _batching_rules.register(*names)(batch)
        return function

    return decorate


def transpose_through(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the transpose rule of an operation that means `function(call, *operands) -> results` and is linear."""

    def rule(call: Call, cotangents: Sequence[Any], operands: Sequence[Any]) -> list[Any]:
        linear = [i for i, operand in enumerate(operands) if ad.is_undefined_primal(operand)]

        # Integers among the results carry no cotangent.
        flowing = [
            i for i, type_ in enumerate(call.result_types) if jax.numpy.issubdtype(type_.dtype, jax.numpy.inexact)
        ]

        def of_linear(*values: Any) -> tuple[Any, ...]:
            full = list(operands)
            for i, value in zip(linear, values, strict=True):
                full[i] = value
            results = function(call, *full)
            return tuple(results[i] for i in flowing)

        structs = [jax.ShapeDtypeStruct(operands[i].aval.shape, operands[i].aval.dtype) for i in linear]
        zeros = {i: lax.full(call.result_types[i].shape, 0, call.result_types[i].dtype) for i in flowing}
        given = [zeros[i] if cotangents[i] is None else cotangents[i] for i in flowing]
        found = dict(zip(linear, jax.linear_transpose(of_linear, *structs)(tuple(given)), strict=True))
        return [found.get(i) for i in range(len(operands))]

    return rule


def jvp_of_moving(
    function: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Pushes the tangents that are not None through `function`; returns its results and their tangents, as `jax.jvp` does."""
    moving = [i for i, tangent in enumerate(tangents) if tangent is not None]

    def of_moving(*values: Any) -> tuple[Any, ...]:
        full = list(primals)
        for i, value in zip(moving, values, strict=True):
            full[i] = value
        return tuple(function(*full))

    return jax.jvp(of_moving, [primals[i] for i in moving], [tangents[i] for i in moving])


def partial_jvp(function: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, ...]:
    """Pushes the tangents that are not None through `function`; returns the tangents of its results, None where zero."""
    return none_for_zero(jvp_of_moving(function, primals, tangents)[1])


def none_for_zero(tangents: Sequence[Any]) -> tuple[Any, ...]:
    """Puts None in the place of the tangents of integers."""
    return tuple(None if tangent.dtype == jax.dtypes.float0 else tangent for tangent in tangents)


def types_of(op: Op, *shapes: Sequence[int]) -> tuple[TensorType, ...]:
    """The types of an operation's results, given their shapes where the module may not know them."""
    pairs = zip(op.types, shapes, strict=True)
    return tuple(type_ if type_.is_static else TensorType(tuple(shape), type_.element) for type_, shape in pairs)


def _abstract(*operands: Any, **params: Any) -> tuple[list[Any], frozenset[Any]]:
    call = Call(**params)
    avals = [result_aval(operands, type_.shape, type_.dtype) for type_ in call.result_types]
    return avals, frozenset({_EFFECT}) if call.attributes.get("has_side_effect") else frozenset()


def _lower(context: Any, *values: Any, **params: Any) -> Sequence[Any]:
    call = Call(**params)
    count = len(values) - sum(call.captures)
    attributes = {name: mlir_ir.Attribute.parse(text) for name, text in call.attributes.text}
    # CHLO has no terminator of its own.
    terminator = "mhlo.return" if call.name.startswith("mhlo.") else "stablehlo.return"
    regions: tuple[Any, ...] = call.regions
    if call.name in CUSTOM_CALLS and regions:
        # A custom call has no regions of its own: it names functions of the module.
        names = call.attributes["called_computations"]
        called = [lower_to_function(context, str(n), r, terminator) for n, r in zip(names, regions, strict=True)]
        attributes["called_computations"] = mlir_ir.ArrayAttr.get(called)
        regions = ()
    op = mlir_ir.Operation.create(
        call.name,
        results=[mlir_ir.Type.parse(str(type_)) for type_ in call.result_types],
        operands=values[:count],
        attributes=attributes,
        regions=len(regions),
    )
    for region, closed, captured in zip(op.regions, regions, call.captures, strict=False):
        inputs = [mlir.aval_to_ir_type(context.module_context, aval) for aval in closed.in_avals]
        block = region.blocks.append(*inputs[captured:])
        lower_to_block(context, block, closed, values[count : count + captured], terminator)
        count += captured
    return op.results


def _batch(
    operands: Sequence[Any], dims: Sequence[int | None], **params: Any
) -> tuple[Sequence[Any], Sequence[int | None]]:
    call = Call(**params)
    size = next(x.shape[dim] for x, dim in zip(operands, dims, strict=True) if dim is not None)
    rule = _batching_rules.get(call.key)
    if rule is not None:
        return rule(call, size, operands, dims)
    return batch_by_loop(call, size, operands, dims)


def batch_by_loop(
    call: Call, size: int, operands: Sequence[Any], dims: Sequence[int | None]
) -> tuple[Sequence[Any], Sequence[int | None]]:
    """Batches any operation: runs it on each element of the batch in turn."""
    del size
    batched = [i for i, dim in enumerate(dims) if dim is not None]

    def one(values: Sequence[Any]) -> tuple[Any, ...]:
        full = list(operands)
        for i, value in zip(batched, values, strict=True):
            full[i] = value
        return call.bind(*full)

    results = lax.map(one, tuple(move_batch(operands[i], dims[i]) for i in batched))
    return results, (0,) * len(results)


def move_batch(operand: Any, dim: int | None, to: int = 0) -> Any:
    """Moves the batch dimension `dim` of an operand to position `to`."""
    if dim == to or dim is None:
        return operand
    order = [i for i in range(operand.ndim) if i != dim]
    order.insert(to, dim)
    return lax.transpose(operand, order)


def materialize_batch(operand: Any, dim: int | None, size: int, to: int = 0) -> Any:
    """Moves the batch dimension to position `to`, or makes one there by repetition."""
    if dim is not None:
        return move_batch(operand, dim, to)
    shape = (*operand.shape[:to], size, *operand.shape[to:])
    return lax.broadcast_in_dim(operand, shape, [i for i in range(len(shape)) if i != to])


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Sequence[Any], Sequence[Any]]:
    call = Call(**params)
    flat = [None if type(t) is ad.Zero or t.dtype == jax.dtypes.float0 else t for t in tangents]
    differentiable = any(jax.numpy.issubdtype(type_.dtype, jax.numpy.inexact) for type_ in call.result_types)
    if not differentiable or all(tangent is None for tangent in flat):
        results, out = call.bind(*primals), [None] * len(call.result_types)
    else:
        rule = _jvp_rules.get(call.key)
        if rule is None:
            raise UnlowerError(
                f"{call.key} has no derivative",
                where=f"{call!r}",
                mend="give the operation a rule of your own with a derivative, through rules=, or stop the gradient before it",
            )
        results, out = rule(call, primals, flat)
    return results, [zero_tangent(r) if t is None else t for r, t in zip(results, out, strict=True)]


def _transpose(cotangents: Sequence[Any], *operands: Any, **params: Any) -> Sequence[Any]:
    call = Call(**params)
    rule = _transpose_rules.get(call.key)
    if rule is None:
        raise UnlowerError(f"{call.key} has no transpose", where=f"{call!r}")
    flat = [None if type(ct) is ad.Zero else ct for ct in cotangents]
    return [
        ad.Zero(operand.aval) if ct is None and ad.is_undefined_primal(operand) else ct
        for ct, operand in zip(rule(call, flat, operands), operands, strict=True)
    ]


_EFFECT = OpEffect()

reemit_p = new_primitive("reemit")
reemit_p.def_effectful_abstract_eval(_abstract)
mlir.register_lowering(reemit_p, _lower)
batching.primitive_batchers[reemit_p] = _batch
ad.primitive_jvps[reemit_p] = _jvp
ad.primitive_transposes[reemit_p] = _transpose
