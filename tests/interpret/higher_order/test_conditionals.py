"""Branches agree on types and emissions, whoever brings what."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from unlower.errors import RuleError
from unlower.interpret import Interpreter
from unlower.transforms import harvest, tag

ONE = jnp.float32(1.0)
STYLES = pytest.mark.parametrize("style", ["initial", "final"])


@STYLES
@pytest.mark.parametrize(("index", "taken"), [(-5, 0), (0, 0), (1, 1), (2, 2), (99, 2)])
def test_an_index_beyond_the_branches_is_clamped(style, index, taken):
    branches = [lambda x, i=i: tag(f"b{i}", x + i) for i in range(3)]
    out, log = harvest(lambda i, x: lax.switch(i, branches, x), style=style)(index, ONE)
    assert float(out) == 1.0 + taken
    assert [bool(log.present[f"b{i}"]) for i in range(3)] == [i == taken for i in range(3)]
    assert [float(log[f"b{i}"]) for i in range(3)] == [1.0 + i if i == taken else 0.0 for i in range(3)]


@STYLES
def test_under_vmap_both_branches_run(style):
    f = lambda x: lax.cond(x > 0, lambda x: tag("up", x * 2), lambda x: tag("down", -x), x)
    run = harvest(f, style=style)
    out, log = jax.vmap(run)(jnp.array([1.0, -3.0]))
    np.testing.assert_array_equal(out, [2, 3])
    np.testing.assert_array_equal(log.present["up"], [True, False])
    np.testing.assert_array_equal(log["up"], [2, 0])
    np.testing.assert_array_equal(log["down"], [0, 3])


@STYLES
def test_branches_that_emit_one_name_with_other_types(style):
    f = lambda x: lax.cond(x > 0, lambda x: tag("y", jnp.ones(2)).sum(), lambda x: tag("y", x), x)
    with pytest.raises(RuleError, match="'y' is emitted twice"):
        harvest(f, style=style)(ONE)


@STYLES
def test_one_branch_becomes_narrower(style):
    half = Interpreter(
        {"sin": lambda ctx, x, **params: lax.convert_element_type(ctx.bind(x), jnp.bfloat16)}, custom_rules="drop"
    )
    f = lambda x: lax.cond(x > 0, jnp.sin, lambda x: x, x)
    # The branch that stayed has float32; both types have room in that.
    assert half.transform(f, style=style)(ONE).dtype == jnp.float32
    assert float(half.transform(f, style=style)(-ONE)) == -1.0


@STYLES
def test_a_branch_closes_over_a_tracer_that_a_rule_brings(style):
    f = lambda x: lax.cond(x > 0, lambda x: jnp.sin(x), lambda x: jnp.cos(x) * jnp.sin(x), x)

    def loss(w):
        return Interpreter({"sin": lambda ctx, x, **params: x * w}).transform(f, style=style)(2 * ONE)

    assert (float(loss(3 * ONE)), float(jax.grad(loss)(3 * ONE))) == (6.0, 2.0)
    assert float(jax.jit(jax.grad(loss))(3 * ONE)) == 2.0


@STYLES
def test_keys_in_a_branch_not_taken(style):
    f = lambda k: lax.cond(False, lambda k: tag("k", jax.random.fold_in(k, 1)), lambda k: k, k)
    out, log = harvest(f, style=style)(jax.random.key(7))
    assert not log.present["k"] and jnp.array_equal(jax.random.key_data(out), jax.random.key_data(jax.random.key(7)))
