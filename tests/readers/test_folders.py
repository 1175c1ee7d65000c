"""Folders of modules: which file of a dump is taken, and what the others are."""

import pytest

import unlower
from unlower.errors import FormatError

HLO = "HloModule jit_{0}\nENTRY e {{ x = f32[2] parameter(0)  ROOT y = f32[2] {1}(x) }}\n"
MLIR = "module @jit_{0} {{ func.func public @main(%x: tensor<2xf32>) -> tensor<2xf32> {{\n"
MLIR += "  %0 = stablehlo.{1} %x : tensor<2xf32>\n  return %0 : tensor<2xf32> }} }}\n"


def dump(folder, number, name, *, inner=True, outer=True):
    """Writes what XLA dumps of one module; what it says tells the files apart."""
    stem = f"module_{number:04}.jit_{name}"
    if outer:
        (folder / f"{stem}.before_optimizations.txt").write_text(HLO.format(name, "negate"))
        (folder / f"{stem}.cpu_after_optimizations.txt").write_text(HLO.format(name, "abs"))
        (folder / f"{stem}.cpu_after_optimizations-memory-usage-report.txt").write_text("Total bytes: 8\n")
    if inner:
        (folder / stem).mkdir()
        (folder / stem / "module.mlir").write_text(MLIR.format(name, "sine"))
        (folder / stem / "compile_options.pb").write_bytes(b"\x1a\x02\x08\x01")


def names(program):
    return [op.name for op in program.module.main.body.ops]


def test_what_xla_puts_in_a_folder_of_its_own_is_of_the_same_module(tmp_path):
    dump(tmp_path, 10, "f")
    assert names(unlower.load(tmp_path)) == ["stablehlo.negate"]
    assert names(unlower.load(tmp_path, module="module_0010.jit_f/module.mlir")) == ["stablehlo.sine"]


def test_it_is_taken_where_there_is_nothing_else(tmp_path):
    dump(tmp_path, 10, "f", outer=False)
    assert names(unlower.load(tmp_path)) == ["stablehlo.sine"]


def test_several_modules_are_listed_once_each(tmp_path):
    dump(tmp_path, 10, "f")
    dump(tmp_path, 11, "g")
    with pytest.raises(FormatError, match="the folder holds 2 modules") as caught:
        unlower.load(tmp_path)
    assert "jit_f (" in caught.value.mend and "module.mlir" not in caught.value.mend
    assert unlower.load(tmp_path, module="jit_g").module.name == "jit_g"


def test_files_of_a_folder_that_is_no_dump_are_modules_of_their_own(tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "a.mlir").write_text(MLIR.format("a", "sine"))
    (tmp_path / "models" / "b.mlir").write_text(MLIR.format("b", "sine"))
    with pytest.raises(FormatError, match="the folder holds 2 modules"):
        unlower.load(tmp_path)
