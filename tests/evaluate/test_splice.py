"""Splicing: the Jaxpr of a static module."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import unlower
from unlower import _jax_compat as compat


def jaxpr_of(program):
    closed = program.jaxpr
    return closed.jaxpr if hasattr(compat.core, "ClosedJaxpr") else closed


def equations(closed, inside=False):
    parts = compat.open_closed_jaxpr(closed)
    for equation in parts.eqns:
        yield equation
        if inside and "jaxpr" in equation.params:
            yield from equations(equation.params["jaxpr"], True)


def lowered(fun, *args):
    return jax.jit(fun, keep_unused=True).lower(*args)


@jax.jit
def helper(x):
    return x * 2 + x


def loops(x, y):
    z = helper(x) + helper(y) * np.array([1.0, 2.0, 3.0], np.float32)
    return lax.while_loop(lambda c: c[0] < 5, lambda c: (c[0] + 1, c[1] + jnp.sin(x) * c[1]), (0, z))


X = np.array([1.0, 2.0, 3.0], np.float32)


def test_jaxpr_is_well_formed_and_computes_the_same_bits():
    program = unlower.load(lowered(loops, X, X))
    compat.core.check_jaxpr(jaxpr_of(program))
    want = jax.jit(loops)(X, X)
    got = program(X, X)
    assert int(got[0]) == 5
    np.testing.assert_array_equal(np.asarray(got[1]).view(np.uint32), np.asarray(want[1]).view(np.uint32))


def test_a_function_is_one_sub_jaxpr_however_often_it_is_called():
    program = unlower.load(lowered(loops, X, X))
    calls = [e for e in equations(program.jaxpr) if e.primitive.name == "jit"]
    assert [e.params["name"] for e in calls] == ["helper", "helper"]
    assert calls[0].params["jaxpr"] is calls[1].params["jaxpr"]


def test_rules_run_once_for_each_distinct_operation():
    seen = []

    def sine(op, operand, *, result_accuracy=None):
        seen.append(op.type)
        return lax.sin(operand)

    def fun(x, y):
        return jnp.sin(jnp.sin(jnp.sin(x))), jnp.sin(y)

    source = lowered(fun, X, np.float32(1))
    program = unlower.load(source, rules=unlower.op_rules | {"stablehlo.sine": sine})
    assert [str(t) for t in seen] == ["tensor<3xf32>", "tensor<f32>"]
    assert sum(e.primitive.name == "sin" for e in equations(program.jaxpr)) == 4


def test_one_value_used_twice_is_not_mixed_up_with_two():
    def fun(x, y):
        return x - x, x - y, y - x

    got = unlower.load(lowered(fun, X, X * 3))(X, X * 3)
    for a, b in zip(got, fun(X, X * 3), strict=True):
        np.testing.assert_array_equal(a, b)


def test_operation_names_become_name_scopes():
    def fun(x):
        with jax.named_scope("block"):
            return jnp.sin(x)

    program = unlower.load(lowered(fun, X).as_text(debug_info=True))
    (sine,) = [e for e in equations(program.jaxpr, inside=True) if e.primitive.name == "sin"]
    assert str(sine.source_info.name_stack) == "jit(fun)/block"


def test_transforms_of_a_program_agree_with_the_original():
    def fun(x):
        return jnp.sum(jnp.tanh(x) ** 2)

    program = unlower.load(lowered(fun, X))
    np.testing.assert_array_equal(jax.jit(jax.grad(program))(X), jax.jit(jax.grad(fun))(X))
    np.testing.assert_allclose(jax.hessian(program)(X), jax.hessian(fun)(X), rtol=1e-6)
    batch = np.stack([X, -X])
    np.testing.assert_allclose(jax.vmap(program)(batch), jax.vmap(fun)(batch), rtol=1e-6)


def test_a_failing_rule_is_named_with_its_operation():
    def sine(op, operand, *, result_accuracy=None):
        return lax.convert_element_type(operand, jnp.bfloat16)

    with pytest.raises(
        unlower.RuleError, match="returned bfloat16\\[3\\] where the module says tensor<3xf32>"
    ) as caught:
        unlower.load(lowered(jnp.sin, X), rules=unlower.op_rules | {"stablehlo.sine": sine})
    assert "stablehlo.sine" in str(caught.value)


def test_a_rule_that_does_not_take_an_attribute_is_refused():
    def iota(op):
        return jnp.arange(3.0)

    with pytest.raises(unlower.RuleError, match="does not take the attribute iota_dimension"):
        unlower.load(lowered(lambda: lax.iota(jnp.float32, 3)), rules=unlower.op_rules | {"stablehlo.iota": iota})


def test_every_unsupported_operation_is_listed_with_its_place():
    text = """
    module {
      func.func public @main(%arg0: tensor<4xf32>) -> tensor<4xf32> {
        %0 = stablehlo.custom_call @first_unknown(%arg0) : (tensor<4xf32>) -> tensor<4xf32> loc("model/a")
        %1 = stablehlo.custom_call @second_unknown(%0) : (tensor<4xf32>) -> tensor<4xf32>
        return %1 : tensor<4xf32>
      }
    }
    """
    with pytest.raises(unlower.UnsupportedOpError) as caught:
        unlower.load(text)
    message = str(caught.value)
    assert "first_unknown" in message and "second_unknown" in message and "@main, op 1" in message
    assert "model/a" in message and "unlower.op_rules |" in message
    program = unlower.load(
        text,
        rules=unlower.op_rules
        | {"first_unknown": lambda op, x, **_: x + 1, "second_unknown": lambda op, x, **_: x * 2},
    )
    np.testing.assert_array_equal(program(np.ones(4, np.float32)), np.full(4, 4.0, np.float32))


def test_the_second_transform_traces_almost_nothing():
    calls = []

    def tanh(op, operand, *, result_accuracy=None):
        calls.append(op)
        return lax.tanh(operand)

    program = unlower.load(
        lowered(lambda x: jnp.sum(jnp.tanh(x)), X), rules=unlower.op_rules | {"stablehlo.tanh": tanh}
    )
    count = len(calls)
    jax.grad(program)(X)
    jax.vmap(jax.grad(program))(np.stack([X, X]))
    jax.jit(program.flat).lower(X)
    assert len(calls) == count == 1


def test_the_next_load_finds_what_the_last_one_traced():
    calls = []

    def sine(op, operand, *, result_accuracy=None):
        calls.append(op)
        return lax.sin(operand)

    rules = unlower.op_rules | {"stablehlo.sine": sine}
    first = unlower.load(lowered(jnp.sin, X), rules=rules)
    second = unlower.load(lowered(lambda x: jnp.sin(jnp.sin(x)) + x, X), rules=rules)
    assert len(calls) == 1
    np.testing.assert_array_equal(first(X), jax.jit(jnp.sin)(X))
    np.testing.assert_array_equal(second(X), jax.jit(lambda x: jnp.sin(jnp.sin(x)) + x)(X))


def test_functions_of_one_name_in_two_modules_stay_apart():
    def module(body):
        return f"""
        module {{
          func.func public @main(%x: tensor<3xf32>, %i: tensor<i32>) -> tensor<3xf32> {{
            %0 = "stablehlo.case"(%i) ({{
              %1 = func.call @inner(%x) : (tensor<3xf32>) -> tensor<3xf32>
              stablehlo.return %1 : tensor<3xf32>
            }}, {{
              stablehlo.return %x : tensor<3xf32>
            }}) : (tensor<i32>) -> tensor<3xf32>
            return %0 : tensor<3xf32>
          }}
          func.func private @inner(%x: tensor<3xf32>) -> tensor<3xf32> {{
            %0 = stablehlo.{body} %x : tensor<3xf32>
            return %0 : tensor<3xf32>
          }}
        }}
        """

    first, second = unlower.load(module("negate")), unlower.load(module("abs"))
    np.testing.assert_array_equal(first(X, np.int32(0)), -X)
    np.testing.assert_array_equal(second(-X, np.int32(0)), X)
