import collections
import types

import jax
import numpy as np
import pytest

import unlower
from unlower.binding import Binder, build
from unlower.ir.interface import LEAF, NONE, Input, Interface, Tree, call_tree

PARAMS = Tree("dict", ("b", "w"), (LEAF, LEAF))
STATE = Tree("custom", ("params", "step"), (PARAMS, LEAF), "train.State")


def binder(*arguments, names=(), complete=True, kept=None, fits=lambda leaf, array: True, **keywords):
    tree = call_tree(*arguments, **keywords)
    kept = range(tree.num_leaves) if kept is None else kept
    inputs = tuple(Input(name=f"leaf{leaf}", leaf=leaf) for leaf in kept)
    interface = Interface(inputs=inputs, outputs=(), arguments=tree, complete=complete, argument_names=names)
    return Binder(interface, fits)


def test_leaves_are_found_by_key():
    assert binder(STATE, LEAF)(({"step": 3, "params": {"w": 2, "b": 1}}, 4), {}) == {0: 1, 1: 2, 2: 3, 3: 4}


def test_structures_are_worked_out_once():
    bind = binder(PARAMS)
    for w in (1, 2):
        assert bind(({"w": w, "b": 0},), {}) == {0: 0, 1: w}
    assert len(bind._known) == 1


class Static:
    """A tree whose static data cannot be hashed."""

    def __init__(self, child, data):
        self.child, self.data = child, data


jax.tree_util.register_pytree_node(Static, lambda s: ((s.child,), s.data), lambda data, c: Static(c[0], data))


class Mapped(collections.UserDict):
    """A mapping that gives JAX no keys, as Haiku's FlatMapping."""


jax.tree_util.register_pytree_node(
    Mapped, lambda m: (tuple(m.data.values()), tuple(m.data)), lambda keys, c: Mapped(zip(keys, c, strict=True))
)


@pytest.mark.parametrize(
    "value",
    [
        Mapped({"w": 2, "b": 1}),
        collections.OrderedDict(w=2, b=1),
        collections.namedtuple("Params", "w b")(2, 1),
        (1, 2),
    ],
    ids=lambda value: type(value).__name__,
)
def test_any_class_with_the_keys_or_the_order(value):
    assert binder(PARAMS)((value,), {}) == {0: 1, 1: 2}


def test_static_data_that_cannot_be_hashed():
    node = Tree("custom", (0,), (LEAF,), "Static")
    assert binder(node)((Static(5, {"a": []}),), {}) == {0: 5}


def test_what_the_module_does_not_take_is_not_looked_at():
    bind = binder(PARAMS, PARAMS, LEAF, kept=[1, 4], names=("p", "q", "x"))
    for q in (None, 3, {"b": 1}, {"other": "text"}):
        assert bind(({"w": 7}, q, 9), {}) == {1: 7, 4: 9}
    assert bind(({"w": 7},), {"x": 9}) == {1: 7, 4: 9}


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((1, None, 2), {"k": 3}, None),
        ((1,), {"k": 3, "n": None, "y": 2}, None),
        ((1, None), {"k": 3}, "y is missing"),
        ((1, None, 2), {}, "k is missing"),
        ((1, 5, 2), {"k": 3}, "n is an array, where None is expected"),
        ((1, None, 2, 4), {"k": 3}, "4 positional arguments; the program takes 3"),
        ((1, None, 2), {"k": 3, "z": 4, "q": 5}, "the program has no argument q, z"),
        ((1, None, 2), {"k": 3, "x": 4}, "the program has no argument x"),
        (({2: 1, "a": 2}, None, 2), {"k": 3}, "the arguments are no tree"),
    ],
)
def test_positions_and_keywords(args, kwargs, message):
    bind = binder(LEAF, NONE, LEAF, names=("x", "n", "y"), k=LEAF)
    if message is None:
        assert bind(args, kwargs) == {0: 1, 1: 2, 2: 3}
    else:
        with pytest.raises(unlower.SignatureError, match=message):
            bind(args, kwargs)


@pytest.mark.parametrize(
    ("tree", "value", "message"),
    [
        (Tree("tuple", (), (LEAF, LEAF)), (1,), r"args\[0\]\[1\] is missing"),
        (Tree("list", (), (LEAF,)), [1, 2], r"args\[0\]\[1\] is not among the program's arguments"),
        (Tree("list", (), (LEAF,)), {"a": 1}, r"args\[0\]\[0\] is missing"),
        (
            Tree("custom", (), (LEAF, LEAF), "m.C"),
            {"a": 1, "b": 2},
            r"args\[0\] is a dict, where C\(\*, \*\) is expected",
        ),
        (STATE, {"params": {"b": 1, "w": 2}, "count": 3}, r"args\[0\]\.step is missing"),
        (PARAMS, {"b": 1, "w": {"x": 2}}, r"args\[0\]\['w'\] is a dict, where an array is expected"),
        (PARAMS, [1], r"args\[0\] is a list, where \{'b': \*, 'w': \*\} is expected"),
    ],
)
def test_what_does_not_fit(tree, value, message):
    with pytest.raises(unlower.SignatureError, match=message):
        binder(tree)((value,), {})


def test_gaps_are_filled_by_type():
    def fits(leaf, array):
        return array.dtype == (np.float32, np.int32)[leaf]

    bind = binder(LEAF, LEAF, names=("a", "n"), complete=False, fits=fits)
    a, n, other = np.float32(1), np.int32(2), np.float64(3)
    assert bind((other, a, other, n), {}) == {0: a, 1: n}
    with pytest.raises(unlower.SignatureError, match="it is not clear which"):
        bind((a, np.float32(5), n), {})
    with pytest.raises(unlower.SignatureError, match="3 positional arguments; the program has a, n"):
        bind((other, other, other), {})


def test_positions_of_a_sequence_with_gaps():
    rest = Tree("tuple", (1, 3), (LEAF, LEAF))
    assert binder(rest, names=("rest",), complete=False)(((0, 1, 2, 3, 4),), {}) == {0: 1, 1: 3}
    assert binder(rest, names=("rest",), complete=False)((0, 1, 2, 3), {}) == {0: 1, 1: 3}


def test_results_of_every_kind():
    tree = Tree(
        "dict",
        ("a", "b"),
        (
            Tree("custom", ("x", "y"), (LEAF, NONE), "m.Known", lambda children: types.SimpleNamespace(xy=children)),
            Tree("tuple", (), (STATE, Tree("list", (), (LEAF,)), Tree("custom", (), (LEAF,), "m.Unknown"))),
        ),
    )
    built = build(tree, list(range(tree.num_leaves)))
    assert built["a"].xy == [0, None]
    assert built["b"] == ({"params": {"b": 1, "w": 2}, "step": 3}, [4], [5])


def test_a_class_that_refuses_its_children():
    def make(children):
        raise ValueError("too few")

    with pytest.raises(unlower.SignatureError, match="class m.Strict cannot be built: too few"):
        build(Tree("custom", (), (LEAF,), "m.Strict", make), [1])
