"""The primitive that lowers to any operation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.interpreters import ad
from jax.sharding import AxisType, PartitionSpec

from unlower import UnlowerError
from unlower.ir.attributes import Enum, Int, IntArray
from unlower.ir.types import TensorType
from unlower.ops.reemit import Attributes, Call, jvp_rule, reemit, transpose_rule

_F4 = TensorType((4,), "f32")
_X = np.array([1, 3, 2, 0], np.float32)


def _comparator(function=lax.gt, captured=()):
    return jax.make_jaxpr(function)(*captured, np.float32(0), np.float32(0))


def _sorted(x, region=None, captures=()):
    attributes = {"dimension": Int(0), "is_stable": True}
    return reemit("stablehlo.sort", [x], [_F4], attributes, [region or _comparator()], [captures])[0]


def _reversed(x):
    # No rule of any kind belongs to this operation.
    return reemit("stablehlo.reverse", [x], [_F4], {"dimensions": IntArray([0])})[0]


def test_lowers_to_the_operation():
    text = jax.jit(_reversed).lower(_X).as_text()
    assert "stablehlo.reverse %arg0, dims = [0] : tensor<4xf32>" in text
    np.testing.assert_array_equal(jax.jit(_reversed)(_X), _X[::-1])
    np.testing.assert_array_equal(_reversed(_X), _X[::-1])


def test_regions_lower_in_place_and_may_capture():
    region = _comparator(lambda scale, x, y: lax.gt(x * scale, y * scale), (np.float32(0),))
    function = lambda x, scale: _sorted(x, region, [scale])
    text = jax.jit(function).lower(_X, np.float32(-1)).as_text()
    assert "stablehlo.multiply %arg2, %arg1" in text
    # XLA itself refuses regions that capture, so the meaning shows in the text alone.


def test_any_operation_batches():
    xs = np.stack([_X, _X + 1, -_X], 1)
    got = jax.vmap(_reversed, in_axes=1)(xs)
    np.testing.assert_array_equal(got, xs[::-1].T)


def test_batches_of_batches():
    xs = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    np.testing.assert_array_equal(jax.vmap(jax.vmap(_reversed))(xs), xs[..., ::-1])


def test_no_derivative_is_an_error_that_names_the_operation():
    with pytest.raises(UnlowerError, match="stablehlo.reverse has no derivative"):
        jax.grad(lambda x: _reversed(x).sum())(_X)


def test_no_derivative_is_needed_where_nothing_moves():
    def loss(x):
        return (x * lax.stop_gradient(_reversed(lax.stop_gradient(x)))).sum()

    np.testing.assert_array_equal(jax.grad(loss)(_X), _X[::-1])


def test_integer_results_have_no_tangents():
    def loss(x):
        attributes = {"comparison_direction": Enum("GT", mnemonic="comparison_direction")}
        (flags,) = reemit("stablehlo.compare", [x, -x], [TensorType((4,), "i1")], attributes)
        return jnp.where(flags, x, 0.0).sum()

    np.testing.assert_array_equal(jax.grad(loss)(_X), [1, 1, 1, 0])


def test_rules_make_derivatives():
    name = "stablehlo.reverse"
    from unlower.ops import reemit as tables

    try:

        @jvp_rule(name)
        def _jvp(call, primals, tangents):
            return call.bind(*primals), call.bind(*tangents)

        @transpose_rule(name)
        def _transpose(call, cotangents, operands):
            assert ad.is_undefined_primal(operands[0])
            return call.bind(*cotangents)

        gradient = jax.grad(lambda x: (_reversed(x) * jnp.arange(4.0, dtype=jnp.float32)).sum())
        np.testing.assert_array_equal(gradient(_X), [3, 2, 1, 0])
        np.testing.assert_array_equal(jax.jit(jax.vmap(gradient))(_X[None])[0], [3, 2, 1, 0])
    finally:
        for table in (tables._jvp_rules, tables._transpose_rules):
            table._rules.pop(name, None)


def _custom_call(x, **attributes):
    return reemit("stablehlo.custom_call", [x], [_F4], {"call_target_name": "known_to_nobody", **attributes})[0]


def test_side_effects_are_kept():
    def function(x, **attributes):
        _custom_call(x, **attributes)
        return x

    assert "known_to_nobody" in jax.jit(lambda x: function(x, has_side_effect=True)).lower(_X).as_text()
    assert "known_to_nobody" not in jax.jit(lambda x: function(x, has_side_effect=False)).lower(_X).as_text()
    inside = jax.jit(lambda x: lax.fori_loop(0, 3, lambda i, x: function(x, has_side_effect=True), x))
    assert "known_to_nobody" in inside.lower(_X).as_text()


def test_functions_of_a_custom_call_are_functions_of_the_module():
    def function(x):
        attributes = {"call_target_name": "f", "called_computations": ("g", "g")}
        return reemit("stablehlo.custom_call", [x], [_F4], attributes, [_comparator(), _comparator(lax.lt)])[0]

    text = jax.jit(function).lower(_X).as_text()
    assert "called_computations = [@g, @g_0]" in text
    assert text.count("func.func private @g") == 2


def test_custom_calls_are_filed_by_target():
    call = Call("stablehlo.custom_call", (_F4,), Attributes({"call_target_name": "target"}))
    assert call.key == "target"


def test_attributes_compare_by_spelling():
    def attributes(value):
        return Attributes({"a": value})

    assert attributes(Int(3, "i64")) == attributes(Int(3, "i64"))
    assert hash(attributes(Int(3, "i64"))) == hash(attributes(Int(3, "i64")))
    assert attributes(Int(3, "i64")) != attributes(Int(3, "i32"))
    assert attributes(True) != attributes(Int(1))
    assert attributes((1, 2)) == attributes((1, 2))
    assert dict(attributes(True)) == {"a": True}


def test_inside_a_shard_map():
    mesh = jax.make_mesh((1,), ("i",), axis_types=(AxisType.Auto,))
    spec = PartitionSpec("i")
    mapped = jax.shard_map(_sorted, mesh=mesh, in_specs=spec, out_specs=spec)
    np.testing.assert_array_equal(jax.jit(mapped)(_X), [3, 2, 1, 0])


def test_under_remat_and_in_loops():
    function = jax.checkpoint(lambda x: _sorted(x) * x)
    # Each element meets what stands at its place after sorting, and what it is moved to.
    np.testing.assert_array_equal(jax.grad(lambda x: function(x).sum())(_X), [3 + 2, 2 + 1, 1 + 3, 0 + 0])
    carried, _ = jax.jit(lambda x: lax.scan(lambda x, _: (_sorted(x) + 1, None), x, None, length=3))(_X)
    np.testing.assert_array_equal(carried, [6, 5, 4, 3])
