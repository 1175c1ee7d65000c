"""swap, tag, harvest, plant, name_intermediates and find_nonfinite, in all surroundings."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from unlower.errors import RuleError
from unlower.interpret.testing import check_identity
from unlower.transforms import PlantError, find_nonfinite, harvest, name_intermediates, plant, swap, tag

ONE = jnp.float32(1.0)


def loop(body, length=3):
    return lambda x: lax.scan(lambda c, _: (body(c), None), x, None, length=length)[0]


AROUND = {
    "plain": lambda f: f,
    "jit": jax.jit,
    "checkpoint": jax.checkpoint,
    "cond": lambda f: lambda x: lax.cond(x > -1e9, f, lambda x: x, x),
    "nested": lambda f: jax.jit(lambda x: jax.checkpoint(jax.jit(f))(x)),
}


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("style", ["initial", "final"])
def test_swap_at_every_depth(around, style):
    f = AROUND[around](lambda x: jnp.sin(x) * 3)
    swapped = swap(f, {"sin": lambda x, **params: x + 10}, style=style)
    assert float(swapped(ONE)) == 33.0
    assert float(jax.grad(swapped)(ONE)) == 3.0
    np.testing.assert_array_equal(jax.vmap(swapped)(jnp.arange(3.0)), (np.arange(3) + 10) * 3)


def test_swap_twice_is_the_identity():
    f = lambda x: jnp.sin(x) + jnp.cos(2 * x)
    turn = {"sin": lambda x, **_: jnp.cos(x), "cos": lambda x, **_: jnp.sin(x)}
    assert float(swap(swap(f, turn), turn)(ONE)) == float(f(ONE))


@pytest.mark.parametrize("around", AROUND)
def test_harvest_equals_eager_values(around):
    f = AROUND[around](lambda x: tag("y", jnp.sin(x)) * 2)
    out, log = harvest(f)(ONE)
    assert float(out) == float(jnp.sin(ONE) * 2)
    assert float(log["y"]) == float(jnp.sin(ONE))
    out, log = jax.jit(harvest(f))(ONE)
    np.testing.assert_allclose(log["y"], jnp.sin(ONE), rtol=1e-6)
    _, rows = jax.vmap(harvest(f))(jnp.arange(3.0))
    np.testing.assert_allclose(rows["y"], np.sin(np.arange(3)), rtol=1e-6)


def test_harvest_of_loops_and_branches():
    out, log = harvest(loop(lambda c: tag("c", c * 2)))(ONE)
    np.testing.assert_array_equal(log["c"], [2, 4, 8])
    out, log = harvest(lambda x: lax.fori_loop(0, x.astype(int) + 3, lambda i, c: tag("c", c + 1), x))(ONE)
    assert float(log["c"]) == float(out) == 5.0
    branch = lambda x: lax.cond(x > 0, lambda x: tag("a", x), lambda x: tag("b", -x), x)
    _, log = harvest(branch)(ONE)
    assert bool(log.present["a"]) and not bool(log.present["b"]) and float(log["a"]) == 1.0


def test_harvest_of_tangents_and_cotangents():
    f = lambda x: tag("y", x**2) * 3
    (_, slope), log = harvest(lambda x, t: jax.jvp(f, (x,), (t,)), kind="tangent")(2 * ONE, ONE)
    assert (float(slope), float(log["y"])) == (12.0, 4.0)
    gradient, log = harvest(jax.grad(f), kind="cotangent")(2 * ONE)
    assert (float(gradient), float(log["y"])) == (12.0, 3.0)
    steps = loop(lambda c: tag("c", c * 2))
    gradient, log = harvest(jax.grad(steps), kind="cotangent")(ONE)
    assert float(gradient) == 8.0
    np.testing.assert_array_equal(log["c"], [4, 2, 1])
    for around in AROUND.values():
        gradient, log = harvest(jax.grad(around(f)), kind="cotangent", mode="last")(2 * ONE)
        assert float(gradient) == 12.0 and float(log["y"]) == 3.0


def test_harvest_of_a_gradient_outside():
    f = lambda x: tag("y", x**2) * 3
    gradient, log = jax.grad(harvest(f), has_aux=True)(2 * ONE)
    assert float(gradient) == 12.0 and float(log["y"]) == 4.0


def test_tag_names_leaves_and_changes_nothing():
    f = lambda x: tag("state", {"a": x, "b": (x * 2, x * 3)})
    _, log = harvest(f)(ONE)
    assert {k: float(v) for k, v in log.items()} == {
        ("state", "['a']"): 1.0,
        ("state", "['b'][0]"): 2.0,
        ("state", "['b'][1]"): 3.0,
    }
    assert jax.tree.map(float, f(ONE)) == {"a": 1.0, "b": (2.0, 3.0)}
    text = jax.jit(lambda x: tag("y", x) + 1).lower(ONE).as_text()
    assert text.count("stablehlo.") == jax.jit(lambda x: x + 1).lower(ONE).as_text().count("stablehlo.")


def test_names_kinds_and_modes():
    f = lambda x: tag("b", tag("a", x + 1) + 1) + tag("a", x)
    assert set(harvest(f, names=["b"])(ONE)[1]) == {"b"}
    with pytest.raises(RuleError, match="'a' is emitted twice"):
        harvest(f)(ONE)
    assert [float(v) for v in harvest(f, mode="append")(ONE)[1]["a"]] == [2.0, 1.0]
    assert float(harvest(f, mode="last")(ONE)[1]["a"]) == 1.0


@pytest.mark.parametrize("around", AROUND)
def test_plant_is_the_inverse_of_harvest(around):
    f = AROUND[around](lambda x: tag("y", jnp.sin(x)) * 2)
    assert float(plant(f, {"y": 10.0})(ONE)) == 20.0
    _, log = harvest(f)(ONE)
    assert float(plant(f, log)(5 * ONE)) == float(f(ONE))
    gradient = jax.grad(lambda y: plant(f, {"y": y})(ONE))(ONE)
    assert float(gradient) == 2.0


def test_plant_in_a_loop():
    steps = lambda x: lax.scan(lambda c, x: (c + tag("y", x), c), ONE * 0, x)
    xs = jnp.arange(3.0)
    assert float(plant(steps, {"y": 5.0})(xs)[0]) == 15.0
    assert float(plant(steps, {"y": jnp.array([1.0, 10.0, 100.0])})(xs)[0]) == 111.0
    back = lambda x: lax.scan(lambda c, x: (c * 2 + tag("y", x), c), ONE * 0, x, reverse=True)
    assert float(plant(back, {"y": jnp.array([1.0, 10.0, 100.0])})(xs)[0]) == 421.0
    assert float(jax.jit(plant(jax.jit(steps), {"y": jnp.array([1.0, 10.0, 100.0])}))(xs)[0]) == 111.0


def test_plant_refuses_what_does_not_fit():
    with pytest.raises(PlantError, match="nothing to replace by 'z'"):
        plant(lambda x: tag("y", x), {"z": 1.0})(ONE)
    with pytest.raises(PlantError, match="shape"):
        plant(lambda x: tag("y", x), {"y": jnp.ones(3)})(ONE)


def test_swap_and_harvest_commute():
    f = jax.jit(lambda x: tag("y", jnp.sin(x)) * 2)
    turn = {"sin": lambda x, **_: jnp.cos(x)}
    (a, log_a), (b, log_b) = harvest(swap(f, turn))(ONE), swap(harvest(f), turn)(ONE)
    assert float(a) == float(b) and float(log_a["y"]) == float(log_b["y"]) == float(jnp.cos(ONE))


def test_name_intermediates():
    f = jax.jit(lambda x: loop(lambda c: jnp.tanh(c) * 2)(jnp.sin(x)))
    out, log = name_intermediates(f)(ONE)
    assert float(out) == float(f(ONE))
    named = {k.split("/", 1)[1]: v for k, v in log.items()}
    np.testing.assert_allclose(named["sin"], jnp.sin(ONE))
    assert named["scan/tanh"].shape == (3,)
    _, few = name_intermediates(f, keep=lambda name, aval: "tanh" in name)(ONE)
    assert [k.rsplit("/", 1)[1] for k in few] == ["tanh"]


def test_find_nonfinite_names_the_first_equation():
    found = find_nonfinite(lambda x: jnp.sqrt(jnp.log(x) - 1) + 1)(jnp.array([10.0, 1.0]))
    assert found.path == "sqrt" and found.inputs[0].tolist()[1] == -1.0 and found.iteration == ()
    assert "test_values_by_name.py" in found.source
    assert find_nonfinite(lambda x: jnp.sqrt(x))(ONE) is None


@pytest.mark.parametrize("around", AROUND)
def test_find_nonfinite_inside(around):
    found = find_nonfinite(AROUND[around](lambda x: jnp.log(x - 1) * 2))(ONE)
    assert found.path.endswith("/log") or found.path == "log"
    assert found.inputs[0] == 0.0 and found.output == -np.inf


def test_find_nonfinite_tells_the_iteration():
    f = lambda x: lax.scan(lambda c, v: (c * 0.5, jnp.log(v) + jnp.sqrt(v + 1)), ONE, x)[1]
    found = find_nonfinite(f)(jnp.array([1.0, 2.0, 0.0, -5.0]))
    assert found.path == "scan/log" and found.iteration == (2,) and found.inputs[0] == 0.0
    found = find_nonfinite(f)(jnp.array([1.0, -5.0, 0.0, 1.0]))
    assert found.iteration == (1,) and "iteration 1" in str(found)
    nested = lambda x: lax.map(lambda row: lax.map(lambda v: 1 / v, row), x)
    found = find_nonfinite(nested)(jnp.ones((3, 4)).at[1, 2].set(0))
    assert found.iteration == (1, 2) and found.path.endswith("div")


def test_find_nonfinite_of_a_gradient():
    found = find_nonfinite(jax.grad(lambda x: jnp.sqrt(x) * 1.0))(ONE * 0)
    assert found is not None and found.output == np.inf


def test_the_transforms_are_lawful():
    """They change no result of any of the kit's programs."""
    transforms = {
        "swap": lambda f: swap(f, {}),
        "harvest": lambda f: functools.partial(lambda f, *a, **k: harvest(f)(*a, **k)[0], f),
    }
    for transform in transforms.values():
        check_identity(transform, modes=["eager", "jit"]).check()


