"""Reductions over dimensions and over windows."""

import numpy as np
import pytest
from op_checks import Case, check_derivative, check_relowers, check_value, check_vmap, ids, module

_RNG = np.random.default_rng(0)
_X = _RNG.standard_normal((3, 5))
_ROWS = _RNG.standard_normal((6, 7))


def _reduce(op: str, element: str, init: str, shape: str = "3x5", out: str = "3", dims: str = "1") -> str:
    """A reduction with a constant initial value."""
    return module(
        f"tensor<{shape}x{element}>",
        f"tensor<{out}x{element}>",
        f"""    %c = stablehlo.constant dense<{init}> : tensor<{element}>
    %0 = stablehlo.reduce(%a0 init: %c) applies stablehlo.{op} across dimensions = [{dims}] :
      (tensor<{shape}x{element}>, tensor<{element}>) -> tensor<{out}x{element}>
    return %0 : tensor<{out}x{element}>""",
    )


def _reduce_from_argument(op: str) -> str:
    return module(
        "tensor<3x5xf64>; tensor<f64>",
        "tensor<5xf64>",
        f"""    %0 = stablehlo.reduce(%a0 init: %a1) applies stablehlo.{op} across dimensions = [0] :
      (tensor<3x5xf64>, tensor<f64>) -> tensor<5xf64>
    return %0 : tensor<5xf64>""",
    )


_SWAPPED = module(
    "tensor<3x5xf64>",
    "tensor<3xf64>",
    """    %c = stablehlo.constant dense<0.0> : tensor<f64>
    %0 = stablehlo.reduce(%a0 init: %c) across dimensions = [1] : (tensor<3x5xf64>, tensor<f64>) -> tensor<3xf64>
      reducer(%x: tensor<f64>, %y: tensor<f64>) {
        %1 = stablehlo.add %y, %x : tensor<f64>
        stablehlo.return %1 : tensor<f64>
      }
    return %0 : tensor<3xf64>""",
)

# (1 + x) (1 + y) - 1: associative, and no primitive of lax.
_COMPOUND = """(%x: tensor<f64>, %y: tensor<f64>) {
        %1 = stablehlo.multiply %x, %y : tensor<f64>
        %2 = stablehlo.add %x, %y : tensor<f64>
        %3 = stablehlo.add %1, %2 : tensor<f64>
        stablehlo.return %3 : tensor<f64>
      }"""

_GENERAL = module(
    "tensor<3x5xf64>; tensor<f64>",
    "tensor<f64>",
    f"""    %0 = stablehlo.reduce(%a0 init: %a1) across dimensions = [1, 0] : (tensor<3x5xf64>, tensor<f64>) -> tensor<f64>
      reducer{_COMPOUND}
    return %0 : tensor<f64>""",
)

_ARGMAX = module(
    "tensor<3x5xf64>; tensor<3x5xi32>",
    "tensor<3xf64>, tensor<3xi32>",
    """    %c = stablehlo.constant dense<0xFFF0000000000000> : tensor<f64>
    %d = stablehlo.constant dense<0> : tensor<i32>
    %0:2 = stablehlo.reduce(%a0 init: %c), (%a1 init: %d) across dimensions = [1] :
      (tensor<3x5xf64>, tensor<3x5xi32>, tensor<f64>, tensor<i32>) -> (tensor<3xf64>, tensor<3xi32>)
      reducer(%x: tensor<f64>, %y: tensor<f64>) (%i: tensor<i32>, %j: tensor<i32>) {
        %1 = stablehlo.compare GT, %x, %y : (tensor<f64>, tensor<f64>) -> tensor<i1>
        %2 = stablehlo.select %1, %x, %y : tensor<i1>, tensor<f64>
        %3 = stablehlo.select %1, %i, %j : tensor<i1>, tensor<i32>
        stablehlo.return %2, %3 : tensor<f64>, tensor<i32>
      }
    return %0#0, %0#1 : tensor<3xf64>, tensor<3xi32>""",
)

