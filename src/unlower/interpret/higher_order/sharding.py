"""`shard_map`: a program of one shard, interpreted among the mesh axes and the types of shards."""

from typing import Any

import jax
import jax.numpy as jnp

from unlower._jax_compat_interpret import manual_axes, shard_aval, typeof, unmapped_spec, varying_axes
from unlower.interpret.higher_order.registry import higher_order
from unlower.interpret.staging import Staged
from unlower.interpret.values import Type, flatten, type_of


@higher_order("shard_map")
def shard_map(ctx: Any, *values: Any, jaxpr: Any, in_specs: Any, out_specs: Any, **params: Any) -> list[Any]:
    """Keeps mesh and specs; a box is sharded as the array that it stands for, leaf by leaf.

    An emitted value becomes an array with a first axis of one entry for each device along whose mesh axes it may differ.
    """
    types = [
        _shard_type(params, spec, value, v.aval) for spec, value, v in zip(in_specs, values, jaxpr.invars, strict=True)
    ]
    with manual_axes(params):
        staged = ctx.stage(jaxpr, types, is_open=True, emitted=_stack_shards(params))
    hoisted = tuple(unmapped_spec(typeof(value)) for value in staged.hoisted)
    specs = [spec for spec, value in zip(in_specs, values, strict=True) for _ in flatten([value])]
    results = [spec for spec, type in zip(out_specs, staged.results, strict=True) for _ in type.avals]
    emitted = [_emitted_spec(params, aval) for aval in _emitted_avals(staged)]
    leaves = ctx.rebind(
        staged.arguments(values),
        jaxpr=staged.jaxpr,
        in_specs=(*hoisted, *specs),
        out_specs=(*results, *emitted),
    )
    return ctx.finish(staged, leaves)


def _shard_type(params: dict[str, Any], spec: Any, value: Any, program: Any) -> Type:
    whole = type_of(value)
    shards = whole.replace(shard_aval(params, spec, aval) for aval in whole.avals)
    return type_of(shards.avals[0], program) if shards.is_plain else shards


def _axes(params: dict[str, Any], aval: Any) -> tuple[Any, ...]:
    """The axes along which an emitted value may differ: all of them, where JAX keeps no record."""
    axes = varying_axes(aval) if params["check_vma"] else params["newly_manual_axes"]
    return tuple(axis for axis in params["mesh"].axis_names if axis in axes)


def _stack_shards(params: dict[str, Any]) -> Any:
    """Gives an emitted leaf the first axis along which the shards' will lie."""
    return lambda leaf: jnp.expand_dims(leaf, 0) if _axes(params, typeof(leaf)) else leaf


def _emitted_spec(params: dict[str, Any], aval: Any) -> Any:
    axes = _axes(params, aval)
    return jax.sharding.PartitionSpec(axes) if axes else jax.sharding.PartitionSpec()


def _emitted_avals(staged: Staged) -> list[Any]:
    outputs = [v.aval for v in staged.jaxpr.outvars]
    return outputs[len(outputs) - staged.extra :]
