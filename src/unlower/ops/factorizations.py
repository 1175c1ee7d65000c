"""Derivatives of matrix factorizations, for the ops and custom calls that compute them.

Every function takes leading batch dimensions. Those named after a factorization return the tangent of its results, given the
results themselves, so nothing is factorized twice; `householder_qr`, `householder_product` and `householder_multiply` are
LAPACK's algorithms in `lax`, of which JAX takes the derivative.

Sources: Giles, "An extended collection of matrix derivative results" (2008) for eigenvalues and singular values; Murray,
"Differentiation of the Cholesky decomposition" (2016); de Hoog et al. (2011) for LU; LAPACK's `larfg` and `org2r` for
reflectors.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from unlower._jax_compat import CHOLESKY_READS_A_TRIANGLE

__all__ = [
    "adjoint",
    "cholesky",
    "eigenvalues",
    "eigenvectors",
    "eigh",
    "hermitian",
    "householder_multiply",
    "householder_product",
    "householder_qr",
    "lu",
    "matmul",
    "svd",
    "take_columns",
    "triangle",
    "triangular_solve",
    "tridiagonal_solve",
]


def matmul(a: Array, b: Array) -> Array:
    """Multiplies matrices `[..., m, k]` and `[..., k, n]` at full precision."""
    n = a.ndim - 2
    batch = tuple(range(n))
    return lax.dot_general(a, b, (((n + 1,), (n,)), (batch, batch)), precision=lax.Precision.HIGHEST)


def transposed(x: Array) -> Array:
    """Swaps the last two dimensions."""
    return lax.transpose(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


def adjoint(x: Array) -> Array:
    """Conjugates and swaps the last two dimensions."""
    return lax.conj(transposed(x)) if _is_complex(x) else transposed(x)


def triangle(x: Array, *, lower: bool, offset: int = 0) -> Array:
    """Keeps the triangle of `[..., m, n]`, `offset` diagonals away from the main one, and puts zeros elsewhere."""
    rows = lax.broadcasted_iota(np.dtype(np.int32), x.shape, x.ndim - 2)
    columns = lax.broadcasted_iota(np.dtype(np.int32), x.shape, x.ndim - 1)
    away = np.int32(offset)
    kept = lax.ge(rows, columns + away) if lower else lax.ge(columns, rows + away)
    return lax.select(kept, x, lax.full_like(x, 0))


def hermitian(x: Array, *, lower: bool) -> Array:
    """Completes one triangle to the Hermitian matrix that it stands for; the diagonal becomes real."""
    if not _is_complex(x):
        return triangle(x, lower=lower) + transposed(triangle(x, lower=lower, offset=1))
    strict = triangle(x, lower=lower, offset=1)
    diagonal = triangle(triangle(lax.real(x), lower=True), lower=False)
    return strict + adjoint(strict) + lax.complex(diagonal, lax.full_like(diagonal, 0))


def _is_complex(x: Array) -> bool:
    return jnp.issubdtype(x.dtype, jnp.complexfloating)


def _real(x: Array) -> Array:
    return lax.real(x) if _is_complex(x) else x


def _eye_like(x: Array) -> Array:
    """The identity of the last two dimensions of `x`, in each matrix of the batch."""
    rows = lax.broadcasted_iota(np.dtype(np.int32), x.shape, x.ndim - 2)
    columns = lax.broadcasted_iota(np.dtype(np.int32), x.shape, x.ndim - 1)
    return lax.convert_element_type(lax.eq(rows, columns), x.dtype)


def _diagonal(x: Array) -> Array:
    return lax.reduce(x * _eye_like(x), np.zeros((), x.dtype), lax.add, (x.ndim - 2,))


def _as_rows(x: Array, like: Array) -> Array:
    return lax.broadcast_in_dim(x, like.shape, (*range(x.ndim - 1), like.ndim - 1))


def _as_columns(x: Array, like: Array) -> Array:
    return lax.broadcast_in_dim(x, like.shape, (*range(x.ndim - 1), like.ndim - 2))


def _over_batch(function: Callable[..., Any], batch_dimensions: int) -> Callable[..., Any]:
    for _ in range(batch_dimensions):
        function = jax.vmap(function)
    return function


# --- Cholesky, triangular and tridiagonal systems


def cholesky(factor: Array, a_dot: Array, *, lower: bool) -> Array:
    """Returns the tangent of the factor's triangle.

    As JAX, it reads only the same triangle of `a_dot`; JAX before 0.11 takes `a_dot` to be Hermitian.
    """
    if not lower:
        return adjoint(cholesky(adjoint(factor), adjoint(a_dot), lower=True))
    left = triangle(factor, lower=True)
    solve = functools.partial(lax.linalg.triangular_solve, left, lower=True)
    moved = hermitian(a_dot, lower=True) if CHOLESKY_READS_A_TRIANGLE else a_dot
    inner = solve(moved, left_side=False, transpose_a=True, conjugate_a=True)
    inner = triangle(solve(inner, left_side=True), lower=True)
    halved = lax.full_like(inner, 1) + _eye_like(inner)
    return matmul(left, inner / halved)


def triangular_solve(
    a: Array,
    x: Array,
    a_dot: Array | None,
    b_dot: Array | None,
    *,
    left_side: bool,
    lower: bool,
    unit_diagonal: bool,
    transpose_a: bool,
    conjugate_a: bool,
) -> Array:
    """Returns the tangent of the solution `x` of `op(a) x = b`, or of `x op(a) = b`; one tangent may be None, zero."""
    change = b_dot
    if a_dot is not None:
        moved = triangle(a_dot, lower=lower, offset=int(unit_diagonal))
        moved = transposed(moved) if transpose_a else moved
        moved = lax.conj(moved) if conjugate_a and _is_complex(moved) else moved
        product = matmul(moved, x) if left_side else matmul(x, moved)
        change = lax.neg(product) if b_dot is None else b_dot - product
    assert change is not None
    return lax.linalg.triangular_solve(
        a,
        change,
        left_side=left_side,
        lower=lower,
        transpose_a=transpose_a,
        conjugate_a=conjugate_a,
        unit_diagonal=unit_diagonal,
    )


def tridiagonal_solve(
    diagonals: Sequence[Array],
    x: Array,
    diagonals_dot: Sequence[Array | None],
    b_dot: Array | None,
    solve: Callable[..., Array],
) -> Array:
    """Returns the tangent of the solution of a tridiagonal system, `solve(dl, d, du, b)` being the solver.

    Tangents that are None are zero.
    """
    rows = x.ndim - 2
    zero = np.zeros((), x.dtype)
    change = lax.full_like(x, 0) if b_dot is None else b_dot
    for diagonal_dot, by in zip(diagonals_dot, (1, 0, -1), strict=True):
        if diagonal_dot is not None:
            shifted = lax.pad(x, zero, [(by, -by, 0) if i == rows else (0, 0, 0) for i in range(x.ndim)])
            change = change - _as_columns(diagonal_dot, x) * shifted
    return solve(*diagonals, change)


# --- LU


def lu(factors: Array, permutation: Array, a_dot: Array) -> Array:
    """Returns the tangent of the packed factors, `a[permutation] = l u`."""
    m, n = factors.shape[-2:]
    k = min(m, n)
    batch = factors.ndim - 2
    zero = np.zeros((), factors.dtype)

    def padded(x: Array, rows: int, columns: int) -> Array:
        return lax.pad(x, zero, [(0, 0, 0)] * batch + [(0, rows, 0), (0, columns, 0)])

    left = padded(triangle(lax.slice_in_dim(factors, 0, k, axis=batch + 1), lower=True, offset=1), 0, m - k)
    left = left + _eye_like(left)
    right = padded(triangle(lax.slice_in_dim(factors, 0, k, axis=batch), lower=False), n - k, 0)
    tail = _eye_like(right)
    right = right + tail - padded(lax.slice(tail, (0,) * (batch + 2), (*tail.shape[:-2], k, k)), n - k, n - k)
    permuted = _over_batch(lambda rows, order: rows.at[order].get(mode="promise_in_bounds"), batch)(a_dot, permutation)
    solved = lax.linalg.triangular_solve(left, permuted, left_side=True, lower=True, unit_diagonal=True)
    solved = lax.linalg.triangular_solve(right, solved, left_side=False, lower=False)
    below, above = triangle(solved, lower=True, offset=1), triangle(solved, lower=False)
    return matmul(left, below) + matmul(above, right)


# --- QR


def take_columns(a: Array, order: Array) -> Array:
    """Puts the columns of each matrix in the given order."""
    taken = _over_batch(lambda rows, chosen: rows.at[chosen].get(mode="promise_in_bounds"), a.ndim - 2)
    return transposed(taken(transposed(a), order))


def householder_qr(a: Array) -> tuple[Array, Array]:
    """Packs reflectors and `r` as LAPACK's `geqrf` does: `[..., m, n]` -> `[..., m, n]`, `[..., min(m, n)]`."""
    m, n = a.shape[-2:]
    k = min(m, n)
    return _over_batch(lambda matrix: _householder_qr(matrix, k), a.ndim - 2)(a)


