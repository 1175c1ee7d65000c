"""Old LAPACK calls against what JAX computes today: the texts are what jax 0.4.30 lowers to."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unlower
from unlower.ir.types import element_of_dtype
from unlower.ops.custom_calls.lapack_before_ffi import TARGETS

DTYPES = {"s": np.float32, "d": np.float64, "c": np.complex64, "z": np.complex128}
linalg = jax.lax.linalg


def module(target, scalars, arrays, results):
    """The text of a module that calls `target`; scalars are i32, or bytes where they are letters."""
    lines, names = [], []
    for i, scalar in enumerate(scalars):
        kind = "ui8" if isinstance(scalar, str) else "i32"
        lines.append(f"%s{i} = stablehlo.constant dense<{ord(scalar) if kind == 'ui8' else scalar}> : tensor<{kind}>")
        names.append((f"%s{i}", f"tensor<{kind}>"))
    names += [(f"%a{i}", tensor(a)) for i, a in enumerate(arrays)]
    types = ", ".join(kind for _, kind in names)
    out = ", ".join(tensor(r) for r in results)
    arguments = ", ".join(f"{name}: {kind}" for name, kind in names[len(scalars) :])
    call = f"stablehlo.custom_call @{target}({', '.join(n for n, _ in names)}) {{api_version = 2 : i32}} : ({types}) -> ({out})"
    returned = ", ".join(f"%r#{i}" for i in range(len(results))) if len(results) > 1 else "%r"
    place = f"%r:{len(results)}" if len(results) > 1 else "%r"
    return "\n".join(
        [
            f"func.func public @main({arguments}) -> ({out}) {{",
            *lines,
            f"{place} = {call}",
            f"return {returned} : {out}",
            "}",
        ]
    )


def tensor(array):
    return f"tensor<{''.join(f'{n}x' for n in array.shape)}{element_of_dtype(array.dtype)}>"


def like(dtype, *shape):
    return jax.ShapeDtypeStruct(shape, dtype)


def matrix(letter, *shape, seed=0):
    dtype = DTYPES[letter]
    generator = np.random.default_rng(seed)
    a = generator.standard_normal(shape)
    return (a + 1j * generator.standard_normal(shape) if letter in "cz" else a).astype(dtype)


def hermitian(a):
    return a + jnp.conj(jnp.swapaxes(a, -1, -2))


def case(routine, letter, batch):
    """Scalars, arrays, results of the old call, and for some of these what JAX computes."""
    dtype = DTYPES[letter]
    real = np.zeros((), dtype).real.dtype
    a = matrix(letter, *batch, 3, 3)
    size = int(np.prod(batch))
    square, vector, info = like(dtype, *batch, 3, 3), like(dtype, *batch, 3), like(np.int32, *batch)
    reals, work = like(real, *batch, 3), like(dtype, 50)
    if routine == "potrf":
        spd = np.asarray(hermitian(a)) + 9 * np.eye(3, dtype=dtype)
        lower = linalg.cholesky(spd, symmetrize_input=False)
        upper = np.triu(np.ones((3, 3), bool), 1)
        return [1, size, 3], [spd], [square, info], {0: np.where(upper, spd, lower)}
    if routine == "getrf":
        lu, pivots, _ = linalg.lu(a)
        return [size, 3, 3], [a], [square, like(np.int32, *batch, 3), info], {0: lu, 1: pivots + 1, 2: 0}
    if routine == "geqrf":
        packed, taus = linalg.geqrf(a) if hasattr(linalg, "geqrf") else (None, None)
        return (
            [size, 3, 3, 50],
            [a],
            [square, vector, info, work],
            {2: 0} | ({} if taus is None else {0: packed, 1: taus}),
        )
    if routine in ("orgqr", "ungqr"):
        taus = np.zeros((*batch, 3), dtype)
        q = np.broadcast_to(np.eye(3, dtype=dtype), a.shape)
        return [size, 3, 3, 3, 50], [a, taus], [square, info, work], {0: q, 1: 0}
    if routine == "gesdd":
        u, s, vt = linalg.svd(a, full_matrices=True)
        results = [
            square,
            reals,
            square,
            square,
            info,
            like(np.int32, 24),
            *([like(real, 20)] * (letter in "cz")),
            work,
        ]
        return [1, 1, size, 3, 3, 50], [a], results, {1: s, 2: u, 3: vt, 4: 0}
    if routine in ("syevd", "heevd"):
        h = np.asarray(hermitian(a))
        v, w = linalg.eigh(h, symmetrize_input=False)
        workspace = [work, *([like(real, 50)] * (letter in "cz")), like(np.int32, 50)]
        return [1, size, 3], [h], [square, reals, info, *workspace], {0: v, 1: w, 2: 0}
    if routine == "geev":
        w, left, right = linalg.eig(a)
        vectors = like(left.dtype, *batch, 3, 3)
        if letter in "sd":
            results = [like(dtype, 3, 3)] * 3 + [vector, vector, vectors, vectors, info]
            return [size, 3, "V", "V"], [a], results, {3: w.real, 4: w.imag, 5: left, 6: right, 7: 0}
        results = [like(dtype, 3, 3), like(real, 6), vector, vectors, vectors, info]
        return [size, 3, "V", "V"], [a], results, {2: w, 3: left, 4: right, 5: 0}
    if routine == "gees":
        t, vs = linalg.schur(a)
        if letter in "sd":
            return [size, 3, "V", "N"], [a], [square, vector, vector, square, info, info], {0: t, 3: vs, 5: 0}
        return [size, 3, "V", "N"], [a], [square, like(real, 3), vector, square, info, info], {0: t, 3: vs, 5: 0}
    if routine == "gehrd":
        packed, taus = linalg.hessenberg(a)
        return [3, 1, 3, 3, size, 50], [a], [square, like(dtype, *batch, 2), info, work], {0: packed, 1: taus, 2: 0}
    if routine in ("sytrd", "hetrd"):
        h = np.asarray(hermitian(a))
        packed, d, e, taus = linalg.tridiagonal(h, lower=True)
        off = like(real, *batch, 2)
        results = [square, reals, off, like(dtype, *batch, 2), info, work]
        return [3, 1, 3, size, 50], [h], results, {0: packed, 1: d, 2: e, 3: taus, 4: 0}
    assert routine == "trsm", routine
    triangle = a + 3 * np.eye(3, dtype=dtype)
    x = linalg.triangular_solve(
        triangle, 2 * a, left_side=True, lower=True, transpose_a=True, conjugate_a=True, unit_diagonal=False
    )
    return [1, 1, 2, 0, 3, 3, size], [np.full((), 2, dtype), triangle, a], [square], {0: x}


def text_and_inputs(target, batch):
    letter, routine = target.partition("_")[2][0], target.partition("_")[2][1:]
    scalars, arrays, results, want = case(routine, letter, batch)
    return module(target, scalars, arrays, results), arrays, results, want


@pytest.mark.parametrize("batch", [(), (2, 3)], ids=["plain", "batches"])
@pytest.mark.parametrize("target", TARGETS)
def test_the_bits_of_todays_kernels(target, batch):
    with jax.enable_x64(True):
        text, arrays, results, want = text_and_inputs(target, batch)
        if target.startswith("blas"):
            # `alpha` is a constant in every file.
            value = str(arrays[0].item().real)
            value = f"({value}, 0.0)" if np.iscomplexobj(arrays[0]) else value
            line = f"%a0 = stablehlo.constant dense<{value}> : {tensor(arrays[0])}"
            text = text.replace(f"%a0: {tensor(arrays[0])}, ", "").replace("{\n", "{\n" + line + "\n", 1)
            arrays = arrays[1:]
        got = jax.jit(unlower.load(text).flat)(*arrays)
    assert [(r.shape, r.dtype) for r in got] == [(r.shape, r.dtype) for r in results]
    for place, value in want.items():
        np.testing.assert_array_equal(np.asarray(got[place]), np.broadcast_to(value, got[place].shape))


def test_derivatives_and_batches_are_those_of_todays_calls():
    text, (a,), *_ = text_and_inputs("lapack_spotrf", ())
    program = unlower.load(text)
    lower = lambda a: jnp.tril(program(a)[0])
    today = lambda a: linalg.cholesky(a, symmetrize_input=False)
    np.testing.assert_array_equal(jax.jvp(lower, (a,), (a,))[1], jax.jvp(today, (a,), (a,))[1])
    np.testing.assert_array_equal(jax.vmap(lower)(np.stack([a, 2 * a])), jax.vmap(today)(np.stack([a, 2 * a])))


def test_a_batch_size_may_be_computed_but_a_flag_may_not():
    text, (a,), *_ = text_and_inputs("lapack_spotrf", ())
    computed = text.replace("%r:2", "%n = stablehlo.multiply %s1, %s1 : tensor<i32>\n%r:2").replace(
        "(%s0, %s1,", "(%s0, %n,"
    )
    assert computed != text
    np.testing.assert_array_equal(unlower.load(computed)(a)[0], unlower.load(text)(a)[0])
    flag = text.replace("%a0: ", "%s0: tensor<i32>, %a0: ").replace(
        "%s0 = stablehlo.constant dense<1> : tensor<i32>\n", ""
    )
    with pytest.raises(unlower.RuleError, match="a flag that depends on the data"):
        unlower.load(flag)


def test_sorted_eigenvalues_are_refused():
    text, *_ = text_and_inputs("lapack_sgees", ())
    with pytest.raises(unlower.RuleError, match="with eigenvalues sorted"):
        unlower.load(text.replace(f"dense<{ord('N')}> : tensor<ui8>", f"dense<{ord('S')}> : tensor<ui8>"))
