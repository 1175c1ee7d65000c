"""Linear algebra on GPUs: cuSOLVER, hipSOLVER, their batched BLAS and their hybrid kernels, as functions of `lax.linalg`.

JAX calls them in two ways. Today's calls are typed: target `cusolver_getrf_ffi`, settings in a dictionary, and no workspace.
Until 2025 they were not: target `cusolver_getrf`, a packed descriptor, and workspace among the results. Either way a kernel
finds matrices column by column; where a call's layouts are row by row, it hands over transposes and receives transposes.

Sources: `jax/_src/lax/linalg.py` for today's calls; `jaxlib/gpu_solver.py` of jaxlib 0.4.30 for the older ones;
`jaxlib/gpu/solver_kernels.h` and `blas_kernels.h` for the descriptors.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from unlower._jax_compat import geqp3, geqrf
from unlower.ir.module import Op
from unlower.ops import factorizations
from unlower.ops.custom_calls.conventions import (
    check_names,
    dictionary,
    differentiated_as,
    integers,
    json_config,
    refusal,
    zeros,
)
from unlower.ops.custom_calls.lapack import known_types
from unlower.ops.rule import op_rule

__all__ = ["TARGETS"]

Values = dict[str, Array]
Shapes = Mapping[str, tuple[int, ...]]


# --- what the kernels compute: arrays and settings in, results by name out; a result without a value is workspace


def _potrf(shapes: Shapes, a: Array, *, lower: bool) -> Values:
    """Factors Hermitian matrices, of which one triangle is read; the other one stays."""
    read = a if lower else factorizations.adjoint(a)
    factor = lax.linalg.cholesky(read, symmetrize_input=False)
    ok = jnp.all(jnp.isfinite(jnp.diagonal(factor, axis1=-2, axis2=-1)), axis=-1)
    factor = factor if lower else factorizations.adjoint(factor)
    other = factorizations.triangle(a, lower=not lower, offset=1)
    # LAPACK says which leading minor is not positive. All that is known here is that one is not.
    return {"a": factorizations.triangle(factor, lower=lower) + other, "info": jnp.where(ok, 0, 1)}


def _getrf(shapes: Shapes, a: Array) -> Values:
    """Factors matrices into permuted lower and upper triangles; pivots count from one."""
    factors, pivots, _ = lax.linalg.lu(a)
    zero = jnp.diagonal(factors, axis1=-2, axis2=-1) == 0
    if zero.shape[-1] == 0:
        return {"a": factors, "pivots": pivots}
    first = lax.argmax(zero, zero.ndim - 1, np.int32) + np.int32(1)
    info = jnp.where(jnp.any(zero, axis=-1), first, np.int32(0))
    return {"a": factors, "pivots": pivots + 1, "info": info}


def _geqrf(shapes: Shapes, a: Array) -> Values:
    """Factors matrices into packed reflectors and an upper triangle."""
    packed, taus = differentiated_as(geqrf, factorizations.householder_qr)(a)
    return {"a": packed, "taus": taus}


def _geqp3(shapes: Shapes, a: Array, pivots: Array) -> Values:
    """Factors matrices as `geqrf` does, columns permuted so that the diagonal falls; pivots count from one."""
    chosen = functools.partial(geqp3, use_magma=False)
    packed, pivots, taus = chosen(lax.stop_gradient(a), pivots)
    moved = factorizations.take_columns(a, pivots - np.int32(1))
    again = differentiated_as(lambda _: (packed, taus), factorizations.householder_qr)
    packed, taus = again(moved)
    return {"a": packed, "pivots": pivots, "taus": taus}


def _orgqr(shapes: Shapes, a: Array, taus: Array) -> Values:
    """Multiplies packed reflectors to the first columns of their product."""
    product = differentiated_as(
        lambda *xs: (lax.linalg.householder_product(*xs),), lambda *xs: (factorizations.householder_product(*xs),)
    )
    return {"a": product(a, taus)[0]}


def _ormqr(shapes: Shapes, a: Array, taus: Array, c: Array, *, left: bool, transpose: bool) -> Values:
    """Multiplies a matrix by the product of packed reflectors, or by its adjoint, from a side."""
    settings = {"left": left, "transpose": transpose}
    product = differentiated_as(
        lambda *xs: (lax.linalg.ormqr(*xs, **settings),),
        lambda *xs: (factorizations.householder_multiply(*xs, **settings),),
    )
    return {"c": product(a, taus, c)[0]}


def _syevd(shapes: Shapes, a: Array, *, lower: bool) -> Values:
    """Computes the eigenvectors and the eigenvalues, ascending, of Hermitian matrices, of which one triangle is read."""
    v, w = lax.linalg.eigh(a, lower=lower, symmetrize_input=False)
    return {"v": v, "w": w}


def _svd(a: Array, *, full: bool) -> tuple[Array, Array, Array]:
    """Returns `u`, `s` and `vt`; vectors that complete a basis have a derivative too.

    They are free to turn among themselves, and turn as little as they can, so that what does not depend on the choice of
    the basis has the right derivative: the thin factors among the full ones, or a projection.
    """
    m, n = a.shape[-2:]
    if not full or m == n:
        return tuple(lax.linalg.svd(a, full_matrices=False))  # pyright: ignore[reportReturnType]

    @jax.custom_jvp
    def complete(a: Array) -> tuple[Array, Array, Array]:
        return tuple(lax.linalg.svd(a, full_matrices=True))  # pyright: ignore[reportReturnType]

    @complete.defjvp
    def _(primals: Sequence[Array], tangents: Sequence[Array]) -> tuple[Any, Any]:
        u, s, vt = complete(*primals)
        k = min(m, n)
        thin_u, thin_vt = u[..., :k], vt[..., :k, :]
        s_dot, u_dot, vt_dot = factorizations.svd(s, thin_u, thin_vt, tangents[0])
        v_dot = factorizations.adjoint(_completed(factorizations.adjoint(vt), factorizations.adjoint(vt_dot)))
        return (u, s, vt), (_completed(u, u_dot), s_dot, v_dot)

    return complete(a)


def _completed(basis: Array, thin_dot: Array) -> Array:
    """Tangents of all columns of a unitary matrix, from those of the first few."""
    k = thin_dot.shape[-1]
    thin, rest = basis[..., :k], basis[..., k:]
    turned = factorizations.matmul(thin, factorizations.matmul(factorizations.adjoint(thin_dot), rest))
    return lax.concatenate([thin_dot, -turned], basis.ndim - 1)


def _singular_values(a: Array) -> Array:
    return lax.linalg.svd(a, full_matrices=False, compute_uv=False)


def _gesvd(shapes: Shapes, a: Array, *, compute_uv: bool = True) -> Values:
    """Computes singular values and vectors; the right ones are rows, conjugated."""
    if not compute_uv or len(shapes["u"]) != a.ndim:
        return {"s": _singular_values(a)}
    m, n = a.shape[-2:]
    u, s, vt = _svd(a, full=(shapes["u"][-1], shapes["vt"][-2]) == (m, n))
    return {"s": s, "u": u, "vt": vt}


def _gesvdj(shapes: Shapes, a: Array, *, compute_uv: bool = True) -> Values:
    """Computes singular values and vectors; the right ones are columns."""
    if not compute_uv:
        return {"s": _singular_values(a)}
    m, n = a.shape[-2:]
    u, s, vt = _svd(a, full=(shapes["u"][-1], shapes["v"][-1]) == (m, n))
    return {"s": s, "u": u, "v": factorizations.adjoint(vt)}


def _eig(a: Array, *, left: bool, right: bool) -> tuple[Array, ...]:
    """Returns eigenvalues, left and right eigenvectors, those that are wanted, as `lax.linalg.eig` does."""
    both: dict[str, Any] = {"compute_left_eigenvectors": left, "compute_right_eigenvectors": right}

    @jax.custom_jvp
    def eig(a: Array) -> tuple[Array, ...]:
        return tuple(lax.linalg.eig(a, **both))

    @eig.defjvp
    def _(primals: Sequence[Array], tangents: Sequence[Array]) -> tuple[Any, Any]:
        results = eig(*primals)
        w, *vectors = results
        a_dot = tangents[0].astype(w.dtype)
        known = vectors[-1] if right else lax.linalg.eig(primals[0], compute_left_eigenvectors=False)[1]
        dots = [factorizations.eigenvalues(known, a_dot)]
        if left:
            # Left eigenvectors are the right ones of the adjoint.
            dots.append(factorizations.eigenvectors(lax.conj(w), vectors[0], factorizations.adjoint(a_dot)))
        if right:
            dots.append(factorizations.eigenvectors(w, vectors[-1], a_dot))
        return results, tuple(dots)

    return eig(a)


def _hybrid_eig(shapes: Shapes, a: Array, *, left: bool, right: bool) -> Values:
    """Computes eigenvalues and eigenvectors of general matrices."""
    w, *vectors = _eig(a, left=left, right=right)
    values = {"w": w} if "w" in shapes else {"w_real": lax.real(w), "w_imag": lax.imag(w)}
    return values | dict(zip(_wanted(left, right), vectors, strict=True))


def _geev(shapes: Shapes, a: Array, *, left: bool, right: bool) -> Values:
    """Computes eigenvalues and eigenvectors of general matrices; a real one's pairs are columns of real and imaginary parts."""
    w, *vectors = _eig(a, left=left, right=right)
    if not jnp.issubdtype(a.dtype, jnp.complexfloating):
        # The first of a pair has the positive imaginary part; the second is its conjugate, so its place is free.
        second = lax.imag(w)[..., None, :] < 0
        vectors = [jnp.where(second, -lax.imag(v), lax.real(v)) for v in vectors]
    return {"w": w} | dict(zip(_wanted(left, right), vectors, strict=True))


