import collections
import json
import pathlib
import random

import export_files as files
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import unlower
from unlower._jax_compat import mlir_hlo, mlir_ir, new_mlir_context
from unlower.errors import FormatError, UnlowerError
from unlower.readers.detect import read_source

EXPORTS = pathlib.Path(__file__).parent.parent / "data" / "exports"
F32 = np.float32


def arrays(*shapes, seed=0):
    generator = np.random.default_rng(seed)
    return [generator.standard_normal(shape).astype(F32) for shape in shapes]


def equal(got, want):
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_array_equal(x, y)


def close(got, want):
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6)


# --- files that old releases wrote; the functions are what was exported


def nested(params, x, unused, *rest, scale):
    return {"y": x @ params["w"] + (params["b"] * scale)[None], "z": (rest[0], [x])}


@pytest.mark.parametrize("release", ["0_4_30", "0_12_0_1"])
def test_trees_keywords_and_pruned_arguments(release):
    program = unlower.load(EXPORTS / f"kwargs_{release}.jaxexport")
    w, b, u, x, unused, last = arrays((3, 4), (4,), (2,), (2, 3), (9,), (5,))
    args = ({"w": w, "b": b, "u": u}, x, unused, last)
    equal(program(*args, scale=2.0), jax.jit(nested)(*args, scale=F32(2)))
    assert [x.leaf for x in program.interface.inputs] == [0, 2, 3, 5, 6]
    names = [x.name for x in program.interface.inputs]
    assert names == ["params['b']", "params['w']", "x", "rest[0]", "scale"]
    assert [a.name for a in program.signature.arguments if a.role == "unused"] == ["params['u']", "args[2]"]


def test_symbolic_sizes_of_an_old_file():
    program = unlower.load(EXPORTS / "symbolic_0_4_30.jaxexport")
    assert [str(aval.shape) for aval in program.in_avals] == ["(b, 3)", "(c + 2*b,)", "(3, c)"]
    assert [str(aval.shape) for aval in program.out_avals[:2]] == ["(b, c)", "(c + 2*b,)"]
    for b, c in ((4, 2), (1, 5)):
        x, y, w = arrays((b, 3), (2 * b + c,), (3, c))
        product, total, counted, mean, flat, top = program(x, y, w)
        close(
            [product, total, mean, flat, top[0]],
            [x @ w, np.cumsum(y), x.sum() / b, np.concatenate([x, x]).reshape(-1), x[:, 0].max(keepdims=True)],
        )
        equal(counted, np.arange(b, dtype=np.int32) + (2 * b + c))


@pytest.mark.parametrize("release", ["0_4_30", "0_10_2"])
def test_platforms_of_a_symbolic_file(release):
    (x,) = arrays((4, 3))
    path = EXPORTS / f"platforms_{release}.jaxexport"
    for platform, added in (("cpu", x.T + 1), ("tpu", x.T + 2), ("cuda", x.T * 0), ("gpu", x.T * 0), (0, x.T + 2)):
        close(unlower.load(path, platform=platform)(x), np.sin(x) @ added)
    assert unlower.load(path).interface.platform == "cpu"


@pytest.mark.parametrize("release", ["0_4_30", "0_8_1", "0_12_0_1"])
def test_shardings_are_read_and_do_not_ask_for_devices(release):
    program = unlower.load(EXPORTS / f"sharded_{release}.jaxexport")
    p, x = arrays((6, 4), (8, 6))
    close(program(p, x), np.tanh(x @ p))
    assert program.interface.export.num_devices == 8
    shardings = [x.sharding for x in program.interface.inputs]
    if release == "0_12_0_1":
        over = "over (data=4, model=2)"
        assert shardings == [f"PartitionSpec(None, 'model') {over}", f"PartitionSpec('data') {over}"]
        assert program.interface.outputs[0].sharding == f"PartitionSpec('data', 'model') {over}"
    else:
        assert shardings == ["an HLO sharding"] * 2


