"""Variables of TensorFlow, written here as its TensorBundle has them: read bit for bit, and refused where they are damaged."""

import struct

import numpy as np
import pytest

from unlower.errors import FormatError
from unlower.readers.hlo.wire import encode_number
from unlower.readers.tensor_bundle import TensorBundle, _masked_crc32c, read_strings
from unlower.readers.wire import encode_field, encode_varint

ARRAYS = {"a/kernel": np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3), "step": np.array(7, np.int64)}
TYPES = {"float32": 1, "int64": 9}


def block(entries):
    """A block of a LevelDB table, whose keys share nothing with the one before."""
    body = b"".join(
        encode_varint(0) + encode_varint(len(key)) + encode_varint(len(value)) + key + value for key, value in entries
    )
    body += struct.pack("<II", 0, 1) + b"\0"
    return body + struct.pack("<I", _masked_crc32c(body))


def handle(offset, data):
    return encode_varint(offset) + encode_varint(len(data) - 5)


def index(entries):
    data = block(entries)
    pointers = block([(entries[-1][0], handle(0, data))])
    footer = handle(0, data) + handle(len(data), pointers)
    return data + pointers + footer.ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57)


def write(folder, arrays=ARRAYS):
    entries, stored = [(b"", encode_number(1, 1))], b""
    for name, array in sorted(arrays.items()):
        shape = b"".join(encode_field(2, encode_number(1, size)) for size in array.shape)
        entry = encode_number(1, TYPES[array.dtype.name]) + encode_field(2, shape)
        entry += encode_number(4, len(stored)) + encode_number(5, array.nbytes)
        stored += array.tobytes()
        entries.append((name.encode(), entry))
    (folder / "variables.index").write_bytes(index(entries))
    (folder / "variables.data-00000-of-00001").write_bytes(stored)
    return folder / "variables"


def test_checksum_of_the_literature():
    # CRC-32C of "123456789" is e3069283; rotated and offset as LevelDB does it.
    crc = 0xE3069283
    assert _masked_crc32c(b"123456789") == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def test_arrays_are_read_bit_for_bit(tmp_path):
    bundle = TensorBundle(write(tmp_path))
    assert list(bundle) == ["a/kernel", "step"]
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(bundle[name], array, strict=True)


@pytest.mark.parametrize("kept", [0, 1, 23])
def test_data_that_is_cut_off(tmp_path, kept):
    prefix = write(tmp_path)
    path = tmp_path / "variables.data-00000-of-00001"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(FormatError, match=rf"lies at bytes 0 to 24 of a file of {kept}"):
        TensorBundle(prefix)["a/kernel"]


def test_every_damaged_byte_of_the_index_is_noticed(tmp_path):
    prefix = write(tmp_path)
    path = tmp_path / "variables.index"
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        try:
            found = dict(TensorBundle(prefix))
        except FormatError:
            continue
        # What pads the footer, or leads to the block that nobody reads, says nothing.
        assert len(whole) - 48 <= at < len(whole) - 8
        assert list(found) == list(ARRAYS)


@pytest.mark.parametrize("size", range(0, 100, 7))
def test_an_index_that_is_cut_off(tmp_path, size):
    prefix = write(tmp_path)
    path = tmp_path / "variables.index"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(FormatError, match="variables") as caught:
        TensorBundle(prefix)
    assert caught.value.where is not None and str(path) in caught.value.where


def test_numbers_without_an_end_name_the_file(tmp_path):
    prefix = write(tmp_path)
    path = tmp_path / "variables.index"
    whole = path.read_bytes()
    path.write_bytes(whole[:-48] + b"\xff" * 40 + whole[-8:])
    with pytest.raises(FormatError, match="the index of the variables is damaged") as caught:
        TensorBundle(prefix)
    assert caught.value.where == str(path)


def test_strings():
    data = encode_varint(2) + encode_varint(300) + b"ab" + b"c" * 300
    assert read_strings(data, 2, checksum=False) == [b"ab", b"c" * 300]
    for damaged in (data[:-1], b"\x80" * 4, b""):
        with pytest.raises(FormatError, match="a string tensor is cut off"):
            read_strings(damaged, 2, checksum=False)
