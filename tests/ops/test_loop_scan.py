"""A counted loop differentiates at the cost of the scan that it was, and to the same bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

import unlower
from unlower.ops.loop_scan import run_as_scan

D, N = 16, 24
RANDOM = np.random.default_rng(0)
W = (RANDOM.normal(size=(D, D)) / 4).astype(np.float32)
C = RANDOM.normal(size=D).astype(np.float32)
XS = RANDOM.normal(size=(N, D)).astype(np.float32)


def recurrent(w, c, xs, **options):
    def step(c, x):
        h = jnp.tanh(c @ w + x)
        return h, h * 2

    return lax.scan(step, c, xs, **options)


def nested(w, c, xs):
    def outer(c, x):
        c, y = lax.scan(lambda c, v: (jnp.tanh(c @ w) * v, c), c, x)
        return c, y.sum(0)

    return lax.scan(outer, c, xs.reshape(4, 6, D))


def by_rows(w, xs):
    def step(i, a):
        row = jnp.tanh(lax.dynamic_index_in_dim(a, i, 0, keepdims=False) @ w)
        return lax.dynamic_update_index_in_dim(a, row, i, 0)

    return lax.fori_loop(0, N, step, xs)


def by_columns_backwards(w, xs):
    def step(i, a):
        at = xs.shape[0] - 1 - i
        column = jnp.tanh(lax.dynamic_slice(a, (0, at), (D, 1)).T @ w).T
        return lax.dynamic_update_slice(a, column, (0, at))

    return lax.fori_loop(0, N, step, xs.T)


def by_blocks(w, xs):
    def step(i, a):
        block = jnp.tanh(lax.dynamic_slice(a, (4 * i, 0), (4, D)) @ w)
        return lax.dynamic_update_slice(a, block, (4 * i, 0))

    return lax.fori_loop(0, N // 4, step, xs)


def gated(w, c, xs):
    return lax.scan(lambda c, x: (lax.cond(x[0] > 0, lambda: jnp.tanh(c @ w + x), lambda: c), c), c, xs)


PROGRAMS = {
    "inputs": (recurrent, (W, C, XS)),
    "reverse": (lambda *a: recurrent(*a, reverse=True), (W, C, XS)),
    "unrolled": (lambda *a: recurrent(*a, unroll=3), (W, C, XS)),
    "no inputs": (lambda w, c: lax.scan(lambda c, _: (jnp.tanh(c @ w), c), c, None, length=N), (W, C)),
    "no outputs": (lambda w, c, xs: lax.scan(lambda c, x: (jnp.tanh(c @ w + x), None), c, xs), (W, C, XS)),
    "rows passed on": (lambda w, c, xs: lax.scan(lambda c, x: (x, jnp.tanh(c @ w)), c, xs), (W, C, XS)),
    "map": (lambda w, xs: lax.map(lambda x: jnp.sin(x @ w), xs), (W, XS)),
    "nested": (nested, (W, C, XS)),
    "counter": (lambda w, c: lax.fori_loop(0, N, lambda i, c: jnp.tanh(c @ w) + i, c), (W, C)),
    "at": (lambda w, xs: lax.fori_loop(0, N, lambda i, a: a.at[i].set(jnp.tanh(a[i] @ w)), xs), (W, XS)),
    "rows": (by_rows, (W, XS)),
    "columns backwards": (by_columns_backwards, (W, XS)),
    "blocks": (by_blocks, (W, XS)),
    "batched": (lambda w, c, xs: jax.vmap(lambda c: recurrent(w, c, xs))(jnp.stack([c, c * 2])), (W, C, XS)),
    "mask": (lambda w, c, xs: lax.scan(lambda c, x: (jnp.where(x > 0, c @ w, c), c), c, xs), (W, C, XS)),
    "choice": (gated, (W, C, XS)),
    "one": (lambda w, c, xs: recurrent(w, c, xs[:1]), (W, C, XS)),
    "none": (lambda w, c, xs: recurrent(w, c, xs[:0]), (W, C, XS)),
}


def gradient(function, count):
    def loss(*arguments):
        results = [x.reshape(-1) for x in jax.tree.leaves(function(*arguments))]
        return sum(jnp.vdot(jnp.cos(jnp.arange(x.size, dtype=x.dtype)), x) for x in results)

    return jax.grad(loss, argnums=tuple(range(count)))


def cost(function, arguments):
    compiled = jax.jit(function).lower(*arguments).compile()
    figures = compiled.cost_analysis()
    figures = figures[0] if isinstance(figures, list) else figures
    memory = compiled.memory_analysis()
    found = [
        figures.get("flops", 0),
        figures.get("bytes accessed", 0),
        0 if memory is None else memory.temp_size_in_bytes,
    ]
    return np.array(found), compiled(*arguments)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_gradient_costs_what_the_scan_s_costs(name):
    function, arguments = PROGRAMS[name]
    program = unlower.load(jax.jit(function).lower(*arguments))
    assert all(loop.trip_count is not None for loop in program.loops)
    for original, again in zip(jax.tree.leaves(jax.jit(function)(*arguments)), program.flat(*arguments), strict=True):
        assert np.asarray(original).tobytes() == np.asarray(again).tobytes()
    original, values = cost(gradient(function, len(arguments)), arguments)
    again, found = cost(gradient(program.flat, len(arguments)), arguments)
    assert (again <= original * [1.02, 1.02, 1.05] + [64, 64, 64]).all(), again / original
    for wanted, value in zip(values, found, strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("start", "stop", "step", "slot"),
    [(0, 5, 1, "int32"), (10, 0, -2, "int32"), (1, 33, "double", "int32"), (120, -126, 2, "int8")],
)
def test_counters_of_every_kind(start, stop, step, slot):
    def body(carry):
        i, total = carry
        after = i * 2 if step == "double" else i + np.asarray(step, slot)
        return after, total * 0.5 + 0.001 * jnp.sin(total) * i.astype(jnp.float32)

    def run(total):
        return lax.while_loop(lambda c: c[0] != stop, body, (jnp.asarray(start, slot), total))[1]

    program = unlower.load(jax.jit(run).lower(1.5))
    (loop,) = program.loops
    counted = {5: 5, 0: 5, 33: None, -126: 5}[stop]
    assert loop.trip_count == counted
    if counted is not None:
        total, i = 1.5, np.asarray([start], slot)
        for _ in range(counted):
            total = total * 0.5 + 0.001 * np.sin(total) * float(i[0])
            i = i * 2 if step == "double" else i + np.asarray([step], slot)
        _, tangent = jax.jvp(run, (1.5,), (1.0,))
        np.testing.assert_allclose(jax.grad(program)(1.5), tangent, rtol=1e-5)
        np.testing.assert_allclose(program(1.5), total, rtol=1e-5)


def test_a_row_that_is_read_after_it_was_written_is_carried():
    def run(w, a):
        def step(i, a):
            a = lax.dynamic_update_index_in_dim(a, a[0] @ w, i, 0)
            return a.at[0].add(1.0)

        return lax.fori_loop(0, N, step, a)

    program = unlower.load(jax.jit(run).lower(W, XS))
    wanted, found = (gradient(f, 2)(W, XS) for f in (run, program.flat))
    for a, b in zip(wanted, found, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-5)


def by_gather(w, xs):
    return lax.fori_loop(0, N, lambda i, a: a.at[i].set(jnp.tanh(jnp.take(a, i, axis=0) @ w)), xs)


def by_gathered_columns(w, xs):
    return lax.fori_loop(0, N, lambda i, a: a.at[:, N - 1 - i].add(jnp.tanh(a[:, N - 1 - i] @ w)), xs.T)


@pytest.mark.parametrize("function", [by_gather, by_gathered_columns])
def test_rows_of_gathers_and_scatters_are_scanned(function):
    program = unlower.load(jax.jit(function).lower(W, XS))
    original, values = cost(gradient(function, 2), (W, XS))
    again, found = cost(gradient(program.flat, 2), (W, XS))
    # The original keeps the whole array for each row.
    assert (again[1:] < original[1:] * 0.85).all(), again / original
    for wanted, value in zip(values, found, strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-6)


@settings(max_examples=25, deadline=None)
@given(
    step=st.integers(-2, 2),
    offset=st.integers(-3, 8),
    kind=st.sampled_from(["set", "add", "multiply", "min", "max"]),
    count=st.integers(0, 6),
)
def test_whatever_is_gathered_and_scattered(step, offset, kind, count):
    """A scatter drops what lies outside, where a slice would be moved inside."""

    def run(a):
        def body(i, a):
            at = step * i + offset
            row = a.at[at].get(mode="clip", wrap_negative_indices=False)
            write = a.at[at]
            return getattr(write, kind)(
                jnp.sin(row) * 0.7, mode="drop", wrap_negative_indices=False, unique_indices=True
            )

        return lax.fori_loop(0, count, body, a)

    a = np.linspace(1, 2, 6, dtype=np.float32)
    program = unlower.load(jax.jit(run).lower(a))
    got, wanted = jax.jvp(program, (a,), (a,)), jax.jvp(run, (a,), (a,))
    for x, y in zip(got, wanted, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6)
    np.testing.assert_allclose(jax.grad(lambda x: program(x).sum())(a), jax.grad(lambda x: run(x).sum())(a), rtol=1e-6)


@pytest.mark.parametrize("backwards", [False, True])
def test_starts_beyond_the_greatest_signed_integer(backwards):
    def body(i, a, w):
        at = (i - np.uint64(5)) if not backwards else (np.uint64(0) - i)
        return i + np.uint64(1), lax.dynamic_update_slice_p.bind(a, jnp.sin(lax.slice(a, (0,), (1,))) * w, at), w

    with jax.enable_x64(True):
        slots = np.uint64(0), np.linspace(1, 2, 6, dtype=np.float32), np.float32(0.7)
        closed = jax.make_jaxpr(body)(*slots)
        wanted = slots
        for _ in range(6):
            wanted = jax.jit(body)(*wanted)
        found = run_as_scan(closed, 6, {0: 0}, (), slots)
    np.testing.assert_allclose(found[1], wanted[1], rtol=1e-6)


@settings(max_examples=25, deadline=None)
@given(
    read=st.tuples(st.integers(-3, 3), st.integers(-4, 8)),
    write=st.tuples(st.integers(-3, 3), st.integers(-4, 8)),
    count=st.integers(0, 6),
)
def test_whatever_rows_are_read_and_written(read, write, count):
    def body(i, a, w):
        row = lax.dynamic_slice(a, (read[0] * i + read[1],), (1,))
        a = lax.dynamic_update_slice(a, jnp.sin(row) * w, (write[0] * i + write[1],))
        return i + 1, a, w

    a, w = np.linspace(1, 2, 6, dtype=np.float32), np.float32(0.7)
    closed = jax.make_jaxpr(body)(np.int32(0), a, w)
    slots = (np.int32(0), a, w)
    for _ in range(count):
        slots = body(*slots)
    found = run_as_scan(closed, count, {0: 0}, (), (np.int32(0), a, w))
    for wanted, value in zip(slots, found, strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-6)
