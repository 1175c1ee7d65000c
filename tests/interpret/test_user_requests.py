"""What users of JAX have asked of interpreters over the years, each as the smallest program that must work."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from unlower import amp
from unlower.errors import UnsupportedOpError
from unlower.interpret import Box, Interpreter, diff, walk
from unlower.transforms import (
    Interval,
    count_flops,
    harvest,
    interval,
    inverse,
    name_intermediates,
    plant,
    swap,
    tag,
)

ONE = jnp.float32(1.0)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Pair(Box):
    """Two arrays that are carried side by side and stand for their sum."""

    a: jax.Array
    b: jax.Array

    @property
    def aval(self):
        return jax.typeof(self.a)

    def materialize(self):
        return self.a + self.b


def split_add(ctx, x, y, **params):
    pairs = [v if isinstance(v, Pair) else Pair(v, jnp.zeros_like(v)) for v in (x, y)]
    return Pair(ctx.bind(pairs[0].a, pairs[1].a), ctx.bind(pairs[0].b, pairs[1].b))


PAIRS = Interpreter(
    {"add": split_add},
    lift=lambda value, like: Pair(value, jnp.zeros_like(value)),
    custom_rules="drop",
)


def test_harvest_inside_scan():
    # oryx #16
    f = lambda x: lax.scan(lambda c, _: (tag("h", c + 1), None), x, None, length=5)[0]
    np.testing.assert_array_equal(harvest(f)(ONE)[1]["h"], [2, 3, 4, 5, 6])


def test_keyword_arguments_are_not_ignored():
    # oryx #86
    assert float(harvest(jax.jit(lambda x: tag("y", x)))(x=5.0)[1]["y"]) == 5.0


def test_inverse_through_jit():
    # oryx #29
    np.testing.assert_allclose(inverse(jax.jit(lambda x: jnp.exp(x * 2)))(jnp.exp(ONE)), 0.5, rtol=1e-6)


def test_harvest_after_grad_and_around_custom_rules():
    # tensorflow/probability #1045, flax #5538
    f = lambda x: jax.nn.relu(tag("a", x**2)) * 2
    gradient, log = harvest(jax.grad(f))(3 * ONE)
    assert (float(gradient), float(log["a"])) == (12.0, 9.0)
    looped = lambda x: lax.scan(lambda c, _: (jax.nn.silu(tag("c", c)), None), x, None, length=2)[0]
    assert harvest(jax.grad(looped))(ONE)[1]["c"].shape == (2,)


def test_collect_and_inject_forwards_and_backwards():
    # jax #1660
    f = lambda x: tag("y", jnp.sin(x)) * 3
    _, log = harvest(f)(ONE)
    assert float(plant(f, log)(0 * ONE)) == float(f(ONE))
    doubled = plant(jax.grad(f), {"y": 6.0}, kind="cotangent")
    np.testing.assert_allclose(doubled(ONE), 6 * jnp.cos(ONE), rtol=1e-6)
    solve = lambda b: lax.custom_linear_solve(lambda x: 2 * x, b, lambda _, b: tag("solved", b / 2), symmetric=True)
    assert float(solve(ONE)) == 0.5


def test_tangents_and_cotangents_of_intermediates():
    # jax #12782, #557
    f = lambda x: tag("y", x**3)
    _, log = harvest(lambda x, t: jax.jvp(f, (x,), (t,)), kind="tangent")(2 * ONE, ONE)
    assert float(log["y"]) == 12.0


def test_activations_of_every_layer():
    # flax #3198
    def model(ws, x):
        for w in ws:
            x = jnp.tanh(x @ w)
        return x

    ws = [jnp.eye(4)] * 3
    _, log = name_intermediates(model, keep=lambda name, aval: "dot_general" in name)(ws, jnp.ones((2, 4)))
    assert [v.shape for v in log.values()] == [(2, 4)] * 3


def test_a_stateful_trace_in_final_style():
    # jax #2313
    seen = []

    def note(ctx, x, y, **params):
        out = ctx.bind(x, y)
        seen.append(bool(out))
        return out

    def f(x):
        return x * 2 if lax.gt(x, ONE) else x * 3

    assert float(Interpreter({"gt": note}).transform(f, style="final")(2 * ONE)) == 4.0
    assert seen == [True]


@pytest.mark.parametrize("style", ["initial", "final"])
def test_one_rule_set_for_both_styles_and_later_transforms(style):
    # genjax #239
    f = swap(jax.jit(lambda x: jnp.sin(x) * x), {"sin": lambda x, **_: x * x}, style=style)
    assert float(jax.grad(f)(2 * ONE)) == 12.0
    np.testing.assert_array_equal(jax.vmap(jax.grad(f))(jnp.arange(3.0)), [0, 3, 12])


def test_scan_over_boxes():
    # quax #29
    f = lambda c, xs: lax.scan(lambda c, x: (c + x, c), c, xs)
    carry, ys = PAIRS.transform(f)(Pair(ONE, ONE), Pair(jnp.arange(3.0), jnp.ones(3)))
    assert (float(carry.a), float(carry.b)) == (4.0, 4.0)
    np.testing.assert_array_equal(ys.b, [1, 2, 3])


def test_boxes_with_two_leaves_and_loops_of_no_length():
    # quax #189
    box = Interval(ONE, 2 * ONE)
    out, _ = interval(lambda x: lax.scan(lambda c, _: (c * 2, None), x, None, length=0))(box)
    assert (float(out.lower), float(out.upper)) == (1.0, 2.0)
    out, _ = interval(lambda x: lax.scan(lambda c, _: (c * 2, None), x, None, length=3))(box)
    assert float(out.lower) <= 8.0 and float(out.upper) >= 16.0


def test_while_with_constants_from_outside():
    # quax #16
    f = lambda w: lax.while_loop(lambda c: c < 10, lambda c: c * w, 2 * ONE)
    turned = swap(f, {"mul": lambda x, y, **_: lax.mul(x, y) * 1})
    value, slope = jax.jvp(turned, (2 * ONE,), (ONE,))
    assert (float(value), float(slope)) == (16.0, 24.0)


def test_the_carry_becomes_a_box():
    # quax #232
    f = lambda c, xs: lax.scan(lambda c, x: (c + x, None), c, xs)[0]
    out = PAIRS.transform(f)(ONE, Pair(jnp.arange(3.0), jnp.ones(3)))
    assert (float(out.a), float(out.b)) == (4.0, 3.0)


def test_custom_vjp_with_boxes():
    # quax #219
    @jax.custom_vjp
    def f(x, y):
        return x + y

    f.defvjp(lambda x, y: (x + y, None), lambda _, g: (g, g))
    out = PAIRS.transform(f)(Pair(ONE, ONE), ONE)
    assert (float(out.a), float(out.b)) == (2.0, 1.0)


def test_weights_in_two_parts_go_through_scan():
    # qax #5
    body = lambda c, w: (c + w, None)
    out = PAIRS.transform(lambda ws: lax.scan(body, jnp.zeros(2), ws)[0])(Pair(jnp.ones((3, 2)), jnp.full((3, 2), 0.5)))
    np.testing.assert_array_equal(out.b, [1.5, 1.5])


def test_jit_keeps_its_parameters():
    # jax-scalify #31, #132
    f = jax.jit(lambda x: jnp.sin(x), donate_argnums=0)
    (before,) = jax.make_jaxpr(f)(ONE).eqns
    (after,) = jax.make_jaxpr(swap(f, {"sin": lambda x, **_: lax.cos(x)}))(ONE).eqns
    assert {k: v for k, v in before.params.items() if k != "jaxpr"} == {
        k: v for k, v in after.params.items() if k != "jaxpr"
    }


def test_a_half_precision_body_and_a_full_carry():
    # levanter #569, jax #27144
    w, h = jnp.eye(32) * 0.5, jnp.ones((4, 32))
    run = amp.autocast(lambda h, w: lax.scan(lambda c, _: (jnp.tanh(c @ w), c), h, None, length=3))
    carry, ys = run(h, w)
    assert carry.dtype == ys.dtype == jnp.float32


def test_a_carry_that_changes_one_place_at_a_time():
    # jax #9046: the box travels along the carry, one place in each round of the search for types.
    def f(x):
        body = lambda c, _: ([c[0] + x, *(a + b for a, b in zip(c[1:], c[:-1], strict=True))], None)
        return lax.scan(body, [ONE] * 4, None, length=5)[0]

    out = PAIRS.transform(f)(Pair(ONE, ONE))
    wanted = f(2 * ONE)
    assert all(isinstance(o, Pair) for o in out)
    np.testing.assert_array_equal([o.materialize() for o in out], wanted)


def test_rules_see_inside_derivative_calls():
    # jax #40747
    f = lambda x: jax.nn.gelu(jax.nn.relu(x)) + jax.nn.logsumexp(jnp.stack([x, x]))
    assert {"max", "tanh", "exp"} <= {visit.equation.primitive.name for visit in walk(jax.make_jaxpr(f)(ONE))}
    assert float(swap(jax.nn.relu, {"max": lambda x, y, **_: x + 5})(ONE)) == 6.0


def test_shard_map_is_rewritten_too():
    # jax #26890, #26887
    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("d")
    f = jax.shard_map(lambda x: jnp.sin(x) * 2, mesh=mesh, in_specs=spec, out_specs=spec)
    np.testing.assert_array_equal(jax.jit(swap(f, {"sin": lambda x, **_: x + 1}))(jnp.arange(2.0)), [2, 4])


def test_bounds_through_closed_programs():
    # jax_verify #10
    out = interval(jax.jit(jax.nn.relu))(Interval(-ONE, ONE))
    assert (float(out.lower), float(out.upper)) == (0.0, 1.0)


def test_flops_of_loops_and_checkpoints():
    # jax #18672, #10542
    body = lambda x: jnp.sin(x @ jnp.ones((4, 4)))
    once = int(count_flops(body)(jnp.ones((2, 4))))
    looped = lambda x: lax.scan(lambda c, _: (body(c), None), x, None, length=7)[0]
    assert int(count_flops(looped)(jnp.ones((2, 4)))) == 7 * once
    assert int(count_flops(jax.checkpoint(body))(jnp.ones((2, 4)))) == once


def test_jitted_functions_are_kept_and_rewritten():
    # pennylane #7078
    inner = jax.jit(lambda x: jnp.sin(x))
    f = lambda x: inner(inner(x))
    jaxpr = jax.make_jaxpr(Interpreter().transform(f))(ONE)
    assert diff(jaxpr, jax.make_jaxpr(f)(ONE)) == ""
    twice = jax.make_jaxpr(swap(f, {"sin": lambda x, **_: lax.cos(x)}))(ONE)
    first, second = (e.params["jaxpr"] for e in twice.eqns)
    assert first is second


def test_a_walk_over_every_equation():
    # jax2onnx #17, jaxpr-viz #11
    f = lambda x: lax.scan(lambda c, _: (lax.cond(c > 0, jnp.sin, jnp.cos, c), None), x, None, length=2)[0]
    paths = {visit.equation.primitive.name: visit.path for visit in walk(jax.make_jaxpr(f)(ONE))}
    assert (paths["sin"], paths["cos"]) == (("scan", "cond.branch1"), ("scan", "cond.branch0"))
    assert paths["scan"] == ()


@pytest.mark.parametrize("fallback", ["materialize", "raise"])
def test_the_fallback_is_the_users_choice(fallback):
    # jax #28749
    pairs = PAIRS.extend({}, fallback=fallback)
    run = lambda: pairs.transform(jnp.sin)(Pair(ONE, ONE))
    if fallback == "raise":
        with pytest.raises(UnsupportedOpError, match="sin"):
            run()
    else:
        assert float(run()) == float(jnp.sin(2 * ONE))


def test_custom_rules_in_both_of_their_forms():
    # jax #18731: traced and untraced custom derivatives are one to a rule.
    f = lambda x: jax.nn.silu(jax.nn.relu(x))
    for style in ("initial", "final"):
        turned = swap(f, {"max": lambda x, y, **_: lax.max(x, y) * 2}, style=style)
        assert float(turned(ONE)) == float(jax.nn.silu(2 * ONE))


def test_an_interpreter_is_one_object_under_partial_and_methods():
    class Model:
        def __init__(self, w):
            self.w = w

        def __call__(self, x, *, scale=1.0):
            return jnp.sin(x * self.w) * scale

    turned = swap(functools.partial(Model(2.0), scale=3.0), {"sin": lambda x, **_: x})
    assert float(turned(ONE)) == 6.0