def _wanted(left: bool, right: bool) -> list[str]:
    return ["vl"] * left + ["vr"] * right


def _sytrd(shapes: Shapes, a: Array, *, lower: bool) -> Values:
    """Reduces Hermitian matrices to tridiagonal ones."""
    packed, d, e, taus = lax.linalg.tridiagonal(a, lower=lower)
    return {"a": packed, "d": d, "e": e, "taus": taus}


def _trsm(
    shapes: Shapes, a: Array, b: Array, *, left_side: bool, lower: bool, transpose: int, unit_diagonal: bool
) -> Values:
    """Solves triangular systems."""
    x = lax.linalg.triangular_solve(
        a,
        b,
        left_side=left_side,
        lower=lower,
        transpose_a=transpose > 0,
        conjugate_a=transpose == 2,
        unit_diagonal=unit_diagonal,
    )
    return {"b": x}


def _gtsv2(shapes: Shapes, dl: Array, d: Array, du: Array, b: Array) -> Values:
    """Solves tridiagonal systems."""
    return {"b": lax.linalg.tridiagonal_solve(dl, d, du, b)}


def _perturbed(shapes: Shapes, dl: Array, d: Array, du: Array, b: Array) -> Values:
    """Solves tridiagonal systems, small pivots moved away from zero."""
    return {"b": lax.linalg.tridiagonal_solve(dl, d, du, b, perturb_singular=True)}


