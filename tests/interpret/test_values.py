"""Boxes: values of any number of leaves, through every kind of sub-program, and what carries and branches agree on."""

import dataclasses
import functools
import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from unlower.errors import RuleError
from unlower.interpret import Box, Interpreter
from unlower.interpret.testing import PROGRAMS

STYLES = pytest.mark.parametrize("style", ["initial", "final"])


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Pair(Box):
    """A value and how much it may be off: two leaves."""

    mid: jax.Array
    rad: jax.Array

    @property
    def aval(self):
        return jax.typeof(self.mid)

    def materialize(self):
        return self.mid


class Radii(Interpreter):
    """Carries the radius along linear primitives; everything else makes an array of the middle."""

    def lift(self, value, like):
        return Pair(value, jnp.zeros_like(value))


@Radii.rule("add")
def _(ctx, x, y, **params):
    return Pair(lax.add(mid(x), mid(y)), lax.add(rad(x), rad(y))) if any_pair(x, y) else ctx.bind(x, y)


@Radii.rule("mul")
def _(ctx, x, y, **params):
    if not any_pair(x, y):
        return ctx.bind(x, y)
    a, b, r, s = mid(x), mid(y), rad(x), rad(y)
    return Pair(a * b, abs(a) * s + abs(b) * r + r * s)


@Radii.rule("reduce_sum")
def _(ctx, x, **params):
    return Pair(ctx.bind(x.mid), ctx.bind(x.rad)) if any_pair(x) else ctx.bind(x)


def mid(x):
    return x.mid if isinstance(x, Pair) else x


def rad(x):
    return x.rad if isinstance(x, Pair) else jnp.zeros_like(x)


def any_pair(*xs):
    return any(isinstance(x, Pair) for x in xs)


RADII = Radii()


def pair(x, r=0.5):
    x = jnp.asarray(x, jnp.float32)
    return Pair(x, jnp.full_like(x, r))


def check(f, style, *args, mids=None):
    """The middle of the result is the result of the middles, and its radius bounds what inputs within theirs can do."""
    out = jax.jit(RADII.transform(f, style=style))(*args)
    plain = f(*map(mid, args))
    key = jax.random.key(0)
    for x, want in zip(
        jax.tree.leaves(out, is_leaf=lambda v: isinstance(v, Pair)), jax.tree.leaves(plain), strict=True
    ):
        np.testing.assert_allclose(mid(x), want, rtol=1e-6)
    for _ in range(5):
        key, sub = jax.random.split(key)
        near = [
            a.mid + a.rad * jax.random.uniform(sub, a.mid.shape, minval=-1, maxval=1) if isinstance(a, Pair) else a
            for a in args
        ]
        for x, want in zip(
            jax.tree.leaves(out, is_leaf=lambda v: isinstance(v, Pair)), jax.tree.leaves(f(*near)), strict=True
        ):
            assert np.all(abs(want - mid(x)) <= rad(x) * (1 + 1e-5) + 1e-6)
    return out


@STYLES
def test_arguments_and_results_are_boxes_inside_pytrees(style):
    out = RADII.transform(lambda t: {"s": t["a"] + t["b"], "same": t["a"]}, style=style)({"a": pair(1), "b": 2.0})
    assert (out["s"].mid, out["s"].rad) == (3, 0.5) and isinstance(out["same"], Pair)


@STYLES
def test_through_jit_shares_one_program(style):
    f = jax.jit(lambda x, y: x + y)
    out = check(lambda x, y: f(f(x, y), y) * 2.0, style, pair([1.0, 2.0]), pair([3.0, 4.0], 0.25))
    np.testing.assert_array_equal(out.rad, [2.0, 2.0])


@STYLES
def test_scan_of_boxes_in_every_place(style):
    def f(w, x, xs):
        return lax.scan(lambda c, v: (c * w + v, c), x, xs)

    last, steps = check(f, style, pair(0.5, 0.1), pair(1.0), pair([1.0, 2.0, 3.0]))
    assert last.rad.shape == () and steps.mid.shape == steps.rad.shape == (3,)


