"""What is left alone: combiners, callbacks, references. Their operands have the dtypes that the program declares."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from unlower.errors import UnhandledHigherOrderError
from unlower.interpret import Interpreter

X = jnp.arange(4, dtype=jnp.float32)
HALF = Interpreter(
    {"sin": lambda ctx, x, **params: lax.convert_element_type(x, jnp.bfloat16)},
    custom_rules="drop",
)
STYLES = pytest.mark.parametrize("style", ["initial", "final"])


@STYLES
def test_a_callback_gets_the_dtype_that_it_was_promised(style):
    seen = []

    def look(x):
        seen.append(np.asarray(x).dtype)
        return np.asarray(x) * 2

    f = lambda x: jax.pure_callback(look, jax.ShapeDtypeStruct(X.shape, X.dtype), jnp.sin(x), vmap_method="sequential")
    out = jax.jit(HALF.transform(f, style=style))(X)
    np.testing.assert_array_equal(out, X * 2)
    assert set(seen) == {np.dtype("float32")}


@STYLES
def test_references_keep_their_dtype(style):
    def f(x):
        ref = jax.new_ref(jnp.zeros_like(x))
        ref[...] = jnp.sin(x)
        ref[0] += 5.0
        return ref[...]

    out = jax.jit(HALF.transform(f, style=style))(X)
    assert out.dtype == jnp.float32
    np.testing.assert_array_equal(out, X + jnp.array([5.0, 0, 0, 0]))


@STYLES
def test_combiners_are_no_programs_of_the_user(style):
    """A rule for `add` does not reach into a scatter-add, whose name says what it does."""
    swap = Interpreter({"add": lambda ctx, x, y: lax.sub(x, y)})
    f = lambda x: x.at[jnp.array([1, 1])].add(10.0) + 1.0
    np.testing.assert_array_equal(swap.transform(f, style=style)(X), X + jnp.array([0, 20.0, 0, 0]) - 1)
    np.testing.assert_array_equal(swap.transform(lambda x: jnp.sum(x) + 1.0, style=style)(X), 5.0)


@STYLES
def test_a_reduction_of_the_users_own_is_refused_or_named(style):
    f = lambda x: lax.reduce(x, np.float32(0), lambda a, b: jnp.sin(a) + b, (0,))
    with pytest.raises(UnhandledHigherOrderError, match='opaque={"reduce"}'):
        HALF.transform(f, style=style)(X)
    found = Interpreter({"sin": lambda ctx, x, **p: x}, opaque={"reduce"}).transform(f, style=style)(X)
    assert float(found) == float(f(X))
