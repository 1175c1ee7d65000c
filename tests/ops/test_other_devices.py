"""Programs exported for GPUs and TPUs run on the CPU: what their custom calls mean, and what that has for a derivative."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

import unlower

RNG = np.random.RandomState(0)
A = jnp.asarray(RNG.standard_normal((2, 4, 4)), jnp.float32)
B = jnp.asarray(RNG.standard_normal((2, 4, 3)), jnp.float32)
TALL = jnp.asarray(RNG.standard_normal((5, 3)), jnp.float32)
POSITIVE = A @ A.swapaxes(-1, -2) + 4 * jnp.eye(4)[None]
PLATFORMS = ("cuda", "rocm", "tpu")


def spectrum(x):
    w, v = jnp.linalg.eigh((x + x.swapaxes(-1, -2)) / 2)
    return w, jnp.abs(v)


FUNCTIONS = {
    "cholesky": (lambda x: jnp.linalg.cholesky(x), POSITIVE),
    "solve": (lambda x: jnp.linalg.solve(x, B), A),
    "determinant": (jnp.linalg.slogdet, A),
    "lu": (lambda x: lax.linalg.lu(x), A),
    "qr": (lambda x: tuple(map(jnp.abs, jnp.linalg.qr(x))), TALL),
    "eigh": (spectrum, A),
    "singular values": (lambda x: jnp.linalg.svd(x, compute_uv=False), TALL),
    "triangular": (lambda x: lax.linalg.triangular_solve(x, B, left_side=True, lower=True), POSITIVE),
    "random": (lambda x: x + jax.random.normal(jax.random.key(3), x.shape), TALL),
}


def numbers(function):
    """The floats among the results, as one number."""

    def total(x):
        leaves = [leaf for leaf in jax.tree.leaves(function(x)) if jnp.issubdtype(leaf.dtype, jnp.floating)]
        return sum((leaf * jnp.cos(jnp.arange(float(leaf.size))).reshape(leaf.shape)).sum() for leaf in leaves)

    return total


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients(name, platform):
    function, x = FUNCTIONS[name]
    try:
        exported = export.export(jax.jit(function), platforms=[platform])(x)
    except Exception as error:  # noqa: BLE001 - whatever this JAX cannot lower for a device that is not here
        pytest.skip(f"this JAX does not lower it for {platform}: {type(error).__name__}")
    program = unlower.load(exported)
    for found, wanted in zip(jax.tree.leaves(program(x)), jax.tree.leaves(function(x)), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-4)
    if platform == "tpu" and name == "singular values":
        # The TPU's decomposition is a loop over data in the module itself, which only forward mode goes through unbounded.
        found, wanted = (jax.jvp(numbers(f), (x,), (x,))[1] for f in (program, function))
    else:
        found, wanted = jax.grad(numbers(program))(x), jax.grad(numbers(function))(x)
    np.testing.assert_allclose(found, wanted, rtol=5e-3, atol=5e-3)
