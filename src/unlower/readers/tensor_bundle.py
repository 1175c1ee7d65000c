"""TensorFlow's variables on disk -> NumPy arrays: the TensorBundle of a SavedModel or checkpoint, without TensorFlow.

`variables.index` is a LevelDB table of entries (`tensorflow/core/protobuf/tensor_bundle.proto`), sorted by name with
common prefixes left out; the elements are in `variables.data-00000-of-00001` and its kin, mapped and not copied. A
variable that was cut into slices has an entry for each, under a key in `OrderedCode`.
"""

import math
import pathlib
import struct
from collections.abc import Iterator, Mapping

import ml_dtypes
import numpy as np

from unlower.errors import FormatError
from unlower.readers.message import Message
from unlower.readers.wire import varint

__all__ = ["DTYPES", "TensorBundle", "read_strings"]

DTYPES: dict[int, np.dtype] = {
    number: np.dtype(dtype)
    for number, dtype in {
        1: np.float32,
        2: np.float64,
        3: np.int32,
        4: np.uint8,
        5: np.int16,
        6: np.int8,
        8: np.complex64,
        9: np.int64,
        10: np.bool_,
        # Quantized integers are stored as plain ones; their scales are elsewhere in the graph.
        11: np.int8,
        12: np.uint8,
        13: np.int32,
        14: ml_dtypes.bfloat16,
        15: np.int16,
        16: np.uint16,
        17: np.uint16,
        18: np.complex128,
        19: np.float16,
        22: np.uint32,
        23: np.uint64,
        24: ml_dtypes.float8_e5m2,
        25: ml_dtypes.float8_e4m3fn,
        26: ml_dtypes.float8_e4m3fnuz,
        27: ml_dtypes.float8_e4m3b11fnuz,
        28: ml_dtypes.float8_e5m2fnuz,
        29: ml_dtypes.int4,
        30: ml_dtypes.uint4,
        31: ml_dtypes.int2,
        32: ml_dtypes.uint2,
    }.items()
}
"""TensorFlow's `DataType` -> the NumPy dtype that holds one element (`tensorflow/core/framework/types.proto`)."""

_STRING = 7
_TABLE_MAGIC = 0xDB4775248B80FB57
_FOOTER = 48
_MEND = "copy the folder again, or save the model again; it is cut off or changed"


