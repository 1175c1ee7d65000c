"""Broadcasts in low precision, whose derivative is a sum in float32.

A bias is float32 and is added to low activations: it is cast and broadcast. Its gradient is a sum over the batch, and summed in
the low dtype it would lose most of its terms. So cast and broadcast are one linear operation here, transposed as one:
the cotangent is widened and then summed, which XLA fuses into a sum that accumulates in float32.
"""

from collections.abc import Sequence
from typing import Any

import jax
from jax import lax
from jax.interpreters import ad, batching, mlir

from unlower._jax_compat import new_primitive, result_aval
from unlower._jax_compat_interpret import typeof

__all__ = ["spread", "spread_p"]

spread_p = new_primitive("low_precision_broadcast", several=False)
"""`x`: cast to `dtype` and broadcast to `shape`, `x`'s axes becoming `broadcast_dimensions`, as in `broadcast_in_dim`."""


def _run(x: Any, *, dtype: Any, shape: tuple[int, ...], broadcast_dimensions: tuple[int, ...]) -> Any:
    return lax.broadcast_in_dim(lax.convert_element_type(x, dtype), shape, broadcast_dimensions)


def spread(x: Any, dtype: Any, shape: Sequence[int], broadcast_dimensions: Sequence[int]) -> Any:
    """Casts and broadcasts."""
    params = {"shape": tuple(shape), "broadcast_dimensions": tuple(broadcast_dimensions)}
    return spread_p.bind(x, dtype=jax.numpy.dtype(dtype), **params)


spread_p.def_abstract_eval(lambda x, *, dtype, shape, broadcast_dimensions: result_aval([x], shape, dtype))
mlir.register_lowering(spread_p, mlir.lower_fun(_run, multiple_results=False))
ad.deflinear2(spread_p, lambda cotangent, x, **params: [_transpose(cotangent, x, **params)])


def _transpose(
    cotangent: Any, x: Any, *, dtype: Any, shape: tuple[int, ...], broadcast_dimensions: tuple[int, ...]
) -> Any:
    if type(cotangent) is ad.Zero:
        return ad.Zero(x.aval)
    aval = x.aval
    stretched = [d for i, d in enumerate(broadcast_dimensions) if aval.shape[i] == 1 and shape[d] != 1]
    summed = tuple(d for d in range(len(shape)) if d not in broadcast_dimensions or d in stretched)
    total = lax.reduce_sum(lax.convert_element_type(cotangent, aval.dtype), axes=summed)
    order = sorted(range(len(broadcast_dimensions)), key=lambda i: broadcast_dimensions[i])
    assert order == list(range(len(order))), "broadcast_in_dim keeps the order of axes"
    return lax.reshape(total, aval.shape)


def _batch(values: Sequence[Any], dims: Sequence[Any], *, dtype: Any, shape: Any, broadcast_dimensions: Any) -> Any:
    (x,), (place,) = values, dims
    x = batching.bdim_at_front(x, place, x.shape[place])
    moved = (0, *(d + 1 for d in broadcast_dimensions))
    return spread(x, dtype, (typeof(x).shape[0], *shape), moved), 0


batching.primitive_batchers[spread_p] = _batch
