"""Products, Fourier transforms, factorizations, triangular systems."""

from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from op_checks import (
    Case,
    check_derivative,
    check_relowers,
    check_value,
    check_vmap,
    check_vmap_to_rounding,
    ids,
    integers,
    normal,
    one_operation,
)

import unlower

# --- products

_PLAIN = "precision_config = [#stablehlo<precision DEFAULT>, #stablehlo<precision DEFAULT>]"


def _dot(lhs: str, rhs: str, result: str, numbers: str, more: str = _PLAIN) -> str:
    attributes = f"dot_dimension_numbers = #stablehlo.dot<{numbers}>, {more}".rstrip(", ")
    return one_operation(
        f"tensor<{lhs}>; tensor<{rhs}>", f"tensor<{result}>", f"stablehlo.dot_general {{{attributes}}}"
    )


_MATMUL = "lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [0]"
_BATCHED = (
    "lhs_batching_dimensions = [2], rhs_batching_dimensions = [0], "
    "lhs_contracting_dimensions = [0, 3], rhs_contracting_dimensions = [3, 1]"
)
_HIGH = "precision_config = [#stablehlo<precision HIGHEST>, #stablehlo<precision HIGH>]"


def _algorithm(lhs: str, rhs: str, accumulation: str, operations: int = 1) -> str:
    return (
        f"{_PLAIN}, algorithm = #stablehlo.dot_algorithm<lhs_precision_type = {lhs}, rhs_precision_type = {rhs}, "
        f"accumulation_type = {accumulation}, lhs_component_count = 1, rhs_component_count = 1, "
        f"num_primitive_operations = {operations}, allow_imprecise_accumulation = false>"
    )


_F32 = (normal(4, 5, dtype=np.float32), normal(5, 6, dtype=np.float32))
_BF16 = tuple(x.astype(ml_dtypes.bfloat16) for x in _F32)