class TensorBundle(Mapping[str, np.ndarray]):
    """The arrays of a TensorBundle by name, read when asked for.

    Args:
      prefix: the path without `.index`, e.g. `model/variables/variables`.

    Raises:
      FormatError: a damaged or compressed index, a missing or short data file, an element type without a NumPy dtype.
      OSError: the index cannot be read.
    """

    def __init__(self, prefix: pathlib.Path):
        self._prefix = prefix
        self._shards: dict[int, np.ndarray] = {}
        index = prefix.with_name(f"{prefix.name}.index")
        self._entries: dict[bytes, Message] = {key: Message(value) for key, value in _read_table(index)}
        header = self._entries.pop(b"", None)
        if header is None:
            raise FormatError("the index of the variables has no header", where=str(index), mend=_MEND)
        if header.integer(2):
            raise FormatError(
                "the variables were written by a big-endian machine", where=str(index), mend="save them on another"
            )
        self._num_shards = header.integer(1)

    def __iter__(self) -> Iterator[str]:
        return iter([key.decode("utf-8", "replace") for key in self._entries if not key.startswith(b"\0")])

    def __len__(self) -> int:
        return sum(not key.startswith(b"\0") for key in self._entries)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.encode() in self._entries

    def __getitem__(self, name: str) -> np.ndarray:
        entry = self._entries[name.encode()]
        if entry.integer(1) == _STRING:
            raise FormatError(f"the variable {name} holds strings, which no XLA program takes", mend="leave it out")
        if 7 in entry:
            return self._join_slices(name, entry)
        return self._array(name, entry)

    def strings(self, name: str) -> list[bytes]:
        """The elements of a string tensor; raises KeyError for a name that is not there."""
        entry = self._entries[name.encode()]
        data = self._bytes(name, entry).tobytes()
        return read_strings(data, math.prod(_shape(entry)), checksum=True)

    def _array(self, name: str, entry: Message) -> np.ndarray:
        dtype, shape = self._dtype(name, entry), _shape(entry)
        data = self._bytes(name, entry)
        if data.size != dtype.itemsize * math.prod(shape):
            raise FormatError(
                f"the variable {name} has {data.size} bytes, but {dtype.name}{list(shape)} takes "
                f"{dtype.itemsize * math.prod(shape)}",
                where=str(self._prefix),
                mend=_MEND,
            )
        return data.view(dtype).reshape(shape)

    def _dtype(self, name: str, entry: Message) -> np.dtype:
        number = entry.integer(1)
        if number not in DTYPES:
            raise FormatError(
                f"the variable {name} is of TensorFlow's type {number}, which has no NumPy dtype",
                where=str(self._prefix),
                mend="save the model without it",
            )
        return DTYPES[number]

    def _bytes(self, name: str, entry: Message) -> np.ndarray:
        shard, offset, size = entry.integer(3), entry.integer(4), entry.integer(5)
        if size == 0:
            return np.zeros(0, np.uint8)
        data = self._shards.get(shard)
        if data is None:
            path = self._prefix.with_name(f"{self._prefix.name}.data-{shard:05d}-of-{self._num_shards:05d}")
            if not path.is_file():
                raise FormatError(f"the data file {path.name} is missing", where=str(path.parent), mend=_MEND)
            # An empty file cannot be mapped.
            data = np.memmap(path, np.uint8, "r") if path.stat().st_size else np.zeros(0, np.uint8)
            self._shards[shard] = data
        if not 0 <= offset <= offset + size <= data.size:
            raise FormatError(
                f"the variable {name} lies at bytes {offset} to {offset + size} of a file of {data.size}",
                where=str(self._prefix),
                mend=_MEND,
            )
        return data[offset : offset + size]

    def _join_slices(self, name: str, entry: Message) -> np.ndarray:
        shape = _shape(entry)
        joined = np.empty(shape, self._dtype(name, entry))
        covered = 0
        for extents in (piece.messages(1) for piece in entry.messages(7)):
            # A dimension without a length is whole.
            spans = [(x.integer(1), x.integer(2) if 2 in x else -1) for x in extents]
            part = self._entries.get(_slice_key(name, spans))
            if part is None:
                raise FormatError(f"a slice of the variable {name} is missing", where=str(self._prefix), mend=_MEND)
            array = self._array(name, part)
            place = tuple(slice(a, None if n < 0 else a + n) for a, n in spans)
            if joined[place].shape != array.shape:
                raise FormatError(f"a slice of the variable {name} does not fit", where=str(self._prefix), mend=_MEND)
            joined[place] = array
            covered += array.size
        if covered != joined.size:
            raise FormatError(f"slices of the variable {name} are missing", where=str(self._prefix), mend=_MEND)
        joined.flags.writeable = False
        return joined


def read_strings(data: bytes, count: int, *, checksum: bool) -> list[bytes]:
    """Splits the elements of a stored string tensor: their lengths as varints, a checksum, then their bytes."""
    strings, lengths, at = [], [], 0
    try:
        for _ in range(count):
            length, at = _read_number(data, at)
            lengths.append(length)
    except IndexError:
        at = len(data)
    at += 4 if checksum else 0
    for length in lengths:
        strings.append(data[at : at + length])
        at += length
    if at > len(data) or len(strings) != count:
        raise FormatError("a string tensor is cut off", mend=_MEND)
    return strings


def _shape(entry: Message) -> tuple[int, ...]:
    return tuple(size.integer(1) for size in entry.message(2).messages(2))


# --- the table: https://github.com/google/leveldb/blob/main/doc/table_format.md


