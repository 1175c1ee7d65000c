"""The final style: what the running function sees, and how it nests with JAX's own traces."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from unlower.interpret import Interpreter

ONE = jnp.float32(1.0)
TURN = Interpreter({"sin": lambda ctx, x, **params: x * 3})


def final(function, interpreter=TURN):
    return interpreter.transform(function, style="final")


def test_python_sees_numbers_shapes_and_iterations():
    def f(x):
        y = jnp.sin(x)
        if y.sum() > 5:  # 3 * (0 + 1 + 2)
            y = y + len(y)
        return y * int(y[0]) + sum(range(int(y[2])))

    np.testing.assert_array_equal(final(f)(jnp.arange(3.0)), np.array([3, 6, 9]) * 3 + sum(range(9)))


def test_bounds_of_a_loop_stay_concrete_so_that_it_is_differentiable():
    f = lambda n, x: lax.fori_loop(0, n, lambda i, c: jnp.sin(c), x)
    run = lambda x: final(lambda x: f(3, x))(x)
    assert float(jax.grad(run)(ONE)) == 27.0


def test_a_function_that_raises_leaves_no_trace_behind():
    def f(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        final(f)(ONE)
    assert float(jnp.sin(ONE)) == float(np.float32(jax.jit(jnp.sin)(ONE)))
    assert float(final(jnp.sin)(ONE)) == 3.0


def test_a_tracer_that_escapes_does_not_pretend():
    kept = []
    final(lambda x: kept.append(jnp.sin(x)))(ONE)
    with pytest.raises(Exception, match="[Tt]rac"):
        jax.jit(lambda: kept[0] + 1)()


def test_interpreters_nest_inside_out():
    double = Interpreter({"sin": lambda ctx, x, **params: ctx.bind(x) * 2})
    # The inner one binds sin, which the outer one turns into 3x.
    assert float(final(final(jnp.sin, double), TURN)(ONE)) == 6.0
    # The outer one meets no sin any more: the inner one has turned it.
    assert float(final(final(jnp.sin, TURN), double)(ONE)) == 3.0


@pytest.mark.parametrize("outer", [jax.jit, jax.checkpoint, lambda f: lambda x: jax.vmap(f)(x[None])[0]])
@pytest.mark.parametrize("inner", [jax.jit, jax.checkpoint, lambda f: lambda x: jax.vmap(f)(x[None])[0]])
def test_between_the_traces_of_jax(outer, inner):
    run = outer(final(inner(lambda x: jnp.sin(x) ** 2)))
    assert float(run(ONE)) == 9.0
    assert float(jax.grad(run)(ONE)) == 18.0


def test_values_closed_over_come_from_any_trace():
    def outer(y):
        return final(lambda x: jnp.sin(x * y))(ONE)

    assert float(jax.grad(outer)(2 * ONE)) == 3.0
    assert float(jax.jit(outer)(2 * ONE)) == 6.0


def test_a_context_in_final_style_knows_the_line():
    seen = []
    note = Interpreter({"sin": lambda ctx, x, **params: (seen.append((ctx.path, ctx.source)), ctx.bind(x))[1]})
    final(lambda x: lax.sin(lax.sin(x)), note)(ONE)
    assert [path for path, _ in seen] == ["sin", "sin:2"]
    assert all("test_trace.py" in source for _, source in seen)
