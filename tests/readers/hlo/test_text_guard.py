"""Text that XLA's parser would end the process on is refused, however its computations lie on the lines."""

import pytest

from unlower.errors import FormatError
from unlower.readers.hlo.text_guard import guard_hlo_text
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