@STYLES
def test_a_plain_carry_becomes_a_box_when_the_body_says_so(style):
    out = check(lambda xs: lax.scan(lambda c, v: (c + v, None), np.float32(0), xs)[0], style, pair([1.0, 2.0, 3.0]))
    assert out.rad == 1.5
    # The change travels along the carry, one place each round.
    shift = lambda c, v: ((c[0] + v, c[0] + c[1], c[1] + c[2]), None)
    out = check(lambda xs: lax.scan(shift, (np.float32(0),) * 3, xs)[0], style, pair([1.0, 2.0, 3.0]))
    assert all(isinstance(x, Pair) for x in out)


@STYLES
@pytest.mark.parametrize("length", [0, 1, 3])
def test_scan_of_any_length(style, length):
    f = lambda x: lax.scan(lambda c, _: (c + 1.0, c), x, None, length=length)
    last, steps = check(f, style, pair(1.0))
    assert (last.mid, last.rad, steps.mid.shape) == (1 + length, 0.5, (length,))


@STYLES
def test_while_loop(style):
    f = lambda x, w: lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * w), (0, x))[1]
    out = check(f, style, pair(1.0), pair(2.0))
    assert out.mid == 8
    out = check(f, style, jnp.float32(1), pair(2.0))
    assert isinstance(out, Pair)


@STYLES
@pytest.mark.parametrize("index", [-1.0, 1.0])
def test_branches_agree(style, index):
    f = lambda i, x: lax.cond(i > 0, lambda x: x + 1.0, lambda x: 7.0, x)
    out = check(functools.partial(f, index), style, pair(1.0))
    assert (out.mid, out.rad) == ((2, 0.5) if index > 0 else (7, 0))


@STYLES
def test_checkpoint_custom_rules_and_linear_solve(style):
    check(jax.checkpoint(lambda x, y: x * y + x), style, pair([1.0, 2.0]), pair([3.0, 4.0]))
    g = jax.custom_jvp(lambda x: x * x)
    g.defjvp(lambda p, t: (g(*p), 5 * t[0]))
    h = jax.custom_vjp(lambda x: x * x)
    h.defvjp(lambda x: (h(x), x), lambda x, ct: (5 * ct,))
    check(lambda x: g(x) + h(x), style, pair(2.0))


@STYLES
def test_gradient_of_a_radius(style):
    f = jax.jit(lambda x, w: lax.scan(lambda c, _: (c * w, None), x, None, length=2)[0])
    radius = lambda w: RADII.transform(f, style=style)(pair(1.0), Pair(w, jnp.float32(0.25))).rad
    w, eps = jnp.float32(2), 1e-2
    np.testing.assert_allclose(jax.grad(radius)(w), (radius(w + eps) - radius(w - eps)) / (2 * eps), rtol=1e-3)


@STYLES
def test_a_box_that_was_closed_over_by_a_rule_reaches_a_loop(style):
    weight = jnp.float32(3)

    def run(w):
        scaled = Interpreter({"sin": lambda ctx, x, **params: x * w})
        return scaled.transform(lambda x: lax.scan(lambda c, _: (jnp.sin(c), None), x, None, length=2)[0], style=style)(
            2.0
        )

    assert jax.grad(run)(weight) == 12 and jax.jit(jax.grad(run))(weight) == 12


# --- identity with two leaves, over every program of the kit


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Split(Box):
    """An array in two halves of its bits' sum: `x == high + low`."""

    array: jax.Array
    shadow: jax.Array

    @property
    def aval(self):
        return jax.typeof(self.array)

    def materialize(self):
        return self.array


def both(ctx, *values, **params):
    """Every primitive, in both leaves."""
    first = ctx.bind(*(v.array if isinstance(v, Split) else v for v in values))
    if not any(isinstance(v, Split) for v in values) or ctx.primitive.name in SINGLE:
        return first
    second = ctx.bind(*(v.shadow if isinstance(v, Split) else v for v in values))
    return [*map(Split, first, second)] if ctx.primitive.multiple_results else Split(first, second)


SINGLE = {"pure_callback", "debug_callback", "io_callback", "get", "swap", "addupdate", "new_ref", "freeze"}
OF_KERNELS = {"references", "pallas_kernel"}


