"""Convolutions of StableHLO."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from unlower._jax_compat import primitives
from unlower.ir.attributes import ConvDimensionNumbers, DenseElements, IntArray
from unlower.ir.module import Op
from unlower.ir.types import TensorType
from unlower.ops.dynamic_shape import known_integers
from unlower.ops.linear_algebra import common_type, precisions
from unlower.ops.reemit import Call, equivalent, reemit, types_of
from unlower.ops.rule import op_rule

__all__: list[str] = []


@op_rule("stablehlo.convolution")
def convolution(
    op: Op,
    lhs: Array,
    rhs: Array,
    *,
    dimension_numbers: ConvDimensionNumbers,
    feature_group_count: int,
    batch_group_count: int,
    window_strides: Sequence[int] | None = None,
    padding: DenseElements | None = None,
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    window_reversal: Sequence[bool] | None = None,
    precision_config: Sequence[str] = (),
) -> Array:
    """Slides the kernel `rhs` over `lhs` and multiplies.

    Spec: `convolution`. Strides and dilations default to 1, padding to 0 (it may be negative), reversal to False.
    """
    # The signature is the declaration; the attributes are read again where the operation is described.
    del window_strides, padding, lhs_dilation, rhs_dilation, window_reversal, precision_config
    del dimension_numbers, feature_group_count, batch_group_count
    return _convolution(op, lhs, rhs, op.attributes)


@op_rule("stablehlo.dynamic_conv", specialize=True)
def dynamic_conv(
    op: Op,
    lhs: Array,
    rhs: Array,
    d_padding: Any,
    *,
    dimension_numbers: ConvDimensionNumbers,
    feature_group_count: int,
    batch_group_count: int,
    window_strides: Sequence[int] | None = None,
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    window_reversal: Sequence[bool] | None = None,
    precision_config: Sequence[str] = (),
    padding: DenseElements | None = None,
) -> Array:
    """Convolves with a padding that is an operand, and known while tracing.

    Spec: `dynamic_conv`. Older files have an attribute `padding` beside it, which has no meaning.

    Raises:
      RuleError: the padding depends on the data.
    """
    del window_strides, padding, lhs_dilation, rhs_dilation, window_reversal, precision_config
    del dimension_numbers, feature_group_count, batch_group_count
    lhs, rhs = jnp.asarray(lhs), jnp.asarray(rhs)
    values = np.array(known_integers(op, "padding", d_padding), np.int64).reshape(-1, 2)
    attributes = {**op.attributes, "padding": DenseElements(TensorType(values.shape, "i64"), values)}
    return _convolution(op, lhs, rhs, attributes)


def _convolution(op: Op, lhs: Array, rhs: Array, attributes: Mapping[str, Any]) -> Array:
    dtype = op.type.dtype
    params = _params(lhs, attributes, dtype)
    reverses = any(attributes.get("window_reversal", ()))
    if not reverses and _is_expressible(lhs, rhs, params, dtype):
        return primitives.conv_general_dilated_p.bind(lhs, rhs, **params)
    return reemit("stablehlo.convolution", (lhs, rhs), types_of(op, _shape(lhs, rhs, params)), attributes)[0]


def _params(lhs: Any, attributes: Mapping[str, Any], dtype: np.dtype) -> dict[str, Any]:
    """The parameters of JAX's primitive, which has everything but the reversal of windows."""
    numbers: ConvDimensionNumbers = attributes["dimension_numbers"]
    spatial = lhs.ndim - 2
    ones = (1,) * spatial

    def sizes(name: str) -> tuple[int, ...]:
        return tuple(map(int, attributes.get(name, ones)))

    padding = attributes.get("padding")
    pairs = np.zeros((spatial, 2), np.int64) if padding is None else padding.expanded()
    return {
        "window_strides": sizes("window_strides"),
        "padding": tuple((int(low), int(high)) for low, high in pairs),
        "lhs_dilation": sizes("lhs_dilation"),
        "rhs_dilation": sizes("rhs_dilation"),
        "dimension_numbers": lax.ConvDimensionNumbers(
            (
                numbers.input_batch_dimension,
                numbers.input_feature_dimension,
                *numbers.input_spatial_dimensions,
            ),
            (
                numbers.kernel_output_feature_dimension,
                numbers.kernel_input_feature_dimension,
                *numbers.kernel_spatial_dimensions,
            ),
            (
                numbers.output_batch_dimension,
                numbers.output_feature_dimension,
                *numbers.output_spatial_dimensions,
            ),
        ),
        "feature_group_count": int(attributes["feature_group_count"]),
        "batch_group_count": int(attributes["batch_group_count"]),
        "precision": precisions(attributes.get("precision_config", ())),
        "preferred_element_type": dtype,
        "out_sharding": None,
    }


