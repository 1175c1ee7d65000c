import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unlower._jax_compat import mlir_ir, new_mlir_context
from unlower.errors import InvalidModuleError
from unlower.ir.attributes import Enum, Int, IntArray, ResultAccuracy, Symbol, Unit, Unparsed
from unlower.ir.module import Location, walk
from unlower.ir.types import TensorType
from unlower.readers.detect import read


def ops(text):
    return read(text).main.body.ops


def attribute(text):
    """What `text`, an MLIR attribute, becomes."""
    (op,) = ops(
        f"module {{ func.func @main() {{\n stablehlo.custom_call @f() {{test.it = {text}}} : () -> ()\n return }} }}"
    )
    return op.attributes["test.it"]


@pytest.mark.parametrize(
    ("text", "value", "element"),
    [
        ("3 : i64", 3, "i64"),
        ("-1 : si8", -1, "si8"),
        ("18446744073709551615 : ui64", 2**64 - 1, "ui64"),
        ("7 : index", 7, "index"),
        ("1.5 : bf16", 1.5, "bf16"),
        ("array<i64: 1, 2>", (1, 2), "i64"),
        ("array<i1: true, false>", (True, False), "i1"),
        ("array<i32>", (), "i32"),
        ("dense<[1, 0]> : tensor<2xindex>", (1, 0), "index"),
        ("dense<> : tensor<0xindex>", (), "index"),
    ],
)
def test_numbers_keep_their_element_type(text, value, element):
    decoded = attribute(text)
    assert decoded == value
    assert decoded.element == element


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ('"a \\22quoted\\22 \\C3\\A9"', 'a "quoted" é'),
        ('"\\FF"', "\udcff"),
        ("unit", Unit),
        ("@f", Symbol("f")),
        ("tensor<2xf32>", TensorType((2,), "f32")),
        ("[1 : i32, @f]", (Int(1, "i32"), Symbol("f"))),
        ("{a = 1 : i32, b}", {"a": Int(1, "i32"), "b": Unit}),
        ('{"a b, =" = "c, = d", e = tensor<complex<f32>>}', {"a b, =": "c, = d", "e": TensorType((), "complex<f32>")}),
        ("affine_map<(d0) -> (d0)>", Unparsed("affine_map<(d0) -> (d0)>")),
        ("array<f32: 1.0>", Unparsed("array<f32: 1.000000e+00>")),
        (
            "#stablehlo.result_accuracy<atol = 1.0e-05, ulps = 3, mode = #stablehlo.result_accuracy_mode<TOLERANCE>>",
            ResultAccuracy("TOLERANCE", 1e-5, 0.0, 3),
        ),
    ],
)
def test_other_attributes(text, value):
    decoded = attribute(text)
    assert decoded == value
    assert type(decoded) is type(value)


def test_nan_attributes_keep_their_payload():
    assert np.array(float(attribute("0x7FC00123 : f32"))).astype(np.float32).view(np.uint32) == 0x7FC00123


def test_enumerations_know_their_spelling():
    compare = ops(
        """module { func.func @main(%a: tensor<f32>) -> tensor<i1> {
          %0 = stablehlo.compare LT, %a, %a, TOTALORDER : (tensor<f32>, tensor<f32>) -> tensor<i1>
          return %0 : tensor<i1> } }"""
    )[0]
    direction = compare.attributes["comparison_direction"]
    assert isinstance(direction, Enum)
    assert (direction, direction.dialect, direction.mnemonic) == ("LT", "stablehlo", "comparison_direction")
    assert compare.attributes["compare_type"] == "TOTALORDER"


def test_unreachable_functions_are_left_out_and_reachable_ones_found():
    module = read(
        """module @m {
          func.func private @dead() { return }
          func.func @entry(%a: tensor<f32>) -> tensor<f32> {
            %0 = func.call @called(%a) : (tensor<f32>) -> tensor<f32>
            %1 = stablehlo.composite "my.op" %0 {decomposition = @composed} : (tensor<f32>) -> tensor<f32>
            %2 = stablehlo.custom_call @f(%1) {called_computations = [@computed]} : (tensor<f32>) -> tensor<f32>
            %3 = func.call @called(%2) : (tensor<f32>) -> tensor<f32>
            return %3 : tensor<f32>
          }
          func.func private @called(%a: tensor<f32>) -> tensor<f32> {
            %0 = func.call @deeper(%a) : (tensor<f32>) -> tensor<f32>
            return %0 : tensor<f32>
          }
          func.func private @deeper(%a: tensor<f32>) -> tensor<f32> { return %a : tensor<f32> }
          func.func private @composed(%a: tensor<f32>) -> tensor<f32> { return %a : tensor<f32> }
          func.func private @computed(%a: tensor<f32>) -> tensor<f32> { return %a : tensor<f32> }
        }"""
    )
    assert (module.name, module.entry) == ("m", "entry")
    assert set(module.functions) == {"entry", "called", "deeper", "composed", "computed"}


