"""The same bits as another type: against XLA where it goes along, and against the bits themselves everywhere."""

import jax
import ml_dtypes
import numpy as np
import pytest
from op_checks import Case, assert_same_bits, check_relowers, check_value, check_vmap, ids, module, one_operation

import unlower
from unlower.ir.types import DTYPES

_NARROW = {"i1": 1, "i2": 2, "ui2": 2, "i4": 4, "ui4": 4, "f4E2M1FN": 4}


def _width(element):
    return _NARROW.get(element) or DTYPES[element].itemsize * 8


def _to_bits(array, element):
    rows = np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(array.size, DTYPES[element].itemsize)
    return np.unpackbits(rows, axis=1, bitorder="little")[:, : _width(element)].reshape(-1)


def _from_bits(bits, element, shape):
    dtype, width = DTYPES[element], _width(element)
    rows = bits.reshape(-1, width)
    if width >= 8:
        return np.packbits(rows, axis=1, bitorder="little").reshape(-1).view(dtype).reshape(shape)
    values = (rows.astype(int) << np.arange(width)).sum(1)
    if element.startswith("f"):
        return values.astype(np.uint8).view(dtype).reshape(shape)
    if element.startswith("i") and width > 1:
        values = np.where(values >= 2 ** (width - 1), values - 2**width, values)
    return values.astype(dtype).reshape(shape)


def _random(element, shape):
    bits = np.random.default_rng(1).integers(0, 2, int(np.prod(shape)) * _width(element))
    return _from_bits(bits.astype(np.uint8), element, shape)


def _convert(source, target):
    (shape, element), (new_shape, new) = map(_parse, (source, target))
    text = one_operation(f"tensor<{source}>", f"tensor<{target}>", "stablehlo.bitcast_convert")
    x = _random(element, shape)
    return Case(f"{source} to {target}", text, [x], expected=[_from_bits(_to_bits(x, element), new, new_shape)])


def _parse(type_):
    *sizes, element = (
        type_.split("x") if not type_.endswith(">") else [*type_.partition("complex")[0].split("x")[:-1], ""]
    )
    element = element or f"complex{type_.partition('complex')[2]}"
    return tuple(map(int, sizes)), element


XLA = [
    _convert(*pair)
    for pair in [
        ("4xf32", "4xi32"),
        ("4xbf16", "4xf16"),
        ("2x3xf32", "2x3xf32"),
        ("4xf32", "4x4xui8"),
        ("4x4xui8", "4xf32"),
        ("3xf64", "3x2xf32"),
        ("3x2xf32", "3xf64"),
        ("2xf16", "2x2xf8E5M2"),
        ("3xi8", "3x2xi4"),
        ("3x2xui4", "3xui8"),
        ("2x4xi4", "2xf16"),
        ("3xi8", "3x4xui2"),
        ("3x2xui2", "3xi4"),
        ("4xf4E2M1FN", "4xui4"),
        ("3xcomplex<f32>", "3xcomplex<f32>"),
        ("4xi1", "4xi1"),
    ]
]
# XLA aborts on these, or takes a boolean to have eight bits.
SPECIFICATION = [
    _convert(*pair)
    for pair in [
        ("2x8xi1", "2xi8"),
        ("3xi8", "3x8xi1"),
        ("32xi1", "f32"),
        ("2xi4", "2x4xi1"),
        ("2x2xi1", "2xui2"),
        ("3xcomplex<f64>", "3x2xcomplex<f32>"),
        ("3x2xcomplex<f32>", "3xcomplex<f64>"),
    ]
]


@pytest.mark.parametrize("case", XLA, ids=ids)
def test_as_xla_does(case):
    check_value(case)
    check_value(Case(case.name, case.text, case.inputs))
    check_relowers(case)


@pytest.mark.parametrize("case", SPECIFICATION, ids=ids)
def test_as_the_specification_says(case):
    check_value(case)


@pytest.mark.parametrize("case", [XLA[3], XLA[4], XLA[8], *SPECIFICATION], ids=ids)
def test_vmap(case):
    check_vmap(case)


