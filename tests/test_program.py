"""`load` and `Program`: the callable and its signature."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unlower

X = np.array([1.0, 2.0, 3.0], np.float32)


def lowered(fun, *args):
    return jax.jit(fun, keep_unused=True).lower(*args)


@pytest.fixture(scope="module")
def program():
    return unlower.load(lowered(lambda x, n: (jnp.sin(x) * n.astype(np.float32), n + 1), X, np.int32(2)))


def test_repr_shows_the_signature(program):
    assert repr(program).endswith("(float32[3], int32[]) -> (float32[3], int32[])>")


def test_avals(program):
    assert program.in_avals == (jax.ShapeDtypeStruct((3,), np.float32), jax.ShapeDtypeStruct((), np.int32))
    assert program.out_avals == program.in_avals


def test_one_result_is_an_array_and_flat_is_always_a_tuple():
    single = unlower.load(lowered(jnp.sin, X))
    assert isinstance(single(X), jax.Array)
    assert isinstance(single.flat(X), tuple)


def test_python_scalars_take_the_dtype(program):
    values, count = program(X, 2)
    np.testing.assert_array_equal(values, np.asarray(jax.jit(jnp.sin)(X)) * 2)
    assert count == 3 and count.dtype == np.int32


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((X,), "n is missing"),
        ((X[:2], 1), r"x is float32\[2\], not float32\[3\]"),
        ((X.astype(np.float16), 1), r"x is float16\[3\], not float32\[3\]"),
    ],
)
def test_wrong_arguments_show_both_signatures(program, arguments, message):
    with pytest.raises(unlower.SignatureError, match=message) as caught:
        program(*arguments)
    if len(arguments) == 2:
        assert "expected: (float32[3], int32[])" in str(caught.value)
    assert isinstance(caught.value, TypeError)


def test_a_program_in_64_bits_runs_without_the_flag():
    with jax.enable_x64(True):
        source = lowered(lambda x: jnp.exp(x) / 3, np.float64(1)).as_text()
        want = np.asarray(jax.jit(lambda x: jnp.exp(x) / 3)(np.float64(1)))
    got = unlower.load(source)(np.float64(1))
    assert got.dtype == np.float64
    assert np.asarray(got).view(np.uint64) == want.view(np.uint64)


def test_a_narrowed_argument_is_told_how_to_mend_it():
    with jax.enable_x64(True):
        source = lowered(lambda x: x * 2, np.float64(1)).as_text()
    with pytest.raises(unlower.SignatureError, match="jax_enable_x64"):
        unlower.load(source)(jnp.float32(1))


def test_threads_share_a_program(program):
    want = np.asarray(program(X, 2)[0])
    failures = []

    def work(seed):
        try:
            np.testing.assert_array_equal(program(X, 2)[0], want)
            jax.vmap(lambda x: program(x, 2)[0])(np.stack([X] * seed))
        except Exception as error:  # noqa: BLE001 - reported below
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i + 1,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_loading_leaves_no_mlir_context_behind():
    import gc

    from unlower import _jax_compat as compat

    source = lowered(jnp.sin, X).as_text()
    unlower.load(source)
    gc.collect()
    before = live_contexts(compat)
    programs = [unlower.load(source) for _ in range(3)]
    gc.collect()
    assert live_contexts(compat) <= before and len(programs) == 3


def live_contexts(compat):
    return compat.mlir_ir.Context._get_live_count() if hasattr(compat.mlir_ir.Context, "_get_live_count") else 0


def test_the_call_of_the_original():
    def predict(params, x, *, scale, shift=None):
        return {"y": x @ params["w"] * scale, "params": params}

    params, x = {"w": X, "b": X}, X
    source = jax.jit(predict).lower(params, x, scale=np.float32(2))
    program = unlower.load(source)
    want = jax.jit(predict)(params, x, scale=np.float32(2))
    for got in (
        program(params, x, scale=2.0),
        program(x=x, params=params, scale=2.0),
        jax.jit(program)(params, x, scale=2.0),
    ):
        assert jax.tree.structure(got) == jax.tree.structure(want)
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            np.testing.assert_array_equal(a, b)
    gradient = jax.grad(lambda p: program(p, x, scale=2.0)["y"])(params)
    np.testing.assert_array_equal(gradient["w"], X * 2)
    batch = jax.vmap(program, in_axes=({"w": None, "b": 0}, 0))
    with pytest.raises(unlower.SignatureError, match="scale is missing"):
        batch({"w": X, "b": X[None]}, X[None])
    assert str(program.signature).splitlines()[:2] == [
        "jit_predict(params, x, *, scale) -> {'params': {'b': *, 'w': *}, 'y': *}",
        "  arguments:",
    ]


def test_keys_in_the_call():
    def draw(key, n):
        return jax.random.split(key), n

    key = jax.random.key(0)
    program = unlower.load(jax.jit(draw).lower(key, np.int32(1)))
    split, _ = program(key, 1)
    assert split.dtype == key.dtype
    np.testing.assert_array_equal(jax.random.key_data(split), jax.random.key_data(jax.random.split(key)))
    np.testing.assert_array_equal(program.flat(jax.random.key_data(key), 1)[0], jax.random.key_data(split))
    np.testing.assert_array_equal(program.flat(key, 1)[0], jax.random.key_data(split))
    with pytest.raises(unlower.SignatureError, match=r"key is float32\[3\], not uint32\[2\]"):
        program(X, 1)


def test_tokens_are_neither_given_nor_returned():
    program = unlower.load(
        """func.func public @main(%t: !stablehlo.token, %x: tensor<f32>) -> (!stablehlo.token, tensor<f32>) {
             %y = stablehlo.negate %x : tensor<f32>
             return %t, %y : !stablehlo.token, tensor<f32> }"""
    )
    assert len(program.in_avals) == len(program.out_avals) == 1
    assert program(1.0) == -1.0 and jax.grad(program)(1.0) == -1.0