def test_find_nonfinite_in_every_iteration_of_a_while():
    count = lambda x: lax.while_loop(
        lambda c: c[0] < 6, lambda c: (c[0] + 1, jnp.sqrt(2 - c[1]) * 0 + c[1] + 1), (0, x)
    )
    found = find_nonfinite(count)(ONE)
    assert (found.path, found.iteration, float(found.inputs[0])) == ("while.body/sqrt", (2,), -1.0)
    # The condition's last evaluation ends the loop, after as many iterations as there were.
    found = find_nonfinite(lambda x: lax.while_loop(lambda c: jnp.sqrt(2 - c) >= 0, lambda c: c + 1, x))(ONE)
    assert (found.path, found.iteration) == ("while.cond/sqrt", (2,))
    assert find_nonfinite(lambda x: lax.while_loop(lambda c: c < 3, lambda c: c + 1, x))(ONE) is None


def test_find_nonfinite_in_loops_within_loops():
    def steps(row):
        count, start = row
        return lax.fori_loop(0, count.astype(int), lambda _, c: c + 1 / (c - 2), start)

    f = lambda rows: lax.map(steps, rows)
    # The second row starts from 2, where 1 / (c - 2) is infinite, but takes no step.
    xs = jnp.array([[2.0, 0.0], [0.0, 2.0], [3.0, 2.0]])
    found = find_nonfinite(f)(xs)
    assert found.iteration == (2, 0) and found.path.endswith("div") and float(found.inputs[1]) == 0.0
    outer = lambda x: lax.while_loop(
        lambda c: c[0] < 4, lambda c: (c[0] + 1, lax.map(lambda v: jnp.log(v - c[0]), x).sum()), (0, ONE)
    )
    found = find_nonfinite(outer)(jnp.array([5.0, 2.0, 1.0, 3.0]))
    assert found.iteration == (1, 2) and found.path == "while.body/scan/log" and found.output == -np.inf