_PRODUCTS = [
    Case("dot_general", _dot("4x5xf64", "5x6xf64", "4x6xf64", _MATMUL), [normal(4, 5), normal(5, 6)], moving=(0, 1)),
    Case(
        "dot_general batched",
        _dot("2x3x4x5xf64", "4x5x6x2xf64", "4x3x6xf64", _BATCHED),
        [normal(2, 3, 4, 5), normal(4, 5, 6, 2)],
        moving=(0, 1),
        primitive="dot_general",
    ),
    Case("dot_general outer", _dot("3xf32", "4xf32", "3x4xf32", ""), [_F32[0][0, :3], _F32[0][:, 0]]),
    Case(
        "dot_general of nothing",
        _dot("3x0xf32", "0x4xf32", "3x4xf32", _MATMUL),
        [np.zeros((3, 0), "f"), np.zeros((0, 4), "f")],
    ),
    Case("dot_general precision", _dot("4x5xf32", "5x6xf32", "4x6xf32", _MATMUL, _HIGH), _F32),
    Case(
        "dot_general i8 to i32",
        _dot("4x5xi8", "5x6xi8", "4x6xi32", _MATMUL),
        [integers(4, 5, dtype=np.int8), integers(5, 6, dtype=np.int8)],
    ),
    Case("dot_general i32 to i8", _dot("4x5xi32", "5x6xi32", "4x6xi8", _MATMUL), [integers(4, 5), integers(5, 6)]),
    Case(
        "dot_general of signs",
        _dot("4x5xi8", "5x6xui8", "4x6xi32", _MATMUL),
        [integers(4, 5, dtype=np.int8), integers(5, 6, dtype=np.uint8)],
    ),
    Case("dot_general i1", _dot("4x5xi1", "5x6xi1", "4x6xi1", _MATMUL), [integers(4, 5) > 4, integers(5, 6) > 4]),
    Case(
        "dot_general c64",
        _dot("4x5xcomplex<f32>", "5x6xcomplex<f32>", "4x6xcomplex<f32>", _MATMUL),
        [normal(4, 5, dtype=np.complex64), normal(5, 6, dtype=np.complex64)],
    ),
    Case("dot_general f32 to f64", _dot("4x5xf32", "5x6xf32", "4x6xf64", _MATMUL), _F32),
    Case("dot_general f32 to bf16", _dot("4x5xf32", "5x6xf32", "4x6xbf16", _MATMUL), _F32),
    Case("dot_general bf16 to f32", _dot("4x5xbf16", "5x6xbf16", "4x6xf32", _MATMUL), _BF16),
    Case("dot_general bf16 by f32", _dot("4x5xbf16", "5x6xf32", "4x6xf32", _MATMUL), [_BF16[0], _F32[1]]),
    Case(
        "dot_general f64 by c128",
        _dot("4x5xf64", "5x6xcomplex<f64>", "4x6xcomplex<f64>", _MATMUL),
        [normal(4, 5), normal(5, 6, dtype=np.complex128)],
    ),
    Case(
        "dot_general f32 by f64", _dot("4x5xf32", "5x6xf64", "4x6xf64", _MATMUL), [_F32[0], normal(5, 6)], moving=(1,)
    ),
    Case(
        "dot_general of two f8",
        _dot("4x5xf8E5M2", "5x6xf8E4M3FN", "4x6xf32", _MATMUL),
        [_F32[0].astype(ml_dtypes.float8_e5m2), _F32[1].astype(ml_dtypes.float8_e4m3fn)],
    ),
    Case(
        "dot_general algorithm that JAX knows",
        _dot("4x5xf32", "5x6xf32", "4x6xf32", _MATMUL, _algorithm("bf16", "bf16", "f32", 3)),
        _F32,
        primitive="dot_general",
    ),
    Case(
        "dot_general algorithm of f64",
        _dot("4x5xf64", "5x6xf64", "4x6xf64", _MATMUL, _algorithm("f64", "f64", "f64")),
        [normal(4, 5), normal(5, 6)],
        moving=(0, 1),
        primitive="dot_general",
    ),
    Case(
        "dot_general algorithm that JAX refuses",
        _dot("4x5xf32", "5x6xf32", "4x6xf32", _MATMUL, _algorithm("tf32", "tf32", "f32")),
        _F32,
        primitive="reemit",
    ),
    Case(
        "dot_general algorithm, batched",
        _dot("2x3x4x5xf32", "4x5x6x2xf32", "4x3x6xf32", _BATCHED, _algorithm("tf32", "tf32", "f32", 3)),
        [normal(2, 3, 4, 5, dtype=np.float32), normal(4, 5, 6, 2, dtype=np.float32)],
    ),
    # It comes out as `dot_general`, which XLA takes for the same instruction.
    Case(
        "dot",
        one_operation("tensor<4x5xf64>; tensor<5xf64>", "tensor<4xf64>", "stablehlo.dot {}"),
        [normal(4, 5), normal(5)],
        moving=(0, 1),
        relowers=False,
    ),
    Case(
        "dot bf16 by f32",
        one_operation("tensor<4x5xbf16>; tensor<5x6xf32>", "tensor<4x6xf32>", "stablehlo.dot {}"),
        [_BF16[0], _F32[1]],
        relowers=False,
    ),
]

# --- groups of rows, columns or batches


def _ragged(
    lhs: str, rhs: str, groups: str, result: str, numbers: str, ragged: int, group: str, name: str = "chlo"
) -> str:
    return one_operation(
        f"tensor<{lhs}xf64>; tensor<{rhs}xf64>; tensor<{groups}xi32>",
        f"tensor<{result}xf64>",
        f"{name}.ragged_dot {{ragged_dot_dimension_numbers = #{name}.ragged_dot<{numbers}, lhs_ragged_dimensions = [{ragged}]"
        f"{group}>, precision_config = [#{name}<precision DEFAULT>, #{name}<precision DEFAULT>]}}",
    )


