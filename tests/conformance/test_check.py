"""The comparison with the figures on record; the corpora themselves are not run here."""

import importlib.util
import json
import pathlib

import pytest

SCRIPT = pathlib.Path(__file__).parent.parent.parent / "conformance" / "check.py"
spec = importlib.util.spec_from_file_location("check", SCRIPT)
check = importlib.util.module_from_spec(spec)
spec.loader.exec_module(check)

OUTPUT = """  text: exact 90, close 2 of 95 (error 3)
  hlo: exact 95, close 0 of 95 ()
  grad: exact 60, close 9 of 80 (error 11)
  grad: 3 of 70 have a stablehlo.while in the lowered module
  class plain: passed 48 of 50
jax harnesses [unlower, public, shard 0/8]: passed 90 of 95 (error 3, close 2) in 30 s
  reverse-mode gradient traces: 7 of 10
failures by case: /somewhere
"""


def test_every_figure_is_read():
    assert check.parse("harnesses", OUTPUT) == {
        "harnesses: text exact": (90, 95),
        "harnesses: hlo exact": (95, 95),
        "harnesses: grad exact": (60, 80),
        "harnesses: plain": (48, 50),
        "harnesses": (90, 95),
        "harnesses: gradient traces": (7, 10),
    }


@pytest.mark.parametrize(
    ("found", "recorded", "fell"),
    [
        ((9, 10), (9, 10), False),
        ((10, 10), (9, 10), False),
        ((8, 10), (9, 10), True),
        ((9, 11), (9, 10), True),  # a new case that fails
        ((10, 11), (9, 10), False),
        ((0, 0), (9, 10), True),  # nothing ran
    ],
)
def test_a_fall_is_fewer_passes_or_more_failures(found, recorded, fell):
    assert check.fell(found, recorded) is fell


@pytest.mark.parametrize(
    ("version", "record"), [("0.10.2", "0.10.2"), ("0.12.0.1", "0.12.0.1"), ("0.13.0", "0.12.0.1"), ("0.9.0", "")]
)
def test_the_nearest_older_record_counts(version, record):
    records = {"0.10.2": {}, "0.12.0.1": {}}
    assert check.on_record(records, version)[0] == record


def fake_corpora(folder, passed):
    """Corpora that print a figure each."""
    script = folder / "run"
    script.write_text(f'echo "all of it [unlower, all, shard 0/8]: passed {passed} of 10 in 0 s"\n')
    return folder


def test_a_fall_fails_the_check_and_recording_mends_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CONFORMANCE", str(fake_corpora(tmp_path, 9)))
    monkeypatch.setattr(check, "FIGURES", tmp_path / "figures.json")
    assert check.main(["--quick", "--record", "testdata", "files"]) == 0
    assert check.main(["--quick"]) == 0
    fake_corpora(tmp_path, 8)
    assert check.main(["--quick", "testdata"]) == 1
    out = capsys.readouterr().out
    assert "recorded 9 of 10  FELL" in out
    assert "1 figure fell" in out
    assert check.main(["--quick", "--record", "testdata"]) == 0
    (figures,) = json.loads(check.FIGURES.read_text())["quick"].values()
    assert figures == {"files": [9, 10], "testdata": [8, 10]}
    assert check.main(["--quick", "testdata"]) == 0
    assert check.main(["--quick", "files"]) == 1


def test_a_corpus_that_prints_nothing_has_fallen(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CONFORMANCE", str(fake_corpora(tmp_path, 9)))
    monkeypatch.setattr(check, "FIGURES", tmp_path / "figures.json")
    (tmp_path / "run").write_text("exit 1\n")
    assert check.main(["testdata"]) == 1


def test_without_corpora_there_is_a_status_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("CONFORMANCE", str(tmp_path))
    assert check.main(["--quick"]) == 2
