"""Elementwise operations: each on every element type it takes, at the edges of each type."""

import dataclasses

import jax
import ml_dtypes
import numpy as np
import pytest
from jax import lax
from op_checks import Case, check_derivative, check_relowers, check_value, check_vmap, ids, module

import unlower

_DTYPES = {
    "f64": np.float64,
    "f32": np.float32,
    "bf16": ml_dtypes.bfloat16,
    "i32": np.int32,
    "i8": np.int8,
    "ui32": np.uint32,
    "i1": np.bool_,
    "complex<f32>": np.complex64,
    "complex<f64>": np.complex128,
}
_FLOATS = ("f64", "f32", "bf16")
_COMPLEX = ("complex<f32>", "complex<f64>")
_EDGES = [0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, np.inf, -np.inf, np.nan, 1e30, -1e-30, 3.7]
_INTEGERS = [0, 1, -1, 2, 7, -128, 127, 100, 5, 31, -7, 3, 64, -64]


def _edges(element: str, roll: int = 0) -> np.ndarray:
    dtype = np.dtype(_DTYPES[element])
    if dtype == np.bool_:
        return np.roll(np.array([True, False] * 7), roll)
    if dtype.kind in "iu":
        return np.roll(np.array(_INTEGERS), roll).astype(dtype)
    values = np.roll(np.array(_EDGES), roll)
    with np.errstate(all="ignore"):
        if dtype.kind == "c":
            values = values + 1j * np.roll(values, 5)
        return values.astype(dtype)


def _apply(name: str, elements: tuple[str, ...], operands: int, result: str = "", suffix: str = "") -> tuple[str, list]:
    """A module that applies an op on arrays of each element type."""
    types, results, lines, inputs = [], [], [], []
    for position, element in enumerate(elements):
        first = position * operands
        source, target = f"tensor<14x{element}>", f"tensor<14x{result or element}>"
        types += [source] * operands
        results.append(target)
        names = ", ".join(f"%a{first + i}" for i in range(operands))
        kinds = ", ".join([source] * operands)
        lines.append(f'    %{position} = "{name}"({names}) {suffix} : ({kinds}) -> {target}')
        inputs += [_edges(element, i) for i in range(operands)]
    returned = ", ".join(f"%{i}" for i in range(len(elements)))
    lines.append(f"    return {returned} : {', '.join(results)}")
    return module("; ".join(types), ", ".join(results), "\n".join(lines)), inputs


def _case(name: str, elements: tuple[str, ...], operands: int = 1, **more: str) -> Case:
    text, inputs = _apply(name, elements, operands, **more)
    return Case(f"{name}{more.get('suffix', '')}{more.get('result', '')}", text, inputs)


_UNARY = {
    **dict.fromkeys(
        ["exponential", "log", "sine", "cosine", "tanh", "sqrt", "rsqrt", "logistic"], (*_FLOATS, *_COMPLEX)
    ),
    **dict.fromkeys(["log_plus_one", "exponential_minus_one", "tan"], (*_FLOATS, *_COMPLEX)),
    **dict.fromkeys(["cbrt", "ceil", "floor", "round_nearest_even", "round_nearest_afz"], _FLOATS),
    "abs": (*_FLOATS, "i32", "i8"),
    "negate": (*_FLOATS, *_COMPLEX, "i32", "i8", "ui32"),
    "sign": (*_FLOATS, *_COMPLEX, "i32", "i8"),
    "not": ("i1", "i32", "ui32"),
    "popcnt": ("i32", "ui32", "i8"),
    "count_leading_zeros": ("i32", "ui32", "i8"),
}
_BINARY = {
    **dict.fromkeys(["add", "multiply"], (*_FLOATS, *_COMPLEX, "i32", "i8", "ui32")),
    "subtract": (*_FLOATS, *_COMPLEX, "i32", "i8", "ui32"),
    "divide": (*_FLOATS, *_COMPLEX, "i32", "i8", "ui32"),
    "remainder": (*_FLOATS, "i32", "i8", "ui32"),
    **dict.fromkeys(["maximum", "minimum"], (*_FLOATS, "i32", "i8", "ui32", "i1")),
    "power": (*_FLOATS, "i32", "ui32"),
    "atan2": _FLOATS,
    **dict.fromkeys(["and", "or", "xor"], ("i1", "i32", "ui32")),
    **dict.fromkeys(["shift_left", "shift_right_arithmetic", "shift_right_logical"], ("i32", "ui32", "i8")),
}
_DIRECTIONS = ("EQ", "NE", "LT", "LE", "GT", "GE")