_ROWS, _TABLE = normal(5, 3), normal(2, 3, 4)
_TALL, _WIDE = normal(3, 5), normal(5, 4)
_SIZES = np.array([2, 3], np.int32)
_RAGGED = [
    Case(
        "ragged_dot of rows",
        _ragged(
            "5x3",
            "2x3x4",
            "2",
            "5x4",
            "lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [1]",
            0,
            ", rhs_group_dimensions = [0]",
        ),
        [_ROWS, _TABLE, _SIZES],
        moving=(0, 1),
        relowers=False,
        expected=[np.concatenate([_ROWS[:2] @ _TABLE[0], _ROWS[2:] @ _TABLE[1]])],
    ),
    Case(
        "ragged_dot of columns",
        _ragged(
            "3x5", "5x4", "2", "2x3x4", "lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [0]", 1, ""
        ),
        [_TALL, _WIDE, _SIZES],
        moving=(0, 1),
        relowers=False,
        expected=[np.stack([_TALL[:, :2] @ _WIDE[:2], _TALL[:, 2:] @ _WIDE[2:]])],
    ),
    Case(
        "ragged_dot of batches",
        _ragged(
            "5x3x2",
            "5x2x4",
            "2",
            "5x3x4",
            "lhs_batching_dimensions = [0], rhs_batching_dimensions = [0], lhs_contracting_dimensions = [2], rhs_contracting_dimensions = [1]",
            0,
            "",
        ),
        [normal(5, 3, 2), normal(5, 2, 4), _SIZES],
        moving=(0, 1),
        relowers=False,
    ),
]

# --- Fourier transforms


def _fft(operand: str, result: str, kind: str, lengths: str) -> str:
    return one_operation(
        f"tensor<{operand}>",
        f"tensor<{result}>",
        f"stablehlo.fft {{fft_type = #stablehlo<fft_type {kind}>, fft_length = array<i64: {lengths}>}}",
    )


_FFTS = [
    Case("fft", _fft("2x6xcomplex<f64>", "2x6xcomplex<f64>", "FFT", "6"), [normal(2, 6, dtype=np.complex128)]),
    Case(
        "ifft in two dimensions",
        _fft("3x4x6xcomplex<f32>", "3x4x6xcomplex<f32>", "IFFT", "4, 6"),
        [normal(3, 4, 6, dtype=np.complex64)],
    ),
    Case("rfft", _fft("2x7xf64", "2x4xcomplex<f64>", "RFFT", "7"), [normal(2, 7)]),
    Case(
        "rfft in three dimensions",
        _fft("2x3x4x5xf32", "2x3x4x3xcomplex<f32>", "RFFT", "3, 4, 5"),
        [normal(2, 3, 4, 5, dtype=np.float32)],
    ),
    Case(
        "irfft to an odd length",
        _fft("2x4xcomplex<f64>", "2x7xf64", "IRFFT", "7"),
        [normal(2, 4, dtype=np.complex128)],
    ),
]

# --- factorizations


def _cholesky(shape: str, lower: bool) -> str:
    return one_operation(
        f"tensor<{shape}>",
        f"tensor<{shape}>",
        "stablehlo.cholesky {lower = true}" if lower else "stablehlo.cholesky {}",
    )


def _positive(*shape: int, dtype: Any = np.float64) -> np.ndarray:
    x = normal(*shape, dtype=dtype)
    return (x @ np.conj(np.swapaxes(x, -1, -2)) + 4 * np.eye(shape[-1])).astype(dtype)


def _solve(a: str, b: str, left: bool, lower: bool, unit: bool, transpose: str) -> str:
    flags = ", ".join(
        f"{n} = {str(v).lower()}" for n, v in (("left_side", left), ("lower", lower), ("unit_diagonal", unit))
    )
    return one_operation(
        f"tensor<{a}>; tensor<{b}>",
        f"tensor<{b}>",
        f"stablehlo.triangular_solve {{{flags}, transpose_a = #stablehlo<transpose {transpose}>}}",
    )


_MATRIX = _positive(4, 4)
_FACTORIZATIONS = [
    Case("cholesky lower", _cholesky("4x4xf32", True), [_positive(4, 4, dtype=np.float32)]),
    Case("cholesky upper", _cholesky("2x3x3xf64", False), [_positive(2, 3, 3)]),
    Case("cholesky c128", _cholesky("3x3xcomplex<f64>", True), [_positive(3, 3, dtype=np.complex128)]),
    Case("cholesky of no matrix", _cholesky("0x3x3xf32", True), [np.zeros((0, 3, 3), "f")]),
    *[
        Case(
            f"triangular_solve left={left} lower={lower} unit={unit} {transpose}",
            _solve("4x4xf64", "4x2xf64" if left else "2x4xf64", left, lower, unit, transpose),
            [_MATRIX, normal(4, 2) if left else normal(2, 4)],
            moving=(0, 1),
        )
        for left, lower, unit, transpose in [
            (True, True, False, "NO_TRANSPOSE"),
            (True, False, True, "TRANSPOSE"),
            (False, True, True, "NO_TRANSPOSE"),
            (False, False, False, "ADJOINT"),
        ]
    ],
    Case(
        "triangular_solve c128, batched",
        _solve("2x3x3xcomplex<f64>", "2x3x2xcomplex<f64>", True, True, False, "ADJOINT"),
        [_positive(2, 3, 3, dtype=np.complex128), normal(2, 3, 2, dtype=np.complex128)],
    ),
]

