"""The caller's own functions stand in for those of a program whose rules were lost, once they are proved to be the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import unlower

X = np.linspace(-3, 3, 13, dtype=np.float32)


@jax.jit
@jax.custom_vjp
def clipped(x, scale):
    return x * scale + jnp.sin(x)


clipped.__wrapped__.defvjp(
    lambda x, scale: (clipped(x, scale), scale),
    lambda scale, g: (jnp.clip(g * scale, -0.5, 0.5), jnp.zeros_like(scale)),
)


@jax.jit
def halted(x):
    return x * lax.stop_gradient(jnp.exp(x)), lax.stop_gradient(x) * 3


def whole(x):
    y = clipped(x * 2, jnp.float32(4.0)) + clipped(x, x[0])
    a, b = halted(y)
    return a + b * jnp.cos(x)


def loss(f):
    return jax.grad(lambda x: jnp.vdot(f(x), jnp.arange(13, dtype=jnp.float32)))


@pytest.mark.parametrize("through", ["stablehlo", "hlo"])
def test_rules_that_lowering_lost(through):
    lowered = jax.jit(whole).lower(X)
    source = lowered if through == "stablehlo" else lowered.as_text("hlo")
    without = unlower.load(source)
    program = unlower.load(source, gradients={"clipped": clipped, "halted": halted})
    assert np.asarray(program(X)).tobytes() == np.asarray(jax.jit(whole)(X)).tobytes()
    wanted = loss(whole)(X)
    np.testing.assert_allclose(loss(program)(X), wanted, rtol=1e-5)
    np.testing.assert_allclose(loss(program.lift_constants(min_elements=1))(X), wanted, rtol=1e-5)
    assert not np.allclose(loss(without)(X), wanted)
    second = jax.jacrev(loss(whole))(X)
    np.testing.assert_allclose(jax.jacrev(loss(program))(X), second, rtol=1e-4, atol=1e-5)


def test_a_function_that_computes_something_else_is_refused():
    program = unlower.load(jax.jit(whole).lower(X), gradients={"halted": lambda x: (x * jnp.exp(x), x * 4)})
    assert np.asarray(program(X)).tobytes() == np.asarray(jax.jit(whole)(X)).tobytes()
    with pytest.raises(unlower.UnlowerError, match="gradients has for @halted does not compute what it computes"):
        loss(program)(X)


def test_a_function_that_is_not_there():
    with pytest.raises(unlower.SignatureError, match=r"does not have: clopped[\s\S]*clipped"):
        unlower.load(jax.jit(whole).lower(X), gradients={"clopped": clipped})
