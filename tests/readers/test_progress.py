"""Reading a large file shows progress where there is a terminal to show it on, and prints nothing elsewhere."""

import builtins
import io
import sys

import numpy as np
import pytest

import unlower
from unlower.readers import progress

VALUES = np.linspace(-1, 1, 1 << 18, dtype=np.float32)


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def path(tmp_path):
    numbers = ", ".join(map(repr, VALUES.tolist()))
    path = tmp_path / "weights[of]model.hlo"
    path.write_text(f"HloModule m\nENTRY e {{\n ROOT c = f32[{VALUES.size}] constant({{{numbers}}})\n}}\n")
    return path


def loaded(path, monkeypatch, stream, shown=1 << 20):
    monkeypatch.setattr(progress, "SHOWN", shown)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    program = unlower.load(path)
    np.testing.assert_array_equal(program(), VALUES)
    return stream.getvalue()


def test_on_a_terminal(path, monkeypatch):
    written = loaded(path, monkeypatch, Terminal())
    assert "reading weights[of]model.hlo" in written
    assert f"{path.stat().st_size / 1e6:.1f}" in written


def test_elsewhere(path, monkeypatch):
    assert loaded(path, monkeypatch, io.StringIO()) == ""


def test_of_a_small_file(path, monkeypatch):
    assert loaded(path, monkeypatch, Terminal(), shown=progress.SHOWN) == ""


def test_without_rich(path, monkeypatch):
    imported = builtins.__import__

    def refuse(name, *rest):
        if name.split(".")[0] == "rich":
            raise ImportError(name)
        return imported(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    assert loaded(path, monkeypatch, Terminal()) == ""
