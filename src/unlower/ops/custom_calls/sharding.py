"""Markers that place values: the identity on one device.

Custom calls and `sdy` operations that say on which devices, in which memory or in which layout a value lives. A program
loaded here runs on one device, so each passes its operands on; where a marker cuts arrays into the devices' parts, there
must be one part.
"""

from collections.abc import Mapping
from typing import Any

from jax import Array

from unlower.errors import UnsupportedOpError
from unlower.ir.module import Op
from unlower.ops.rule import Subprogram, op_rule

__all__ = ["MARKERS", "PARTS"]

MARKERS: Mapping[str, str] = {
    "Sharding": "GSPMD's annotation of how a value is cut",
    "xla.sdy.FuncResultSharding": "Shardy's annotation of how a result is cut",
    "xla.sdy.PropagationBarrier": "stops Shardy's propagation of shardings",
    "xla.sdy.ShardingGroup": "asks Shardy to cut several values alike",
    "sdy.propagation_barrier": "as xla.sdy.PropagationBarrier",
    "sdy.reshard": "cuts a value differently",
    "sdy.sharding_constraint": "Shardy's annotation of how a value is cut",
    "sdy.sharding_group": "as xla.sdy.ShardingGroup",
    "sdy.data_flow_edge": "where Shardy propagates shardings through",
    "annotate_device_placement": "names the memory space of a value",
    "MoveToHost": "copies a value to the host's memory",
    "MoveToDevice": "copies a value to the device's memory",
    "PinToDevice": "keeps a value in the device's memory",
    "PinToDeviceSram": "keeps a value in the device's fast memory",
    "PinToVmem": "keeps a value in the device's vector memory",
    "LayoutConstraint": "fixes the layout of a value, which has no bearing on values",
    "ShardBarrierFrom": "stops the propagation of shardings towards operands",
    "ShardBarrierTo": "stops the propagation of shardings towards users",
    "__xla_internal_call_marker_before": "where XLA's own outlining of a call begins",
    "__xla_internal_call_marker_after": "where XLA's own outlining of a call ends",
    "SPMDOpsSharding": "GSPMD's annotation of an operation's own sharding",
    "UnspecifiedSharding": "leaves a sharding open",
}
"""Custom-call target or op -> what it marks; each is the identity on values."""

PARTS: Mapping[str, str] = {
    "SPMDFullToShardShape": "from the whole array to a device's part",
    "SPMDShardToFullShape": "from a device's part to the whole array",
    "xla.sdy.GlobalToLocalShape": "from whole arrays to a device's parts",
    "xla.sdy.LocalToGlobalShape": "from a device's parts to whole arrays",
}
"""Custom-call target -> what it does; the identity where the whole has one part."""


@op_rule(*MARKERS)
def marker(op: Op, *operands: Array, **placement: Any) -> tuple[Array, ...]:
    """Passes its operands on.

    Source: `MARKERS` has each with its meaning. Whatever the attributes say, it is a place.
    """
    return operands[: len(op.results)]


@op_rule(*PARTS)
def parts(op: Op, *operands: Array, **placement: Any) -> tuple[Array, ...]:
    """Passes its operands on where a device's part is the whole.

    Raises:
      UnsupportedOpError: the array is cut into several parts.
    """
    _check_whole(op, op.attributes["call_target_name"], [v.type for v in op.operands], [v.type for v in op.results])
    return operands[: len(op.results)]


@op_rule("sdy.manual_computation")
def manual_computation(
    op: Op, *operands: Array, regions: tuple[Subprogram, ...], **placement: Any
) -> tuple[Array, ...]:
    """Runs the region on each device's parts of the operands, which must be the wholes.

    Source: the Shardy dialect.

    Raises:
      UnsupportedOpError: an array is cut into several parts.
    """
    (region,) = regions
    body = region.region
    _check_whole(op, op.name, [v.type for v in op.operands], [v.type for v in body.arguments])
    _check_whole(op, op.name, [v.type for v in op.results], [v.type for v in body.results])
    return region(*operands)


@op_rule("sdy.named_computation")
def named_computation(op: Op, *operands: Array, regions: tuple[Subprogram, ...], **placement: Any) -> tuple[Array, ...]:
    """Runs the region. Source: the Shardy dialect."""
    (region,) = regions
    return region(*operands)


def _check_whole(op: Op, what: str, outside: list[Any], inside: list[Any]) -> None:
    for whole, part in zip(outside, inside, strict=True):
        if whole != part:
            raise UnsupportedOpError(
                f"{what} cuts {whole} into parts {part}, for several devices",
                mend="load the program as it was before it was divided among devices",
            )