def test_main_wins_among_public_functions():
    module = read("module { func.func @other() { return }\n func.func @main() { return } }")
    assert module.entry == "main"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("module { func.func private @f() { return }\n }", "no public function"),
        ("module {\n }", "no public function"),
        (
            "module { func.func private @f()\n func.func @main() { func.call @f() : () -> ()\n return }\n }",
            "@f is declared but not defined",
        ),
    ],
)
def test_modules_without_an_entry(text, message):
    with pytest.raises(InvalidModuleError, match=message):
        read(text)


def test_names_and_lines_survive():
    lowered = jax.jit(lambda params: jnp.sin(params["w"])).lower({"w": np.float32(1)})
    function = read(lowered).main
    assert function.argument_locations[0].name == "params['w']"
    (op,) = function.body.ops
    assert op.location.name.endswith("/sin")
    assert op.location.file == __file__
    assert op.location.line == test_names_and_lines_survive.__code__.co_firstlineno + 1


def test_text_without_locations_gives_its_own_lines():
    op = ops("module {\n func.func @main(%a: tensor<f32>) -> tensor<f32> {\n  %0 = stablehlo.sine %a : tensor<f32>\n"
             "  return %0 : tensor<f32> } }")[0]  # fmt: skip
    assert op.location == Location(None, "<text>", 3)


def test_numbers_are_unique_and_captures_are_the_values_around():
    def f(x):
        return jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] + x), (np.int32(0), x))

    body = read(jax.jit(f).lower(np.float32(1))).main.body
    values = list(body.arguments)
    for op in walk(body):
        values += [*op.results, *(v for region in op.regions for v in region.arguments)]
    assert len({value.number for value in values}) == len(values)
    (loop,) = (op for op in body.ops if op.name == "stablehlo.while")
    inside = {v for op in loop.regions[1].ops for v in op.results} | set(loop.regions[1].arguments)
    assert TensorType((), "i32") in [value.type for value in loop.regions[1].arguments]
    assert all(v in inside or v in values for op in loop.regions[1].ops for v in op.operands)


def test_types_are_shared_objects():
    body = read(jax.jit(lambda x: x + x * x).lower(np.float32(1))).main.body
    assert len({id(value.type) for op in body.ops for value in op.results}) == 1


def test_an_mlir_module_is_only_read():
    with new_mlir_context():
        module = mlir_ir.Module.parse("module { func.func @main() { return } }")
        before = str(module)
        assert read(module).entry == "main"
        assert str(module) == before


def test_a_convolution_keeps_its_window():
    lowered = jax.jit(
        lambda x, w: jax.lax.conv_general_dilated(x, w, (2, 1), [(1, 2), (-1, 0)], rhs_dilation=(1, 2))
    ).lower(np.zeros((1, 3, 8, 8), np.float32), np.zeros((4, 3, 3, 3), np.float32))
    (op,) = read(lowered).main.body.ops
    assert op.attributes["window_strides"] == IntArray((2, 1))
    assert op.attributes["padding"].expanded().tolist() == [[1, 2], [-1, 0]]
    assert op.attributes["dimension_numbers"].kernel_output_feature_dimension == 0
    assert op.attributes["feature_group_count"] == 1


@pytest.mark.parametrize("place", ["name", "file", "key", "attribute", "symbol"])
def test_strings_that_are_not_utf8_do_not_end_the_process(place):
    strings = dict.fromkeys(["name", "file", "key", "attribute", "symbol"], "x")
    strings[place] = "x\\FF"
    text = """module { func.func @"{symbol}"() {{
      stablehlo.custom_call @f() {{d = {{"{key}" = "{attribute}"}}}} : () -> () loc("{name}"("{file}":1:2))
      return }} }}"""[9:].format(**strings)
    text = "module { " + text
    module = read(text)
    assert module.entry == strings["symbol"].replace("\\FF", "\udcff")
    (op,) = module.main.body.ops
    name, file, key, value = (strings[what].replace("\\FF", "\udcff") for what in ("name", "file", "key", "attribute"))
    assert op.attributes["d"] == {key: value}
    assert op.location == Location(name, file, 1)


def test_complex_constants_inside_other_attributes():
    decoded = attribute(
        '[{"a, b" = dense<[(1.0, -2.0), (0.0, 3.0)]> : tensor<2xcomplex<f32>>, c}, dense<7> : tensor<i32>]'
    )
    assert decoded[0]["a, b"].array.tolist() == [1 - 2j, 3j]
    assert decoded[0]["c"] is Unit
    assert decoded[1].array == 7


@pytest.mark.parametrize("metadata", ['op_name="a/b" source_file="f.py" source_line=3', 'op_name="a/b"'])
def test_name_and_line_of_an_hlo_instruction(metadata):
    body = read(
        f"""HloModule m
ENTRY e {{
  x = f32[2] parameter(0), metadata={{op_name="params['w']" source_file="f.py" source_line=9}}
  ROOT y = f32[2] negate(x), metadata={{{metadata}}}
}}"""
    ).main
    line = 3 if "line" in metadata else None
    assert body.body.ops[0].location == Location("a/b", "f.py" if line else None, line)
    assert body.argument_locations == (Location("params['w']", "f.py", 9),)
