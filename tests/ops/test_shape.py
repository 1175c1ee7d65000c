"""Operations that move elements about, with shapes known and with shapes that are operands."""

import jax
import ml_dtypes
import numpy as np
import pytest
from op_checks import (
    Case,
    assert_same_bits,
    check_derivative,
    check_relowers,
    check_value,
    check_vmap,
    ids,
    integers,
    module,
    normal,
    one_operation,
)

import unlower
from unlower.errors import RuleError


def _case(name, operation, arguments, result, *inputs, **more):
    moving = tuple(i for i, x in enumerate(inputs) if np.asarray(x).dtype == np.float64)
    return Case(name, one_operation(arguments, result, operation), inputs, **{"moving": moving, **more})


def _ints(*values):
    return f"array<i64{': ' if values else ''}{', '.join(map(str, values))}>"


def _broadcast(source, target, *dimensions, **more):
    shape = [int(n) for n in source.split("x")[:-1]]
    operation = f"stablehlo.broadcast_in_dim {{broadcast_dimensions = {_ints(*dimensions)}}}"
    name = f"broadcast {source} to {target} by {dimensions}"
    return _case(name, operation, f"tensor<{source}>", f"tensor<{target}>", normal(*shape), **more)


def _slice(source, target, starts, limits, strides):
    shape = [int(n) for n in source.split("x")[:-1]]
    operation = (
        f"stablehlo.slice {{start_indices = {_ints(*starts)}, limit_indices = {_ints(*limits)}, "
        f"strides = {_ints(*strides)}}}"
    )
    name = f"slice {source} from {starts} to {limits} by {strides}"
    return _case(name, operation, f"tensor<{source}>", f"tensor<{target}>", normal(*shape))


def _pad(source, target, low, high, interior):
    shape = [int(n) for n in source.split("x")[:-1]]
    operation = (
        f"stablehlo.pad {{edge_padding_low = {_ints(*low)}, edge_padding_high = {_ints(*high)}, "
        f"interior_padding = {_ints(*interior)}}}"
    )
    name = f"pad {source} by {low}, {high}, {interior}"
    return _case(
        name, operation, f"tensor<{source}>; tensor<f64>", f"tensor<{target}>", normal(*shape), np.float64(9.5)
    )


