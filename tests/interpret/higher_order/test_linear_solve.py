"""`custom_linear_solve`: the products and the solvers are rewritten, and agree under differentiation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from unlower.interpret import Interpreter, walk
from unlower.transforms import harvest, tag

A = jnp.array([[3.0, 1.0], [1.0, 2.0]])
B = jnp.array([1.0, -2.0])
STYLES = pytest.mark.parametrize("style", ["initial", "final"])


def solve(a, b):
    # The factor 2 stands in sin's place: sin(1) is rewritten below.
    product = lambda x: (a @ x) * jnp.sin(jnp.float32(1))
    return lax.custom_linear_solve(
        product, b, lambda _, b: jnp.linalg.inv(a) @ b / jnp.sin(jnp.float32(1)), symmetric=True
    )


TWO = Interpreter({"sin": lambda ctx, x, **params: jnp.full_like(x, 2)})


@STYLES
def test_solution_and_derivatives(style):
    run = TWO.transform(solve, style=style)
    wanted = lambda a, b: jnp.linalg.solve(2 * a, b)
    np.testing.assert_allclose(run(A, B), wanted(A, B), rtol=1e-5)
    for argument in (0, 1):
        found = jax.grad(lambda a, b: (run(a, b) ** 2).sum(), argument)(A, B)
        symmetric = jax.grad(lambda a, b: (wanted(a, b) ** 2).sum(), argument)(A, B)
        np.testing.assert_allclose(found, symmetric, rtol=1e-4, atol=1e-5)
    assert "custom_linear_solve" in {v.equation.primitive.name for v in walk(jax.make_jaxpr(run)(A, B))}
    rows = jnp.stack([B, 2 * B])
    np.testing.assert_allclose(jax.vmap(run, in_axes=(None, 0))(A, rows)[1], 2 * wanted(A, B), rtol=1e-5)


@STYLES
def test_what_the_solver_emits_comes_out(style):
    f = lambda b: lax.custom_linear_solve(lambda x: 2 * x, b, lambda _, b: tag("x", b / 2), symmetric=True)
    out, log = harvest(f, style=style)(B)
    np.testing.assert_array_equal(log["x"], B / 2)
    np.testing.assert_array_equal(out, B / 2)
    np.testing.assert_array_equal(jax.grad(lambda b: harvest(f, style=style)(b)[0].sum())(B), [0.5, 0.5])