def _householder_qr(a: Array, k: int) -> tuple[Array, Array]:
    m, n = a.shape
    rows = lax.iota(np.dtype(np.int32), m)
    columns = lax.broadcasted_iota(np.dtype(np.int32), (m, n), 1)
    zero, one = np.zeros((), a.dtype), np.ones((), a.dtype)

    def step(carry: tuple[Array, Array], j: Array) -> tuple[tuple[Array, Array], None]:
        a, taus = carry
        column = lax.dynamic_index_in_dim(a, j, axis=1, keepdims=False)
        alpha = lax.dynamic_index_in_dim(column, j, keepdims=False)
        below = jnp.where(rows > j, column, zero)
        tail = jnp.sum(_real(below * lax.conj(below)) if _is_complex(a) else below * below)
        # No reflection is needed when nothing lies below and the pivot is real.
        trivial = tail == 0
        if _is_complex(a):
            trivial = trivial & (lax.imag(alpha) == 0)
        size = jnp.where(
            trivial, jnp.ones_like(tail), tail + _real(alpha * lax.conj(alpha) if _is_complex(a) else alpha * alpha)
        )
        length = lax.sqrt(size)
        beta = jnp.where(_real(alpha) >= 0, -length, length).astype(a.dtype)
        beta = jnp.where(trivial, alpha, beta)
        safe = jnp.where(trivial, one, beta)
        tau = jnp.where(trivial, zero, (safe - alpha) / safe)
        scale = jnp.where(trivial, one, alpha - beta)
        vector = below / scale
        reflector = jnp.where(rows == j, one, vector)
        projected = matmul(lax.conj(reflector)[None, :] if _is_complex(a) else reflector[None, :], a)
        tau_h = lax.conj(tau) if _is_complex(a) else tau
        changed = a - tau_h * matmul(reflector[:, None], projected)
        own = jnp.where(rows < j, column, jnp.where(rows == j, beta, vector))
        a = jnp.where(columns > j, changed, jnp.where(columns == j, own[:, None], a))
        return (a, lax.dynamic_update_index_in_dim(taus, tau, j, axis=0)), None

    (a, taus), _ = lax.scan(step, (a, jnp.zeros((k,), a.dtype)), lax.iota(np.dtype(np.int32), k))
    return a, taus


