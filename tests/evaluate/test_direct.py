"""Direct evaluation: programs with sizes unknown before the call."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unlower


def exported(fun, *shapes):
    scope = jax.export.SymbolicScope()
    args = [jax.ShapeDtypeStruct(jax.export.symbolic_shape(shape, scope=scope), np.float32) for shape in shapes]
    return jax.export.export(jax.jit(fun))(*args)


def test_other_sizes_retrace():
    program = unlower.load(exported(lambda x: jnp.sin(x) + jnp.mean(x, axis=0, keepdims=True), "(b, 3)"))
    for size in (1, 2, 5):
        x = np.arange(size * 3, dtype=np.float32).reshape(size, 3)
        np.testing.assert_allclose(program(x), np.sin(x) + x.mean(0, keepdims=True), rtol=1e-6)


def test_shape_arithmetic_is_done_while_tracing():
    def fun(x):
        return jnp.reshape(x, (x.shape[0] // 2, 2, -1)) * jnp.arange(x.shape[1], dtype=np.float32)[None, None]

    program = unlower.load(exported(fun, "(2*b, c)"))
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    np.testing.assert_array_equal(program(x), np.asarray(fun(x)))
    equations = str(jax.make_jaxpr(program.flat)(x))
    assert "floordiv" not in equations and "sign" not in equations


def test_transforms_work_on_symbolic_programs():
    def fun(x):
        return jnp.sum(jnp.tanh(x @ x.T))

    program = unlower.load(exported(fun, "(b, c)"))
    x = np.arange(6, dtype=np.float32).reshape(2, 3) / 10
    np.testing.assert_allclose(jax.grad(program)(x), jax.grad(fun)(x), rtol=1e-5)
    np.testing.assert_allclose(jax.vmap(program)(np.stack([x, -x])), [fun(x), fun(-x)], rtol=1e-5)


def test_a_loop_over_a_symbolic_size():
    def fun(x):
        return jax.lax.fori_loop(0, x.shape[0], lambda i, c: c + x[i], jnp.zeros(x.shape[1], np.float32))

    program = unlower.load(exported(fun, "(b, c)"))
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    np.testing.assert_array_equal(program(x), x.sum(0))


def test_the_signature_shows_what_is_open():
    program = unlower.load(exported(lambda x: x * 2, "(b, 3)"))
    assert [str(n) for n in program.in_avals[0].shape] == ["b", "3"]
    with pytest.raises(unlower.SignatureError, match="known only when it is called"):
        program.jaxpr  # noqa: B018
    with pytest.raises(unlower.SignatureError, match="x is float32\\[2,4\\]"):
        program(np.zeros((2, 4), np.float32))


def test_loops_that_sizes_count_have_a_reverse_mode():
    def run(w, xs):
        return jax.lax.scan(lambda c, x: (jnp.tanh(c @ w + x), c), xs[0], xs)

    (n,) = jax.export.symbolic_shape("n")
    structs = jax.ShapeDtypeStruct((4, 4), jnp.float32), jax.ShapeDtypeStruct((n, 4), jnp.float32)
    program = unlower.load(jax.export.export(jax.jit(run))(*structs))
    w = np.eye(4, dtype=np.float32) / 2
    for size in (1, 6):
        xs = np.ones((size, 4), np.float32)
        got, wanted = (jax.grad(lambda w, f=f, xs=xs: f(w, xs)[0].sum() + f(w, xs)[1].sum())(w) for f in (program, run))
        np.testing.assert_allclose(got, wanted, rtol=1e-6)