def _read_table(path: pathlib.Path) -> Iterator[tuple[bytes, bytes]]:
    """Yields the keys and values of a LevelDB table, in order."""
    data = path.read_bytes()
    try:
        if len(data) < _FOOTER or struct.unpack("<Q", data[-8:])[0] != _TABLE_MAGIC:
            raise FormatError("this is no index of variables: the mark at its end is missing", where=str(path))
        footer, at = data[-_FOOTER:], 0
        _, at = _handle(footer, at)
        index, _ = _handle(footer, at)
        for _, value in _read_block(data, index, path):
            yield from _read_block(data, _handle(value, 0)[0], path)
    except (IndexError, struct.error):
        raise FormatError("the index of the variables is damaged", where=str(path), mend=_MEND) from None


def _read_block(data: bytes, handle: tuple[int, int], path: pathlib.Path) -> Iterator[tuple[bytes, bytes]]:
    """Yields the entries of one block: each key shares its first bytes with the one before."""
    offset, size = handle
    kind = data[offset + size]
    if kind:
        how = {1: "by Snappy", 2: "by Zstandard"}.get(kind, "in an unknown way")
        raise FormatError(
            f"the index of the variables is compressed {how}",
            where=f"{path}, byte {offset}",
            mend="save the model again; TensorFlow itself never compresses the index",
        )
    (stored,) = struct.unpack_from("<I", data, offset + size + 1)
    if stored != _masked_crc32c(data[offset : offset + size + 1]):
        raise FormatError(
            "the index of the variables is damaged: a checksum differs", where=f"{path}, byte {offset}", mend=_MEND
        )
    block = data[offset : offset + size]
    (restarts,) = struct.unpack_from("<I", block, size - 4)
    stop = size - 4 - 4 * restarts
    at, key = 0, b""
    while at < stop:
        shared, at = _read_number(block, at)
        fresh, at = _read_number(block, at)
        length, at = _read_number(block, at)
        key = key[:shared] + block[at : at + fresh]
        at += fresh
        yield key, block[at : at + length]
        at += length


def _handle(data: bytes, at: int) -> tuple[tuple[int, int], int]:
    offset, at = _read_number(data, at)
    size, at = _read_number(data, at)
    return (offset, size), at


def _read_number(data: bytes, at: int) -> tuple[int, int]:
    """Reads a varint; raises IndexError where there is none, as for any byte that is missing: the callers name the file."""
    try:
        return varint(data, at, len(data))
    except FormatError:
        raise IndexError(at) from None


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table


_CRC32C = _crc_table()


def _masked_crc32c(data: bytes) -> int:
    """The checksum of a block: CRC-32C, rotated and offset so that a checksum of checksums is no weaker."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC32C[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


# --- keys of slices: `tensorflow/core/util/saved_tensor_slice_util.cc`, `core/lib/strings/ordered_code.cc`


def _slice_key(name: str, spans: list[tuple[int, int]]) -> bytes:
    escaped = name.encode().replace(b"\xff", b"\xff\x00").replace(b"\0", b"\0\xff")
    pieces = [_number(0), escaped, b"\0\1", _number(len(spans))]
    for start, length in spans:
        pieces += [_signed(start), _signed(length)]
    return b"".join(pieces)


def _number(value: int) -> bytes:
    """Encodes an unsigned integer: its length in bytes, then the bytes, big-endian, without leading zeros."""
    body = value.to_bytes(8, "big").lstrip(b"\0")
    return bytes([len(body)]) + body


def _signed(value: int) -> bytes:
    """Encodes a signed integer: leading ones count the bytes, as in UTF-8, and the next bit is the sign."""
    magnitude = ~value if value < 0 else value
    length = 1 if magnitude < 64 else (magnitude.bit_length() // 7) + 1
    body = bytearray(value.to_bytes(max(length, 8), "big", signed=True)[-length:])
    header = {1: (0x80,), 2: (0xC0,), 3: (0xE0,), 4: (0xF0,), 5: (0xF8,), 6: (0xFC,), 7: (0xFE,)}
    header |= {8: (0xFF,), 9: (0xFF, 0x80), 10: (0xFF, 0xC0)}
    if length > 8:
        body = bytearray(value.to_bytes(length, "big", signed=True))
    for position, byte in enumerate(header[length]):
        body[position] ^= byte
    return bytes(body)
