import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unlower.ir.key_path import AttributeKey, IndexKey, ItemKey, format_key_path, parse_key_path

names = st.from_regex(r"[a-zA-Z_äöß][a-zA-Z0-9_ä]*", fullmatch=True)
plain = st.one_of(
    st.text(), st.integers(), st.booleans(), st.none(), st.binary(), st.floats(allow_nan=False, allow_infinity=False)
)
keys = st.one_of(
    st.one_of(plain, st.tuples(plain, plain), st.tuples(st.tuples(plain))).map(
        lambda k: (jax.tree_util.DictKey(k), ItemKey(k))
    ),
    st.integers(0, 10**6).map(lambda i: (jax.tree_util.SequenceKey(i), ItemKey(i))),
    names.map(lambda n: (jax.tree_util.GetAttrKey(n), AttributeKey(n))),
    st.integers(0, 100).map(lambda i: (jax.tree_util.FlattenedIndexKey(i), IndexKey(i))),
)


@given(st.one_of(st.just(""), names), st.lists(keys, max_size=6))
def test_what_jax_spells_is_read_back(root, pairs):
    text = root + jax.tree_util.keystr(tuple(theirs for theirs, _ in pairs))
    found = parse_key_path(text)
    assert found == (root, tuple(ours for _, ours in pairs))
    assert root + format_key_path(found[1]) == text


@given(st.text(alphabet="ab.[]'\"0<> \\{}()_", max_size=30))
def test_any_text_is_read_back_or_refused(text):
    found = parse_key_path(text)
    if found is not None:
        assert found[0] + format_key_path(found[1]) == text


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("params['block1']['kernel']", ("params", (ItemKey("block1"), ItemKey("kernel")))),
        ("state.params['x']", ("state", (AttributeKey("params"), ItemKey("x")))),
        ("opt[0].mu['w']", ("opt", (ItemKey(0), AttributeKey("mu"), ItemKey("w")))),
        ("x", ("x", ())),
        ("d['a]b[']", ("d", (ItemKey("a]b["),))),
        ("m[<flat index 3>]", ("m", (IndexKey(3),))),
        ("result['y']", ("result", (ItemKey("y"),))),
    ],
)
def test_the_names_that_programs_have(text, path):
    assert parse_key_path(text) == path


def test_a_key_that_is_no_literal_keeps_its_text():
    root, (key,) = parse_key_path("d[<Color.RED: 1>]")
    assert (root, str(key)) == ("d", "[<Color.RED: 1>]")


@pytest.mark.parametrize("text", ["Arg_0.1", "x[", "x['a'", "x[]", "jit(f)/add", "x y", "x..y", "a" + "[0]" * 65])
def test_what_is_no_key_path(text):
    assert parse_key_path(text) is None
