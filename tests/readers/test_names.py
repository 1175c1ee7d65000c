import collections

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import unlower
from unlower.ir.interface import LEAF, Tree
from unlower.ir.key_path import AttributeKey, IndexKey, ItemKey
from unlower.readers.detect import read_source
from unlower.readers.names import tree_from_paths

F32 = np.float32
State = collections.namedtuple("State", "params step")


def interface(source):
    return read_source(source).interface


def train(state, opt, x):
    w = state.params["block1"]["kernel"]
    return {"w": w - opt[0].params["w"] * x.sum(), "step": state.step + 1}


W = np.ones((2, 3), F32)
ARGS = (State({"block1": {"kernel": W, "unused": W}}, np.int32(0)), (State({"w": W}, 1.0), None), np.ones(3, F32))
LOWERED = jax.jit(train).lower(*ARGS)


def sources():
    compiled = LOWERED.compile().as_text()
    attributes = """
    func.func public @main(%a: tensor<2x3xf32> {jax.arg_info = "state.params['block1']['kernel']"},
        %b: tensor<i32> {jax.arg_info = "state.step"}, %c: tensor<2x3xf32> {jax.arg_info = "opt[0].params['w']"},
        %x: tensor<3xf32> {jax.arg_info = "x"})
        -> (tensor<i32> {jax.result_info = "['step']"}, tensor<2x3xf32> {jax.result_info = "['w']"}) {
      %z = stablehlo.constant dense<0.0> : tensor<f32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %s = stablehlo.reduce(%x init: %z) applies stablehlo.add across dimensions = [0]
        : (tensor<3xf32>, tensor<f32>) -> tensor<f32>
      %t = stablehlo.broadcast_in_dim %s, dims = [] : (tensor<f32>) -> tensor<2x3xf32>
      %m = stablehlo.multiply %c, %t : tensor<2x3xf32>
      %w = stablehlo.subtract %a, %m : tensor<2x3xf32>
      %n = stablehlo.add %b, %one : tensor<i32>
      return %n, %w : tensor<i32>, tensor<2x3xf32>
    }"""
    return {
        "locations": LOWERED.as_text(debug_info=True),
        "jax.arg_info": attributes,
        "op_name in HLO text": compiled,
        "op_name in an HLO proto": LOWERED.compiler_ir("hlo").as_serialized_hlo_module_proto(),
    }


SOURCES = sources()


@pytest.mark.parametrize("kind", SOURCES)
def test_the_call_is_restored_from_names(kind):
    program = unlower.load(SOURCES[kind])
    found = program.interface
    assert [x.name for x in found.inputs] == [
        "state.params['block1']['kernel']",
        "state.step",
        "opt[0].params['w']",
        "x",
    ]
    assert found.argument_names == ("state", "opt", "x") and not found.complete
    want = jax.jit(train)(*ARGS)
    state, opt, x = ARGS
    plain = {"params": state.params, "step": 0}
    for got in (program(*ARGS), program(state, x=x, opt=opt), program(plain, [opt[0]], x)):
        step, w = (got["step"], got["w"]) if isinstance(got, dict) else got
        np.testing.assert_array_equal(w, want["w"])
        assert step == 1
    results = "(*, *)" if "HLO" in kind else "{'step': *, 'w': *}"
    assert program.signature.results_tree in (results, None)


@pytest.mark.parametrize("kind", SOURCES)
def test_what_is_missing_is_named_by_its_path(kind):
    program = unlower.load(SOURCES[kind])
    state, opt, x = ARGS
    wrong = {
        r"state\.params\['block1'\]\['kernel'\] is missing": (State({"block1": {}}, 0), opt, x),
        r"state\.params\['block1'\] is an array, where": (State({"block1": W}, 0), opt, x),
        r"opt\[0\] is missing": (state, (), x),
        r"opt\[0\]\.params\['w'\] is float32\[3\], not float32\[2,3\]": (state, (State({"w": x}, 1.0),), x),
        r"x is missing": (state, opt),
    }
    for message, args in wrong.items():
        with pytest.raises(unlower.SignatureError, match=message):
            program(*args)


def test_pruned_positional_arguments_may_be_passed():
    text = (
        jax.jit(lambda a, unused, c: a @ c)
        .lower(np.ones((2, 3), F32), 1.0, np.ones((3, 2), F32))
        .as_text(debug_info=True)
    )
    program = unlower.load(text)
    a, c = np.arange(6, dtype=F32).reshape(2, 3), np.ones((3, 2), F32)
    for got in (program(a, 1.0, c), program(a, c), program(a=a, unused=3, c=c), program(a, c=c)):
        np.testing.assert_array_equal(got, a @ c)
    with pytest.raises(unlower.SignatureError, match="c is float32"):
        program(a, a)
    with pytest.raises(unlower.SignatureError, match="it is not clear which(.|\n)*by name those that it kept: a, c"):
        program(a, a + 1, c)


