"""Loops, choices, scans, composites, tokens."""

import jax
import numpy as np
import pytest
from op_checks import Case, check_derivative, check_relowers, check_value, check_vmap, ids, module, primitives_of

import unlower

_X, _Y = np.array([0.3, -1.2, 2.5]), np.array([1.5, 0.25, -0.75])

_POWER = module(
    "tensor<i32>; tensor<3xf64>; tensor<3xf64>",
    "tensor<i32>, tensor<3xf64>",
    """    %c = stablehlo.constant dense<0> : tensor<i32>
    %0:2 = stablehlo.while(%i = %c, %x = %a1) : tensor<i32>, tensor<3xf64>
      cond {
        %1 = stablehlo.compare LT, %i, %a0 : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %1 : tensor<i1>
      } do {
        %one = stablehlo.constant dense<1> : tensor<i32>
        %1 = stablehlo.add %i, %one : tensor<i32>
        %2 = stablehlo.multiply %x, %a2 : tensor<3xf64>
        stablehlo.return %1, %2 : tensor<i32>, tensor<3xf64>
      }
    return %0#0, %0#1 : tensor<i32>, tensor<3xf64>""",
)

# All that the loop uses is in its carry, as JAX writes loops.
_NEWTON = module(
    "tensor<f64>; tensor<f64>",
    "tensor<f64>, tensor<f64>",
    """    %0:2 = stablehlo.while(%x = %a0, %y = %a1) : tensor<f64>, tensor<f64>
      cond {
        %1 = stablehlo.multiply %x, %x : tensor<f64>
        %2 = stablehlo.subtract %1, %y : tensor<f64>
        %3 = stablehlo.abs %2 : tensor<f64>
        %c = stablehlo.constant dense<1.0e-2> : tensor<f64>
        %4 = stablehlo.compare GT, %3, %c : (tensor<f64>, tensor<f64>) -> tensor<i1>
        stablehlo.return %4 : tensor<i1>
      } do {
        %1 = stablehlo.divide %y, %x : tensor<f64>
        %2 = stablehlo.add %x, %1 : tensor<f64>
        %c = stablehlo.constant dense<0.5> : tensor<f64>
        %3 = stablehlo.multiply %2, %c : tensor<f64>
        stablehlo.return %3, %y : tensor<f64>, tensor<f64>
      }
    return %0#0, %0#1 : tensor<f64>, tensor<f64>""",
)

_LOOPS = [
    Case("while over captures", _POWER, [np.int32(3), _X, _Y], relowers=False),
    Case("while over nothing", _POWER, [np.int32(0), _X, _Y], relowers=False),
    Case("while over its carry", _NEWTON, [np.float64(3.0), np.float64(2.0)], primitive="while"),
]


def _case(*branches: str, index: str = "%a0") -> str:
    """A choice between unary operations on `%a1`, the first of which also reads `%a2`."""
    regions = []
    for place, op in enumerate(branches):
        first = (
            "%1 = stablehlo.multiply %a1, %a2 : tensor<3xf64>"
            if place == 0
            else "%1 = stablehlo.negate %a1 : tensor<3xf64>"
        )
        regions.append(f"""{{
        {first}
        %2 = stablehlo.{op} %1 : tensor<3xf64>
        stablehlo.return %2 : tensor<3xf64>
      }}""")
    return module(
        "tensor<i32>; tensor<3xf64>; tensor<3xf64>",
        "tensor<3xf64>",
        f"""    %0 = "stablehlo.case"({index}) ({", ".join(regions)}) : (tensor<i32>) -> tensor<3xf64>
    return %0 : tensor<3xf64>""",
    )


_THREE = _case("sine", "cosine", "tanh")
_TWO = _case("sine", "cosine")

_IF = module(
    "tensor<i1>; tensor<3xf64>; tensor<3xf64>",
    "tensor<3xf64>, tensor<i32>",
    """    %0:2 = "stablehlo.if"(%a0) ({
        %1 = stablehlo.multiply %a1, %a2 : tensor<3xf64>
        %2 = stablehlo.sine %1 : tensor<3xf64>
        %c = stablehlo.constant dense<1> : tensor<i32>
        stablehlo.return %2, %c : tensor<3xf64>, tensor<i32>
      }, {
        %1 = stablehlo.cosine %a1 : tensor<3xf64>
        %c = stablehlo.constant dense<2> : tensor<i32>
        stablehlo.return %1, %c : tensor<3xf64>, tensor<i32>
      }) : (tensor<i1>) -> (tensor<3xf64>, tensor<i32>)
    return %0#0, %0#1 : tensor<3xf64>, tensor<i32>""",
)