def _syrk(shapes: Shapes, a: Array, c: Array, alpha: Array, beta: Array, *, transpose: bool) -> Values:
    """Adds a multiple of the product of a matrix and its transpose."""
    a = factorizations.transposed(a) if transpose else a
    return {"c": alpha * factorizations.matmul(a, factorizations.transposed(a)) + beta * c}


def _cholesky_update(shapes: Shapes, r: Array, w: Array) -> Values:
    """Adds a vector's outer product with itself to a matrix that is known by its upper Cholesky factor."""
    return {"r": lax.linalg.cholesky_update(r, w)}


# --- how they are called

Read = Callable[[Sequence[int]], dict[str, Any]]

# cuSOLVER counts from zero; hipSOLVER's numbers are those of rocBLAS.
_LOWER = {0: True, 1: False, 122: True, 121: False}
_LEFT = {0: True, 1: False, 141: True, 142: False}
_TRANSPOSE = {0: 0, 1: 1, 2: 2, 111: 0, 112: 1, 113: 2}
_UNIT = {0: False, 1: True, 131: False, 132: True}


def _uplo(numbers: Sequence[int]) -> dict[str, Any]:
    return {"lower": _LOWER[numbers[1]]}


def _triangular(numbers: Sequence[int]) -> dict[str, Any]:
    side, uplo, transpose, diagonal = numbers[4:8]
    return {
        "left_side": _LEFT[side],
        "lower": _LOWER[uplo],
        "transpose": _TRANSPOSE[transpose],
        "unit_diagonal": _UNIT[diagonal],
    }


@dataclasses.dataclass(frozen=True, slots=True)
class _Convention:
    """One way to call a kernel.

    Attributes:
      meaning: what it computes.
      operands: how many operands are arrays of the kernel, the first ones.
      results: names of the results in order; `work` is workspace.
      settings: names in the dictionary of a typed call, which `meaning` takes.
      hints: names in that dictionary that have no bearing on values.
      descriptor: reads the settings of an untyped call from the integers of its descriptor.
      by_layout: whether the kernel finds matrices column by column, and the layouts say what they are.
    """

    meaning: Callable[..., Values]
    operands: int
    results: tuple[str, ...]
    settings: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    descriptor: Read | None = None
    by_layout: bool = True


def _typed(
    meaning: Callable[..., Values], operands: int, results: str, settings: str = "", hints: str = "", **more: Any
):
    return _Convention(meaning, operands, tuple(results.split()), tuple(settings.split()), tuple(hints.split()), **more)


