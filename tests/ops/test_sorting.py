"""Sort and the largest k."""

import jax
import numpy as np
import pytest
from op_checks import Case, check_derivative, check_relowers, check_value, check_vmap, ids, module, primitives_of

import unlower

_RNG = np.random.default_rng(1)
_X = _RNG.standard_normal((3, 5))
_Y = _RNG.standard_normal((3, 5))
_ODD = np.array([[np.nan, -0.0, 0.0, -np.inf, -np.nan], [1, np.nan, -1, 0.0, -0.0], [5, 4, 3, 2, 1]])
_INTS = _RNG.integers(0, 3, (3, 5), np.int32)


def _sort(elements: str, region: str, dimension: int = 1, stable: str = "true", shape: str = "3x5") -> str:
    types = [f"tensor<{shape}x{element}>" for element in elements.split()]
    arguments = ", ".join(
        f"%{name}{i}: tensor<{element}>" for i, element in enumerate(elements.split()) for name in "xy"
    )
    count = f":{len(types)}" if len(types) > 1 else ""
    results = ", ".join(f"%0#{i}" if count else "%0" for i in range(len(types)))
    return module(
        "; ".join(types),
        ", ".join(types),
        f"""    %0{count} = "stablehlo.sort"({", ".join(f"%a{i}" for i in range(len(types)))}) <{{
        dimension = {dimension} : i64, is_stable = {stable}}}> ({{
      ^bb0({arguments}):
{region}
        stablehlo.return %p : tensor<i1>
    }}) : ({", ".join(types)}) -> ({", ".join(types)})
    return {results} : {", ".join(types)}""",
    )


def _compare(direction: str, kind: str, element: str = "f64", i: int = 0) -> str:
    return f"%p = stablehlo.compare {direction}, %x{i}, %y{i}, {kind} : (tensor<{element}>, tensor<{element}>) -> tensor<i1>"


_BY_DISTANCE = """%c = stablehlo.constant dense<0.3> : tensor<f64>
        %1 = stablehlo.subtract %x0, %c : tensor<f64>
        %2 = stablehlo.abs %1 : tensor<f64>
        %3 = stablehlo.subtract %y0, %c : tensor<f64>
        %4 = stablehlo.abs %3 : tensor<f64>
        %p = stablehlo.compare LT, %2, %4, FLOAT : (tensor<f64>, tensor<f64>) -> tensor<i1>"""


def _by_lax(*elements: str, keys: int = 1) -> tuple[str, list]:
    """The module that `lax.sort` itself lowers to."""
    arrays = {"f64": _X, "i32": _INTS, "c128": _X + 1j * _Y}
    inputs = [arrays[element] for element in elements]
    with jax.enable_x64(True):
        text = jax.jit(lambda *xs: jax.lax.sort(xs, dimension=1, num_keys=keys)).lower(*inputs).as_text()
    return text, inputs


_CASES = [
    Case("lax_floats", *_by_lax("f64"), moving=(0,), primitive="sort"),
    Case("lax_two_keys", *_by_lax("i32", "f64", "f64", keys=2), moving=(1, 2), primitive="sort"),
    Case("lax_one_key_of_two", *_by_lax("i32", "f64"), moving=(1,), primitive="sort"),
    Case("lax_complex", *_by_lax("c128"), primitive="sort"),
    Case("lax_odd_floats", _by_lax("f64")[0], [_ODD], primitive="sort"),
    Case("ints", _sort("i32", _compare("LT", "SIGNED", "i32")), [_INTS], primitive="sort"),
    Case("total_order", _sort("f64", _compare("LT", "TOTALORDER")), [_ODD], primitive="reemit"),
    Case("descending", _sort("f64", _compare("GT", "TOTALORDER")), [_X], (0,), primitive="reemit"),
    Case("along_the_first", _sort("f64", _compare("GT", "FLOAT"), 0), [_X], (0,), primitive="reemit"),
    Case("by_the_second", _sort("f64 f64", _compare("GE", "FLOAT", i=1)), [_X, _Y], (0, 1)),
    Case("by_distance", _sort("f64 i32", _BY_DISTANCE), [_X, _INTS], (0,)),
    Case("by_bytes", _sort("ui8", _compare("GT", "UNSIGNED", "ui8"), stable="false"), [_INTS.astype(np.uint8)]),
    Case("nothing", _sort("f64", _compare("GT", "FLOAT"), shape="3x0"), [np.zeros((3, 0))]),
    Case(
        "top_k",
        module(
            "tensor<3x5xf64>",
            "tensor<3x2xf64>, tensor<3x2xi32>",
            """    %0:2 = chlo.top_k(%a0, k = 2) : tensor<3x5xf64> -> (tensor<3x2xf64>, tensor<3x2xi32>)
    return %0#0, %0#1 : tensor<3x2xf64>, tensor<3x2xi32>""",
        ),
        [_X],
        (0,),
        primitive="top_k",
    ),
    Case(
        "top_k_as_custom_call",
        module(
            "tensor<3x5xf64>",
            "tensor<3x2xf64>, tensor<3x2xi32>",
            """    %0:2 = stablehlo.custom_call @mhlo.topk(%a0) {
        mhlo.attributes = {k = 2 : i64, largest = true}, mhlo.version = 1 : i64} :
      (tensor<3x5xf64>) -> (tensor<3x2xf64>, tensor<3x2xi32>)
    return %0#0, %0#1 : tensor<3x2xf64>, tensor<3x2xi32>""",
        ),
        [_X],
        (0,),
        relowers=False,
        expected=[-np.sort(-_X, 1)[:, :2], np.argsort(-_X, 1, kind="stable")[:, :2].astype(np.int32)],
        primitive="top_k",
    ),
    Case(
        "bottom_k_as_custom_call",
        module(
            "tensor<3x5xf64>",
            "tensor<3x2xf64>, tensor<3x2xi32>",
            """    %0:2 = stablehlo.custom_call @mhlo.topk(%a0) {
        mhlo.attributes = {k = 2 : i64, largest = false}, mhlo.version = 1 : i64} :
      (tensor<3x5xf64>) -> (tensor<3x2xf64>, tensor<3x2xi32>)
    return %0#0, %0#1 : tensor<3x2xf64>, tensor<3x2xi32>""",
        ),
        [_X],
        (0,),
        relowers=False,
        expected=[np.sort(_X, 1)[:, :2], np.argsort(_X, 1, kind="stable")[:, :2].astype(np.int32)],
    ),
]


