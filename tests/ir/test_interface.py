import jax
from hypothesis import given
from hypothesis import strategies as st

from unlower.ir.interface import LEAF, NONE, Tree, call_path, call_tree
from unlower.ir.key_path import format_key_path
from unlower.readers.live import tree_from_definition

trees = st.recursive(
    st.sampled_from([0, None]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
    ),
    max_leaves=8,
)


@given(trees)
def test_paths_are_those_of_jax(value):
    tree = tree_from_definition(jax.tree_util.tree_structure(value))
    theirs = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(value)[0]]
    assert [format_key_path(path) for path in tree.paths()] == theirs
    assert tree.num_leaves == len(theirs)


@given(trees)
def test_a_tree_is_drawn_as_jax_draws_it(value):
    tree = tree_from_definition(jax.tree_util.tree_structure(value))
    assert f"PyTreeDef({tree})" == str(jax.tree_util.tree_structure(value))


def test_objects_and_gaps_are_drawn_too():
    assert str(Tree("custom", ("w", "b"), (LEAF, NONE), "my.module.Dense")) == "Dense(w=*, b=None)"
    assert str(Tree("custom", (), (LEAF, LEAF))) == "object(*, *)"
    assert str(Tree("tuple", (2,), (LEAF,))) == "(2: *,)"


def test_paths_of_a_call():
    tree = call_tree(Tree("dict", ("w",), (LEAF,)), LEAF, scale=LEAF)
    assert [call_path(path, ("params", None)) for path in tree.paths()] == ["params['w']", "args[1]", "scale"]
