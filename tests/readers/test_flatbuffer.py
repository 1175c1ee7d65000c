import contextlib
import struct

import pytest
from export_files import Writer
from hypothesis import given
from hypothesis import strategies as st

from unlower.errors import FormatError
from unlower.readers.flatbuffer import root_table

SAMPLE = Writer().finish(
    {
        0: ("h", -3),
        1: ("string", "näme"),
        3: ("bytes", b"\0\1\2"),
        4: ("numbers", ("I", [7, 2**32 - 1])),
        5: ("tables", [{0: ("b", 1)}, {}]),
        6: ("strings", ["a", ""]),
        7: ("?", True),
        8: ("table", {0: ("I", 5)}),
    }
)


def test_every_kind_of_field():
    table = root_table(SAMPLE)
    assert table.number(0, "h") == -3
    assert table.string(1) == "näme"
    assert table.bytes(3) == b"\0\1\2"
    assert table.numbers(4, "I") == (7, 2**32 - 1)
    assert [t.number(0, "b") for t in table.tables(5)] == [1, 0]
    assert table.strings(6) == ("a", "")
    assert table.number(7, "?") == 1
    assert table.table(8).number(0, "I") == 5
    assert table.begins(3, b"\0\1") and not table.begins(3, b"\0\1\2\3")


@pytest.mark.parametrize("field", [2, 9, 1000])
def test_a_missing_field_has_its_default(field):
    table = root_table(SAMPLE)
    assert not table.has(field)
    assert table.number(field, "H", 6) == 6
    assert table.table(field) is None and table.string(field) is None and table.bytes(field) is None
    assert table.numbers(field, "I") == () and table.tables(field) == [] and table.strings(field) == ()
    assert not table.begins(field, b"")


def read_all(table, depth=0):
    """Reads every field in every way."""
    for field in range(10):
        table.number(field, "I")
        for read in (table.string, table.bytes, table.strings):
            read(field)
        table.numbers(field, "I")
        for inner in (*table.tables(field), table.table(field)):
            if inner is not None and depth < 3:
                read_all(inner, depth + 1)


@given(st.data())
def test_damaged_bytes_are_format_errors(data):
    damaged = bytearray(SAMPLE)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(SAMPLE) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(SAMPLE)))
    for sample in (bytes(damaged), SAMPLE[:cut]):
        with contextlib.suppress(FormatError):
            read_all(root_table(sample))


def test_a_string_that_is_not_utf8():
    data = SAMPLE.replace("näme".encode(), b"n\xff\xffme")
    with pytest.raises(FormatError, match="not UTF-8"):
        root_table(data).string(1)


def test_a_reference_cannot_lead_back():
    data = bytearray(Writer().finish({0: ("table", {})}))
    at = root_table(bytes(data)).position + 4
    struct.pack_into("<I", data, at, 0)
    with pytest.raises(FormatError, match="a reference over 0 bytes"):
        root_table(bytes(data)).table(0)
