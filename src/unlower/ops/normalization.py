"""Batch normalization of StableHLO: the operations themselves, with the specification's formulas for their derivatives.

XLA expands these operations by formulas of its own, which have changed between releases; so they are re-emitted.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import Array, lax

from unlower.ir.attributes import Float, Int
from unlower.ir.module import Op
from unlower.ir.types import TensorType
from unlower.ops.reemit import Call, batching_rule, equivalent, materialize_batch, reemit, types_of
from unlower.ops.rule import op_rule

__all__: list[str] = []


def _reemit(op: Op, operands: Sequence[Array]) -> tuple[Array, ...]:
    shapes = [operands[0].shape] + [operands[1].shape] * (len(op.results) - 1)
    return reemit(op.name, operands, types_of(op, *shapes), op.attributes)


@op_rule("stablehlo.batch_norm_training")
def batch_norm_training(
    op: Op, operand: Array, scale: Array, offset: Array, *, epsilon: Float, feature_index: Int
) -> tuple[Array, ...]:
    """Normalizes by the mean and variance over all dimensions but the feature's, and returns them too.

    Spec: `batch_norm_training`.
    """
    del epsilon, feature_index
    return _reemit(op, (operand, scale, offset))


@op_rule("stablehlo.batch_norm_inference")
def batch_norm_inference(
    op: Op,
    operand: Array,
    scale: Array,
    offset: Array,
    mean: Array,
    variance: Array,
    *,
    epsilon: Float,
    feature_index: Int,
) -> tuple[Array, ...]:
    """Normalizes by a given mean and variance.

    Spec: `batch_norm_inference`.
    """
    del epsilon, feature_index
    return _reemit(op, (operand, scale, offset, mean, variance))


@op_rule("stablehlo.batch_norm_grad")
def batch_norm_grad(
    op: Op,
    operand: Array,
    scale: Array,
    mean: Array,
    variance: Array,
    grad_output: Array,
    *,
    epsilon: Float,
    feature_index: Int,
) -> tuple[Array, ...]:
    """Returns the gradients of `batch_norm_training` for operand, scale and offset.

    Spec: `batch_norm_grad`.
    """
    del epsilon, feature_index
    return _reemit(op, (operand, scale, mean, variance, grad_output))


class _Features:
    """Spreads vectors over the feature dimension, and sums over the others."""

    def __init__(self, call: Call, operand: Array):
        self._shape, self._feature = operand.shape, int(call.attributes["feature_index"])
        self._others = tuple(i for i in range(operand.ndim) if i != self._feature)
        self.epsilon = np.asarray(call.attributes["epsilon"], operand.dtype)
        self.count = np.asarray(operand.size // max(operand.shape[self._feature], 1), operand.dtype)

    def spread(self, vector: Array) -> Array:
        return lax.broadcast_in_dim(vector, self._shape, (self._feature,))

    def total(self, x: Array) -> Array:
        return lax.reduce(x, np.zeros((), x.dtype), lax.add, self._others)

    def normalize(self, operand: Array, mean: Array, variance: Array) -> Array:
        return (operand - self.spread(mean)) * self.spread(lax.rsqrt(variance + self.epsilon))


@equivalent("stablehlo.batch_norm_training")
def _training_in_lax(call: Call, operand: Array, scale: Array, offset: Array) -> tuple[Array, ...]:
    features = _Features(call, operand)
    mean = features.total(operand) / features.count
    centered = operand - features.spread(mean)
    variance = features.total(centered * centered) / features.count
    normalized = features.normalize(operand, mean, variance)
    return normalized * features.spread(scale) + features.spread(offset), mean, variance


@equivalent("stablehlo.batch_norm_inference")
def _inference_in_lax(
    call: Call, operand: Array, scale: Array, offset: Array, mean: Array, variance: Array
) -> tuple[Array, ...]:
    features = _Features(call, operand)
    return (features.normalize(operand, mean, variance) * features.spread(scale) + features.spread(offset),)


@equivalent("stablehlo.batch_norm_grad")
def _grad_in_lax(
    call: Call, operand: Array, scale: Array, mean: Array, variance: Array, grad_output: Array
) -> tuple[Array, ...]:
    features = _Features(call, operand)
    spread, total = features.spread, features.total
    steadied = variance + features.epsilon
    centered = operand - spread(mean)
    aligned = total(grad_output * centered)
    inner = grad_output * features.count - spread(total(grad_output)) - centered * spread(aligned / steadied)
    factor = scale * lax.rsqrt(steadied) / features.count
    return spread(factor) * inner, aligned * lax.rsqrt(steadied), total(grad_output)


@batching_rule("stablehlo.batch_norm_training", "stablehlo.batch_norm_inference", "stablehlo.batch_norm_grad")
def _batch(
    call: Call, size: int, operands: Sequence[Any], dims: Sequence[int | None]
) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    """Makes features of the batch, since features have nothing to do with each other."""
    feature = int(call.attributes["feature_index"])
    rank = operands[0].ndim - (dims[0] is not None)

    def place(x: Any, dim: int | None) -> int:
        return feature if x.ndim - (dim is not None) == rank and rank > 1 else 0

    merged = []
    for operand, dim in zip(operands, dims, strict=True):
        at = place(operand, dim)
        spread = materialize_batch(operand, dim, size, at)
        shape = (*spread.shape[:at], size * spread.shape[at + 1], *spread.shape[at + 2 :])
        merged.append(lax.reshape(spread, shape))
    types = [TensorType((merged[0] if t.rank == rank else merged[1]).shape, t.element) for t in call.result_types]
    results = call.replace(result_types=tuple(types)).bind(*merged)
    out, places = [], []
    for result in results:
        at = feature if result.ndim == rank and rank > 1 else 0
        split = (*result.shape[:at], size, result.shape[at] // size, *result.shape[at + 1 :])
        out.append(lax.reshape(result, split))
        places.append(at)
    return tuple(out), tuple(places)
