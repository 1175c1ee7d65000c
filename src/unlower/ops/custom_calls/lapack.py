"""LAPACK on the CPU: jaxlib's `lapack_*_ffi` kernels, re-emitted as the very calls that they are.

A kernel takes leading batch dimensions on every operand and result, which is how its call batches. Its derivative, where it
has one, is that of the factorization; outputs that only hold workspace (a matrix overwritten, the factors of a tridiagonal
system) and status codes have none.

Source: `jaxlib/cpu/lapack_kernels.cc`, `jax/_src/lax/linalg.py`.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jax import Array, lax

from unlower._jax_compat import initialize_lapack
from unlower.errors import UnlowerError
from unlower.ir.attributes import IntArray
from unlower.ir.module import Op
from unlower.ir.types import TensorType
from unlower.ops import factorizations
from unlower.ops.dynamic_shape import known_integers
from unlower.ops.linear_algebra import batch_in_front
from unlower.ops.reemit import (
    Attributes,
    Call,
    batching_rule,
    jvp_rule,
    partial_jvp,
    reemit,
    transpose_rule,
    transpose_through,
)
from unlower.ops.rule import op_rule

__all__ = ["TARGETS", "batch_custom_call", "known_types"]

_REAL, _COMPLEX = ("s", "d"), ("c", "z")

_FAMILIES: Mapping[str, tuple[str, ...]] = {
    "potrf": (*_REAL, *_COMPLEX),
    "trsm": (*_REAL, *_COMPLEX),
    "getrf": (*_REAL, *_COMPLEX),
    "geqrf": (*_REAL, *_COMPLEX),
    "geqp3": (*_REAL, *_COMPLEX),
    "orgqr": _REAL,
    "ungqr": _COMPLEX,
    "ormqr": _REAL,
    "unmqr": _COMPLEX,
    "syevd": _REAL,
    "heevd": _COMPLEX,
    "geev": (*_REAL, *_COMPLEX),
    "gees": (*_REAL, *_COMPLEX),
    "gehrd": (*_REAL, *_COMPLEX),
    "gesdd": (*_REAL, *_COMPLEX),
    "gesvd": (*_REAL, *_COMPLEX),
    "sytrd": _REAL,
    "hetrd": _COMPLEX,
    "gtsv": (*_REAL, *_COMPLEX),
}
"""LAPACK routine -> the letters of the element types that it comes in."""


def _targets(*routines: str) -> list[str]:
    return [f"lapack_{letter}{routine}_ffi" for routine in routines for letter in _FAMILIES[routine]]


_PERTURBED = "tridiagonal_solve_perturbed_ffi"
TARGETS = (*_targets(*_FAMILIES), _PERTURBED)
"""Every target of this file."""


@op_rule(*TARGETS, specialize=True)
def lapack(op: Op, *operands: Any, **attributes: Any) -> tuple[Array, ...]:
    """Calls the kernel.

    Spec: `custom_call`. Every attribute goes with it, so none is named here. The operands that give the result's sizes, in
    files with symbolic dimensions, go away: the sizes are known by now.
    """
    initialize_lapack()
    types, kept = known_types(op, operands)
    attributes = {name: value for name, value in op.attributes.items() if name != _SHAPE_OPERANDS}
    layouts = attributes.get("operand_layouts")
    if layouts is not None and len(layouts) > len(kept):
        indices = _shape_operands(op)
        attributes["operand_layouts"] = tuple(x for i, x in enumerate(layouts) if i not in indices)
    return reemit(op.name, kept, types, attributes)


_SHAPE_OPERANDS = "indices_of_shape_operands"


def known_types(op: Op, operands: Sequence[Any]) -> tuple[list[TensorType], list[Any]]:
    """Returns the result types, whose sizes may be operands, and the operands that are none."""
    indices = _shape_operands(op)
    if not indices:
        return list(op.types), list(operands)
    types = [_sized(op, type_, operands[i]) for type_, i in zip(op.types, indices, strict=True)]
    return types, [operand for i, operand in enumerate(operands) if i not in indices]


def _shape_operands(op: Op) -> list[int]:
    shapes = op.attributes.get(_SHAPE_OPERANDS)
    return [] if shapes is None else [int(i) for i in np.asarray(_values(shapes)).reshape(-1)]


def _values(attribute: Any) -> Any:
    return attribute.expanded() if hasattr(attribute, "expanded") else tuple(attribute)


def _sized(op: Op, type_: TensorType, sizes: Any) -> TensorType:
    return TensorType(known_integers(op, "result size", sizes), type_.element)


# --- batches


@batching_rule(*TARGETS)
def batch_custom_call(
    call: Call, size: int, operands: Sequence[Any], dims: Sequence[int | None]
) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    """Adds a leading dimension to every operand and result, and to the attributes that speak of dimensions."""
    attributes = dict(call.attributes)
    for name in ("operand_layouts", "result_layouts"):
        if name in attributes:
            attributes[name] = tuple(
                IntArray([*(d + 1 for d in layout), 0], layout.element) for layout in attributes[name]
            )
    frontend = attributes.get("mhlo.frontend_attributes")
    if frontend is not None and "num_batch_dims" in frontend:
        dimensions = str(int(frontend["num_batch_dims"]) + 1)
        attributes["mhlo.frontend_attributes"] = {**frontend, "num_batch_dims": dimensions}
    # Says how the dimensions may be sharded, one letter for each; there is one more now.
    attributes.pop("sdy.sharding_rule", None)
    changed = dataclasses.replace(call, attributes=Attributes(attributes))
    return batch_in_front(changed, size, operands, dims)


# --- derivatives

Tangents = Sequence[Any]
Jvp = tuple[Sequence[Array], Sequence[Any]]


def _config(call: Call, name: str) -> Any:
    config = call.attributes.get("mhlo.backend_config", call.attributes.get("backend_config"))
    return config[name]  # pyright: ignore[reportOptionalSubscript]


def _letter(call: Call, name: str) -> str:
    return chr(int(_config(call, name)))


@jvp_rule(*_targets("potrf"))
def _potrf_jvp(call: Call, primals: Sequence[Array], tangents: Tangents) -> Jvp:
    results = call.bind(*primals)
    lower = _letter(call, "uplo") == "L"
    (a_dot,) = tangents
    # The other triangle holds what was there before, and is no result: JAX has no derivative for it either.
    return results, (factorizations.cholesky(results[0], a_dot, lower=lower), None)


def _trsm_dot(call: Call, a: Array, x: Array, a_dot: Any, b_dot: Any) -> Array:
    transpose = _letter(call, "trans_x")
    return factorizations.triangular_solve(
        a,
        x,
        a_dot,
        b_dot,
        left_side=_letter(call, "side") == "L",
        lower=_letter(call, "uplo") == "L",
        unit_diagonal=_letter(call, "diag") == "U",
        transpose_a=transpose != "N",
        conjugate_a=transpose == "C",
    )


@jvp_rule(*_targets("trsm"))
def _trsm_jvp(call: Call, primals: Sequence[Array], tangents: Tangents) -> Jvp:
    a, b = primals
    (x,) = call.bind(a, b)
    return (x,), (_trsm_dot(call, a, x, *tangents),)


# The solution is linear in `b`, so it is its own tangent.
transpose_rule(*_targets("trsm"))(transpose_through(lambda call, a, b: (_trsm_dot(call, a, b, None, b),)))


@jvp_rule(*_targets("getrf"))
def _getrf_jvp(call: Call, primals: Sequence[Array], tangents: Tangents) -> Jvp:
    factors, pivots, info = call.bind(*primals)
    permutation = lax.linalg.lu_pivots_to_permutation(pivots - np.int32(1), factors.shape[-2])
    (a_dot,) = tangents
    return (factors, pivots, info), (factorizations.lu(factors, permutation, a_dot), None, None)


def _through(function: Callable[..., tuple[Any, ...]]) -> Callable[[Call, Sequence[Array], Tangents], Jvp]:
    """The derivative rule of a kernel that computes `function(call, *operands)`."""

    def rule(call: Call, primals: Sequence[Array], tangents: Tangents) -> Jvp:
        return call.bind(*primals), partial_jvp(functools.partial(function, call), primals, tangents)

    return rule


jvp_rule(*_targets("geqrf"))(_through(lambda call, a: factorizations.householder_qr(a)))
jvp_rule(*_targets("orgqr", "ungqr"))(_through(lambda call, a, taus: (factorizations.householder_product(a, taus),)))


def _ormqr(call: Call, a: Array, taus: Array, c: Array) -> tuple[Array]:
    left, transpose = bool(_config(call, "left")), bool(_config(call, "transpose"))
    return (factorizations.householder_multiply(a, taus, c, left=left, transpose=transpose),)


jvp_rule(*_targets("ormqr", "unmqr"))(_through(_ormqr))


@jvp_rule(*_targets("geqp3"))
def _geqp3_jvp(call: Call, primals: Sequence[Array], tangents: Tangents) -> Jvp:
    packed, pivots, taus = call.bind(*primals)

    def permuted(a: Array) -> tuple[Any, ...]:
        return factorizations.householder_qr(factorizations.take_columns(a, pivots - np.int32(1)))

    packed_dot, taus_dot = partial_jvp(permuted, primals[:1], tangents[:1])
    return (packed, pivots, taus), (packed_dot, None, taus_dot)


@jvp_rule(*_targets("syevd", "heevd"))
def _syevd_jvp(call: Call, primals: Sequence[Array], tangents: Tangents) -> Jvp:
    # As JAX, which differentiates at the Hermitian part of its operand, whatever triangle is read: the same for Hermitian ones.
    a = (primals[0] + factorizations.adjoint(primals[0])) / 2
    v, w, info = call.bind(a)
    (a_dot,) = tangents
    if _letter(call, "mode") != "V":
        # Without vectors, the first result is workspace; the values' derivative needs them all the same.
        vectors, _ = lax.linalg.eigh(a, symmetrize_input=False)
        return (v, w, info), (None, factorizations.eigh(vectors, w, a_dot)[1], None)
    v_dot, w_dot = factorizations.eigh(v, w, a_dot)
    return (v, w, info), (v_dot, w_dot, None)


@jvp_rule(*_targets("geev"))
def _geev_jvp(call: Call, primals: Sequence[Array], tangents: Tangents) -> Jvp:
    results = call.bind(*primals)
    *values, left, right, _ = results
    w = values[0] if len(values) == 1 else lax.complex(*values)
    has_left, has_right = _letter(call, "compute_left") == "V", _letter(call, "compute_right") == "V"
    (a_dot,) = tangents
    a_dot = a_dot.astype(w.dtype)
    vectors = right if has_right else lax.linalg.eig(primals[0], compute_left_eigenvectors=False)[1]
    w_dot = factorizations.eigenvalues(vectors, a_dot)
    right_dot = factorizations.eigenvectors(w, right, a_dot) if has_right else None
    left_dot = None
    if has_left:
        # Left eigenvectors are the right ones of the adjoint.
        left_dot = factorizations.eigenvectors(lax.conj(w), left, factorizations.adjoint(a_dot))
    values_dot = (w_dot,) if len(values) == 1 else (lax.real(w_dot), lax.imag(w_dot))
    return results, (*values_dot, left_dot, right_dot, None)


@jvp_rule(*_targets("gesdd", "gesvd"))
def _gesdd_jvp(call: Call, primals: Sequence[Array], tangents: Tangents) -> Jvp:
    a, s, u, vt, info = call.bind(*primals)
    mode = _letter(call, "mode")
    m, n = a.shape[-2:]
    (a_dot,) = tangents
    if mode == "A" and m != n:
        raise UnlowerError(
            "the singular vectors that complete a basis are not determined, so they have no derivative",
            where=repr(call),
            mend="ask for the thin factors (full_matrices=False), or for the singular values alone",
        )
    if mode == "N":
        left, _, right = lax.linalg.svd(primals[0], full_matrices=False)
        return (a, s, u, vt, info), (None, factorizations.svd(s, left, right, a_dot)[0], None, None, None)
    s_dot, u_dot, vt_dot = factorizations.svd(s, u, vt, a_dot)
    return (a, s, u, vt, info), (None, s_dot, u_dot, vt_dot, None)


@jvp_rule(*_targets("gtsv"))
def _gtsv_jvp(call: Call, primals: Sequence[Array], tangents: Tangents) -> Jvp:
    *diagonals, _ = primals
    *diagonals_dot, b_dot = tangents
    results = call.bind(*primals)
    solve = lax.linalg.tridiagonal_solve
    x_dot = factorizations.tridiagonal_solve(diagonals, results[3], diagonals_dot, b_dot, solve)
    return results, (None, None, None, x_dot, None)


@jvp_rule(_PERTURBED)
def _perturbed_jvp(call: Call, primals: Sequence[Array], tangents: Tangents) -> Jvp:
    *diagonals, _ = primals
    *diagonals_dot, b_dot = tangents
    (x,) = call.bind(*primals)
    solve = functools.partial(lax.linalg.tridiagonal_solve, perturb_singular=True)
    return (x,), (factorizations.tridiagonal_solve(diagonals, x, diagonals_dot, b_dot, solve),)
