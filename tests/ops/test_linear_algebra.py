"""Products, convolutions, Fourier transforms, factorizations, triangular systems, batch normalization."""

from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from op_checks import Case, check_derivative, check_relowers, check_value, check_vmap, ids, module

import unlower
from unlower.errors import RuleError

_RNG = np.random.default_rng(0)


def _normal(*shape: int, dtype: Any = np.float64) -> np.ndarray:
    values = _RNG.standard_normal(shape)
    if np.issubdtype(np.dtype(dtype), np.complexfloating):
        values = values + 1j * _RNG.standard_normal(shape)
    return values.astype(dtype)


def _integers(*shape: int, dtype: Any = np.int32) -> np.ndarray:
    return _RNG.integers(0, 9, shape).astype(dtype)


def _one(arguments: str, result: str, operation: str) -> str:
    """A module of one operation in generic form; `%a0`, `%a1`, ... are its operands."""
    count = len([t for t in arguments.split(";") if t.strip()])
    names = ", ".join(f"%a{i}" for i in range(count))
    types = ", ".join(t.strip() for t in arguments.split(";"))
    name, _, attributes = operation.partition(" ")
    return module(
        arguments, result, f'    %0 = "{name}"({names}) {attributes} : ({types}) -> {result}\n    return %0 : {result}'
    )


# --- products

_PLAIN = "precision_config = [#stablehlo<precision DEFAULT>, #stablehlo<precision DEFAULT>]"


def _dot(lhs: str, rhs: str, result: str, numbers: str, more: str = _PLAIN) -> str:
    attributes = f"dot_dimension_numbers = #stablehlo.dot<{numbers}>, {more}".rstrip(", ")
    return _one(f"tensor<{lhs}>; tensor<{rhs}>", f"tensor<{result}>", f"stablehlo.dot_general {{{attributes}}}")


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


_F32 = (_normal(4, 5, dtype=np.float32), _normal(5, 6, dtype=np.float32))
_BF16 = tuple(x.astype(ml_dtypes.bfloat16) for x in _F32)

_PRODUCTS = [
    Case("dot_general", _dot("4x5xf64", "5x6xf64", "4x6xf64", _MATMUL), [_normal(4, 5), _normal(5, 6)], moving=(0, 1)),
    Case(
        "dot_general batched",
        _dot("2x3x4x5xf64", "4x5x6x2xf64", "4x3x6xf64", _BATCHED),
        [_normal(2, 3, 4, 5), _normal(4, 5, 6, 2)],
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
        [_integers(4, 5, dtype=np.int8), _integers(5, 6, dtype=np.int8)],
    ),
    Case("dot_general i32 to i8", _dot("4x5xi32", "5x6xi32", "4x6xi8", _MATMUL), [_integers(4, 5), _integers(5, 6)]),
    Case(
        "dot_general of signs",
        _dot("4x5xi8", "5x6xui8", "4x6xi32", _MATMUL),
        [_integers(4, 5, dtype=np.int8), _integers(5, 6, dtype=np.uint8)],
    ),
    Case("dot_general i1", _dot("4x5xi1", "5x6xi1", "4x6xi1", _MATMUL), [_integers(4, 5) > 4, _integers(5, 6) > 4]),
    Case(
        "dot_general c64",
        _dot("4x5xcomplex<f32>", "5x6xcomplex<f32>", "4x6xcomplex<f32>", _MATMUL),
        [_normal(4, 5, dtype=np.complex64), _normal(5, 6, dtype=np.complex64)],
    ),
    Case("dot_general f32 to f64", _dot("4x5xf32", "5x6xf32", "4x6xf64", _MATMUL), _F32),
    Case("dot_general f32 to bf16", _dot("4x5xf32", "5x6xf32", "4x6xbf16", _MATMUL), _F32),
    Case("dot_general bf16 to f32", _dot("4x5xbf16", "5x6xbf16", "4x6xf32", _MATMUL), _BF16),
    Case("dot_general bf16 by f32", _dot("4x5xbf16", "5x6xf32", "4x6xf32", _MATMUL), [_BF16[0], _F32[1]]),
    Case(
        "dot_general f64 by c128",
        _dot("4x5xf64", "5x6xcomplex<f64>", "4x6xcomplex<f64>", _MATMUL),
        [_normal(4, 5), _normal(5, 6, dtype=np.complex128)],
    ),
    Case(
        "dot_general f32 by f64", _dot("4x5xf32", "5x6xf64", "4x6xf64", _MATMUL), [_F32[0], _normal(5, 6)], moving=(1,)
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
        [_normal(4, 5), _normal(5, 6)],
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
        [_normal(2, 3, 4, 5, dtype=np.float32), _normal(4, 5, 6, 2, dtype=np.float32)],
    ),
    # It comes out as `dot_general`, which XLA takes for the same instruction.
    Case(
        "dot",
        _one("tensor<4x5xf64>; tensor<5xf64>", "tensor<4xf64>", "stablehlo.dot {}"),
        [_normal(4, 5), _normal(5)],
        moving=(0, 1),
        relowers=False,
    ),
    Case(
        "dot bf16 by f32",
        _one("tensor<4x5xbf16>; tensor<5x6xf32>", "tensor<4x6xf32>", "stablehlo.dot {}"),
        [_BF16[0], _F32[1]],
        relowers=False,
    ),
]

