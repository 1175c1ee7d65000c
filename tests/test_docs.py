"""What scripts write is what is committed."""

import importlib.util
import pathlib

import unlower

DOCS = pathlib.Path(__file__).parent.parent / "docs"


def script(name):
    """A script of docs/ as a module."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_coverage_is_up_to_date():
    assert (DOCS / "coverage.md").read_text() == script("make_coverage").write(), "run: python docs/make_coverage.py"


def test_coverage_names_every_rule():
    page = (DOCS / "coverage.md").read_text()
    assert all(f"| `{name}` |" in page for name in unlower.op_rules)


def test_every_rule_says_what_it_means():
    silent = [name for name, rule in unlower.op_rules.items() if not script("make_coverage").meaning(rule)]
    assert not silent


def test_the_picture_is_up_to_date():
    assert (DOCS / "pipeline.svg").read_text() == script("make_pipeline").draw(), "run: python docs/make_pipeline.py"
