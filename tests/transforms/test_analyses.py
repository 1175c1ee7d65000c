"""count_flops, interval, inverse and effect_handler: right values, in all surroundings."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from unlower.errors import UnhandledHigherOrderError, UnsupportedOpError
from unlower.interpret import Fold, FoldError
from unlower.transforms import (
    CountError,
    EffectError,
    Interval,
    InverseError,
    count_flops,
    effect_handler,
    interval,
    inverse,
    inverse_and_log_det,
    perform,
)

RNG = np.random.RandomState(0)
W = jnp.asarray(RNG.standard_normal((6, 6)), jnp.float32)
X = jnp.asarray(RNG.uniform(-1, 1, (4, 6)), jnp.float32)
ONE = jnp.float32(1.0)


# --- counting


@pytest.mark.parametrize(
    ("function", "args", "wanted"),
    [
        (lambda x, w: x @ w, (jnp.ones((8, 32)), jnp.ones((32, 4))), 2 * 8 * 32 * 4),
        (lambda x: jnp.tanh(x) + 1, (jnp.ones((3, 4)),), 24),
        (lambda x: x.sum(), (jnp.ones((3, 4)),), 12),
        (lambda x: x.T.reshape(-1)[::2], (jnp.ones((3, 4)),), 0),
        (jax.jit(lambda x: jax.checkpoint(jnp.sin)(x)), (jnp.ones(5),), 5),
        (lambda x: lax.scan(lambda c, _: (jnp.sin(c) * 2, None), x, None, length=7)[0], (jnp.ones(5),), 70),
        (lambda x: lax.cond(x[0] > 0, lambda x: jnp.sin(x) * 2, lambda x: x, x), (jnp.ones(5),), 10),
        (lambda x, k: lax.conv_general_dilated(x, k, (1, 1), "VALID"), (jnp.ones((2, 3, 8, 8)), jnp.ones((4, 3, 3, 3))),
         2 * (2 * 4 * 6 * 6) * (3 * 3 * 3)),
        (lambda i: i + 1, (jnp.arange(5),), 0),
        (jnp.cumsum, (jnp.ones(9),), 9),
    ],
)  # fmt: skip
def test_count_flops(function, args, wanted):
    assert int(count_flops(function)(*args)) == wanted


def test_count_flops_agrees_with_xla_on_products():
    f = lambda x, w: jax.nn.relu(x @ w) @ w @ w
    cost = jax.jit(f).lower(X, W).compile().cost_analysis()
    counted = int(count_flops(f)(X, W))
    assert abs(counted - cost["flops"]) <= 2 * X.size


def test_count_flops_of_loops_that_nobody_counts():
    inner = lambda x: lax.while_loop(lambda c: c < 9, lambda c: c * 2 + 1, x)
    count = count_flops(lambda x: inner(inner(x)) + 1)(ONE)
    assert count.at({"while": 3, "while:2": 5}) == 2 * 3 + 2 * 5 + 1
    with pytest.raises(CountError, match="while"):
        int(count)
    nested = lambda x: lax.while_loop(lambda c: c < 9, lambda c: inner(c) + 1, x)
    assert sorted(map(sorted, count_flops(nested)(ONE).terms)) == [["while"], ["while", "while:2"]]


def test_fold_equals_an_unrolled_count():
    body = lambda c: jnp.sin(c) * 2 + jnp.cos(c)
    scanned = lambda x: lax.scan(lambda c, _: (body(c), None), x, None, length=5)[0]

    def unrolled(x):
        for _ in range(5):
            x = body(x)
        return x

    count = Fold(lambda equation: 1)
    assert count.of(scanned)(ONE) == count.of(unrolled)(ONE)
    with pytest.raises(FoldError, match="while"):
        count.of(lambda x: lax.while_loop(lambda c: c < 3, lambda c: c + 1, x))(ONE)


def test_fold_knows_functions_with_rules():
    @jax.custom_vjp
    def f(x):
        return jnp.sin(x)

    f.defvjp(lambda x: (f(x), x), lambda x, g: (g * jnp.cos(x) * jnp.exp(x),))
    names = Fold(lambda e: (e.primitive.name,), zero=())
    assert names.of(f)(ONE) == ("sin",)
    assert names.of(jax.nn.relu)(ONE) == ("max",)


# --- bounds

FUNCTIONS = {
    "relu network": lambda x: jax.nn.relu(x @ W) @ W,
    "softmax": lambda x: jax.nn.softmax(x @ W),
    "layernorm": lambda x: (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-3),
    "waves": lambda x: jnp.sin(x * 5) * jnp.cos(x) + jnp.tan(x * 0.1),
    "gelu": jax.nn.gelu,
    "elu": jax.nn.elu,
    "powers": lambda x: x**3 - x**2 + 1 / (2 + jnp.abs(x)) + (x + 3) ** -2 + (x + 3) ** 1.7,
    "scan": lambda x: lax.scan(lambda c, _: (jnp.tanh(c @ W), c.sum()), x, None, length=3),
    "fori": lambda x: lax.fori_loop(0, 4, lambda i, c: c * 0.9 + i, x),
    "cond": lambda x: lax.cond(x[0, 0] > 0, lambda x: x * 2, lambda x: -x, x),
    "where": lambda x: jnp.where(x > 0.1, x, x * x),
    "sort": lambda x: jnp.sort(x, -1)[:, ::-1],
    "logsumexp": lambda x: jax.nn.logsumexp(x, axis=-1) + jax.nn.log_sigmoid(x).sum(-1),
    "gram": lambda x: x @ x.T,
    "cumsum": lambda x: jnp.cumsum(x, -1),
    "clip": lambda x: jnp.clip(x, -0.3, 0.3).max(-1),
    "hyperbolic": lambda x: jnp.cosh(x) + jnp.sinh(x) - jnp.arctan(x),
    "compare": lambda x: ((x > 0) & (x < 0.5)) | (x <= -0.5),
    "argmax": lambda x: jnp.argmax(x, -1),
    "update": lambda x: x.at[jnp.array([0, 1])].add(x[2:]).at[0].set(x[1]),
    "reciprocal across zero": lambda x: 1 / x,
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("radius", [0.0, 0.01, 0.3])
def test_bounds_hold_on_sampled_points(name, radius):
    function = FUNCTIONS[name]
    bounds = jax.jit(lambda b: interval(function)(b))(Interval.around(X, jnp.float32(radius)))
    bounds = jax.tree.leaves(bounds, is_leaf=lambda b: isinstance(b, Interval))
    run = jax.jit(function)
    for seed in range(30):
        rng = np.random.RandomState(seed)
        offset = rng.choice([-1.0, 1.0, rng.uniform(-1, 1)], X.shape) * radius
        x = jnp.clip(X + jnp.asarray(offset, jnp.float32), X - radius, X + radius)
        for bound, value in zip(bounds, jax.tree.leaves(run(x)), strict=True):
            assert (np.asarray(bound.lower) <= value).all() and (value <= np.asarray(bound.upper)).all()


def test_bounds_are_tight_where_they_can_be():
    box = Interval(jnp.float32(-1.0), jnp.float32(2.0))
    for function, low, high in (
        (lambda x: x**2, 0, 4),
        (lambda x: x * x, 0, 4),
        (jnp.abs, 0, 2),
        (jnp.sin, -0.8415, 1),
        (jnp.cos, -0.4162, 1),
        (lambda x: jnp.maximum(x, 0) * -3, -6, 0),
        (lambda x: jnp.where(x > 5, 100.0, x), -1, 2),
    ):
        out = interval(function)(box)
        np.testing.assert_allclose([out.lower, out.upper], [low, high], atol=1e-4)


def test_bounds_refuse_what_they_do_not_know():
    box = Interval(jnp.zeros(3), jnp.ones(3))
    with pytest.raises(UnsupportedOpError, match="no interval rule"):
        interval(lambda x: lax.digamma(x))(box)
    with pytest.raises(UnsupportedOpError, match="indices"):
        interval(lambda x: jnp.arange(9.0)[x.astype(int)])(box)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from([n for n in FUNCTIONS if n not in ("compare", "argmax", "clip", "logsumexp", "gram", "scan")]),
                min_size=1, max_size=3), st.integers(0, 100))  # fmt: skip
def test_bounds_of_compositions(names, seed):
    def function(x):
        for name in names:
            x = jnp.tanh(FUNCTIONS[name](x))
        return x

    bound = interval(function)(Interval.around(X, jnp.float32(0.05)))
    x = X + jnp.asarray(np.random.RandomState(seed).uniform(-0.05, 0.05, X.shape), jnp.float32)
    value = jnp.clip(x, X - 0.05, X + 0.05)
    value = function(value)
    finite = np.isfinite(np.asarray(value))
    assert (np.asarray(bound.lower) <= value)[finite].all() and (value <= np.asarray(bound.upper))[finite].all()


# --- inverses

LOWER = jnp.tril(W) + 3 * jnp.eye(6)


def coupling(x):
    a, b = jnp.split(x, 2)
    b = b * jnp.exp(jnp.tanh(a @ W[:3, :3])) + a
    return jnp.concatenate([b, a])


BIJECTIONS = {
    "exp": lambda x: jnp.exp(x) * 2 + 1,
    "tanh": lambda x: jnp.tanh(x) / 3 - 1,
    "reciprocal": lambda x: 1 / (jnp.sinh(x) + 20.0),
    "log": lambda x: jnp.log1p(jnp.exp(x)),
    "erf": lambda x: lax.erf(x) * 0.5,
    "roots": lambda x: jnp.cbrt(jnp.sqrt(x + 2)) + 1,
    "cube": lambda x: (x + 3) ** 3,
    "power": lambda x: 2.0**x,
    "logistic": jax.checkpoint(jax.nn.sigmoid),
    "matrix right": lambda x: x @ W,
    "matrix left": lambda x: W @ x,
    "triangular": lambda x: lax.linalg.triangular_solve(LOWER, x[:, None], left_side=True, lower=True)[:, 0],
    "coupling": coupling,
    "slices": lambda x: jnp.concatenate([x[::2] * 2, x[1::2] + x[::2]]),
    "cumsum": jax.jit(lambda x: jnp.cumsum(x[::-1])),
    "shapes": lambda x: jnp.pad(x.reshape(2, 3).T.ravel() * 3, (1, 2)),
    "scan": lambda x: lax.scan(lambda c, w: (jnp.sinh(c) * w, None), x, jnp.array([0.5, 2.0, 0.1]))[0],
    "flow": lambda x: lax.scan(lambda c, w: (coupling(c * w), None), x, jnp.array([0.5, 2.0]))[0],
    "cond": lambda x: lax.cond(W[0, 0] > 0, lambda x: x * 2, lambda x: x + 1, x),
}


@pytest.mark.parametrize("name", BIJECTIONS)
def test_inverse_and_its_determinant(name):
    function, x = BIJECTIONS[name], X[0]
    found, log_det = jax.jit(inverse_and_log_det(function, jax.typeof(x) if name == "x" else _like(x)))(function(x))
    np.testing.assert_allclose(found, x, atol=2e-5)
    if function(x).shape == x.shape:
        wanted = jnp.linalg.slogdet(jax.jacfwd(function)(x))[1]
        np.testing.assert_allclose(log_det, -wanted, atol=1e-4)


def _like(x):
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.sampled_from(["tanh", "matrix right", "coupling", "slices", "cumsum", "scan"]), min_size=1, max_size=3)
)
def test_inverse_of_compositions(names):
    def function(x):
        for name in names:
            x = BIJECTIONS[name](x * 0.3)
        return x

    x = X[1]
    found, log_det = inverse_and_log_det(function)(function(x))
    slope = jax.jacfwd(function)(x)
    condition = float(jnp.linalg.cond(slope))
    if condition < 1e3:
        np.testing.assert_allclose(found, x, atol=1e-5 * condition + 1e-3)
        np.testing.assert_allclose(log_det, -jnp.linalg.slogdet(slope)[1], atol=1e-2)


def test_inverse_of_several_arguments_and_known_ones():
    scalar = jax.ShapeDtypeStruct((), "float32")
    assert jax.tree.map(float, inverse(lambda x, y: (x + y, x), scalar, scalar)(3.0, 1.0)) == (1.0, 2.0)
    assert float(inverse(lambda w, x: w * x, 2.0, scalar)(3.0)[1]) == 1.5
    assert float(jax.grad(lambda y: inverse(jnp.exp)(y))(2 * ONE)) == 0.5
    np.testing.assert_allclose(jax.vmap(inverse(jnp.exp))(jnp.array([1.0, 2.0])), np.log([1, 2]), rtol=1e-6)


@pytest.mark.parametrize(
    "function", [lambda x: x**2, lambda x: x.sum() + 0 * x, jnp.abs, lambda x: x @ W[:, :3] @ W[:3]]
)
def test_inverse_names_what_is_in_the_way(function):
    with pytest.raises(InverseError, match="where: `\\w+`"):
        inverse(function)(X[0])


# --- effects

COUNT = {"count": lambda state, x: (state + 1, state + x * 0)}


@pytest.mark.parametrize(
    ("function", "performed"),
    [
        (lambda x: perform("count", x), 1),
        (jax.jit(lambda x: perform("count", x) + perform("count", x)), 2),
        (lambda x: lax.scan(lambda c, _: (c + perform("count", c), None), x, None, length=4)[0], 4),
        (lambda x: lax.fori_loop(0, 3, lambda i, c: perform("count", c), x), 3),
        (lambda x: lax.while_loop(lambda c: perform("count", c) < 5, lambda c: c + 1, x), 6),
        (lambda x: lax.cond(x > 0, lambda x: perform("count", x), lambda x: x, x), 1),
        (lambda x: lax.cond(x < 0, lambda x: perform("count", x), lambda x: x, x), 0),
        (jax.checkpoint(lambda x: perform("count", jnp.sin(x))), 1),
        (lambda x: lax.scan(lambda c, _: (jax.jit(lambda c: perform("count", c))(c), None), x, None, length=2)[0], 2),
    ],
)
def test_the_state_goes_everywhere(function, performed):
    for run in (effect_handler(function, COUNT), jax.jit(effect_handler(function, COUNT))):
        _, state = run(jnp.float32(0), ONE)
        assert float(state) == performed


def test_handled_programs_differentiate_and_batch():
    function = lambda x: perform("scale", x) + perform("scale", x)
    double = {"scale": lambda state, x: (state * 2, state * x)}
    handled = effect_handler(function, double)
    out, state = handled(ONE, 3 * ONE)
    assert (float(out), float(state)) == (9.0, 4.0)
    assert float(jax.grad(lambda x: handled(ONE, x)[0])(3 * ONE)) == 3.0
    assert jax.vmap(lambda x: handled(ONE, x)[0])(jnp.arange(2.0)).tolist() == [0.0, 3.0]


def test_handlers_nest_and_state_is_a_tree():
    function = lambda x: perform("get", x) + perform("count", x)
    inner = effect_handler(function, {"get": lambda state, x: ({"n": state["n"] + 1}, x * 10)})
    outer = effect_handler(lambda x: inner({"n": 0}, x), COUNT)
    (out, state), count = outer(5 * ONE, ONE)
    assert (float(out), int(state["n"]), float(count)) == (15.0, 1, 6.0)


def test_random_keys_as_state():
    def draw(key, x):
        key, use = jax.random.split(key)
        return key, jax.random.normal(use, x.shape)

    function = lambda x: lax.scan(lambda c, _: (c, perform("normal", c)), x, None, length=3)[1]
    out, end = effect_handler(function, {"normal": draw})(jax.random.key(0), jnp.zeros(2))
    expected, wanted = jax.random.key(0), []
    for _ in range(3):
        expected, value = draw(expected, jnp.zeros(2))
        wanted.append(value)
    np.testing.assert_array_equal(out, jnp.stack(wanted))
    assert end == expected


def test_what_does_not_fit_is_refused():
    with pytest.raises(EffectError, match="nobody handles 'count'"):
        jax.jit(lambda x: perform("count", x))(ONE)
    with pytest.raises(EffectError, match="state"):
        effect_handler(lambda x: perform("f", x), {"f": lambda s, x: (jnp.ones(3), x)})(ONE, ONE)
    with pytest.raises(EffectError, match="returned"):
        effect_handler(lambda x: perform("f", x), {"f": lambda s, x: (s, jnp.ones(3))})(ONE, ONE)
    shaped = lambda x: perform("f", x, like=(jnp.zeros(3), jnp.zeros((), int)))
    out, _ = effect_handler(shaped, {"f": lambda s, x: (s, (jnp.ones(3) * x, jnp.int32(7)))})(ONE, ONE)
    assert out[0].tolist() == [1.0, 1.0, 1.0] and int(out[1]) == 7


@pytest.mark.parametrize(
    "function", [jnp.log, jnp.sqrt, jnp.log1p, lax.rsqrt, jnp.arcsin, jnp.arctanh, lambda x: x % 0.7]
)
def test_bounds_of_partial_functions(function):
    bound = interval(function)(Interval(jnp.float32(-1.0), jnp.float32(0.9)))
    values = np.asarray(function(jnp.linspace(-1, 0.9, 77)))
    values = values[~np.isnan(values)]
    assert (float(bound.lower) <= values).all() and (values <= float(bound.upper)).all()


def test_inverse_of_a_scan_that_gives_its_carry():
    sums = lambda x: lax.scan(lambda c, y: (c + y, c + y), jnp.float32(0), x)[1]
    np.testing.assert_allclose(inverse(sums)(jnp.array([1.0, 3.0, 6.0])), [1, 2, 3])
    _, log_det = inverse_and_log_det(lambda x: sums(x * 2))(jnp.array([1.0, 3.0, 6.0]))
    np.testing.assert_allclose(log_det, -3 * np.log(2), rtol=1e-6)


def test_what_is_in_the_way_is_named_inside_calls():
    with pytest.raises(InverseError, match="where: `integer_pow`, from .*test_analyses"):
        inverse(jax.jit(jax.jit(lambda x: x**2 + 1)))(ONE)


BYTES = jnp.array([-128, -100, -3, 0, 2, 90, 127], jnp.int8)
WHOLE = {
    "add": lambda x: x + jnp.int8(100),
    "subtract": lambda x: x - jnp.int8(100),
    "multiply": lambda x: x * jnp.int8(3),
    "negate": lambda x: -x,
    "absolute": abs,
    "power": lambda x: x**3,
    "square": lambda x: x * x,
    "narrow": lambda x: x.astype(jnp.int16).astype(jnp.int8),
    "unsigned": lambda x: x.astype(jnp.uint8) - jnp.uint8(3),
    "divide": lambda x: lax.div(x, jnp.int8(-1)),
    "divide by what may be zero": lambda x: lax.div(jnp.int8(7), x),
    "floor divide": lambda x: x // 3,
    "remainder": lambda x: x % 3,
    "remainder by what may be zero": lambda x: lax.rem(jnp.int8(-128), x),
    "remainder of the least": lambda x: lax.rem(x, jnp.int8(-128)),
    "sum of unsigned": lambda x: jnp.sum(jnp.stack([x, x]).astype(jnp.uint8), dtype=jnp.uint8),
    "sum": lambda x: jnp.sum(jnp.stack([x, x, x]), dtype=jnp.int8),
    "product": lambda x: jnp.stack([x, x]) @ jnp.array([2, 1], jnp.int8),
    "flip a boolean": lambda x: (x > 0) ^ (x > 50),
}


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("width", [1, 40, 200])
def test_bounds_of_integers_hold_where_they_wrap_around(name, width):
    """Every byte of every interval, at every width."""
    function = WHOLE[name]
    for low in BYTES.tolist():
        high = min(low + width, 127)
        bounds = interval(function)(Interval(jnp.int8(low), jnp.int8(high)))
        found = jax.vmap(function)(jnp.arange(low, high + 1, dtype=jnp.int8))
        assert bool(jnp.all((bounds.lower <= found) & (found <= bounds.upper))), (low, high, bounds)
    small = interval(WHOLE["add"])(Interval(jnp.int8(1), jnp.int8(27)))
    assert (int(small.lower), int(small.upper)) == (101, 127)


def test_bounds_without_end_hold_for_the_numbers_inside():
    reaching = Interval(jnp.zeros(2), jnp.array([jnp.inf, 1.0]))
    weights = jnp.array([[1.0, -1.0], [0.0, 2.0]])
    out = interval(lambda x: weights @ x)(reaching)
    point = weights @ jnp.array([5.0, 0.5])
    assert bool(jnp.all((out.lower <= point) & (point <= out.upper)))


def test_bits_of_integer_intervals_are_refused():
    with pytest.raises(UnsupportedOpError, match="bits of integers"):
        interval(lambda x: x & 1)(Interval(jnp.int32(2), jnp.int32(3)))


def test_bounds_of_the_largest_elements():
    values, places = interval(lambda x: lax.top_k(x, 2))(
        Interval(jnp.array([1.0, 5.0, 3.0]), jnp.array([2.0, 6.0, 9.0]))
    )
    assert values.lower.tolist() == [5.0, 3.0]
    assert values.upper.tolist() == [9.0, 6.0]
    assert (places.lower.tolist(), places.upper.tolist()) == ([0, 0], [2, 2])


def test_no_state_is_lost_where_none_can_go():
    """What cannot hold a state says so, and so does what would ask for it too early."""
    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("d")
    sharded = jax.shard_map(lambda x: perform("count", x), mesh=mesh, in_specs=spec, out_specs=spec)
    solved = lambda b: lax.custom_linear_solve(lambda x: 2 * x, b, lambda _, b: perform("count", b), symmetric=True)
    for function, place in ((sharded, "shard_map"), (solved, "custom_linear_solve")):
        with pytest.raises(UnhandledHigherOrderError, match=f"no state can be threaded through, in {place}"):
            effect_handler(function, COUNT)(0.0, jnp.ones(2))
    performs = lambda x: perform("count", x)
    with pytest.raises(EffectError, match=r"jax.vmap\(effect_handler"):
        effect_handler(jax.vmap(performs), COUNT)(0.0, jnp.ones(2))
    with pytest.raises(EffectError, match=r"jax.grad\(effect_handler"):
        effect_handler(jax.grad(performs), COUNT)(0.0, ONE)
    out, state = jax.vmap(effect_handler(performs, COUNT), in_axes=(None, 0))(0.0, jnp.ones(2))
    assert out.shape == state.shape == (2,)


def test_a_composite_that_performs_is_inlined():
    out, state = effect_handler(lax.composite(lambda x: perform("count", x), "my.count"), COUNT)(0.0, ONE)
    assert (float(out), float(state)) == (0.0, 1.0)  # what the state was, and what it is