def test_find_nonfinite_goes_by_the_order_of_execution():
    two = jax.jit(lambda x, y: (lax.map(jnp.log, x), lax.map(jnp.sqrt, y)))
    found = find_nonfinite(two)(jnp.ones(8).at[5].set(0), jnp.full(8, -1.0))
    assert found.path.endswith("scan/log") and found.iteration == (5,)
    inner_first = lambda x: lax.map(lambda row: (lax.map(jnp.log, row), jnp.sqrt(row[0] - 2)), x)
    found = find_nonfinite(inner_first)(jnp.zeros((3, 2)))
    assert found.path == "scan/scan/log" and found.iteration == (0, 0)


def test_find_nonfinite_changes_nothing():
    check_identity(lambda f: lambda *a, **k: (find_nonfinite(f)(*a, **k), f(*a, **k))[1], modes=["eager"]).check()


@jax.custom_vjp
def seven(x):
    return x * 2


seven.defvjp(lambda x: (x * 2, None), lambda _, g: (g * 7,))


def test_functions_keep_their_own_derivatives():
    f = lambda x: seven(x) + tag("y", x * x)
    assert float(jax.grad(plant(f, {"y": 1.0}))(ONE)) == 7.0
    for transform in (harvest, name_intermediates):
        assert float(jax.grad(lambda x, t=transform: t(f)(x)[0])(ONE)) == float(jax.grad(f)(ONE)) == 9.0


