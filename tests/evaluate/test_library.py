"""Functions of JAX's libraries are differentiated as they were before lowering, to the bit, at ties and edges."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.scipy import special

import unlower
from unlower._jax_compat import open_closed_jaxpr
from unlower.evaluate.library import LIBRARY, differentiated_as, library_name

EDGES = np.array([-100, -90, -30, -6, -3, -1, -0.5, -0.0, 0, 0.5, 1, 2, 3, 6, 20, 90, 100], np.float32)
FUNCTIONS = {
    **{
        name: getattr(jax.nn, name)
        for name in (
            "hard_sigmoid",
            "hard_silu",
            "log_sigmoid",
            "log_softmax",
            "mish",
            "relu",
            "relu6",
            "sigmoid",
            "silu",
            "soft_sign",
            "softplus",
            "sparse_plus",
            "sparse_sigmoid",
            "squareplus",
        )
    },
    "asin": lambda x: lax.asin(x / 100),
    "cumlogsumexp": lax.cumlogsumexp,
    "cummax": lax.cummax,
    "cumprod": lambda x: lax.cumprod(x, reverse=True),
    "cumsum": jnp.cumsum,
    "entr": lambda x: special.entr(jnp.abs(x)),
    "expit": special.expit,
    "hypot": lambda x: jnp.hypot(x, x),
    "lgamma": lax.lgamma,
    "logaddexp": lambda x: jnp.logaddexp(x, 0.0),
    "logaddexp_ties": lambda x: jnp.logaddexp(x, jnp.where(x > 0, x, -x)),
    "logit": lambda x: special.logit(jnp.abs(x) / 101),
    "power_of_minus_2": lambda x: x**-2,
    "power_of_minus_3": lambda x: x**-3,
    "power_of_minus_4": lambda x: x**-4,
    "sici": lambda x: special.sici(x)[0],
    "sinc": jnp.sinc,
}
# On jax 0.10 these are operations of CHLO on their way to HLO, which the converter expands without a name.
EXPANDED = {"asin", "lgamma"} if jax.__version_info__ < (0, 11) else set()


def loaded(function, through):
    lowered = jax.jit(lambda x: function(x * 1.0)).lower(EDGES)
    return unlower.load(lowered if through == "stablehlo" else lowered.as_text("hlo"))


@pytest.mark.parametrize("through", ["stablehlo", "hlo"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives_are_the_original_s(name, through):
    if through == "hlo" and name in EXPANDED:
        pytest.skip("the converter of jaxlib 0.10 expands it in place")
    function = FUNCTIONS[name]
    program = loaded(function, through)

    def first(f):
        return jax.grad(lambda x: f(x).sum())

    def second(f):
        return jax.grad(lambda x: (first(f)(x) * jnp.arange(1.0, 18.0)).sum())

    original, again = (jax.jit(first(f))(EDGES) for f in (lambda x: function(x * 1.0), program))
    if name == "sici":
        # XLA compiles the long polynomials of two programs differently.
        np.testing.assert_allclose(again, original, rtol=1e-5, atol=1e-6)
    else:
        assert np.asarray(again).tobytes() == np.asarray(original).tobytes()
    original, again = (jax.jit(second(f))(EDGES) for f in (lambda x: function(x * 1.0), program))
    np.testing.assert_allclose(again, original, rtol=1e-5, atol=1e-6)
    assert np.array_equal(np.isnan(again), np.isnan(original))


@pytest.mark.parametrize("through", ["stablehlo", "hlo"])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: special.expi(x),
        lambda x: special.exp1(x),
        lambda x: jax.random.gamma(jax.random.key(0), x),
        lambda x: jax.random.loggamma(jax.random.key(0), x),
        lambda x: jax.random.beta(jax.random.key(0), x, x + 1),
    ],
)
def test_functions_whose_loops_depend_on_data(function, through):
    x = np.array([0.2, 0.9, 1.0, 2.5, 17.0], np.float32)
    lowered = jax.jit(lambda x: function(x * 1.0)).lower(x)
    program = unlower.load(lowered if through == "stablehlo" else lowered.as_text("hlo"))
    original, again = (jax.grad(lambda x, f=f: f(x * 1.0).sum())(x) for f in (function, program))
    np.testing.assert_allclose(again, original, rtol=1e-4)


@pytest.mark.parametrize("through", ["stablehlo", "hlo"])
@pytest.mark.parametrize("name", ["silu", "sigmoid", "logaddexp_ties", "power_of_minus_4"])
def test_the_program_itself_stays_what_it_is(name, through):
    def operations(f):
        text = jax.jit(f).lower(EDGES).as_text()
        return sorted(line.split("=", 1)[1].split()[0] for line in text.splitlines() if " = " in line)

    function = FUNCTIONS[name]
    program = loaded(function, through)
    assert np.asarray(program(EDGES)).tobytes() == np.asarray(jax.jit(lambda x: function(x * 1.0))(EDGES)).tobytes()
    if through == "stablehlo":
        assert operations(program) == operations(lambda x: function(x * 1.0))


def test_a_name_alone_proves_nothing():
    def relu(x):
        return jnp.where(x > 0, x, 0.1 * x)

    program = unlower.load(jax.jit(lambda x: jax.jit(relu)(x)).lower(EDGES))
    assert library_name("relu") == "relu"
    assert "relu" in program.module.functions
    assert differentiated_as(program.module, "relu") is None
    assert np.array_equal(jax.vmap(jax.grad(relu))(EDGES), jax.grad(lambda x: program(x).sum())(EDGES))


def test_a_function_that_lost_a_result():
    program = unlower.load(jax.jit(lambda x: special.sici(x)[1] + 0.0).lower(EDGES))
    found = differentiated_as(program.module, "sici")
    assert found is not None
    assert len(found(EDGES)) == 1
    np.testing.assert_array_equal(found(EDGES)[0], jax.jit(lambda x: special.sici(x)[1])(EDGES))


def test_a_call_carries_its_rule_once():
    program = unlower.load(jax.jit(lambda x: jax.nn.relu(jax.nn.relu(x))).lower(EDGES))
    equations = open_closed_jaxpr(program.jaxpr).eqns
    assert [str(equation.primitive) for equation in equations] == ["custom_jvp_call"] * 2
    assert equations[0].params["call_jaxpr"] is equations[1].params["call_jaxpr"]


@pytest.mark.parametrize(
    ("name", "found"),
    [("relu", "relu"), ("relu_12", "relu"), ("relu.3", "relu"), ("relu_0_1", "relu"), ("_relu", None), ("relus", None)],
)
def test_names_may_have_numbers(name, found):
    assert library_name(name) == found


def test_the_table_has_functions():
    for candidates in LIBRARY.values():
        assert all(callable(c) for c in candidates([jax.ShapeDtypeStruct((3,), jnp.float32)]))
