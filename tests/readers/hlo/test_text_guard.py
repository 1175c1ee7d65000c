"""Text that XLA's parser would end the process on is refused, however its computations lie on the lines."""

import pytest

import unlower
from unlower.errors import FormatError
from unlower.readers.hlo.text_guard import guard_hlo_text
from unlower.readers.hlo.text_lines import read_lines
from unlower.readers.limits import DEFAULT_LIMITS

ENDS = [
    "ROOT n = f32[2] negate(p)\n}\n",
    "ROOT n = f32[2] negate(p) }\n",
    "ROOT n = f32[2] negate(p)}\n",
    'ROOT n = f32[2] negate(p), metadata={op_name="{"} }\n',
    'ROOT n = f32[2] negate(p), metadata={op_name="a/b}"} } // done\n',
    "ROOT n = f32[2] negate(p), frontend_attributes={a={{b={c=1}}}} }\n",
]


def module(number, end):
    return f"HloModule m\na {{\n p = f32[2] parameter(0)\n {end}ENTRY e {{\n q = f32[2] parameter({number})\n {end}".replace(
        "negate(p)", "negate(q)"
    ).replace("negate(q)", "negate(p)", 1)


@pytest.mark.parametrize("end", ENDS)
def test_a_computation_ends_where_its_brace_is(end):
    text = module(0, end)
    assert guard_hlo_text(text, DEFAULT_LIMITS) == text
    with pytest.raises(FormatError, match="the parameters of a computation have the numbers 1"):
        guard_hlo_text(module(1, end), DEFAULT_LIMITS)


def test_a_computation_that_ends_and_another_that_begins_on_one_line():
    text = "HloModule m\na {\n p = f32[2] parameter(0)\n ROOT n = f32[2] negate(p) } ENTRY e {\n"
    text += " q = f32[2] parameter({})\n ROOT r = f32[2] negate(q)\n}}\n"
    first, second = text.replace("{}", "0").replace("}}", "}"), text.replace("{}", "1").replace("}}", "}")
    assert guard_hlo_text(first, DEFAULT_LIMITS) == first
    with pytest.raises(FormatError, match="the parameters of a computation have the numbers 1"):
        guard_hlo_text(second, DEFAULT_LIMITS)


def text_with(line):
    return f"HloModule m\n\nENTRY e {{\n  p = f32[2]{{0}} parameter(0)\n{line}\n  ROOT n = f32[2]{{0}} negate(p)\n}}\n"


PLAIN = [
    "  %a.1 = (f32[2]{0}, (s32[], /*index=2*/f32[2]{0:T(8,128)(2,1)S(1)})) tuple(%p, /*index=1*/%q)",
    "  c = f32[1,2]{1,0} constant({ { /*i0=0*/ 1, 2 } })",
    '  a = f32[2]{0} add(f32[2]{0} p, (f32[2]{0}, f32[]) q), metadata={op_name="a = f32[] tuple() }" source_line=3}',
    "  w = f32[2]{0} all-gather(p), replica_groups=[2,4]<=[8]T(1,0), sharding={devices=[2,1]<=[2]T(0) last_tile_dim_replicate}",
    "  w = f32[2]{0} all-reduce(p), replica_groups=mesh['x'=4] {'x'}, to_apply=%sum",
    '  f = f32[2]{0} custom-call(p), custom_call_target="t", output_to_operand_aliasing={{}: (0, {1})}',
    '  o = f32[2]{0} copy(p), origin={("p" {0}), ("q")}, backend_config={"a":[{"b":"("}]}',
    "  x = f32[2]{0} convolution(p, q), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f, slice={[0:1], [0:2]}",
    '1 "a file = f32[] tuple()"',
    "1 {file_name_id=1 function_name_id=1 line=5}",
]
HIDING = [
    "  a=f32[2]{0} negate(p)",
    "  a = f32[2]{0} negate(p) b = token[] constant(1)",
    "  a = f32[2]{0} negate(p), dimensions={0} b=token[] constant(1)",
    "  a = f32[2]{0} call(p), to_apply={ b = f32[] parameter(0) }",
    "  a = f32[2]{0} call(p), to_apply={b=f32[] parameter (0)}",
    "  a = f32[2]{0} call(p), to_apply={ ROOT b = token[] after-all() }",
    "  a = f32[2]{0} negate(p) } b { c = f32[] parameter(0)",
    "  a =\n f32[2]{0} negate(p)",
    "  a\n = f32[2]{0} negate(p)",
    "  a = f32[2]{0} negate(p) // }",
    "  a = f32[2]{0} negate(p) /* } */",
    "} b { c = f32[] parameter(0) }",
    "b { c = f32[] parameter(0) }",
    "HloModule m ENTRY b { c = f32[] parameter(0) }",
    "HloModule m, x={ c = f32[] parameter(0) } ENTRY b { c = f32[] parameter(0) }",
]


