"""The report says how a program is differentiated: loops, idioms, and what was lost."""

import json

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import unlower
from unlower.ops.reemit import reemit

X = np.linspace(0.5, 2.0, 6, dtype=np.float32)


@jax.jit
def relu(x):
    return jnp.where(x > 0, x, 0.1 * x)


@jax.jit
def halted(x):
    return x * lax.stop_gradient(x)


@jax.custom_jvp
def steep(x):
    return jnp.sin(x)


steep.defjvp(lambda primals, tangents: (steep(*primals), tangents[0] * 100))


def whole(x):
    x = lax.fori_loop(0, 4, lambda i, c: jnp.sin(c), x)
    x = lax.while_loop(lambda c: c.sum() < 30, lambda c: c * 1.5 + 1, x)
    return halted(relu(jax.nn.softplus(jax.nn.sigmoid(x)))) + lax.rem(x, x + 1)


def load(**options):
    return unlower.load(jax.jit(whole).lower(X), **options)


def test_loops():
    counted, other = load().report().loops
    assert (counted.trip_count, counted.reason) == (4, "")
    assert (other.trip_count, other.reason) == (None, "its condition depends on data")
    assert "test_differentiation.py" in other.place and other.max_iterations is None
    assert load(max_iterations={other.name: 9}).report().loops[1].max_iterations == 9
    text = str(load().report())
    assert "runs 4 times, differentiates as a scan" in text
    assert "forward mode only, until max_iterations bounds it" in text
    assert "at most 9 times" in str(load(max_iterations=9).report())


def test_functions_that_were_recognised_and_those_that_were_not():
    found = {idiom.name: idiom for idiom in load(gradients={"halted": halted}).report().idioms}
    assert {name: idiom.proved for name, idiom in found.items()} == {
        "relu": False,
        "softplus": True,
        "logaddexp": True,
        "logistic": True,
        "halted": True,
    }
    assert found["logistic"].function is None and found["relu"].function == "relu"
    assert "the gradient may differ in 1 place" in str(load().report())
    wrong = load(gradients={"halted": jnp.sin}).report()
    assert [idiom.proved for idiom in wrong.idioms if idiom.name == "halted"] == [False]


def test_what_a_derivative_cannot_pass():
    assert load().report().without_derivative == {}
    text = """func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
      %y = stablehlo.custom_call @mine(%x) : (tensor<4xf32>) -> tensor<4xf32>
      return %y : tensor<4xf32>
    }"""

    def mine(op, x, **attributes):
        return reemit(op.name, (x,), op.types, op.attributes)

    report = unlower.load(text, rules=unlower.op_rules | {"mine": mine}).report()
    assert report.custom_calls == {"mine": 1}
    assert report.without_derivative == {"mine": 1}


def test_json():
    report = load().report()
    record = json.loads(report.to_json())
    assert record["name"] == report.name
    assert [loop["name"] for loop in record["loops"]] == [loop.name for loop in load().loops]


def test_rules_that_the_file_names_and_does_not_hold():
    text = """HloModule m, entry_computation_layout={(f32[4]{0})->f32[4]{0}}
ENTRY main {
  x = f32[4]{0} parameter(0)
  ROOT y = f32[4]{0} sine(x), metadata={op_name="jit(f)/layer/custom_vjp_call/sin"}
}
"""
    assert unlower.load(text).report().lost_rules == ("jit(f)/layer/custom_vjp_call",)
