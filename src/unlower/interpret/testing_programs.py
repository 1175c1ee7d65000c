"""The programs of the conformance kit: each primitive that carries a program, alone and nested, and what goes on around them.

They are small and deterministic, take and return pytrees, and make their arrays when called, so that importing starts no
device.
"""

import functools
from collections import namedtuple
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

__all__ = ["PROGRAMS", "Program", "program", "ramp"]


class Program(NamedTuple):
    """A function and arguments to call it with."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = {}  # noqa: RUF012 - a NamedTuple's default is never changed


PROGRAMS: dict[str, Callable[[], Program]] = {}
"""Name -> a function that makes the program."""

Pair = namedtuple("Pair", ["first", "second"])


def program(make: Callable[[], Program]) -> Callable[[], Program]:
    """Adds what makes a program to `PROGRAMS`, under its name."""
    PROGRAMS[make.__name__] = make
    return make


def ramp(*shape: int) -> Any:
    """An array of distinct numbers between 0 and about 2."""
    return (jnp.arange(int(np.prod(shape)) or 1, dtype=jnp.float32).reshape(shape) + 1) / 7


@program
def pytrees_and_keywords() -> Program:
    def f(x, tree, *, k=2.0, n=3):
        total = tree["v"][0] + jnp.float32(n)
        return {"s": x + tree["u"] * k, "l": [total, (x,)], "none": None, "p": Pair(x + x, total)}

    return Program(f, (ramp(3), {"u": ramp(3), "v": (ramp(2),)}), {"k": jnp.float32(3)})


@program
def jit_twice() -> Program:
    @jax.jit
    def g(t):
        return {"o": t["a"] + t["b"], "p": t["a"] + 1}

    return Program(lambda x, y: g({"a": x, "b": y})["o"] + g({"a": y, "b": x})["p"], (ramp(3), ramp(3)))


@program
def jit_nested_with_constant() -> Program:
    constant = ramp(4)

    @functools.partial(jax.jit, static_argnums=1, static_argnames=("mode",))
    def g(x, n, mode="x"):
        h = jax.jit(lambda y: (y + constant).sum() + jnp.float32(n))
        return h(x) + (x.sum() if mode == "x" else 0.0)

    return Program(lambda x: g(x, 3, mode="x"), (ramp(4),))


@program
def jit_donated_and_kept() -> Program:
    g = jax.jit(lambda x, y: x * 2 + 1, donate_argnums=0, keep_unused=True)
    return Program(lambda x, y: g(x + 1, y) + y, (ramp(3), ramp(3)))


@program
def scan() -> Program:
    def body(c, x):
        return {"h": jnp.tanh(c["h"] + x["i"]), "n": c["n"] + 1}, {"y": c["h"] + 1.0, "z": x["i"]}

    return Program(lambda t, xs: lax.scan(body, {"h": t, "n": 0}, {"i": xs}), (ramp(3), ramp(5, 3)))


@program
def scan_reverse_unrolled_with_constant() -> Program:
    def f(w, xs):
        return lax.scan(lambda c, x: (c @ w + x, c.sum()), jnp.ones(3), xs, reverse=True, unroll=2)

    return Program(f, (ramp(3, 3), ramp(5, 3)))


@program
def scan_of_no_steps() -> Program:
    def f(x, xs):
        return lax.scan(lambda c, v: (jnp.sin(c) + v, c), x, xs)

    return Program(f, (ramp(3), jnp.zeros((0, 3))))


@program
def while_loop() -> Program:
    def f(x, w):
        return lax.while_loop(lambda s: s[1].sum() + s[0] < 30, lambda s: (s[0] + 1.0, s[1] + w), (0.0, x))

    return Program(f, (ramp(3), ramp(3)))


@program
def fori_loop_with_bound_from_outside() -> Program:
    def f(x, n):
        return lax.fori_loop(0, n, lambda i, c: (c[0] + 1, jnp.sin(c[1]) + c[0]), (x, ramp(2)))

    return Program(f, (jnp.float32(1), jnp.int32(4)))


@program
def fori_loop() -> Program:
    return Program(lambda x: lax.fori_loop(0, 4, lambda i, c: jnp.cos(c) * x, x), (ramp(3),))


@program
def while_in_scan_in_jit() -> Program:
    @jax.jit
    def f(x, xs):
        def body(c, v):
            steps, c = lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, jnp.sin(s[1]) + v), (0, c))
            return c, steps

        return lax.scan(body, x, xs)

    return Program(f, (ramp(3), ramp(2, 3)))


@program
def cond() -> Program:
    def f(p, x, y):
        yes = lambda t: {"o": t[0] + t[1], "q": t[0]}
        no = lambda t: {"o": t[0] * t[1], "q": t[1] + 1}
        return lax.cond(p > 0, yes, no, (x, y))

    return Program(f, (jnp.float32(1), ramp(3), ramp(3)))


@program
def switch() -> Program:
    branches = [lambda x: x + 1, jnp.sin, lambda x: x * 2]
    return Program(lambda i, x: lax.switch(i, branches, x), (jnp.int32(2), ramp(3)))


@program
def cond_in_cond_in_scan() -> Program:
    def inner(c):
        return lax.cond(c[0] > 1, jnp.sin, lambda c: c * 2, c)

    def f(x):
        return lax.scan(lambda c, _: (lax.cond(c.sum() > 2, inner, lambda c: c + 1, c), c[0]), x, None, length=4)

    return Program(f, (ramp(3),))


@program
def custom_jvp() -> Program:
    @jax.custom_jvp
    def g(x, y):
        return jnp.sin(x) + y

    g.defjvp(lambda primals, ts: (g(*primals), 10 * ts[0] + ts[1] * primals[0]))
    return Program(lambda x, y: g(x, y) + x, (ramp(3), ramp(3)))


@program
def custom_jvp_with_symbolic_zeros() -> Program:
    @jax.custom_jvp
    def g(x, y):
        return jnp.sin(x) * y

    def rule(primals, tangents):
        x, y = primals
        parts = [
            scale * t
            for scale, t in zip((jnp.cos(x) * y, jnp.sin(x)), tangents, strict=True)
            if not isinstance(t, jax.custom_derivatives.SymbolicZero)
        ]
        return g(x, y), functools.reduce(jnp.add, parts)

    g.defjvp(rule, symbolic_zeros=True)
    return Program(lambda x, y: g(x, lax.stop_gradient(y)) + x, (ramp(3), ramp(3)))


@program
def custom_vjp() -> Program:
    @functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
    def g(n, t):
        return {"o": t["a"] + t["b"] * n}

    g.defvjp(
        lambda n, t: (g(n, t), t["a"]),
        lambda n, res, ct: ({"a": ct["o"] * 5, "b": ct["o"] + res},),
    )
    return Program(lambda x, y: g(2.0, {"a": x, "b": y})["o"] + y, (ramp(3), ramp(3)))  # pyright: ignore[reportIndexIssue]


@program
def custom_vjp_with_symbolic_zeros() -> Program:
    @jax.custom_vjp
    def g(x, y):
        return jnp.sin(x), jnp.cos(y)

    def fwd(x, y):
        return g(x.value, y.value), (x.value, y.value)

    def bwd(res, cts):
        zero = jax.custom_derivatives.SymbolicZero
        return tuple(None if isinstance(ct, zero) else 3 * ct * r for ct, r in zip(cts, res, strict=True))

    g.defvjp(fwd, bwd, symbolic_zeros=True)
    return Program(lambda x, y: g(x, y)[0] + x, (ramp(3), ramp(3)))


@program
def custom_vjp_with_optimized_remat() -> Program:
    @jax.custom_vjp
    def g(x):
        return jnp.sin(x) * x

    g.defvjp(lambda x: (g(x), jnp.cos(x)), lambda res, ct: (ct * res * 3,), optimize_remat=True)
    return Program(lambda x: lax.scan(lambda c, _: (g(c) + 1, c), x, None, length=3)[0], (ramp(3),))


@program
def checkpoint() -> Program:
    @functools.partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_saveable)
    def g(x, w):
        return {"o": jnp.sin(x @ w) + x}

    return Program(lambda x, w: g(x, w)["o"] + 1, (ramp(3), ramp(3, 3)))


@program
def checkpoint_of_scan_with_names() -> Program:
    from jax.ad_checkpoint import checkpoint_name

    policy = jax.checkpoint_policies.save_only_these_names("h")

    @functools.partial(jax.checkpoint, policy=policy)
    def g(x):
        return lax.scan(lambda c, _: (checkpoint_name(jnp.sin(c), "h") * 2, None), x, None, length=3)[0]

    return Program(lambda x: g(x) + x, (ramp(3),))


@program
def activations() -> Program:
    def f(x):
        parts = [jax.nn.relu(x), jax.nn.softmax(x), jax.nn.silu(x), jax.nn.gelu(x), jnp.where(x > 0, x, 0.0)]
        return functools.reduce(jnp.add, parts)

    return Program(f, (ramp(5) - 0.4,))


@program
def inner_gradient() -> Program:
    def f(x, y):
        return jax.value_and_grad(lambda t: (jnp.sin(t["a"]) * t["b"] + t["a"]).sum())({"a": x, "b": y})

    return Program(f, (ramp(3), ramp(3)))


@program
def inner_gradient_of_custom_vjp_in_scan() -> Program:
    @jax.custom_vjp
    def g(x):
        return x + jnp.sin(x)

    g.defvjp(lambda x: (g(x), x), lambda res, ct: (ct * 3 + res,))

    def f(x):
        return jax.grad(lambda x: lax.scan(lambda c, _: (g(c) + c, c), x, None, length=3)[0].sum())(x)

    return Program(f, (ramp(3),))


@program
def inner_forward_and_second_derivatives() -> Program:
    def f(x):
        y, t = jax.jvp(lambda x: jax.nn.relu(x) + jnp.sin(x), (x,), (x,))
        _, linear = jax.linearize(jnp.tanh, x)
        return y + t, linear(x), jax.hessian(lambda x: (x**3).sum())(x)

    return Program(f, (ramp(3),))


@program
def inner_vmap() -> Program:
    def f(x, w):
        return jax.vmap(lambda a: lax.cond(a.sum() > 1, lambda a: a + w, lambda a: a * w, a))(x)

    return Program(f, (ramp(4, 3), ramp(3)))


@program
def inner_vmap_with_axis_name() -> Program:
    return Program(lambda x: jax.vmap(lambda a: a + lax.psum(a, "i"), axis_name="i")(x), (ramp(4, 3),))


@program
def custom_linear_solve() -> Program:
    def f(m, b):
        m = m + 5 * jnp.eye(3)
        return lax.custom_linear_solve(
            lambda v: m @ v + 0.0,
            b,
            lambda _, b: jnp.linalg.inv(m) @ b,
            transpose_solve=lambda _, b: jnp.linalg.inv(m.T) @ b,
        )

    return Program(f, (ramp(3, 3), ramp(3)))


@program
def linalg_solve() -> Program:
    return Program(lambda m, b: jnp.linalg.solve(m + 5 * jnp.eye(3), b) + b, (ramp(3, 3), ramp(3)))


@program
def custom_root() -> Program:
    def newton(g, y0):
        return lax.fori_loop(0, 20, lambda _, y: y - g(y) / (2 * y + 1e-3), y0)

    def f(x):
        return lax.custom_root(lambda y: y * y - x, x, newton, lambda g, y: y / g(jnp.float32(1)))

    return Program(f, (jnp.float32(2),))


@program
def linear_call() -> Program:
    def f(x, y):
        call = jax.custom_derivatives.linear_call
        fixed = lax.stop_gradient(x)  # JAX differentiates it in its linear operands only
        return call(lambda res, y: y / res + y, lambda res, ct: ct / res + 3 * ct, fixed, y) + x

    return Program(f, (ramp(3), ramp(3)))


@program
def custom_vmap() -> Program:
    @jax.custom_batching.custom_vmap
    def g(x, y):
        return x + y

    g.def_vmap(lambda size, batched, x, y: (x + y + 0.0, True))
    return Program(lambda x, y: g(x, y) + x, (ramp(3), ramp(3)))


@program
def composite() -> Program:
    g = functools.partial(lax.composite, name="my.add")(lambda x, y: x + y)
    return Program(lambda x, y: g(x, y) + 1, (ramp(3), ramp(3)))


@program
def shard_map() -> Program:
    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("d")

    def f(x, y):
        g = jax.shard_map(lambda t: {"o": t["a"] + lax.psum(t["b"], "d")}, mesh=mesh, in_specs=(spec,), out_specs=spec)
        return g({"a": x, "b": y})

    return Program(f, (ramp(4), ramp(4)))


@program
def combiners() -> Program:
    def f(x):
        combine = lambda a, b: a + b * 1.0
        return (
            lax.reduce(x, jnp.float32(0), combine, (0,)),
            lax.reduce_window(x, jnp.float32(0), combine, (2,), (1,), "VALID"),
            lax.sort((x, -x), num_keys=1),
            x.at[1].add(2.0),
            lax.associative_scan(jnp.add, x),
            jnp.cumsum(x),
        )

    return Program(f, (ramp(6),))


@program
def indexing_and_dtypes() -> Program:
    def f(x, i, b):
        return jnp.where(b, x, x + 1), x.astype(jnp.int32) + i, jnp.take(x, i), x[::-1] + x, x.at[i].set(0.0)

    return Program(f, (ramp(3), jnp.arange(3), jnp.array([True, False, True])))
