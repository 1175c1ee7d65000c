"""What holds of autocast whatever the program: dtypes, idempotence, and that it commutes with JAX's own transformations."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from unlower import amp
from unlower.interpret.structure import diff

WIDTH = 32

UNARY = {
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
    "gelu": jax.nn.gelu,
    "silu": jax.nn.silu,
    "softmax": jax.nn.softmax,
    "layernorm": lambda x: (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5),
    "scale": lambda x: x * 0.125,
    "shift": lambda x: x + 1.0,
    "mask": lambda x: jnp.where(x > 0, x, -1e9) * 1e-9,
    "reverse": lambda x: x[:, ::-1],
    "sum": lambda x: x + x.sum(-1, keepdims=True) / WIDTH,
    "exp": lambda x: jnp.exp(-jnp.abs(x)),
    "sine": jnp.sin,
    "cast": lambda x: x.astype(jnp.bfloat16).astype(jnp.float32),
    "count": lambda x: x + jnp.arange(WIDTH, dtype=jnp.int32).astype(jnp.float32) / WIDTH,
}
OUTER = ("none", "jit", "scan", "cond", "checkpoint", "while", "custom_jvp", "custom_vjp", "vmap")


@jax.custom_jvp
def doubled(x):
    return x * 2


doubled.defjvp(lambda p, t: (doubled(*p), t[0] * 2))


@jax.custom_vjp
def halved(x):
    return x / 2


halved.defvjp(lambda x: (x / 2, None), lambda _, g: (g / 2,))


def wrap(kind, block):
    """A block inside one of JAX's higher-order primitives."""
    if kind == "jit":
        return jax.jit(block)
    if kind == "scan":
        return lambda x, w: lax.scan(lambda h, v: (block(h, v), None), x, jnp.stack([w, w]))[0]
    if kind == "cond":
        return lambda x, w: lax.cond(x[0, 0] > 0, block, lambda x, w: x, x, w)
    if kind == "checkpoint":
        return jax.checkpoint(block)
    if kind == "while":
        return lambda x, w: lax.fori_loop(0, 2, lambda _, h: block(h, w), x)
    if kind == "custom_jvp":
        return lambda x, w: doubled(block(x, w))
    if kind == "custom_vjp":
        return lambda x, w: halved(block(x, w))
    if kind == "vmap":
        return lambda x, w: jax.vmap(block, (0, None))(x[:, None], w)[:, 0]
    return block


@st.composite
def programs(draw):
    """A function of `(x, w)`: products, elementwise functions, and blocks in loops and branches."""
    blocks = []
    for _ in range(draw(st.integers(1, 3))):
        steps = draw(st.lists(st.sampled_from(["product", *UNARY]), min_size=1, max_size=4))
        blocks.append((draw(st.sampled_from(OUTER)), steps))

    def run_steps(steps, x, w):
        for step in steps:
            x = x @ w if step == "product" else UNARY[step](x)
        return x

    def program(x, w):
        for kind, steps in blocks:
            x = wrap(kind, functools.partial(run_steps, steps))(x, w)
        return x

    program.__name__ = str(blocks)
    return program


X = jnp.asarray(np.random.RandomState(0).standard_normal((4, WIDTH)), jnp.float32)
W = jnp.asarray(np.random.RandomState(1).standard_normal((WIDTH, WIDTH)) / 6, jnp.float32)


@settings(max_examples=200, deadline=None)
@given(programs(), st.sampled_from(["bf16", "f16"]))
def test_shapes_and_dtypes_stay_and_twice_is_once(program, policy):
    once = amp.autocast(program, policy)
    jaxpr = jax.make_jaxpr(once)(X, W)
    wanted, found = jax.eval_shape(program, X, W), jaxpr.out_avals[0]
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    assert diff(jaxpr, jax.make_jaxpr(amp.autocast(once, policy))(X, W)) == ""


@settings(max_examples=20, deadline=None)
@given(programs(), st.sampled_from(["jit", "scan", "checkpoint", "vmap"]))
def test_commutes_with_transformations(program, kind):
    inside = jax.jit(wrap(kind, amp.autocast(program)))(X, W)
    outside = jax.jit(amp.autocast(wrap(kind, program)))(X, W)
    original = jax.jit(wrap(kind, program))(X, W)
    # A program whose float32 results differ this little from its input's rounding is compared at that rounding.
    scale = float(jnp.abs(original).max()) + 1e-6
    np.testing.assert_allclose(outside / scale, inside / scale, atol=0.15)