_CHOICES = [
    *[Case(f"case {i} of 3", _THREE, [np.int32(i), _X, _Y], moving=(1, 2), primitive="cond") for i in (0, 1, 2, 3, -1)],
    *[Case(f"case {i} of 2", _TWO, [np.int32(i), _X, _Y], moving=(1, 2)) for i in (0, 1, 5, -1)],
    # A choice with nothing to choose is its branch.
    Case("case of 1", _case("sine"), [np.int32(4), _X, _Y], moving=(1, 2), relowers=False),
    *[Case(f"if {choice}", _IF, [np.bool_(choice), _X, _Y], moving=(1, 2)) for choice in (True, False)],
]


def _scan(dialect: str, axis: int, reverse: bool) -> str:
    """A running product along `axis`."""
    part = f"tensor<{3 if axis else 4}xf64>"
    return module(
        f"tensor<3x4xf64>; {part}",
        f"tensor<3x4xf64>, {part}",
        f"""    %0:2 = "{dialect}.scan"(%a0, %a1) <{{dimension = {axis} : i64, is_reverse = {str(reverse).lower()}, is_associative = false,
        operandSegmentSizes = array<i32: 1, 1>, resultSegmentSizes = array<i32: 1, 1>}}> ({{
      ^bb0(%x: {part}, %c: {part}):
        %1 = stablehlo.multiply %x, %c : {part}
        %2 = stablehlo.add %1, %c : {part}
        {"stablehlo" if dialect == "chlo" else "mhlo"}.return %1, %2 : {part}, {part}
      }}) : (tensor<3x4xf64>, {part}) -> (tensor<3x4xf64>, {part})
    return %0#0, %0#1 : tensor<3x4xf64>, {part}""",
    )


_TABLE = np.random.default_rng(0).standard_normal((3, 4))
_SCANS = [
    Case(
        f"{dialect}.scan along {axis}{' from the end' if reverse else ''}",
        _scan(dialect, axis, reverse),
        [_TABLE, np.ones(3 if axis else 4)],
        moving=(0, 1),
        primitive="reemit",
    )
    for dialect, axis, reverse in [("mhlo", 0, False), ("mhlo", 1, True), ("chlo", 0, True), ("chlo", 1, False)]
]

_COMPOSITE = module(
    "tensor<3xf64>",
    "tensor<3xf64>",
    """    %0 = stablehlo.composite "my.relu" %a0 {
      composite_attributes = {slope = 0.0 : f64}, decomposition = @relu, version = 3 : i32} : (tensor<3xf64>) -> tensor<3xf64>
    return %0 : tensor<3xf64>""",
    """  func.func private @relu(%x: tensor<3xf64>) -> tensor<3xf64> {
    %c = stablehlo.constant dense<0.0> : tensor<3xf64>
    %0 = stablehlo.maximum %x, %c : tensor<3xf64>
    return %0 : tensor<3xf64>
  }""",
)

_TOKENS = module(
    "tensor<3xf64>; tensor<i1>",
    "tensor<3xf64>",
    """    %t = stablehlo.create_token : !stablehlo.token
    %u = stablehlo.after_all %t, %t : !stablehlo.token
    %v = stablehlo.after_all : !stablehlo.token
    %0:2 = "stablehlo.if"(%a1) ({
        %1 = stablehlo.sine %a0 : tensor<3xf64>
        stablehlo.return %1, %u : tensor<3xf64>, !stablehlo.token
      }, {
        stablehlo.return %a0, %v : tensor<3xf64>, !stablehlo.token
      }) : (tensor<i1>) -> (tensor<3xf64>, !stablehlo.token)
    %c = stablehlo.constant dense<0> : tensor<i32>
    %2:3 = stablehlo.while(%i = %c, %x = %0#0, %w = %0#1) : tensor<i32>, tensor<3xf64>, !stablehlo.token
      cond {
        %n = stablehlo.constant dense<2> : tensor<i32>
        %3 = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %3 : tensor<i1>
      } do {
        %one = stablehlo.constant dense<1> : tensor<i32>
        %3 = stablehlo.add %i, %one : tensor<i32>
        %4 = stablehlo.add %x, %x : tensor<3xf64>
        stablehlo.return %3, %4, %w : tensor<i32>, tensor<3xf64>, !stablehlo.token
      }
    return %2#1 : tensor<3xf64>""",
)