def _is_expressible(lhs: Array, rhs: Array, params: Mapping[str, Any], dtype: np.dtype) -> bool:
    """Whether JAX lowers its primitive to this very operation, on every platform."""
    given = lhs.dtype
    if given != rhs.dtype or params["feature_group_count"] > 1 < params["batch_group_count"]:
        return False
    # JAX computes complex convolutions by real ones on the CPU.
    if jnp.issubdtype(given, jnp.complexfloating):
        return False
    # JAX refuses to take away more than there is, where the specification has an empty result.
    if any(size < 0 for size in _padded(lhs, params)):
        return False
    if given == dtype:
        return True
    if dtype.itemsize < given.itemsize:
        return False
    if jnp.issubdtype(given, jnp.floating):
        return jnp.issubdtype(dtype, jnp.floating)
    if jnp.issubdtype(given, jnp.signedinteger):
        return jnp.issubdtype(dtype, jnp.signedinteger) or jnp.issubdtype(dtype, jnp.floating)
    return jnp.issubdtype(dtype, jnp.integer) or jnp.issubdtype(dtype, jnp.floating)


def _dilated(size: int, dilation: int) -> int:
    return 0 if size == 0 else 1 + dilation * (size - 1)


def _padded(lhs: Array, params: Mapping[str, Any]) -> list[int]:
    dimensions = params["dimension_numbers"].lhs_spec[2:]
    sizes = [_dilated(lhs.shape[d], dilation) for d, dilation in zip(dimensions, params["lhs_dilation"], strict=True)]
    return [size + low + high for size, (low, high) in zip(sizes, params["padding"], strict=True)]


def _shape(lhs: Array, rhs: Array, params: Mapping[str, Any]) -> tuple[int, ...]:
    numbers = params["dimension_numbers"]
    shape = [0] * lhs.ndim
    shape[numbers.out_spec[0]] = lhs.shape[numbers.lhs_spec[0]] // params["batch_group_count"]
    shape[numbers.out_spec[1]] = rhs.shape[numbers.rhs_spec[0]]
    for out, kernel, size, stride, dilation in zip(
        numbers.out_spec[2:],
        numbers.rhs_spec[2:],
        _padded(lhs, params),
        params["window_strides"],
        params["rhs_dilation"],
        strict=True,
    ):
        window = _dilated(rhs.shape[kernel], dilation)
        shape[out] = 0 if size < window or size == 0 else (size - window) // stride + 1
    return tuple(shape)


@equivalent("stablehlo.convolution", batches=True)
def _convolution_in_lax(call: Call, lhs: Array, rhs: Array) -> tuple[Array]:
    dtype = call.result_types[0].dtype
    params = _params(lhs, call.attributes, dtype)
    reversal = call.attributes.get("window_reversal", IntArray((), "i1"))
    dimensions = [d for d, turned in zip(params["dimension_numbers"].rhs_spec[2:], reversal, strict=False) if turned]
    common = common_type(dtype, lhs.dtype, rhs.dtype)
    lhs, rhs = lhs.astype(common), rhs.astype(common)
    rhs = lax.rev(rhs, dimensions) if dimensions else rhs
    params["preferred_element_type"] = common
    if any(size < 0 for size in _padded(lhs, params)):
        return (lax.full(_shape(lhs, rhs, params), 0, dtype),)
    return (primitives.conv_general_dilated_p.bind(lhs, rhs, **params).astype(dtype),)
