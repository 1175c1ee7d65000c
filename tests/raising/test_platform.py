import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import unlower
from unlower.ir.check import check
from unlower.ir.module import walk
from unlower.raising.platform import count_platforms, fix_platform
from unlower.readers.detect import read

F32 = np.float32
PLATFORMS = ["tpu", "cpu", "cuda"]


def choose(x):
    return jax.lax.platform_dependent(x, cpu=lambda x: x + 1, tpu=lambda x: x + 2, default=lambda x: x + 3)


@jax.jit
def inner(x):
    return choose(x) * 2


def function(x):
    looped = jax.lax.fori_loop(0, 3, lambda _, c: choose(c), x)
    return inner(x) + looped, inner(choose(x))


EXPORTED = jax.export.export(jax.jit(function), platforms=PLATFORMS)(np.ones(3, F32))
ADDED = {"tpu": 2, "cpu": 1, "cuda": 3}


def want(x, added):
    return (x + added) * 2 + x + 3 * added, (x + added + added) * 2


@pytest.mark.parametrize("index", range(3))
def test_only_the_chosen_branches_stay(index):
    module = read(EXPORTED)
    fixed = fix_platform(module, 0, index)
    check(fixed)
    assert len(fixed.main.body.arguments) == 1
    names = [op.name for f in fixed.functions.values() for op in walk(f.body)]
    assert "stablehlo.case" not in names
    assert names.count("stablehlo.while") == 1
    assert set(fixed.functions) <= set(module.functions)
    assert count_platforms(module, 0) == 3


@pytest.mark.parametrize("platform", PLATFORMS)
def test_each_platform_computes_what_it_would(platform):
    x = np.arange(3, dtype=F32)
    program = unlower.load(EXPORTED, platform=platform)
    for got, right in zip(program(x), want(x, ADDED[platform]), strict=True):
        np.testing.assert_array_equal(got, right)


def module_text(body, functions=""):
    return f"""
    func.func public @main(%p: tensor<i32> {{jax.global_constant = "_platform_index"}}, %x: tensor<f32>) -> tensor<f32> {{
      {body}
    }}
    {functions}"""


CASE = """"stablehlo.case"(%{index}) ({{
        %a = stablehlo.negate %x : tensor<f32>
        stablehlo.return %a : tensor<f32>
      }}, {{
        %b = stablehlo.abs %x : tensor<f32>
        stablehlo.return %b : tensor<f32>
      }}) : (tensor<i32>) -> tensor<f32>"""


def test_an_index_that_is_read_otherwise_is_a_constant():
    text = module_text(
        """%q = stablehlo.add %p, %p : tensor<i32>
      %y = stablehlo.convert %q : (tensor<i32>) -> tensor<f32>
      return %y : tensor<f32>"""
    )
    assert [float(unlower.load(text, platform=n)(0.0)) for n in (0, 3)] == [0.0, 6.0]


def test_an_index_out_of_range_is_the_last_branch():
    text = module_text(f"%y = {CASE.format(index='p')}\n return %y : tensor<f32>")
    fixed = fix_platform(read(text), 0, 7)
    assert [op.name for op in fixed.main.body.ops] == ["stablehlo.abs"]
    with pytest.raises(unlower.SignatureError, match="2 platforms that it does not name: give a number below 2"):
        unlower.load(text, platform=7)


def test_functions_that_are_called_with_and_without_the_index():
    text = module_text(
        """%one = stablehlo.constant dense<1> : tensor<i32>
      %u = func.call @f(%p, %x) : (tensor<i32>, tensor<f32>) -> tensor<f32>
      %n = stablehlo.convert %u : (tensor<f32>) -> tensor<i32>
      %v = func.call @f(%n, %u) : (tensor<i32>, tensor<f32>) -> tensor<f32>
      %w = func.call @f(%one, %v) : (tensor<i32>, tensor<f32>) -> tensor<f32>
      return %w : tensor<f32>""",
        f"func.func private @f(%i: tensor<i32>, %x: tensor<f32>) -> tensor<f32> {{\n"
        f"%y = {CASE.format(index='i')}\n return %y : tensor<f32> }}",
    )
    program = unlower.load(text, platform=0)
    assert sorted(program.module.functions) == ["f", "f_1", "main"]
    # f(0, 3) = -3; f(-3, -3) is the last branch, 3; f(1, 3) = 3.
    assert float(program(3.0)) == 3.0
    assert float(jax.grad(program)(3.0)) == 1.0


def test_branches_of_other_platforms_need_no_rules():
    text = module_text(
        """%y = "stablehlo.case"(%p) ({
        %a = stablehlo.custom_call @acme(%x) : (tensor<f32>) -> tensor<f32>
        stablehlo.return %a : tensor<f32>
      }, {
        stablehlo.return %x : tensor<f32>
      }) : (tensor<i32>) -> tensor<f32>
      return %y : tensor<f32>"""
    )
    assert float(unlower.load(text, platform=1)(2.0)) == 2.0
    with pytest.raises(unlower.UnsupportedOpError, match="acme"):
        unlower.load(text, platform=0)


def test_sizes_and_platforms_together():
    (b,) = jax.export.symbolic_shape("b")
    exported = jax.export.export(jax.jit(lambda x: jnp.sin(x) * choose(x).sum()), platforms=PLATFORMS)(
        jax.ShapeDtypeStruct((b,), F32)
    )
    x = np.arange(4, dtype=F32)
    program = unlower.load(exported)
    np.testing.assert_array_equal(program(x), exported.call(x))
    np.testing.assert_allclose(
        jax.grad(lambda x: program(x).sum())(x), jax.grad(lambda x: (jnp.sin(x) * (x + 1).sum()).sum())(x), rtol=1e-6
    )
