import pytest

import unlower
from unlower.ir.module import Location
from unlower.readers.hlo.text_metadata import shorten_metadata

TABLES = """HloModule m

FileNames
1 "a.py"
2 "b \\'c\\'.py"

FunctionNames
1 "f"

FileLocations
1 {file_name_id=2 function_name_id=1 line=7 end_line=9 column=1 end_column=2}

StackFrames
1 {file_location_id=1 parent_frame_id=1}

"""


def program(*metadata):
    lines = [f"  x{i} = f32[2] negate(p), metadata={{{each}}}" for i, each in enumerate(metadata)]
    return TABLES + "ENTRY e {\n  p = f32[2] parameter(0)\n" + "\n".join(lines) + "\n  ROOT r = f32[2] abs(p)\n}\n"


def test_marks_stand_for_what_the_metadata_says():
    text = program(
        'op_name="jit(f)/neg" stack_frame_id=1',
        'op_name="p[\\\'w\\\']" source_file="x.py" source_line=3',
        'op_name="jit(f)/neg" stack_frame_id=1',
        'op_name="plain"',
    )
    short, locations = shorten_metadata(text)
    assert list(locations.values()) == [
        Location("jit(f)/neg", "b 'c'.py", 7),
        Location("p['w']", "x.py", 3),
        Location("plain", None, None),
    ]
    assert short.count("\n") == text.count("\n")
    assert [short.count(f'{{op_name="{mark}"}}') for mark in locations] == [2, 1, 1]


def test_other_metadata_stays():
    for each in (
        'op_type="neg" op_name="a"',
        'op_name=""',
        'op_name="a}b"',
        'op_name="\\303\\251"',
        'op_name="a" stack_frame_id=2',
        'op_name="a" unheard_of=2',
        'op_name="a" source_file="x.py"',
    ):
        text = program(each)
        assert shorten_metadata(text) == (text, {})


def test_names_and_lines_are_those_of_the_file():
    text = program('op_name="jit(f)/neg" stack_frame_id=1', 'op_type="neg" op_name="other"')
    module = unlower.load(text).module
    assert [op.location for op in module.main.body.ops][:2] == [
        Location("jit(f)/neg", "b 'c'.py", 7),
        Location("other", None, None),
    ]


def test_errors_quote_the_text_as_it_was():
    text = program('op_name="jit(f)/neg" stack_frame_id=1').replace("negate(p)", "negate(q)")
    with pytest.raises(unlower.FormatError) as caught:
        unlower.load(text)
    assert 'op_name="jit(f)/neg"' in str(caught.value)
    assert "unlower#" not in str(caught.value)
