"""Loops that came through HLO, and the order of their bodies."""

import jax
import numpy as np
import pytest
from jax import lax

import unlower
from unlower.ir.module import Module, Op, walk
from unlower.raising.loop_order import order_loops
from unlower.raising.normalize import normalize
from unlower.readers.detect import read

_LOOP = """module @m MARK {
  func.func public @main(%x: tensor<f32>, %p: tensor<f32>, %q: tensor<f32>) -> tensor<f32> {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %0:4 = stablehlo.while(%i = %c, %y = %x, %a = %p, %b = %q) : tensor<i32>, tensor<f32>, tensor<f32>, tensor<f32>
      cond {
        %n = stablehlo.constant dense<3> : tensor<i32>
        %1 = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %1 : tensor<i1>
      } do {
        %one = stablehlo.constant dense<1> : tensor<i32>
        %1 = stablehlo.add %i, %one : tensor<i32>
BODY
        stablehlo.return %1, %4, %a, %b : tensor<i32>, tensor<f32>, tensor<f32>, tensor<f32>
      }
    return %0#1 : tensor<f32>
  }
}
"""
_REVERSED = """        %2 = stablehlo.sine %b : tensor<f32>
        %3 = stablehlo.cosine %a : tensor<f32>
        %5 = stablehlo.multiply %2, %y : tensor<f32>
        %4 = stablehlo.add %3, %5 : tensor<f32>"""
_ENTANGLED = """        %2 = stablehlo.sine %b : tensor<f32>
        %3 = stablehlo.multiply %2, %a : tensor<f32>
        %4 = stablehlo.add %3, %y : tensor<f32>"""
_FROM_HLO = "attributes {mhlo.is_dynamic = false}"


def _module(body: str, mark: str = _FROM_HLO) -> Module:
    return normalize(read(_LOOP.replace("BODY", body).replace("MARK", mark)))


def _body(module: Module) -> list[str]:
    (loop,) = [op for op in walk(module.main.body) if op.name == "stablehlo.while"]
    return [op.name.partition(".")[2] for op in loop.regions[1].ops if op.name != "stablehlo.constant"]


def test_first_uses_come_in_the_order_of_the_carry() -> None:
    module = _module(_REVERSED)
    ordered = order_loops(module)
    assert _body(module) == ["add", "sine", "cosine", "multiply", "add"]
    assert _body(ordered) == ["cosine", "sine", "add", "multiply", "add"]
    assert order_loops(ordered) is ordered


@pytest.mark.parametrize(
    ("body", "mark"),
    [(_REVERSED, ""), (_ENTANGLED, _FROM_HLO)],
    ids=["a module that was never HLO", "an order that is impossible"],
)
def test_what_stays_as_it_is(body: str, mark: str) -> None:
    module = _module(body, mark)
    assert order_loops(module) is module


def test_effects_are_not_reordered() -> None:
    drawn = _REVERSED.replace("%3 = stablehlo.cosine %a :", "%3 = stablehlo.rng %a, %a, %s, distribution = UNIFORM :")
    drawn = drawn.replace("UNIFORM : tensor<f32>", "UNIFORM : (tensor<f32>, tensor<f32>, tensor<0xi64>) -> tensor<f32>")
    module = _module(f"        %s = stablehlo.constant dense<> : tensor<0xi64>\n{drawn}")
    assert any(isinstance(op, Op) and op.name == "stablehlo.rng" for op in walk(module.main.body))
    assert order_loops(module) is module


def test_a_scan_through_hlo_compiles_to_the_same_loop() -> None:
    def function(x: jax.Array, weights: dict[str, jax.Array]) -> jax.Array:
        # The sorted order of the names is not the order of the uses.
        def step(x: jax.Array, w: dict[str, jax.Array]) -> tuple[jax.Array, None]:
            return lax.tanh(x @ w["z"] + w["b"]) @ w["a"], None

        return lax.scan(step, x, weights)[0]

    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 8)).astype(np.float32)
    shapes = {"a": (3, 16, 8), "b": (3, 2, 16), "z": (3, 8, 16)}
    weights = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    lowered = jax.jit(function).lower(x, weights)
    leaves = jax.tree.leaves((x, weights))
    program = unlower.load(lowered.compiler_ir("hlo").as_hlo_text())  # pyright: ignore[reportOptionalMemberAccess]
    again = jax.jit(program.flat).lower(*leaves)

    def carries(text: str) -> list[str]:
        return [line.partition(" while(")[0].partition("= ")[2] for line in text.splitlines() if " while(" in line]

    assert carries(again.compile().as_text()) == carries(lowered.compile().as_text())
    np.testing.assert_array_equal(program.flat(*leaves)[0], jax.jit(function)(x, weights))
