import pytest

from unlower.ir.types import FutureType, OpaqueType, QuantizedElement, TensorType, TokenType, TupleType
from unlower.readers.mlir_types import parse_type, split_top_level


@pytest.mark.parametrize(
    ("text", "type_"),
    [
        ("tensor<f32>", TensorType((), "f32")),
        ("tensor<2x3xbf16>", TensorType((2, 3), "bf16")),
        ("tensor<0x4xf8E4M3B11FNUZ>", TensorType((0, 4), "f8E4M3B11FNUZ")),
        ("tensor<2xcomplex<f64>>", TensorType((2,), "complex<f64>")),
        ("tensor<?x3xi1>", TensorType((None, 3), "i1")),
        ("tensor<?x3xf32, #stablehlo.bounds<8, ?>>", TensorType((None, 3), "f32", (8, None))),
        ("!stablehlo.token", TokenType()),
        ("tuple<>", TupleType(())),
        (
            "tuple<tensor<2xf32>, tuple<!stablehlo.token, tensor<ui4>>>",
            TupleType((TensorType((2,), "f32"), TupleType((TokenType(), TensorType((), "ui4"))))),
        ),
        ("!stablehlo.future<tensor<2xf32>>", FutureType((TensorType((2,), "f32"),))),
        ("tensor<*xf32>", OpaqueType("tensor<*xf32>")),
        ("tensor<2xi3>", OpaqueType("tensor<2xi3>")),
        ("index", OpaqueType("index")),
        ("tensor<2xf32, #sparse>", OpaqueType("tensor<2xf32, #sparse>")),
    ],
)
def test_types_are_read_and_print_as_they_were(text, type_):
    assert parse_type(text) == type_
    assert str(parse_type(text)) == text


def test_a_quantized_type():
    element = parse_type("tensor<2x!quant.uniform<u8<1:200>:f32:0, {0.5:3, 2.500000e-01}>>").element
    assert element == QuantizedElement(
        "ui8", "f32", (0.5, 0.25), (3, 0), 0, 1, 200, "!quant.uniform<u8<1:200>:f32:0, {0.5:3, 2.500000e-01}>"
    )
    per_tensor = parse_type("tensor<!quant.uniform<i8:f32, 0.0039:-128>>").element
    assert (per_tensor.axis, per_tensor.scales, per_tensor.zero_points) == (None, (0.0039,), (-128,))
    assert (per_tensor.storage, per_tensor.storage_min, per_tensor.storage_max) == ("i8", -128, 127)


def test_commas_inside_brackets_and_strings_do_not_split():
    assert split_top_level('a<b, c>, [d, e], "f, \\", g", (h) -> i, j') == [
        "a<b, c>",
        "[d, e]",
        '"f, \\", g"',
        "(h) -> i",
        "j",
    ]
    assert split_top_level("") == []
