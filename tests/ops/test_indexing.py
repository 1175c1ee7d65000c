"""Gather, scatter and the dynamic slices, in and out of bounds."""

import jax
import numpy as np
import pytest
from op_checks import Case, check_derivative, check_relowers, check_value, check_vmap, ids, module

import unlower

_RNG = np.random.default_rng(2)
_X = _RNG.standard_normal((4, 5))
_CUBE = _RNG.standard_normal((2, 4, 5))


def _gather(
    numbers: str, sizes: str, operand: str, indices: str, out: str, element: str = "f64", integer: str = "i32"
) -> str:
    signature = f"(tensor<{operand}x{element}>, tensor<{indices}x{integer}>) -> tensor<{out}x{element}>"
    return module(
        f"tensor<{operand}x{element}>; tensor<{indices}x{integer}>",
        f"tensor<{out}x{element}>",
        f"""    %0 = "stablehlo.gather"(%a0, %a1) <{{dimension_numbers = #stablehlo.gather<{numbers}>,
      slice_sizes = array<i64: {sizes}>, indices_are_sorted = false}}> : {signature}
    return %0 : tensor<{out}x{element}>""",
    )


_ROWS = "offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1"
_ROW_INDICES = np.array([[2], [0], [3]], np.int32)
_OUTSIDE = np.array([[7], [-3], [1]], np.int32)
_BLOCKS = "offset_dims = [1, 2], start_index_map = [1, 0], index_vector_dim = 1"
_BATCHED = """offset_dims = [2], collapsed_slice_dims = [1], operand_batching_dims = [0],
      start_indices_batching_dims = [1], start_index_map = [1], index_vector_dim = 2"""

_GATHERS = [
    Case("rows", _gather(_ROWS, "1, 5", "4x5", "3x1", "3x5"), [_X, _ROW_INDICES], (0,), primitive="gather"),
    Case("rows_outside", _gather(_ROWS, "1, 5", "4x5", "3x1", "3x5"), [_X, _OUTSIDE], (0,), primitive="gather"),
    Case(
        "rows_by_bytes",
        _gather(_ROWS, "1, 5", "4x5", "3x1", "3x5", integer="ui8"),
        [_X, np.array([[200], [0], [3]], np.uint8)],
        (0,),
        primitive="gather",
    ),
    Case(
        "rows_by_longs",
        _gather(_ROWS, "1, 5", "4x5", "3x1", "3x5", "i16", "i64"),
        [(_X * 9).astype(np.int16), _OUTSIDE.astype(np.int64)],
        primitive="gather",
    ),
    Case(
        "blocks_outside",
        _gather(_BLOCKS, "2, 3", "4x5", "3x2", "3x2x3"),
        [_X, np.array([[1, 1], [4, 3], [-1, -9]], np.int32)],
        (0,),
        primitive="gather",
    ),
    Case(
        "batched",
        _gather(_BATCHED, "1, 1, 5", "2x4x5", "3x2x1", "3x2x5"),
        [_CUBE, np.array([[[0], [3]], [[5], [1]], [[2], [-1]]], np.int32)],
        (0,),
        primitive="gather",
    ),
    # lax knows the index vector in the last dimension only.
    Case(
        "index_vector_first",
        _gather(_BLOCKS.replace("index_vector_dim = 1", "index_vector_dim = 0"), "2, 3", "4x5", "2x3", "3x2x3"),
        [_X, np.array([[1, 4, -1], [1, 3, -9]], np.int32)],
        (0,),
        primitive="reemit",
    ),
    Case(
        "index_vector_implied",
        _gather(_ROWS, "1, 5", "4x5", "3", "3x5"),
        [_X, np.array([2, 9, 0], np.int32)],
        (0,),
        primitive="reemit",
    ),
    Case("no_indices", _gather(_ROWS, "1, 5", "4x5", "0x1", "0x5"), [_X, np.zeros((0, 1), np.int32)]),
    Case(
        "dynamic_gather",
        module(
            "tensor<4x5xf64>; tensor<3x1xi32>",
            "tensor<3x5xf64>",
            f"""    %c = stablehlo.constant dense<[1, 5]> : tensor<2xi64>
    %0 = "stablehlo.dynamic_gather"(%a0, %a1, %c) <{{dimension_numbers = #stablehlo.gather<{_ROWS}>}}> :
      (tensor<4x5xf64>, tensor<3x1xi32>, tensor<2xi64>) -> tensor<3x5xf64>
    return %0 : tensor<3x5xf64>""",
        ),
        [_X, _ROW_INDICES],
        (0,),
        relowers=False,
        expected=[_X[[2, 0, 3]]],
    ),
]