# --- convolutions


def _conv(lhs: str, rhs: str, result: str, numbers: str, name: str = "stablehlo.convolution", **changes: str) -> str:
    spatial = sum(part.isdigit() for part in lhs.split("x")) - 2
    ones = f"array<i64: {', '.join(['1'] * spatial)}>"
    attributes = {
        "window_strides": ones,
        "padding": f"dense<0> : tensor<{spatial}x2xi64>",
        "lhs_dilation": ones,
        "rhs_dilation": ones,
        "window_reversal": f"array<i1: {', '.join(['false'] * spatial)}>",
        "dimension_numbers": f"#stablehlo.conv<{numbers}>",
        "batch_group_count": "1 : i64",
        "feature_group_count": "1 : i64",
        "precision_config": "[#stablehlo<precision DEFAULT>, #stablehlo<precision DEFAULT>]",
        **changes,
    }
    written = ", ".join(f"{n} = {value}" for n, value in attributes.items())
    return _one(f"tensor<{lhs}>; tensor<{rhs}>", f"tensor<{result}>", f"{name} {{{written}}}")


_NCHW = "[b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1]"
_ODD = "[1, b, 0, f]x[0, o, i, 1]->[f, 0, 1, b]"
_IMAGE, _KERNEL = _normal(2, 3, 6, 7), _normal(4, 3, 2, 3)

_CONVOLUTIONS = [
    Case(
        "convolution",
        _conv("2x3x6x7xf64", "4x3x2x3xf64", "2x4x5x5xf64", _NCHW),
        [_IMAGE, _KERNEL],
        moving=(0, 1),
        primitive="conv_general_dilated",
    ),
    Case(
        "convolution in odd dimensions",
        _conv("7x2x6x3xf64", "2x4x3x3xf64", "4x5x5x2xf64", _ODD),
        [_normal(7, 2, 6, 3), _normal(2, 4, 3, 3)],
        moving=(0, 1),
    ),
    Case(
        "convolution strided, padded and dilated",
        _conv(
            "2x3x6x7xf64",
            "4x3x2x3xf64",
            "2x4x5x5xf64",
            _NCHW,
            window_strides="array<i64: 2, 1>",
            padding="dense<[[1, -1], [-2, 0]]> : tensor<2x2xi64>",
            lhs_dilation="array<i64: 2, 2>",
            rhs_dilation="array<i64: 2, 3>",
        ),
        [_IMAGE, _KERNEL],
        moving=(0, 1),
    ),
    Case(
        "convolution padded by less than nothing",
        _conv(
            "2x3x6x7xf32", "4x3x2x3xf32", "2x4x0x5xf32", _NCHW, padding="dense<[[-4, -4], [0, 0]]> : tensor<2x2xi64>"
        ),
        [_IMAGE.astype("f"), _KERNEL.astype("f")],
    ),
    Case(
        "convolution with feature groups",
        _conv("2x6x6x7xf64", "4x3x2x3xf64", "2x4x5x5xf64", _NCHW, feature_group_count="2 : i64"),
        [_normal(2, 6, 6, 7), _KERNEL],
        moving=(0, 1),
    ),
    Case(
        "convolution with batch groups",
        _conv("4x3x6x7xf64", "4x3x2x3xf64", "2x4x5x5xf64", _NCHW, batch_group_count="2 : i64"),
        [_normal(4, 3, 6, 7), _KERNEL],
        moving=(0, 1),
    ),
    Case(
        "convolution with one dimension reversed",
        _conv("2x3x6x7xf64", "4x3x2x3xf64", "2x4x5x5xf64", _NCHW, window_reversal="array<i1: false, true>"),
        [_IMAGE, _KERNEL],
        moving=(0, 1),
        primitive="reemit",
    ),
    Case(
        "convolution reversed in odd dimensions",
        _conv("7x2x6x3xf64", "2x4x3x3xf64", "4x5x5x2xf64", _ODD, window_reversal="array<i1: true, true>"),
        [_normal(7, 2, 6, 3), _normal(2, 4, 3, 3)],
        moving=(0, 1),
    ),
    Case(
        "convolution of no spatial dimension",
        _conv(
            "2x3xf64",
            "4x3xf64",
            "2x4xf64",
            "[b, f]x[o, i]->[b, f]",
            padding="dense<> : tensor<0x2xi64>",
            window_strides="array<i64>",
            lhs_dilation="array<i64>",
            rhs_dilation="array<i64>",
            window_reversal="array<i1>",
        ),
        [_normal(2, 3), _normal(4, 3)],
    ),
    Case(
        "convolution i8 to i32",
        _conv("2x3x6x7xi8", "4x3x2x3xi8", "2x4x5x5xi32", _NCHW),
        [_integers(2, 3, 6, 7, dtype=np.int8), _integers(4, 3, 2, 3, dtype=np.int8)],
    ),
    Case(
        "convolution bf16 to f32",
        _conv("2x3x6x7xbf16", "4x3x2x3xbf16", "2x4x5x5xf32", _NCHW),
        [_IMAGE.astype(ml_dtypes.bfloat16), _KERNEL.astype(ml_dtypes.bfloat16)],
    ),
    Case(
        "convolution f32 to bf16",
        _conv("2x3x6x7xf32", "4x3x2x3xf32", "2x4x5x5xbf16", _NCHW),
        [_IMAGE.astype("f"), _KERNEL.astype("f")],
    ),
    Case(
        "convolution c64",
        _conv("2x3x6x7xcomplex<f32>", "4x3x2x3xcomplex<f32>", "2x4x5x5xcomplex<f32>", _NCHW),
        [_normal(2, 3, 6, 7, dtype=np.complex64), _normal(4, 3, 2, 3, dtype=np.complex64)],
    ),
]