def _approx(function, fallback: bool = True) -> str:
    with jax.enable_x64(True):
        text = jax.jit(lambda x: function(x, 2, reduction_dimension=1)).lower(_X).as_text()
    return text if fallback else text.replace("is_fallback = true, ", "")


_CASES += [
    Case("approx_max_k", _approx(jax.lax.approx_max_k), [_X], (0,), primitive="reemit"),
    Case("approx_min_k", _approx(jax.lax.approx_min_k), [_X], (0,), primitive="reemit"),
    Case(
        "approx_max_k_of_tpu",
        _approx(jax.lax.approx_max_k, fallback=False),
        [_X],
        (0,),
        relowers=False,
        expected=[-np.sort(-_X, 1)[:, :2], np.argsort(-_X, 1, kind="stable")[:, :2].astype(np.int32)],
        primitive="approx_top_k",
    ),
]


@pytest.mark.parametrize("case", _CASES, ids=ids)
def test_value(case):
    check_value(case)


@pytest.mark.parametrize("case", _CASES, ids=ids)
def test_relowers(case):
    check_relowers(case)


@pytest.mark.parametrize("case", _CASES, ids=ids)
def test_vmap(case):
    check_vmap(case)


@pytest.mark.parametrize("case", [case for case in _CASES if case.moving], ids=ids)
def test_derivative(case):
    check_derivative(case)


def test_optimized_module_calls_the_cpus_top_k():
    """After optimization the CPU's module holds a custom call to TopK, which is `lax.top_k` again."""
    x = np.float32(_X)
    compiled = jax.jit(lambda x: jax.lax.top_k(x, 2)).lower(x).compile()
    text = compiled.as_text()
    assert "TopK" in text
    program = unlower.load(text)
    assert "top_k" in primitives_of(program.jaxpr)
    for got, want in zip(program.flat(x), compiled(x), strict=True):
        np.testing.assert_array_equal(got, want)


def test_dynamic_top_k():
    """k may be an operand, as long as it follows from constants."""
    text = module(
        "tensor<3x5xf32>",
        "tensor<3x2xf32>, tensor<3x2xi32>",
        """    %k = stablehlo.constant dense<2> : tensor<i32>
    %0:2 = stablehlo.custom_call @stablehlo.dynamic_top_k(%a0, %k) {api_version = 2 : i32} :
      (tensor<3x5xf32>, tensor<i32>) -> (tensor<3x2xf32>, tensor<3x2xi32>)
    return %0#0, %0#1 : tensor<3x2xf32>, tensor<3x2xi32>""",
    )
    x = np.float32(_X)
    for got, want in zip(unlower.load(text).flat(x), jax.lax.top_k(x, 2), strict=True):
        np.testing.assert_array_equal(got, want)


def test_dynamic_top_k_of_data():
    text = module(
        "tensor<3x5xf32>; tensor<i32>",
        "tensor<3x2xf32>, tensor<3x2xi32>",
        """    %0:2 = stablehlo.custom_call @stablehlo.dynamic_top_k(%a0, %a1) {api_version = 2 : i32} :
      (tensor<3x5xf32>, tensor<i32>) -> (tensor<3x2xf32>, tensor<3x2xi32>)
    return %0#0, %0#1 : tensor<3x2xf32>, tensor<3x2xi32>""",
    )
    with pytest.raises(unlower.UnlowerError, match="depends on the data"):
        unlower.load(text).flat(np.float32(_X), np.int32(2))