@STYLES
@pytest.mark.parametrize("name", [n for n in PROGRAMS if n not in OF_KERNELS])
def test_two_leaves_through_every_program(name, style):
    program = PROGRAMS[name]()
    double = Interpreter(default=both, lift=lambda value, like: Split(value, value))
    args = jax.tree.map(lambda x: Split(x, x) if x.dtype == np.float32 else x, program.args)
    out = jax.tree.map(
        lambda x: x.array if isinstance(x, Split) else x,
        double.transform(program.function, style=style)(*args, **program.kwargs),
        is_leaf=lambda x: isinstance(x, Split),
    )
    wanted = jax.tree.map(jnp.asarray, program.function(*program.args, **program.kwargs))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6), out, wanted)


# --- what is said when it does not fit


def test_errors_of_boxes():
    f = lambda xs: lax.scan(lambda c, v: (c + v, None), 0.0, xs)[0]
    grow = Interpreter({"add": lambda ctx, x, y, **_: Pair(mid(x) + mid(y), rad(x) + rad(y))})
    with pytest.raises(RuleError, match="override `lift`") as caught:
        grow.transform(f)(pair([1.0, 2.0]))
    assert any("scan" in note for note in caught.value.__notes__)

    class Sealed(Pair):
        materialize = Box.materialize

    jax.tree_util.register_dataclass(Sealed, ["mid", "rad"], [])
    with pytest.raises(RuleError, match="Sealed cannot be turned into one array"):
        RADII.transform(jnp.sin)(Sealed(jnp.ones(2), jnp.ones(2)))
    with pytest.raises(RuleError, match="a box cannot be bound"):
        Interpreter({"sin": lambda ctx, x, **_: ctx.bind(x)}).transform(jnp.sin)(pair(1.0))
    with pytest.raises(NotImplementedError, match="must define the property `aval`"):
        _ = Box().aval


# --- dtypes of plain values


def narrow(ctx, *values, **params):
    """The narrowest float wins."""
    if any(v.dtype == jnp.bfloat16 for v in values):
        values = [v.astype(jnp.bfloat16) if v.dtype == jnp.float32 else v for v in values]
    return ctx.bind(*values)


def halve(ctx, x, *, name):
    return x.astype(jnp.bfloat16)


NARROW = Interpreter({"name": halve}, default=narrow)


def half(x):
    """What `NARROW` holds in bfloat16, and the program takes for float32."""
    return checkpoint_name(x, "half")


@STYLES
def test_a_carry_changes_its_dtype(style):
    f = lambda h, w, xs: lax.scan(lambda c, x: (jnp.tanh(c * half(w)) + x, c), h, xs)
    h, w, xs = jnp.ones(3), jnp.ones(3) / 3, jnp.ones((4, 3))
    run = NARROW.transform(f, style=style)
    last, steps = run(h, w, xs)
    assert last.dtype == steps.dtype == jnp.bfloat16
    np.testing.assert_allclose(last.astype(np.float32), f(h, w, xs)[0], rtol=0.02)
    grads = jax.grad(lambda w: run(h, w, xs)[0].astype(jnp.float32).sum())(w)
    assert grads.dtype == jnp.float32
    np.testing.assert_allclose(grads, jax.grad(lambda w: f(h, w, xs)[0].sum())(w), rtol=0.1, atol=0.02)


@STYLES
def test_a_long_carry_settles_one_place_after_the_other(style):
    def body(c, x):
        return [c[0] + half(x), *map(operator.add, c[1:], c[:-1])], None

    f = lambda xs: lax.scan(body, [jnp.float32(0)] * 5, xs)[0]
    out = NARROW.transform(f, style=style)(jnp.ones(4))
    assert [x.dtype for x in out] == [jnp.bfloat16] * 5
    np.testing.assert_array_equal(jnp.stack(out).astype(np.float32), jnp.stack(f(jnp.ones(4))))


@STYLES
def test_a_condition_of_a_loop_stays_a_boolean(style):
    f = lambda x: lax.while_loop(lambda c: c < 20, lambda c: half(c) * 2, x)
    out = NARROW.transform(f, style=style)(jnp.float32(3))
    assert out == 24 and out.dtype == jnp.bfloat16


@STYLES
def test_join_decides(style):
    stay = NARROW.extend({}, join=lambda first, second, round: first)
    f = lambda h, x: lax.scan(lambda c, _: (c * half(x), None), h, None, length=2)[0]
    out = stay.transform(f, style=style)(jnp.float32(2), jnp.float32(3))
    assert out == 18 and out.dtype == jnp.float32