_DYNAMIC_CONV = module(
    "tensor<1x1x5xf64>; tensor<1x1x2xf64>",
    "tensor<1x1x3xf64>",
    """    %p = stablehlo.constant dense<[[1, -2]]> : tensor<1x2xi64>
    %0 = "stablehlo.dynamic_conv"(%a0, %a1, %p) {
      batch_group_count = 1 : i64, feature_group_count = 1 : i64, dimension_numbers = #stablehlo.conv<[b, f, 0]x[o, i, 0]->[b, f, 0]>
    } : (tensor<1x1x5xf64>, tensor<1x1x2xf64>, tensor<1x2xi64>) -> tensor<1x1x3xf64>
    return %0 : tensor<1x1x3xf64>""",
)
_SIGNAL, _FILTER = _normal(1, 1, 5), _normal(1, 1, 2)

# --- groups of rows, columns or batches


def _ragged(
    lhs: str, rhs: str, groups: str, result: str, numbers: str, ragged: int, group: str, name: str = "chlo"
) -> str:
    return _one(
        f"tensor<{lhs}xf64>; tensor<{rhs}xf64>; tensor<{groups}xi32>",
        f"tensor<{result}xf64>",
        f"{name}.ragged_dot {{ragged_dot_dimension_numbers = #{name}.ragged_dot<{numbers}, lhs_ragged_dimensions = [{ragged}]"
        f"{group}>, precision_config = [#{name}<precision DEFAULT>, #{name}<precision DEFAULT>]}}",
    )


_ROWS, _TABLE = _normal(5, 3), _normal(2, 3, 4)
_TALL, _WIDE = _normal(3, 5), _normal(5, 4)
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
        [_normal(5, 3, 2), _normal(5, 2, 4), _SIZES],
        moving=(0, 1),
        relowers=False,
    ),
]

# --- Fourier transforms


def _fft(operand: str, result: str, kind: str, lengths: str) -> str:
    return _one(
        f"tensor<{operand}>",
        f"tensor<{result}>",
        f"stablehlo.fft {{fft_type = #stablehlo<fft_type {kind}>, fft_length = array<i64: {lengths}>}}",
    )