def _comparison(direction: str, kind: str, element: str) -> Case:
    suffix = (
        f"{{comparison_direction = #stablehlo<comparison_direction {direction}>, "
        f"compare_type = #stablehlo<comparison_type {kind}>}}"
    )
    text, inputs = _apply("stablehlo.compare", (element,), 2, result="i1", suffix=suffix)
    return Case(f"compare {direction} {kind} {element}", text, inputs)


_BOOLEAN = [
    # Booleans add and multiply as OR and AND, and lower as such.
    dataclasses.replace(_case(f"stablehlo.{name}", ("i1",), 2), name=f"boolean {name}", relowers=False)
    for name in ("add", "multiply")
]

CASES = [
    *_BOOLEAN,
    *(_case(f"stablehlo.{name}", elements) for name, elements in _UNARY.items()),
    *(_case(f"stablehlo.{name}", elements, 2) for name, elements in _BINARY.items()),
    _case("stablehlo.is_finite", _FLOATS, result="i1"),
    _case("stablehlo.abs", ("complex<f32>",), result="f32"),
    _case("stablehlo.real", ("complex<f32>",), result="f32"),
    _case("stablehlo.imag", ("complex<f64>",), result="f64"),
    _case("stablehlo.complex", ("f32",), 2, result="complex<f32>"),
    _case("stablehlo.clamp", (*_FLOATS, "i32"), 3),
    _case("stablehlo.reduce_precision", ("f32", "f64"), suffix="{exponent_bits = 5 : i32, mantissa_bits = 3 : i32}"),
    *(_comparison(d, "FLOAT", "f32") for d in _DIRECTIONS),
    *(_comparison(d, "TOTALORDER", "f32") for d in _DIRECTIONS),
    *(_comparison(d, "SIGNED", "i32") for d in ("LT", "GE")),
    *(_comparison(d, "UNSIGNED", "ui32") for d in ("GT", "LE")),
    *(_comparison(d, "UNSIGNED", "i1") for d in ("EQ", "LT")),
    *(_comparison(d, "FLOAT", "complex<f32>") for d in ("EQ", "NE")),
    *(
        _case("stablehlo.convert", tuple(e for e in ("f64", "f32", "bf16", "i32", "i8", "i1") if e != to), result=to)
        for to in ("f32", "bf16", "i1", "complex<f32>", "f8E4M3FN", "f8E5M2")
    ),
    _case("stablehlo.convert", ("i32", "i8", "i1"), result="ui8"),
    _case("stablehlo.bitcast_convert", ("f32",), result="i32"),
    Case(
        "bitcast to a narrower type",
        module(
            "tensor<3xf32>",
            "tensor<3x2xi16>",
            "    %0 = stablehlo.bitcast_convert %a0 : (tensor<3xf32>) -> tensor<3x2xi16>\n    return %0 : tensor<3x2xi16>",
        ),
        [np.array([1.5, -0.0, np.nan], np.float32)],
    ),
    Case(
        "select by a scalar",
        module(
            "tensor<i1>; tensor<3xf64>; tensor<3xf64>",
            "tensor<3xf64>",
            """    %0 = stablehlo.select %a0, %a1, %a2 : tensor<i1>, tensor<3xf64>
    return %0 : tensor<3xf64>""",
        ),
        [np.array(True), np.array([1.0, 2.0, 3.0]), np.array([4.0, 5.0, 6.0])],
        moving=(1, 2),
    ),
    Case(
        "accuracy asked for is kept",
        module(
            "tensor<3xf32>",
            "tensor<3xf32>",
            """    %0 = "stablehlo.exponential"(%a0) {result_accuracy = #stablehlo.result_accuracy<
      mode = #stablehlo.result_accuracy_mode<HIGHEST>>} : (tensor<3xf32>) -> tensor<3xf32>
    return %0 : tensor<3xf32>""",
        ),
        [np.array([0.5, -1.0, 2.0], np.float32)],
        relowers=False,  # JAX lowers the default form beside it, which nothing uses
    ),
    Case(
        "optimization barrier",
        module(
            "tensor<3xf32>; tensor<i32>",
            "tensor<3xf32>, tensor<i32>",
            """    %0:2 = stablehlo.optimization_barrier %a0, %a1 : tensor<3xf32>, tensor<i32>
    return %0#0, %0#1 : tensor<3xf32>, tensor<i32>""",
        ),
        [np.array([0.5, -1.0, 2.0], np.float32), np.int32(3)],
    ),
    *(
        Case(
            f"no elements, and no dimensions: {name}",
            module(
                "tensor<0x2xf32>; tensor<f32>",
                "tensor<0x2xf32>, tensor<f32>",
                f"""    %0 = stablehlo.{name} %a0 : tensor<0x2xf32>
    %1 = stablehlo.{name} %a1 : tensor<f32>
    return %0, %1 : tensor<0x2xf32>, tensor<f32>""",
            ),
            [np.zeros((0, 2), np.float32), np.float32(-0.0)],
        )
        for name in ("tanh", "negate")
    ),
]

