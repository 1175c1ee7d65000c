"""Laws over random programs with nested sub-programs: identity, and a swap done twice."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from unlower.interpret import Interpreter, diff
from unlower.transforms import harvest, swap, tag

X = jnp.asarray(np.random.RandomState(0).uniform(-1, 1, (3,)), jnp.float32)


@jax.custom_jvp
def doubled(x):
    return x * 2


doubled.defjvp(lambda p, t: (doubled(*p), t[0] * 2))


@jax.custom_vjp
def halved(x):
    return x / 2


halved.defvjp(lambda x: (x / 2, None), lambda _, g: (g / 2,))

LEAVES = {"sin": jnp.sin, "cos": jnp.cos, "scale": lambda x: x * 0.5, "shift": lambda x: x + 1, "sort": jnp.sort,
          "doubled": doubled, "halved": halved, "sum": lambda x: x + x.sum()}  # fmt: skip
NODES = {
    "jit": jax.jit,
    "checkpoint": jax.checkpoint,
    "scan": lambda f: lambda x: lax.scan(lambda c, _: (f(c), c.sum()), x, None, length=2)[0],
    "cond": lambda f: lambda x: lax.cond(x.sum() > 0, f, lambda x: x, x),
    "while": lambda f: lambda x: lax.fori_loop(0, 2, lambda _, c: f(c), x),
    "vmap": lambda f: lambda x: jax.vmap(lambda v: f(v * jnp.ones(3)).sum())(x),
    "grad": lambda f: jax.grad(lambda x: f(x).sum()),
}

TREES = st.recursive(
    st.lists(st.sampled_from(sorted(LEAVES)), min_size=1, max_size=2),
    lambda inner: st.tuples(st.sampled_from(sorted(NODES)), st.lists(inner, min_size=1, max_size=2)),
    max_leaves=5,
)


def program(tree):
    """The function that a tree describes: leaves one after the other, or a primitive around some programs."""
    if isinstance(tree, list):
        steps = [LEAVES[step] if isinstance(step, str) else program(step) for step in tree]
        return lambda x: functools.reduce(lambda value, step: step(value), steps, x)
    kind, inner = tree
    return NODES[kind](program(inner))


@settings(max_examples=60, deadline=None)
@given(TREES, st.sampled_from(["initial", "final"]))
def test_the_identity_changes_nothing(tree, style):
    function = program(tree)
    bound = Interpreter(default=lambda ctx, *values, **params: ctx.bind(*values))
    wanted = jax.jit(function)(X)
    for interpreter in (Interpreter(), bound):
        found = jax.jit(interpreter.transform(function, style=style))(X)
        assert np.asarray(found).tobytes() == np.asarray(wanted).tobytes()
    same = jax.make_jaxpr(Interpreter().transform(function))(X)
    assert diff(same, jax.make_jaxpr(function)(X)) == ""


@settings(max_examples=40, deadline=None)
@given(TREES)
def test_swapping_twice_changes_nothing(tree):
    function = program(tree)
    turn = {
        "sin": lambda x, **params: lax.cos_p.bind(x, **params),
        "cos": lambda x, **params: lax.sin_p.bind(x, **params),
    }
    found = jax.jit(swap(swap(function, turn), turn))(X)
    np.testing.assert_allclose(found, jax.jit(function)(X), rtol=2e-6, atol=1e-6)


@settings(max_examples=40, deadline=None)
@given(TREES)
def test_harvest_gives_what_the_function_has(tree):
    function = program(tree)
    out, log = jax.jit(harvest(lambda x: tag("end", function(tag("start", x * 2)))))(X)
    np.testing.assert_array_equal(log["start"], X * 2)
    np.testing.assert_array_equal(log["end"], out)
