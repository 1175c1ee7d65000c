import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unlower._jax_compat import mlir_ir, new_mlir_context
from unlower.ir.attributes import (
    ChannelHandle,
    ConvDimensionNumbers,
    DenseElements,
    DotAlgorithm,
    DotDimensionNumbers,
    Enum,
    Float,
    GatherDimensionNumbers,
    Int,
    IntArray,
    OutputOperandAlias,
    RaggedDotDimensionNumbers,
    ResultAccuracy,
    ScatterDimensionNumbers,
    Symbol,
    Unit,
    Unparsed,
)
from unlower.ir.module import Op, Region, Value
from unlower.ir.printer import format_attribute, print_module, print_op
from unlower.ir.types import DTYPES, TensorType, TokenType, TupleType
from unlower.raising.normalize import normalize
from unlower.readers.detect import read

DATA = pathlib.Path(__file__).parent.parent / "data"
F32 = TensorType((2,), "f32")


def same(first, second):
    """Equality that sees element types, spellings and bits."""
    if type(first) is not type(second):
        return False
    if isinstance(first, DenseElements):
        return (first.type, first.array.dtype, first.array.shape, first.array.tobytes()) == (
            second.type,
            second.array.dtype,
            second.array.shape,
            second.array.tobytes(),
        )
    if isinstance(first, dict):
        return list(first) == list(second) and all(same(first[k], second[k]) for k in first)
    if type(first) is tuple:
        return len(first) == len(second) and all(map(same, first, second))
    if isinstance(first, float) and first != first:
        return second != second and first.element == second.element
    details = ("element", "dialect", "mnemonic")
    return first == second and all(getattr(first, d, None) == getattr(second, d, None) for d in details)


def assert_same_region(first, second, values):
    assert [v.type for v in first.arguments] == [v.type for v in second.arguments]
    values.update(zip(first.arguments, second.arguments, strict=True))
    for op, other in zip(first.ops, second.ops, strict=True):
        assert op.name == other.name
        # MLIR keeps attributes sorted.
        assert same(dict(sorted(op.attributes.items())), dict(sorted(other.attributes.items()))), print_op(op)
        assert [values[v] for v in op.operands] == list(other.operands)
        assert op.types == other.types
        for inner, other_inner in zip(op.regions, other.regions, strict=True):
            assert_same_region(inner, other_inner, values)
        values.update(zip(op.results, other.results, strict=True))
    assert [values[v] for v in first.results] == list(second.results)


def assert_round_trip(module):
    again = read(print_module(module))
    assert (again.name, again.entry) == (module.name, module.entry)
    assert same(dict(again.attributes), dict(sorted(module.attributes.items())))
    assert set(again.functions) == set(module.functions)
    for name, function in module.functions.items():
        other = again.functions[name]
        assert [dict(a) for a in function.argument_attributes] == [dict(a) for a in other.argument_attributes]
        assert [dict(a) for a in function.result_attributes] == [dict(a) for a in other.result_attributes]
        assert_same_region(function.body, other.body, {})


