"""The data-flow hash: the wiring of a program, original against loaded and lowered again."""

import pathlib
import sys
import tarfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest

ROOT = pathlib.Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT / "conformance"))
import dataflow  # noqa: E402 - the folder of scripts is not a package

from unlower.readers.detect import read  # noqa: E402

DUMPS = ROOT.parent / "shared" / "corpus" / "real_hlo.tar.xz"
X = np.ones((4, 3), np.float32)


def hashes(fun, *args):
    return dataflow.Flow(read(jax.jit(fun, keep_unused=True).lower(*args))).results()


def test_spelling_does_not_count():
    @jax.jit
    def helper(x):
        return jnp.sin(x)

    assert hashes(lambda x: helper(x) + 1, X) == hashes(lambda x: jnp.sin(x) + np.ones((4, 3), np.float32), X)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (lambda x, y: x - y, lambda x, y: y - x),
        (lambda x, y: x * x + y, lambda x, y: x * y + x),
        (lambda x, y: jnp.sum(x, 0), lambda x, y: jnp.sum(y, 0)),
        (lambda x, y: x @ y.T, lambda x, y: jnp.matmul(x, y.T, precision="highest")),
        (lambda x, y: x[:2], lambda x, y: x[1:3]),
        (lambda x, y: x + 1, lambda x, y: x + 2),
    ],
)
def test_wiring_attributes_and_constants_count(first, second):
    assert hashes(first, X, X) != hashes(second, X, X)


def test_the_example_keeps_its_wiring():
    (path,) = (ROOT / "examples" / "data").glob("*.hlo.txt")
    agree, results = dataflow.compare(path.read_text())
    assert agree == results


@pytest.mark.skipif(not DUMPS.exists(), reason="the dumps of real models are kept beside the repository")
def test_real_dumps_keep_their_wiring():
    checked = 0
    with tarfile.open(DUMPS) as archive:
        names = sorted(n for n in archive.getnames() if n.endswith(".before_optimizations.txt"))
        for name in names[::15]:
            member = archive.extractfile(name)
            text = member.read().decode() if member else ""
            options = {"elided": "zeros"} if "constant({...})" in text else {}
            agree, results = dataflow.compare(text, **options)
            assert agree == results, f"{name}: {agree} of {results} results"
            checked += 1
    assert checked >= 5
