"""CHLO and the MHLO that XLA's converter leaves."""

import jax
import ml_dtypes
import numpy as np
import pytest
from op_checks import (
    Case,
    assert_same_bits,
    check_derivative,
    check_relowers,
    check_value,
    check_vmap,
    ids,
    module,
    normal,
    one_operation,
)

import unlower
from unlower._jax_compat import HLO_HAS_HYPERBOLIC_FUNCTIONS, compile_with_xla
from unlower.errors import RuleError

_DTYPES = {"f64": np.float64, "f32": np.float32, "bf16": ml_dtypes.bfloat16, "f16": np.float16}
_FLOATS = tuple(_DTYPES)
_EDGES = [-np.inf, -3.7, -2.5, -1, -0.5, -1e-3, -0.0, 0.0, 1e-3, 0.25, 0.5, 0.75, 1, 1.5, 2.5, 4, 300.0, np.inf, np.nan]
_PARTS = [-np.inf, -2.5, -0.0, 0.0, 0.5, 1, 3, np.inf, np.nan]


def _values(element):
    if element.startswith("complex"):
        values = np.array([complex(a, b) for a in _PARTS for b in _PARTS])
        return values.astype(np.complex64 if "32" in element else np.complex128)
    return np.array(_EDGES).astype(_DTYPES[element])


def _unary(name, elements, result=None, **more):
    """A module that applies a function on arrays of each element type."""
    inputs = [_values(element) for element in elements]
    types = [f"tensor<{x.size}x{element}>" for x, element in zip(inputs, elements, strict=True)]
    results = [f"tensor<{x.size}x{result or element}>" for x, element in zip(inputs, elements, strict=True)]
    lines = [
        f'    %{i} = "{name}"(%a{i}) : ({source}) -> {target}'
        for i, (source, target) in enumerate(zip(types, results, strict=True))
    ]
    lines.append(f"    return {', '.join(f'%{i}' for i in range(len(lines)))} : {', '.join(results)}")
    return Case(name, module("; ".join(types), ", ".join(results), "\n".join(lines)), inputs, **more)


def _binary(name, element, values):
    lhs, rhs = (x.reshape(-1).copy() for x in np.meshgrid(values, values))
    type_ = f"tensor<{lhs.size}x{element}>"
    return Case(f"{name} {element}", one_operation(f"{type_}; {type_}", type_, name), [lhs, rhs])


_COMPLEX = ("complex<f32>", "complex<f64>")
_WORDS = [0, 1, -1, 7, -(2**31), 2**31 - 1, 123456789]

CASES = [
    *(
        _unary(f"chlo.{n}", (*_FLOATS, *_COMPLEX))
        for n in ("acos", "acosh", "asinh", "atan", "atanh", "cosh", "sinh", "square")
    ),
    # JAX takes CHLO's expansion of real arguments upon itself; the HLO that both come to is one.
    _unary("chlo.asin", (*_FLOATS, *_COMPLEX), relowers=False),
    # XLA knows these by other names or as other ops: the tangent has become an op of StableHLO, conj is its formula.
    _unary("chlo.tan", (*_FLOATS, *_COMPLEX), relowers=False),
    _unary("chlo.conj", (*_FLOATS, *_COMPLEX), relowers=False),
    *(_unary(f"chlo.{n}", _FLOATS) for n in ("bessel_i1e", "digamma", "erf", "erf_inv", "erfc", "lgamma")),
    *(_unary(f"chlo.{n}", ("f64", "f32", "bf16"), result="i1") for n in ("is_inf", "is_neg_inf", "is_pos_inf")),
    _unary("chlo._asin_acos_kernel", _COMPLEX),
    *(_binary(f"chlo.{n}", e, _values(e)) for n in ("next_after", "polygamma", "zeta") for e in ("f32", "f64")),
    _binary("chlo.mulhi", "i32", np.array(_WORDS, np.int32)),
    _binary("chlo.mulhi", "ui64", np.array(_WORDS).astype(np.uint64) * np.uint64(0x123456789)),
]


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_value(case):
    check_value(case)


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_relowers(case):
    check_relowers(case)


@pytest.mark.parametrize("name", ["chlo.is_inf", "chlo.square", "chlo.next_after f32"])
def test_vmap(name):
    check_vmap(next(case for case in CASES if case.name == name))


@pytest.mark.parametrize("name", ["chlo.lgamma", "chlo._asin_acos_kernel"])
def test_vmap_of_functions_that_xla_expands(name):
    # XLA computes an expansion by vectors and what is left over one by one, and these round differently.
    case = next(case for case in CASES if case.name == name)
    with jax.enable_x64(True):
        program = unlower.load(case.text)
        together = jax.vmap(program.flat, in_axes=1, out_axes=1)(*[np.stack([x, x], 1) for x in case.inputs])
        for batched, alone in zip(together, program.flat(*case.inputs), strict=True):
            tolerance = float(jax.numpy.finfo(alone.dtype).eps) * 8
            np.testing.assert_allclose(
                np.asarray(batched[:, 1]).astype(np.complex128),
                np.asarray(alone).astype(np.complex128),
                rtol=tolerance,
                atol=tolerance,
            )


