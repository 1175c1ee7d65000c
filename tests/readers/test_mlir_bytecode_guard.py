"""Damage of MLIR bytecode that MLIR's own reader does not survive, or does not come back from, is refused before it."""

import io
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unlower
from unlower._jax_compat import mlir_ir as ir
from unlower._jax_compat import new_mlir_context
from unlower.errors import FormatError
from unlower.readers.mlir_bytecode import (
    DIALECTS,
    ENTRIES,
    OFFSETS,
    STRINGS,
    Bytecode,
    dialect_strings,
    encode_varint,
    entry_groups,
    sections,
    string_lengths,
)
from unlower.readers.mlir_bytecode_guard import DamageError, UnknownError, guard_bytecode

DATA = pathlib.Path(__file__).parent.parent / "data"


def model(x, i):
    table = np.array([[1.5, -2, 3], [4, 5, 6]], np.float32)
    y = jnp.tanh(x @ table.T) + jnp.sort(x, axis=1)[:, :2]
    y = jax.lax.fori_loop(0, 3, lambda _, c: jnp.where(c > 1, c / 2, c), y)
    return y[i], jax.lax.top_k(y, 1), jnp.fft.fft(y), y.astype(jnp.bfloat16).sum()


def raw():
    lowered = jax.jit(model).lower(np.ones((2, 3), np.float32), np.zeros(2, np.int32))
    buffer = io.BytesIO()
    lowered.compiler_ir("stablehlo").operation.write_bytecode(buffer)
    return buffer.getvalue()


RAW = raw()
PORTABLE = bytes(
    jax.export.export(jax.jit(model))(np.ones((2, 3), np.float32), np.zeros(2, np.int32)).mlir_module_serialized
)


def entries(data):
    """Yields dialect, whether an attribute, code, start and stop of each encoded entry."""
    found = {section.key: section for section in sections(data)}
    count, groups = entry_groups(data, found[OFFSETS][2:], found[ENTRIES][2:])
    names = names_of(data)
    index = 0
    for dialect, group in groups:
        for encoded, start, stop in group:
            if encoded:
                yield names[dialect], index < count, data[start] >> 1, start, stop
            index += 1


def names_of(data):
    found = {section.key: section for section in sections(data)}
    lengths, at = string_lengths(data, found[STRINGS].start)
    strings = []
    for length in lengths:
        strings.append(data[at : at + length - 1].decode())
        at += length
    numbers, _ = dialect_strings(data, found[DIALECTS].start, data[4] >> 1)
    return [strings[number] for number in numbers]


def changed(data, dialect, is_attribute, code, new):
    """The file with the bytes of the first entry of a kind replaced; `new` makes them of the old ones, as many."""
    for name, attribute, found, start, stop in entries(data):
        if (name, attribute, found) == (dialect, is_attribute, code):
            made = new(data[start:stop])
            assert made is None or len(made) == stop - start
            if made is not None and made != data[start:stop]:
                return data[:start] + made + data[stop:]
    raise AssertionError(f"no {code} of {dialect}")


def at(position, byte):
    return lambda old: old[:position] + bytes([byte]) + old[position + 1 :] if position < len(old) else None


def last_of(length, byte):
    """Changes the last byte of an entry of so many bytes, or of any number."""
    return lambda old: old[:-1] + bytes([byte]) if length in (None, len(old)) else None


WHOLE = {
    "raw": RAW,
    "portable": PORTABLE,
    "of 2024": (DATA / "portable_0_4_30.mlirbc").read_bytes(),
}


@pytest.mark.parametrize("kind", WHOLE)
def test_what_is_whole_passes(kind):
    guard_bytecode(WHOLE[kind])


