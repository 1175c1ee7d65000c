"""Reductions over sliding windows, and the scatter that goes with them.

Both stay the operation they are, since `lax` puts initial values of its own into the module. Their derivatives are those of
`lax` where it has the reduction, and follow from the windows' contents where it has not.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax import Array, lax

from unlower._jax_compat import primitives
from unlower.ir.attributes import DenseElements, IntArray
from unlower.ir.module import Op
from unlower.ir.types import TensorType
from unlower.ops.monoids import elementwise, find_monoid, promote
from unlower.ops.reduction import reduce_by_tree, split_operands
from unlower.ops.reemit import Call, batch_by_loop, batching_rule, equivalent, materialize_batch, reemit, types_of
from unlower.ops.rule import Subprogram, op_rule
from unlower.ops.scatter import scatter_by_loop

__all__ = ["reduce_window", "select_and_scatter"]


@dataclasses.dataclass(frozen=True, slots=True)
class _Window:
    """How windows lie over an array: one entry for each dimension."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    base_dilations: tuple[int, ...]
    window_dilations: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, attributes: Any) -> "_Window":
        sizes = tuple(map(int, attributes["window_dimensions"]))
        ones = (1,) * len(sizes)

        def ints(name: str) -> tuple[int, ...]:
            value = attributes.get(name)
            return ones if value is None else tuple(map(int, value))

        padding = attributes.get("padding")
        pairs = np.zeros((len(sizes), 2), int) if padding is None else padding.expanded()
        return cls(
            sizes,
            ints("window_strides"),
            ints("base_dilations"),
            ints("window_dilations"),
            tuple((int(low), int(high)) for low, high in pairs),
        )

    @property
    def pads(self) -> tuple[tuple[int, int, int], ...]:
        """The padding configuration that leaves only windows over plain elements."""
        return tuple((low, high, base - 1) for (low, high), base in zip(self.padding, self.base_dilations, strict=True))

    def places(self, axis: int, padded: int) -> np.ndarray:
        """The positions of the windows' elements along a dimension of `padded` elements: `[windows, elements]`."""
        extent = (self.sizes[axis] - 1) * self.window_dilations[axis] + 1
        starts = np.arange(max(0, (padded - extent) // self.strides[axis] + 1)) * self.strides[axis]
        return starts[:, None] + np.arange(self.sizes[axis])[None, :] * self.window_dilations[axis]

    def result_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """How many windows there are over an array."""
        padded = [low + high + n + max(0, n - 1) * hole for n, (low, high, hole) in zip(shape, self.pads, strict=True)]
        return tuple(self.places(axis, n).shape[0] for axis, n in enumerate(padded))

    def scan_axis(self, shape: Sequence[int]) -> tuple[int, bool] | None:
        """The axis along which windows grow by one element each, as in a cumulative sum, and whether from the end."""
        wide = [i for i, size in enumerate(self.sizes) if size != 1]
        if len(wide) != 1 or any(n != 1 for n in (*self.strides, *self.base_dilations, *self.window_dilations)):
            return None
        (axis,) = wide
        size = self.sizes[axis]
        if size != shape[axis] or any(pair != (0, 0) for i, pair in enumerate(self.padding) if i != axis):
            return None
        return {(size - 1, 0): (axis, False), (0, size - 1): (axis, True)}.get(self.padding[axis])


def _padding_elements(pairs: Sequence[Sequence[int]]) -> DenseElements:
    return DenseElements(TensorType((len(pairs), 2), "i64"), np.array(pairs, np.int64).reshape(len(pairs), 2))


def _present(**attributes: Any) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if value is not None}


@op_rule("stablehlo.reduce_window")
def reduce_window(
    op: Op,
    *operands: Array,
    window_dimensions: IntArray,
    window_strides: IntArray | None = None,
    base_dilations: IntArray | None = None,
    window_dilations: IntArray | None = None,
    padding: DenseElements | None = None,
    body: Subprogram,
) -> tuple[Array, ...]:
    """Reduces each window of the (dilated, padded) operands with `body`, starting from the initial values.

    Spec: `reduce_window`. Padding and holes hold the initial values, which makes a difference only where those are no
    identity of `body`; XLA leaves padding and holes out, and so do the derivatives.
    """
    attributes = _present(
        window_dimensions=window_dimensions,
        window_strides=window_strides,
        base_dilations=base_dilations,
        window_dilations=window_dilations,
        padding=padding,
    )
    region = body.jaxpr()
    count = len(operands) // 2
    operands = (*promote(region, len(body.captures), operands[:count]), *operands[count:])
    shape = _Window.of(attributes).result_shape(operands[0].shape)
    types = types_of(op, *[shape] * count)
    return reemit(op.name, operands, types, attributes, [region], [body.captures])


_WINDOW_REDUCERS = {
    "sum": primitives.reduce_window_sum_p,
    "max": primitives.reduce_window_max_p,
    "min": primitives.reduce_window_min_p,
}


@equivalent("stablehlo.reduce_window")
def _reduce_window_equivalent(call: Call, *operands: Any) -> tuple[Any, ...]:
    inputs, inits, captures = split_operands(call, operands)
    (region,), window = call.regions, _Window.of(call.attributes)
    combine = elementwise(region, captures)
    shape = call.result_types[0].shape
    starts = [lax.broadcast(init, shape) for init in inits]
    monoid = find_monoid(region, ordered=False) if len(inputs) == 1 else None
    if monoid is not None and monoid.name == "sum":
        return combine(*starts, _lax_window("sum", inputs[0], window))
    scanned = window.scan_axis(inputs[0].shape)
    if scanned is not None:
        return combine(*starts, *_scan(combine, inputs, *scanned))
    # The transpose of lax's own rule refuses dilated windows.
    dilated = any(n != 1 for n in window.window_dilations)
    if monoid is not None and monoid.name in ("max", "min") and not dilated:
        return combine(*starts, _lax_window(monoid.name, inputs[0], window))
    patches = [_patches(lax.pad(x, init, window.pads), window) for x, init in zip(inputs, inits, strict=True)]
    inside = _patches(lax.pad(lax.full(inputs[0].shape, True), np.False_, window.pads), window)
    true = lax.full(shape, True)
    *results, _ = reduce_by_tree(_skipping(combine), [*starts, true], [*patches, inside])
    return tuple(results)


def _skipping(combine: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `combine` on arrays that come with a mask, for which what the mask leaves out is not there."""

    def combined(*both: Any) -> list[Any]:
        (*left, known_left), (*right, known_right) = both[: len(both) // 2], both[len(both) // 2 :]
        either = [lax.select(known_left, x, y) for x, y in zip(left, right, strict=True)]
        known = lax.bitwise_and(known_left, known_right)
        results = [lax.select(known, x, y) for x, y in zip(combine(*left, *right), either, strict=True)]
        return [*results, lax.bitwise_or(known_left, known_right)]

    return combined


def _lax_window(name: str, operand: Any, window: _Window) -> Any:
    return _WINDOW_REDUCERS[name].bind(
        operand,
        window_dimensions=window.sizes,
        window_strides=window.strides,
        padding=window.padding,
        base_dilation=window.base_dilations,
        window_dilation=window.window_dilations,
    )


def _scan(combine: Callable[..., Any], inputs: Sequence[Any], axis: int, reverse: bool) -> Sequence[Any]:
    # In a scan from the end the later element is the left argument; windows list their elements in order.
    def step(left: Sequence[Any], right: Sequence[Any]) -> list[Any]:
        return list(combine(*right, *left)) if reverse else list(combine(*left, *right))

    return lax.associative_scan(step, list(inputs), reverse=reverse, axis=axis)


def _patches(padded: Any, window: _Window) -> Any:
    """Lists the contents of all windows of an array that is padded already: `[elements of a window, *windows]`."""
    rank = padded.ndim
    for i in range(rank):
        padded = _take(padded, window.places(i, padded.shape[2 * i]).astype(np.int32), 2 * i)
    ordered = lax.transpose(padded, (*range(1, 2 * rank, 2), *range(0, 2 * rank, 2)))
    return lax.reshape(ordered, (int(np.prod(window.sizes)), *ordered.shape[rank:]))


def _take(operand: Any, places: np.ndarray, axis: int) -> Any:
    """Replaces dimension `axis` by the two dimensions of `places`, which are positions along it."""
    numbers = lax.GatherDimensionNumbers(
        offset_dims=(*range(axis), *range(axis + 2, operand.ndim + 1)),
        collapsed_slice_dims=(axis,),
        start_index_map=(axis,),
    )
    sizes = [*operand.shape[:axis], 1, *operand.shape[axis + 1 :]]
    if operand.shape[axis] == 0 or places.size == 0:
        return lax.full((*operand.shape[:axis], *places.shape, *operand.shape[axis + 1 :]), 0, operand.dtype)
    return lax.gather(operand, places[..., None], numbers, sizes, mode="promise_in_bounds")


def _batched_attributes(call: Call) -> dict[str, Any]:
    """The attributes of a call that gained a leading dimension which its windows leave alone."""
    attributes: dict[str, Any] = {
        name: IntArray((1, *call.attributes[name]))
        for name in ("window_dimensions", "window_strides", "base_dilations", "window_dilations")
        if name in call.attributes
    }
    if "padding" in call.attributes:
        attributes["padding"] = _padding_elements([(0, 0), *call.attributes["padding"].expanded()])
    return attributes


@batching_rule("stablehlo.reduce_window")
def _batch_reduce_window(call: Call, size: int, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
    count = len(call.result_types)
    if any(dim is not None for dim in dims[count:]):
        return batch_by_loop(call, size, operands, dims)
    inputs = [materialize_batch(x, dim, size) for x, dim in zip(operands[:count], dims[:count], strict=True)]
    results = call.batched(size, attributes=_batched_attributes(call)).bind(*inputs, *operands[count:])
    return results, (0,) * count


@op_rule("stablehlo.select_and_scatter")
def select_and_scatter(
    op: Op,
    operand: Array,
    source: Array,
    init_value: Array,
    *,
    window_dimensions: IntArray,
    window_strides: IntArray | None = None,
    padding: DenseElements | None = None,
    select: Subprogram,
    scatter: Subprogram,
) -> Array:
    """Selects one element of each window of `operand`, and combines the window's `source` into its place with `scatter`.

    Spec: `select_and_scatter`. The derivative with respect to `operand` is zero, as selecting is piecewise constant.
    """
    attributes = _present(window_dimensions=window_dimensions, window_strides=window_strides, padding=padding)
    regions = [select.jaxpr(), scatter.jaxpr()]
    captures = [select.captures, scatter.captures]
    (operand,) = promote(regions[0], len(captures[0]), [operand])
    source, init_value = promote(regions[1], len(captures[1]), [source, init_value])
    types = types_of(op, operand.shape)
    return reemit(op.name, [operand, source, init_value], types, attributes, regions, captures)[0]


@equivalent("stablehlo.select_and_scatter")
def _select_and_scatter_equivalent(call: Call, operand: Any, source: Any, init: Any, *captured: Any) -> tuple[Any, ...]:
    select, scatter = call.regions
    chosen = elementwise(select, captured[: call.captures[0]])
    captured = captured[call.captures[0] :]
    window = _Window.of(call.attributes)
    # Each window's elements with their places, -1 being padding, which is never selected.
    places = lax.reshape(lax.iota(np.int32, operand.size), operand.shape)
    values = _patches(lax.pad(operand, lax.full((), 0, operand.dtype), window.pads), window)
    places = _patches(lax.pad(places, np.int32(-1), window.pads), window)
    value, place = values[0], places[0]
    for i in range(1, values.shape[0]):
        (keep,) = chosen(value, values[i])
        keep = ((place >= 0) & keep) | (places[i] < 0)
        value, place = lax.select(keep, value, values[i]), lax.select(keep, place, places[i])
    flat = lax.broadcast(init, (operand.size,))
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=(), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,)
    )
    place, source = lax.reshape(place, (source.size, 1)), lax.reshape(source, (source.size,))
    monoid = find_monoid(scatter, ordered=False)
    if monoid is not None and monoid.name == "sum":
        out = lax.scatter_add(flat, place, source, numbers, mode="drop")
    else:
        (out,) = scatter_by_loop(scatter, captured, [flat], place, [source], numbers)
    return (lax.reshape(out, operand.shape),)


@batching_rule("stablehlo.select_and_scatter")
def _batch_select_and_scatter(
    call: Call, size: int, operands: Sequence[Any], dims: Sequence[int | None]
) -> tuple[Any, Any]:
    if any(dim is not None for dim in dims[2:]):
        return batch_by_loop(call, size, operands, dims)
    inputs = [materialize_batch(x, dim, size) for x, dim in zip(operands[:2], dims[:2], strict=True)]
    return call.batched(size, attributes=_batched_attributes(call)).bind(*inputs, *operands[2:]), (0,)