def _untyped(meaning: Callable[..., Values], operands: int, results: str, descriptor: Read | None = None, **more: Any):
    return _Convention(meaning, operands, tuple(results.split()), descriptor=descriptor or (lambda numbers: {}), **more)


_SOLVERS = ("cusolver", "hipsolver", "oneapisolver")
_CONVENTIONS: Mapping[str, _Convention] = {
    "{solver}_potrf_ffi": _typed(_potrf, 1, "a info", "lower"),
    "{solver}_getrf_ffi": _typed(_getrf, 1, "a pivots info"),
    "{solver}_geqrf_ffi": _typed(_geqrf, 1, "a taus"),
    "{solver}_orgqr_ffi": _typed(_orgqr, 2, "a"),
    "{solver}_ormqr_ffi": _typed(_ormqr, 3, "c", "left transpose"),
    # The algorithm says by which iteration.
    "{solver}_syevd_ffi": _typed(_syevd, 1, "v w info", "lower", "algorithm"),
    # What is full shows in the shapes, and what is transposed in the layouts.
    "{solver}_gesvd_ffi": _typed(_gesvd, 1, "a s u vt info", "compute_uv", "full_matrices transposed"),
    "{solver}_gesdd_ffi": _typed(_gesvd, 1, "a s u vt info", "compute_uv", "full_matrices transposed"),
    "{solver}_gesvdj_ffi": _typed(_gesvdj, 1, "a s u v info", "compute_uv", "full_matrices"),
    "{solver}_gesvdp_ffi": _typed(_gesvdj, 1, "a s u v info", "compute_uv", "full_matrices"),
    "{solver}_geev_ffi": _typed(_geev, 1, "a w vl vr info", "left right"),
    "{solver}_sytrd_ffi": _typed(_sytrd, 1, "a d e taus info", "lower"),
    "{solver}_syrk_ffi": _typed(_syrk, 4, "c", "transpose", by_layout=False),
    "{sparse}_gtsv2_ffi": _typed(_gtsv2, 4, "b", by_layout=False),
    "{platform}_tridiagonal_solve_perturbed": _typed(_perturbed, 4, "b", by_layout=False),
    "{platform}_cholesky_update_ffi": _typed(_cholesky_update, 2, "r work", by_layout=False),
    # MAGMA is a library that computes the same.
    "{hybrid}_eig_real": _typed(_hybrid_eig, 1, "w_real w_imag vl vr info", "left right", "magma"),
    "{hybrid}_eig_comp": _typed(_hybrid_eig, 1, "w vl vr info", "left right", "magma"),
    "{hybrid}_geqp3": _typed(_geqp3, 2, "a pivots taus", "", "magma"),
    "{solver}_potrf": _untyped(_potrf, 1, "a info work", _uplo),
    "{solver}_getrf": _untyped(_getrf, 1, "a pivots info work"),
    "{blas}_getrf_batched": _untyped(_getrf, 1, "a pivots info work"),
    "{solver}_geqrf": _untyped(_geqrf, 1, "a taus info work"),
    "{blas}_geqrf_batched": _untyped(_geqrf, 1, "a taus work work"),
    "{solver}_orgqr": _untyped(_orgqr, 2, "a info work"),
    "{solver}_syevd": _untyped(_syevd, 1, "v w info work", _uplo),
    "{solver}_syevj": _untyped(_syevd, 1, "v w info work", _uplo),
    "{solver}_gesvd": _untyped(_gesvd, 1, "a s u vt info work"),
    "{solver}_gesvdj": _untyped(_gesvdj, 1, "a s u v info work"),
    "{solver}_sytrd": _untyped(_sytrd, 1, "a d e taus info work", _uplo),
    "{blas}_trsm_batched": _untyped(_trsm, 2, "b work work", _triangular),
    "{sparse}_gtsv2_f32": _untyped(_gtsv2, 4, "b work", by_layout=False),
    "{sparse}_gtsv2_f64": _untyped(_gtsv2, 4, "b work", by_layout=False),
    "{platform}_cholesky_update": _untyped(_cholesky_update, 2, "r work", by_layout=False),
}
"""Target, by library -> how it is called."""

_LIBRARIES = {
    "{solver}": _SOLVERS,
    "{sparse}": ("cusparse", "hipsparse"),
    "{blas}": ("cublas", "hipblas"),
    "{platform}": ("cu", "hip"),
    "{hybrid}": ("cuhybrid", "hiphybrid", "oneapihybrid"),
}