def train_step(params, x):
    def loss(params):
        h = jax.nn.gelu(jax.lax.conv_general_dilated(x, params["w"], (1, 2), "SAME"))
        h = jax.lax.reduce_window(h, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
        carry, _ = jax.lax.scan(lambda c, y: (c + jnp.sin(y), None), jnp.zeros(h.shape[1:]), h)
        top, _ = jax.lax.top_k(carry.reshape(-1), 3)
        return jnp.where(top > 0, top, jnp.sort(top)).sum()

    return jax.grad(loss)(params)


def lowered(name):
    x = np.ones((2, 3, 8, 8), np.float32)
    programs = {
        "train step": lambda: jax.jit(train_step).lower({"w": np.ones((4, 3, 3, 3), np.float32)}, x),
        "complex": lambda: jax.jit(lambda x: jnp.fft.fft(x) * np.complex64(1 + 2j)).lower(x),
        "indexing": lambda: jax.jit(lambda x, i: x[:, i].at[0, i].add(1.0)).lower(x, np.array([0, 2])),
        "cond": lambda: jax.jit(lambda x: jax.lax.switch(1, [jnp.sin, jnp.cos, jnp.tan], x)).lower(x),
        "random": lambda: jax.jit(lambda key: jax.random.normal(key, (3,))).lower(jax.random.key(0)),
        "linear algebra": lambda: jax.jit(jnp.linalg.qr).lower(np.eye(3, dtype=np.float32)),
        "constants": lambda: jax.jit(lambda: jnp.asarray(np.arange(40, dtype=np.int8))).lower(),
        "quantized weights": lambda: jax.jit(lambda x: x.astype(jnp.float8_e4m3fn).astype(jnp.bfloat16)).lower(x),
    }
    return programs[name]()


PROGRAMS = [
    "train step", "complex", "indexing", "cond", "random", "linear algebra", "constants", "quantized weights"
]  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_printed_modules_read_back_the_same(name):
    assert_round_trip(read(lowered(name)))


@pytest.mark.parametrize("name", PROGRAMS)
def test_printed_hlo_modules_read_back_the_same(name):
    module = read(lowered(name).as_text("hlo"))
    assert_round_trip(module)


@pytest.mark.parametrize("name", ["train step", "cond"])
def test_printed_optimized_modules_read_back_the_same(name):
    module = read(lowered(name).compile().as_text(), elided="zeros")
    assert_round_trip(module)
    assert_round_trip(normalize(module))


@pytest.mark.parametrize(
    "name", ["portable_0_4_30.mlirbc", "literals_without_payload.hlo.pb", "before_optimizations.hlo.pb.gz"]
)
def test_files_print_and_read_back_the_same(name):
    assert_round_trip(read(DATA / name, elided="zeros"))


MHLO = {
    "ragged dot": """a = f32[11,5] parameter(0)
      b = f32[3,5,7] parameter(1)
      g = s32[3] parameter(2)
      ROOT r = f32[11,7] ragged-dot(a, b, g), lhs_contracting_dims={1}, rhs_contracting_dims={1}, lhs_ragged_dims={0},
        rhs_group_dims={0}""",
    "top k": """a = f32[3,10] parameter(0)
      ROOT r = (f32[3,2], s32[3,2]) topk(a), k=2, largest=true""",
    "functions": """a = f32[3] parameter(0)
      b = f32[3] acos(a)
      c = f32[3] sinh(b)
      ROOT r = f32[3] erf(c)""",
    "random state": "ROOT r = u64[2] rng-get-and-update-state(), delta=4096",
    "stochastic convert": """a = f32[3] parameter(0)
      b = u32[3] parameter(1)
      ROOT r = bf16[3] stochastic-convert(a, b)""",
    "all to all": """a = f32[3] parameter(0)
      b = f32[3] parameter(1)
      ROOT r = (f32[3], f32[3]) all-to-all(a, b), replica_groups={{0,1}}, channel_id=3""",
    "dependencies": """a = f32[3] parameter(0)
      d = f32[3] domain(a), domain={kind="sharding", entry={maximal device=0}, exit={maximal device=1}}
      t = token[] after-all()
      q = f32[3] add-dependency(d, t)
      ROOT r = f32[3] copy(q)""",
    "bitcast": """a = f32[3,4]{1,0} parameter(0)
      ROOT r = f32[4,3]{0,1} bitcast(a)""",
    "custom call": """a = f32[3] parameter(0)
      ROOT r = f32[3] custom-call(a), custom_call_target="foo", schedule=SCHEDULE_LATEST, backend_config="x" """,
    "typed call": """a = f32[3] parameter(0)
      ROOT r = f32[3] custom-call(a), custom_call_target="foo", api_version=API_VERSION_TYPED_FFI,
        backend_config={a = 1 : i32, b = array<f32: 1.0>}""",
    "dynamic size": """a = f32[<=3] parameter(0)
      n = s32[] parameter(1)
      ROOT s = f32[<=3] set-dimension-size(a, n), dimensions={0}""",
}


@pytest.mark.parametrize("name", MHLO)
def test_what_the_converter_leaves_prints_and_reads_back_the_same(name):
    assert_round_trip(read(f"HloModule m\nENTRY e {{\n {MHLO[name]}\n}}"))


# --- attributes

numbers = st.lists(st.integers(0, 6), max_size=4).map(tuple)
names = st.from_regex(r"[a-z_][a-z0-9_.]{0,8}", fullmatch=True)


def floats(element):
    dtype = DTYPES[element]
    return st.integers(0, 2 ** (8 * dtype.itemsize) - 1).map(
        lambda bits: np.array(bits, f"u{dtype.itemsize}").view(dtype).reshape(1)[0]
    )


@st.composite
def dense(draw):
    element = draw(st.sampled_from(list(DTYPES)))
    dtype = DTYPES[element]
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=3)))
    size = int(np.prod(shape))
    # MLIR knows one element for all only as a splat, even where all is one.
    is_splat = shape != () and (size == 1 or (size > 1 and draw(st.booleans())))
    count = 1 if is_splat else size
    raw = np.frombuffer(draw(st.binary(min_size=count * dtype.itemsize, max_size=count * dtype.itemsize)), np.uint8)
    if element in ("i1", "i2", "i4", "ui2", "ui4"):
        width = int(element.strip("ui"))
        values = raw.astype(np.int64) % (1 << width) - ((1 << width - 1) if element in ("i2", "i4") else 0)
        array = values.astype(np.int8).astype(dtype)
    else:
        limit = {"f4E2M1FN": 16, "f6E2M3FN": 64, "f6E3M2FN": 64}.get(element, 256)
        array = (raw.astype(np.int64) % limit).astype(np.uint8).view(dtype)
    if count > 1 and array.tobytes() == array[:1].tobytes() * count:
        array, is_splat = array[:1], True  # MLIR makes a splat of equal elements
    return DenseElements(TensorType(shape, element), array.reshape(() if is_splat else shape))


