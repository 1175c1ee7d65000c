"""The largest k elements: an op of CHLO and MHLO, and the custom calls that stand for it."""

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import Array, lax

from unlower._jax_compat import eval_closed_jaxpr, primitives, traced_params
from unlower.ir.attributes import Int
from unlower.ir.module import Op
from unlower.ir.types import TensorType, element_of_dtype
from unlower.ops.dynamic_shape import known_integers
from unlower.ops.reemit import (
    Call,
    batch_by_loop,
    batching_rule,
    jvp_rule,
    materialize_batch,
    reemit,
    types_of,
)
from unlower.ops.rule import Subprogram, op_rule
from unlower.ops.sorting import take_along

__all__ = ["approx_top_k", "dynamic_approx_top_k", "dynamic_top_k", "top_k", "top_k_of_cpu"]


@functools.lru_cache(maxsize=1)
def _params() -> dict[str, Any]:
    return traced_params(lambda x: lax.top_k(x, 1), jax.ShapeDtypeStruct((2,), np.float32))


def _largest(operand: Any, k: int, is_stable: bool = True) -> tuple[Any, Any]:
    params = _params() | {"k": int(k), "axis": operand.ndim - 1}
    # jax 0.10 knows stable ones only, a right answer too where any order will do.
    if "is_stable" in params:
        params["is_stable"] = bool(is_stable)
    values, places = primitives.top_k_p.bind(operand, **params)
    return values, places


def _smallest(operand: Any, k: int) -> tuple[Any, Any]:
    axis = operand.ndim - 1
    scalars = [jax.ShapeDtypeStruct((), dtype) for dtype in (operand.dtype, np.int32) for _ in range(2)]
    comparator = jax.make_jaxpr(lambda a, b, *_: primitives.lt_to_p.bind(a, b))(*scalars)
    types = [TensorType(operand.shape, element_of_dtype(dtype)) for dtype in (operand.dtype, np.dtype(np.int32))]
    attributes = {"dimension": Int(axis), "is_stable": True}
    positions = lax.broadcasted_iota(np.int32, operand.shape, axis)
    values, places = reemit("stablehlo.sort", [operand, positions], types, attributes, [comparator])
    return lax.slice_in_dim(values, 0, k, axis=axis), lax.slice_in_dim(places, 0, k, axis=axis)


@op_rule("chlo.top_k", "mhlo.topk")
def top_k(
    op: Op,
    operand: Array,
    *,
    k: int | None = None,
    largest: bool = True,
    is_stable: bool = True,
    call_target_name: str | None = None,
    mhlo_attributes: Mapping[str, Any] | None = None,
    **_: Any,
) -> tuple[Array, Array]:
    """Returns the k largest elements of the last dimension, largest first, and their positions.

    Spec: `chlo.top_k`. Floats are in total order; of equal elements the first comes first. `mhlo.topk` may ask for the
    smallest, and also travels as a custom call of that name with its attributes in a dictionary.
    """
    if call_target_name is not None:
        packed = mhlo_attributes or {}
        k, largest, is_stable = packed["k"], packed.get("largest", True), packed.get("is_stable", True)
    assert k is not None
    return _largest(operand, k, is_stable) if largest else _smallest(operand, k)


@op_rule("TopK")
def top_k_of_cpu(
    op: Op,
    operand: Array,
    *,
    regions: Sequence[Subprogram] = (),
    **_: Any,
) -> tuple[Array, Array]:
    """Returns the k largest elements of the last dimension and their positions, as XLA's CPU backend calls it.

    XLA: `TopkRewriter`. k is the size of the result; the computation it names says whether the largest are wanted.
    """
    k = op.types[0].shape[-1]
    assert k is not None
    return _smallest(operand, k) if regions and not _is_descending(regions[0].jaxpr()) else _largest(operand, k)


@op_rule("stablehlo.dynamic_top_k", specialize=True)
def dynamic_top_k(
    op: Op,
    operand: Array,
    k: Array,
    *result_shapes: Array,
    is_stable: bool = True,
    **_: Any,
) -> tuple[Array, Array]:
    """Returns the k largest elements of the last dimension and their positions, k being an operand.

    JAX: `lax.top_k` under shape polymorphism. k must be known while tracing.
    """
    (size,) = known_integers(op, "k", k)
    return _largest(jax.numpy.asarray(operand), size, is_stable)


