"""Loops over data: forward mode always, reverse mode within a bound, and never a wrong number in silence."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

import unlower

X = np.array([0.5, 1.0], np.float32)


def grow(x):
    return lax.while_loop(lambda y: y.sum() < 10.0, lambda y: y * 1.5 + jnp.sin(y), x)


def newton(a):
    """A square root, by as many steps as it takes."""
    return lax.while_loop(
        lambda s: jnp.abs(s[0] * s[0] - a) > 1e-3, lambda s: (0.5 * (s[0] + a / s[0]), s[1] + 1), (a, 0)
    )


def inside(x):
    def body(i, x):
        return lax.while_loop(lambda y: y.sum() < 3.0 * (i + 1), lambda y: y * 1.3 + 0.1 * jnp.sin(y) + 0.1, x)

    return lax.fori_loop(0, 3, body, x)


def load(function, *arguments, **options):
    return unlower.load(jax.jit(function).lower(*arguments), **options)


def test_forward_mode_needs_no_bound():
    program = load(grow, X)
    for got, wanted in zip(jax.jvp(program, (X,), (X,)), jax.jvp(grow, (X,), (X,)), strict=True):
        np.testing.assert_array_equal(got, wanted)
    np.testing.assert_allclose(jax.jacfwd(program)(X), jax.jacfwd(grow)(X))
    second = jax.jacfwd(jax.jacfwd(grow))(X)
    np.testing.assert_allclose(jax.jacfwd(jax.jacfwd(program))(X), second, rtol=1e-5)
    np.testing.assert_allclose(jax.vmap(program)(np.stack([X, 2 * X])), jax.vmap(grow)(np.stack([X, 2 * X])))


@pytest.mark.parametrize("transform", [jax.grad, lambda f: jax.jit(jax.grad(f)), lambda f: jax.grad(jax.jit(f))])
def test_reverse_mode_without_a_bound_names_the_loop(transform):
    program = load(grow, X)
    with pytest.raises(unlower.UnlowerError) as caught:
        transform(lambda x: program(x).sum())(X)
    text = str(caught.value)
    assert "the loop main.while_0 has no reverse mode without a bound" in text
    assert "@main" in text and "test_bounded_loop.py" in text
    assert 'program.bound_loops({"main.while_0": N})' in text and "max_iterations=" in text


@pytest.mark.parametrize("bound", [4, 5, 7, 9, 100, 5000])
def test_gradients_within_the_bound(bound):
    program = load(grow, X, max_iterations=bound)
    wanted = jax.jacfwd(grow)(X)
    np.testing.assert_allclose(jax.jacrev(program)(X), wanted, rtol=1e-5)
    np.testing.assert_allclose(jax.jacfwd(program)(X), wanted, rtol=1e-5)
    second = jax.jacfwd(jax.jacfwd(lambda x: grow(x).sum()))(X)
    np.testing.assert_allclose(jax.hessian(lambda x: program(x).sum())(X), second, rtol=1e-4, atol=1e-5)
    batch = np.stack([X, 3 * X, 30 * X])
    got = jax.vmap(jax.jacrev(program))(batch)
    np.testing.assert_allclose(got, jax.vmap(jax.jacfwd(grow))(batch), rtol=1e-5)


def test_a_bound_that_is_too_low_gives_nan_and_the_right_values():
    program = load(grow, X).bound_loops(3)
    value, pullback = jax.vjp(program, X)
    np.testing.assert_array_equal(value, jax.jit(grow)(X))
    assert np.isnan(pullback(X)[0]).all()
    value, tangent = jax.jvp(program, (X,), (X,))
    np.testing.assert_array_equal(value, jax.jit(grow)(X))
    assert np.isnan(tangent).all()


def test_memory_grows_with_the_root_of_the_bound():
    w = np.eye(64, dtype=np.float32)

    def run(w, c):
        return lax.while_loop(lambda c: jnp.sum(c) < 1e9, lambda c: jnp.tanh(c @ w) * 3, c)

    c = np.ones((8, 64), np.float32)

    def size(bound):
        program = load(run, w, c, max_iterations=bound)
        compiled = jax.jit(jax.grad(lambda w, c: program(w, c).sum())).lower(w, c).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    sizes = [size(256), size(4096)]
    assert sizes[1] < 6 * sizes[0]
    assert sizes[1] < 4096 * c.nbytes / 8


def test_integers_come_out_of_the_loop_itself():
    program = load(newton, 2.0, max_iterations=20)
    root, count = program(2.0)
    assert count == newton(2.0)[1]
    np.testing.assert_allclose(jax.grad(lambda a: program(a)[0])(2.0), 0.5 / np.sqrt(2), rtol=1e-3)
    assert root == newton(2.0)[0]


def test_inside_a_counted_loop():
    program = load(inside, X)
    names = [loop.name for loop in program.loops]
    assert [loop.trip_count for loop in program.loops] == [3, None]
    with pytest.raises(unlower.UnlowerError, match=names[1].replace(".", r"\.")):
        jax.jacrev(program)(X)
    bounded = program.bound_loops({names[1]: 12})
    np.testing.assert_allclose(jax.jacrev(bounded)(X), jax.jacfwd(inside)(X), rtol=1e-5)
    np.testing.assert_allclose(jax.jacrev(bounded.lift_constants(min_elements=1))(X), jax.jacfwd(inside)(X), rtol=1e-5)
    np.testing.assert_array_equal(bounded(X), jax.jit(inside)(X))


@pytest.mark.parametrize("bound", [0, -3, 1.5, True, {"main.while_0": 0}, {"main.while_7": 4}])
def test_bounds_that_make_no_sense(bound):
    with pytest.raises(unlower.SignatureError, match="max_iterations"):
        load(grow, X, max_iterations=bound)


@settings(max_examples=15, deadline=None)
@given(start=st.floats(0.1, 8), factor=st.floats(1.05, 3), bound=st.integers(1, 40))
def test_right_or_nan(start, factor, bound):
    def run(x):
        return lax.while_loop(lambda y: y < 10.0, lambda y: y * np.float32(factor), x)

    x, steps = np.float32(start), 0
    while x < np.float32(10.0):
        x, steps = x * np.float32(factor), steps + 1
    got = jax.grad(load(run, np.float32(start), max_iterations=bound))(np.float32(start))
    if steps > bound:
        assert np.isnan(got)
    else:
        np.testing.assert_allclose(got, np.float32(factor) ** steps, rtol=1e-4)