CASES = [
    _broadcast("3x1xf64", "4x3x2xf64", 1, 0, relowers=True),
    _broadcast("3x1xf64", "4x2x3xf64", 2, 0),
    _broadcast("3x2xf64", "2x3xf64", 1, 0),
    _broadcast("f64", "2x3xf64"),
    _broadcast("f64", "0x3xf64"),
    _broadcast("1xf64", "0xf64", 0),
    # To its own shape in its own order: nothing is emitted, nor does JAX itself.
    _broadcast("3x2xf64", "3x2xf64", 0, 1, relowers=False),
    # The op is gone from the specification; it becomes its successor.
    _case(
        "broadcast, superseded",
        f"stablehlo.broadcast {{broadcast_sizes = {_ints(2, 3)}}}",
        "tensor<4xf64>",
        "tensor<2x3x4xf64>",
        normal(4),
        relowers=False,
    ),
    _case("reshape", "stablehlo.reshape", "tensor<4x3xf64>", "tensor<2x6xf64>", normal(4, 3)),
    _case("reshape to the same", "stablehlo.reshape", "tensor<4x3xf64>", "tensor<4x3xf64>", normal(4, 3)),
    _case("reshape to a scalar", "stablehlo.reshape", "tensor<1x1xf64>", "tensor<f64>", normal(1, 1)),
    _case("reshape of nothing", "stablehlo.reshape", "tensor<0x3xf64>", "tensor<7x0xf64>", normal(0, 3)),
    _case(
        "transpose",
        f"stablehlo.transpose {{permutation = {_ints(2, 0, 1)}}}",
        "tensor<2x3x4xf64>",
        "tensor<4x2x3xf64>",
        normal(2, 3, 4),
    ),
    _case(
        "transpose to the same",
        f"stablehlo.transpose {{permutation = {_ints(0, 1)}}}",
        "tensor<2x3xf64>",
        "tensor<2x3xf64>",
        normal(2, 3),
    ),
    _case(
        "transpose of a scalar",
        f"stablehlo.transpose {{permutation = {_ints()}}}",
        "tensor<f64>",
        "tensor<f64>",
        np.float64(1.5),
    ),
    _slice("5x3xf64", "2x3xf64", (1, 0), (4, 3), (2, 1)),
    _slice("5x3xf64", "3x2xf64", (1, 1), (4, 3), (1, 1)),
    _slice("5x3xf64", "0x3xf64", (1, 0), (1, 3), (3, 1)),
    _slice("3xf64", "3xf64", (0,), (3,), (1,)),
    _slice("3xf64", "1xf64", (0,), (3,), (5,)),
    _slice("f64", "f64", (), (), ()),
    _case(
        "concatenate",
        "stablehlo.concatenate {dimension = 1 : i64}",
        "tensor<2x3xf64>; tensor<2x1xf64>; tensor<2x0xf64>",
        "tensor<2x4xf64>",
        *(normal(2, n) for n in (3, 1, 0)),
    ),
    # One array alone: nothing is emitted, nor does JAX itself.
    _case(
        "concatenate one",
        "stablehlo.concatenate {dimension = 0 : i64}",
        "tensor<2x3xf64>",
        "tensor<2x3xf64>",
        normal(2, 3),
        relowers=False,
    ),
    _case(
        "reverse",
        f"stablehlo.reverse {{dimensions = {_ints(2, 0)}}}",
        "tensor<2x3x4xf64>",
        "tensor<2x3x4xf64>",
        normal(2, 3, 4),
    ),
    _case(
        "reverse nothing",
        f"stablehlo.reverse {{dimensions = {_ints()}}}",
        "tensor<2x3xf64>",
        "tensor<2x3xf64>",
        normal(2, 3),
    ),
    _pad("3xf64", "6xf64", (1,), (2,), (0,)),
    _pad("5xf64", "3xf64", (-1,), (-1,), (0,)),
    _pad("3xf64", "8xf64", (1,), (0,), (2,)),
    _pad("4xf64", "6xf64", (-2,), (1,), (1,)),
    _pad("4xf64", "10xf64", (-1,), (-2,), (3,)),
    _pad("0xf64", "3xf64", (2,), (1,), (3,)),
    _pad("2xf64", "1xf64", (-1,), (-1,), (1,)),
    _pad("2xf64", "0xf64", (-2,), (0,), (0,)),
    _pad("2x3xf64", "4x2xf64", (1, -1), (0, 0), (1, 0)),
    _pad("f64", "f64", (), (), ()),
    # The size is known: it becomes a constant.
    _case(
        "size of a dimension",
        "stablehlo.get_dimension_size {dimension = 1 : i64}",
        "tensor<2x3xf32>",
        "tensor<i32>",
        normal(2, 3, dtype=np.float32),
        relowers=False,
    ),
]


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_value(case):
    check_value(case)


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_relowers(case):
    check_relowers(case)


@pytest.mark.parametrize("case", [c for c in CASES if "size of" not in c.name], ids=ids)
def test_vmap(case):
    check_vmap(case)


@pytest.mark.parametrize("case", [c for c in CASES if 0 not in [np.size(x) for x in c.inputs]], ids=ids)
def test_derivative(case):
    check_derivative(case)


# --- iota, which has no operands: an argument keeps the module from being a constant

_COUNTED = ("i8", "ui2", "i4", "i64", "ui32", "f64", "bf16", "f16", "f8E4M3FN", "complex<f32>", "complex<f64>")


def _counted(dimension):
    types = [f"tensor<2x3x{element}>" for element in _COUNTED]
    lines = [
        f'    %{i} = "stablehlo.iota"() {{iota_dimension = {dimension} : i64}} : () -> {type_}'
        for i, type_ in enumerate(types)
    ]
    returned = ", ".join(["%a0", *(f"%{i}" for i in range(len(types)))])
    kinds = ", ".join(["tensor<f32>", *types])
    text = module("tensor<f32>", kinds, "\n".join([*lines, f"    return {returned} : {kinds}"]))
    return Case(f"iota along {dimension}", text, [np.float32(1)])


@pytest.mark.parametrize("case", [_counted(0), _counted(1)], ids=ids)
def test_iota(case):
    check_value(case)
    check_relowers(case)


# --- sizes that are set

_SET = "stablehlo.set_dimension_size"


