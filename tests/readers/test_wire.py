import pytest
from hypothesis import given
from hypothesis import strategies as st

from unlower.errors import FormatError
from unlower.readers.wire import BYTES, VARINT, encode_field, encode_varint, fields, first, varint, varints


def test_fields_of_every_kind():
    data = b"\x08\x96\x01" + b"\x12\x02hi" + b"\x1d\x00\x00\x80\x3f" + b"\x21" + bytes(8)
    found = [(f.number, f.kind, data[f.start : f.stop]) for f in fields(data)]
    assert found == [
        (1, VARINT, b"\x96\x01"),
        (2, BYTES, b"hi"),
        (3, 5, b"\x00\x00\x80\x3f"),
        (4, 1, bytes(8)),
    ]
    assert first(data, 2) == b"hi"
    assert first(data, 3) is None


def test_numbers_packed_or_not():
    assert varints(b"\x18\x05\x18\x96\x01", 3) == [5, 150]
    assert varints(b"\x1a\x03\x05\x96\x01", 3) == [5, 150]


@pytest.mark.parametrize(
    ("data", "message", "offset"),
    [
        (b"\x0a\x05hi", "field 1 runs past the end", 0),
        (b"\x08\x01\x0a", "ends inside a number", 3),
        (b"\x08\x80", "ends inside a number", 1),
        (b"\x00", "a field with the number 0", 0),
        (b"\x0b", "unknown wire type 3", 0),
        (b"\x08" + b"\xff" * 11, "a number of more than ten bytes", 1),
    ],
)
def test_damage_is_found_where_it_is(data, message, offset):
    with pytest.raises(FormatError, match=message) as caught:
        list(fields(data))
    assert caught.value.where == f"byte {offset}"


@given(st.lists(st.tuples(st.integers(1, 1 << 20), st.binary(max_size=300))))
def test_encoded_fields_are_found_again(values):
    data = b"".join(encode_field(number, value) for number, value in values)
    assert [(f.number, data[f.start : f.stop]) for f in fields(data)] == values


@given(st.binary(max_size=200))
def test_any_bytes_give_fields_or_a_format_error(data):
    try:
        list(fields(data))
    except FormatError:
        pass


@given(st.integers(0, (1 << 64) - 1), st.binary(max_size=3))
def test_numbers_are_read_back(value, after):
    encoded = encode_varint(value)
    assert varint(encoded + after, 0, len(encoded) + len(after)) == (value, len(encoded))
