import pathlib
import subprocess
import sys

import numpy as np

import unlower

EXAMPLES = pathlib.Path(__file__).parent.parent / "examples"


def test_the_model_is_made_by_the_script_beside_it(tmp_path):
    out = tmp_path / "model.hlo.txt"
    command = [sys.executable, str(EXAMPLES / "make_model.py"), "--steps", "20", "--out", str(out)]
    subprocess.run(command, capture_output=True, text=True, check=True)
    made, kept = (path.read_text() for path in (out, EXAMPLES / "data" / "water_energy.hlo.txt"))
    assert "..." not in kept
    assert [line.split(" = ")[0] for line in made.splitlines()] == [line.split(" = ")[0] for line in kept.splitlines()]
    program = unlower.load(out)
    assert np.isfinite(program(np.eye(3, dtype=np.float32)))


def test_the_network_learned_its_lesson():
    program = unlower.load(EXAMPLES / "data" / "water_energy.hlo.txt")
    rest = np.array([[0, 0, 0], [0.9572, 0, 0], [-0.24, 0.9266, 0]], np.float32)
    stretched = rest * np.float32(1.1)
    assert abs(program(rest)) < 0.05
    assert 0.2 < program(stretched) < 0.6
