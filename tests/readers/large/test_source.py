import pathlib
import subprocess
import sys

import numpy as np
import pytest

from unlower.readers.large.source import PIECE, Large


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("place", [0, 5, PIECE - 3, PIECE, 3 * PIECE - 1])
def test_find_looks_across_pieces(place, mapped, tmp_path):
    data = bytearray(3 * PIECE + 100)
    data[place : place + 6] = b"needle"
    path = tmp_path / "file"
    path.write_bytes(data)
    source = Large(path if mapped else bytes(data))
    assert source.find(b"needle", 0) == place
    assert source.find(b"needle", place) == place
    assert source.find(b"needle", place + 1) == -1
    assert source.find(b"needle", 0, place + 5) == -1


def test_what_was_let_go_can_be_read_again(tmp_path):
    data = np.random.default_rng(0).bytes(3 * PIECE + 7)
    path = tmp_path / "file"
    path.write_bytes(data)
    source = Large(path)
    for _ in range(2):
        assert source.copy() == data
        assert source.copy(PIECE - 1, PIECE + 9) == data[PIECE - 1 : PIECE + 9]


MEASURE = """
import pathlib, re, sys
import jax
import unlower
def resident(key):
    return int(re.search(key + r":\\s+(\\d+)", pathlib.Path("/proc/self/status").read_text())[1]) * 1024
unlower.load("HloModule m\\nENTRY e { ROOT x = f32[2] parameter(0) }")
before = resident("VmRSS")
program = unlower.load(pathlib.Path(sys.argv[1]))
if sys.argv[2] == "lift":
    program = program.lift_constants()
print((resident("VmHWM") - before) / float(sys.argv[3]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
@pytest.mark.parametrize("then", ["load", "lift"])
def test_memory_peaks_at_the_size_of_the_constant(then, tmp_path):
    data = np.random.default_rng(0).bytes(64 << 20)
    path = tmp_path / "program.mlir"
    type_ = f"tensor<{len(data) // 4}xf32>"
    path.write_text(
        f'module {{\n  func.func @main() -> {type_} {{\n    %c = stablehlo.constant dense<"0x{data.hex()}"> : {type_}\n'
        f"    return %c : {type_}\n  }}\n}}\n"
    )
    command = [sys.executable, "-c", MEASURE, str(path), then, str(len(data))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=pathlib.Path.cwd())
    assert not done.returncode, done.stderr
    # Read whole, it takes six times as much.
    assert float(done.stdout) < 1.3
