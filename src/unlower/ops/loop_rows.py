"""Gathers and scatters of a single window, as the slices that they are.

`x[i]` and `x.at[i].set(y)` are lowered to a gather and a scatter with one index. A gather clamps its index, as a slice does; a
scatter drops what lies outside, so its index must be inside in every iteration of the loop.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import Array, lax

from unlower._jax_compat import JaxprParts, open_closed_jaxpr
from unlower.ops.loop_tables import Table

__all__ = ["as_slices"]

_COMBINE: dict[str, Callable[[Array, Array], Array]] = {
    "scatter": lambda old, new: new,
    "scatter-add": lax.add,
    "scatter_add": lax.add,
    "scatter_max": lax.max,
    "scatter-max": lax.max,
    "scatter_min": lax.min,
    "scatter-min": lax.min,
    "scatter_mul": lax.mul,
    "scatter-mul": lax.mul,
}
"""Primitives by name, which jax writes with a hyphen in some releases."""


def as_slices(equation: Any, table: Callable[[Any], Table | None]) -> JaxprParts | None:
    """Returns a Jaxpr that slices instead of an equation that gathers or scatters one window; None of any other.

    Args:
      equation: an equation.
      table: gives the values of an integer over the iterations, or None.
    """
    name = str(equation.primitive)
    if name != "gather" and name not in _COMBINE:
        return None
    operand, indices = (atom.aval for atom in equation.invars[:2])
    numbers = equation.params["dimension_numbers"]
    batching = numbers.operand_batching_dims
    if indices.size != 1 or batching or not jax.numpy.issubdtype(indices.dtype, np.integer):
        return None
    (axis,) = numbers.start_index_map if name == "gather" else numbers.scatter_dims_to_operand_dims

    def start(index: Array) -> list[Any]:
        starts: list[Any] = [np.zeros((), index.dtype)] * operand.ndim
        starts[axis] = lax.reshape(index, ())
        return starts

    if name == "gather":
        if equation.params["mode"] != lax.GatherScatterMode.CLIP:
            return None
        sizes, shape = equation.params["slice_sizes"], equation.outvars[0].aval.shape

        def run(*inputs: Array) -> Array:
            array, index = inputs
            return lax.reshape(lax.dynamic_slice_p.bind(array, *start(index), slice_sizes=sizes), shape)

    else:
        updates = equation.invars[2].aval.shape
        kept = iter([updates[i] for i in numbers.update_window_dims])
        window = tuple(1 if i in numbers.inserted_window_dims else next(kept) for i in range(operand.ndim))
        known = table(equation.invars[1])
        last = operand.shape[axis] - window[axis]
        if known is None or not all(0 <= int(i) <= last for i in (known.min(initial=0), known.max(initial=0))):
            return None

        def run(*inputs: Array) -> Array:
            array, index, update = inputs
            if name != "scatter":
                old = lax.dynamic_slice_p.bind(array, *start(index), slice_sizes=window)
                update = _COMBINE[name](lax.reshape(old, updates), update)
            return lax.dynamic_update_slice_p.bind(array, lax.reshape(update, window), *start(index))

    structs = [jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype) for atom in equation.invars]
    with jax.enable_x64(True):
        return open_closed_jaxpr(jax.make_jaxpr(run)(*structs))
