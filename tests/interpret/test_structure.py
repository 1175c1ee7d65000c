"""Equality and differences of Jaxprs."""

import jax
import pytest

from unlower.interpret import diff, equal


@pytest.mark.parametrize(("first", "second", "same"), [(0.0, -0.0, False), (-0.0, -0.0, True), (2.0, 2.0, True)])
def test_the_sign_of_a_zero_is_part_of_a_program(first, second, same):
    a, b = (jax.make_jaxpr(lambda x, c=c: x + c)(1.0) for c in (first, second))
    assert equal(a, b) is same
    assert (diff(a, b) == "") is same
