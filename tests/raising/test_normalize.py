import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unlower._jax_compat import convert_hlo_to_stablehlo, hlo_text_to_proto
from unlower.errors import InvalidModuleError
from unlower.ir.attributes import OutputOperandAlias, Symbol
from unlower.ir.check import check
from unlower.ir.module import Function, Module, Op, Region, Value, walk
from unlower.ir.types import FutureType, OpaqueType, TensorType, TupleType
from unlower.raising.normalize import normalize
from unlower.readers.detect import read

F32, I32 = TensorType((2,), "f32"), TensorType((), "i32")


def converted(text):
    """What XLA's converter makes of HLO text that nothing has rewritten before."""
    return convert_hlo_to_stablehlo(hlo_text_to_proto(text))


def normalized(text):
    module = normalize(read(text))
    check(module)
    for function in module.functions.values():
        values = [*function.body.arguments, *(v for op in walk(function.body) for v in op.results)]
        values += [v for op in walk(function.body) for region in op.regions for v in region.arguments]
        assert not any(isinstance(v.type, TupleType) for v in values)
        assert len({v.number for v in values}) == len(values)
    return module


def drawn(module):
    """The operations of the entry, with values named in order of appearance."""
    names = {}

    def name(value):
        return names.setdefault(value, f"v{len(names)}")

    body = module.main.body
    arguments = ", ".join(map(name, body.arguments))
    lines = [f"({arguments})"]
    for op in body.ops:
        operands = ", ".join(map(name, op.operands))
        lines.append(f"{', '.join(map(name, op.results))} = {op.name.split('.', 1)[1]}({operands})")
    return [*lines, f"-> {', '.join(map(name, body.results))}"]


def test_nothing_to_do_returns_the_module_itself():
    module = read(jax.jit(lambda x: jnp.sin(x) @ x).lower(np.eye(2, dtype=np.float32)))
    assert normalize(module) is module


def test_fusions_are_put_in_place():
    module = normalized(
        """HloModule m
        inner { a = f32[2] parameter(0)  ROOT s = f32[2] sine(a) }
        f { p = f32[2] parameter(0)  q = f32[2] parameter(1)  c = f32[2] fusion(p), kind=kLoop, calls=inner
            n = f32[2] add(c, q)  ROOT t = (f32[2], f32[2]) tuple(n, q) }
        ENTRY e { x = f32[2] parameter(0)  y = f32[2] negate(x)
            r = (f32[2], f32[2]) fusion(y, x), kind=kLoop, calls=f
            a = f32[2] get-tuple-element(r), index=0  b = f32[2] get-tuple-element(r), index=1
            ROOT z = f32[2] multiply(a, b) }"""
    )
    assert drawn(module) == [
        "(v0)",
        "v1 = negate(v0)",
        "v2 = sine(v1)",
        "v3 = add(v2, v0)",
        "v4 = multiply(v3, v0)",
        "-> v4",
    ]


def test_fusions_inside_loops():
    def f(x):
        return jax.lax.fori_loop(0, 5, lambda i, c: jnp.sin(c) * 2 + jnp.cos(c), x)

    text = jax.jit(f).lower(np.ones((64, 64), np.float32)).compile().as_text()
    module = normalized(text)
    names = [op.name for function in module.functions.values() for op in walk(function.body)]
    assert "mhlo.fusion" not in names
    assert "stablehlo.sine" in names or "stablehlo.custom_call" in names


def test_tuples_are_flattened_through_custom_calls_and_results():
    module = normalized(
        """HloModule m
        ENTRY e { a = (f32[2], (f32[2], s32[])) parameter(0)
          a0 = f32[2] get-tuple-element(a), index=0
          a1 = (f32[2], s32[]) get-tuple-element(a), index=1
          cc = (f32[2], (f32[2], s32[]), ()) custom-call(a0, a1), custom_call_target="foo",
            output_to_operand_aliasing={{0}: (0, {}), {1,1}: (1,{1})}
          g0 = f32[2] get-tuple-element(cc), index=0
          g1 = (f32[2], s32[]) get-tuple-element(cc), index=1
          cp = (f32[2], s32[]) copy(g1)
          ROOT r = (f32[2], (f32[2], s32[])) tuple(g0, cp) }"""
    )
    assert drawn(module) == [
        "(v0, v1, v2)",
        "v3, v4, v5 = custom_call(v0, v1, v2)",
        "v6 = copy(v4)",
        "v7 = copy(v5)",
        "-> v3, v6, v7",
    ]
    assert module.main.body.ops[0].attributes["output_operand_aliases"] == (
        OutputOperandAlias((0,), 0, ()),
        OutputOperandAlias((2,), 2, ()),
    )