_WIDENING = module(
    "tensor<3x5xbf16>",
    "tensor<3xf32>",
    """    %c = stablehlo.constant dense<0.0> : tensor<f32>
    %0 = stablehlo.reduce(%a0 init: %c) across dimensions = [1] : (tensor<3x5xbf16>, tensor<f32>) -> tensor<3xf32>
      reducer(%x: tensor<f32>, %y: tensor<f32>) {
        %1 = stablehlo.add %x, %y : tensor<f32>
        stablehlo.return %1 : tensor<f32>
      }
    return %0 : tensor<3xf32>""",
)

_MAP = module(
    "tensor<3x5xf64>; tensor<3x5xf64>",
    "tensor<3x5xf64>",
    """    %0 = "stablehlo.map"(%a0, %a1) <{dimensions = array<i64: 0, 1>}> ({
      ^bb0(%x: tensor<f64>, %y: tensor<f64>):
        %1 = stablehlo.tanh %x : tensor<f64>
        %2 = stablehlo.multiply %1, %y : tensor<f64>
        stablehlo.return %2 : tensor<f64>
    }) : (tensor<3x5xf64>, tensor<3x5xf64>) -> tensor<3x5xf64>
    return %0 : tensor<3x5xf64>""",
)

_INTS = _RNG.integers(-9, 9, (3, 5), np.int32)
_BOOLS = _RNG.integers(0, 2, (3, 5)).astype(bool)

_REDUCTIONS = [
    Case("sum", _reduce("add", "f64", "0.0"), [_X], (0,), primitive="reduce_sum"),
    Case("sum_of_two_dimensions", _reduce("add", "f64", "0.0", "3x5x2", "2", "1, 0"), [_RNG.random((3, 5, 2))], (0,)),
    Case("sum_from_minus_zero", _reduce("add", "f64", "-0.0"), [np.full((3, 5), -0.0)], (0,), primitive="reemit"),
    Case("sum_of_nothing", _reduce("add", "f64", "-0.0", "3x0"), [np.zeros((3, 0))]),
    Case("sum_along_no_dimension", _reduce("add", "f64", "2.5", "3x5", "3x5", ""), [_X], (0,)),
    Case("sum_swapped", _SWAPPED, [_X], (0,), primitive="reemit"),
    Case("sum_f32", _reduce("add", "f32", "0.0"), [_X.astype(np.float32)], primitive="reduce_sum"),
    Case("sum_complex", _reduce("add", "complex<f64>", "(0.0,0.0)"), [_X + 2j * _X[::-1]], primitive="reduce_sum"),
    # XLA refuses it; the sums of small integers are exact.
    Case(
        "sum_widening",
        _WIDENING,
        [_INTS.astype("bfloat16")],
        relowers=False,
        expected=[_INTS.sum(1).astype(np.float32)],
    ),
    Case("prod", _reduce("multiply", "f64", "1.0"), [_X], (0,), primitive="reduce_prod"),
    Case("max", _reduce("maximum", "f64", "0xFFF0000000000000"), [_X], (0,), primitive="reduce_max"),
    Case("max_from_zero", _reduce("maximum", "f64", "0.0"), [_X - 1.0], (0,), primitive="reemit"),
    Case("min", _reduce("minimum", "f64", "0x7FF0000000000000"), [_X], (0,), primitive="reduce_min"),
    Case("max_int", _reduce("maximum", "i32", "-2147483648"), [_INTS], primitive="reduce_max"),
    Case("and", _reduce("and", "i1", "true"), [_BOOLS], primitive="reduce_and"),
    Case("or", _reduce("or", "i32", "0"), [_INTS], primitive="reduce_or"),
    Case("xor", _reduce("xor", "i32", "0"), [_INTS], primitive="reduce_xor"),
    *[
        Case(f"{op}_from_argument", _reduce_from_argument(op), [_X, np.float64(0.25)], (0, 1))
        for op in ("add", "multiply", "maximum", "minimum")
    ],
    Case("general", _GENERAL, [_X * 0.3, np.float64(0.5)], (0, 1)),
    Case("argmax", _ARGMAX, [_X, np.broadcast_to(np.arange(5, dtype=np.int32), (3, 5))], (0,)),
    Case("map", _MAP, [_X, _X[::-1]], (0, 1), relowers=False),
]


