"""Elementwise operations: each on every element type it takes, at the edges of each type."""

import dataclasses

import jax
import ml_dtypes
import numpy as np
import pytest
from jax.test_util import check_grads
from op_checks import Case, check_derivative, check_relowers, check_value, check_vmap, ids, module, one_operation

import unlower
from unlower.errors import RuleError

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
    # Booleans add and multiply as OR and AND.
    dataclasses.replace(_case(f"stablehlo.{name}", ("i1",), 2), name=f"boolean {name}")
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
    *(
        Case(
            f"{operation} by scalars",
            module(
                f"tensor<{element}>; tensor<4x{element}>; tensor<{element}>",
                f"tensor<4x{element}>",
                f"""    %0 = stablehlo.clamp %a0, %a1, %a2 : (tensor<{element}>, tensor<4x{element}>, tensor<{element}>) ->
      tensor<4x{element}>
    return %0 : tensor<4x{element}>""",
            ),
            [dtype(0), np.array([-1, 0, 2, 3], dtype), dtype(2)],
            # The primitive broadcasts the bounds, as XLA does.
            relowers=False,
        )
        for operation, element, dtype in (("clamp floats", "f32", np.float32), ("clamp integers", "i32", np.int32))
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

# Integers of 2 and 4 bits: every value with every other.
_NARROW = {"i2": ml_dtypes.int2, "ui2": ml_dtypes.uint2, "i4": ml_dtypes.int4, "ui4": ml_dtypes.uint4}
_NARROW_BINARY = ("add", "subtract", "multiply", "maximum", "minimum", "and", "or", "xor", "power", "remainder")
_NARROW_BINARY += ("divide", "shift_left", "shift_right_arithmetic", "shift_right_logical")


def _narrow(element: str) -> Case:
    """A module that applies every op that takes these integers."""
    dtype, low = _NARROW[element], 0 if element.startswith("u") else -(2 ** (int(element[-1]) - 1))
    values = np.arange(low, low + 2 ** int(element[-1]))
    lhs, rhs = (x.reshape(-1).astype(dtype) for x in np.meshgrid(values, values))
    type_ = f"tensor<{lhs.size}x{element}>"
    unary = ("negate", "not", "popcnt", "count_leading_zeros", *(() if low == 0 else ("abs", "sign")))
    lines = [f"    %{name} = stablehlo.{name} %a0 : {type_}" for name in unary]
    lines += [f"    %{name} = stablehlo.{name} %a0, %a1 : {type_}" for name in _NARROW_BINARY]
    names = (*unary, *_NARROW_BINARY)
    lines.append(f"    return {', '.join(f'%{n}' for n in names)} : {', '.join([type_] * len(names))}")
    return Case(element, module(f"{type_}; {type_}", ", ".join([type_] * len(names)), "\n".join(lines)), [lhs, rhs])


CASES += [_narrow(element) for element in _NARROW]

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
]


def test_complex_cube_root():
    type_ = "tensor<4xcomplex<f64>>"
    roots = np.array([1, 1 + 1j, 1 - 0.5j, 2j * np.exp(-1j)])
    program = unlower.load(one_operation(type_, type_, "stablehlo.cbrt"))
    with jax.enable_x64(True):
        np.testing.assert_allclose(program(roots**3), roots, rtol=1e-14)


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


# Those that are re-emitted, and some that are not.
_BATCHED = ("TOTALORDER", "power", "select", "logistic", "sine", "abs", "add", "i1", "i4", "clamp")


@pytest.mark.parametrize("case", [c for c in CASES if any(word in c.name for word in _BATCHED)], ids=ids)
def test_vmap(case):
    check_vmap(case)


@pytest.mark.parametrize("case", DERIVATIVES, ids=ids)
def test_derivative(case):
    check_derivative(case)


@pytest.mark.parametrize("name", ["abs", "sine", "cosine", "logistic"])
def test_derivative_of_complex_functions(name):
    source, target = "tensor<2xcomplex<f64>>", "tensor<2xf64>" if name == "abs" else "tensor<2xcomplex<f64>>"
    program = unlower.load(one_operation(source, target, f"stablehlo.{name}"))
    with jax.enable_x64(True):
        check_grads(program, (np.array([0.3 - 0.7j, -1.2 + 0.4j]),), order=2, modes=("fwd", "rev"), rtol=1e-5)


def test_derivatives_cost_what_jax_asks_for_them():
    program = unlower.load(one_operation("tensor<3xf32>", "tensor<3xf32>", "stablehlo.logistic"))
    x = np.array([-1.0, 0.5, 3.0], np.float32)
    gradient = jax.jit(jax.grad(lambda x: program(x).sum())).lower(x).as_text()
    # The op once, and no exponential beside it: the derivative is made of the result.
    assert gradient.count("stablehlo.logistic") == 1
    assert "exponential" not in gradient


def test_the_magnitude_of_zero_has_derivative_zero():
    program = unlower.load(one_operation("tensor<2xcomplex<f32>>", "tensor<2xf32>", "stablehlo.abs"))
    x = np.array([0, 3 + 4j], np.complex64)
    assert jax.jvp(program, (x,), (np.ones_like(x),))[1].tolist() == [0, np.float32(0.6)]


def test_what_no_rule_can_mean_is_named():
    type_ = "tensor<2xcomplex<f32>>"
    with pytest.raises(RuleError, match="remainder") as caught:
        unlower.load(one_operation(f"{type_}; {type_}", type_, "stablehlo.remainder"))
    assert "stablehlo.remainder" in caught.value.where