BUILTIN, VHLO, ATTRIBUTE, TYPE = "builtin", "vhlo", True, False
DAMAGES = {
    "a name of a location that is no string": (RAW, BUILTIN, ATTRIBUTE, 14, at(1, 0x01), "of another kind"),
    "a location that is none": (RAW, BUILTIN, ATTRIBUTE, 14, last_of(3, 0x03), "of another kind"),
    "a string that is not there": (RAW, BUILTIN, ATTRIBUTE, 2, last_of(2, 0xFF), "refers to number 127"),
    "a long list": (RAW, BUILTIN, ATTRIBUTE, 1, at(1, 0xFF), "a list of 127 in fewer bytes"),
    "a code with other fields": (RAW, BUILTIN, ATTRIBUTE, 4, at(0, 14 << 1 | 1), "attribute"),
    "data of another size": (RAW, BUILTIN, ATTRIBUTE, 18, at(2, 0x05), "not end where it should|ends after|in 2 bytes"),
    "an array of another size": (RAW, BUILTIN, ATTRIBUTE, 17, at(2, 0x41), "32 numbers of 64 bits in"),
    "a type that is not there": (RAW, BUILTIN, TYPE, 13, last_of(None, 0xFF), "refers to number 127"),
    "a tensor of itself": (PORTABLE, VHLO, TYPE, 20, None, "a tensor of tensors"),
    "integers without bits": (RAW, BUILTIN, TYPE, 0, at(1, 0x01), "(integers|numbers) of 0 bits|does not end"),
    "data of a tensor of VHLO": (
        PORTABLE,
        VHLO,
        ATTRIBUTE,
        15,
        at(2, 0x05),
        "not end where it should|ends after|in 2 bytes",
    ),
    "an array of VHLO that is too long": (PORTABLE, VHLO, ATTRIBUTE, 1, at(1, 0xFD), "a list of 126 in fewer bytes"),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_damaged_attributes_and_types_are_named(kind):
    data, dialect, is_attribute, code, new, message = DAMAGES[kind]
    if new is None:
        # Every tensor is one of the first tensor, itself included.
        count = sum(1 for _, attribute, _, _, _ in entries(data) if attribute)
        number = next(i for i, entry in enumerate(entries(data)) if entry[:3] == (dialect, is_attribute, code)) - count

        def new(old):
            return old[:-1] + encode_varint(number)

    damaged = changed(data, dialect, is_attribute, code, new)
    with pytest.raises(DamageError, match=message):
        guard_bytecode(damaged)
    with pytest.raises(FormatError, match="damaged") as caught:
        unlower.load(damaged)
    assert caught.value.mend


def module_of(text):
    with new_mlir_context():
        buffer = io.BytesIO()
        ir.Module.parse(text).operation.write_bytecode(buffer)
        return buffer.getvalue()


def test_attributes_that_lead_to_themselves():
    data = module_of("module attributes {mhlo.a = [[1 : i32]]} {}")
    number = next(i for i, entry in enumerate(entries(data)) if entry[:3] == (BUILTIN, ATTRIBUTE, 0))
    damaged = changed(data, BUILTIN, ATTRIBUTE, 0, lambda old: old[:2] + encode_varint(number))
    with pytest.raises(DamageError, match="leads to itself"):
        guard_bytecode(damaged)


def test_what_nobody_knows_is_read_in_a_process_of_its_own():
    # A code that no release has: not for us to say that it is damage, and MLIR refuses it where it can do no harm.
    damaged = changed(RAW, "stablehlo", ATTRIBUTE, 5, at(0, 120 << 1 & 0xFF | 1))
    with pytest.raises(UnknownError):
        guard_bytecode(damaged)
    with pytest.raises(FormatError):
        unlower.load(damaged)


@pytest.mark.parametrize("data", [RAW, PORTABLE])
def test_arguments_and_more_operations_at_the_top(data):
    # MLIR's reader ends the process on them.
    start = next(section.start for section in sections(data) if section.key == 4)
    assert data[start] == 1 << 2 | 1
    for byte in (0x07, 0x09, 0x57):
        with pytest.raises(DamageError, match="not one operation at its top"):
            guard_bytecode(data[:start] + bytes([byte]) + data[start + 1 :])


@pytest.mark.parametrize("cut", range(5, len(RAW), 97))
def test_a_file_that_is_cut_off(cut):
    with pytest.raises(DamageError):
        guard_bytecode(RAW[:cut])


def test_tables_of_the_reader_and_of_the_guard_agree():
    # The guard lets pass what the reader of the written form can take apart.
    with new_mlir_context():
        buffer = io.BytesIO()
        ir.Module.parse(RAW).operation.write_bytecode(buffer, desired_version=4)
    assert Bytecode(buffer.getvalue()).attribute_count > 0
    guard_bytecode(buffer.getvalue())