@pytest.mark.parametrize("line", PLAIN)
def test_a_line_as_xla_prints_it_is_read_by_itself(line):
    lines = read_lines(text_with(line))
    assert lines is not None
    assert [found[2] for found in lines if found[0]][-1] == "negate"
    assert len([found for found in lines if found[0]]) == (2 if line[0] == "1" else 3)


@pytest.mark.parametrize("line", HIDING)
def test_a_line_that_may_hold_more_than_one_instruction_is_not(line):
    assert read_lines(text_with(line)) is None


@pytest.mark.parametrize("line", [line for line in HIDING if "constant(1)" in line])
def test_an_instruction_that_hides_is_found(line):
    with pytest.raises(FormatError, match=r"it is a constant token\[\]"):
        guard_hlo_text(text_with(line), DEFAULT_LIMITS)


def test_an_instruction_without_blanks_is_found():
    with pytest.raises(FormatError, match=r"it is a constant token\[\]"):
        guard_hlo_text(text_with("  a=token[] constant(1)"), DEFAULT_LIMITS)


def test_a_fault_is_told_by_its_line():
    with pytest.raises(FormatError, match=r"it gives f32\[\], no tuple") as caught:
        guard_hlo_text(text_with("  a = f32[] tuple(p)"), DEFAULT_LIMITS)
    assert caught.value.where == "line 5: a = f32[] tuple(p)"


WRONG = [
    ("  c = (f32[2]{0}, (s32[3]{0}, pred[])) constant(({1, 2}, ({3, 4, 5, true)))", "whose brackets do not match"),
    ("  c = s32[3]{0} constant({3, 4, true})", "with the value true where it has s32"),
    ("  c = (pred[], f32[]) constant((false, false))", "with the value false where it has f32"),
    ("  c = (pred[], f32[]) constant((false))", r"a constant \(pred\[\], f32\[\]\) with 1 parts"),
    (
        "  c = f32[] dot(p, select), lhs_contracting_dims={0}, rhs_contracting_dims={0}",
        "select is no instruction before it",
    ),
    ("  c = (u64[2], u32[3]) rng-bit-generator(select(p)), algorithm=rng_default", "is no instruction before it"),
]


@pytest.mark.parametrize(("line", "fault"), WRONG)
@pytest.mark.parametrize("plain", [True, False])
def test_what_ends_the_parser_is_refused(line, fault, plain):
    text = text_with(line if plain else line + " // as somebody wrote it")
    assert (read_lines(text) is not None) == plain
    with pytest.raises(FormatError, match=fault):
        guard_hlo_text(text, DEFAULT_LIMITS)


@pytest.mark.parametrize(
    "line", ["  c = pred[2] constant({true, 0})", "  c = (pred[], s32[2]) constant((true, {1, 2}))"]
)
def test_predicates_are_spelled_as_words(line):
    assert guard_hlo_text(text_with(line), DEFAULT_LIMITS) == text_with(line)


def test_an_instruction_of_another_computation_is_not_known():
    other = "a {\n  ROOT select = f32[2]{0} parameter(0)\n}\n\n"
    line = "  c = f32[] dot(p, select), lhs_contracting_dims={0}, rhs_contracting_dims={0}"
    with pytest.raises(FormatError, match="select is no instruction before it"):
        guard_hlo_text(text_with(line).replace("ENTRY", other + "ENTRY"), DEFAULT_LIMITS)


def test_a_sharding_has_as_many_tiles_as_devices():
    line = "  c = f32[2]{0} copy(p), sharding={devices=[2,1,3]<=[4] last_tile_dim_replicate}"
    with pytest.raises(FormatError, match="6 tiles for 4 devices|does not match the tile assignment"):
        unlower.load(text_with(line))


def test_a_constant_whose_parentheses_do_not_close_is_looked_at():
    with pytest.raises(FormatError, match="with the value true where it has s32"):
        guard_hlo_text(text_with("  c = s32[3]{0} constant({3, 4, true"), DEFAULT_LIMITS)


@pytest.mark.parametrize("shape", ["token[2]", "token[]{0}", "(f32[2]{0}, token[2]{0})", "opaque[3]"])
def test_a_token_has_no_sizes(shape):
    with pytest.raises(FormatError, match="it has no sizes and no layout"):
        guard_hlo_text(text_with(f'  a = {shape} custom-call(p), custom_call_target="t"'), DEFAULT_LIMITS)


def test_a_name_may_look_like_a_sized_token():
    text = text_with('  a = (f32[2]{0}, token[]) custom-call(p), metadata={op_name="token[2]"}')
    assert guard_hlo_text(text, DEFAULT_LIMITS) == text
