import dataclasses

import jax
import numpy as np
import pytest

from unlower.errors import InvalidModuleError
from unlower.ir.attributes import DenseElements, Symbol
from unlower.ir.check import check
from unlower.ir.module import Function, Location, Module, Op, Region, Value
from unlower.ir.types import OpaqueType, TensorType, Type
from unlower.readers.detect import read

F32, I1, I32 = TensorType((), "f32"), TensorType((), "i1"), TensorType((), "i32")
VECTOR = TensorType((3,), "f32")


class Values:
    """Makes values with fresh numbers."""

    def __init__(self):
        self.count = 0

    def __call__(self, *types: Type):
        made = tuple(Value(self.count + i, type_) for i, type_ in enumerate(types))
        self.count += len(types)
        return made


def module(arguments, ops, results=(), **functions):
    main = Function("main", Region(tuple(arguments), tuple(ops), tuple(results)), "public")
    return Module("m", {"main": main, **functions}, "main")


def fault(arguments, ops, results=(), **functions):
    """What `check` says and where."""
    with pytest.raises(InvalidModuleError) as caught:
        check(module(arguments, ops, results, **functions))
    return caught.value


def test_real_modules_pass():
    def f(x):
        y = jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * 2), (np.int32(0), x))[1]
        return jax.lax.cond(y.sum() > 0, jax.numpy.sort, lambda z: z, y)

    check(read(jax.jit(f).lower(np.ones(3, np.float32))))
    check(read(jax.jit(f).lower(np.ones(3, np.float32)).as_text("hlo")))


def test_use_before_definition_is_drawn_with_its_place():
    x, y, z = Values()(F32, F32, F32)
    first = Op("stablehlo.negate", (x,), (y,))
    second = Op("stablehlo.add", (y, z), (z,), location=Location("jit(f)/add", "train.py", 42))
    error = fault([x], [first, second])
    assert error.what == "%2 is used where it is not defined"
    assert error.where == (
        '@main, op 1, `%2 = "stablehlo.add"(%1, %2) : (tensor<f32>, tensor<f32>) -> tensor<f32>`, '
        "from jit(f)/add (train.py:42)"
    )


def test_values_of_a_region_end_with_it():
    new = Values()
    p, x = new(I1, F32)
    inside, out, again = new(F32, F32, F32)
    branch = Region((), (Op("stablehlo.negate", (x,), (inside,)),), (inside,))
    other = Region((), (), (x,))
    conditional = Op("stablehlo.if", (p,), (out,), {}, (branch, other))
    check(module([p, x], [conditional], [out]))
    leak = Op("stablehlo.negate", (inside,), (again,))
    assert "%2 is used where it is not defined" in fault([p, x], [conditional, leak]).what
    twice = Op("stablehlo.if", (p,), (out,), {}, (branch, dataclasses.replace(other, results=(inside,))))
    assert fault([p, x], [twice]).what == "%2 is returned where it is not defined"


def test_two_definitions():
    x, y = Values()(F32, F32)
    negate = Op("stablehlo.negate", (x,), (y,))
    assert fault([x], [negate, negate]).what == "%1 is defined twice"
    assert fault([x, x], []).where == "@main, its arguments or results"


def test_results_that_nothing_defines():
    x, y = Values()(F32, F32)
    assert fault([x], [], [y]).what == "%1 is returned where it is not defined"


def test_unknown_types():
    x, y = Values()(F32, OpaqueType("tensor<2xi3>"))
    assert fault([x], [Op("stablehlo.convert", (x,), (y,))]).what == "the type tensor<2xi3> is not known"
    assert fault([y], []).what == "the type tensor<2xi3> is not known"


def identity(type_):
    (x,) = Values()(type_)
    return Function("f", Region((x,), (), (x,)))


@pytest.mark.parametrize(
    ("callee", "type_", "message"),
    [
        ("g", F32, "callee @g is no function of the module"),
        ("f", VECTOR, "operand of @f 0: tensor<f32> where tensor<3xf32> is expected"),
    ],
)
def test_calls(callee, type_, message):
    x, y = Values()(F32, F32)
    call = Op("func.call", (x,), (y,), {"callee": Symbol(callee)})
    assert fault([x], [call], f=identity(type_)).what == message


def test_calls_with_another_number_of_values():
    x, y = Values()(F32, F32)
    call = Op("func.call", (x, x), (y,), {"callee": Symbol("f")})
    assert fault([x], [call], f=identity(F32)).what == "operand of @f: 2 values where 1 are expected"
    composite = Op("stablehlo.composite", (x,), (), {"decomposition": Symbol("f")})
    assert fault([x], [composite], f=identity(F32)).what == "result of @f: 0 values where 1 are expected"
    custom = Op("stablehlo.custom_call", (x,), (y,), {"called_computations": (Symbol("g"),)})
    assert fault([x], [custom]).what == "called_computations @g is no function of the module"


def test_sizes_that_are_not_known_fit_any():
    dynamic = TensorType((None,), "f32", (8,))
    x, y = Values()(VECTOR, VECTOR)
    check(module([x], [Op("func.call", (x,), (y,), {"callee": Symbol("f")})], f=identity(dynamic)))


def loop(cond_result=I1, body_type=F32, result=F32):
    new = Values()
    x, a, b, p, out = new(F32, F32, body_type, cond_result, result)
    cond = Region((a,), (Op("test.predicate", (a,), (p,)),), (p,))
    return [x], [Op("stablehlo.while", (x,), (out,), {}, (cond, Region((b,), (), (b,))))]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"cond_result": F32}, "result of cond: tensor<f32> where tensor<i1> is expected"),
        ({"body_type": I32}, "argument of body 0: tensor<i32> where tensor<f32> is expected"),
        ({"result": VECTOR}, "result 0: tensor<3xf32> where tensor<f32> is expected"),
    ],
)
def test_loops(parts, message):
    check(module(*loop()))
    assert fault(*loop(**parts)).what == message


