"""Random numbers."""

import jax
import numpy as np
import pytest
from op_checks import Case, check_relowers, check_value, check_vmap, ids, module

import unlower


def _generator(element: str, shape: str, algorithm: str, words: int = 2) -> str:
    state, bits = f"tensor<{words}xui64>", f"tensor<{shape}{element}>"
    return module(
        state,
        f"{state}, {bits}",
        f"""    %0, %1 = stablehlo.rng_bit_generator %a0, algorithm = {algorithm} : ({state}) -> ({state}, {bits})
    return %0, %1 : {state}, {bits}""",
    )


_TWO, _THREE = np.array([11, 2**63 + 5], np.uint64), np.array([11, 3, 2**63 + 5], np.uint64)
_GENERATORS = [
    *[
        Case(f"{algorithm} {element}", _generator(element, "3x5x", algorithm), [_TWO])
        for algorithm in ("DEFAULT", "THREE_FRY", "PHILOX")
        for element in ("ui32", "ui64")
    ],
    Case("THREE_FRY ui8", _generator("ui8", "7x", "THREE_FRY"), [_TWO]),
    Case("THREE_FRY ui16 of no dimension", _generator("ui16", "", "THREE_FRY"), [_TWO]),
    Case("PHILOX with three words", _generator("ui32", "5x", "PHILOX", 3), [_THREE], primitive="reemit"),
]


@pytest.mark.parametrize("case", _GENERATORS, ids=ids)
def test_value(case: Case) -> None:
    check_value(case)


@pytest.mark.parametrize("case", _GENERATORS, ids=ids)
def test_relowers(case: Case) -> None:
    check_relowers(case)


@pytest.mark.parametrize("case", _GENERATORS[-1:], ids=ids)
def test_vmap(case: Case) -> None:
    check_vmap(case)


@pytest.mark.parametrize(("element", "unsigned"), [("i32", "ui32"), ("f32", "ui32"), ("i64", "ui64"), ("bf16", "ui16")])
def test_other_types_hold_the_bits_of_the_unsigned_one(element: str, unsigned: str) -> None:
    """XLA draws unsigned integers whatever the type of the result."""
    with jax.enable_x64(True):
        program = unlower.load(_generator(element, "5x", "THREE_FRY"))
        plain = unlower.load(_generator(unsigned, "5x", "THREE_FRY")).flat(_TWO)[1]
        (_, drawn), (_, batch) = program.flat(_TWO), jax.vmap(program.flat)(_TWO[None])
        assert drawn.dtype == program.out_avals[1].dtype
        np.testing.assert_array_equal(np.asarray(drawn).view(plain.dtype), plain)
        np.testing.assert_array_equal(np.asarray(batch)[0].view(plain.dtype), plain)


def test_vmap_is_that_of_jax() -> None:
    """JAX draws a whole batch from the first state, which its documentation says."""
    states = np.stack([_TWO, _TWO + 1])
    with jax.enable_x64(True):
        actual = jax.vmap(unlower.load(_GENERATORS[4].text).flat)(states)
        algorithm = jax.lax.RandomAlgorithm.RNG_PHILOX
        expected = jax.vmap(lambda s: jax.lax.rng_bit_generator(s, (3, 5), np.uint32, algorithm))(states)
        for a, e in zip(actual, expected, strict=True):
            np.testing.assert_array_equal(a, e)


def _rng(distribution: str) -> str:
    return module(
        "tensor<f64>; tensor<f64>",
        "tensor<500x20xf64>",
        f"""    %s = stablehlo.constant dense<[500, 20]> : tensor<2xi64>
    %0 = stablehlo.rng %a0, %a1, %s, distribution = {distribution} : (tensor<f64>, tensor<f64>, tensor<2xi64>) -> tensor<500x20xf64>
    return %0 : tensor<500x20xf64>""",
    )


def test_rng_draws_from_its_distribution() -> None:
    """XLA draws anew in every run, so the numbers are held to their distribution."""
    with jax.enable_x64(True):
        (uniform,) = unlower.load(_rng("UNIFORM")).flat(np.float64(-1.0), np.float64(3.0))
        (normal,) = unlower.load(_rng("NORMAL")).flat(np.float64(2.0), np.float64(0.5))
    uniform, normal = np.asarray(uniform), np.asarray(normal)
    assert uniform.min() >= -1 and uniform.max() < 3
    assert uniform.mean() == pytest.approx(1.0, abs=0.1)
    assert (normal.mean(), normal.std()) == (pytest.approx(2.0, abs=0.05), pytest.approx(0.5, abs=0.05))
    assert len(np.unique(normal)) > 9000


@pytest.mark.parametrize("distribution", ["UNIFORM", "NORMAL"])
def test_rng_relowers(distribution: str) -> None:
    check_relowers(Case(distribution, _rng(distribution), [np.float64(0.0), np.float64(1.0)]))


@pytest.mark.parametrize("distribution", ["UNIFORM", "NORMAL"])
def test_rng_moves_with_its_parameters(distribution: str) -> None:
    with jax.enable_x64(True):
        program = unlower.load(_rng(distribution))

        def draw(a: jax.Array, b: jax.Array) -> jax.Array:
            return program.flat(a, b)[0]

        a, b = np.float64(1.0), np.float64(3.0)
        drawn, moved = jax.jvp(draw, (a, b), (np.float64(1.0), np.float64(0.0)))
        drawn_too, scaled = jax.jvp(draw, (a, b), (np.float64(0.0), np.float64(1.0)))
        standard = (drawn - a) / (b - a) if distribution == "UNIFORM" else (drawn - a) / b
        standard_too = (drawn_too - a) / (b - a) if distribution == "UNIFORM" else (drawn_too - a) / b
        np.testing.assert_allclose(
            moved, 1 - standard if distribution == "UNIFORM" else np.ones_like(drawn), atol=1e-12
        )
        np.testing.assert_allclose(scaled, standard_too, atol=1e-12)


def test_batched_rng_draws_for_each_element() -> None:
    with jax.enable_x64(True):
        program = unlower.load(_rng("NORMAL"))
        (drawn,) = jax.vmap(program.flat, in_axes=(0, None))(np.array([0.0, 100.0]), np.float64(1.0))
    drawn = np.asarray(drawn)
    assert drawn.mean((1, 2)) == pytest.approx([0.0, 100.0], abs=0.1)
    assert not np.allclose(drawn[0], drawn[1] - 100)


_STATE = module(
    "",
    "tensor<2xui64>",
    "    %0 = mhlo.xla.rng_get_and_update_state {delta = 3 : i64}\n    return %0 : tensor<2xui64>",
)


def test_rng_state_starts_where_xla_starts_it_and_moves_on() -> None:
    check_value(Case("state", _STATE, []))
    check_relowers(Case("state", _STATE, []))
    with jax.enable_x64(True):
        draw = jax.jit(unlower.load(_STATE).flat)
        first, second = (int(draw()[0][0]) for _ in range(2))
    assert second - first == 3