scalars = st.one_of(
    st.booleans(),
    st.text(st.characters(blacklist_categories=["Cs"]), max_size=8),
    st.binary(max_size=4).map(lambda b: b.decode("utf-8", "surrogateescape")),
    st.just(Unit),
    names.map(Symbol),
    st.text('ab "\\é', min_size=1, max_size=4).map(Symbol),
    st.integers(-(2**63), 2**63 - 1).map(Int),
    st.integers(0, 2**64 - 1).map(lambda v: Int(v, "ui64")),
    st.integers(-128, 127).map(lambda v: Int(v, "si8")),
    st.integers(-(2**31), 2**31 - 1).map(lambda v: Int(v, "i32")),
    st.floats().map(Float),
    *[floats(e).map(lambda v, e=e: Float(float(v), e)) for e in ("f16", "bf16", "f8E4M3FN", "f8E5M2")],
    st.floats(width=32, allow_nan=False).map(lambda v: Float(v, "f32")),
    st.lists(st.integers(-9, 9)).map(IntArray),
    st.lists(st.booleans()).map(lambda v: IntArray(v, "i1")),
    st.lists(st.integers(0, 9)).map(lambda v: IntArray(v, "index")),
    st.sampled_from([F32, TokenType(), TupleType((F32, TupleType(())))]),
    st.just(Unparsed("affine_map<(d0) -> (d0)>")),
    st.just(Enum("HIGHEST", "stablehlo", "precision")),
    st.builds(DotDimensionNumbers, numbers, numbers, numbers, numbers),
    st.builds(GatherDimensionNumbers, numbers, numbers, numbers, numbers, numbers, st.integers(0, 3)),
    st.builds(ScatterDimensionNumbers, numbers, numbers, numbers, numbers, numbers, st.integers(0, 3)),
    st.builds(ChannelHandle, st.integers(0, 9), st.integers(0, 3)),
    st.builds(OutputOperandAlias, numbers, st.integers(0, 9), numbers),
    st.builds(ResultAccuracy, st.just("TOLERANCE"), st.floats(0, 1e30), st.floats(0, 1e30), st.integers(0, 9)),
    st.permutations(range(4)).map(
        lambda p: ConvDimensionNumbers(p[0], p[1], (p[2], p[3]), p[3], p[2], (p[0], p[1]), p[2], p[1], (p[3], p[0]))
    ),
    st.just(DotAlgorithm("tf32", "tf32", "f32", 1, 1, 3, False)),
    dense(),
)
attributes = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3).map(tuple), st.dictionaries(names, inner, max_size=3)),
    max_leaves=5,
)


