import jax
import numpy as np
import pytest

from unlower.errors import FormatError
from unlower.readers.detect import read


def constant(text):
    module = read(f"HloModule m\nENTRY e {{\n  ROOT c = {text}\n}}")
    return module.main.body.ops[0].attributes["value"].array


@pytest.mark.parametrize(
    ("text", "array"),
    [
        ("f32[] constant(-0)", np.array(-0.0, np.float32)),
        ('f32[2,2]{0,1} constant({ { -0, 1 }, {-0.5, -0} }), metadata={op_name="a -0 b"}', [[-0.0, 1], [-0.5, -0.0]]),
        ("f32[3] constant({ /*i0=0*/ -0, /*i0=1*/ 1e-07, -0 })", [-0.0, 1e-7, -0.0]),
        ("f64[2] constant({-0, nan})", np.array([-0.0, np.nan])),
        ("c64[2] constant({(-0, 1), (2, -0)})", np.array([complex(-0.0, 1), complex(2, -0.0)], np.complex64)),
        ("s32[2] constant({-10, 0})", np.array([-10, 0], np.int32)),
    ],
)
def test_negative_zero_survives_text(text, array):
    array = np.asarray(array)
    array = array.astype(np.float32) if array.dtype == np.float64 and not text.startswith("f64") else array
    assert constant(text).tobytes() == array.tobytes()


def test_negative_zero_of_a_real_module():
    lowered = jax.jit(lambda x: x * np.float32(-0.0)).lower(np.float32(1))
    assert "constant(-0)" in lowered.as_text("hlo")
    values = [op.attributes["value"].array for op in read(lowered.as_text("hlo")).main.body.ops if not op.operands]
    assert [np.signbit(value) for value in values] == [True]


def test_text_cut_off_before_its_entry():
    text = (
        "HloModule m, entry_computation_layout={(f32[2]{0},f32[2]{0})->f32[2]{0}}\nf { ROOT p = f32[2] parameter(0) }\n"
    )
    with pytest.raises(FormatError, match="the HLO text has no ENTRY computation"):
        read(text)