@settings(max_examples=20, deadline=None)
@given(programs())
def test_differentiates_in_every_way(program):
    loss = lambda x, w: jnp.tanh(program(x, w)).mean()
    cast = amp.autocast(loss)
    value, tangent = jax.eval_shape(lambda x, w: jax.jvp(cast, (x, w), (x, w)), X, W)
    assert value.dtype == tangent.dtype == jnp.float32
    if "while" not in program.__name__:
        gradient = jax.eval_shape(jax.grad(cast, (0, 1)), X, W)
        assert [g.dtype for g in gradient] == [jnp.float32] * 2
        second = jax.eval_shape(lambda x, w: jax.jvp(jax.grad(cast), (x, w), (x, w))[1], X, W)
        assert second.dtype == jnp.float32
    inside = jax.eval_shape(amp.autocast(jax.value_and_grad(loss)), X, W) if "while" not in program.__name__ else None
    assert inside is None or inside[1].shape == X.shape


UNTOUCHED = {
    "float64": lambda x: jnp.tanh(x @ x),
    "complex64": lambda x: x @ x + 1j,
    "int32": lambda x: x @ x + 1,
    "bfloat16": lambda x: jnp.exp(x @ x),
    "float16": lambda x: jnp.exp(x @ x / 100),
}


@pytest.mark.parametrize("dtype", UNTOUCHED)
@pytest.mark.parametrize("policy", ["bf16", "f16"])
def test_other_dtypes_are_bit_identical(dtype, policy):
    function = UNTOUCHED[dtype]
    with jax.enable_x64(dtype == "float64"):
        x = jnp.asarray(np.random.RandomState(0).uniform(-2, 2, (8, 8)), dtype)
        np.testing.assert_array_equal(amp.autocast(function, policy)(x), function(x))


def test_keys_go_through():
    function = lambda key, w: jax.random.normal(jax.random.split(key)[0], (4, WIDTH)) @ w
    key = jax.random.key(3)
    drawn = amp.autocast(lambda key: jax.random.normal(key, (100,)))(key)
    np.testing.assert_array_equal(drawn, jax.random.normal(key, (100,)))
    np.testing.assert_allclose(amp.autocast(function)(key, W), function(key, W), atol=0.05)


def test_pytrees_keywords_and_static_arguments():
    def function(params, x, *, power, name="unused"):
        return {"out": (x @ params["w"]) ** power, "name": name == "unused"}

    cast = amp.autocast(function, static_argnames=("power", "name"))
    out = cast({"w": W}, X, power=2)
    assert set(out) == {"out", "name"}
    np.testing.assert_allclose(out["out"], (X @ W) ** 2, atol=0.3)


def test_a_policy_of_float32_changes_nothing():
    function = lambda x, w: jnp.tanh(x @ w)
    assert amp.autocast(function, "f32") is function


def test_output_dtype():
    out = amp.autocast(lambda x, w: (x @ w, x.sum()), "p=f32,c=bf16,o=bf16")(X, W)
    assert [o.dtype for o in out] == [jnp.bfloat16] * 2


@pytest.mark.parametrize("kind", ["jit", "vmap", "scan", "checkpoint"])
def test_a_branch_that_does_nothing(kind):
    """Its result takes the dtype of the other branch's, with no equation beside it."""

    def program(x, w):
        return lax.cond(x[0, 0] > 0, lambda x, w: x @ w, lambda x, w: x, x @ w, w)

    out = jax.jit(amp.autocast(wrap(kind, program)))(X, W)
    np.testing.assert_allclose(out, wrap(kind, program)(X, W), atol=0.1)


def test_a_function_that_does_nothing():
    assert amp.autocast(lambda x: x, "p=f32,c=bf16,o=bf16")(X).dtype == jnp.bfloat16
    assert amp.autocast(lambda x: (x, 1.0))(X)[0] is not None


def test_hessian():
    loss = lambda x: jnp.tanh(x @ W).sum()
    found, wanted = jax.hessian(amp.autocast(loss))(X[0]), jax.hessian(loss)(X[0])
    np.testing.assert_allclose(found, wanted, atol=3e-2 * float(jnp.abs(wanted).max()))
    found = jax.jacrev(jax.jacrev(amp.autocast(loss)))(X[0])
    np.testing.assert_allclose(found, wanted, atol=3e-2 * float(jnp.abs(wanted).max()))