def test_tuple_arguments_and_results_of_functions():
    pair = TupleType((F32, TupleType((I32,))))
    x, out = Value(0, pair), Value(1, pair)
    a, first, again = Value(0, pair), Value(1, F32), Value(2, pair)
    inner = Value(3, TupleType((I32,)))
    main = Function(
        "main",
        Region((x,), (Op("func.call", (x,), (out,), {"callee": Symbol("f")}),), (out,)),
        "public",
        argument_attributes=({"mhlo.sharding": "{replicated}"},),
        result_attributes=({},),
    )
    f = Function(
        "f",
        Region(
            (a,),
            (
                Op("stablehlo.get_tuple_element", (a,), (first,), {"index": 0}),
                Op("stablehlo.get_tuple_element", (a,), (inner,), {"index": 1}),
                Op("stablehlo.tuple", (first, inner), (again,)),
            ),
            (again,),
        ),
    )
    module = normalize(Module("m", {"main": main, "f": f}, "main"))
    check(module)
    assert drawn(module) == ["(v0, v1)", "v2, v3 = call(v0, v1)", "-> v2, v3"]
    assert module.main.argument_attributes == ({}, {})
    assert module.functions["f"].body.ops == ()


def test_names_of_tuple_arguments_lead_to_their_leaves():
    pair = TupleType((F32, TupleType((I32, F32))))
    module = read("HloModule m\nENTRY e { ROOT x = f32[2] parameter(0) }")
    location = module.main.argument_locations[0]
    x = Value(0, pair)
    function = dataclasses.replace(
        module.main, body=Region((x,), (), (x,)), argument_locations=(location,), argument_attributes=({},)
    )
    flat = normalize(dataclasses.replace(module, functions={"main": function})).main
    assert [where.name for where in flat.argument_locations] == ["x[0]", "x[1][0]", "x[1][1]"]


def test_asynchronous_operations_become_what_they_wrap():
    module = normalized(
        converted("""HloModule m
        x { p = f32[2] parameter(0) ROOT n = f32[2] negate(p) }
        ENTRY e { a = f32[2] parameter(0)
          s = ((f32[2]), f32[2], s32[]) async-start(a), calls=x
          u = ((f32[2]), f32[2], s32[]) async-update(s)
          c = (f32[2], f32[2], u32[]) copy-start(a)
          cd = f32[2] copy-done(c)
          ag = (f32[2], f32[4]) all-gather-start(a), dimensions={0}, replica_groups={{0,1}}
          agd = f32[4] all-gather-done(ag)
          w = f32[2] async-done(u)
          ROOT t = (f32[2], f32[2], f32[4]) tuple(w, cd, agd) }""")
    )
    assert drawn(module) == ["(v0)", "v1 = call(v0)", "v2 = call(v0)", "v3 = all_gather(v0)", "-> v1, v2, v3"]
    callees = [op.attributes.get("callee") for op in module.main.body.ops]
    assert callees == ["x", "copy_", None]
    assert all(op.attributes.keys() == {"callee"} for op in module.main.body.ops[:2])


def test_a_started_collective_keeps_its_region():
    module = normalized(
        converted("""HloModule m
        add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }
        ENTRY e { a = f32[2] parameter(0)
          s = f32[2] all-reduce-start(a), replica_groups={}, to_apply=add
          ROOT d = f32[2] all-reduce-done(s) }""")
    )
    (op,) = module.main.body.ops
    assert op.name == "stablehlo.all_reduce"
    assert [inner.name for inner in op.regions[0].ops] == ["stablehlo.add"]


def broken(*ops, arguments=()):
    module = Module("m", {"main": Function("main", Region(arguments, ops, ()), "public")}, "main")
    with pytest.raises(InvalidModuleError) as caught:
        normalize(module)
    return str(caught.value)


def test_what_cannot_be_normalized():
    x, pair = Value(0, F32), Value(1, TupleType((F32,)))
    made = Op("stablehlo.tuple", (x,), (pair,))
    taken = Op("stablehlo.get_tuple_element", (pair,), (Value(2, F32),), {"index": 1})
    assert "get_tuple_element takes element 1 of tuple<tensor<2xf32>>" in broken(made, taken, arguments=(x,))
    future = Value(3, FutureType((F32,)))
    done = Op("stablehlo.async_done", (future,), (Value(4, F32),))
    assert "async_done does not continue an async_start" in broken(done, arguments=(future,))
    bundle = Value(3, OpaqueType("!mhlo.async_bundle<tensor<2xf32>>"))
    start = Op("mhlo.async_start", (x,), (bundle,), {"called_computation": Symbol("gone")})
    assert "mhlo.async_start calls gone, which the module does not have" in broken(start, arguments=(x,))
    fusion = Op("mhlo.fusion", (x,), (Value(5, F32),), {}, (Region((), (), ()),))
    assert "mhlo.fusion passes on another number of values than it declares" in broken(fusion, arguments=(x,))
