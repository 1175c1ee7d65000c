import numpy as np
import pytest

import unlower
from unlower._jax_compat import hlo_text_to_proto
from unlower.ir.interface import LEAF, Tree
from unlower.readers.hlo_tuples import read_tuples

F32 = np.float32
TEXT = """HloModule m

ENTRY e {
  p = (f32[2], (f32[3], s32[])) parameter(0)META
  q = f32[2] parameter(1)
  a = f32[2] get-tuple-element(p), index=0
  b = (f32[3], s32[]) get-tuple-element(p), index=1
  c = f32[3] get-tuple-element(b), index=0
  t = (f32[3], f32[2]) tuple(c, q)
  ROOT r = (f32[2], (f32[3], f32[2])) tuple(a, t)
}
"""
PAIR = Tree("tuple", (), (LEAF, LEAF))


def test_trees_of_parameters_and_result():
    parameters, result = read_tuples(hlo_text_to_proto(TEXT.replace("META", "")))
    assert parameters == [Tree("tuple", (), (LEAF, PAIR)), LEAF]
    assert result == Tree("tuple", (), (LEAF, PAIR))


@pytest.mark.parametrize(
    ("meta", "names"),
    [
        (', metadata={op_name="params"}', ["params[0]", "params[1][0]", "params[1][1]", "q"]),
        (', metadata={op_name="while/body"}', ["args[0][0]", "args[0][1][0]", "args[0][1][1]", "args[1]"]),
    ],
)
@pytest.mark.parametrize("proto", [False, True])
def test_a_call_takes_and_returns_the_tuples(meta, names, proto):
    text = TEXT.replace("META", meta)
    program = unlower.load(hlo_text_to_proto(text) if proto else text)
    assert [x.name for x in program.interface.inputs] == names
    a, c, n, q = np.ones(2, F32), np.arange(3, dtype=F32), 7, np.full(2, 5, F32)
    first, (second, third) = program((a, (c, n)), q)
    for got, want in ((first, a), (second, c), (third, q)):
        np.testing.assert_array_equal(got, want)
    assert len(program.flat(a, c, n, q)) == 3
    with pytest.raises(unlower.SignatureError, match=names[1].rpartition("[")[0].replace("[", r"\[") + " is an array"):
        program((a, c), q)


def test_one_tuple_for_all_arguments():
    text = """HloModule m

ENTRY e {
  p = (f32[2], f32[2]) parameter(0)
  a = f32[2] get-tuple-element(p), index=0
  b = f32[2] get-tuple-element(p), index=1
  c = f32[2] add(a, b)
  ROOT t = (f32[2]) tuple(c)
}
"""
    program = unlower.load(text)
    a, b = np.ones(2, F32), np.arange(2, dtype=F32)
    # A result of one array is that array, as everywhere.
    for got in (program((a, b)), program(a, b)):
        np.testing.assert_array_equal(got, a + b)


def test_without_tuples_the_names_are_all():
    text = "HloModule m\nENTRY e { x = f32[2] parameter(0)  ROOT y = f32[2] negate(x) }"
    parameters, result = read_tuples(hlo_text_to_proto(text))
    assert (parameters, result) == ([LEAF], LEAF)
    assert unlower.load(text).interface.results is None


@pytest.mark.parametrize("proto", [b"", b"\x22\x02\x0a", b"\x22\x04\x12\x02\x10\x11"])
def test_damaged_shapes_and_tokens_say_nothing(proto):
    assert read_tuples(proto) is None