def _window(attributes: str, out: str, reducer: str, shape: str = "6x7", from_argument: bool = False) -> str:
    init = "%a1" if from_argument else "%c"
    constant = {"add": "0.0", "multiply": "1.0", "maximum": "0xFFF0000000000000", "minimum": "0x7FF0000000000000"}
    body = reducer
    if reducer in constant:
        body = f"""(%x: tensor<f64>, %y: tensor<f64>) {{
        %1 = stablehlo.{reducer} %x, %y : tensor<f64>
        stablehlo.return %1 : tensor<f64>
      }}"""
    arguments, _, rest = body.partition("{")
    arguments = arguments.strip(" ()")
    return module(
        f"tensor<{shape}xf64>{'; tensor<f64>' if from_argument else ''}",
        f"tensor<{out}xf64>",
        f"""    %c = stablehlo.constant dense<{constant.get(reducer, "0.0")}> : tensor<f64>
    %0 = "stablehlo.reduce_window"(%a0, {init}) <{{{attributes}}}> ({{
      ^bb0({arguments}):
{rest.rstrip().removesuffix("}")}
    }}) : (tensor<{shape}xf64>, tensor<f64>) -> tensor<{out}xf64>
    return %0 : tensor<{out}xf64>""",
    )


def _lay(sizes, strides=None, base=None, dilation=None, padding=None) -> str:
    parts = [f"window_dimensions = array<i64: {', '.join(map(str, sizes))}>"]
    for name, value in (("window_strides", strides), ("base_dilations", base), ("window_dilations", dilation)):
        if value:
            parts.append(f"{name} = array<i64: {', '.join(map(str, value))}>")
    if padding:
        pairs = ", ".join(f"[{low}, {high}]" for low, high in padding)
        parts.append(f"padding = dense<[{pairs}]> : tensor<{len(padding)}x2xi64>")
    return ", ".join(parts)


_EVERYTHING = _lay((2, 3), (2, 1), (2, 1), (1, 2), ((1, 2), (0, 3)))
_DILATED = _lay((3, 2), (1, 1), None, (2, 3), ((1, 1), (1, 0)))
_PLAIN = _lay((2, 3), (2, 2))
_PADDED = _lay((2, 3), (2, 2), None, None, ((1, 1), (2, 0)))
_FORWARD = _lay((1, 7), padding=((0, 0), (6, 0)))
_BACKWARD = _lay((6, 1), padding=((0, 5), (0, 0)))

_WINDOW_ARGMAX = module(
    "tensor<6x7xf64>; tensor<6x7xi32>",
    "tensor<5x6xf64>, tensor<5x6xi32>",
    f"""    %c = stablehlo.constant dense<0xFFF0000000000000> : tensor<f64>
    %d = stablehlo.constant dense<-1> : tensor<i32>
    %0:2 = "stablehlo.reduce_window"(%a0, %a1, %c, %d) <{{{_lay((2, 2))}}}> ({{
      ^bb0(%x: tensor<f64>, %i: tensor<i32>, %y: tensor<f64>, %j: tensor<i32>):
        %1 = stablehlo.compare GE, %x, %y : (tensor<f64>, tensor<f64>) -> tensor<i1>
        %2 = stablehlo.select %1, %x, %y : tensor<i1>, tensor<f64>
        %3 = stablehlo.select %1, %i, %j : tensor<i1>, tensor<i32>
        stablehlo.return %2, %3 : tensor<f64>, tensor<i32>
    }}) : (tensor<6x7xf64>, tensor<6x7xi32>, tensor<f64>, tensor<i32>) -> (tensor<5x6xf64>, tensor<5x6xi32>)
    return %0#0, %0#1 : tensor<5x6xf64>, tensor<5x6xi32>""",
)