# Beyond XLA on the CPU, by the values of the specification.
BEYOND = [
    Case(
        "complex maximum",
        module(
            "tensor<3xcomplex<f32>>; tensor<3xcomplex<f32>>",
            "tensor<3xcomplex<f32>>, tensor<3xcomplex<f32>>",
            """    %0 = stablehlo.maximum %a0, %a1 : tensor<3xcomplex<f32>>
    %1 = stablehlo.minimum %a0, %a1 : tensor<3xcomplex<f32>>
    return %0, %1 : tensor<3xcomplex<f32>>, tensor<3xcomplex<f32>>""",
        ),
        [np.array([1 + 2j, 1 + 1j, 0], np.complex64), np.array([1 + 1j, 2, 0], np.complex64)],
        expected=[np.array([1 + 2j, 2, 0], np.complex64), np.array([1 + 1j, 1 + 1j, 0], np.complex64)],
    ),
    Case(
        "bits as booleans",
        module(
            "tensor<2xi8>",
            "tensor<2x8xi1>",
            "    %0 = stablehlo.bitcast_convert %a0 : (tensor<2xi8>) -> tensor<2x8xi1>\n    return %0 : tensor<2x8xi1>",
        ),
        [np.array([5, -1], np.int8)],
        expected=[np.array([[1, 0, 1, 0, 0, 0, 0, 0], [1] * 8], bool)],
    ),
]

_SMOOTH = {
    "exponential": (0.3, -1.2), "log": (0.5, 2.0), "sine": (0.3, 2.0), "cosine": (0.3, 2.0), "tan": (0.3, 1.0),
    "tanh": (0.3, -1.0), "sqrt": (0.5, 2.0), "rsqrt": (0.5, 2.0), "cbrt": (0.5, 2.0), "logistic": (0.3, -2.0),
    "log_plus_one": (0.5, 2.0), "exponential_minus_one": (0.3, -1.0), "abs": (0.5, -2.0), "negate": (1.0, 2.0),
}  # fmt: skip
_SMOOTH_BINARY = ("add", "subtract", "multiply", "divide", "power", "atan2", "maximum", "minimum", "remainder")


def _smooth(name: str, operands: int, values: tuple[float, ...]) -> Case:
    types = "; ".join(["tensor<2xf64>"] * operands)
    names = ", ".join(f"%a{i}" for i in range(operands))
    body = f"    %0 = stablehlo.{name} {names} : tensor<2xf64>\n    return %0 : tensor<2xf64>"
    inputs = [np.array(values) + i for i in range(operands)]
    return Case(name, module(types, "tensor<2xf64>", body), inputs, moving=tuple(range(operands)))


_COMPLEX_SINE = Case(
    "complex sine, cosine and magnitude",
    module(
        "tensor<2xcomplex<f64>>",
        "tensor<2xcomplex<f64>>, tensor<2xcomplex<f64>>, tensor<2xf64>",
        """    %0 = stablehlo.sine %a0 : tensor<2xcomplex<f64>>
    %1 = stablehlo.cosine %a0 : tensor<2xcomplex<f64>>
    %2 = stablehlo.abs %a0 : (tensor<2xcomplex<f64>>) -> tensor<2xf64>
    return %0, %1, %2 : tensor<2xcomplex<f64>>, tensor<2xcomplex<f64>>, tensor<2xf64>""",
    ),
    [np.array([0.3 + 1j, -1.2 + 0.4j])],
)

DERIVATIVES = [
    *(_smooth(name, 1, values) for name, values in _SMOOTH.items()),
    *(_smooth(name, 2, (0.7, 1.9)) for name in _SMOOTH_BINARY),
]


@pytest.mark.parametrize("case", CASES + BEYOND, ids=ids)
def test_value(case):
    check_value(case)


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_relowers(case):
    check_relowers(case)


_REEMITTED = ("EQ TOTALORDER", "power", "select", "logistic", "sine")


@pytest.mark.parametrize("case", [c for c in CASES if any(name in c.name for name in _REEMITTED)], ids=ids)
def test_vmap(case):
    check_vmap(case)


@pytest.mark.parametrize("case", DERIVATIVES, ids=ids)
def test_derivative(case):
    check_derivative(case)


def test_derivative_of_complex_functions():
    """Checked against `lax`, since the check above pairs real directions."""
    with jax.enable_x64(True):
        (z,) = _COMPLEX_SINE.inputs
        program = unlower.load(_COMPLEX_SINE.text)
        got = jax.jvp(program.flat, (z,), (z * 1j,))[1]
        want = jax.jvp(lambda z: (lax.sin(z), lax.cos(z), lax.abs(z)), (z,), (z * 1j,))[1]
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12)
