"""Values sent out of programs, from whatever depth."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from unlower.errors import RuleError
from unlower.interpret import Interpreter, Log

STYLES = ["initial", "final"]


def note(ctx, x, *, name):
    ctx.emit(name, x)
    return ctx.bind(x)


NOTE = Interpreter({"name": note})


def harvest(f, style="initial"):
    return NOTE.transform(f, style=style, with_log=True)


def ramp(*shape):
    return jnp.arange(float(np.prod(shape))).reshape(shape) + 1


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("outer", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_through_jit_scan_cond_and_checkpoint(style, outer):
    def f(x, xs):
        y, _ = jax.jit(lambda x: lax.scan(lambda c, v: (checkpoint_name(jnp.tanh(c + v), "h"), None), x, xs))(x)
        z = lax.cond(y.sum() > 0, lambda y: checkpoint_name(y * 2, "pos"), lambda y: y, y)
        return jax.checkpoint(lambda z: checkpoint_name(jnp.sin(z), "r"))(z)

    x, xs = ramp(3) / 10, ramp(4, 3) / 10
    out, log = outer(harvest(f, style))(x, xs)
    assert isinstance(log, Log)
    np.testing.assert_allclose(out, f(x, xs), rtol=1e-6)
    hidden = [x := jnp.tanh(x + v) for v in xs]
    np.testing.assert_allclose(log["h"], jnp.stack(hidden), rtol=1e-6)
    np.testing.assert_allclose(log["pos"], hidden[-1] * 2, rtol=1e-6)
    np.testing.assert_allclose(log["r"], out, rtol=1e-6)
    assert list(log) == ["h", "pos", "r"]
    assert all(log.present.values())


@pytest.mark.parametrize("style", STYLES)
def test_a_branch_not_taken_is_absent(style):
    def f(x):
        def body(c, v):
            return lax.cond(
                v > 2, lambda c: checkpoint_name(c + v, "big"), lambda c: checkpoint_name(c - v, "small"), c
            ), v

        return lax.scan(body, x, jnp.arange(1.0, 5.0))

    _, log = harvest(f, style)(0.0)
    np.testing.assert_array_equal(log.present["big"], [False, False, True, True])
    np.testing.assert_array_equal(log.present["small"], [True, True, False, False])
    np.testing.assert_array_equal(log["big"], [0, 0, 0, 4])
    np.testing.assert_array_equal(log["small"], [-1, -3, 0, 0])


@pytest.mark.parametrize("style", STYLES)
def test_both_branches_emit_one_name(style):
    def f(x):
        def marked(i, x):
            return checkpoint_name(x + i, "y")

        branches = [functools.partial(marked, 1.0), functools.partial(marked, 10.0), lambda x: x]
        return lax.switch(jnp.int32(x), branches, x)

    for x, y, there in ((0.0, 1.0, True), (1.0, 11.0, True), (2.0, 0.0, False)):
        _, log = harvest(f, style)(x)
        assert log["y"] == y and log.present["y"] == there


@pytest.mark.parametrize("style", STYLES)
def test_a_while_loop_gives_the_last_iteration(style):
    def f(x):
        test = lambda c: checkpoint_name(c, "tested") < 20
        return lax.while_loop(test, lambda c: checkpoint_name(c * 2, "doubled"), x)

    out, log = jax.jit(harvest(f, style))(3.0)
    assert (out, log["doubled"], log["tested"]) == (24, 24, 24)
    assert log.present["doubled"]
    _, log = harvest(f, style)(30.0)
    assert not log.present["doubled"]
    assert log["tested"] == 30


def test_a_branch_in_a_while_loop_keeps_the_last_time_it_was_taken():
    def f(x):
        body = lambda s: (
            s[0] + 1,
            lax.cond(s[0] == 2, lambda y: checkpoint_name(y * 10, "two"), lambda y: y + 1, s[1]),
        )
        return lax.while_loop(lambda s: s[0] < 5, body, (0, x))[1]

    out, log = harvest(f)(1.0)
    assert out == f(1.0)
    assert log["two"] == 30 and log.present["two"]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("check_vma", [True, False])
def test_shards_are_stacked(style, check_vma):
    mesh = jax.make_mesh((1, 1), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    spec = jax.sharding.PartitionSpec("a")

    def f(x):
        def g(x):
            total = checkpoint_name(lax.psum(x, "a"), "total")
            return checkpoint_name(x * 2, "own") + total

        return jax.shard_map(g, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=check_vma)(x)

    out, log = jax.jit(harvest(f, style))(ramp(4))
    np.testing.assert_array_equal(out, f(ramp(4)))
    assert log["own"].shape == (1, 4)
    assert log["total"].shape == ((4,) if check_vma else (1, 4))


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("rule", ["jvp", "vjp"])
def test_functions_with_derivative_rules_keep_them(style, rule):
    if rule == "jvp":
        g = jax.custom_jvp(lambda x: checkpoint_name(jnp.sin(x), "s") * 2)
        g.defjvp(lambda primals, tangents: (g(*primals), 7 * tangents[0]))
    else:
        g = jax.custom_vjp(lambda x: checkpoint_name(jnp.sin(x), "s") * 2)
        g.defvjp(lambda x: (g(x), None), lambda res, ct: (7 * ct,))
    run = harvest(lambda x: g(x) + 1, style)
    out, log = run(0.5)
    assert out == g(0.5) + 1
    np.testing.assert_allclose(log["s"], np.sin(0.5), rtol=1e-6)
    assert jax.grad(lambda x: run(x)[0])(0.5) == 7
    # The emitted value is differentiated by the primitives that made it.
    np.testing.assert_allclose(jax.grad(lambda x: run(x)[1]["s"])(0.5), np.cos(0.5), rtol=1e-6)


@pytest.mark.parametrize("style", STYLES)
def test_through_custom_linear_solve_and_custom_vmap(style):
    @jax.custom_batching.custom_vmap
    def g(x):
        return checkpoint_name(x + 1, "plus")

    g.def_vmap(lambda size, batched, x: (x + 1, True))

    def f(x):
        solve = lambda _, b: checkpoint_name(b / 4, "solved")
        return lax.custom_linear_solve(lambda v: 4 * v, g(x), solve, symmetric=True)

    out, log = jax.jit(harvest(f, style))(ramp(3))
    np.testing.assert_array_equal(out, (ramp(3) + 1) / 4)
    np.testing.assert_array_equal(log["plus"], ramp(3) + 1)
    np.testing.assert_array_equal(log["solved"], out)


def test_under_vmap_and_grad():
    f = lambda x: checkpoint_name(x**2, "square").sum()
    _, log = jax.vmap(harvest(f))(ramp(2, 3))
    assert log["square"].shape == (2, 3)
    (_, log), grads = jax.value_and_grad(harvest(f), has_aux=True)(ramp(3))
    np.testing.assert_array_equal(grads, 2 * ramp(3))
    np.testing.assert_array_equal(log["square"], ramp(3) ** 2)


def test_values_of_the_backward_pass():
    @functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
    def tag_cotangent(x, name):
        return x

    tag_cotangent.defvjp(lambda x, name: (x, None), lambda name, res, ct: (checkpoint_name(ct, name),))
    f = lambda x: jnp.sin(tag_cotangent(x * 3, "ct")).sum()
    grads, log = harvest(jax.grad(f))(ramp(3))
    np.testing.assert_allclose(log["ct"], jnp.cos(ramp(3) * 3), rtol=1e-6)
    np.testing.assert_allclose(grads, 3 * log["ct"], rtol=1e-6)


def test_modes():
    def emit(mode):
        return Interpreter({"sin": lambda ctx, x, **params: (ctx.emit("s", x, mode=mode), ctx.bind(x))[1]})

    f = jax.jit(lambda x: jnp.sin(jnp.sin(x)))
    _, log = emit("append").transform(f, with_log=True)(1.0)
    np.testing.assert_allclose(log["s"], [1.0, np.sin(1.0)], rtol=1e-6)
    assert [bool(p) for p in log.present["s"]] == [True, True]
    _, log = emit("last").transform(f, with_log=True)(1.0)
    np.testing.assert_allclose(log["s"], np.sin(1.0), rtol=1e-6)
    with pytest.raises(RuleError, match="'s' is emitted twice"):
        emit("strict").transform(f, with_log=True)(1.0)
    with pytest.raises(RuleError, match="choose one of 'strict', 'append', 'last'"):
        emit("first").transform(f)(1.0)


def test_last_over_branches():
    take = Interpreter({"name": lambda ctx, x, *, name: (ctx.emit(name, x, mode="last"), x)[1]})

    def f(x):
        x = checkpoint_name(x, "n")
        return lax.cond(x > 5, lambda x: checkpoint_name(x + 1, "n"), lambda x: x, x)

    run = take.transform(f, with_log=True)
    assert run(1.0)[1]["n"] == 1
    assert run(6.0)[1]["n"] == 7


def test_paths_name_every_equation_apart():
    every = Interpreter(default=lambda ctx, *values, **params: (out := ctx.bind(*values), ctx.emit(ctx.path, out))[0])

    @jax.jit
    def layer(x):
        return jnp.sin(jnp.sin(x))

    f = lambda x: lax.scan(lambda c, _: (layer(layer(c)), None), x, None, length=3)[0]
    _, log = jax.jit(every.transform(f, with_log=True))(1.0)
    assert list(log) == [
        "scan/jit(layer)/sin",
        "scan/jit(layer)/sin:2",
        "scan/jit(layer):2/sin",
        "scan/jit(layer):2/sin:2",
    ]
    assert all(v.shape == (3,) for v in log.values())


def test_any_pytree_can_be_emitted():
    pair = Interpreter(
        {"sin": lambda ctx, x, **params: (ctx.emit("in", {"x": x, "twice": (x, 2.0 * x)}), ctx.bind(x))[1]}
    )
    _, log = pair.transform(lambda x: lax.scan(lambda c, _: (jnp.sin(c), None), x, None, length=2)[0], with_log=True)(
        1.0
    )
    np.testing.assert_allclose(log["in"]["twice"][1], 2 * np.array([1.0, np.sin(1.0)]), rtol=1e-6)


def test_nothing_emitted_is_an_empty_log():
    _, log = harvest(jnp.sin)(1.0)
    assert dict(log) == {} and len(log) == 0


def test_a_rule_that_runs_elsewhere_has_nobody_to_give_it_to():
    transform = Interpreter(
        {"cos": lambda ctx, x, **params: (ctx.emit("c", x), ctx.bind(x))[1]}, custom_rules="transform"
    )
    g = jax.custom_jvp(jnp.sin)
    g.defjvp(lambda primals, tangents: (g(*primals), jnp.cos(primals[0]) * tangents[0]))
    with pytest.raises(RuleError, match="'c' is emitted in the jvp(_rule)? rule"):
        jax.grad(transform.transform(g))(1.0)
    h = jax.custom_vjp(jnp.sin)
    h.defvjp(lambda x: (h(x), x), lambda x, ct: (jnp.cos(x) * ct,))
    with pytest.raises(RuleError, match="'c' is emitted in the bwd rule"):
        jax.grad(transform.transform(h))(1.0)
    assert harvest(jax.grad(h))(1.0)[0] == jnp.cos(1.0)
