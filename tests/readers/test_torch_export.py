"""Bundles of torch_xla, written here by hand: called as the original is, and refused where they are damaged."""

import copy
import json

import numpy as np
import pytest

import unlower
from unlower.errors import FormatError, UnlowerError

MODULE = """module {
  func.func public @main(%scale: tensor<3xf32>, %x: tensor<2x3xf32>, %shift: tensor<f32>) -> tensor<2x3xf32> {
    %0 = stablehlo.broadcast_in_dim %scale, dims = [1] : (tensor<3xf32>) -> tensor<2x3xf32>
    %1 = stablehlo.multiply %x, %0 : tensor<2x3xf32>
    %2 = stablehlo.broadcast_in_dim %shift, dims = [] : (tensor<f32>) -> tensor<2x3xf32>
    %3 = stablehlo.add %1, %2 : tensor<2x3xf32>
    return %3 : tensor<2x3xf32>
  }
}
"""
LEAF = {"type": None, "context": None, "children_spec": []}


def spec(kind, context, *children):
    return {"type": kind, "context": context, "children_spec": list(children)}


ARGUMENTS = spec(
    "builtins.tuple", "null", spec("builtins.tuple", "null", LEAF), spec("builtins.dict", '["mask"]', LEAF)
)
META = {
    "name": "forward",
    "stablehlo_version": "0.0.0",
    "input_signature": [{"shape": [3], "dtype": "float32", "dynamic_dims": []}],
    "output_signature": [{"shape": [2, 3], "dtype": "float32", "dynamic_dims": []}],
    "input_locations": [
        {"type_": "parameter", "position": -1, "name": "norm.scale"},
        {"type_": "input_arg", "position": 0, "name": ""},
        {"type_": "constant", "position": 0, "name": ""},
    ],
    "unused_inputs": [[{"type_": "input_arg", "position": 1, "name": ""}, {"shape": [], "dtype": "torch.bool"}]],
    "input_pytree_spec": json.dumps([1, ARGUMENTS]),
    "output_pytree_spec": json.dumps([1, spec("builtins.dict", '["y"]', LEAF)]),
}
SCALE, SHIFT, X = np.array([1, 2, -0.0], np.float32), np.float32(0.5), np.arange(6, dtype=np.float32).reshape(2, 3)


def write(folder, meta=META):
    for name in ("functions", "data", "constants"):
        (folder / name).mkdir(exist_ok=True)
    (folder / "functions" / "forward.meta").write_text(json.dumps(meta))
    (folder / "functions" / "forward.mlir").write_text(MODULE)
    for path, array in (("data/norm.scale", SCALE), ("constants/0", SHIFT)):
        with (folder / path).open("wb") as file:
            np.save(file, array)
    return folder


def test_a_bundle_is_called_as_the_original(tmp_path):
    program = unlower.load(write(tmp_path))
    assert list(program.parameters) == ["norm.scale", "constants/0"]
    np.testing.assert_array_equal(program(X, mask=np.True_)["y"], X * SCALE + SHIFT, strict=True)
    other = program.apply({"norm.scale": SCALE + 1}, X)
    np.testing.assert_array_equal(other["y"], X * (SCALE + 1) + SHIFT, strict=True)


def nodes(value, path=()):
    """Every place in the metadata."""
    yield path
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from nodes(value[key], (*path, key))


ODD = [None, 0, -1, 2**70, 1.5, True, "x", "\N{LATIN SMALL LETTER E WITH ACUTE}", [], {}, [1], {"a": 1}]
PATHS = [path for path in nodes(META) if path]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: ".".join(map(str, path)))
def test_odd_metadata_is_read_or_refused(tmp_path, path):
    for odd in [*ODD, KeyError]:
        meta = copy.deepcopy(META)
        node = meta
        for key in path[:-1]:
            node = node[key]
        if odd is KeyError:
            del node[path[-1]]
        else:
            node[path[-1]] = odd
        write(tmp_path, meta)
        try:
            program = unlower.load(tmp_path)
            str(program.signature)
        except UnlowerError as error:
            assert error.mend  # noqa: PT017 (one of two outcomes)


@pytest.mark.parametrize("length", [0, 1, 6, 20, 40, 60, 80, 127, 129])
def test_a_weight_that_is_cut_off(tmp_path, length):
    path = write(tmp_path) / "data" / "norm.scale"
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(FormatError, match=r"the weight norm\.scale is no array"):
        unlower.load(tmp_path)


@pytest.mark.parametrize("head", [b"{'descr': '<f4", b"{'descr': '\\V", b"{" * 50, b"lambda: 0", b"{'shape': (1e9,)}"])
def test_a_weight_whose_head_is_no_python(tmp_path, head):
    path = write(tmp_path) / "data" / "norm.scale"
    path.write_bytes(b"\x93NUMPY\x01\x00\x76\x00" + head.ljust(117) + b"\n" + SCALE.tobytes())
    with pytest.raises(FormatError, match=r"the weight norm\.scale is no array"):
        unlower.load(tmp_path)


def test_a_module_that_is_empty(tmp_path):
    (write(tmp_path) / "functions" / "forward.mlir").write_bytes(b"")
    with pytest.raises(FormatError, match="the module is empty"):
        unlower.load(tmp_path)


def test_a_module_that_is_too_large(tmp_path):
    with pytest.raises(FormatError, match=f"{len(MODULE)} bytes, more than the 100"):
        unlower.load(write(tmp_path), limits=unlower.Limits(input_bytes=100))
