import jax.export
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unlower.errors import FormatError, SignatureError
from unlower.ir.dimensions import Equation, parse_dimension, print_dimension, solve_dimensions

SIZES = {"b": 5, "c": 3, "n": 2}
terms = st.recursive(
    st.one_of(st.integers(0, 9).map(str), st.sampled_from(list(SIZES))),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda p: f"max({p[0]}, {p[1]})"),
        st.tuples(inner, inner).map(lambda p: f"min({p[0]}, {p[1]})"),
        st.tuples(inner, st.integers(1, 7)).map(lambda p: f"floordiv({p[0]}, {p[1]})"),
        st.tuples(inner, st.integers(1, 7)).map(lambda p: f"mod({p[0]}, {p[1]})"),
        st.sampled_from(list(SIZES)).map(lambda v: f"{v}^2"),
        st.tuples(inner, inner).map(lambda p: f"mod({p[0]} + {p[1]} - 1, 5)"),
    ),
    max_leaves=5,
)
expressions = st.lists(
    st.tuples(st.sampled_from(["+", "-"]), st.lists(terms, min_size=1, max_size=2)), min_size=1, max_size=3
).map(lambda parts: "".join(f"{sign} {'*'.join(term)} " for sign, term in parts).removeprefix("+ "))


@given(expressions)
def test_values_are_those_of_jax(text):
    size = parse_dimension(text)
    (theirs,) = jax.export.symbolic_shape(text)
    value = theirs if isinstance(theirs, int) else theirs._evaluate(SIZES)
    assert size.evaluate(SIZES) == value
    assert parse_dimension(print_dimension(size)).evaluate(SIZES) == value


@given(st.text(alphabet="bc12+-*^(),_ modflriv", max_size=20))
def test_any_text_is_a_size_or_a_format_error(text):
    try:
        size = parse_dimension(text)
    except FormatError:
        return
    assert all(name in text for name in size.variables)
    assert parse_dimension(print_dimension(size)).variables == size.variables


@pytest.mark.parametrize(
    "text", ["", "b+", "b c", "mod(b)", "2^b", "b^99", "_", "b/2", "(b)", "max(" * 70, "+".join("b" * 300)]
)
def test_what_is_no_size(text):
    with pytest.raises(FormatError, match="is no size"):
        parse_dimension(text)


def solve(variables, **sizes):
    equations = [Equation(parse_dimension(text), n, f"size 0 of {name}") for name, (text, n) in sizes.items()]
    return solve_dimensions(variables, equations)


def test_linear_equations_are_solved_in_any_order():
    assert solve(["b", "c"], x=("2*b + c", 11), y=("c*b", 12), z=("3*c + 1", 10)) == {"b": 4, "c": 3}
    assert solve(["b"], x=("mod(b, 2)", 1), y=("2*b+1", 7)) == {"b": 3}
    assert solve(["b"], x=("-1*b + 10", 4)) == {"b": 6}


@given(st.integers(0, 40), st.integers(1, 5), st.integers(0, 9))
def test_a_linear_size_is_solved(b, factor, rest):
    assert solve(["b"], x=(f"{factor}*b + {rest}", factor * b + rest)) == {"b": b}


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"x": ("2*b", 5)}, r"size 0 of x is 5, which 2\*b cannot be"),
        ({"x": ("b + 3", 2)}, r"size 0 of x is 2, which b \+ 3 cannot be"),
        ({"x": ("b", 3), "y": ("b", 4)}, r"size 0 of y is 4, which b cannot be(.|\n)*b = 3, from size 0 of x"),
        ({"x": ("b + c", 3)}, "do not determine the symbolic dimension b"),
        ({"x": ("b*b", 9)}, "do not determine the symbolic dimension b"),
        ({"x": ("floordiv(b, 2)", 9)}, r"do not determine the symbolic dimension b(.|\n)*size 0 of x is 9"),
        ({}, "do not determine(.|\n)*no argument has a symbolic size"),
    ],
)
def test_sizes_that_do_not_fit(sizes, message):
    with pytest.raises(SignatureError, match=message):
        solve(["b"], **sizes)