def test_a_buffer_of_nothing():
    check_value(
        Case(
            "nothing",
            one_operation("tensor<0xf32>", "tensor<0x4xui8>", "stablehlo.bitcast_convert"),
            [np.zeros(0, np.float32)],
        )
    )


# --- mhlo.bitcast reads a buffer


def _buffer(array, layout):
    """The elements in the order in which they lie; a layout names dimensions from minor to major."""
    return np.transpose(array, layout[::-1]).reshape(-1)


def _bitcast(source, target, source_layout=None, result_layout=None):
    (shape, element), (new_shape, new) = map(_parse, (source, target))
    layouts = {"source_layout": source_layout, "result_layout": result_layout}
    spelled = [
        f"{name} = dense<{list(layout)}> : tensor<{len(layout)}xindex>" for name, layout in layouts.items() if layout
    ]
    text = one_operation(f"tensor<{source}>", f"tensor<{target}>", f"mhlo.bitcast {{{', '.join(spelled)}}}")
    x = _random(element, shape)
    flat = _buffer(x, source_layout or range(len(shape))[::-1]).view(DTYPES[new])
    order = (result_layout or tuple(range(len(new_shape)))[::-1])[::-1]
    expected = np.transpose(flat.reshape([new_shape[i] for i in order]), np.argsort(order))
    return Case(f"{source} {source_layout} to {target} {result_layout}", text, [x], expected=[expected])


BITCASTS = [
    _bitcast("2x3xf32", "3x2xf32"),
    _bitcast("2x3xf32", "3x2xf32", (0, 1), (1, 0)),
    _bitcast("2x3x4xf32", "4x6xf32", (1, 0, 2), (1, 0)),
    _bitcast("2x3x4xf32", "3x4x2xf32", (2, 1, 0), (1, 0, 2)),
    _bitcast("2x3x4xf32", "2x3x4xf32", (0, 2, 1), (1, 2, 0)),
    _bitcast("2x3xf32", "6x4xui8", (0, 1), (1, 0)),
    _bitcast("6x4xui8", "2x3xf32", (1, 0), (0, 1)),
    _bitcast("4xcomplex<f32>", "8xf32"),
    _bitcast("8xf32", "4xcomplex<f32>"),
    _bitcast("2x2xi1", "4xui8"),
    _bitcast("1x1xf32", "f32", (0, 1)),
]


@pytest.mark.parametrize("case", BITCASTS, ids=ids)
def test_bitcast(case):
    check_value(case)
    check_vmap(case)


def test_a_bitcast_of_bytes_to_booleans():
    text = one_operation("tensor<4xui8>", "tensor<2x2xi1>", "mhlo.bitcast")
    check_value(
        Case("bytes", text, [np.array([0, 1, 1, 0], np.uint8)], expected=[np.array([[False, True], [True, False]])])
    )


def test_a_bitcast_of_narrow_integers():
    text = one_operation("tensor<4xi4>", "tensor<2xi8>", "mhlo.bitcast")
    x = np.array([1, -2, 7, -8], ml_dtypes.int4)
    check_value(Case("packed", text, [x], expected=[np.array([0xE1, 0x87], np.uint8).view(np.int8)]))


def test_a_bitcast_differentiates():
    case = _bitcast("2x3xf32", "3x2xf32", (0, 1), (1, 0))
    program, (x,) = unlower.load(case.text), case.inputs
    weights = np.arange(6, dtype=np.float32).reshape(3, 2)
    (pulled,) = jax.vjp(program, x)[1](weights)
    assert_same_bits([pulled], [weights.reshape(3, 2).reshape(-1).reshape(3, 2).T])


def test_layouts_without_dimensions():
    text = module(
        "tensor<f32>",
        "tensor<i32>",
        """    %0 = "mhlo.bitcast"(%a0) {result_layout = dense<> : tensor<0xindex>, source_layout = dense<> : tensor<0xindex>} :
      (tensor<f32>) -> tensor<i32>
    return %0 : tensor<i32>""",
    )
    check_value(Case("scalar", text, [np.float32(1.5)], expected=[np.float32(1.5).view(np.int32)]))