_SMOOTH = {
    "acos": 0.3, "acosh": 1.7, "asin": 0.3, "asinh": 0.4, "atan": 0.6, "atanh": 0.3, "bessel_i1e": 0.8, "cosh": 0.4,
    "digamma": 2.3, "erf": 0.4, "erf_inv": 0.3, "erfc": 0.4, "lgamma": 2.6, "sinh": 0.7, "square": 1.3, "tan": 0.6,
}  # fmt: skip


@pytest.mark.parametrize("name", _SMOOTH)
def test_derivative(name):
    type_ = "tensor<2xf64>"
    inputs = [np.array([_SMOOTH[name], _SMOOTH[name] * 1.1])]
    check_derivative(Case(name, one_operation(type_, type_, f"chlo.{name}"), inputs, moving=(0,)))


def test_derivative_of_polygamma():
    type_ = "tensor<2xf64>"
    inputs = [np.array([2.0, 3.0]), np.array([1.3, 2.6])]
    check_derivative(
        Case("polygamma", one_operation(f"{type_}; {type_}", type_, "chlo.polygamma"), inputs, moving=(1,))
    )


# --- constants like an operand


@pytest.mark.parametrize(
    ("element", "value", "number"),
    [
        ("f32", "3.2 : f32", np.float32(3.2)),
        ("i8", "-3 : i8", np.int8(-3)),
        ("i1", "true", np.True_),
        ("bf16", "1.5 : bf16", ml_dtypes.bfloat16(1.5)),
        ("complex<f32>", "#complex.number<:f32 1.5, -2.0> : complex<f32>", np.complex64(1.5 - 2j)),
    ],
)
def test_constant_like(element, value, number):
    type_ = f"tensor<2x3x{element}>"
    text = one_operation(type_, type_, f"chlo.constant_like {{value = {value}}}")
    like = np.zeros((2, 3), np.asarray(number).dtype)
    check_value(Case(element, text, [like], expected=[np.full((2, 3), number)]))


def test_constant():
    body = """    %0 = "chlo.constant"() {value = dense<[1.5, -0.0]> : tensor<2xf64>} : () -> tensor<2xf64>
    %1 = stablehlo.add %a0, %0 : tensor<2xf64>
    return %1 : tensor<2xf64>"""
    check_value(Case("constant", module("tensor<2xf64>", "tensor<2xf64>", body), [np.array([1.0, -0.0])]))


# --- implicit broadcasting


def _broadcasting(name, element, result, shapes, attributes="", expected=None):
    rng = np.random.default_rng(0)
    dtype = {"f32": np.float32, "i32": np.int32}[element]
    inputs = [(rng.random(shape) * 4 + 1).astype(dtype) for shape in shapes]
    types = [f"tensor<{''.join(f'{n}x' for n in shape)}{element}>" for shape in shapes]
    text = one_operation("; ".join(types), f"tensor<2x3x{result}>", f"chlo.broadcast_{name} {attributes}")
    return Case(f"{name} of {shapes}{attributes}", text, inputs, relowers=False, expected=expected)


_FLOAT_OPS = ("add", "subtract", "multiply", "divide", "maximum", "minimum", "power", "remainder", "atan2")
_FLOAT_OPS += ("next_after", "polygamma", "zeta")
_INTEGER_OPS = ("and", "or", "xor", "shift_left", "shift_right_arithmetic", "shift_right_logical")
_LESS = "comparison_direction = #chlo<comparison_direction LT>"
_TOTAL = "compare_type = #chlo<comparison_type TOTALORDER>"

BROADCASTING = [
    *(_broadcasting(name, "f32", "f32", ((2, 3), (3,))) for name in _FLOAT_OPS),
    *(_broadcasting(name, "i32", "i32", ((2, 3), (3,))) for name in _INTEGER_OPS),
    _broadcasting("complex", "f32", "complex<f32>", ((2, 1), (3,))),
    _broadcasting("compare", "f32", "i1", ((2, 3), (3,)), f"{{{_LESS}}}"),
    _broadcasting("compare", "f32", "i1", ((2, 3), (3,)), f"{{{_LESS}, {_TOTAL}}}"),
    _broadcasting("add", "f32", "f32", ((2, 1), (3,))),
    _broadcasting("add", "f32", "f32", ((2, 1), (1, 3))),
    _broadcasting("add", "f32", "f32", ((), (2, 3))),
    _broadcasting("add", "f32", "f32", ((2, 3), (2, 3))),
    _broadcasting("add", "f32", "f32", ((3,), (2, 3)), "{broadcast_dimensions = array<i64: 1>}"),
]


@pytest.mark.parametrize("case", BROADCASTING, ids=ids)
def test_broadcasting(case):
    check_value(case)
    if not case.name.startswith(("polygamma", "zeta")):
        check_vmap(case)


