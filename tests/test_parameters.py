"""Checkpoints that name constants: read, and refused where they are damaged."""

import numpy as np
import pytest

import unlower
from unlower.errors import FormatError
from unlower.parameters import named_arrays, write_arrays

ARRAYS = {"a": np.arange(5.0, dtype=np.float32), "b": np.ones((2, 3), np.float64)}
WRITERS = {
    "npz": lambda path: np.savez(path, **ARRAYS),
    "compressed npz": lambda path: np.savez_compressed(path, **ARRAYS),
    "safetensors": lambda path: write_arrays(path, ARRAYS),
}


@pytest.fixture(params=WRITERS)
def path(request, tmp_path):
    path = tmp_path / ("w.safetensors" if request.param == "safetensors" else "w.npz")
    WRITERS[request.param](path)
    return path


def test_a_checkpoint_is_read_back(path):
    found = named_arrays(path)
    assert sorted(found) == ["a", "b"]
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found[name], array, strict=True)


def test_a_damaged_checkpoint_is_refused_or_read(path):
    whole = path.read_bytes()
    refused = 0
    for at in range(0, len(whole), 3):
        for data in (whole[:at], whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :]):
            path.write_bytes(data)
            try:
                named_arrays(path)
            except FormatError as error:
                refused += 1
                assert error.mend  # noqa: PT017 (one of two outcomes)
    assert refused > len(whole) // 4


def test_a_checkpoint_that_is_cut_off_names_its_path(path):
    path.write_bytes(path.read_bytes()[:60])
    program = unlower.load("HloModule m\nENTRY e { ROOT c = f32[5] constant({0,1,2,3,4}) }")
    with pytest.raises(FormatError) as caught:
        program.lift_constants(match=path)
    assert str(path) in str(caught.value)