def householder_product(a: Array, taus: Array) -> Array:
    """Multiplies packed reflectors to the first columns of `q`, as LAPACK's `orgqr`: `[..., m, n]`, `[..., k]`."""
    identity = _eye_like(a)
    return householder_multiply(a, taus, identity, left=True, transpose=False)


def householder_multiply(a: Array, taus: Array, c: Array, *, left: bool, transpose: bool) -> Array:
    """Multiplies `c` by `q`, or by its adjoint, from the left or the right, as LAPACK's `ormqr`."""
    multiply = functools.partial(_householder_multiply, left=left, transpose=transpose)
    return _over_batch(multiply, a.ndim - 2)(a, taus, c)


def _householder_multiply(a: Array, taus: Array, c: Array, *, left: bool, transpose: bool) -> Array:
    k = taus.shape[0]
    vectors = triangle(lax.slice_in_dim(a, 0, k, axis=1), lower=True, offset=1)
    vectors = vectors + _eye_like(vectors)
    taus = lax.conj(taus) if transpose and _is_complex(a) else taus

    def step(c: Array, reflector: tuple[Array, Array]) -> tuple[Array, None]:
        vector, tau = reflector
        column = vector[:, None]
        if left:
            return c - tau * matmul(column, matmul(adjoint(column), c)), None
        return c - tau * matmul(matmul(c, column), adjoint(column)), None

    # q c and c q^H meet the last reflector first.
    c, _ = lax.scan(step, c, (transposed(vectors), taus), reverse=left != transpose)
    return c


