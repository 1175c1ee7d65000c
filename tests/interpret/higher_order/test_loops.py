"""Loops: their lengths, directions and constants stay; carries find their types; emissions come out in order."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from unlower.interpret import Interpreter, walk
from unlower.transforms import harvest, tag

ONE = jnp.float32(1.0)
TURN = Interpreter({"sin": lambda ctx, x, **params: lax.neg(x)})
STYLES = pytest.mark.parametrize("style", ["initial", "final"])


@STYLES
@pytest.mark.parametrize(("reverse", "unroll"), [(False, 1), (True, 1), (True, 2), (False, 3)])
def test_direction_and_unrolling_stay(style, reverse, unroll):
    def f(xs):
        return lax.scan(lambda c, x: (c * 2 + jnp.sin(x), tag("c", c)), ONE, xs, reverse=reverse, unroll=unroll)

    xs = jnp.arange(5.0)
    carry, wanted = 1.0, np.zeros(5)
    for i in reversed(range(5)) if reverse else range(5):
        wanted[i], carry = carry, carry * 2 - i
    out, ys = TURN.transform(f, style=style)(xs)
    assert float(out) == carry
    np.testing.assert_array_equal(ys, wanted)
    (loop,) = (v.equation for v in walk(jax.make_jaxpr(TURN.transform(f, style=style))(xs)) if v.path == ())
    assert (loop.params["reverse"], loop.params["unroll"], loop.params["length"]) == (reverse, unroll, 5)
    # What is emitted is stacked by place, as results are, whichever way the loop runs.
    _, log = harvest(TURN.transform(f), style=style)(xs)
    np.testing.assert_array_equal(log["c"], wanted)


@STYLES
def test_a_loop_of_no_length_emits_nothing(style):
    f = lambda x: lax.scan(lambda c, _: (tag("c", c * 2), None), x, None, length=0)[0]
    out, log = harvest(f, style=style)(ONE)
    assert float(out) == 1.0 and log["c"].shape == (0,) and log.present["c"].shape in ((), (0,))
    never = lambda x: lax.while_loop(lambda c: c < 0, lambda c: tag("c", c * 2), x)
    out, log = harvest(never, style=style)(ONE)
    assert float(out) == 1.0 and not log.present["c"] and float(log["c"]) == 0.0


@STYLES
def test_a_condition_with_rules_decides(style):
    f = lambda x: lax.while_loop(lambda c: jnp.sin(c) > -5, lambda c: c + 1, x)  # c < 5, once sin is neg
    assert float(TURN.transform(f, style=style)(ONE)) == 5.0
    assert float(jax.jit(TURN.transform(f, style=style))(ONE)) == 5.0
    np.testing.assert_array_equal(jax.vmap(TURN.transform(f, style=style))(jnp.array([1.0, 7.0])), [5, 7])


@STYLES
def test_weights_that_a_rule_closes_over_become_constants_of_the_loop(style):
    def loss(w, x):
        weigh = Interpreter({"sin": lambda ctx, x, **params: x * w})
        return weigh.transform(lambda x: lax.scan(lambda c, _: (jnp.sin(c), None), x, None, length=3)[0], style=style)(
            x
        )

    assert float(loss(2 * ONE, ONE)) == 8.0
    assert float(jax.grad(loss)(2 * ONE, ONE)) == 12.0
    np.testing.assert_array_equal(jax.vmap(loss, in_axes=(0, None))(jnp.array([1.0, 2.0]), ONE), [1, 8])


@STYLES
def test_a_weakly_typed_carry(style):
    f = lambda x: lax.scan(lambda c, x: (c + jnp.sin(x), c), 0.0, x)
    out, ys = TURN.transform(f, style=style)(jnp.arange(3.0))
    assert float(out) == -3.0 and out.dtype == ys.dtype == jnp.float32
    np.testing.assert_array_equal(ys, [0, 0, -1])


@STYLES
def test_integer_carries_have_no_derivative_and_need_none(style):
    f = lambda x: lax.fori_loop(0, 3, lambda i, c: c * jnp.sin(x), x)  # -x**4, once sin is neg
    run = TURN.transform(f, style=style)
    value, slope = jax.jvp(run, (2 * ONE,), (ONE,))
    assert (float(value), float(slope)) == (-16.0, -32.0)