def _index_select(operand: str, index: str, out: str, dim: int, batch_dims: int) -> str:
    return module(
        f"tensor<{operand}xf64>; tensor<{index}xi32>",
        f"tensor<{out}xf64>",
        f"""    %0 = "stablehlo.torch_index_select"(%a0, %a1) <{{dim = {dim} : i64, batch_dims = {batch_dims} : i64}}> :
      (tensor<{operand}xf64>, tensor<{index}xi32>) -> tensor<{out}xf64>
    return %0 : tensor<{out}xf64>""",
    )


_GATHERS += [
    Case(
        "index_select",
        _index_select("2x4x5", "3", "2x3x5", 1, 0),
        [_CUBE, np.array([3, 0, 9], np.int32)],
        (0,),
        relowers=False,
    ),
    Case(
        "index_select_batched",
        _index_select("2x4x5", "2x3", "2x4x3", 2, 1),
        [_CUBE, np.array([[3, 0, 4], [1, 1, 2]], np.int32)],
        (0,),
        relowers=False,
    ),
    Case(
        "index_select_by_a_table",
        _index_select("2x4x5", "2x3x2", "2x3x2x5", 1, 1),
        [_CUBE, np.arange(12, dtype=np.int32).reshape(2, 3, 2) % 4],
        (0,),
        relowers=False,
    ),
]


def _slice(element: str, out: str = "2x3") -> str:
    return module(
        f"tensor<4x5xf64>; tensor<{element}>; tensor<{element}>",
        f"tensor<{out}xf64>",
        f"""    %0 = stablehlo.dynamic_slice %a0, %a1, %a2, sizes = [{out.replace("x", ", ")}] :
      (tensor<4x5xf64>, tensor<{element}>, tensor<{element}>) -> tensor<{out}xf64>
    return %0 : tensor<{out}xf64>""",
    )


def _update(element: str) -> str:
    return module(
        f"tensor<4x5xf64>; tensor<2x3xf64>; tensor<{element}>; tensor<{element}>",
        "tensor<4x5xf64>",
        f"""    %0 = stablehlo.dynamic_update_slice %a0, %a1, %a2, %a3 :
      (tensor<4x5xf64>, tensor<2x3xf64>, tensor<{element}>, tensor<{element}>) -> tensor<4x5xf64>
    return %0 : tensor<4x5xf64>""",
    )


_U = _RNG.standard_normal((2, 3))

_SLICES = [
    Case("slice", _slice("i32"), [_X, np.int32(1), np.int32(2)], (0,), primitive="dynamic_slice"),
    Case("slice_outside", _slice("i64"), [_X, np.int64(-1), np.int64(9)], (0,), primitive="dynamic_slice"),
    Case("slice_by_bytes", _slice("ui8"), [_X, np.uint8(250), np.uint8(1)], (0,), primitive="dynamic_slice"),
    Case("slice_of_nothing", _slice("i32", "0x3"), [_X, np.int32(1), np.int32(2)]),
    Case("update", _update("i32"), [_X, _U, np.int32(1), np.int32(2)], (0, 1), primitive="dynamic_update_slice"),
    Case("update_outside", _update("i8"), [_X, _U, np.int8(-5), np.int8(99)], (0, 1), primitive="dynamic_update_slice"),
]

_REGIONS = {
    "replace": "stablehlo.return %y : tensor<f64>",
    "nothing": "stablehlo.return %x : tensor<f64>",
    "add_twice": """%1 = stablehlo.add %y, %y : tensor<f64>
        %2 = stablehlo.add %x, %1 : tensor<f64>
        stablehlo.return %2 : tensor<f64>""",
    **{
        op: f"""%1 = stablehlo.{op} %x, %y : tensor<f64>
        stablehlo.return %1 : tensor<f64>"""
        for op in ("add", "multiply", "minimum", "maximum", "subtract")
    },
}


def _scatter(
    region: str, numbers: str, operand: str, indices: str, updates: str, unique: str = "false", integer: str = "i32"
) -> str:
    types = f"(tensor<{operand}xf64>, tensor<{indices}x{integer}>, tensor<{updates}xf64>) -> tensor<{operand}xf64>"
    return module(
        f"tensor<{operand}xf64>; tensor<{indices}x{integer}>; tensor<{updates}xf64>",
        f"tensor<{operand}xf64>",
        f"""    %0 = "stablehlo.scatter"(%a0, %a1, %a2) <{{scatter_dimension_numbers = #stablehlo.scatter<{numbers}>,
      indices_are_sorted = false, unique_indices = {unique}}}> ({{
      ^bb0(%x: tensor<f64>, %y: tensor<f64>):
        {_REGIONS[region]}
    }}) : {types}
    return %0 : tensor<{operand}xf64>""",
    )


