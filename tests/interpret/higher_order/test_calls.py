"""Calls keep what they are: names, shardings, donation, policies; composites, batching rules, memory spaces."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from unlower.interpret import Box, Interpreter, walk

ONE = jnp.float32(1.0)
TURN = Interpreter({"sin": lambda ctx, x, **params: lax.cos(x)})
STYLES = pytest.mark.parametrize("style", ["initial", "final"])


def equations(function, *args):
    return {v.equation.primitive.name: v.equation for v in walk(jax.make_jaxpr(function)(*args))}


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Split(Box):
    """A value in two parts."""

    a: jax.Array
    b: jax.Array

    @property
    def aval(self):
        return jax.typeof(self.a)

    def materialize(self):
        return self.a + self.b


SPLITS = Interpreter(
    {"neg": lambda ctx, x: Split(ctx.bind(x.a), ctx.bind(x.b)) if isinstance(x, Split) else ctx.bind(x)},
    lift=lambda value, like: Split(value, jnp.zeros_like(value)),
)


@STYLES
def test_a_box_brings_its_donation_along(style):
    f = jax.jit(lambda x, y: (-x, y), donate_argnums=0, keep_unused=True)
    run = lambda a, b, y: SPLITS.transform(f, style=style)(Split(a, b), y)
    (equation,) = jax.make_jaxpr(run)(ONE, ONE, ONE).eqns
    assert equation.params["donated_invars"] == (True, True, False)
    assert equation.params["keep_unused"] and equation.params["name"] == "<lambda>"
    out, y = run(jnp.array(1.0), jnp.array(2.0), jnp.array(1.0))
    assert (float(out.a), float(out.b), float(y)) == (-1.0, -2.0, 1.0)


@STYLES
def test_a_policy_saves_what_it_saved(style):
    policy = jax.checkpoint_policies.save_only_these_names("kept")
    f = jax.checkpoint(lambda x: jnp.exp(checkpoint_name(jnp.sin(x), "kept")), policy=policy)
    run = TURN.transform(f, style=style)
    found = equations(run, ONE)
    params = (found.get("remat2") or found["checkpoint"]).params
    assert params["policy"] is policy
    np.testing.assert_allclose(jax.grad(run)(ONE), -np.sin(1) * np.exp(np.cos(1)), rtol=1e-6)


@STYLES
def test_a_composite_keeps_its_name_and_attributes(style):
    f = lax.composite(lambda x, *, scale: jnp.sin(x) * scale, "my.scaled", version=3)
    run = TURN.transform(lambda x: f(x, scale=2.0), style=style)
    params = equations(run, ONE)["composite"].params
    assert (params["name"], params["version"]) == ("my.scaled", 3)
    np.testing.assert_allclose(run(ONE), 2 * np.cos(1), rtol=1e-6)
    text = jax.jit(run).lower(ONE).as_text()
    assert 'stablehlo.composite "my.scaled"' in text and "cosine" in text and "sine " not in text.replace("cosine ", "")


@STYLES
def test_a_batching_rule_is_interpreted_when_it_is_called(style):
    @jax.custom_batching.custom_vmap
    def f(x):
        return jnp.sin(x)

    @f.def_vmap
    def _(size, is_batched, x):
        return jnp.sin(x) + 10, is_batched[0]

    run = TURN.transform(f, style=style)
    np.testing.assert_allclose(run(ONE), np.cos(1), rtol=1e-6)
    np.testing.assert_allclose(jax.vmap(run)(jnp.arange(3.0)), np.cos(np.arange(3)) + 10, rtol=1e-6)
    assert "custom_vmap_call" in equations(run, ONE)


def test_calls_of_one_function_with_other_types_are_other_programs():
    f = jax.jit(jnp.sin)
    run = TURN.transform(lambda x, y: (f(x), f(x), f(y)))
    first, second, third = (e.params["jaxpr"] for e in jax.make_jaxpr(run)(ONE, jnp.ones(2)).eqns)
    assert first is second and first is not third