def read_attribute(text):
    module = read(
        f"module {{ func.func @main() {{\n stablehlo.custom_call @f() {{test.it = {text}}} : () -> ()\n return }} }}"
    )
    return module.main.body.ops[0].attributes["test.it"]


def sorted_keys(attribute):
    if isinstance(attribute, dict):
        return {key: sorted_keys(attribute[key]) for key in sorted(attribute)}
    return tuple(map(sorted_keys, attribute)) if type(attribute) is tuple else attribute


@settings(max_examples=150, deadline=None)
@given(attributes)
def test_attributes_are_spelled_so_that_mlir_reads_the_identical_one(attribute):
    text = format_attribute(attribute)
    assert same(read_attribute(text), sorted_keys(attribute)), text


@pytest.mark.parametrize(
    ("attribute", "dialect", "text"),
    [
        (Int(3), "stablehlo", "3 : i64"),
        (Float(1e-5, "f32"), "stablehlo", "1.0e-05 : f32"),
        (Float(float("inf"), "bf16"), "stablehlo", "0x7F80 : bf16"),
        (Enum("DEFAULT", "chlo", "precision"), "stablehlo", "#chlo<precision DEFAULT>"),
        (Enum("TOLERANCE", "stablehlo", ".result_accuracy_mode"), "mhlo", "#stablehlo.result_accuracy_mode<TOLERANCE>"),
        (
            RaggedDotDimensionNumbers(DotDimensionNumbers((), (), (1,), (1,)), (0,), (0,)),
            "chlo",
            "#chlo.ragged_dot<lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [1], "
            "lhs_ragged_dimensions = [0], rhs_group_dimensions = [0]>",
        ),
        (
            RaggedDotDimensionNumbers(DotDimensionNumbers((), (), (1,), (1,)), (0,), (0,)),
            "mhlo",
            "#mhlo.ragged_dot<dot_dimension_numbers = #mhlo.dot<lhs_contracting_dimensions = [1], "
            "rhs_contracting_dimensions = [1]>, lhs_ragged_dimensions = [0], rhs_group_dimensions = [0]>",
        ),
        (GatherDimensionNumbers(offset_dims=(1,)), "mhlo", "#mhlo.gather<offset_dims = [1]>"),
        (True, "stablehlo", "true"),
        (7, "stablehlo", "7 : i64"),
        (0.5, "stablehlo", "0.5 : f64"),
    ],
)
def test_spellings(attribute, dialect, text):
    assert format_attribute(attribute, dialect) == text
    with new_mlir_context():
        mlir_ir.Attribute.parse(text)


def test_what_is_no_attribute():
    with pytest.raises(TypeError, match="is no attribute of the IR"):
        format_attribute(object())


def test_an_operation_is_drawn_short():
    x, y, z = (Value(i, F32) for i in range(3))
    loop = Op("stablehlo.while", (x,), (y,), {"test.w": Unit}, (Region((), (), ()), Region((), (), ())))
    assert print_op(loop) == '%1 = "stablehlo.while"(%0) ({...}, {...}) {test.w} : (tensor<2xf32>) -> tensor<2xf32>'
    several = Op("stablehlo.custom_call", (x,), (y, z), {"call_target_name": "f"})
    types = "(tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>)"
    expected = f'%1, %2 = "stablehlo.custom_call"(%0) {{call_target_name = "f"}} : {types}'
    assert print_op(several) == expected
    large = DenseElements(TensorType((99,), "f32"), np.arange(99, dtype=np.float32))
    assert print_op(Op("stablehlo.constant", (), (z,), {"value": large})).startswith(
        '%2 = "stablehlo.constant"() {value = dense<...> : tensor<99xf32>}'
    )
    assert "0x" in print_op(Op("stablehlo.constant", (), (z,), {"value": large}), full=True)
