"""What becomes of derivative rules under each policy, against the mathematics, under every transformation."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from unlower.errors import RuleError
from unlower.interpret import Interpreter
from unlower.interpret.structure import walk

STYLES = pytest.mark.parametrize("style", ["initial", "final"])
KINDS = pytest.mark.parametrize("kind", ["jvp", "vjp", "vjp_remat"])
X = np.float32(0.7)

PRIMAL = {"sin": lambda ctx, x, **params: lax.exp(x)}
"""Changes the function below."""

TANGENT = {"cos": lambda ctx, x, **params: jnp.ones_like(x)}
"""Changes its derivative rule only."""


def doubled_sine(kind):
    """2 sin(x), with a rule that says 10 cos(x), five times its derivative."""
    if kind == "jvp":
        f = jax.custom_jvp(lambda x: 2.0 * jnp.sin(x))
        f.defjvp(lambda primals, tangents: (f(*primals), 10.0 * jnp.cos(primals[0]) * tangents[0]))
        return f
    f = jax.custom_vjp(lambda x: 2.0 * jnp.sin(x))
    f.defvjp(lambda x: (f(x), x), lambda x, ct: (10.0 * jnp.cos(x) * ct,), optimize_remat=kind == "vjp_remat")
    return f


def repeated(f, length):
    def run(x):
        return lax.scan(lambda c, _: (c + f(x), None), np.float32(0), None, length=length)[0]

    return run


# The function within others, and how often each adds it up.
AROUND = {
    "alone": (lambda f: f, 1),
    "jit": (jax.jit, 1),
    "checkpoint": (jax.checkpoint, 1),
    "cond": (lambda f: lambda x: lax.cond(x > 0, f, lambda x: x, x), 1),
    "scan": (lambda f: repeated(f, 3), 3),
    "jit, scan, checkpoint, jit": (lambda f: jax.jit(repeated(jax.checkpoint(jax.jit(f)), 2)), 2),
}

# Policy and what the rules change -> value and derivative.
EXPECTED = {
    ("keep", "primal"): (2 * np.exp(X), 10 * np.cos(X)),
    ("drop", "primal"): (2 * np.exp(X), 2 * np.exp(X)),
    ("auto", "primal"): (2 * np.exp(X), 2 * np.exp(X)),  # the function has changed: its rule is dropped
    ("transform", "primal"): (2 * np.exp(X), 10 * np.cos(X)),
    ("keep", "tangent"): (2 * np.sin(X), 10 * np.cos(X)),
    ("drop", "tangent"): (2 * np.sin(X), 2 * np.cos(X)),
    ("auto", "tangent"): (2 * np.sin(X), 10 * np.cos(X)),  # the function has not changed: its rule is kept
    ("transform", "tangent"): (2 * np.sin(X), 10.0),
}


@STYLES
@KINDS
@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize(("policy", "place"), list(EXPECTED))
def test_value_and_derivative(style, kind, around, policy, place):
    wrap, times = AROUND[around]
    interpreter = Interpreter(PRIMAL if place == "primal" else TANGENT, custom_rules=policy)
    run = interpreter.transform(wrap(doubled_sine(kind)), style=style)
    value, derivative = (times * number for number in EXPECTED[policy, place])
    np.testing.assert_allclose(run(X), value, rtol=1e-6)
    np.testing.assert_allclose(jax.grad(run)(X), derivative, rtol=1e-6)
    # The value is the same one where it is differentiated.
    np.testing.assert_allclose(jax.jit(jax.value_and_grad(run))(X), (value, derivative), rtol=1e-6)
    np.testing.assert_allclose(jax.vmap(jax.grad(run))(jnp.stack([X, X])), [derivative] * 2, rtol=1e-6)
    if kind == "jvp":
        np.testing.assert_allclose(jax.jvp(run, (X,), (np.float32(3),)), (value, 3 * derivative), rtol=1e-6)


@STYLES
@KINDS
def test_the_derivative_inside_is_interpreted_like_any_program(style, kind):
    both = Interpreter(PRIMAL | TANGENT)
    found = both.transform(jax.value_and_grad(doubled_sine(kind)), style=style)(X)
    np.testing.assert_allclose(found, [2 * np.exp(X), 10.0], rtol=1e-6)


@STYLES
@pytest.mark.parametrize("policy", ["auto", "keep", "transform"])
def test_second_derivatives(style, policy):
    f = doubled_sine("jvp")
    unrelated = Interpreter({"tan": lambda ctx, x, **params: x}, custom_rules=policy)
    run = unrelated.transform(lambda x: f(x) + jnp.tan(x), style=style)
    np.testing.assert_allclose(jax.grad(jax.grad(run))(X), -10 * np.sin(X), rtol=1e-6)


@STYLES
@pytest.mark.parametrize("kind", ["jvp", "vjp"])
def test_second_derivatives_of_a_changed_function_are_those_of_its_rule(style, kind):
    run = Interpreter(PRIMAL, custom_rules="keep").transform(doubled_sine(kind), style=style)
    np.testing.assert_allclose(jax.grad(jax.grad(run))(X), -10 * np.sin(X), rtol=1e-6)


def test_functions_of_jax_keep_their_rules():
    swap = Interpreter({"add": lambda ctx, x, y, **params: lax.mul(x, y)})
    kept = swap.transform(jax.nn.relu)
    assert jax.grad(kept)(0.0) == 0 == jax.grad(jax.nn.relu)(0.0)
    names = [v.equation.primitive.name for v in walk(jax.make_jaxpr(kept)(0.0))]
    assert {"custom_jvp_call", "call_hi_primitive"} & set(names)


@STYLES
def test_several_arguments_pytrees_and_integers(style):
    @functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
    def f(n, tree, i):
        return {"o": tree["a"] * jnp.sin(tree["b"]) * n + i.astype(jnp.float32), "i": i + 1}

    def bwd(n, res, ct):
        a, b = res
        return {"a": ct["o"] * jnp.sin(b) * n, "b": 7 * ct["o"] * a}, None

    f.defvjp(lambda n, tree, i: (f(n, tree, i), (tree["a"], tree["b"])), bwd)
    g = lambda tree, i: f(2.0, tree, i)["o"]
    tree, i = {"a": np.float32(3), "b": np.float32(0.5)}, jnp.int32(4)
    for policy, sine in (("keep", np.sin(0.5)), ("transform", np.exp(0.5))):
        run = Interpreter(PRIMAL, custom_rules=policy).transform(g, style=style)
        value, grads = jax.value_and_grad(run)(tree, i)
        np.testing.assert_allclose([run(tree, i), value], [6 * np.exp(0.5) + 4] * 2, rtol=1e-6)
        np.testing.assert_allclose([grads["a"], grads["b"]], [2 * sine, 21], rtol=1e-6)
        alone = jax.grad(lambda a, run=run: run({"a": a, "b": tree["b"]}, i))(tree["a"])
        np.testing.assert_allclose(alone, 2 * sine, rtol=1e-6)


@STYLES
@pytest.mark.parametrize("policy", ["transform", "keep"])
def test_dtypes_at_the_border_of_a_rule(style, policy):
    @jax.custom_vjp
    def f(x):
        return jnp.sin(x) * 2

    f.defvjp(lambda x: (f(x), x), lambda x, ct: (jnp.cos(x) * ct * 3,))
    narrow = {"sin": lambda ctx, x, **_: ctx.bind(x.astype(jnp.bfloat16)), "mul": narrower}
    run = Interpreter(narrow, custom_rules=policy).transform(f, style=style)
    grad = jax.grad(lambda x: run(x).astype(jnp.float32))(X)
    assert grad.dtype == jnp.float32
    np.testing.assert_allclose(grad, 3 * np.cos(X), rtol=0.02)


def narrower(ctx, x, y, **params):
    dtype = jnp.bfloat16 if jnp.bfloat16 in (x.dtype, y.dtype) else x.dtype
    return ctx.bind(x.astype(dtype), y.astype(dtype))


@STYLES
@pytest.mark.parametrize(("policy", "derivative"), [("transform", 3.0), ("keep", 3 * np.cos(X))])
@pytest.mark.parametrize("changed", [False, True])
def test_symbolic_zeros_reach_the_rule(style, policy, derivative, changed):
    seen = []

    @jax.custom_jvp
    def f(x, y):
        return jnp.sin(x) * y

    def rule(primals, tangents):
        x, y = primals
        seen.append([isinstance(t, jax.custom_derivatives.SymbolicZero) for t in tangents])
        return f(x, y), jnp.cos(x) * y * tangents[0]

    f.defjvp(rule, symbolic_zeros=True)
    rules = TANGENT | PRIMAL if changed else TANGENT
    run = Interpreter(rules, custom_rules=policy).transform(f, style=style)
    np.testing.assert_allclose(jax.grad(run)(X, np.float32(3)), derivative, rtol=1e-6)
    assert [False, True] in seen


@STYLES
def test_a_function_that_depends_on_more_than_its_arguments_has_no_use_for_its_rule(style):
    def loss(w):
        scaled = Interpreter({"sin": lambda ctx, x, **_: x * w}, custom_rules="keep")
        return scaled.transform(doubled_sine("vjp"), style=style)(X)

    np.testing.assert_allclose(jax.grad(loss)(np.float32(3)), 2 * X, rtol=1e-6)


def test_an_unknown_policy_is_refused():
    with pytest.raises(RuleError, match="custom_rules='forget'"):
        Interpreter(custom_rules="forget")


def test_to_drop_rules_is_a_transform_by_itself():
    run = Interpreter(custom_rules="drop").transform(doubled_sine("jvp"))
    np.testing.assert_allclose(jax.grad(run)(X), 2 * np.cos(X), rtol=1e-6)
