"""Reading what autocast has made of a function."""

import jax
import jax.numpy as jnp
import pytest

from unlower.interpret.structure import walk

PRODUCTS = ("dot_general", "conv_general_dilated", "ragged_dot_general")


class Seen:
    """The equations of a function, at every depth."""

    def __init__(self, function, *args):
        self.jaxpr = jax.make_jaxpr(function)(*args)
        self.equations = [visit.equation for visit in walk(self.jaxpr)]

    def named(self, *names):
        return [e for e in self.equations if e.primitive.name in names]

    def products(self, low=jnp.bfloat16):
        """How many products are low, and how many are not."""
        products = self.named(*PRODUCTS)
        lows = [e for e in products if all(v.aval.dtype == low for v in e.invars[:2])]
        return len(lows), len(products) - len(lows)

    def casts(self):
        """Conversions of arrays between float dtypes."""
        found = [e for e in self.named("convert_element_type") if e.outvars[0].aval.shape]
        return [e for e in found if all(jnp.issubdtype(v.aval.dtype, jnp.floating) for v in (*e.invars, *e.outvars))]

    def dtypes(self, name):
        return [str(e.outvars[0].aval.dtype) for e in self.named(name)]


@pytest.fixture(autouse=True)
def promotion():
    """The programs here are other people's, who let JAX promote."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.fixture
def see():
    return Seen


def error(found, wanted):
    """The largest difference, relative to the largest value."""
    return max(
        float(jnp.max(jnp.abs(jnp.asarray(f, jnp.float32) - w)) / (jnp.max(jnp.abs(w)) + 1e-30))
        for f, w in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True)
    )


@pytest.fixture(name="error")
def error_fixture():
    return error
