"""Small models in plain JAX, in the forms users write them: a name -> a function and its arguments."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def normal(seed, *shape, scale=0.1):
    """A seeded array."""
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape) * scale, jnp.float32)


def norm(x, scale):
    """Layer norm."""
    centred = x - x.mean(-1, keepdims=True)
    return centred * lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5) * scale


def mlp():
    """Dense layers, relu, a softmax loss."""
    layers = [(normal(i, m, n), normal(9 + i, n)) for i, (m, n) in enumerate([(64, 128), (128, 128), (128, 10)])]

    def loss(layers, x, y):
        for weight, bias in layers[:-1]:
            x = jax.nn.relu(x @ weight + bias)
        logits = x @ layers[-1][0] + layers[-1][1]
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], -1).mean()

    return loss, (layers, normal(5, 32, 64, scale=1), jnp.arange(32) % 10)


def convolutional():
    """Convolutions, batch statistics, pooling."""
    weights = {"stem": normal(0, 5, 5, 3, 16), "body": normal(1, 3, 3, 16, 32), "head": normal(2, 32, 10)}

    def convolve(x, w, stride):
        return lax.conv_general_dilated(x, w, (stride,) * 2, "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def apply(weights, x):
        x = jax.nn.relu(convolve(x, weights["stem"], 2))
        x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
        x = convolve(x, weights["body"], 1)
        centred = x - x.mean((0, 1, 2))
        x = jax.nn.relu(centred * lax.rsqrt((centred**2).mean((0, 1, 2)) + 1e-5))
        return x.mean((1, 2)) @ weights["head"]

    return apply, (weights, normal(3, 4, 32, 32, 3, scale=1))


def attention_block(x, p, heads=4):
    """A transformer block over (batch, time, features)."""
    batch, time, features = x.shape
    q, k, v = (z.reshape(batch, time, heads, -1) for z in jnp.split(norm(x, p["scale1"]) @ p["qkv"], 3, -1))
    scores = jnp.einsum("bthd,bshd->bhts", q, k) / np.float32(np.sqrt(features // heads))
    scores = jnp.where(jnp.tril(jnp.ones((time, time), bool)), scores, -1e9)
    x = x + jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores, -1), v).reshape(x.shape) @ p["out"]
    return x + jax.nn.gelu(norm(x, p["scale2"]) @ p["up"]) @ p["down"]


def block_weights(count, d=64):
    """Weights of `count` blocks."""
    shapes = {"qkv": (d, 3 * d), "out": (d, d), "up": (d, 4 * d), "down": (4 * d, d)}
    weights = [{k: normal(10 * i + j, *s) for j, (k, s) in enumerate(shapes.items())} for i in range(count)]
    return [{**w, "scale1": jnp.ones(d), "scale2": jnp.ones(d)} for w in weights]


def transformer():
    """A causal transformer, its blocks one after the other."""

    def apply(blocks, embedding, tokens):
        x = embedding[tokens]
        for block in blocks:
            x = attention_block(x, block)
        return x @ embedding.T

    return apply, (block_weights(4), normal(99, 256, 64), jnp.arange(64).reshape(2, 32))


def transformer_scan():
    """The same, its blocks a scan."""

    def apply(blocks, embedding, tokens):
        x, _ = lax.scan(lambda x, block: (attention_block(x, block), None), embedding[tokens], blocks)
        return x @ embedding.T

    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *block_weights(4))
    return apply, (stacked, normal(99, 256, 64), jnp.arange(64).reshape(2, 32))


def adaptive_steps():
    """A loop without a known bound around a conditional."""

    def integrate(y, end):
        def slope(y):
            return jnp.stack([y[1], (1 - y[0] ** 2) * y[1] - y[0]])

        def step(state):
            t, y, h = state
            first = slope(y)
            second = slope(y + h * first)
            error = jnp.max(jnp.abs(second - first)) * h
            t, y = lax.cond(error < 1e-3, lambda: (t + h, y + h * (first + second) / 2), lambda: (t, y))
            return t, y, h * jnp.clip(0.9 * jnp.sqrt(1e-3 / (error + 1e-9)), 0.3, 2.0)

        return lax.while_loop(lambda s: s[0] < end, step, (jnp.float32(0), y, jnp.float32(0.1)))[1]

    return integrate, (jnp.array([2.0, 0.0]), jnp.float32(3.0))


def linear_algebra():
    """Fourier transforms, Cholesky, a triangular solve, sorting."""

    def apply(w, x):
        y = jnp.fft.irfft2(jnp.fft.rfft2(x) * jnp.exp(-jnp.square(w)), s=x.shape)
        factor = jnp.linalg.cholesky(y @ y.T + 64 * jnp.eye(x.shape[0]))
        z = jax.scipy.linalg.solve_triangular(factor, x, lower=True)
        return jnp.sum(z * z) + jnp.sort(y, -1)[:, 0].sum() + 2 * jnp.log(jnp.diagonal(factor)).sum()

    return apply, (normal(0, 32, 17), normal(1, 32, 32, scale=1))


def chain(operations):
    """A layered function of about so many StableHLO operations, 20 a layer, for timing."""

    def apply(x, w, b):
        for _ in range(max(1, operations // 20)):
            h = jnp.tanh(lax.dot_general(x, w, (((1,), (0,)), ((), ()))) + b)
            mean = jnp.sum(h, axis=1, keepdims=True) / 8.0
            x = jnp.maximum(h - mean, 0.1) * x + h.T
        return x

    return apply, (jnp.ones((8, 8)), jnp.ones((8, 8)), jnp.ones((8,)))


MODELS = {f.__name__: f for f in (mlp, convolutional, transformer, transformer_scan, adaptive_steps, linear_algebra)}