def test_broadcasting_to_leading_dimensions():
    # XLA does not go along with dimensions that are placed first.
    case = _broadcasting("subtract", "f32", "f32", ((2,), (2, 3)), "{broadcast_dimensions = array<i64: 0>}")
    lhs, rhs = case.inputs
    assert_same_bits(unlower.load(case.text).flat(*case.inputs), [lhs[:, None] - rhs])


@pytest.mark.parametrize("shapes", [((3,), (2, 3), (2, 1)), ((), (2, 3), (3,)), ((2, 3), (), ()), ((), (2, 3), (2, 3))])
def test_broadcast_select(shapes):
    elements = ("i1", "f32", "f32")
    types = [f"tensor<{''.join(f'{n}x' for n in s)}{e}>" for s, e in zip(shapes, elements, strict=True)]
    text = one_operation("; ".join(types), "tensor<2x3xf32>", "chlo.broadcast_select")
    pred, yes, no = (normal(*shape, dtype=np.float32) for shape in shapes)
    check_value(Case("select", text, [pred > 0, yes, no]))


# --- MHLO


_INSTRUCTIONS = ("acos", "acosh", "asin", "asinh", "atanh", "cosh", "sinh")


@pytest.mark.parametrize("name", [*_INSTRUCTIONS, "erf"])
def test_mhlo_functions(name):
    case = _unary(f"mhlo.{name}", ("f64", "f32", "f16"))
    expected = None
    if name in _INSTRUCTIONS and not HLO_HAS_HYPERBOLIC_FUNCTIONS:
        with jax.enable_x64(True):
            expected = compile_with_xla(case.text.replace("mhlo.", "chlo."))(case.inputs)
    elif name in _INSTRUCTIONS:
        check_relowers(case)
    check_value(Case(case.name, case.text, case.inputs, expected=expected))


@pytest.mark.parametrize("name", _INSTRUCTIONS)
def test_mhlo_functions_of_complex_numbers(name):
    # XLA knows no such instruction, and dies of it.
    case = _unary(f"mhlo.{name}", ("complex<f64>",))
    with jax.enable_x64(True):
        chlo = compile_with_xla(case.text.replace("mhlo.", "chlo."))(case.inputs)
    check_value(Case(case.name, case.text, case.inputs, expected=chlo))


@pytest.mark.parametrize("name", _INSTRUCTIONS)
def test_derivative_of_mhlo_functions(name):
    type_ = "tensor<2xf64>"
    inputs = [np.array([_SMOOTH[name], _SMOOTH[name] * 1.1])]
    check_derivative(Case(name, one_operation(type_, type_, f"mhlo.{name}"), inputs, moving=(0,)))


def test_mhlo_mulhi():
    words = np.array(_WORDS, np.int32)
    text = one_operation("tensor<7xi32>; tensor<7xi32>", "tensor<7xi32>", "mhlo.mulhi")
    product = words.astype(np.int64) * words[::-1]
    check_value(Case("mulhi", text, [words, words[::-1]], expected=[(product >> 32).astype(np.int32)]))


def test_mhlo_passes_on():
    body = """    %0 = "mhlo.copy"(%a0) {result_layout = dense<[0, 1]> : tensor<2xindex>} : (tensor<2x3xf64>) -> tensor<2x3xf64>
    %1 = stablehlo.create_token : !stablehlo.token
    %2 = "mhlo.add_dependency"(%0, %1) : (tensor<2x3xf64>, !stablehlo.token) -> tensor<2x3xf64>
    return %2 : tensor<2x3xf64>"""
    text = module("tensor<2x3xf64>", "tensor<2x3xf64>", body)
    x = normal(2, 3)
    case = Case("copies", text, [x], moving=(0,), expected=[x])
    check_value(case)
    check_derivative(case)


@pytest.mark.parametrize(
    ("source", "random", "target"),
    [
        ("f32", "ui32", "i8"),
        ("f32", "ui32", "i16"),
        ("f32", "ui32", "i32"),
        ("bf16", "ui16", "i8"),
        ("f64", "ui64", "i32"),
    ],
)
def test_stochastic_convert(source, random, target):
    rng = np.random.default_rng(0)
    bound = 2.0 ** (int(target[1:]) - 1)
    edges = [1.5, -2.25, 2 * bound, -2 * bound, np.nan, 0.0, bound - 0.5, -bound + 0.5, -bound - 0.5, np.inf]
    x = np.concatenate([edges, rng.standard_normal(500) * bound / 2]).astype(_DTYPES[source])
    bits = rng.integers(0, 2 ** int(random[2:]), x.size, dtype=np.uint64).astype(random.replace("ui", "uint"))
    types = f"tensor<{x.size}x{source}>; tensor<{x.size}x{random}>"
    text = one_operation(types, f"tensor<{x.size}x{target}>", "mhlo.stochastic_convert")
    check_value(Case("stochastic", text, [x, bits]))


def test_stochastic_convert_to_what_xla_does_not_define():
    text = one_operation("tensor<2xf32>; tensor<2xui32>", "tensor<2xf16>", "mhlo.stochastic_convert")
    with pytest.raises(RuleError, match="stochastic_convert to f16, which XLA does not define"):
        unlower.load(text)