_CASES = [*_PRODUCTS, *_FFTS, *_FACTORIZATIONS]


@pytest.mark.parametrize("case", _CASES, ids=ids)
def test_value(case: Case) -> None:
    check_value(case)


@pytest.mark.parametrize("case", _CASES, ids=ids)
def test_relowers(case: Case) -> None:
    check_relowers(case)


@pytest.mark.parametrize("case", _FACTORIZATIONS[:4], ids=ids)
def test_vmap(case: Case) -> None:
    check_vmap(case)


@pytest.mark.parametrize("case", [*_PRODUCTS, *_FACTORIZATIONS[4:]], ids=ids)
def test_vmap_to_rounding(case: Case) -> None:
    check_vmap_to_rounding(case)


@pytest.mark.parametrize("case", [case for case in _CASES if case.moving], ids=ids)
def test_derivative(case: Case) -> None:
    check_derivative(case)


@pytest.mark.parametrize("case", _RAGGED, ids=ids)
def test_ragged_dot(case: Case) -> None:
    """XLA does not run it on the CPU, so the values are NumPy's, to rounding; the mode of batches is a plain product."""
    with jax.enable_x64(True):
        program = unlower.load(case.text)
        actual = np.asarray(program.flat(*case.inputs)[0])
        expected = np.matmul(*case.inputs[:2]) if case.expected is None else case.expected[0]
        np.testing.assert_allclose(actual, expected, rtol=1e-12)
    check_derivative(case)


def test_ragged_dot_of_mhlo_is_that_of_chlo() -> None:
    numbers = "dot_dimension_numbers = #mhlo.dot<lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [1]>"
    text = _ragged("5x3", "2x3x4", "2", "5x4", numbers, 0, ", rhs_group_dimensions = [0]", name="mhlo")
    with jax.enable_x64(True):
        actual = unlower.load(text).flat(_ROWS, _TABLE, _SIZES)[0]
    np.testing.assert_allclose(actual, _RAGGED[0].expected[0], rtol=1e-12)  # pyright: ignore[reportOptionalSubscript]


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_derivative_of_cholesky(lower: bool, dtype: type) -> None:
    """Along Hermitian directions, since one triangle stands for both."""
    element = "f64" if dtype is np.float64 else "complex<f64>"
    a, direction = _positive(2, 3, 3, dtype=dtype), _positive(2, 3, 3, dtype=dtype)
    with jax.enable_x64(True):
        program = unlower.load(_cholesky(f"2x3x3x{element}", lower))

        def factor(a: Any) -> jax.Array:
            return program.flat(a)[0]

        tangent = jax.jit(lambda: jax.jvp(factor, (a,), (direction,))[1])()
        step = 1e-6
        difference = (factor(a + step * direction) - factor(a - step * direction)) / (2 * step)
        kept = np.tril(difference) if lower else np.triu(difference)
        np.testing.assert_allclose(tangent, kept, rtol=1e-6, atol=1e-8)
        weights = normal(2, 3, 3, dtype=dtype)
        (cotangent,) = jax.jit(lambda: jax.vjp(factor, a)[1](weights))()
    forward, backward = np.sum(weights * np.asarray(tangent)), np.sum(np.asarray(cotangent) * direction)
    np.testing.assert_allclose(forward.real, backward.real, rtol=1e-9)


def test_linear_transpose() -> None:
    with jax.enable_x64(True):
        solve = unlower.load(_solve("4x4xf64", "4x2xf64", True, True, False, "NO_TRANSPOSE"))
        b = normal(4, 2)
        (x,) = solve.flat(_MATRIX, b)
        (back,) = jax.linear_transpose(lambda b: solve.flat(_MATRIX, b)[0], b)(x)
        np.testing.assert_allclose(np.vdot(x, x), np.vdot(back, b), rtol=1e-12)