def _is_descending(comparator: Any) -> bool:
    """Whether a comparator puts the larger first, told by running it on one and zero."""
    values = [np.array(i == 0).astype(aval.dtype) for i, aval in enumerate(comparator.in_avals)]
    with jax.ensure_compile_time_eval():
        (first,) = eval_closed_jaxpr(comparator, *values)
    return bool(first)


# --- approximate top-k


def _config(attributes: Mapping[str, Any]) -> dict[str, Any]:
    config = attributes.get("mhlo.backend_config") or attributes.get("backend_config") or {}
    return json.loads(config) if isinstance(config, str) else dict(config)


def _with_config(attributes: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """Returns the attribute that holds the configuration, changed, in the form that it had."""
    name = "mhlo.backend_config" if attributes.get("mhlo.backend_config") else "backend_config"
    config = _config(attributes) | changes
    return {name: json.dumps(config) if isinstance(attributes[name], str) else config}


@op_rule("ApproxTopK")
def approx_top_k(
    op: Op,
    *operands: Array,
    regions: Sequence[Subprogram],
    **_: Any,
) -> tuple[Array, ...]:
    """Returns about the first k elements along a dimension, in the order of the comparator that it names.

    JAX: `lax.approx_max_k`, `lax.approx_min_k`. Operands are the values, their positions, and what stands for nothing in
    each. Where the module was made for a TPU, `lax` finds the form for the platform at hand.
    """
    config = _config(op.attributes)
    if not config.get("is_fallback", False):
        return _lax_approx(operands[0], operands[1], int(config["top_k"]), config, regions[0])
    kept = ("call_target_name", "called_computations", "api_version", "backend_config", "mhlo.backend_config")
    attributes = {name: value for name, value in op.attributes.items() if name in kept}
    shape = list(operands[0].shape)
    shape[int(config["reduction_dim"])] = int(config["top_k"])
    return reemit(op.name, operands, types_of(op, shape, shape), attributes, [regions[0].jaxpr()])


def _lax_approx(
    operand: Any, positions: Any, k: int, config: Mapping[str, Any], comparator: Subprogram
) -> tuple[Any, Any]:
    dimension = int(config["reduction_dim"])
    values, places = primitives.approx_top_k_p.bind(
        operand,
        k=k,
        reduction_dimension=dimension,
        recall_target=float(config["recall_target"]),
        is_max_k=_is_descending(comparator.jaxpr()),
        reduction_input_size_override=int(config["reduction_input_size_override"]),
        aggregate_to_topk=bool(config["aggregate_to_topk"]),
    )
    return values, take_along(positions, places, dimension)


@op_rule("stablehlo.dynamic_approx_top_k", specialize=True)
def dynamic_approx_top_k(
    op: Op,
    operand: Array,
    positions: Array,
    nothing: Array,
    nowhere: Array,
    k: Array,
    *result_shapes: Array,
    regions: Sequence[Subprogram],
    **_: Any,
) -> tuple[Array, ...]:
    """Returns about the first k elements along a dimension, k being an operand.

    JAX: `lax.approx_max_k` under shape polymorphism. k must be known while tracing.
    """
    (size,) = known_integers(op, "k", k)
    return _lax_approx(jax.numpy.asarray(operand), positions, size, _config(op.attributes), regions[0])


@batching_rule("ApproxTopK")
def _batch_approx(call: Call, size: int, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
    if any(dim is not None for dim in dims[2:]):
        return batch_by_loop(call, size, operands, dims)
    moved = [materialize_batch(x, dim, size) for x, dim in zip(operands[:2], dims, strict=False)]
    dimension = Int(int(_config(call.attributes)["reduction_dim"]) + 1)
    batched = call.batched(size, attributes=_with_config(call.attributes, reduction_dim=dimension))
    return batched.bind(*moved, *operands[2:]), (0, 0)


@jvp_rule("ApproxTopK")
def _jvp_approx(call: Call, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """Moves the tangents as the values moved, which the same call on plain positions tells."""
    dimension = int(_config(call.attributes)["reduction_dim"])
    values, positions = primals[:2]
    results = call.bind(*primals)
    plain = lax.broadcasted_iota(positions.dtype, positions.shape, dimension)
    _, places = call.bind(values, plain, *primals[2:])
    tangent = None if tangents[0] is None else take_along(tangents[0], places, dimension)
    return results, [tangent, None]
