import numpy as np
import pytest

from unlower._jax_compat import mlir_ir, new_mlir_context
from unlower.errors import FormatError
from unlower.ir.types import DTYPES
from unlower.readers.constants import own
from unlower.readers.detect import read

NARROW = ("i1", "i2", "i4", "ui2", "ui4")


def constant(text):
    """The array of `text`, a `dense<...>` attribute, and whether it is a splat."""
    type_ = text[text.rindex(" : ") + 3 :]
    module = read(
        f"module {{ func.func @main() -> {type_} {{\n  %0 = stablehlo.constant {text}\n  return %0 : {type_}\n}} }}"
    )
    (op,) = module.main.body.ops
    return op.attributes["value"]


def every_bit_pattern(element):
    """Every value of a type up to 8 bits; of a wider one, corners (NaN payloads, denormals, zeros) and noise."""
    dtype = DTYPES[element]
    if element in NARROW:
        width = int(element.strip("ui"))
        values = np.arange(1 << width) - ((1 << width - 1) if element in ("i2", "i4") else 0)
        return values.astype(np.int8).astype(dtype)
    if dtype.itemsize == 1:
        count = {"f4E2M1FN": 16, "f6E2M3FN": 64, "f6E3M2FN": 64}.get(element, 256)
        return np.arange(count, dtype=np.uint8).view(dtype)
    width = dtype.itemsize
    noise = np.random.default_rng(0).integers(0, 256, (60, width), np.uint8).view(dtype).reshape(-1)
    corners = [0, 1, 1 << 8 * width - 1, (1 << 8 * width) - 1, 0x7FC0 << 8 * width - 16, 0x7F81 << 8 * width - 16]
    patterns = [pattern.to_bytes(width, "little") for pattern in corners]
    return np.concatenate([np.frombuffer(b"".join(patterns), dtype), noise])


def spelled(array, element):
    return f'dense<"0x{array.tobytes().hex()}"> : tensor<{"x".join(map(str, array.shape))}x{element}>'


def assert_same_bits(dense, array):
    assert dense.array.dtype == array.dtype
    assert dense.expanded().shape == array.shape
    assert dense.expanded().tobytes() == array.tobytes()


@pytest.mark.parametrize("element", DTYPES)
def test_every_element_type_is_exact(element):
    array = every_bit_pattern(element)
    # MLIR prints up to 100 elements as decimals, more as bytes: both ways in.
    assert_same_bits(constant(spelled(array[:90], element)), array[:90])
    many = np.resize(array, (2, 150))
    assert_same_bits(constant(spelled(many, element)), many)


@pytest.mark.parametrize("element", DTYPES)
def test_splats_stay_splats(element):
    for value in every_bit_pattern(element)[:12]:
        scalar = np.asarray(value)
        dense = constant(f'dense<"0x{scalar.tobytes().hex()}"> : tensor<3x5x{element}>')
        assert dense.is_splat
        assert dense.array.shape == ()
        assert dense.array.tobytes() == scalar.tobytes()


@pytest.mark.parametrize("element", DTYPES)
def test_scalars_and_empty_tensors(element):
    value = every_bit_pattern(element)[-1:]
    dense = constant(f'dense<"0x{value.tobytes().hex()}"> : tensor<{element}>')
    assert (dense.is_splat, dense.array.shape, dense.array.tobytes()) == (False, (), value.tobytes())
    empty = constant(f"dense<> : tensor<0x3x{element}>")
    assert (empty.array.shape, empty.array.dtype) == ((0, 3), DTYPES[element])


def test_negative_zero_and_decimals():
    dense = constant("dense<[-0.0, 0.1, 1.0e-45, 3.40282347e+38]> : tensor<4xf32>")
    assert_same_bits(dense, np.array([-0.0, 0.1, 1e-45, 3.40282347e38], np.float32))


def test_complex_decimals_round_once():
    # The middle between two float32 plus a hair: correct rounding goes up, two roundings go down.
    dense = constant("dense<[(1.00000017881393432617187500000001, -0.0), (2.0, 0x7FC00001)]> : tensor<2xcomplex<f32>>")
    parts = dense.array.view(np.uint32)
    assert parts.tolist() == [0x3F800002, 0x80000000, 0x40000000, 0x7FC00001]


@pytest.mark.parametrize("element", ["f32", "bf16", "i4", "i1", "complex<f64>", "f8E4M3FN"])
def test_resources_are_read_from_their_blob(element):
    array = np.resize(every_bit_pattern(element), 24).reshape(4, 6)
    alignment = (4).to_bytes(4, "little").hex()
    module = read(
        f"""module {{
          func.func @main() -> tensor<4x6x{element}> {{
            %0 = stablehlo.constant dense_resource<weights> : tensor<4x6x{element}>
            return %0 : tensor<4x6x{element}>
          }}
        }}
        {{-# dialect_resources: {{ builtin: {{ weights: "0x{alignment}{array.tobytes().hex()}" }} }} #-}}"""
    )
    assert_same_bits(module.main.body.ops[0].attributes["value"], array)


def test_resources_of_the_wrong_size_are_refused():
    with pytest.raises(FormatError, match="weights holds 4 bytes, but tensor<2xf32> needs 8"):
        read(
            """module {
              func.func @main() -> tensor<2xf32> {
                %0 = stablehlo.constant dense_resource<weights> : tensor<2xf32>
                return %0 : tensor<2xf32>
              }
            }
            {-# dialect_resources: { builtin: { weights: "0x0400000000000000" } } #-}"""
        )


def test_large_constants_are_aligned_and_read_only():
    array = own(np.arange(5000, dtype=np.float32))
    assert array.ctypes.data % 64 == 0
    assert not array.flags.writeable


def test_constants_do_not_keep_the_context_alive():
    before = mlir_ir.Context._get_live_count()
    array = np.arange(4096, dtype=np.float32)
    dense = constant(spelled(array, "f32"))
    assert mlir_ir.Context._get_live_count() == before
    assert_same_bits(dense, array)


def test_a_context_of_the_caller_is_not_entered_for_good():
    with new_mlir_context() as context:
        constant("dense<1> : tensor<2xi32>")
        assert mlir_ir.Context.current is context
