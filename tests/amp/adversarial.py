"""Functions that naive half precision gets wrong, and arguments that show it: name -> (function, arguments)."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

CASES = {}


def case(*args, name=None):
    def decorate(function):
        CASES[name or function.__name__] = (function, args)
        return function

    return decorate


def normal(*shape, seed=0, scale=1.0, mean=0.0):
    return jnp.asarray(np.random.RandomState(seed).standard_normal(shape) * scale + mean, jnp.float32)


def uniform(*shape, seed=0, low=0.0, high=1.0):
    return jnp.asarray(np.random.RandomState(seed).uniform(low, high, shape), jnp.float32)


X, W, V = normal(16, 64), normal(64, 64, seed=1) / 8, normal(64, 32, seed=2) / 8


def layernorm(x, eps=1e-5):
    mean = x.mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(((x - mean) ** 2).mean(-1, keepdims=True) + eps)


def rmsnorm(x, eps=1e-6):
    return x * lax.rsqrt((x**2).mean(-1, keepdims=True) + eps)


# --- softmax and its kin

for scale in (1, 4, 16, 60):
    case(X * scale, W, name=f"softmax_of_logits_{scale}")(lambda x, w: jax.nn.softmax(x @ w))
    case(X * scale, W, name=f"log_softmax_of_logits_{scale}")(lambda x, w: jax.nn.log_softmax(x @ w))
case(normal(8, 64), normal(64, 4096, seed=3) / 8)(lambda x, w: -jax.nn.log_softmax(x @ w)[:, 0])
CASES["cross_entropy_vocabulary"] = CASES.pop("<lambda>")


@case(X * 4, W)
def logsumexp(x, w):
    return jax.nn.logsumexp(x @ w, axis=-1)


@case(X * 100, W)
def logsumexp_of_large(x, w):
    return jax.nn.logsumexp(x @ w, axis=-1)


@case(normal(8, 64) * 3, normal(8, 64, seed=4) * 3, normal(8, 64, seed=5))
def attention(q, k, v):
    return jax.nn.softmax(q @ k.T / 8) @ v


@case(normal(8, 64), normal(8, 64, seed=4), normal(8, 64, seed=5))
def attention_with_where_mask(q, k, v):
    mask = jnp.tril(jnp.ones((8, 8), bool))
    return jax.nn.softmax(jnp.where(mask, q @ k.T / 8, -1e9)) @ v


@case(normal(8, 64), normal(8, 64, seed=4), normal(8, 64, seed=5))
def attention_with_added_mask(q, k, v):
    mask = jnp.tril(jnp.ones((8, 8)))
    return jax.nn.softmax(q @ k.T / 8 + (1 - mask) * -1e20) @ v


@case(normal(8, 64), normal(8, 64, seed=4), normal(8, 64, seed=5))
def attention_with_lowest_mask(q, k, v):
    mask = jnp.tril(jnp.ones((8, 8), bool))
    return jax.nn.softmax(jnp.where(mask, q @ k.T / 8, jnp.finfo(jnp.float32).min)) @ v


@case(X, W)
def log_of_sigmoid_tail(x, w):
    return jnp.log(jax.nn.sigmoid(x @ w - 12))


@case(X, W)
def binary_cross_entropy(x, w):
    p = jax.nn.sigmoid(x @ w * 3)
    return -jnp.log(p + 1e-8) - jnp.log(1 - p + 1e-8)


@case(X * 30, W)
def softplus(x, w):
    return jax.nn.softplus(x @ w)


@case(X, W)
def entropy(x, w):
    p = jax.nn.softmax(x @ w * 4)
    return -(p * jnp.log(p + 1e-12)).sum(-1)


@case(X, W, normal(16, 64, seed=7))
def kl_of_two_softmaxes(x, w, t):
    p = jax.nn.log_softmax(x @ w)
    q = jax.nn.log_softmax(t)
    return (jnp.exp(q) * (q - p)).sum(-1)


# --- norms and statistics

for sd, mean in ((1, 0), (300, 0), (1, 100), (0.001, 0), (3000, 0)):
    case(normal(16, 64, scale=sd, mean=mean), W, name=f"layernorm_sd{sd}_mean{mean}")(
        lambda x, w: layernorm(x, 1e-12) @ w
    )
    case(normal(16, 64, scale=sd, mean=mean), W, name=f"rmsnorm_sd{sd}_mean{mean}")(lambda x, w: rmsnorm(x, 1e-12) @ w)


@case(X * 300, W)
def layernorm_after_a_product(x, w):
    return layernorm(x @ w) @ w


@case(normal(4096, 8, mean=8), normal(8, 8, seed=1))
def batchnorm(x, w):
    return (x - x.mean(0)) / jnp.sqrt(x.var(0) + 1e-5) @ w


@case(normal(65536, mean=8))
def variance(x):
    return x.var()


@case(jnp.ones(1 << 17))
def sum_of_ones(x):
    return x.sum()


@case(jnp.full((3, 3), 300.0))
def norm_of_300(x):
    return jnp.linalg.norm(x)


@case(uniform(20000))
def cumulative_sum(x):
    return jnp.cumsum(x)


@case(normal(4096, mean=1000))
def mean_of_offsets(x):
    return x.mean()


@case(normal(32, 16, mean=100), normal(32, 16, seed=1, mean=100))
def pairwise_distances(a, b):
    return ((a[:, None] - b[None]) ** 2).sum(-1)


@case(normal(16, 64), W)
def cosine_similarity(x, w):
    y = x @ w
    n = y / (jnp.linalg.norm(y, axis=-1, keepdims=True) + 1e-8)
    return n @ n.T


@case(X * 1e-3, W)
def small_activations(x, w):
    return jnp.tanh(x @ w) ** 2 @ w


@case(X, W)
def product_then_square(x, w):
    return (x @ w * 10) ** 2 @ w * 1e-2


# --- angles, coordinates, counters


@case(normal(64, 3), normal(3, 64, seed=1, scale=30), V)
def fourier_features(x, b, v):
    return jnp.sin(x @ b) @ v


@case(jnp.arange(512.0) + 65536, V)
def rotary_angles(p, v):
    return jnp.cos(p[:, None] * (1.0 / 10000 ** (jnp.arange(64.0) / 64))) @ v


@case(V)
def positions_as_a_table(v):
    return jnp.sin(jnp.arange(4096, dtype=jnp.float32)[:, None] / (1 + jnp.arange(64.0))) @ v


@case(uniform(64, 2, low=-1, high=1), normal(2, 64, seed=1), W, V)
def siren(x, a, w, v):
    return jnp.sin(jnp.sin(30 * (x @ a)) @ w) @ v


@case(normal(8, 64), V)
def timestep_embedding(x, v):
    t = jnp.linspace(0, 1000, 8)
    e = jnp.sin(t[:, None] * jnp.exp(-jnp.arange(64.0) / 8))
    return (x + e) @ v


# --- loops and branches


@case(X, W)
def scanned_tanh(x, w):
    return lax.scan(lambda h, _: (jnp.tanh(h @ w), h.sum()), x, None, length=6)


@case(X, W)
def scanned_accumulator(x, w):
    return lax.scan(lambda t, _: (t + (x @ w).mean() * 1e-3 + 1.0, None), x.sum() * 0, None, length=600)[0]


@case(normal(30, 4, 64), W / 2, W / 2)
def recurrent(xs, w, u):
    def step(h, x):
        z = jax.nn.sigmoid(x @ w + h @ u)
        return z * h + (1 - z) * jnp.tanh(x @ u), None

    return lax.scan(step, jnp.zeros((4, 64)), xs)[0]


@case(X, W)
def counted_while(x, w):
    return lax.fori_loop(0, 5, lambda i, h: layernorm(h @ w) + h, x)


@case(X, W)
def conditional(x, w):
    return lax.cond(x[0, 0] > 0, lambda h: jax.nn.softmax(h @ w), lambda h: jnp.tanh(h @ w), x * 4)


@case(X, W)
def checkpointed(x, w):
    block = jax.checkpoint(lambda h: h + jax.nn.gelu(layernorm(h) @ w))
    return block(block(block(x)))


@case(normal(300, 4))
def moving_average(x):
    return lax.scan(lambda m, v: (0.999 * m + 0.001 * v, None), jnp.ones(4), x)[0]


# --- images


@case(uniform(2, 16, 16, 3, high=255.0), normal(3, 3, 3, 8, seed=1) / 5, normal(8, 10, seed=2))
def raw_pixels(x, k, w):
    y = lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    y = (y - y.mean((0, 1, 2))) * lax.rsqrt(y.var((0, 1, 2)) + 1e-5)
    return jax.nn.log_softmax(jax.nn.relu(y).mean((1, 2)) @ w)


@case(normal(2, 16, 16, 8), normal(3, 3, 8, 8, seed=1) / 8)
def deep_convolutions(x, k):
    for _ in range(4):
        y = lax.conv_general_dilated(jax.nn.relu(x), k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        x = x + y
    return x


@case(normal(2, 16, 16, 8, scale=200), normal(3, 3, 1, 8, seed=1))
def depthwise(x, k):
    y = lax.conv_general_dilated(
        x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=8
    )
    return layernorm(y**2)


# --- losses and linear algebra


@case(X * 50, W, normal(16, 64, seed=8))
def squared_error_of_large(x, w, y):
    return ((x @ w - y) ** 2).mean()


@case(X, W)
def determinant_of_a_covariance(x, w):
    y = x @ w
    return jnp.linalg.slogdet(y.T @ y / 16 + 0.1 * jnp.eye(64))[1]


@case(X, W)
def solve(x, w):
    return jnp.linalg.solve(w @ w.T + jnp.eye(64), x.T)


@case(X, W)
def power(x, w):
    return jnp.abs(x @ w) ** 2.7


@case(X, W)
def reciprocal_of_small(x, w):
    return 1e-6 / (jnp.abs(x @ w) + 1e-6)


@case(X, W)
def erf_and_inverse(x, w):
    return lax.erf_inv(lax.erf(x @ w * 0.3) * 0.99)


@case(normal(1000, 64), W, jnp.arange(1000) % 7)
def segment_sums(x, w, i):
    return jax.ops.segment_sum(x @ w, i, 7)


@case(normal(8, 64), jnp.arange(512) % 8, V)
def embedding(table, i, v):
    return (table[i] @ v).sum(0)


@case(X, W)
def gelu_and_swish(x, w):
    return jax.nn.gelu(x @ w) @ w + jax.nn.silu(x @ w) @ w


@case(X * 20, W)
def gelu_of_large(x, w):
    return jax.nn.gelu(x @ w) @ w


@case(X, W, V)
def mixture_of_experts(x, w, v):
    gate = jax.nn.softmax(x @ w[:, :4] * 5)
    return jnp.einsum("ne,nek->nk", gate, jnp.stack([jnp.tanh(x @ w * s) @ v for s in (0.5, 1.0, 2.0, 4.0)], 1))


@case(X, W)
def contrastive(x, w):
    z = x @ w
    z = z / jnp.linalg.norm(z, axis=-1, keepdims=True)
    return -jnp.diag(jax.nn.log_softmax(z @ z.T / 0.07)).mean()


@case(X, normal(16, 64, seed=9))
def triplet_margin(a, b):
    return jax.nn.relu(jnp.sqrt(((a - b) ** 2).sum(-1) + 1e-12) - 10.0)