def test_nested_pullbacks_are_programs_of_their_own():
    program = unlower.load(EXPORTS / "pullbacks_0_4_30.jaxexport")
    w, x = arrays((3, 4), (2, 3))

    def function(params, x, i):
        return jnp.tanh(x @ params["w"]).sum() + i

    want = jax.grad(function, (0, 1))({"w": w}, x, 3)
    first = program.interface.export.vjp
    dw, dx, di = unlower.load(first)(w, x, np.int32(3), F32(1))
    close([dw, dx], [want[0]["w"], want[1]])
    assert di.dtype == jax.dtypes.float0
    # The program's own derivative does not come from there.
    close(jax.grad(program)({"w": w}, x, 3), want[0])
    assert first.function_name == "fun_vjp_jax" and first.vjp is not None and first.vjp.vjp is None
    second = unlower.load(first.vjp)
    found = second(w, x, np.int32(3), F32(1), np.ones_like(w), np.zeros_like(x), np.zeros((), jax.dtypes.float0))
    close(found[0], jax.jvp(lambda w: jax.grad(function)({"w": w}, x, 3)["w"], (w,), (np.ones_like(w),))[1])


def test_typed_keys():
    program = unlower.load(EXPORTS / "keys_0_6_2.jaxexport")
    key = jax.random.key(5)
    draws, split = program(key)
    equal(draws, jax.random.normal(key, (3,)))
    equal(jax.random.key_data(split), jax.random.key_data(jax.random.split(key)))
    equal(program(jax.random.key_data(key))[0], draws)
    assert [str(a) for a in program.signature.arguments] == ["k: key<fry>[]"]
    with pytest.raises(unlower.SignatureError, match="k is key<rbg>, not key<fry>"):
        program(jax.random.key(5, impl="rbg"))


def test_a_named_tuple_that_this_process_does_not_know():
    program = unlower.load(EXPORTS / "namedtuple_0_6_2.jaxexport")
    a, b = arrays((2,), (3,))
    pair = collections.namedtuple("Pair", "a b")
    want = {"a": b * 2, "b": a}
    equal(program({"a": a, "b": b}), want)
    equal(program(pair(a=a, b=b)), want)
    equal(program((a, b)), want)
    assert any("x.NT comes back as a dict of its fields" in note for note in program.signature.notes)