def _names(pattern: str) -> list[str]:
    place = next(place for place in _LIBRARIES if pattern.startswith(place))
    return [pattern.replace(place, library) for library in _LIBRARIES[place]]


def _call(convention: _Convention, op: Op, operands: Sequence[Any]) -> tuple[Array, ...]:
    types, kept = known_types(op, operands)
    arrays = [jnp.asarray(operand) for operand in kept[: convention.operands]]
    rank = arrays[0].ndim
    if len(types) > len(convention.results):
        raise refusal(op, f"has {len(types)} results, of which its rule knows {len(convention.results)}")
    turned = convention.by_layout and _is_by_row(op, rank)

    def seen(x: Any, rank_of: int) -> bool:
        return turned and rank_of == rank

    arrays = [factorizations.transposed(x) if seen(x, x.ndim) else x for x in arrays]
    names = convention.results[: len(types)]
    shapes = {
        name: (*type_.shape[:-2], *reversed(type_.shape[-2:])) if seen(type_, len(type_.shape)) else type_.shape
        for name, type_ in zip(names, types, strict=True)
    }
    values = convention.meaning(shapes, *arrays, **_settings(op, convention))
    results = []
    for name, type_ in zip(names, types, strict=True):
        value = values.get(name) if name != "work" else None
        if value is not None and seen(value, value.ndim):
            value = factorizations.transposed(value)
        if value is not None and value.shape != type_.shape:
            raise refusal(op, f"has a result {name} of type {type_}, where {list(value.shape)} would fit")
        results.append(zeros(type_) if value is None else lax.convert_element_type(value, type_.dtype))
    return tuple(results)


def _is_by_row(op: Op, rank: int) -> bool:
    """Whether the first operand's matrices are handed over row by row."""
    layouts = op.attributes.get("operand_layouts")
    if not layouts:
        return False
    first = tuple(layouts[0])
    if first[:2] not in ((rank - 2, rank - 1), (rank - 1, rank - 2)):
        raise refusal(op, f"has matrices whose layout is {first}, which is neither by column nor by row")
    return first[:2] == (rank - 1, rank - 2)


def _settings(op: Op, convention: _Convention) -> dict[str, Any]:
    if convention.descriptor is not None:
        numbers = integers(op)
        try:
            return convention.descriptor(numbers)
        except (IndexError, KeyError, ValueError):
            raise refusal(op, f"has a descriptor of the numbers {numbers}, which its rule does not know") from None
    config = dictionary(op)
    check_names(op, config, (*convention.settings, *convention.hints))
    missing = [name for name in convention.settings if name not in config]
    if missing:
        raise refusal(op, f"lacks the setting {', '.join(missing)}")
    return {name: bool(config[name]) for name in convention.settings}


def _register(pattern: str, convention: _Convention) -> list[str]:
    def rule(op: Op, *operands: Any, **_: Any) -> tuple[Array, ...]:
        return _call(convention, op, operands)

    rule.__doc__ = convention.meaning.__doc__
    names = _names(pattern)
    op_rule(*names, specialize=True)(rule)
    return names


TARGETS = tuple(name for pattern, convention in _CONVENTIONS.items() for name in _register(pattern, convention))
"""Every target of this file."""


@op_rule("__cusolver$cholesky")
def cholesky(op: Op, a: Array, **_: Any) -> tuple[Array, ...]:
    """Factors Hermitian matrices, as XLA's GPU backend calls it.

    XLA: `cusolver_rewriter`. The results are the factor, workspace, and a status for each matrix.
    """
    config = json_config(op, "cholesky_options")
    check_names(op, config, ("lower",))
    values = _potrf({}, a, lower=bool(config.get("lower", False)))
    _factor, work, info = op.types
    return values["a"], zeros(work), lax.convert_element_type(values["info"], info.dtype).reshape(info.shape)


@op_rule("__cublas$triangularSolve")
def triangular_solve(op: Op, a: Array, b: Array, **_: Any) -> tuple[Array, ...]:
    """Solves triangular systems, as XLA's GPU backend calls it.

    XLA: `triangular_solve_rewriter`. The results are the solution and workspace.
    """
    config = json_config(op, "triangular_solve_options")
    check_names(op, config, ("left_side", "lower", "unit_diagonal", "transpose_a"))
    transpose = ("NO_TRANSPOSE", "TRANSPOSE", "ADJOINT").index(config.get("transpose_a", "NO_TRANSPOSE"))
    settings = {name: bool(config.get(name, False)) for name in ("left_side", "lower", "unit_diagonal")}
    x = _trsm({}, a, b, transpose=transpose, **settings)["b"]
    return x, *(zeros(type_) for type_ in op.types[1:])
