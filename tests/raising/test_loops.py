"""Counted loops: how often they run is proved, their bits stay, and they have the derivatives of the original."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

import unlower

W = np.linspace(-0.5, 0.7, 16, dtype="f4").reshape(4, 4)
XS = np.sin(np.arange(24, dtype="f4")).reshape(6, 4)


def _cell(w, c, x):
    c = jnp.tanh(c @ w + x)
    return c, c * c


def _scan(**options):
    return lambda w, xs: lax.scan(lambda c, x: _cell(w, c, x), xs[0], xs, **options)


def _nested(w, xs):
    return lax.scan(lambda c, x: lax.scan(lambda d, y: _cell(w, d, x + y), c, xs), xs[0], xs)


def _write(w, xs):
    return lax.fori_loop(0, 6, lambda i, a: a.at[i].set(jnp.sin(a[i] @ w)), xs)


def _counted(start, proceed, step, dtype="int32"):
    """A `while` in reverse of which JAX has no derivative; compared with as many steps written out."""

    def looped(w, xs):
        state = lax.while_loop(
            lambda s: proceed(s[0]), lambda s: (step(s[0]), _cell(w, s[1], xs[0])[0]), (jnp.array(start, dtype), xs[1])
        )
        return state[1]

    def written_out(w, xs):
        counter, c = np.array([start], dtype), xs[1]
        while proceed(counter)[0]:
            counter, c = step(counter).astype(dtype), _cell(w, c, xs[0])[0]
        return c

    return looped, written_out


SCANS = {
    "xs and ys": _scan(),
    "reverse": _scan(reverse=True),
    "unroll": _scan(unroll=2),
    "unroll with a remainder": _scan(unroll=4),
    "one step": lambda w, xs: _scan()(w, xs[:1]),
    "no step": lambda w, xs: lax.scan(lambda c, x: _cell(w, c, x), xs[0], xs[:0]),
    "no xs": lambda w, xs: lax.scan(lambda c, _: _cell(w, c, xs[0]), xs[1], None, length=5),
    "nested": _nested,
    "remat": lambda w, xs: lax.scan(jax.checkpoint(lambda c, x: _cell(w, c, x)), xs[0], xs),
    "jit in the body": lambda w, xs: lax.scan(jax.jit(lambda c, x: _cell(w, c, x)), xs[0], xs),
    "cond in the body": lambda w, xs: lax.scan(
        lambda c, x: lax.cond(x[0] > 0, lambda: _cell(w, c, x), lambda: (c, x)), xs[0], xs
    ),
    "map": lambda w, xs: lax.map(lambda x: jnp.sin(x @ w), xs),
    "map in batches": lambda w, xs: lax.map(lambda x: jnp.sin(x @ w), xs, batch_size=2),
    "vmap": lambda w, xs: jax.vmap(_scan(), (None, 0))(w, jnp.stack([xs, xs + 1])),
    "fori": lambda w, xs: lax.fori_loop(0, 5, lambda i, c: jnp.tanh(c @ w + i), xs[0]),
    "fori that reads rows": lambda w, xs: lax.fori_loop(0, 6, lambda i, c: jnp.tanh(c @ w + xs[i]), xs[0]),
    "fori that writes rows": _write,
    "two carries": lambda w, xs: lax.scan(lambda c, x: ((c[1], jnp.tanh(c[0] @ w + x)), c[0]), (xs[0], xs[1]), xs),
    "integers carried": lambda w, xs: lax.scan(
        lambda c, x: ((c[0] + 1, jnp.tanh(c[1] @ w + x)), c[1] * c[0].astype("f4")), (jnp.int32(0), xs[0]), xs
    )[1],
    "rnn": lambda w, xs: lax.scan(
        lambda c, x: ((1 - jax.nn.sigmoid(x)) * c + jax.nn.sigmoid(x) * (c @ w),) * 2, xs[0], xs
    ),
    "runge-kutta": lambda w, xs: lax.scan(
        lambda c, _: (c + 0.1 * jnp.sin((c + 0.05 * jnp.sin(c @ w)) @ w), c), xs[0], None, length=6
    ),
    "optimizer": lambda w, xs: lax.fori_loop(
        0, 4, lambda _, v: v - 0.1 * jax.grad(lambda u: jnp.sum((xs @ u - 1) ** 2))(v), w
    ),
    "gradient of a scan": lambda w, xs: jax.grad(lambda u: jnp.sum(_scan()(u, xs)[1]))(w),
    "gradient of a nested scan": lambda w, xs: jax.grad(lambda u: jnp.sum(_nested(u, xs)[0]))(w),
    "cumulative": lambda w, xs: lax.scan(lambda c, x: (c + x, c + x), jnp.zeros(4), xs @ w),
}
WHILES = {
    "up": _counted(0, lambda i: i < 5, lambda i: i + 1),
    "down": _counted(5, lambda i: i > 0, lambda i: i - 1),
    "unequal, by two": _counted(0, lambda i: i != 6, lambda i: i + 2),
    "doubled": _counted(1, lambda i: i < 20, lambda i: i * 2),
    "wraps around": _counted(120, lambda i: i > 0, lambda i: i + 3, "int8"),
    "at most": _counted(0, lambda i: i <= 4, lambda i: i + 1, "uint8"),
    "not once": _counted(9, lambda i: i < 5, lambda i: i + 1),
}


def _loss(function):
    def loss(w, xs):
        leaves = jax.tree.leaves(function(w, xs))
        return sum(jnp.sum(x * jnp.cos(jnp.arange(x.size, dtype="f4").reshape(x.shape))) for x in leaves)

    return loss


def _check(function, reference, w=W, xs=XS):
    program = unlower.load(jax.jit(function).lower(w, xs))
    assert all(loop.trip_count is not None and not loop.reason for loop in program.loops)
    for got, wanted in zip(jax.tree.leaves(program(w, xs)), jax.tree.leaves(jax.jit(function)(w, xs)), strict=True):
        np.testing.assert_array_equal(np.asarray(got).view("u4"), np.asarray(wanted).view("u4"))
    got = jax.jit(jax.grad(_loss(program), (0, 1)))(w, xs)
    wanted = jax.jit(jax.grad(_loss(reference), (0, 1)))(w, xs)
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)  # sums over iterations round in another order
    return program


@pytest.mark.parametrize("name", SCANS)
def test_scan(name):
    _check(SCANS[name], SCANS[name])


@pytest.mark.parametrize("name", WHILES)
def test_while(name):
    program = _check(*WHILES[name])
    assert len(program.loops) == 1


def test_forward_program_is_the_same():
    lowered = jax.jit(_scan()).lower(W, XS)
    again = jax.jit(unlower.load(lowered)).lower(W, XS)
    for name in ("while", "dot_general", "custom_call", "call @"):
        assert lowered.as_text().count(name) == again.as_text().count(name), name


def test_higher_orders_and_batches():
    program = unlower.load(jax.jit(_scan()).lower(W, XS))
    hessian = jax.hessian(_loss(program))(W, XS)
    np.testing.assert_allclose(hessian, jax.hessian(_loss(_scan()))(W, XS), rtol=1e-3, atol=1e-4)
    batch = np.stack([W, 2 * W])
    got = jax.vmap(jax.grad(_loss(program)), (0, None))(batch, XS)
    np.testing.assert_allclose(got, jax.vmap(jax.grad(_loss(_scan())), (0, None))(batch, XS), rtol=1e-4, atol=1e-5)


def test_loop_over_data_is_not_counted():
    program = unlower.load(
        jax.jit(lambda x: lax.while_loop(lambda c: c.sum() < 30, lambda c: c * 2, x)).lower(XS[0] + 2)
    )
    (loop,) = program.loops
    assert loop.trip_count is None
    assert loop.reason == "its condition depends on data"
    tangent = jax.jvp(program, (XS[0] + 2,), (XS[0],))[1]
    assert np.isfinite(tangent).all()


def test_loop_that_never_ends_is_not_counted():
    program = unlower.load(jax.jit(lambda x: lax.while_loop(lambda s: s[0] < 2, lambda s: s, (0, x))).lower(1.0))
    assert program.loops[0].reason == "it never ends"


def test_loop_without_a_closed_form_is_run_within_a_budget():
    def looped(x):
        return lax.while_loop(lambda s: s[0] != 6, lambda s: (s[0] * 3 + 1, x), (1, x))

    program = unlower.load(jax.jit(looped).lower(1.0))
    assert program.loops[0].reason == "it, or the loops before it together, run more than 131072 times"


def test_long_loops_are_counted_in_closed_form():
    def looped(x):
        def outer(i, c):
            return lax.fori_loop(0, 1000, lambda j, c: c * 0.999 + j * 1e-6 + i * 1e-9, c)

        return lax.fori_loop(0, 300_000, lambda i, c: c + 1e-6, lax.fori_loop(0, 40, outer, x))

    program = unlower.load(jax.jit(looped).lower(1.0))
    assert sorted(loop.trip_count for loop in program.loops) == [40, 1000, 300_000]
    np.testing.assert_allclose(jax.grad(program)(1.0), jax.grad(looped)(1.0), rtol=1e-6)
    assert program(1.0) == jax.jit(looped)(1.0)


@pytest.mark.parametrize(
    ("start", "stop", "step", "dtype", "count"),
    [
        (0, 2**31 - 1, 1, "int32", 2**31 - 1),
        (0, 2**31 - 1, 7, "int32", 3_374_617_161),  # 7 steps over the end, five times
        (-(2**31), 2**31 - 2, 2, "int32", 2**31 - 1),
        (0, 4_000_000_000, 1000, "uint32", 4_000_000),
    ],
)
def test_counts_near_the_end_of_a_type(start, stop, step, dtype, count):
    def looped(x):
        return lax.while_loop(
            lambda s: s[0] < np.asarray(stop, dtype),
            lambda s: (s[0] + np.asarray(step, dtype), s[1] * 0.5),
            (np.asarray(start, dtype), x),
        )

    assert unlower.load(jax.jit(looped).lower(1.0)).loops[0].trip_count == count


@settings(max_examples=60, deadline=None)
@given(
    start=st.integers(-128, 127),
    bound=st.integers(-128, 127),
    other=st.integers(-128, 127),
    steps=st.tuples(st.integers(-9, 9), st.integers(-9, 9)),
    scale=st.integers(-5, 5),
    compare=st.tuples(*[st.sampled_from(["lt", "le", "gt", "ge", "eq", "ne"])] * 2),
    combine=st.sampled_from(["and", "or"]),
)
def test_closed_forms_are_what_running_gives(start, bound, other, steps, scale, compare, combine):
    kind = np.int8
    relations = {"lt": "LT", "le": "LE", "gt": "GT", "ge": "GE", "eq": "EQ", "ne": "NE"}
    numpy = {
        "lt": np.less,
        "le": np.less_equal,
        "gt": np.greater,
        "ge": np.greater_equal,
        "eq": np.equal,
        "ne": np.not_equal,
    }
    text = f"""
    func.func public @main(%x: tensor<f32>) -> tensor<f32> {{
      %a0 = stablehlo.constant dense<{start}> : tensor<i8>
      %b0 = stablehlo.constant dense<{other}> : tensor<i8>
      %r:3 = "stablehlo.while"(%a0, %b0, %x) ({{
        ^bb0(%a: tensor<i8>, %b: tensor<i8>, %y: tensor<f32>):
          %n = stablehlo.constant dense<{bound}> : tensor<i8>
          %s = stablehlo.constant dense<{scale}> : tensor<i8>
          %as = stablehlo.multiply %a, %s : tensor<i8>
          %p = stablehlo.compare {relations[compare[0]]}, %as, %n, SIGNED : (tensor<i8>, tensor<i8>) -> tensor<i1>
          %q = stablehlo.compare {relations[compare[1]]}, %a, %b, SIGNED : (tensor<i8>, tensor<i8>) -> tensor<i1>
          %c = stablehlo.{combine} %p, %q : tensor<i1>
          stablehlo.return %c : tensor<i1>
      }}, {{
        ^bb0(%a: tensor<i8>, %b: tensor<i8>, %y: tensor<f32>):
          %d = stablehlo.constant dense<{steps[0]}> : tensor<i8>
          %e = stablehlo.constant dense<{steps[1]}> : tensor<i8>
          %a1 = stablehlo.add %a, %d : tensor<i8>
          %b1 = stablehlo.subtract %b, %e : tensor<i8>
          %z = stablehlo.sine %y : tensor<f32>
          stablehlo.return %a1, %b1, %z : tensor<i8>, tensor<i8>, tensor<f32>
      }}) : (tensor<i8>, tensor<i8>, tensor<f32>) -> (tensor<i8>, tensor<i8>, tensor<f32>)
      return %r#2 : tensor<f32>
    }}"""
    (loop,) = unlower.load(text).loops
    a, b, count = np.array([start], kind), np.array([other], kind), 0
    holds = {"and": np.logical_and, "or": np.logical_or}[combine]
    while count <= 70_000:
        left = numpy[compare[0]](a * np.array([scale], kind), np.array([bound], kind))
        if not holds(left, numpy[compare[1]](a, b))[0]:
            break
        a, b, count = a + np.array([steps[0]], kind), b - np.array([steps[1]], kind), count + 1
    # Two counters of eight bits repeat themselves after at most 65536 steps.
    assert loop.trip_count == (count if count <= 70_000 else None)


def test_rule_of_the_caller_sees_loops():
    seen = []

    def mine(op, *operands, cond, body):
        seen.append(op.name)
        return lax.while_loop(lambda s: cond(*s)[0], lambda s: body(*s), operands)

    unlower.load(jax.jit(_scan()).lower(W, XS), rules=unlower.op_rules | {"stablehlo.while": mine})
    assert seen == ["stablehlo.while"]


@settings(max_examples=15, deadline=None)
@given(
    start=st.integers(-20, 20),
    bound=st.integers(-20, 20),
    step=st.integers(-3, 3).filter(bool),
    compare=st.sampled_from(["lt", "le", "gt", "ge"]),
    dtype=st.sampled_from(["int8", "int32"]),
)
def test_counts_are_those_of_the_loop(start, bound, step, compare, dtype):
    def looped(x):
        proceed = getattr(lax, compare)
        bounds = jnp.array(bound, dtype)
        return lax.while_loop(
            lambda s: proceed(s[0], bounds) & (s[1] < 600),
            lambda s: (s[0] + jnp.array(step, dtype), s[1] + 1, s[2] * 0.99),
            (jnp.array(start, dtype), jnp.int32(0), x),
        )

    lowered = jax.jit(looped).lower(1.0)
    (loop,) = unlower.load(lowered).loops
    assert loop.trip_count == int(lowered.compile()(1.0)[1])


def test_many_endless_loops_cost_no_more_than_one():
    def endless(x):
        for _ in range(50):
            x = lax.while_loop(lambda c: c[0] >= 0, lambda c: (c[0] * 1, c[1] + 1.0), (0, x))[1]
        return x

    program = unlower.load(jax.jit(endless).lower(1.0))
    assert [loop.trip_count for loop in program.loops] == [None] * 50


def test_names_and_places():
    def looped(x):
        x = lax.while_loop(lambda c: c.sum() < 30, lambda c: c * 2, x)
        return lax.fori_loop(0, 3, lambda i, c: jnp.sin(c), x)

    first, second = unlower.load(jax.jit(looped).lower(XS[0] + 2)).loops
    assert (first.name, second.name) == ("main.while_0", "main.while_1")
    assert first.place.startswith("@main, ") and "test_loops.py:" in first.place
