"""Equality and differences of Jaxprs."""

import jax
import jax.numpy as jnp
import pytest

from unlower.interpret import diff, equal, walk


@pytest.mark.parametrize(("first", "second", "same"), [(0.0, -0.0, False), (-0.0, -0.0, True), (2.0, 2.0, True)])
def test_the_sign_of_a_zero_is_part_of_a_program(first, second, same):
    a, b = (jax.make_jaxpr(lambda x, c=c: x + c)(1.0) for c in (first, second))
    assert equal(a, b) is same
    assert (diff(a, b) == "") is same


def test_differences_are_listed_by_place():
    f = lambda x: jax.lax.scan(lambda c, _: (jnp.sin(c) * 2, None), x, None, length=3)[0] + 1
    g = lambda x: jax.lax.scan(lambda c, _: (jnp.cos(c) * 3, None), x, None, length=4)[0] - 1
    lines = diff(jax.make_jaxpr(f)(1.0), jax.make_jaxpr(g)(1.0)).splitlines()
    assert "equation 0: scan jaxpr: equation 0: primitive sin, cos" in lines
    assert "equation 0: scan length: 3, 4" in lines
    assert "equation 1: primitive add, sub" in lines
    assert any("equation 1: mul invars[1]: 2.0, 3.0" in line for line in lines)
    assert diff(jax.make_jaxpr(f)(1.0), jax.make_jaxpr(f)(1.0)) == ""


def test_a_walk_knows_where_and_how_often():
    def f(x):
        inner = lambda c: jax.lax.scan(lambda c, _: (jnp.sin(c), None), c, None, length=3)[0]
        x = jax.lax.scan(lambda c, _: (inner(c), None), x, None, 5)[0]
        return jax.lax.while_loop(lambda c: jnp.cos(c) > 0, lambda c: jnp.exp(c), x)

    visits = {visit.equation.primitive.name: visit for visit in walk(jax.make_jaxpr(f)(1.0))}
    assert visits["sin"].times == 15 and visits["sin"].path == ("scan", "scan")
    assert visits["cos"].times is None and visits["cos"].path == ("while.cond",)
    assert visits["exp"].path == ("while.body",) and visits["exp"].parent is visits["while"].equation
    assert visits["while"].times == 1 and visits["while"].parent is None