# --- eigenvalues and singular values


def eigh(v: Array, w: Array, a_dot: Array) -> tuple[Array, Array]:
    """Returns the tangents of eigenvectors and eigenvalues of a Hermitian matrix with distinct eigenvalues.

    As JAX, it takes `a_dot` to be Hermitian too.
    """
    identity = _eye_like(v)
    values = w.astype(v.dtype)
    gaps = _as_rows(values, v) - _as_columns(values, v)
    inverse = lax.integer_pow(gaps + identity, -1) - identity
    rotated = matmul(matmul(adjoint(v), a_dot), v)
    return matmul(v, inverse * rotated), _diagonal(_real(rotated))


def svd(s: Array, u: Array, vt: Array, a_dot: Array) -> tuple[Array, Array, Array]:
    """Returns the tangents of singular values and thin singular vectors, `a = u diag(s) vt`."""
    m, n = a_dot.shape[-2:]
    v = adjoint(vt)
    moved = matmul(matmul(adjoint(u), a_dot), v)
    s_dot = _diagonal(_real(moved))
    across, down = _as_rows(s, _real(moved)), _as_columns(s, _real(moved))
    identity = _eye_like(across)
    gaps = (across + down) * (across - down)
    inverse = (1 / (gaps + identity) - identity).astype(moved.dtype)
    across, down = across.astype(moved.dtype), down.astype(moved.dtype)
    right, left = across * moved, down * moved
    zeros = (s == 0).astype(s.dtype)
    reciprocal = _as_rows((1 / (s + zeros) - zeros).astype(moved.dtype), moved) * _eye_like(moved)
    phase = (moved - adjoint(moved)) * reciprocal / 2
    u_dot = matmul(u, inverse * (right + adjoint(right)) + phase)
    v_dot = matmul(v, inverse * (left + adjoint(left)))
    if m > n:
        outside = matmul(a_dot, v)
        outside = outside - matmul(u, matmul(adjoint(u), outside))
        u_dot = u_dot + outside / _as_rows(s.astype(u.dtype), u)
    if n > m:
        outside = matmul(adjoint(a_dot), u)
        outside = outside - matmul(v, matmul(vt, outside))
        v_dot = v_dot + outside / _as_rows(s.astype(v.dtype), v)
    return s_dot, u_dot, adjoint(v_dot)


def eigenvalues(v: Array, a_dot: Array) -> Array:
    """Returns the tangents of the eigenvalues of a general matrix, distinct ones, whose right eigenvectors are `v`."""
    return _diagonal(_rotated(v, a_dot))


def _rotated(v: Array, a_dot: Array) -> Array:
    return jnp.linalg.solve(v, matmul(a_dot.astype(v.dtype), v))


def eigenvectors(w: Array, v: Array, a_dot: Array) -> Array:
    """Returns the tangents of the right eigenvectors of a general matrix with distinct eigenvalues `w`.

    The vectors' lengths and phases are LAPACK's: the norm is 1 and the largest component is real.
    """
    if v.size == 0:
        return v
    identity = _eye_like(v)
    inverse = lax.reciprocal(identity + _as_rows(w, v) - _as_columns(w, v)) - identity
    free = matmul(v, inverse * _rotated(v, a_dot))
    rows = v.ndim - 2
    largest = lax.argmax(lax.abs(v), axis=rows, index_dtype=np.int32)
    here = lax.broadcasted_iota(np.dtype(np.int32), v.shape, rows) == _as_rows(largest, v)
    mask = here.astype(v.dtype)

    def total(x: Array) -> Array:
        return lax.reduce(x, np.zeros((), x.dtype), lax.add, (rows,))

    length = lax.real(total(lax.conj(v) * free))
    turn = lax.imag(total(mask * free)) / lax.real(total(mask * v))
    return free + v * _as_rows(lax.complex(-length, -turn), v)