_INTO_ROWS = (
    "update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1"
)
_INTO_BLOCKS = "update_window_dims = [1, 2], scatter_dims_to_operand_dims = [1, 0], index_vector_dim = 1"
_INTO_BATCHED = """update_window_dims = [2], inserted_window_dims = [1], input_batching_dims = [0],
      scatter_indices_batching_dims = [1], scatter_dims_to_operand_dims = [1], index_vector_dim = 2"""
_TWICE = np.array([[2], [0], [2]], np.int32)
_BLOCK_PLACES = np.array([[1, 1], [3, 2], [-1, 0]], np.int32)
_ROW_UPDATES = _RNG.standard_normal((3, 5))
_BLOCK_UPDATES = _RNG.standard_normal((3, 2, 3))
_BATCH_PLACES = np.array([[[0], [3]], [[5], [1]], [[2], [3]]], np.int32)
_BATCH_UPDATES = _RNG.standard_normal((3, 2, 5))


def _rows(region: str, unique: str = "false", integer: str = "i32") -> str:
    return _scatter(region, _INTO_ROWS, "4x5", "3x1", "3x5", unique, integer)


_TWO_ARRAYS = module(
    "tensor<4x5xf64>; tensor<4x5xf64>; tensor<3x1xi32>; tensor<3x5xf64>; tensor<3x5xf64>",
    "tensor<4x5xf64>, tensor<4x5xf64>",
    f"""    %0:2 = "stablehlo.scatter"(%a0, %a1, %a2, %a3, %a4) <{{
      scatter_dimension_numbers = #stablehlo.scatter<{_INTO_ROWS}>, indices_are_sorted = false, unique_indices = false}}> ({{
      ^bb0(%x: tensor<f64>, %z: tensor<f64>, %y: tensor<f64>, %w: tensor<f64>):
        %1 = stablehlo.multiply %x, %w : tensor<f64>
        %2 = stablehlo.add %z, %y : tensor<f64>
        stablehlo.return %1, %2 : tensor<f64>, tensor<f64>
    }}) : (tensor<4x5xf64>, tensor<4x5xf64>, tensor<3x1xi32>, tensor<3x5xf64>, tensor<3x5xf64>)
      -> (tensor<4x5xf64>, tensor<4x5xf64>)
    return %0#0, %0#1 : tensor<4x5xf64>, tensor<4x5xf64>""",
)