def test_names_that_only_look_like_key_paths_leave_the_flat_order_too():
    text = """HloModule m
ENTRY e {
  x.clone = f32[] parameter(0)
  y = f32[2] parameter(1)
  b = f32[2] broadcast(x.clone), dimensions={}
  ROOT z = f32[2] subtract(y, b)
}"""
    program, y = unlower.load(text), np.ones(2, F32)
    for got in (program(1.0, y), program({"clone": 1.0}, y), program(y=y, x={"clone": 1})):
        np.testing.assert_array_equal(got, np.zeros(2))
    with pytest.raises(unlower.SignatureError, match=r"x\.clone is float32\[2\]"):
        program(y, 1.0)
    with pytest.raises(unlower.SignatureError, match="x is an array, where"):
        program(1.0, y=y)


def test_variable_arguments():
    def function(*xs, **named):
        return xs[0] + xs[1] * named["scale"]

    text = jax.jit(function).lower(1.0, 2.0, scale=3.0).as_text(debug_info=True)
    program = unlower.load(text)
    assert program(1.0, 2.0, scale=3.0) == 7.0
    assert program((1.0, 2.0), {"scale": 3.0}) == 7.0
    with pytest.raises(unlower.SignatureError, match=r"xs is an array, where \(\*, \*\) is expected"):
        program(1.0, scale=3.0)


@pytest.mark.parametrize(
    "names",
    [("p['w']", "p['w']"), ("p", "p['w']"), ("p.w", "p['w']"), ("XLA_Args", None), ("Arg_0.1", "x"), ("[0]", "[1]")],
)
def test_names_that_make_no_tree_leave_the_flat_order(names):
    arguments = ", ".join(
        f"%{i}: tensor<f32>" + (f' {{jax.arg_info = "{name}"}}' if name else "") for i, name in enumerate(names)
    ).replace("%", "%a")
    text = f"func.func public @main({arguments}) -> tensor<f32> {{\n return %a0 : tensor<f32> }}"
    program = unlower.load(text)
    assert program.interface.arguments is None
    assert program(1.0, 2.0) == 1.0
    with pytest.raises(unlower.SignatureError, match="does not say what its arguments are called"):
        program(1.0, x=2.0)
    with pytest.raises(unlower.SignatureError, match="takes 2 arrays, not 1"):
        program(1.0)


def test_index_paths_of_tensorflow():
    text = """func.func public @f(%x: tensor<f32> {tf_saved_model.index_path = ["inputs", "a"]},
      %y: tensor<f32> {tf_saved_model.index_path = ["inputs", "b"]}) -> tensor<f32> {
      %z = stablehlo.add %x, %y : tensor<f32>
      return %z : tensor<f32> }"""
    assert unlower.load(text)({"a": 1.0, "b": 2.0}) == 3.0


def test_symbols_come_from_the_assertions_of_a_bare_module():
    b, c = jax.export.symbolic_shape("b, c")
    structs = [jax.ShapeDtypeStruct(shape, F32) for shape in ((b, 3), (4,), (3, c + 2 * b))]
    exported = jax.export.export(jax.jit(lambda x, y, z: (x @ z, y)))(*structs)
    for source in (exported.mlir_module(), bytes(exported.mlir_module_serialized)):
        program = unlower.load(source)
        assert [str(aval.shape) for aval in program.in_avals] == ["(b, 3)", "(4,)", "(3, c + 2*b)"]
        assert [x.name for x in program.interface.inputs] == ["x", "y", "z"]


def test_results_of_one_leaf_and_of_none():
    assert interface(jax.jit(jnp.sin).lower(1.0).as_text()).results == LEAF
    one = jax.jit(lambda x: [x]).lower(1.0).as_text()
    assert interface(one).results == Tree("tuple", (), (LEAF,))
    assert isinstance(unlower.load(one)(1.0), tuple)


keys = st.one_of(
    st.integers(0, 3).map(ItemKey),
    st.sampled_from("abc").map(ItemKey),
    st.sampled_from("xy").map(AttributeKey),
    st.integers(0, 2).map(IndexKey),
)


@given(st.lists(st.lists(keys, max_size=3).map(tuple), min_size=1, max_size=5), st.booleans())
def test_a_tree_has_the_paths_it_was_made_of(paths, whole):
    made = tree_from_paths(paths, whole=whole)
    if made is None:
        return
    tree, order = made
    found = list(tree.paths())
    assert [found[leaf] for leaf in order] == paths
    assert sorted(order) == list(range(len(paths)))
