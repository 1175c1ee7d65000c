"""The arrows between the packages of `unlower` point one way, and no file grows without end."""

import ast
import pathlib

import pytest

SOURCE = pathlib.Path(__file__).parent.parent / "src" / "unlower"

# From the ground up; a layer may import what stands below it, and its members leave each other alone.
LAYERS = (
    ("errors",),
    ("_registry", "_jax_compat", "_collector", "_jax_compat_mlir"),
    ("_jax_compat_interpret",),
    ("ir",),
    ("readers", "ops", "raising", "report", "_xla_child"),
    ("evaluate",),
    ("avals", "binding", "differentiation", "parameters", "platforms", "signature"),
    ("program",),
    ("decompile", "inspection", "verification"),
    ("cli",),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}

# Packages beside the tower, which rest on a few of its layers only.
ALLOWED = {
    "interpret": {"errors", "_registry", "_jax_compat", "_jax_compat_interpret"},
    "amp": {"errors", "_registry", "_jax_compat", "_jax_compat_interpret", "interpret"},
    "transforms": {"errors", "_registry", "_jax_compat", "_jax_compat_interpret", "interpret"},
}
FACE = {"", "__main__"}  # the public face and the command may import anything

FILES = sorted(SOURCE.rglob("*.py"))
MOST_LINES = 500


def package_of(module: str) -> str:
    """`"unlower.ir.types"` -> `"ir"`; the top level is the empty string."""
    return [*module.split("."), ""][1]


def modules_imported(tree: ast.AST) -> list[tuple[int, str]]:
    """Line and module of every import of `unlower` in a file, at whatever depth."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute, so that the arrows show"
            names = [f"unlower.{alias.name}" for alias in node.names] if node.module == "unlower" else [node.module]
            found += [(node.lineno, name) for name in names]
    return [(line, name) for line, name in found if name is not None and name.split(".")[0] == "unlower"]


def may_import(importer: str, imported: str) -> bool:
    """Whether the arrow from one package to another points the right way."""
    if importer in FACE or importer == imported:
        return True
    if importer in ALLOWED:
        return imported in ALLOWED[importer]
    return imported in LEVEL and LEVEL[imported] < LEVEL[importer]


def relative(path: pathlib.Path) -> str:
    return str(path.relative_to(SOURCE.parent))


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_imports_point_one_way(path):
    module = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")
    importer = package_of(module)
    assert importer in FACE or importer in ALLOWED or importer in LEVEL, f"{importer} has no layer in this test"
    crossed = [
        f"{relative(path)}:{line}: {importer} -> {package_of(name) or 'unlower'}"
        for line, name in modules_imported(ast.parse(path.read_text()))
        if not may_import(importer, package_of(name))
    ]
    assert not crossed, "\n".join(crossed)


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_no_file_grows_without_end(path):
    lines = len(path.read_text().splitlines())
    assert lines <= MOST_LINES, f"{relative(path)} has {lines} lines: split it by what it does"


@pytest.mark.parametrize(
    ("importer", "imported", "fine"),
    [
        ("ir", "errors", True),
        ("ir", "ops", False),
        ("readers", "ops", False),
        ("evaluate", "ops", True),
        ("interpret", "_jax_compat", True),
        ("interpret", "ir", False),
        ("amp", "interpret", True),
        ("ops", "", False),
        ("", "cli", True),
    ],
)
def test_the_rule_itself(importer, imported, fine):
    assert may_import(importer, imported) is fine
