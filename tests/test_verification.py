import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import unlower
from unlower.verification import compare, random_inputs, verify

ADD = """HloModule add
ENTRY e { x = f32[4,3] parameter(0)
  k = s32[] parameter(1)
  c = f32[] convert(k)
  b = f32[4,3] broadcast(c), dimensions={}
  s = f32[4,3] add(x, b)
  ROOT y = (f32[4,3], s32[]) tuple(s, k)
}
"""


def test_what_load_gives_is_equal():
    stages = []
    report = verify(ADD, progress=stages.append)
    assert report.outcome == "equal"
    assert report
    assert (report.inputs, report.outputs) == (("float32[4,3]", "int32[]"), ("float32[4,3]", "int32[]"))
    assert None not in (report.timings.original_compile, report.timings.original_run, report.timings.loaded_run)
    assert stages[0] == "loading"
    assert len(stages) == 3


def test_the_first_difference_is_found_with_its_bits():
    rules = unlower.op_rules | {"stablehlo.add": lambda op, x, y: (x + y).at[2, 1].add(1.0)}
    inputs = [np.zeros((4, 3), np.float32), np.int32(1)]
    report = verify(ADD, inputs=inputs, rules=rules)
    assert report.outcome == "different"
    assert not report
    found = report.difference
    assert (found.result, found.index, found.elements, found.size, found.results) == (0, (2, 1), 1, 12, 1)
    assert (found.original, found.loaded) == ("1.0 (0x3f800000)", "2.0 (0x40000000)")
    assert report.seed is None


def sorted_columns(x):
    return jnp.sort(jnp.sin(x) @ jnp.cos(x), axis=0)[::-1].sum(0)


def scanned(x):
    return jax.lax.scan(lambda carry, row: (jnp.sin(carry) + row, carry * row), x[0], x)


@pytest.mark.parametrize(
    ("function", "reason"), [(sorted_columns, "Unexpected bitcast operation"), (scanned, "SIGABRT: Check failed")]
)
def test_what_xla_does_not_take_back_from_its_own_optimisation_is_a_refusal(function, reason):
    compiled = jax.jit(function).lower(jnp.ones((8, 8))).compile()
    report = verify(compiled.as_text())
    assert report.outcome == "refused"
    assert reason in report.refusal
    assert report.difference is None
    assert report.timings.loaded_run is None


def test_nothing_but_nan_is_noted():
    text = "HloModule m\nENTRY e { x = f32[3] parameter(0)\n ROOT y = f32[3] log(x) }"
    report = verify(text, inputs=[-np.ones(3, np.float32)])
    assert report.outcome == "equal"
    assert "nothing but NaN in result 0" in report.notes[0]


def test_linear_algebra_of_the_host_runs_in_the_other_process(x64):
    lowered = jax.jit(jnp.linalg.cholesky).lower(jnp.eye(4))
    assert verify(lowered.as_text(), inputs=[np.eye(4) * 2]).outcome == "equal"


def test_random_inputs_are_seeded_small_and_of_the_right_types():
    text = """
    func.func public @main(%a: tensor<50xi1>, %b: tensor<50xi32>, %c: tensor<50xui4>, %d: tensor<50xbf16>,
                           %e: tensor<50xcomplex<f64>>) -> tensor<50xi1> { return %a : tensor<50xi1> }
    """
    program = unlower.load(text)
    drawn = random_inputs(program, seed=3)
    assert [a.dtype for a in drawn] == [bool, np.int32, ml_dtypes.uint4, ml_dtypes.bfloat16, np.complex128]
    assert all((x.tobytes() == y.tobytes()) for x, y in zip(drawn, random_inputs(program, seed=3), strict=True))
    assert any((x.tobytes() != y.tobytes()) for x, y in zip(drawn, random_inputs(program, seed=4), strict=True))
    assert 0 <= drawn[1].min() <= drawn[1].max() < 10


def exported(function, shape, *constraints, platforms=None):
    sizes = jax.export.symbolic_shape(shape, constraints=constraints)
    return jax.export.export(jax.jit(function), platforms=platforms)(jax.ShapeDtypeStruct(sizes, np.float32))


@pytest.mark.parametrize("platforms", [None, ["tpu", "cpu"]])
def test_symbolic_sizes_are_small_numbers_that_the_program_accepts(platforms):
    def function(x):
        return jnp.tanh(x) @ x.T, jnp.cumsum(x, axis=0), x.shape[0] * x

    source = exported(function, "2*b, 3", platforms=platforms)
    assert verify(source).inputs == ("float32[8,3]",)
    for again in (source, source.mlir_module()):
        assert verify(again, inputs=[np.ones((6, 3), np.float32)]).outcome == "equal"
    assert verify(exported(lambda x: x.reshape(x.shape[0] // 4, 4), "b", "mod(b, 4) == 0", "b >= 4")).outcome == "equal"


def test_sizes_that_are_in_the_way_of_all_small_numbers_need_inputs():
    source = exported(lambda x: x * 2, "b", "b >= 1000")
    with pytest.raises(unlower.SignatureError, match="no sizes found for b(.|\n)*inputs="):
        verify(source)
    assert verify(source, inputs=[np.ones(1000, np.float32)]).outcome == "equal"


@pytest.mark.parametrize(
    ("dtype", "one", "other", "differ"),
    [
        (np.float32, 0.0, -0.0, True),
        (np.float32, np.nan, np.nan, False),
        (ml_dtypes.bfloat16, 1.0, 1.0078125, True),
        (ml_dtypes.float8_e4m3fn, 1.0, 1.125, True),
        (np.complex64, 1 + 2j, 1 + 2.0000002j, True),
        (bool, True, False, True),
        (np.int64, 1 << 40, 1 << 40, False),
    ],
)
def test_bits_are_what_counts(dtype, one, other, differ):
    arrays = [np.full((2, 2), value).astype(dtype) for value in (one, other)]
    assert (compare([arrays[0]], [arrays[1]]) is not None) is differ
    assert compare([arrays[0].reshape(-1)[:0]], [arrays[1].reshape(-1)[:0]]) is None
    scalar = compare([arrays[0][0, 0].reshape(())], [arrays[1][0, 0].reshape(())])
    assert (scalar is not None and scalar.index == ()) is differ
