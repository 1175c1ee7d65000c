import pathlib

import numpy as np
import pytest

from unlower.errors import FormatError
from unlower.readers.detect import read
from unlower.readers.elision import mark_hlo_text, mark_mlir_text

DATA = pathlib.Path(__file__).parent.parent / "data"

HLO = """HloModule m

// a comment with constant({...}) in it
half { p = f32[4] parameter(0)  h.1 = f32[4] constant({...})  ROOT r = f32[4] multiply(p, h.1) }

ENTRY e {
  x = f32[4]{0} parameter(0), metadata={op_name="constant({...})"}
  %table = s32[2,3]{0,1} constant({...}), metadata={op_name="t"}
  idx.7 = f32[4]{0} constant({1, 2, 3, 4})
  call = f32[4] call(x), to_apply=half
  ROOT out = (f32[4]{0}, /*index=1*/ s32[2,3]{0,1}) tuple(call, table)
}
"""

MLIR = """module {
  func.func @main(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<2xi32>) {
    %cst = stablehlo.constant dense_resource<__elided__> : tensor<4xf32>
    %c = stablehlo.constant dense_resource<__elided__> : tensor<2xi32>
    %0 = call @f(%x) : (tensor<4xf32>) -> tensor<4xf32>
    %1 = stablehlo.add %0, %cst : tensor<4xf32>
    return %1, %c : tensor<4xf32>, tensor<2xi32>
  }
  func.func private @f(%x: tensor<4xf32>) -> tensor<4xf32> {
    %cst = stablehlo.constant dense_resource<__elided__> : tensor<4xf32>
    %0 = stablehlo.add %x, %cst : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}
"""

SOURCES = {
    "hlo": (HLO, {"h.1": "tensor<4xf32>", "table": "tensor<2x3xi32>"}),
    "mlir": (MLIR, {"cst": "tensor<4xf32>", "c": "tensor<2xi32>", "cst#2": "tensor<4xf32>"}),
    "proto": (
        (DATA / "literals_without_payload.hlo.pb").read_bytes(),
        dict.fromkeys(
            ("add.2", "Relu.6", "MaxPool2d.2", "Relu.0", "constant.3", "MaxPool2d.0", "Softmax.27"), "tensor<f32>"
        ),
    ),
}


def constants(module):
    return {
        str(op.attributes["value"].type): op.attributes["value"]
        for function in module.functions.values()
        for op in function.body.ops
        if op.name == "stablehlo.constant"
    }


@pytest.mark.parametrize("kind", SOURCES)
def test_refused_with_the_name_and_type_of_each(kind):
    source, names = SOURCES[kind]
    with pytest.raises(FormatError, match=f"the values of {len(names)} constants were left out") as caught:
        read(source)
    for name, type_ in names.items():
        assert f"{name}: {type_}" in caught.value.where
    assert 'elided="zeros"' in caught.value.mend


@pytest.mark.parametrize("kind", SOURCES)
def test_zeros_when_asked_for(kind):
    source, names = SOURCES[kind]
    module = read(source, elided="zeros")
    found = constants(module)
    for type_ in names.values():
        assert not found[type_].expanded().any()


def test_arrays_by_name():
    table, h = np.arange(6, dtype=np.int32).reshape(2, 3), np.full(4, 0.5, np.float32)
    found = constants(read(HLO, elided={"table": table, "h.1": h}))
    assert found["tensor<2x3xi32>"].array.tolist() == table.tolist()
    assert found["tensor<2x3xi32>"].elided is None


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"table": np.zeros((2, 3), np.int32)}, "no array for h.1: tensor<4xf32>"),
        (
            {"table": np.zeros((3, 2), np.int32), "h.1": np.zeros(4, np.float32)},
            r"table is tensor<2x3xi32>, but the given array is int32\[3, 2\]",
        ),
        ({"table": np.zeros((2, 3), np.int32), "h.1": np.zeros(4)}, r"the given array is float64\[4\]"),
        (
            {"table": np.zeros((2, 3), np.int32), "h.1": np.zeros(4, np.float32), "tabel": np.zeros(1)},
            "no elided constant is called tabel",
        ),
    ],
)
def test_arrays_that_do_not_fit(arrays, message):
    with pytest.raises(FormatError, match=message):
        read(HLO, elided=arrays)


def test_arrays_for_a_file_that_elides_nothing():
    with pytest.raises(FormatError, match="no elided constant is called w"):
        read("HloModule m\nENTRY e { ROOT x = f32[] parameter(0) }", elided={"w": np.zeros(1)})


def test_a_resource_without_a_blob_is_elided_too():
    text = MLIR.replace("__elided__", "weights", 1)
    with pytest.raises(FormatError, match=r"weights: tensor<4xf32>"):
        read(text)


def test_a_wish_that_is_none():
    with pytest.raises(ValueError, match="elided='ones'"):
        read(HLO, elided="ones")


def test_strings_and_comments_are_left_alone():
    marked = mark_hlo_text(HLO)
    assert "// a comment with constant({...}) in it" in marked
    assert 'op_name="constant({...})"' in marked
    assert marked.count('custom_call_target="unlower.elided"') == 2
    assert mark_hlo_text("no dots") == "no dots"
    assert mark_mlir_text('"dense_resource<__elided__>"') == '"dense_resource<__elided__>"'


def test_elided_parts_of_tuples_are_refused():
    text = "HloModule m\nENTRY e {\n  ROOT c = (f32[2], f32[40]) constant(({1, 2}, {...}))\n}"
    with pytest.raises(FormatError, match="a constant has part of its values left out") as caught:
        read(text)
    assert caught.value.where == "line 3: ROOT c = (f32[2], f32[40]) constant(({1, 2}, {...}"
