"""Modules that end the process in XLA's own parser or converter: each loads, or is refused with its place."""

import jax
import numpy as np
import pytest

import unlower
from unlower.errors import FormatError

REFUSED = {
    "a parameter whose number is too high": (
        "ENTRY e { p = f32[2] parameter(1)\n ROOT r = f32[2] negate(p) }",
        "the parameters of a computation have the numbers 1",
    ),
    "an element that is not there": (
        "ENTRY e { p = (f32[],f32[]) parameter(0)\n ROOT r = f32[] get-tuple-element(p), index=7 }",
        "element 7|index 7",
    ),
    "a huge element": (
        "ENTRY e { p = (s32[],s32[]) parameter(0)\n ROOT g = s32[] get-tuple-element(p), index=2147483648 }",
        "2147483648|index",
    ),
    "an element below zero, of no type": (
        "ENTRY e { p = (s32[],s32[]) parameter(0)\n ROOT g = get-tuple-element(p), index=-1 }",
        "shape|-1",
    ),
    "a layout of no permutation": (
        "ENTRY e { ROOT r = f32[2,2]{7,0} constant({{1,2},{3,4}}) }",
        "layout|permutation|minor",
    ),
    "an error inside an inline body": (
        "ENTRY e { a = s32[] parameter(0)\n s = ((s32[]), s32[], s32[]) call-start(a), "
        "to_apply={ p = s32[] parameter(0)\n ROOT n = s32[] add(p, zz) }\n ROOT d = s32[] call-done(s) }",
        "zz",
    ),
    "a branch of two parameters": (
        "f { p = f32[] parameter(0)\n q = f32[] parameter(1)\n ROOT r = f32[] negate(p) }\n"
        "ENTRY e { i = pred[] parameter(0)\n p = f32[] parameter(1)\n"
        " ROOT r = f32[] conditional(i,p,p), true_computation=f, false_computation=f }",
        "f has 2 parameters|parameters",
    ),
    "an end without a beginning": (
        'ENTRY e { p = f32[2] parameter(0)\n ROOT d = f32[2] custom-call-done(p), custom_call_target="x" }',
        "it ends p, which is a parameter",
    ),
}
LAYOUTS = {
    "more parameters": "entry_computation_layout={(f32[2]{0},f32[2]{0})->f32[2]{0}}",
    "another result": "entry_computation_layout={(f32[2]{0})->(f32[2]{0},f32[2]{0})}",
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_ends_the_process_is_refused(kind):
    text, said = REFUSED[kind]
    with pytest.raises(FormatError, match=said) as caught:
        unlower.load(f"HloModule m\n{text}")
    assert caught.value.where and caught.value.mend


@pytest.mark.parametrize("kind", LAYOUTS)
def test_a_layout_of_another_entry_is_refused(kind):
    text = f"HloModule m, {LAYOUTS[kind]}\nENTRY e {{ p = f32[2] parameter(0)\n ROOT r = f32[2] negate(p) }}"
    with pytest.raises(FormatError, match="program shape|entry|layout|parameters"):
        unlower.load(text)


@pytest.mark.parametrize("element", ["f6e2m3fn", "f6e3m2fn"])
def test_constants_of_six_bits(element):
    with pytest.raises(FormatError, match="constants of six-bit floats"):
        unlower.load(f"HloModule m\nENTRY e {{ ROOT r = {element}[2] constant({{1,2}}) }}")


X = np.array([4, 0.5], np.float32)
LOADED = {
    # text, argument, result
    "log2": ("ENTRY e { a = f32[2] parameter(0)\n ROOT d = f32[2] log2(a) }", X, np.array([2, -1], np.float32)),
    "exp2": (
        "ENTRY e { a = f32[2] parameter(0)\n ROOT d = f32[2] exp2(a) }",
        np.array([3, -1], np.float32),
        np.array([8, 0.5], np.float32),
    ),
    "an asynchronous pair that gives a tuple": (
        "x { p = f32[2] parameter(0)\n ROOT n = (f32[2],f32[2]) tuple(p,p) }\n"
        "ENTRY e { a = f32[2] parameter(0)\n s = ((f32[2]),(f32[2],f32[2]),s32[]) async-start(a), calls=x\n"
        " ROOT w = (f32[2],f32[2]) async-done(s) }",
        X,
        (X, X),
    ),
    "a tuple constant": (
        "ENTRY e { p = f32[2] parameter(0)\n c = (f32[2], f32[1,2]) constant(({1,2},{{3,4}}))\n"
        " g = f32[1,2] get-tuple-element(c), index=1\n h = f32[2] reshape(g)\n ROOT r = f32[2] add(p, h) }",
        X,
        X + np.array([3, 4], np.float32),
    ),
}


@pytest.mark.parametrize("kind", LOADED)
def test_what_ends_or_stops_the_converter_is_loaded(kind):
    text, argument, wanted = LOADED[kind]
    found = unlower.load(f"HloModule m\n{text}")(argument)
    assert isinstance(found, tuple) == isinstance(wanted, tuple)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_array_equal(one, other, strict=True)


@pytest.mark.parametrize("config", ["xyz", '{\\"a\\": 1}', "{a = }", ""])
def test_configs_of_typed_calls_in_free_text(config):
    text = f"""HloModule m
ENTRY e {{ a = f32[2] parameter(0)
 ROOT d = f32[2] custom-call(a), custom_call_target="foo", api_version=API_VERSION_TYPED_FFI, backend_config="{config}" }}"""
    program = unlower.load(text, rules=unlower.op_rules | {"foo": lambda op, a, **_: a + 1})
    np.testing.assert_array_equal(program(X), X + 1)


def test_transfers_without_a_channel():
    text = """HloModule m
ENTRY e { t = token[] after-all()
 s = (f32[2], u32[], token[]) recv(t), frontend_attributes={_xla_send_recv_source_target_pairs="{{0,1}}"}
 ROOT d = (f32[2], token[]) recv-done(s) }"""
    with pytest.raises(unlower.UnsupportedOpError, match="recv"):
        unlower.load(text)


def test_shared_branches_that_would_be_copied_millions_of_times():
    lines = ["HloModule m", "g.0 { p = f32[] parameter(0)", " ROOT r = f32[] negate(p) }"]
    for level in range(1, 40):
        lines += [
            f"g.{level} {{ p = f32[] parameter(0)",
            " z = f32[] constant(0)",
            " i = pred[] compare(p, z), direction=LT",
        ]
        lines += [
            f" ROOT r = f32[] conditional(i, p, p), true_computation=g.{level - 1}, false_computation=g.{level - 1} }}"
        ]
    lines += ["ENTRY e { p = f32[] parameter(0)", " ROOT r = f32[] call(p), to_apply=g.39 }"]
    with pytest.raises(FormatError, match="operations, more than the"):
        unlower.load("\n".join(lines))
