"""LAPACK on the CPU as JAX called it before 2025: sizes and flags in scalar operands, workspace among the results.

Today's kernels do the same work under other names (`lapack_spotrf_ffi` for `lapack_spotrf`), with the flags in a config and no
workspace, and XLA knows the old names no more. So each old call becomes a new one.

Source: `jaxlib/lapack.py` of jaxlib 0.4.30, for the order of operands and results; `lapack.py` here for the new calls.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jax import Array, lax

from unlower._jax_compat import initialize_lapack
from unlower.errors import RuleError
from unlower.ir.attributes import Int, IntArray
from unlower.ir.module import Op
from unlower.ir.types import TensorType
from unlower.ops.custom_calls.lapack import known_types
from unlower.ops.dynamic_shape import known_integers
from unlower.ops.reemit import reemit
from unlower.ops.rule import op_rule

__all__ = ["TARGETS"]

Config = dict[str, Any]
Read = Callable[[int], int]


@dataclasses.dataclass(frozen=True, slots=True)
class _Routine:
    """How an old call becomes a new one.

    Attributes:
      letters: the element types that the routine comes in.
      arrays: the number of operands that are arrays, the last ones; scalars come before.
      config: the new call's config, from a function that reads a scalar by position: a flag is a constant, while a batch
        size can be a product that the module computes.
      results: for each result of the new call, its place among the old call's; the others are workspace.
      complex_results: the same for complex element types, where that differs.
    """

    letters: str
    arrays: int
    config: Callable[[Read], Config]
    results: tuple[int, ...]
    complex_results: tuple[int, ...] | None = None


def _letter(letter: str | int) -> Int:
    return Int(ord(letter) if isinstance(letter, str) else letter, "ui8")


def _triangle(lower: int) -> Int:
    return _letter("L" if lower else "U")


def _nothing(scalar: Read) -> Config:
    return {}


def _svd_mode(scalar: Read) -> Config:
    full_matrices, compute_uv = scalar(0), scalar(1)
    return {"mode": _letter("N" if not compute_uv else "A" if full_matrices else "S")}


def _schur_mode(scalar: Read) -> Config:
    return {"mode": _letter(scalar(2)), "sort": _letter(scalar(3))}


def _triangular(scalar: Read) -> Config:
    return {
        "side": _letter("L" if scalar(0) else "R"),
        "uplo": _triangle(scalar(1)),
        "trans_x": _letter("NTC"[scalar(2)]),
        "diag": _letter("U" if scalar(3) else "N"),
    }


_ROUTINES: Mapping[str, _Routine] = {
    "potrf": _Routine("sdcz", 1, lambda scalar: {"uplo": _triangle(scalar(0))}, (0, 1)),
    "getrf": _Routine("sdcz", 1, _nothing, (0, 1, 2)),
    "geqrf": _Routine("sdcz", 1, _nothing, (0, 1)),
    "orgqr": _Routine("sd", 2, _nothing, (0,)),
    "ungqr": _Routine("cz", 2, _nothing, (0,)),
    "gesdd": _Routine("sdcz", 1, _svd_mode, (0, 1, 2, 3, 4)),
    "syevd": _Routine("sd", 1, lambda scalar: {"mode": _letter("V"), "uplo": _triangle(scalar(0))}, (0, 1, 2)),
    "heevd": _Routine("cz", 1, lambda scalar: {"mode": _letter("V"), "uplo": _triangle(scalar(0))}, (0, 1, 2)),
    "geev": _Routine(
        "sdcz",
        1,
        lambda scalar: {"compute_left": _letter(scalar(2)), "compute_right": _letter(scalar(3))},
        (3, 4, 5, 6, 7),
        (2, 3, 4, 5),
    ),
    "gees": _Routine("sdcz", 1, _schur_mode, (0, 3, 1, 2, 4, 5), (0, 3, 2, 4, 5)),
    "gehrd": _Routine(
        "sdcz", 1, lambda scalar: {"low": Int(scalar(1), "i32"), "high": Int(scalar(2), "i32")}, (0, 1, 2)
    ),
    "sytrd": _Routine("sd", 1, lambda scalar: {"uplo": _triangle(scalar(1))}, (0, 1, 2, 3, 4)),
    "hetrd": _Routine("cz", 1, lambda scalar: {"uplo": _triangle(scalar(1))}, (0, 1, 2, 3, 4)),
    "trsm": _Routine("sdcz", 2, _triangular, (0,)),
}

_OLD = {
    f"{'blas' if name == 'trsm' else 'lapack'}_{letter}{name}": (name, letter)
    for name, routine in _ROUTINES.items()
    for letter in routine.letters
}
TARGETS = tuple(_OLD)
"""Every target of this file."""


@op_rule(*TARGETS, specialize=True)
def lapack_before_ffi(op: Op, *operands: Any, **_: Any) -> tuple[Array, ...]:
    """Calls the kernel that took this one's place.

    Source: jaxlib 0.4.30, `jaxlib/lapack.py`. The attributes are layouts and aliases, which the new call has of its own.

    Raises:
      RuleError: a flag depends on the data; eigenvalues are to be sorted, which jaxlib never could.
    """
    initialize_lapack()
    name, letter = _OLD[str(op.attributes["call_target_name"])]
    routine = _ROUTINES[name]
    types, kept = known_types(op, operands)
    arrays, scalars = kept[-routine.arrays :], kept[: -routine.arrays]
    if name == "trsm":
        *scalars, alpha = scalars
        arrays[1] = lax.mul(arrays[1], lax.broadcast(lax.convert_element_type(alpha, arrays[1].dtype), arrays[1].shape))
    config = routine.config(lambda position: known_integers(op, "flag", scalars[position])[0])
    if config.get("sort", ord("N")) != ord("N"):
        raise RuleError(f"{op.attributes['call_target_name']} with eigenvalues sorted", mend="drop the sorting")
    places = routine.results if letter in "sd" or routine.complex_results is None else routine.complex_results
    new_types = [types[i] for i in places]
    rank = arrays[0].ndim
    attributes = {
        "api_version": Int(1, "i32"),
        "backend_config": "",
        "call_target_name": f"lapack_{letter}{name}_ffi",
        "called_computations": (),
        "has_side_effect": False,
        "mhlo.backend_config": config,
        "mhlo.frontend_attributes": {"num_batch_dims": str(rank - 2)},
        "operand_layouts": tuple(_layout(array.ndim, rank) for array in arrays),
        "result_layouts": tuple(_layout(len(type_.shape), rank) for type_ in new_types),
    }
    results = dict(zip(places, reemit("stablehlo.custom_call", arrays, new_types, attributes), strict=True))
    return tuple(results[i] if i in results else _zeros(type_) for i, type_ in enumerate(types))


def _layout(rank: int, matrix_rank: int) -> IntArray:
    """Matrices are column by column, everything else row by row; the batch dimensions come last."""
    order = list(range(rank - 1, -1, -1))
    if rank == matrix_rank:
        order[:2] = [rank - 2, rank - 1]
    return IntArray(order, "index")


def _zeros(type_: TensorType) -> Array:
    """What stands for workspace, and for a status that today's kernels do not return."""
    return lax.full(type_.shape, np.zeros((), type_.dtype), type_.dtype)