def _set_size(size):
    body = f"""    %0 = stablehlo.constant dense<{size}> : tensor<i32>
    %1 = "{_SET}"(%a0, %0) {{dimension = 0 : i64}} : (tensor<4xf32>, tensor<i32>) -> tensor<4xf32>
    return %1 : tensor<4xf32>"""
    return module("tensor<4xf32>", "tensor<4xf32>", body)


def test_setting_the_size_that_is_there_changes_nothing():
    check_value(Case("same size", _set_size(4), [normal(4, dtype=np.float32)]))


def test_a_size_set_at_run_time_is_refused():
    with pytest.raises(RuleError, match="the size of dimension 0 of float32\\[4\\] is set while the program runs"):
        unlower.load(_set_size(3))
    text = one_operation("tensor<4xf32>; tensor<i32>", "tensor<4xf32>", f"{_SET} {{dimension = 0 : i64}}")
    with pytest.raises(RuleError, match="export the program with static shapes") as caught:
        unlower.load(text)
    assert "stablehlo.set_dimension_size" in caught.value.where


# --- shapes that are operands: constants of the module, and results that state their shape


def _with_constants(name, constants, operation, arguments, result, *inputs, **more):
    types = [t.strip() for t in arguments.split(";")]
    lines, values, kinds = [], [f"%a{i}" for i in range(len(types))], list(types)
    for i, (numbers, type_) in enumerate(constants):
        lines.append(f"    %c{i} = stablehlo.constant dense<{numbers}> : {type_}")
        values.append(f"%c{i}")
        kinds.append(type_)
    name_, _, attributes = operation.partition(" ")
    lines.append(f'    %r = "{name_}"({", ".join(values)}) {attributes} : ({", ".join(kinds)}) -> {result}')
    lines.append(f"    return %r : {result}")
    moving = tuple(i for i, x in enumerate(inputs) if np.asarray(x).dtype == np.float64)
    return Case(name, module(arguments, result, "\n".join(lines)), inputs, moving=moving, relowers=False, **more)


KNOWN = [
    _with_constants(
        "dynamic_broadcast_in_dim",
        [("[4, 3, 2]", "tensor<3xi32>")],
        f"stablehlo.dynamic_broadcast_in_dim {{broadcast_dimensions = {_ints(1, 2)}, "
        f"known_expanding_dimensions = {_ints(1)}, known_nonexpanding_dimensions = {_ints(0)}}}",
        "tensor<3x1xf64>",
        "tensor<4x3x2xf64>",
        normal(3, 1),
    ),
    _with_constants(
        "dynamic_reshape",
        [("[3, 2]", "tensor<2xi64>")],
        "stablehlo.dynamic_reshape",
        "tensor<6xf64>",
        "tensor<3x2xf64>",
        normal(6),
    ),
    _with_constants(
        "dynamic_pad",
        [("[-1, 2]", "tensor<2xi32>"), ("[2, -1]", "tensor<2xi32>"), ("[1, 0]", "tensor<2xi32>")],
        "stablehlo.dynamic_pad",
        "tensor<3x2xf64>; tensor<f64>",
        "tensor<6x3xf64>",
        normal(3, 2),
        np.float64(0.5),
    ),
    _with_constants(
        "real_dynamic_slice",
        [("[1, 0]", "tensor<2xi32>"), ("[5, 3]", "tensor<2xi32>"), ("[2, 1]", "tensor<2xi32>")],
        "stablehlo.real_dynamic_slice",
        "tensor<6x3xf64>",
        "tensor<2x3xf64>",
        normal(6, 3),
    ),
]


@pytest.mark.parametrize("case", KNOWN, ids=ids)
def test_shape_operands_that_are_constants(case):
    check_value(case)
    check_vmap(case)
    check_derivative(case)


def test_dynamic_iota():
    body = """    %0 = stablehlo.constant dense<[2, 3]> : tensor<2xi32>
    %1 = "stablehlo.dynamic_iota"(%0) {iota_dimension = 1 : i64} : (tensor<2xi32>) -> tensor<2x3xcomplex<f32>>
    %2 = "stablehlo.dynamic_iota"(%0) {iota_dimension = 0 : i64} : (tensor<2xi32>) -> tensor<2x3xi16>
    return %a0, %1, %2 : tensor<f32>, tensor<2x3xcomplex<f32>>, tensor<2x3xi16>"""
    text = module("tensor<f32>", "tensor<f32>, tensor<2x3xcomplex<f32>>, tensor<2x3xi16>", body)
    check_value(Case("dynamic_iota", text, [np.float32(1)]))


