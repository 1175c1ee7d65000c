"""More programs of the conformance kit: what goes on around sub-programs (callbacks, keys, references, kernels, names)."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from unlower.interpret.testing_programs import PROGRAMS, Program, program, ramp

__all__ = ["PROGRAMS", "Program"]


@program
def fft_and_factorization() -> Program:
    def f(x):
        m = x[:, None] * x[None, :] + 3 * jnp.eye(4)
        return jnp.fft.fft(x).real, jnp.linalg.cholesky(m), jnp.linalg.qr(m)[1]

    return Program(f, (ramp(4),))


@program
def pure_callback() -> Program:
    def f(x):
        out = jax.ShapeDtypeStruct((3,), jnp.float32)
        return jax.pure_callback(lambda v: np.asarray(v) * 2, out, x, vmap_method="sequential") + x

    return Program(f, (ramp(3),))


@program
def debug_callback() -> Program:
    def f(x):
        jax.debug.callback(lambda v: None, x + 1)
        return x + 2

    return Program(f, (ramp(3),))


@program
def ordered_callbacks_in_branches() -> Program:
    from jax.experimental import io_callback

    def note(x):
        return io_callback(lambda v: np.asarray(v) + 1, jax.ShapeDtypeStruct((), jnp.float32), x, ordered=True)

    def f(x):
        y = lax.cond(x > 0, lambda x: note(x) * 2, lambda x: x, x)
        return lax.scan(lambda c, _: (note(c), c), y, None, length=2)

    return Program(f, (jnp.float32(1),))


@program
def random_keys() -> Program:
    return Program(lambda k, x: jax.random.normal(k, (3,)) + x, (jax.random.key(0), ramp(3)))


@program
def scan_over_keys() -> Program:
    def f(k, x):
        body = lambda c, k: (c + jax.random.uniform(k, (3,)), None)
        return lax.scan(body, x, jax.random.split(k, 4))[0]

    return Program(f, (jax.random.key(1), ramp(3)))


@program
def closed_over_tracer_in_scan_in_jit_in_cond() -> Program:
    def f(x, w):
        @jax.jit
        def branch(c):
            return lax.scan(lambda c, _: (c + w, c.sum()), c, None, length=2)

        return lax.cond(x.sum() > 0, branch, lambda x: (x, jnp.zeros(2)), x)

    return Program(f, (ramp(3), ramp(3)))


@program
def references() -> Program:
    def f(x):
        ref = jax.new_ref(x)

        def body(i, carry):
            ref[...] = ref[...] + 1
            return carry

        lax.fori_loop(0, 3, body, None)
        return ref[...] + x

    return Program(f, (ramp(3),))


@program
def pallas_kernel() -> Program:
    from jax.experimental import pallas

    def kernel(x, y, out):
        out[...] = x[...] + y[...]

    call = pallas.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct((8,), jnp.float32), interpret=True)
    return Program(lambda x, y: call(x, y) + 1, (ramp(8), ramp(8)))


@program
def named_scopes() -> Program:
    def f(x):
        with jax.named_scope("outer"):
            y = jnp.sin(x)
            with jax.named_scope("inner"):
                return jax.jit(jnp.cos)(y) * 2

    return Program(f, (ramp(3),))


@program
def nothing_to_do() -> Program:
    return Program(lambda x, y: (y, x, 1.0), (ramp(3), jnp.int32(2)))


@program
def constants_and_dead_code() -> Program:
    table = np.arange(6, dtype=np.float32).reshape(2, 3)

    def f(x):
        jnp.exp(x)  # nobody reads it
        return x @ table.T + jnp.array([1.0, 2.0])

    return Program(f, (ramp(3),))
