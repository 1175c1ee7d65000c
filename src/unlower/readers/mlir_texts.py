"""The text of attributes whose encoding only MLIR knows: Shardy's, and those that a later release adds.

A small module is put together from the tables of the bytecode at hand, with these attributes in the dictionary of its one
operation; MLIR reads it, and spells them.
"""

from collections.abc import Sequence

from unlower._jax_compat import mlir_ir as ir
from unlower._jax_compat import new_mlir_context
from unlower.readers.mlir_bytecode import MAGIC, PROPERTIES, Bytecode, varint

__all__ = ["attribute_texts"]

_ARRAY, _DICTIONARY, _STRING = 0, 1, 2
_NAME = b"unlower.texts"


def attribute_texts(bytecode: Bytecode, wanted: Sequence[int], location: int) -> list[str]:
    """Spells attributes as MLIR does.

    Args:
      bytecode: the file whose tables hold them.
      wanted: the numbers of the attributes.
      location: the number of any location.

    Raises:
      ValueError: MLIR cannot read them either.
    """
    data = _module(bytecode, wanted, location)
    with new_mlir_context():
        try:
            listed = ir.ArrayAttr(ir.Module.parse(data).operation.attributes[_NAME.decode()])
            return [str(listed[i]) for i in range(len(listed))]
        except (ir.MLIRError, TypeError, RuntimeError) as error:
            raise ValueError(f"attributes that MLIR cannot spell: {error}") from None


def _module(bytecode: Bytecode, wanted: Sequence[int], location: int) -> bytes:
    """The bytecode of an empty module with the attribute `unlower.texts = [wanted...]`."""
    strings, count = bytecode.section(0), bytecode.attribute_count
    string_count, at = varint(strings, 0)
    lengths = at
    for _ in range(string_count):
        _, at = varint(strings, at)
    # Lengths are listed from the last string to the first.
    strings = b"".join(
        [_varint(string_count + 1), _varint(len(_NAME) + 1), strings[lengths:at], strings[at:], _NAME, b"\0"]
    )
    added = [
        _varint(_ARRAY) + _varint(len(wanted)) + b"".join(map(_varint, wanted)),
        _varint(_STRING) + _varint(string_count),
        _varint(_DICTIONARY) + _varint(1) + _varint(count + 1) + _varint(count),
    ]
    builtin = bytecode.dialects.index("builtin")
    sizes: list[tuple[int, int]] = []
    pieces: list[bytes] = []
    for index in range(bytecode.entry_count):
        if index == count:
            sizes += [(builtin, len(piece) << 1 | 1) for piece in added]
            pieces += added
        dialect, encoded, start, stop = bytecode.entries[index]
        sizes.append((bytecode.dialects.index(dialect), (stop - start) << 1 | encoded))
        pieces.append(bytecode.data[start:stop])
    offsets = [_varint(count + len(added)), _varint(bytecode.entry_count - count)]
    offsets += [_varint(dialect) + _varint(1) + _varint(size) for dialect, size in sizes]
    # A block of one operation: the module, with attributes (1) and an isolated region (16) of one empty block.
    region = _section(4, _varint(1) + _varint(0) + _varint(0))
    operation = _varint(bytecode.op_names.index("builtin.module")) + bytes([1 | 16]) + _varint(location)
    operation += _varint(count + 2) + _varint(3) + region
    sections = [
        _section(0, strings),
        _section(1, bytecode.section(1)),
        _section(2, b"".join(pieces)),
        _section(3, b"".join(offsets)),
        _section(4, _varint(2) + operation),
        *([_section(PROPERTIES, _varint(0))] if bytecode.version >= 5 else []),
    ]
    return MAGIC + _varint(bytecode.version) + b"unlower\0" + b"".join(sections)


def _section(key: int, data: bytes) -> bytes:
    return bytes([key]) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    """Writes an integer as `mlir_bytecode.varint` reads it."""
    size = next((size for size in range(1, 9) if value < 1 << 7 * size), 9)
    if size == 9:
        return b"\0" + value.to_bytes(8, "little")
    return (((value << 1) | 1) << (size - 1)).to_bytes(size, "little")
