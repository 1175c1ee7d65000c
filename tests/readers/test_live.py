import collections
import dataclasses

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import unlower
from unlower.ir.interface import LEAF
from unlower.readers.live import tree_from_definition

F32 = np.float32
Pair = collections.namedtuple("Pair", "first second")


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Layer:
    w: object
    b: object
    name: str = dataclasses.field(default="layer", metadata={"static": True})


@jax.tree_util.register_pytree_node_class
class Keyless:
    def __init__(self, *children):
        self.children = children

    def tree_flatten(self):
        return self.children, None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


@jax.tree_util.register_pytree_node_class
class Checked(Keyless):
    def __init__(self, *children):
        if not all(hasattr(child, "shape") for child in children):
            raise TypeError("arrays only")
        super().__init__(*children)


def apply(layer, pair, keyless, options):
    y = pair.first @ layer.w + layer.b[None]
    return Layer(y, pair.second, "out"), Pair(keyless.children[0], options["scale"] * y), Keyless(y), None


def arguments():
    options = collections.defaultdict(list, scale=F32(2), extra=np.ones(3, F32))
    x = np.arange(6, dtype=F32).reshape(2, 3)
    return Layer(np.ones((3, 4), F32), np.ones(4, F32)), Pair(x, np.zeros(2, F32)), Keyless(x, x), options


def equal(got, want):
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("make", [lambda f: f.lower(*arguments()), lambda f: jax.export.export(f)(*arguments())])
def test_classes_go_in_and_come_back(make):
    jitted = jax.jit(apply)
    program = unlower.load(make(jitted))
    equal(program(*arguments()), jitted(*arguments()))
    equal(jax.jit(program)(*arguments()), jitted(*arguments()))
    layer, pair, keyless, _ = arguments()
    # Other classes with the same keys or, where there are none, the same order.
    equal(
        program({"w": layer.w, "b": layer.b}, tuple(pair), list(keyless.children), {"scale": 2.0}), jitted(*arguments())
    )
    unused = [a.name for a in program.signature.arguments if a.role == "unused"]
    assert unused == ["keyless[<flat index 1>]", "options['extra']"]


@pytest.mark.parametrize(
    ("position", "wrong", "message"),
    [
        (0, {"w": np.ones((3, 4), F32)}, r"layer\.b is missing"),
        (0, {"w": np.ones((3, 4), F32), "c": np.ones(4, F32)}, r"layer\.b is missing"),
        (1, (np.ones((2, 3), F32),), r"pair is a tuple, where Pair\(first=\*, second=\*\) is expected"),
        (2, {"a": 1.0, "b": 2.0}, "keyless is a dict, where Keyless"),
        (2, Keyless(), r"keyless\[<flat index 0>\] is missing"),
        (3, {}, r"options\['scale'\] is missing"),
        (3, {"scale": 2.0, "more": 1.0}, r"options\['more'\] is not among the program's arguments"),
        (3, {"scale": np.ones(2, F32)}, r"options\['scale'\] is float32\[2\], not float32\[\]"),
        (3, {"scale": "two"}, r"options\['scale'\] is of the class str, which is no array"),
        (3, {"scale": None}, r"options\['scale'\] is missing: None was passed"),
        (3, {"scale": [1.0]}, r"options\['scale'\] is a list, where an array is expected"),
    ],
)
def test_what_does_not_fit_is_named_by_its_path(position, wrong, message):
    program = unlower.load(jax.jit(apply).lower(*arguments()))
    given = list(arguments())
    given[position] = wrong
    with pytest.raises(unlower.SignatureError, match=message):
        program(*given)


def test_a_class_that_looks_at_its_leaves():
    jitted = jax.jit(lambda c: Checked(c.children[0] * 2))
    given = Checked(jnp.ones(2))
    program = unlower.load(jitted.lower(given))
    got = program(given)
    assert isinstance(got, Checked)
    np.testing.assert_array_equal(got.children[0], [2, 2])


def test_trees_of_jax():
    definition = jax.tree.structure((Pair(1, [2]), {"b": Layer(1, None), "a": ()}, collections.OrderedDict(z=1)))
    tree = tree_from_definition(definition)
    assert str(tree) == "(Pair(first=*, second=[*]), {'a': (), 'b': Layer(w=*, b=None)}, {'z': *})"
    assert tree.children[0].keys == ("first", "second")
    assert tree.children[2].kind == "dict" and tree.children[2].children == (LEAF,)


def test_symbolic_sizes_without_export_are_solved():
    (b,) = jax.export.symbolic_shape("b")
    structs = [jax.ShapeDtypeStruct(shape, F32) for shape in ((2 * b + 1, 3), (b,))]
    jitted = jax.jit(lambda x, y: (x.reshape(-1), jnp.arange(x.shape[0]), y * x.shape[0]))
    program = unlower.load(jitted.lower(*structs))
    assert [str(aval.shape) for aval in (*program.in_avals, *program.out_avals)] == [
        "(2*b + 1, 3)",
        "(b,)",
        "(6*b + 3,)",
        "(2*b + 1,)",
        "(b,)",
    ]
    x, y = np.ones((7, 3), F32), np.arange(3, dtype=F32)
    equal(program(x, y), jitted(x, y))
    equal(jax.vmap(program)(x[None], y[None]), jax.vmap(jitted)(x[None], y[None]))
    with pytest.raises(
        unlower.SignatureError, match="size 0 of y is 2, which b cannot be(.|\n)*b = 3, from size 0 of x"
    ):
        program(x, y[:2])
    with pytest.raises(unlower.SignatureError, match=r"size 0 of x is 6, which 2\*b \+ 1 cannot be"):
        program(x[:6], y)
    # In text nothing says what `b` is a size of: it is an argument.
    bare = unlower.load(jitted.lower(*structs).as_text(debug_info=True))
    equal(bare.flat(3, x, y), jitted(x, y))
    equal(jax.jit(lambda x, y: bare.flat(3, x, y))(x, y), jitted(x, y))
    with pytest.raises(unlower.SignatureError, match="b is a size, and must be a number that is known while tracing"):
        jax.jit(bare.flat)(3, x, y)


def test_sizes_that_the_arguments_do_not_determine():
    b, c = jax.export.symbolic_shape("b, c")
    program = unlower.load(jax.jit(lambda x: x * x.shape[0]).lower(jax.ShapeDtypeStruct((b + c,), F32)))
    with pytest.raises(
        unlower.SignatureError, match="do not determine the symbolic dimension b, c(.|\n)*size 0 of x is 3"
    ):
        program(np.ones(3, F32))


def test_a_traced_function_is_lowered():
    function = jax.jit(lambda layers: layers["a"] @ layers["b"])
    layers = {"a": np.arange(6, dtype=F32).reshape(2, 3), "b": np.ones((3, 2), F32)}
    program = unlower.load(function.trace(layers))
    np.testing.assert_array_equal(program(layers), function(layers))
    assert unlower.verify(function.trace(layers)).outcome == "equal"
