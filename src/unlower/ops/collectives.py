"""Collectives and host transfers: what has no rule yet, and why. Alone in its process, a program is partition and replica 0."""

from collections.abc import Mapping

import numpy as np

from unlower.ir.module import Op
from unlower.ops.rule import op_rule

__all__ = ["UNSUPPORTED"]

_EXCHANGE = "it exchanges values between devices, which a single JAX callable has no axis for"
_TRANSFER = "it moves values through a channel that belongs to the process that wrote the program"

UNSUPPORTED: Mapping[str, str] = {
    "stablehlo.all_gather": _EXCHANGE,
    "stablehlo.all_reduce": _EXCHANGE,
    "stablehlo.all_to_all": _EXCHANGE,
    "stablehlo.collective_broadcast": _EXCHANGE,
    "stablehlo.collective_permute": _EXCHANGE,
    "stablehlo.cross-replica-sum": _EXCHANGE,
    "stablehlo.infeed": _TRANSFER,
    "stablehlo.outfeed": _TRANSFER,
    "stablehlo.recv": _TRANSFER,
    "stablehlo.reduce_scatter": _EXCHANGE,
    "stablehlo.send": _TRANSFER,
    "mhlo.all_to_all": _EXCHANGE,
}
"""Op name -> why it has no rule. The identity would be right for one participant, and wrong without a word for several."""


@op_rule("stablehlo.partition_id", "stablehlo.replica_id")
def own_id(op: Op) -> np.ndarray:
    """Returns the id of the device's partition or replica: 0, since a program runs on one device.

    Spec: `partition_id`, `replica_id`.
    """
    return np.zeros((), np.uint32)
