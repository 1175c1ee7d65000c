"""Instructions that are put in the place of others have names that no other instruction of the module has."""

import numpy as np
import pytest

import unlower
from unlower._jax_compat import hlo_text_to_proto

# A tuple constant of the same name in two computations, and instructions that have the names one would think of next.
TEXT = """HloModule m
f {
  p = () parameter(0)
  ROOT c.1 = (f32[], (s32[], f32[2])) constant((1, (2, {3, 4})))
}
g {
  c.1.2 = () parameter(0)
  c.2 = f32[] constant(5)
  c.3 = s32[] constant(6)
  ROOT c.1 = (f32[], (s32[], f32[2])) constant((5, (6, {7, 8})))
}
ENTRY e {
  i = pred[] parameter(0)
  c.1.1 = () tuple()
  ROOT r = (f32[], (s32[], f32[2])) conditional(i, c.1.1, c.1.1), true_computation=f, false_computation=g
}
"""


@pytest.mark.parametrize("proto", [False, True])
@pytest.mark.parametrize(("which", "wanted"), [(True, (1, 2, [3, 4])), (False, (5, 6, [7, 8]))])
def test_tuple_constants_of_one_name_in_two_computations(proto, which, wanted):
    program = unlower.load(hlo_text_to_proto(TEXT) if proto else TEXT)
    scalar, (integer, array) = program(np.bool_(which))
    assert (scalar, integer, list(array)) == (wanted[0], wanted[1], wanted[2])
