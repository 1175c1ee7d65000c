import json

import jax
import jax.numpy as jnp
import pytest

import unlower
from unlower.inspection import inspect

LOOP = """HloModule loop
body { s = (s32[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[4] get-tuple-element(s), index=1
  one = s32[] constant(1)
  next = s32[] add(i, one)
  y = f32[4] add(x, x)
  ROOT t = (s32[], f32[4]) tuple(next, y)
}
cond { s = (s32[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  end = s32[] constant(5)
  ROOT less = pred[] compare(i, end), direction=LT
}
ENTRY main { x = f32[4] parameter(0)
  zero = s32[] constant(0)
  start = (s32[], f32[4]) tuple(zero, x)
  end = (s32[], f32[4]) while(start), condition=cond, body=body
  ROOT y = f32[4] get-tuple-element(end), index=1
}
"""

ELIDED = """HloModule m
ENTRY e { x = f32[12] parameter(0)
  w = f32[12] constant({...})
  ROOT y = f32[12] multiply(x, w)
}
"""

FOREIGN = """
func.func public @main(%x: tensor<3xf32>) -> tensor<3xf32> {
  %y = stablehlo.custom_call @acme_softplus(%x) : (tensor<3xf32>) -> tensor<3xf32>
  %z = stablehlo.custom_call @acme_softplus(%y) : (tensor<3xf32>) -> tensor<3xf32>
  return %z : tensor<3xf32>
}
"""


def test_signature_sizes_and_names():
    def apply(params, x):
        return {"loss": jnp.sum(params["w"] @ x), "y": x.astype(jnp.bfloat16)}

    text = jax.jit(apply).lower({"w": jnp.ones((2, 3))}, jnp.ones(3)).as_text(debug_info=True)
    found = inspect(text)
    assert [(a.name, a.type, a.bytes) for a in found.inputs] == [
        ("params['w']", "float32[2,3]", 24),
        ("x", "float32[3]", 12),
    ]
    assert [(a.type, a.bytes) for a in found.outputs] == [("float32[]", 4), ("bfloat16[3]", 6)]
    assert ["loss" in a.name for a in found.outputs] == [True, False]


def test_loops_are_found_and_operations_in_them_counted():
    found = inspect(LOOP)
    (loop,) = found.loops
    assert (loop.function, loop.carried) == ("main", 2)
    assert found.histogram["stablehlo.add"] == 2
    assert found.operations == sum(found.histogram.values())
    assert list(found.histogram.values()) == sorted(found.histogram.values(), reverse=True)


def test_constants_are_counted_in_the_programs_memory():
    found = inspect("""
    func.func public @main() -> tensor<4x4xf32> {
      %c = stablehlo.constant dense<1.0> : tensor<4x4xf32>
      return %c : tensor<4x4xf32>
    }
    """)
    assert (found.constants, found.constant_bytes) == (1, 64)


def test_constants_left_out_are_listed_not_refused():
    found = inspect(ELIDED)
    assert found.elided == ("w: tensor<12xf32>",)
    with pytest.raises(unlower.FormatError):
        unlower.load(ELIDED)


def test_what_load_would_refuse_is_listed_with_its_place():
    found = inspect(FOREIGN)
    assert found.custom_calls == {"acme_softplus": 2}
    assert [(op.function, op.index) for op in found.unsupported] == [("main", 0), ("main", 1)]
    assert "acme_softplus" in str(found.unsupported[0])
    rules = unlower.op_rules | {"acme_softplus": lambda op, x, **_: x}
    assert inspect(FOREIGN, rules=rules).unsupported == ()


def test_sizes_unknown_before_the_call():
    text = "func.func public @main(%x: tensor<?x3xf32>) -> tensor<?x3xf32> {\n return %x : tensor<?x3xf32> }"
    (argument,) = inspect(text).inputs
    assert (argument.type, argument.bytes) == ("float32[?,3]", None)


def test_json_holds_it_all():
    record = json.loads(inspect(LOOP).to_json())
    assert record["loops"][0]["carried"] == 2
    assert record["histogram"]["stablehlo.while"] == 1


def test_no_program_is_a_format_error():
    with pytest.raises(unlower.FormatError, match="empty"):
        inspect(b"")
