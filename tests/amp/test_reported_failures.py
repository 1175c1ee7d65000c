"""What users of other mixed-precision tools have reported, each with the right behaviour."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

from unlower import amp

F16, BF16 = "f16", "bf16"
KEY = jax.random.key(0)


def normal(*shape, seed=0, scale=1.0):
    return jax.random.normal(jax.random.key(seed), shape) * scale


def layernorm(x):
    mean = x.mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5)


def test_layernorm_of_large_activations_in_float16(error):
    # pytorch #66707, tensorflow/models #10426: naive float16 loses everything without a NaN.
    x, w = normal(32, 64, scale=300), normal(64, 64, seed=1) / 8
    f = lambda x, w: layernorm(x) @ w
    assert error(amp.autocast(f, F16)(x, w), f(x, w)) < 1e-3
    naive = f(x.astype(jnp.float16), w.astype(jnp.float16))
    assert not error(naive, f(x, w)) < 0.5


def test_norm_of_values_whose_squares_overflow():
    # jax #39899
    x = jnp.full((3, 3), 100.0)
    f = amp.autocast(jnp.linalg.norm, F16)
    np.testing.assert_allclose(f(x), 300.0)
    np.testing.assert_allclose(jax.grad(f)(x), np.full((3, 3), 1 / 3), rtol=1e-6)


@pytest.mark.parametrize("policy", [F16, BF16])
@pytest.mark.parametrize("additive", [False, True])
def test_masks_beyond_the_range(policy, additive):
    # flax #982, fairseq #3575, apex #93
    q, k = normal(8, 32), normal(8, 32, seed=1)
    mask = jnp.tril(jnp.ones((8, 8), bool))

    def attend(q, k):
        s = q @ k.T
        s = s + (1.0 - mask.astype(jnp.float32)) * -1e9 if additive else jnp.where(mask, s, -1e9)
        return jax.nn.softmax(s)

    out = amp.autocast(attend, policy)(q, k)
    assert np.isfinite(out).all()
    assert (np.asarray(out)[~np.asarray(mask)] == 0).all()
    gradient = jax.grad(lambda q: amp.autocast(attend, policy)(q, k)[:, 0].sum())(q)
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize("policy", [F16, BF16])
def test_a_fully_masked_row(policy, error):
    # huggingface #17437, #18057, #17306
    q, k = normal(4, 32) - 3, normal(4, 32, seed=1) + 3
    mask = jnp.zeros((4, 4), bool).at[1:].set(True)
    f = lambda q, k: jax.nn.softmax(q @ k.T + jnp.where(mask, 0.0, jnp.finfo(jnp.float32).min))
    out = amp.autocast(f, policy)(q, k)
    assert np.isfinite(out).all()
    np.testing.assert_array_equal(out[0], f(q, k)[0])


def test_rotary_angles_stay_exact(error, see):
    # diffusers #13920, huggingface #29285
    frequencies = 1.0 / 10000 ** (jnp.arange(0, 32, 2) / 32)
    f = lambda positions: jnp.cos(frequencies[:, None] @ positions[None].astype(jnp.float32))
    positions = 65536 + jnp.arange(512)
    np.testing.assert_array_equal(amp.autocast(f)(positions), f(positions))
    assert len(np.unique(np.asarray(amp.autocast(f)(positions)), axis=1).T) == 512


def test_gradient_of_a_product_that_asks_for_float32(see):
    # jax #10818
    f = amp.autocast(lambda q, k: jnp.einsum("id,jd->ij", q, k, preferred_element_type=jnp.float32).sum())
    seen = see(jax.grad(f, argnums=(0, 1)), normal(8, 32), normal(8, 32))
    assert seen.products()[0] >= 2 and seen.products()[1] == 0


def test_gradients_of_weights_come_out_of_the_product_in_float32(see):
    # jax #34330
    f = amp.autocast(lambda w, x: jnp.tanh(x @ w).sum())
    seen = see(jax.grad(f), normal(32, 32), normal(8, 32))
    results = {v: e for e in seen.equations for v in e.outvars}
    source = results[seen.jaxpr.outvars[0]] if hasattr(seen.jaxpr, "outvars") else results[seen.jaxpr.jaxpr.outvars[0]]
    while source.primitive.name == "transpose":
        source = results[source.invars[0]]
    assert source.primitive.name == "low_precision_product"
    assert source.outvars[0].aval.dtype == jnp.float32


def test_custom_vjp_whose_backward_pass_is_wider_inside_scan(error):
    # jax #27144
    @jax.custom_vjp
    def f(x, w):
        return jnp.tanh(x @ w)

    f.defvjp(
        lambda x, w: (f(x, w), (x, w)), lambda r, g: jax.vjp(lambda x, w: jnp.tanh(x @ w), *r)[1](g.astype(jnp.float32))
    )
    run = lambda w, x: lax.scan(lambda x, _: (f(x, w), None), x, None, length=4)[0].sum()
    w, x = normal(32, 32) / 6, normal(4, 32)
    assert error(jax.grad(amp.autocast(run))(w, x), jax.grad(run)(w, x)) < 2e-2


def test_the_carry_of_a_scan_keeps_its_dtype(see):
    # levanter #569
    run = lambda h, ws: lax.scan(lambda h, w: (jnp.tanh(h @ w), None), h, ws)[0]
    h, ws = normal(4, 32), normal(3, 32, 32) / 6
    assert amp.autocast(run)(h, ws).dtype == jnp.float32
    assert see(amp.autocast(run), h, ws).products() == (1, 0)


def test_stacked_weights_are_cast_layer_by_layer(see):
    # levanter #426
    run = lambda h, ws: lax.scan(lambda h, w: (jnp.tanh(h @ w), None), h, ws)[0]
    seen = see(amp.autocast(run), normal(4, 32), normal(3, 32, 32))
    assert not [e for e in seen.casts() if e.outvars[0].aval.shape == (3, 32, 32)]


def adam_loop(steps):
    optimizer = optax.adam(1e-2)
    x, y = normal(64, 32), normal(64, 4, seed=1)

    def loss(w):
        return jnp.mean((jnp.tanh(x @ w["a"]) @ w["b"] - y) ** 2)

    def step(state):
        w, o = state
        updates, o = optimizer.update(jax.grad(loss)(w), o, w)
        return optax.apply_updates(w, updates), o

    w = {"a": normal(32, 32, seed=2) / 6, "b": normal(32, 4, seed=3) / 6}
    return w, optimizer.init(w), step, lambda state: lax.fori_loop(0, steps, lambda _, s: step(s), state)


def test_training_inside_a_loop(error):
    # tensorflow #31178: casts on the edge of a loop gave wrong results.
    w, o, step, loop = adam_loop(5)
    looped = jax.jit(amp.autocast(loop))((w, o))
    unrolled = (w, o)
    for _ in range(5):
        unrolled = jax.jit(amp.autocast(step))(unrolled)
    assert all(a.dtype == b.dtype for a, b in zip(jax.tree.leaves(looped), jax.tree.leaves((w, o)), strict=True))
    assert error(looped, unrolled) < 5e-2  # Adam's first steps are signs of gradients
    assert error(looped[0], loop((w, o))[0]) < 5e-2


def test_backward_products_of_a_custom_vjp_take_the_low_dtype(see):
    # pytorch #87979, #105682
    @jax.custom_vjp
    def f(x, w):
        return x @ w

    f.defvjp(lambda x, w: (x @ w, (x, w)), lambda r, g: (g @ r[1].T, r[0].T @ g))
    run = amp.autocast(lambda x, w: f(x, w).sum())
    seen = see(jax.grad(run, argnums=(0, 1)), normal(8, 32), normal(32, 32))
    assert seen.products()[1] == 0 and seen.products()[0] >= 2
    assert not see(run, normal(8, 32), normal(32, 32)).products(jnp.float16)[0]


@pytest.mark.parametrize("inside", [False, True])
def test_all_three_convolutions_of_a_gradient(inside, see):
    # functorch #305
    conv = lambda x, k: (lax.conv_general_dilated(x, k, (1, 1), "SAME") ** 2).sum()
    gradient = amp.autocast(jax.grad(conv, argnums=(0, 1))) if inside else jax.grad(amp.autocast(conv), argnums=(0, 1))
    seen = see(gradient, normal(2, 8, 8, 8), normal(8, 8, 3, 3))
    assert seen.products() == (3, 0)


@pytest.mark.parametrize("inside", [False, True])
def test_a_region_in_full_precision_is_full_backwards_too(inside, see):
    # pytorch #153044, #179804
    dense = amp.full_precision(lambda x, w: x @ w)
    loss = lambda w, x: (dense(x, w) * 16384.0).sum()
    gradient = amp.autocast(jax.grad(loss), F16) if inside else jax.grad(amp.autocast(loss, F16))
    w, x = normal(32, 32), normal(8, 32)
    assert see(gradient, w, x).products(jnp.float16)[0] == 0
    np.testing.assert_array_equal(gradient(w, x), jax.grad(loss)(w, x))


def test_weights_used_under_stop_gradient_first(error):
    # pytorch #65766, #112583, #142234, #158232: there is no cache that could keep a cast without its gradient.
    def loss(w, x):
        return (x @ w).sum() + (lax.stop_gradient(x @ w) * x[:, :1]).sum()

    w, x = normal(32, 32), normal(8, 32)
    assert error(jax.grad(amp.autocast(loss))(w, x), jax.grad(loss)(w, x)) < 1e-2
    doubled = lambda w, x: loss(lax.stop_gradient(w), x) + loss(w, x)
    assert error(jax.grad(amp.autocast(doubled))(w, x), jax.grad(loss)(w, x)) < 1e-2


def test_a_scale_that_grows_forever_stays_finite():
    # flax #2547
    scale = amp.LossScale.dynamic(1.0, period=1, factor=10)
    for _ in range(70):
        scale = scale.update(jnp.ones(3))
    assert float(scale.scale) == 2.0**24
    for _ in range(70):
        scale = scale.update(jnp.array([jnp.inf]))
    assert float(scale.scale) == 2.0**-24
    assert float(scale.update(jnp.ones(3)).scale) > 2.0**-24


def test_a_growing_step_unscales_with_the_scale_it_used():
    # MPX, DeepSpeed #8588
    step = amp.grad(lambda w: (2 * w).sum() * 2, policy=F16)
    gradient, scale = step(amp.LossScale.dynamic(2.0**10, period=1), jnp.ones(3))
    np.testing.assert_array_equal(gradient, np.full(3, 4.0))
    assert float(scale.scale) == 2.0**11


def test_the_scale_goes_through_jit_and_scan():
    # jmp #44, #47, #18
    def step(scale, bad):
        scale = scale.update(jnp.where(bad, jnp.nan, 1.0))
        return scale, scale.scale

    start = amp.LossScale.dynamic(8.0, period=2, smallest=2.0)
    bad = jnp.array([False, False, True, True, True, True, False, False])
    end, scales = jax.jit(lambda s: lax.scan(step, s, bad))(start)
    assert scales.tolist() == [8, 16, 8, 4, 2, 2, 2, 4]
    assert jax.tree.structure(end) == jax.tree.structure(start)
    assert end.scale.dtype == jnp.float32


def test_a_forward_overflow_is_mended_where_it_happens():
    # tensorflow #38357: no loss scale could.
    loss = lambda w, x: jnp.log(jnp.sum((x @ w) ** 2))
    w, x = normal(32, 32), normal(8, 32, scale=100)
    (value, gradient), scale = amp.value_and_grad(loss, policy=F16)(amp.LossScale.dynamic(), w, x)
    assert np.isfinite(value) and np.isfinite(gradient).all() and bool(scale.finite)


def test_clipping_sees_unscaled_gradients(error):
    # Lightning #9599, Pytorch-UNet #468
    loss = lambda w, x: jnp.sum(jnp.tanh(x @ w))
    w, x = normal(32, 32), normal(8, 32)
    gradients, _ = amp.grad(loss, policy=F16)(amp.LossScale.static(2.0**12), w, x)
    clip = optax.clip_by_global_norm(1.0)
    clipped, _ = clip.update(gradients, clip.init(w))
    wanted, _ = clip.update(jax.grad(loss)(w, x), clip.init(w))
    assert error(clipped, wanted) < 1e-2


def test_optimizer_arithmetic_stays_full(see):
    # optax #1754, chainer #6299
    w, o, step, _ = adam_loop(1)
    train = amp.autocast(step, F16)
    zeros = jax.tree.map(jnp.zeros_like, w)
    optimizer = optax.adam(1e-2)
    update = amp.autocast(lambda g, o, w: optimizer.update(g, o, w), F16)
    updates, _ = update(zeros, o, w)
    assert all((u == 0).all() for u in jax.tree.leaves(updates))
    seen = see(train, (w, o))
    assert {str(v.aval.dtype) for e in seen.named("sqrt", "div") for v in e.outvars} == {"float32"}
    assert seen.products(jnp.float16)[1] == 0


def test_gradient_of_a_table_with_many_hits():
    # mxnet #17703, tt-metal #53386, xla #26371
    indices = jnp.arange(100_000) % 8
    f = amp.autocast(lambda table: table[indices].sum())
    np.testing.assert_array_equal(jax.grad(f)(jnp.zeros((8, 4))), np.full((8, 4), 12500.0))
    inside = amp.autocast(jax.grad(lambda table: table[indices].sum()))
    np.testing.assert_array_equal(inside(jnp.zeros((8, 4))), np.full((8, 4), 12500.0))


def test_sums_over_devices_are_full(see):
    # jax #27496
    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec

    @functools.partial(jax.shard_map, mesh=mesh, in_specs=(spec(), spec("d")), out_specs=spec())
    def gradient(w, x):
        g = jax.grad(lambda w: jnp.tanh(x @ w).sum())(lax.pcast(w, "d", to="varying"))
        return lax.psum(g, "d")

    w, x = normal(32, 32) / 6, normal(8, 32)
    seen = see(amp.autocast(gradient), w, x)
    sums = [e for e in seen.equations if e.primitive.name.startswith("psum")]
    assert sums and all(v.aval.dtype == jnp.float32 for e in sums for v in e.invars)
    assert seen.products()[1] == 0
    np.testing.assert_allclose(amp.autocast(gradient)(w, x), gradient(w, x), atol=0.1)


@pytest.mark.parametrize("inside", [False, True])
def test_the_gradient_of_a_bias_is_summed_in_float32(inside, error):
    # tensorflow #28298: exact, where a sum in bfloat16 stops at 256.
    loss = lambda b, x, w: ((x @ w + b) @ w).sum()
    x, w, b = jnp.ones((1000, 32)), jnp.eye(32), jnp.zeros(32)
    gradient = amp.autocast(jax.grad(loss)) if inside else jax.grad(amp.autocast(loss))
    np.testing.assert_array_equal(gradient(b, x, w), np.full(32, 1000.0))


def test_the_users_casts_are_kept(see):
    # jax #23007, xla #41605
    f = lambda x, w: x.astype(jnp.bfloat16).astype(jnp.float32) @ w
    x, w = normal(8, 32), normal(32, 32)
    seen = see(amp.autocast(f), x, w)
    dtypes = [(str(e.invars[0].aval.dtype), str(e.outvars[0].aval.dtype)) for e in seen.casts()]
    assert ("bfloat16", "float32") in dtypes
    kept = lambda x: x.astype(jnp.bfloat16).astype(jnp.float32)
    assert len(see(amp.autocast(kept), x).casts()) == 2


def test_only_the_last_linear_in_float32(see):
    # haiku #680
    def model(ws, x):
        for i, w in enumerate(ws):
            with jax.named_scope("head" if i == 2 else f"layer{i}"):
                x = jnp.tanh(x @ w)
        return x

    ws, x = [normal(32, 32, seed=i) for i in range(3)], normal(4, 32)
    policy = amp.Policy(scopes={"**/head": "full"})
    assert see(amp.autocast(model, policy), ws, x).products() == (2, 1)
    assert see(amp.autocast(jax.grad(lambda w, x: model(w, x).sum()), policy), ws, x).products() == (5, 3)
    forward = see(jax.grad(lambda w, x: amp.autocast(model, policy)(w, x).sum()), ws, x)
    assert forward.products()[1] == 3


def test_strong_scalars_and_full_carries_keep_products_low(see):
    scores = lambda q, k: (q @ k.T / np.sqrt(np.float32(32))) @ k
    assert see(amp.autocast(scores), normal(8, 32), normal(8, 32)).products() == (2, 0)

    def rnn(w, xs):
        return lax.scan(lambda h, x: (jnp.tanh(x @ w + h @ w), None), jnp.zeros((4, 32)), xs)[0].sum()

    w, xs = normal(32, 32) / 6, normal(7, 4, 32)
    assert see(jax.grad(amp.autocast(rnn)), w, xs).products()[1] == 0


def test_vmap_of_a_gradient(error):
    # functorch, pytorch #187265
    loss = lambda w, x: jnp.tanh(jnp.tanh(x @ w) @ w).sum()
    w, xs = normal(32, 32) / 6, normal(5, 4, 32)
    gradient = jax.grad(amp.autocast(loss))
    batched = jax.vmap(gradient, (None, 0))(w, xs)
    looped = jnp.stack([gradient(w, x) for x in xs])
    assert error(batched, looped) < 1e-2
    assert error(batched, jax.vmap(jax.grad(loss), (None, 0))(w, xs)) < 2e-2


def test_coordinates_before_a_sine(error, see):
    # NeRF, SIREN, PINN
    f = lambda x, b, w: jnp.sin(x @ b) @ w
    x, b, w = normal(64, 3), normal(3, 64, seed=1, scale=30), normal(64, 16, seed=2) / 8
    assert error(amp.autocast(f)(x, b, w), f(x, b, w)) < 1e-2
    assert see(amp.autocast(f), x, b, w).products() == (1, 1)


def test_explains_what_only_has_an_effect():
    def noisy(w, x):
        hidden = x @ w
        jax.debug.callback(lambda _: None, jnp.sum(hidden))
        return hidden @ w

    told = amp.explain(noisy)(jnp.ones((32, 32)), jnp.ones((4, 32)))
    assert told.low_flops == 1.0
    assert "debug_callback" in str(told)