def test_branches():
    new = Values()
    i, x, out, given = new(I32, F32, F32, F32)
    good = Region((), (), (x,))
    check(module([i, x], [Op("stablehlo.case", (i,), (out,), {}, (good, good, good))]))
    bad = Op("stablehlo.case", (i,), (out,), {}, (good, Region((), (), (i,))))
    assert fault([i, x], [bad]).what == "result of branch 1 0: tensor<i32> where tensor<f32> is expected"
    takes = Op("stablehlo.case", (i,), (out,), {}, (Region((given,), (), (x,)),))
    assert fault([i, x], [takes]).what == "argument of branch 0: 1 values where 0 are expected"
    three = Op("stablehlo.if", (i,), (out,), {}, (good, good, good))
    assert fault([i, x], [three]).what == "3 regions where 2 are expected"
    number = Op("stablehlo.if", (i,), (out,), {}, (good, good))
    assert fault([i, x], [number]).what == "operand: tensor<i32> where tensor<i1> is expected"


def reducing(name, operands, results, takes, gives):
    """An operation over a region with these types."""
    new = Values()
    outer, inner, out = new(*operands), new(*takes), new(*results)
    made = new(*gives)
    region = Region(inner, (Op("test.compute", inner, made),), made)
    return outer, [Op(name, outer, out, {}, (region,))]


@pytest.mark.parametrize(
    ("name", "operands", "results"),
    [
        ("stablehlo.reduce", [VECTOR, F32], [F32]),
        ("stablehlo.reduce_window", [VECTOR, F32], [VECTOR]),
        ("stablehlo.scatter", [VECTOR, I32, VECTOR], [VECTOR]),
        ("stablehlo.all_reduce", [VECTOR], [VECTOR]),
    ],
)
def test_reducers(name, operands, results):
    check(module(*reducing(name, operands, results, [F32, F32], [F32])))
    shapes = reducing(name, operands, results, [F32, VECTOR], [F32])
    assert fault(*shapes).what == "argument of the region 1: tensor<3xf32> where a scalar is expected"
    count = reducing(name, operands, results, [F32, F32, F32], [F32])
    assert fault(*count).what == "argument of the region: 3 values where 2 are expected"
    given = reducing(name, operands, results, [F32, F32], [F32, F32])
    assert fault(*given).what == "result of the region: 2 values where 1 are expected"


def test_operands_of_reducers():
    assert fault(*reducing("stablehlo.reduce", [VECTOR], [F32], [F32, F32], [F32])).what == (
        "1 operands and 1 results where 2 n and n are expected"
    )
    assert fault(*reducing("stablehlo.scatter", [VECTOR, I32], [VECTOR], [F32, F32], [F32])).what == (
        "2 operands and 1 results where 2 n + 1 and n are expected"
    )


def test_comparators_and_maps():
    check(module(*reducing("stablehlo.sort", [VECTOR], [VECTOR], [F32, F32], [I1])))
    assert fault(*reducing("stablehlo.sort", [VECTOR], [VECTOR], [F32, F32], [F32])).what == (
        "result of the comparator: tensor<f32> where tensor<i1> is expected"
    )
    assert fault(*reducing("stablehlo.sort", [VECTOR], [F32], [F32, F32], [I1])).what == (
        "result 0: tensor<f32> where tensor<3xf32> is expected"
    )
    check(module(*reducing("stablehlo.map", [VECTOR, VECTOR], [VECTOR], [F32, F32], [F32])))
    assert fault(*reducing("stablehlo.map", [VECTOR], [VECTOR], [F32, F32], [F32])).what == (
        "argument of the computation: 2 values where 1 are expected"
    )


def test_select_and_scatter():
    new = Values()
    x, source, init, out = new(VECTOR, VECTOR, F32, VECTOR)
    a, b, p, c, d, s = new(F32, F32, I1, F32, F32, F32)
    select = Region((a, b), (Op("test.compare", (a, b), (p,)),), (p,))
    scatter = Region((c, d), (Op("test.add", (c, d), (s,)),), (s,))
    good = Op("stablehlo.select_and_scatter", (x, source, init), (out,), {}, (select, scatter))
    check(module([x, source, init], [good]))
    swapped = dataclasses.replace(good, regions=(scatter, select))
    assert fault([x, source, init], [swapped]).what == "result of select: tensor<f32> where tensor<i1> is expected"


def test_constants_hold_one_element_or_all():
    (out,) = Values()(VECTOR)
    for shape in ((), (3,)):
        check(
            module(
                [],
                [Op("stablehlo.constant", (), (out,), {"value": DenseElements(VECTOR, np.zeros(shape, np.float32))})],
            )
        )
    wrong = Op("stablehlo.constant", (), (out,), {"value": DenseElements(VECTOR, np.zeros(2, np.float32))})
    assert fault([], [wrong]).what == "[2] elements for a constant of type tensor<3xf32>"


def test_modules_as_a_whole():
    main = module([], []).main
    with pytest.raises(InvalidModuleError, match="the entry function @main is missing"):
        check(Module("m", {}, "main"))
    with pytest.raises(InvalidModuleError, match="@main is filed under the name other"):
        check(Module("m", {"main": main, "other": main}, "main"))
    with pytest.raises(InvalidModuleError, match="1 argument_attributes for 0 values"):
        check(Module("m", {"main": dataclasses.replace(main, argument_attributes=({},))}, "main"))