def test_linear_algebra_of_an_old_file():
    program = unlower.load(EXPORTS / "linalg_0_4_30.jaxexport")
    (x,) = arrays((3, 3))
    cholesky, r, w = program(x)
    symmetric = x + x.T
    np.testing.assert_allclose(cholesky @ cholesky.T, x @ x.T + np.eye(3), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(r.T @ r, x.T @ x, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(w, np.linalg.eigvalsh(symmetric), rtol=1e-4, atol=1e-5)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(jax.jacobian(program)(x)))


# --- files of every layout, from live exports


def lives():
    def export(function, *args, platforms=None, **kwargs):
        return jax.export.export(jax.jit(function), platforms=platforms)(*args, **kwargs)

    (b,) = jax.export.symbolic_shape("b")
    x = jax.ShapeDtypeStruct((b, 3), F32)
    return {
        "plain": export(lambda x: x * 2, np.ones(3, F32)),
        "trees": export(
            lambda p, x, *, k=None: {"r": [p["a"][0] @ x, None, ()]},
            {"a": (np.ones((3, 3), F32), [])},
            np.ones(3, F32),
            k=None,
        ),
        "pruned": export(lambda a, b, c: c, np.ones(3, F32), np.ones((2, 2), np.int32), np.ones(4, np.float16)),
        "symbolic": export(lambda x, y: (x @ y.T, x.shape[0] * x), x, jax.ShapeDtypeStruct((2 * b + 1, 3), F32)),
        "platforms": export(lambda x: jnp.sin(x), np.ones(3, F32), platforms=["tpu", "cpu"]),
        "keys": export(lambda k: jax.random.split(k), jax.random.key(0)),
        "nothing": export(lambda: None),
        "ordered": export(lambda d: d, collections.OrderedDict(z=np.ones(2, F32), a=np.ones(3, F32))),
    }


LIVE = lives()


def comparable(interface):
    return (
        interface.arguments,
        interface.results,
        interface.argument_names,
        interface.argument_types,
        interface.inputs,
        interface.outputs,
        interface.platforms,
    )


@pytest.mark.parametrize("old", [False, True], ids=["new", "old"])
@pytest.mark.parametrize("name", LIVE)
def test_a_file_says_what_the_live_export_says(name, old):
    live = read_source(LIVE[name]).interface
    data = files.file(LIVE[name], old=old)
    read = read_source(data).interface
    assert comparable(read) == comparable(live)
    assert read.export.function_name == LIVE[name].fun_name
    assert read.export.jax_version == (None if old else jax.__version__)


def test_a_gzipped_file_and_its_record():
    import gzip

    data = files.file(LIVE["plain"], vjp=1)
    program = unlower.load(gzip.compress(data))
    equal(program(np.arange(3, dtype=F32)), np.arange(3, dtype=F32) * 2)
    (pulled,) = unlower.load(program.interface.export.vjp)(np.ones(3, F32), np.arange(3, dtype=F32))
    equal(pulled, np.arange(3, dtype=F32) * 2)
    assert json.loads(unlower.inspect(data).to_json())["export"]["nested_pullbacks"] == 1
    assert unlower.verify(data)


# --- classes


@jax.tree_util.register_pytree_with_keys_class
class Point:
    def __init__(self, x, y, unit):
        self.x, self.y, self.unit = x, y, unit

    def tree_flatten_with_keys(self):
        keys = jax.tree_util.GetAttrKey("x"), jax.tree_util.GetAttrKey("y")
        return list(zip(keys, (self.x, self.y), strict=True)), self.unit

    @classmethod
    def tree_unflatten(cls, unit, children):
        return cls(*children, unit)


jax.export.register_pytree_node_serialization(
    Point, serialized_name="tests.Point", serialize_auxdata=str.encode, deserialize_auxdata=bytes.decode
)


def moved(point, by):
    return Point(point.x + by, point.y, point.unit), by * 2


def test_a_registered_class_comes_back_as_itself():
    x, y, by = arrays((2,), (3,), (2,))
    exported = jax.export.export(jax.jit(moved))(Point(x, y, "m"), by)
    data = files.file(exported, names={Point: ("tests.Point", b"m")})
    for source in (data, exported):
        point, twice = unlower.load(source)(Point(x, y, "m"), by)
        assert isinstance(point, Point) and point.unit == "m"
        equal([point.x, point.y, twice], [x + by, y, by * 2])


def test_an_unknown_class_is_matched_by_fields_or_order():
    x, y, by = arrays((2,), (3,), (2,))
    exported = jax.export.export(jax.jit(moved))(Point(x, y, "m"), by)
    data = files.file(exported, names={Point: ("elsewhere.Point", b"\x80\x04any bytes")})
    program = unlower.load(data)
    want = ({"x": x + by, "y": y}, by * 2)
    for point in (Point(x, y, "km"), {"x": x, "y": y}, (x, y), [x, y]):
        equal(program(point, by), want)
    with pytest.raises(unlower.SignatureError, match=r"point\.y is missing"):
        program({"x": x, "z": y}, by)
    assert "elsewhere.Point comes back as a dict of its fields" in program.signature.notes
    assert str(program.interface.results) == "(Point(x=*, y=*), *)"


# --- damaged files


def damage(fields, number, value):
    return files.Writer().finish({**fields, number: value})


def types(size, dtype):
    return ("tables", [{0: ("b", 0), 1: ("strings", [size]), 2: ("b", dtype)}])


PLAIN = files.record(LIVE["plain"])


@pytest.mark.parametrize(
    ("number", "value", "message"),
    [
        (2, ("table", None), "in_tree is missing"),
        (2, ("table", files.node(files.LEAF)), r"not of \(args, kwargs\)|1 leaves"),
        (2, ("table", files.node(99)), "a tree node of kind 99"),
        (2, ("table", files.node(files.DICT, [files.node(files.LEAF)], ["a", "b"])), "a dict of 1 with 2 keys"),
        (4, ("table", files.node(files.NONE)), "the tree of the results has 0 leaves, and 1 types"),
        (15, ("numbers", ("H", [])), "keeps 0 arguments, its module takes 1"),
        (15, ("numbers", ("H", [7])), "takes argument 7 of 1"),
        (19, ("tables", [{0: ("b", 0), 1: ("strings", ["3"]), 2: ("b", 99)}]), "an unknown dtype, number 99"),
        (
            19,
            ("tables", [{0: ("b", 0), 1: ("strings", ["4"]), 2: ("b", 10)}]),
            r"x is float32\[4\] in the file, and tensor<3xf32>",
        ),
        (19, ("tables", [{0: ("b", 0), 1: ("strings", ["3"]), 2: ("b", 9)}]), r"x is float16\[3\] in the file"),
        (19, ("tables", [{0: ("b", 0), 1: ("strings", ["b+"]), 2: ("b", 10)}]), r"'b\+' is no size"),
        (22, ("numbers", ("I", [5])), "type 5 of 1"),
        (24, ("numbers", ("I", [3])), "sharding 3 of 0"),
    ],
)
def test_a_file_that_contradicts_itself(number, value, message):
    with pytest.raises(FormatError, match=message) as caught:
        read_source(damage(PLAIN, number, value))
    assert caught.value.mend


def test_a_tree_without_end_is_refused():
    deep = wide = files.node(files.LEAF)
    for _ in range(300):
        deep = files.node(files.TUPLE, [deep])
    with pytest.raises(FormatError, match="nested over 200 deep"):
        read_source(damage(PLAIN, 2, ("table", deep)))
    for _ in range(60):
        wide = files.node(files.TUPLE, [wide, wide])
    with pytest.raises(FormatError, match="more nodes than the file has room for"):
        read_source(damage(PLAIN, 2, ("table", wide)))


def test_any_damage_is_an_error_of_ours():
    sample = files.file(LIVE["trees"])
    start = sample.index(b"ML\xefR")
    stop = start + len(LIVE["trees"].mlir_module_serialized)
    # The module has a fuzzer of its own.
    places = [*range(start), *range(stop, len(sample))]
    generator = random.Random(0)
    outcomes = collections.Counter()
    for _ in range(1500):
        damaged = bytearray(sample)
        for _ in range(generator.randint(1, 3)):
            damaged[generator.choice(places)] = generator.choice([0, 1, 127, 255, generator.randrange(256)])
        try:
            source = read_source(bytes(damaged))
        except UnlowerError:
            outcomes["refused"] += 1
        else:
            assert len(source.interface.inputs) == len(source.module.main.body.arguments)
            outcomes["read"] += 1
    assert outcomes["refused"] > 300 and outcomes["read"] > 100


def test_tokens_of_ordered_effects_are_neither_given_nor_returned():
    text = """func.func public @main(%p: tensor<i32> {jax.global_constant = "_platform_index"}, %t: !stablehlo.token,
        %x: tensor<3xf32>) -> (!stablehlo.token, tensor<3xf32>) {
      %y = stablehlo.negate %x : tensor<3xf32>
      return %t, %y : !stablehlo.token, tensor<3xf32> }"""
    with new_mlir_context():
        module = mlir_hlo.serialize_portable_artifact(mlir_ir.Module.parse(text), mlir_hlo.get_minimum_version())
    effects = ("tables", [{0: ("string", "<class 'acme.Ordered'>")}])
    data = files.Writer().finish(PLAIN | {9: ("strings", ["cpu", "tpu"]), 10: effects, 13: ("bytes", module)})
    program = unlower.load(data)
    equal(program(np.ones(3, F32)), -np.ones(3, F32))
    assert [x.role for x in program.interface.inputs] == ["token", "argument"]
    assert program.interface.export.ordered_effects == ("acme.Ordered",)
    assert len(program.original_inputs([np.ones(3, F32)])) == 3


def test_large_constants_stay_in_the_file():
    table = np.random.default_rng(0).standard_normal((300, 400), np.float32)
    exported = jax.export.export(jax.jit(lambda x: (x @ table, table)))(np.ones((2, 300), np.float32))
    x = np.ones((2, 300), np.float32)
    for found, wanted in zip(unlower.load(files.file(exported))(x), exported.call(x), strict=True):
        assert np.asarray(found).tobytes() == np.asarray(wanted).tobytes()
