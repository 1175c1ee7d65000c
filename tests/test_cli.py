import json
import os
import pathlib
import subprocess
import sys

import pytest

import unlower
from unlower.cli import run

EXAMPLE = str(pathlib.Path(__file__).parent.parent / "examples" / "data" / "water_energy.hlo.txt")


@pytest.fixture
def module(tmp_path):
    """A file to look into."""

    def write(text, name="module.txt"):
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write


NEGATE = "HloModule tiny\nENTRY e { x = f32[2] parameter(0)  ROOT y = f32[2] negate(x) }"
FOREIGN = """
func.func public @main(%x: tensor<3xf32>) -> tensor<3xf32> {
  %y = stablehlo.custom_call @"acme[bold]"(%x) : (tensor<3xf32>) -> tensor<3xf32>
  return %y : tensor<3xf32>
}
"""


def test_inspect_prints_signature_sizes_and_operations(capsys):
    assert run(["inspect", EXAMPLE]) == 0
    out = capsys.readouterr().out
    for piece in ("water_energy", "float32[3,3]", "36 B", "stablehlo.tanh", "every operation is supported"):
        assert piece in out


def test_inspect_lists_what_is_unsupported_and_takes_names_literally(module, capsys):
    assert run(["inspect", module(FOREIGN)]) == 0
    out = capsys.readouterr().out
    assert "acme[bold]" in out
    assert "unsupported" in out
    assert "every operation is supported" not in out


def test_inspect_json(capsys):
    assert run(["inspect", "--json", EXAMPLE]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["name"] == "water_energy"
    assert record["inputs"][0]["type"] == "float32[3,3]"
    assert record["unsupported"] == []


def test_verify_prints_outcome_and_timings(capsys):
    assert run(["verify", EXAMPLE]) == 0
    out = capsys.readouterr().out
    for piece in ("bit-equal", "original, XLA", "loaded", "compile", "run"):
        assert piece in out


def test_verify_json_is_seeded(module, capsys):
    assert run(["verify", module(NEGATE), "--json", "--seed", "7"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["outcome"], record["seed"]) == ("equal", 7)


@pytest.mark.parametrize(
    ("outcome", "status", "words"),
    [("different", 1, "different: result 0"), ("refused", 3, "XLA refused the original: boom")],
)
def test_verify_tells_the_outcome_by_exit_status(outcome, status, words, module, capsys, monkeypatch):
    difference = unlower.report.Difference(
        result=0, index=(1,), original="1.0", loaded="2.0", elements=1, size=2, results=1
    )
    report = unlower.report.Verification(
        name="tiny",
        outcome=outcome,
        inputs=("float32[2]",),
        outputs=("float32[2]",),
        seed=0,
        difference=difference if outcome == "different" else None,
        refusal="boom" if outcome == "refused" else None,
        notes=("mind this",),
        timings=unlower.report.Timings(load=0.1),
    )
    monkeypatch.setattr("unlower.cli.verify", lambda *args, **kwargs: report)
    assert run(["verify", module(NEGATE)]) == status
    out = capsys.readouterr().out
    assert words in out
    assert "mind this" in out


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_a_file_that_is_no_program_is_explained(command, module, capsys):
    path = module("hello")
    assert run([command, path]) == 2
    assert "FormatError" in capsys.readouterr().err
    assert run([command, path, "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["type"] == "FormatError"
    assert error["mend"]


def test_a_file_that_is_not_there(capsys):
    assert run(["inspect", "no-such-file"]) == 2
    assert "no-such-file" in capsys.readouterr().err


def test_wrong_arguments_are_a_usage_error(capsys):
    with pytest.raises(SystemExit, match="2"):
        run([])
    assert "COMMAND" in capsys.readouterr().err


def test_python_m_unlower_is_silent_but_for_the_answer(module):
    command = [sys.executable, "-m", "unlower", "inspect", module(NEGATE), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["name"] == "tiny"
    assert done.stderr == ""


def test_without_rich_the_error_says_how_to_install_it(tmp_path):
    (tmp_path / "rich.py").write_text("raise ModuleNotFoundError('No module named rich', name='rich')")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "unlower", "inspect", EXAMPLE]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 2
    assert "pip install 'unlower[cli]'" in done.stderr