def test_a_slice_of_known_size_may_start_anywhere():
    operation = "stablehlo.real_dynamic_slice"
    body = f"""    %0 = stablehlo.constant dense<2> : tensor<1xi32>
    %1 = stablehlo.constant dense<1> : tensor<1xi32>
    %2 = stablehlo.add %a1, %0 : tensor<1xi32>
    %3 = "{operation}"(%a0, %a1, %2, %1) : (tensor<5xf64>, tensor<1xi32>, tensor<1xi32>, tensor<1xi32>) -> tensor<2xf64>
    return %3 : tensor<2xf64>"""
    program = unlower.load(module("tensor<5xf64>; tensor<1xi32>", "tensor<2xf64>", body))
    x = normal(5)
    with jax.enable_x64(True):
        for start in range(4):
            assert_same_bits([program(x, np.array([start], np.int32))], [x[start : start + 2]])
        pulled = jax.grad(lambda x: program(x, np.array([1], np.int32)).sum())(x)
        np.testing.assert_array_equal(pulled, [0, 1, 1, 0, 0])


# --- sizes unknown before the call

_OPEN = """module @m {
  func.func public @main(%a0: tensor<?x3xf32>) -> (tensor<?x3x2xf32>, tensor<?xf32>, tensor<?xi32>, tensor<?x5xf32>, tensor<?x3xf32>) {
    %n0 = stablehlo.get_dimension_size %a0, dim = 0 : (tensor<?x3xf32>) -> tensor<i32>
    %n = stablehlo.reshape %n0 : (tensor<i32>) -> tensor<1xi32>
    %three = stablehlo.constant dense<3> : tensor<1xi32>
    %two = stablehlo.constant dense<2> : tensor<1xi32>
    %one = stablehlo.constant dense<1> : tensor<1xi32>
    %zeros = stablehlo.constant dense<0> : tensor<2xi32>
    %ones = stablehlo.constant dense<1> : tensor<2xi32>
    %f = stablehlo.constant dense<7.0> : tensor<f32>
    %shape = stablehlo.concatenate %n, %three, %two, dim = 0 : (tensor<1xi32>, tensor<1xi32>, tensor<1xi32>) -> tensor<3xi32>
    %b = stablehlo.dynamic_broadcast_in_dim %a0, %shape, dims = [0, 1] : (tensor<?x3xf32>, tensor<3xi32>) -> tensor<?x3x2xf32>
    %flat = stablehlo.multiply %n, %three : tensor<1xi32>
    %r = stablehlo.dynamic_reshape %a0, %flat : (tensor<?x3xf32>, tensor<1xi32>) -> tensor<?xf32>
    %i = stablehlo.dynamic_iota %flat, dim = 0 : (tensor<1xi32>) -> tensor<?xi32>
    %p = stablehlo.dynamic_pad %a0, %f, %ones, %ones, %zeros : (tensor<?x3xf32>, tensor<f32>, tensor<2xi32>, tensor<2xi32>, tensor<2xi32>) -> tensor<?x5xf32>
    %limit = stablehlo.concatenate %n, %three, dim = 0 : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
    %start = stablehlo.constant dense<[1, 0]> : tensor<2xi32>
    %s = stablehlo.real_dynamic_slice %a0, %start, %limit, %ones : (tensor<?x3xf32>, tensor<2xi32>, tensor<2xi32>, tensor<2xi32>) -> tensor<?x3xf32>
    return %b, %r, %i, %p, %s : tensor<?x3x2xf32>, tensor<?xf32>, tensor<?xi32>, tensor<?x5xf32>, tensor<?x3xf32>
  }
}
"""


@pytest.mark.parametrize("size", [1, 2, 5])
def test_sizes_come_from_the_arguments(size):
    x = normal(size, 3, dtype=np.float32)
    program = unlower.load(_OPEN)
    expected = [
        np.broadcast_to(x[..., None], (size, 3, 2)),
        x.reshape(-1),
        np.arange(size * 3, dtype=np.int32),
        np.pad(x, 1, constant_values=7),
        x[1:],
    ]
    assert_same_bits(program.flat(x), expected)
    assert_same_bits(jax.jit(program.flat)(x), expected)
    stacked = jax.vmap(program.flat)(np.stack([x, -x]))
    assert_same_bits([r[0] for r in stacked], expected)
    pulled = jax.grad(lambda x: sum(r.sum() for i, r in enumerate(program.flat(x)) if i != 2))(x)
    np.testing.assert_array_equal(pulled, np.full((size, 3), 4.0) + (np.arange(size) > 0)[:, None])