_SCATTERS = [
    Case("scatter_add", _rows("add"), [_X, _TWICE, _ROW_UPDATES], (0, 2), primitive="scatter-add"),
    Case("scatter_add_outside", _rows("add"), [_X, _OUTSIDE, _ROW_UPDATES], (0, 2), primitive="scatter-add"),
    Case("scatter_replace", _rows("replace"), [_X, _ROW_INDICES, _ROW_UPDATES], (0, 2), primitive="scatter"),
    Case("scatter_replace_outside", _rows("replace"), [_X, _OUTSIDE, _ROW_UPDATES], (0, 2), primitive="scatter"),
    Case(
        "scatter_mul_unique",
        _rows("multiply", "true"),
        [_X, _ROW_INDICES, _ROW_UPDATES],
        (0, 2),
        primitive="scatter-mul",
    ),
    Case("scatter_mul", _rows("multiply"), [_X, _TWICE, _ROW_UPDATES], (0, 2)),
    Case("scatter_min", _rows("minimum"), [_X, _TWICE, _ROW_UPDATES], (0, 2), primitive="scatter-min"),
    Case("scatter_max", _rows("maximum"), [_X, _OUTSIDE, _ROW_UPDATES], (0, 2), primitive="scatter-max"),
    Case("scatter_subtract", _rows("subtract"), [_X, _TWICE, _ROW_UPDATES], (0, 2)),
    Case("scatter_nothing", _rows("nothing"), [_X, _TWICE, _ROW_UPDATES], (0, 2)),
    Case("scatter_any", _rows("add_twice"), [_X, _TWICE, _ROW_UPDATES], (0, 2), primitive="reemit"),
    Case("scatter_any_outside", _rows("add_twice", integer="i8"), [_X, _OUTSIDE.astype(np.int8), _ROW_UPDATES], (0, 2)),
    Case("scatter_by_bytes", _rows("add", integer="ui8"), [_X, _TWICE.astype(np.uint8), _ROW_UPDATES], (0, 2)),
    Case(
        "scatter_blocks",
        _scatter("add", _INTO_BLOCKS, "4x5", "3x2", "3x2x3"),
        [_X, _BLOCK_PLACES, _BLOCK_UPDATES],
        (0, 2),
        primitive="scatter-add",
    ),
    Case(
        "scatter_any_blocks",
        _scatter("add_twice", _INTO_BLOCKS, "4x5", "3x2", "3x2x3"),
        [_X, _BLOCK_PLACES, _BLOCK_UPDATES],
        (0, 2),
    ),
    Case(
        "scatter_batched",
        _scatter("add", _INTO_BATCHED, "2x4x5", "3x2x1", "3x2x5"),
        [_CUBE, _BATCH_PLACES, _BATCH_UPDATES],
        (0, 2),
        primitive="scatter-add",
    ),
    Case(
        "scatter_any_batched",
        _scatter("add_twice", _INTO_BATCHED, "2x4x5", "3x2x1", "3x2x5"),
        [_CUBE, _BATCH_PLACES, _BATCH_UPDATES],
        (0, 2),
    ),
    Case(
        "scatter_index_vector_first",
        _scatter("add", _INTO_BLOCKS.replace("index_vector_dim = 1", "index_vector_dim = 0"), "4x5", "2x3", "3x2x3"),
        [_X, _BLOCK_PLACES.T, _BLOCK_UPDATES],
        (0, 2),
        primitive="reemit",
    ),
    Case(
        "scatter_index_vector_implied",
        _scatter("replace", _INTO_ROWS, "4x5", "3", "3x5"),
        [_X, _ROW_INDICES[:, 0], _ROW_UPDATES],
        (0, 2),
        primitive="reemit",
    ),
    Case("scatter_two_arrays", _TWO_ARRAYS, [_X, _X[::-1], _TWICE, _ROW_UPDATES, _ROW_UPDATES[::-1]], (0, 1, 3, 4)),
    Case(
        "scatter_no_updates",
        _scatter("add_twice", _INTO_ROWS, "4x5", "0x1", "0x5"),
        [_X, np.zeros((0, 1), np.int32), np.zeros((0, 5))],
        (0,),
    ),
]

_CASES = _GATHERS + _SLICES + _SCATTERS


@pytest.mark.parametrize("case", _CASES, ids=ids)
def test_value(case):
    check_value(case)


@pytest.mark.parametrize("case", _CASES, ids=ids)
def test_relowers(case):
    check_relowers(case)


@pytest.mark.parametrize("case", _CASES, ids=ids)
def test_vmap(case):
    check_vmap(case)


@pytest.mark.parametrize("case", [case for case in _CASES if case.moving], ids=ids)
def test_derivative(case):
    check_derivative(case)


def test_gradient_of_a_gather_outside_goes_where_the_value_came_from():
    """The specification clamps the start, so the last row is read, and gets the gradient."""
    with jax.enable_x64(True):
        program = unlower.load(_gather(_ROWS, "1, 5", "4x5", "3x1", "3x5"))
        gradient = jax.grad(lambda x: program.flat(x, _OUTSIDE)[0].sum())(_X)
    np.testing.assert_array_equal(gradient[:, 0], [1, 1, 0, 1])


def test_transpose_of_a_scatter_that_lax_does_not_know():
    """Linear in what is scattered into and in the updates, so it transposes by itself."""
    numbers = _INTO_BLOCKS.replace("index_vector_dim = 1", "index_vector_dim = 0")
    text = _scatter("add", numbers, "4x5", "2x3", "3x2x3")
    with jax.enable_x64(True):
        program = unlower.load(text)
        scatter = lambda x, u: program.flat(x, _BLOCK_PLACES.T, u)[0]
        weights = _RNG.standard_normal((4, 5))
        x_weights, u_weights = jax.linear_transpose(scatter, _X, _BLOCK_UPDATES)(weights)
        pushed = np.vdot(weights, scatter(_X, _BLOCK_UPDATES))
    pulled = np.vdot(x_weights, _X) + np.vdot(u_weights, _BLOCK_UPDATES)
    np.testing.assert_allclose(pushed, pulled, rtol=1e-12)
