"""Every Python block of the README and of the documentation runs, and so do the README's commands."""

import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page):
    """The Python blocks of a page, each padded so that its line numbers are the page's."""
    text = page.read_text()
    return ["\n" * text.count("\n", 0, match.start(1)) + match[1] for match in BLOCK.finditer(text)]


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda p: str(p.relative_to(ROOT)))
def test_python_blocks_run_in_order(page, monkeypatch):
    monkeypatch.chdir(ROOT)
    # Readers paste these into a plain session, so strict promotion is off, as it is there.
    import jax

    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        names = {"__name__": "__main__"}
        for block in blocks(page):
            exec(compile(block, str(page), "exec"), names)


def test_the_tour_is_short():
    (tour,) = blocks(ROOT / "README.md")
    assert len(tour.strip().splitlines()) <= 20


def test_continuous_integration_runs_the_readmes_test_command():
    commands = re.search(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[1].splitlines()
    assert f'test_command="{commands[1]}"' in (ROOT / ".ci" / "run").read_text()


def test_the_main_job_does_what_it_says():
    done = subprocess.run(
        [sys.executable, "examples/run_model.py"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "(float32[3,3]) -> (float32[])" in done.stdout
    # A bending and two stretching vibrations, near those of real water.
    found = [int(word) for word in done.stdout.splitlines()[-1].split(", ")]
    assert found == pytest.approx([1595, 3657, 3756], rel=0.15)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if not link.startswith(("http", "mailto:")):
            assert (page.parent / link).exists(), link