def test_a_shape_that_depends_on_the_data_is_refused():
    text = module(
        "tensor<6xf32>; tensor<1xi32>",
        "tensor<?xf32>",
        """    %0 = stablehlo.dynamic_reshape %a0, %a1 : (tensor<6xf32>, tensor<1xi32>) -> tensor<?xf32>
    return %0 : tensor<?xf32>""",
    )
    program = unlower.load(text)
    with pytest.raises(RuleError, match="dynamic_reshape has a shape that depends on the data"):
        jax.jit(program.flat)(normal(6, dtype=np.float32), integers(1))


# --- einsum, which older StableHLO had

_EINSUMS = [
    ("ab,bc->ac", (2, 3), (3, 4)),
    ("ab,cb->ca", (2, 3), (4, 3)),
    ("abc,acd->abd", (2, 3, 4), (2, 4, 5)),
    ("...ab,...bc->...ac", (5, 2, 3), (5, 3, 4)),
    ("...a,a...->...", (3, 2, 4), (4, 2)),
    ("ab,ab->", (2, 3), (2, 3)),
    ("a,b->ab", (2,), (3,)),
    ("abc,b->ca", (2, 3, 4), (3,)),
    ("ab,c->a", (3, 2), (4,)),
    ("aab,b->a", (3, 3, 2), (2,)),
    ("ab->a", (2, 3)),
    ("aab->ba", (2, 2, 3)),
    ("...a->...", (2, 3)),
    ("aaa->a", (3, 3, 3)),
]


def _einsum(equation, *shapes):
    inputs = [normal(*shape) for shape in shapes]
    expected = np.einsum(equation, *inputs)
    spelled = lambda shape: f"tensor<{''.join(f'{n}x' for n in shape)}f64>"
    name = "stablehlo.einsum" if len(shapes) == 2 else "stablehlo.unary_einsum"
    text = one_operation(
        "; ".join(map(spelled, shapes)), spelled(expected.shape), f'{name} {{einsum_config = "{equation}"}}'
    )
    return Case(equation, text, inputs, moving=tuple(range(len(shapes))), expected=[expected])


@pytest.mark.parametrize("case", [_einsum(*row) for row in _EINSUMS], ids=ids)
def test_einsum(case):
    with jax.enable_x64(True):
        np.testing.assert_allclose(unlower.load(case.text)(*case.inputs), case.expected[0], rtol=1e-12)
    if len(case.inputs) == 2:
        # XLA has no translation of the unary one.
        check_value(Case(case.name, case.text, case.inputs))
    check_derivative(case)


@pytest.mark.parametrize(
    ("equation", "message"),
    [
        ("ab,bc", "has the equation 'ab,bc', not one of 2 operands and a result"),
        ("ab->a", "has the equation 'ab->a', not one of 2 operands and a result"),
        ("abc,bc->a", "names the dimensions 'abc' of an operand of rank 2"),
        ("ab,bc->ad", "labels in its result that no operand has"),
    ],
)
def test_equations_that_do_not_fit(equation, message):
    operation = f'stablehlo.einsum {{einsum_config = "{equation}"}}'
    with pytest.raises(RuleError, match=message):
        unlower.load(one_operation("tensor<2x3xf32>; tensor<3x4xf32>", "tensor<2x4xf32>", operation))


# --- narrow types move like any other


def test_elements_of_every_width_move():
    for element, dtype in (("i4", ml_dtypes.int4), ("f8E5M2", ml_dtypes.float8_e5m2), ("i1", np.bool_)):
        x = integers(2, 3).astype(dtype) if element != "i1" else integers(2, 3) > 4
        operation = f"stablehlo.transpose {{permutation = {_ints(1, 0)}}}"
        text = one_operation(f"tensor<2x3x{element}>", f"tensor<3x2x{element}>", operation)
        check_value(Case(element, text, [x]))
