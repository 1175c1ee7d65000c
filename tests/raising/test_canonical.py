"""Two functions have the same canonical form only if they compute the same bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unlower
from unlower.raising.canonical import canonical_form

X = np.ones((2, 3), np.float32)


def form(function, *arguments):
    module = unlower.load(jax.jit(function).lower(*(arguments or (X, X)))).module
    return canonical_form(module, module.entry)


SAME = {
    "calls": (lambda x, y: x * jnp.tanh(y), lambda x, y: jax.jit(lambda a, b: b * jnp.tanh(a))(y, x)),
    "order": (lambda x, y: jnp.sin(x) - jnp.cos(y), lambda x, y: (lambda c: jnp.sin(x) - c)(jnp.cos(y))),
    "again": (lambda x, y: jnp.sin(x) * jnp.sin(x), lambda x, y: (lambda s: s * s)(jnp.sin(x))),
    "constants": (lambda x, y: x + 1.0, lambda x, y: x + jnp.asarray(1, jnp.int32).astype(jnp.float32)),
    "views": (lambda x, y: x + y, lambda x, y: x + y.reshape(2, 3, 1).reshape(2, 3)),
}
OTHERS = {
    "operands": (lambda x, y: jnp.maximum(x, y), lambda x, y: jnp.maximum(y, x)),
    "attributes": (lambda x, y: x < y, lambda x, y: x > y),
    "constants": (lambda x, y: x + 1.0, lambda x, y: x + 2.0),
    "signs": (lambda x, y: x * 0.0, lambda x, y: x * -0.0),
    "axes": (lambda x, y: x.sum(0), lambda x, y: x.sum(1)),
    "regions": (lambda x, y: x.sum(0), lambda x, y: x.max(0)),
    "rounding": (lambda x, y: x.astype(jnp.bfloat16).astype(jnp.float32), lambda x, y: x),
    "arguments": (lambda x, y: x - y, lambda x, y: y - x),
}


@pytest.mark.parametrize("name", SAME)
def test_what_computes_the_same(name):
    first, second = SAME[name]
    assert form(first) == form(second) is not None


@pytest.mark.parametrize("name", OTHERS)
def test_what_does_not(name):
    first, second = OTHERS[name]
    assert form(first) != form(second)


def test_loops_and_choices():
    def power(count):
        return lambda x, y: jax.lax.fori_loop(0, count, lambda i, c: c * y, x)

    assert form(power(3)) == form(power(3))
    assert form(power(3)) != form(power(4))


def test_effects_have_no_form():
    def printing(x, y):
        return jax.lax.rng_uniform(0.0, 1.0, (2, 3)) + x

    assert form(printing) is None
