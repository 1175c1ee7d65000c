"""Operations in a pattern become a function, unless something else reads what is between them."""

import jax
import numpy as np
import pytest
from jax import lax

import unlower
from unlower.ir.check import check
from unlower.raising.outline import OUTLINED, PATTERNS, outline

X = np.linspace(-2, 2, 6, dtype=np.float32)


def outlined(function, through="stablehlo"):
    lowered = jax.jit(function).lower(X)
    module = outline(unlower.load(lowered if through == "stablehlo" else lowered.as_text("hlo")).module)
    check(module)
    return module


def made(module):
    return [name.removeprefix(OUTLINED) for name in module.functions if name.startswith(OUTLINED)]


def names(module):
    return [op.name.partition(".")[2] for op in module.main.body.ops]


@pytest.mark.parametrize("through", ["stablehlo", "hlo"])
def test_two_of_a_kind_share_a_function(through):
    module = outlined(lambda x: lax.logistic(x) * lax.logistic(x + x), through)
    assert made(module) == ["logistic"]
    assert sorted(names(module)) == ["add", "call", "call", "multiply"]


def test_another_type_has_another():
    module = outlined(lambda x: lax.logistic(x).sum() * lax.logistic(x[:3]).sum())
    assert made(module) == ["logistic", "logistic_0"]


def test_what_is_read_by_others_stays():
    def shares_the_exponential(x):
        e = jax.numpy.exp(-x)
        return 1 / (1 + e) + e

    assert made(outlined(shares_the_exponential)) == []


def test_constants_that_others_read_stay():
    module = outlined(lambda x: lax.logistic(x) * (1.0 + x), "hlo")
    assert made(module) == ["logistic"]
    assert sorted(names(module)) == ["add", "broadcast_in_dim", "call", "constant", "multiply"]


def test_in_a_region():
    module = outlined(lambda x: lax.fori_loop(0, 3, lambda i, c: lax.logistic(c), x))
    assert made(module) == ["logistic"]


def test_another_constant_is_no_pattern():
    assert made(outlined(lambda x: 1 / (2 + jax.numpy.exp(-x)))) == []


def test_nothing_to_do():
    module = unlower.load(jax.jit(lambda x: x + 1).lower(X)).module
    assert outline(module) is module


def test_patterns_name_operations():
    for pattern in PATTERNS.values():
        assert pattern[0] in {"divide", "select", "log", "atan2"}