def test_plant_is_the_inverse_of_harvest_in_loops_within_loops():
    inner = lambda c: lax.scan(lambda d, _: (tag("h", d * 2), None), c, None, length=3)[0]
    f = lambda x: lax.scan(lambda c, _: (inner(c), c), x, None, length=2)
    out, log = harvest(f)(ONE)
    assert log["h"].shape == (2, 3)
    for run in (plant(f, log), jax.jit(plant(f, log))):
        assert float(run(5 * ONE)[0]) == float(out[0]) == 64.0


def test_the_mapped_axis_of_a_tagged_value_comes_first():
    f = jax.vmap(lambda x: tag("y", x * 2), in_axes=1, out_axes=1)
    x = jnp.arange(6.0).reshape(2, 3)
    out, log = harvest(f)(x)
    np.testing.assert_array_equal(out, x * 2)
    np.testing.assert_array_equal(log["y"], x.T * 2)
    np.testing.assert_array_equal(plant(f, log)(0 * x), x * 2)


def test_kinds_of_higher_derivatives():
    f = lambda x: tag("y", x**3) ** 2  # x**6
    second, log = harvest(jax.grad(jax.grad(f)), kind="cotangent.cotangent")(2 * ONE)
    assert float(second) == 30 * 2.0**4
    np.testing.assert_allclose(log["y"], 3 * 2.0**2)  # the derivative of f' by what f' multiplies dy/dx by
    back = lambda c: jax.linear_transpose(lambda x: tag("y", x * 2), ONE)(c)[0]
    assert float(harvest(back, kind="cotangent")(ONE)[1]["y"]) == 1.0
    forth = lambda x: jax.linear_transpose(back, ONE)(x)[0]
    assert float(harvest(forth, kind="tangent")(3 * ONE)[1]["y"]) == 6.0