def _select_and_scatter(select: str, scatter: str, attributes: str = _PLAIN, source: str = "3x3") -> str:
    return module(
        f"tensor<6x7xf64>; tensor<{source}xf64>; tensor<f64>",
        "tensor<6x7xf64>",
        f"""    %0 = "stablehlo.select_and_scatter"(%a0, %a1, %a2) <{{{attributes}}}> ({{
      ^bb0(%x: tensor<f64>, %y: tensor<f64>):
        %1 = stablehlo.compare {select}, %x, %y : (tensor<f64>, tensor<f64>) -> tensor<i1>
        stablehlo.return %1 : tensor<i1>
    }}, {{
      ^bb0(%x: tensor<f64>, %y: tensor<f64>):
        %1 = stablehlo.{scatter} %x, %y : tensor<f64>
        stablehlo.return %1 : tensor<f64>
    }}) : (tensor<6x7xf64>, tensor<{source}xf64>, tensor<f64>) -> tensor<6x7xf64>
    return %0 : tensor<6x7xf64>""",
    )


_OVERLAPPING = _lay((3, 3), (1, 2))
_SOURCE, _WIDE = _RNG.standard_normal((3, 3)), _RNG.standard_normal((4, 3))

_WINDOWS = [
    Case("window_sum", _window(_EVERYTHING, "7x6", "add"), [_ROWS], (0,)),
    Case("window_max", _window(_PADDED, "4x4", "maximum"), [_ROWS], (0,)),
    Case("window_min_with_holes", _window(_lay((2, 3), None, (2, 1)), "10x5", "minimum"), [_ROWS], (0,)),
    Case("window_max_dilated", _window(_DILATED, "4x5", "maximum"), [_ROWS], (0,)),
    Case("window_max_of_nothing", _window(_EVERYTHING, "7x6", "maximum"), [_ROWS]),
    Case("window_prod", _window(_EVERYTHING, "7x6", "multiply"), [_ROWS], (0,)),
    Case("window_general", _window(_EVERYTHING, "7x6", _COMPOUND), [_ROWS], (0,)),
    Case("window_argmax", _WINDOW_ARGMAX, [_ROWS, np.arange(42, dtype=np.int32).reshape(6, 7)], (0,)),
    *[
        Case(
            f"window_{op}_from_argument",
            _window(_PADDED, "4x4", op, from_argument=True),
            [_ROWS, np.float64(0.3)],
            (0, 1),
        )
        for op in ("add", "maximum", "multiply")
    ],
    Case("cumulative_sum", _window(_FORWARD, "6x7", "add"), [_ROWS], (0,)),
    Case("cumulative_prod", _window(_FORWARD, "6x7", "multiply"), [_ROWS], (0,)),
    Case("cumulative_max_from_the_end", _window(_BACKWARD, "6x7", "maximum"), [_ROWS], (0,)),
    Case("cumulative_general_from_the_end", _window(_BACKWARD, "6x7", _COMPOUND), [_ROWS], (0,)),
    Case("select_and_scatter", _select_and_scatter("GE", "add"), [_ROWS, _SOURCE, np.float64(0.0)], (1, 2)),
    Case(
        "select_and_scatter_overlapping",
        _select_and_scatter("GE", "add", _OVERLAPPING, "4x3"),
        [_ROWS, _WIDE, np.float64(0.5)],
        (0, 1),
    ),
    Case(
        "select_and_scatter_padded",
        _select_and_scatter("GE", "add", _PADDED, "4x4"),
        [_ROWS, _RNG.standard_normal((4, 4)), np.float64(0.0)],
        (1, 2),
    ),
    Case(
        "select_and_scatter_other_regions",
        _select_and_scatter("LT", "multiply", _OVERLAPPING, "4x3"),
        [_ROWS, _WIDE, np.float64(1.5)],
        (1, 2),
    ),
]

_CASES = _REDUCTIONS + _WINDOWS


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