_FFTS = [
    Case("fft", _fft("2x6xcomplex<f64>", "2x6xcomplex<f64>", "FFT", "6"), [_normal(2, 6, dtype=np.complex128)]),
    Case(
        "ifft in two dimensions",
        _fft("3x4x6xcomplex<f32>", "3x4x6xcomplex<f32>", "IFFT", "4, 6"),
        [_normal(3, 4, 6, dtype=np.complex64)],
    ),
    Case("rfft", _fft("2x7xf64", "2x4xcomplex<f64>", "RFFT", "7"), [_normal(2, 7)]),
    Case(
        "rfft in three dimensions",
        _fft("2x3x4x5xf32", "2x3x4x3xcomplex<f32>", "RFFT", "3, 4, 5"),
        [_normal(2, 3, 4, 5, dtype=np.float32)],
    ),
    Case(
        "irfft to an odd length",
        _fft("2x4xcomplex<f64>", "2x7xf64", "IRFFT", "7"),
        [_normal(2, 4, dtype=np.complex128)],
    ),
]

# --- factorizations


def _cholesky(shape: str, lower: bool) -> str:
    return _one(
        f"tensor<{shape}>",
        f"tensor<{shape}>",
        "stablehlo.cholesky {lower = true}" if lower else "stablehlo.cholesky {}",
    )


def _positive(*shape: int, dtype: Any = np.float64) -> np.ndarray:
    x = _normal(*shape, dtype=dtype)
    return (x @ np.conj(np.swapaxes(x, -1, -2)) + 4 * np.eye(shape[-1])).astype(dtype)


def _solve(a: str, b: str, left: bool, lower: bool, unit: bool, transpose: str) -> str:
    flags = ", ".join(
        f"{n} = {str(v).lower()}" for n, v in (("left_side", left), ("lower", lower), ("unit_diagonal", unit))
    )
    return _one(
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
            [_MATRIX, _normal(4, 2) if left else _normal(2, 4)],
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
        [_positive(2, 3, 3, dtype=np.complex128), _normal(2, 3, 2, dtype=np.complex128)],
    ),
]

# --- batch normalization

_DATA, _SCALE, _OFFSET = _normal(4, 3, 5), _normal(3), _normal(3)
_MEAN, _VARIANCE = _normal(3), np.abs(_normal(3)) + 0.5
_STATISTICS = "{epsilon = 1.0e-3 : f32, feature_index = 1 : i64}"


def _normalize(kind: str, arguments: str, results: str) -> str:
    count = len(arguments.split(";"))
    names, types = ", ".join(f"%a{i}" for i in range(count)), arguments.replace(";", ",")
    made = results.split(",")
    out = f"%0:{len(made)}" if len(made) > 1 else "%0"
    returned = ", ".join(f"%0#{i}" for i in range(len(made))) if len(made) > 1 else "%0"
    return module(
        arguments,
        results,
        f'    {out} = "stablehlo.batch_norm_{kind}"({names}) {_STATISTICS} : ({types}) -> ({results})\n    return {returned} : {results}',
    )


_ARRAY, _VECTOR = "tensor<4x3x5xf64>", "tensor<3xf64>"
_NORMALIZATIONS = [
    Case(
        "batch_norm_training",
        _normalize("training", f"{_ARRAY}; {_VECTOR}; {_VECTOR}", f"{_ARRAY}, {_VECTOR}, {_VECTOR}"),
        [_DATA, _SCALE, _OFFSET],
        moving=(0, 1, 2),
    ),
    Case(
        "batch_norm_inference",
        _normalize("inference", "; ".join([_ARRAY] + [_VECTOR] * 4), _ARRAY),
        [_DATA, _SCALE, _OFFSET, _MEAN, _VARIANCE],
        moving=(0, 1, 2, 3, 4),
    ),
    Case(
        "batch_norm_grad",
        _normalize("grad", f"{_ARRAY}; {_VECTOR}; {_VECTOR}; {_VECTOR}; {_ARRAY}", f"{_ARRAY}, {_VECTOR}, {_VECTOR}"),
        [_DATA, _SCALE, _MEAN, _VARIANCE, _normal(4, 3, 5)],
        moving=(0, 1, 2, 3, 4),
    ),
]

_CASES = [*_PRODUCTS, *_CONVOLUTIONS, *_FFTS, *_FACTORIZATIONS, *_NORMALIZATIONS]


@pytest.mark.parametrize("case", _CASES, ids=ids)
def test_value(case: Case) -> None:
    check_value(case)


@pytest.mark.parametrize("case", _CASES, ids=ids)
def test_relowers(case: Case) -> None:
    check_relowers(case)