_OTHERS = [
    Case("composite", _COMPOSITE, [_X], moving=(0,), relowers=False),
    # Tokens are empty arrays here.
    Case("tokens", _TOKENS, [_X, np.bool_(True)], relowers=False),
    Case(
        "partition_id",
        module(
            "",
            "tensor<ui32>, tensor<ui32>",
            "    %0 = stablehlo.partition_id : tensor<ui32>\n    %1 = stablehlo.replica_id : tensor<ui32>\n    return %0, %1 : tensor<ui32>, tensor<ui32>",
        ),
        [],
        relowers=False,
    ),
]

_CASES = [*_LOOPS, *_CHOICES, *_SCANS, *_OTHERS]


@pytest.mark.parametrize("case", _CASES, ids=ids)
def test_value(case: Case) -> None:
    check_value(case)


@pytest.mark.parametrize("case", [case for case in _CASES if case.relowers], ids=ids)
def test_relowers(case: Case) -> None:
    check_relowers(case)


@pytest.mark.parametrize("case", [*_LOOPS, _CHOICES[3], _CHOICES[-1], *_OTHERS[:2]], ids=ids)
def test_vmap(case: Case) -> None:
    check_vmap(case)


@pytest.mark.parametrize("case", [case for case in _CASES if case.moving], ids=ids)
def test_derivative(case: Case) -> None:
    check_derivative(case)


def test_while_has_a_forward_derivative() -> None:
    with jax.enable_x64(True):
        program = unlower.load(_NEWTON)
        results, tangents = jax.jvp(
            lambda y: program.flat(np.float64(3.0), y)[0], (np.float64(2.0),), (np.float64(1.0),)
        )
        ahead, behind = (program.flat(np.float64(3.0), np.float64(2.0 + d))[0] for d in (1e-6, -1e-6))
        np.testing.assert_allclose(tangents, (ahead - behind) / 2e-6, rtol=1e-6)
    assert float(results) == pytest.approx(2**0.5, abs=1e-2)


@pytest.mark.parametrize("text", [_THREE, _TWO], ids=["3", "2"])
def test_batched_case_takes_the_last_branch_where_the_index_is_out_of_range(text: str) -> None:
    indices = np.array([0, 1, 2, 3, 100, -1, -100], np.int32)
    with jax.enable_x64(True):
        program = unlower.load(text)
        together = jax.vmap(lambda i: program.flat(i, _X, _Y)[0])(indices)
        gradients = jax.vmap(jax.grad(lambda i, x: program.flat(i, x, _Y)[0].sum(), argnums=1), (0, None))(indices, _X)
        for k, index in enumerate(indices):
            np.testing.assert_array_equal(together[k], program.flat(index, _X, _Y)[0])
            alone = jax.grad(lambda x, i=index: program.flat(i, x, _Y)[0].sum())(_X)
            np.testing.assert_allclose(gradients[k], alone, rtol=1e-12)


def test_if_is_itself_and_a_choice_of_jax_when_transformed() -> None:
    with jax.enable_x64(True):
        program = unlower.load(_IF)
        assert "cond" not in primitives_of(program.jaxpr)
        lowered = jax.jit(program.flat).lower(np.bool_(True), _X, _Y).as_text()
        assert "stablehlo.if" in lowered and "stablehlo.case" not in lowered
        transformed = jax.make_jaxpr(jax.grad(lambda x: program.flat(np.bool_(True), x, _Y)[0].sum()))(_X)
        assert "cond" in primitives_of(transformed)


def test_linear_transpose_of_if() -> None:
    linear = _IF.replace("stablehlo.sine", "stablehlo.negate").replace("stablehlo.cosine", "stablehlo.negate")
    with jax.enable_x64(True):
        program = unlower.load(linear)
        (back,) = jax.linear_transpose(lambda x: program.flat(np.bool_(True), x, _Y)[0], _X)(_X)
        np.testing.assert_allclose(back, -_Y * _X)
        (back,) = jax.linear_transpose(lambda x: program.flat(np.bool_(False), x, _Y)[0], _X)(_X)
        np.testing.assert_allclose(back, -_X)


def test_an_associative_scan_may_be_taken_in_order() -> None:
    text = _scan("chlo", 0, False).replace("is_associative = false", "is_associative = true")
    check_value(Case("associative", text, [_TABLE, np.ones(4)]))
