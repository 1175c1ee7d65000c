"""Convolutions."""

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
    module,
    normal,
    one_operation,
)

import unlower
from unlower.errors import RuleError


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
    return one_operation(f"tensor<{lhs}>; tensor<{rhs}>", f"tensor<{result}>", f"{name} {{{written}}}")


_NCHW = "[b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1]"
_ODD = "[1, b, 0, f]x[0, o, i, 1]->[f, 0, 1, b]"
_IMAGE, _KERNEL = normal(2, 3, 6, 7), normal(4, 3, 2, 3)

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
        [normal(7, 2, 6, 3), normal(2, 4, 3, 3)],
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
        [normal(2, 6, 6, 7), _KERNEL],
        moving=(0, 1),
    ),
    Case(
        "convolution with batch groups",
        _conv("4x3x6x7xf64", "4x3x2x3xf64", "2x4x5x5xf64", _NCHW, batch_group_count="2 : i64"),
        [normal(4, 3, 6, 7), _KERNEL],
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
        [normal(7, 2, 6, 3), normal(2, 4, 3, 3)],
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
        [normal(2, 3), normal(4, 3)],
    ),
    Case(
        "convolution i8 to i32",
        _conv("2x3x6x7xi8", "4x3x2x3xi8", "2x4x5x5xi32", _NCHW),
        [integers(2, 3, 6, 7, dtype=np.int8), integers(4, 3, 2, 3, dtype=np.int8)],
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
        [normal(2, 3, 6, 7, dtype=np.complex64), normal(4, 3, 2, 3, dtype=np.complex64)],
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
_SIGNAL, _FILTER = normal(1, 1, 5), normal(1, 1, 2)


@pytest.mark.parametrize("case", _CONVOLUTIONS, ids=ids)
def test_value(case: Case) -> None:
    check_value(case)


@pytest.mark.parametrize("case", _CONVOLUTIONS, ids=ids)
def test_relowers(case: Case) -> None:
    check_relowers(case)


def test_vmap() -> None:
    check_vmap(_CONVOLUTIONS[6])


@pytest.mark.parametrize("case", _CONVOLUTIONS, ids=ids)
def test_vmap_to_rounding(case: Case) -> None:
    check_vmap_to_rounding(case)


@pytest.mark.parametrize("case", [case for case in _CONVOLUTIONS if case.moving], ids=ids)
def test_derivative(case: Case) -> None:
    check_derivative(case)


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


def test_linear_transpose() -> None:
    with jax.enable_x64(True):
        reversed_conv = next(case for case in _CONVOLUTIONS if case.name.endswith("one dimension reversed"))
        program = unlower.load(reversed_conv.text)
        image, kernel = reversed_conv.inputs
        (result,) = program.flat(image, kernel)
        weights = normal(*result.shape)
        (back,) = jax.linear_transpose(lambda x: program.flat(x, kernel)[0], image)(weights)
        np.testing.assert_allclose(np.vdot(weights, result), np.vdot(back, image), rtol=1e-12)