@pytest.mark.parametrize("case", [*_FACTORIZATIONS[:4], *_NORMALIZATIONS, _CONVOLUTIONS[6]], ids=ids)
def test_vmap(case: Case) -> None:
    check_vmap(case)


@pytest.mark.parametrize("case", [*_PRODUCTS, *_CONVOLUTIONS, *_FACTORIZATIONS[4:]], ids=ids)
def test_vmap_to_rounding(case: Case) -> None:
    """XLA chooses other kernels for larger products, so the last bits may differ."""
    with jax.enable_x64(True):
        program = unlower.load(case.text)
        inputs = [np.asarray(x) for x in case.inputs]
        alone = [np.asarray(program.flat(*[np.roll(x, k) for x in inputs])[0]) for k in range(2)]
        stacked = [np.stack([np.roll(x, k) for k in range(2)], 1) for x in inputs]
        (together,) = jax.jit(jax.vmap(program.flat, in_axes=1))(*stacked)
        (first,) = jax.jit(jax.vmap(program.flat, in_axes=(1, None)))(stacked[0], inputs[1])
        (second,) = jax.jit(jax.vmap(program.flat, in_axes=(None, 1)))(inputs[0], stacked[1])
    wide: Any = np.complex128 if np.iscomplexobj(alone[0]) else np.float64
    close = {"bfloat16": 1e-2, "float64": 1e-12, "complex128": 1e-12}.get(alone[0].dtype.name, 1e-5)
    for k, expected in enumerate(alone):
        np.testing.assert_allclose(np.asarray(together)[k].astype(wide), expected.astype(wide), rtol=close, atol=close)
    np.testing.assert_allclose(np.asarray(first)[0].astype(wide), alone[0].astype(wide), rtol=close, atol=close)
    np.testing.assert_allclose(np.asarray(second)[0].astype(wide), alone[0].astype(wide), rtol=close, atol=close)


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


def test_dynamic_conv_takes_its_padding_from_an_operand() -> None:
    padded = np.pad(_SIGNAL[0, 0], (1, 0))[:4]
    expected = [padded[i] * _FILTER[0, 0, 0] + padded[i + 1] * _FILTER[0, 0, 1] for i in range(3)]
    case = Case("dynamic_conv", _DYNAMIC_CONV, [_SIGNAL, _FILTER], moving=(0, 1))
    with jax.enable_x64(True):
        np.testing.assert_allclose(unlower.load(_DYNAMIC_CONV).flat(_SIGNAL, _FILTER)[0][0, 0], expected, rtol=1e-14)
    check_derivative(case)


def test_dynamic_conv_refuses_padding_that_depends_on_data() -> None:
    text = _DYNAMIC_CONV.replace("%a1: tensor<1x1x2xf64>", "%a1: tensor<1x1x2xf64>, %p: tensor<1x2xi64>")
    text = text.replace("    %p = stablehlo.constant dense<[[1, -2]]> : tensor<1x2xi64>\n", "")
    with jax.enable_x64(True), pytest.raises(RuleError, match="depends on the data"):
        unlower.load(text).flat(_SIGNAL, _FILTER, np.array([[1, -2]]))


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
        weights = _normal(2, 3, 3, dtype=dtype)
        (cotangent,) = jax.jit(lambda: jax.vjp(factor, a)[1](weights))()
    forward, backward = np.sum(weights * np.asarray(tangent)), np.sum(np.asarray(cotangent) * direction)
    np.testing.assert_allclose(forward.real, backward.real, rtol=1e-9)


def test_linear_transpose() -> None:
    with jax.enable_x64(True):
        reversed_conv = next(case for case in _CONVOLUTIONS if case.name.endswith("one dimension reversed"))
        program = unlower.load(reversed_conv.text)
        image, kernel = reversed_conv.inputs
        (result,) = program.flat(image, kernel)
        weights = _normal(*result.shape)
        (back,) = jax.linear_transpose(lambda x: program.flat(x, kernel)[0], image)(weights)
        np.testing.assert_allclose(np.vdot(weights, result), np.vdot(back, image), rtol=1e-12)
        solve = unlower.load(_solve("4x4xf64", "4x2xf64", True, True, False, "NO_TRANSPOSE"))
        b = _normal(4, 2)
        (x,) = solve.flat(_MATRIX, b)
        (back,) = jax.linear_transpose(lambda b: solve.flat(_MATRIX, b)[0], b)(x)
        np.testing.assert_allclose(np.vdot(x, x), np.vdot(back, b), rtol=1e-12)
