"""An adversarial suite: autocast stays finite where float32 does, and is as exact as placing every cast by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from adversarial import CASES

from unlower import amp
from unlower.amp.products import PRODUCTS
from unlower.amp.transform import _product
from unlower.interpret import Interpreter

LOW = {"bf16": jnp.bfloat16, "f16": jnp.float16}


def by_hand(function, policy):
    """Every product in low precision with a float32 result, and nothing else: what a careful person would do at most."""

    class Hand(Interpreter):
        custom_rules = "transform"

    hand = Hand(dict.fromkeys(PRODUCTS, _product))
    hand.policy = amp.Policy(low=policy)
    return hand.transform(function)


def scalar(function):
    """A function of the same arguments with one number: each result counts the same."""

    def of(*args):
        leaves = [x for x in jax.tree.leaves(function(*args)) if jnp.issubdtype(x.dtype, jnp.floating)]
        return sum(
            (x.astype(jnp.float32) / x.size * jnp.cos(jnp.arange(x.size).reshape(x.shape))).sum() for x in leaves
        )

    return of


def floats(args):
    return tuple(i for i, a in enumerate(args) if jnp.issubdtype(a.dtype, jnp.floating))


@functools.cache
def reference(name):
    """Values and gradients in float64."""
    function, args = CASES[name]
    with jax.enable_x64(True):
        wide = [a.astype(jnp.float64) if jnp.issubdtype(a.dtype, jnp.floating) else a for a in args]
        both = jax.jit(lambda *a: (function(*a), jax.grad(scalar(function), floats(args))(*a)))(*wide)
        return jax.tree.map(np.asarray, both)


def measured(function, name):
    """The worst error of values, and of gradients, relative to the largest reference."""
    _, args = CASES[name]
    found = jax.jit(lambda *a: (function(*a), jax.grad(scalar(function), floats(args))(*a)))(*args)
    return tuple(map(_error, found, reference(name)))


def _error(found, wanted):
    errors = []
    for f, w in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        f = np.asarray(f, np.float64)
        if not np.isfinite(f).all():
            return np.inf
        errors.append(np.abs(f - w).max() / (np.abs(w).max() + 1e-30))
    return max(errors)


def naive(function, low):
    """The whole function in low precision: arguments cast, and what follows them."""

    def run(*args):
        cast = [a.astype(low) if jnp.issubdtype(a.dtype, jnp.floating) else a for a in args]
        return function(*cast)

    return run


@pytest.mark.parametrize("policy", LOW)
@pytest.mark.parametrize("name", CASES)
def test_autocast_is_as_good_as_by_hand(name, policy):
    function, _ = CASES[name]
    found, hand = measured(amp.autocast(function, policy), name), measured(by_hand(function, policy), name)
    epsilon = float(jnp.finfo(LOW[policy]).eps)
    for mine, best in zip(found, hand, strict=True):
        assert np.isfinite(mine)
        # What is stored between two products is rounded once more than a float32 result by hand.
        assert mine <= 1.1 * best + 1.5 * epsilon, (mine, best)


def test_the_suite_is_hard():
    wrong = []
    for name, (function, _) in CASES.items():
        value, gradient = measured(naive(function, jnp.float16), name)
        if not (value < 0.1 and gradient < 0.3):
            wrong.append(name)
    assert len(CASES) >= 60
    assert len(wrong) >= 10, wrong
