"""The table of rules, its hooks and options, and functions as users write them: pytrees, keywords, static arguments."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from unlower.errors import DuplicateRuleError, RuleError, UnhandledHigherOrderError, UnsupportedOpError
from unlower.interpret import Box, Interpreter, Type
from unlower.interpret.structure import equal, walk

STYLES = pytest.mark.parametrize("style", ["initial", "final"])


def to_mul(ctx, x, y, **params):
    return lax.mul(x, y)


SWAP = Interpreter({"add": to_mul})


@STYLES
def test_the_guides_example_under_jit(style):
    f = jax.jit(lambda x, y: x + y)
    assert SWAP.transform(f, style=style)(3.0, 5.0) == 15
    assert jax.jit(SWAP.transform(f, style=style))(3.0, 5.0) == 15


@STYLES
def test_pytrees_keywords_and_static_arguments(style):
    class Point(NamedTuple):
        x: jax.Array
        y: jax.Array

    def f(point, tree, /, *rest, scale=1.0, mode, **more):
        total = point.x + point.y
        if mode == "double":
            total = total * 2
        return {"total": total, "rest": [r + scale for r in rest], "more": more, "none": None}, tree

    point = Point(jnp.float32(3), jnp.float32(4))
    run = SWAP.transform(f, style=style, static_argnames="mode")
    out, tree = run(point, {"a": (1, [2.0])}, 5.0, 6, scale=3.0, mode="double", extra=jnp.arange(2))
    assert out["total"] == 24 and out["rest"][0] == 15 and out["rest"][1] == 18 and out["none"] is None
    np.testing.assert_array_equal(out["more"]["extra"], [0, 1])
    assert tree["a"][0] == 1 and tree["a"][1][0] == 2


@STYLES
@pytest.mark.parametrize("how", [{"static_argnums": 1}, {"static_argnums": -1}, {"static_argnames": "n"}])
def test_static_arguments_by_place_and_by_name(style, how):
    def f(x, n):
        for _ in range(n):
            x = x + x
        return x

    run = SWAP.transform(f, style=style, **how)
    assert run(2.0, 3) == 2**8
    if how.get("static_argnums") != -1:
        assert run(2.0, n=3) == 2**8


@STYLES
def test_what_is_no_array_is_named(style):
    def f(x, *, mode):
        return x

    with pytest.raises(RuleError, match=r"argument \[1\]\['mode'\] of f is str, no array") as caught:
        SWAP.transform(f, style=style)(1.0, mode="fast")
    assert "static_argnames" in str(caught.value)


@STYLES
def test_python_scalars_numpy_arrays_and_methods(style):
    class Model:
        weight = np.float32(2)

        def __call__(self, x):
            return x + self.weight

    assert SWAP.transform(Model(), style=style)(np.float32(4)) == 8
    assert SWAP.transform(functools.partial(lambda x, y: x + y, 3.0), style=style)(4.0) == 12


def test_names_and_documentation_stay():
    def f(x):
        """Adds."""
        return x + x

    g = SWAP.transform(f)
    assert (g.__name__, g.__doc__, g.__wrapped__) == ("f", "Adds.", f)


@STYLES
def test_results_that_are_inputs_or_constants(style):
    out = SWAP.transform(lambda x: (x, 1.0, np.arange(2), {"a": x}), style=style)(5.0)
    assert out[0] == 5 and out[1] == 1 and out[3]["a"] == 5
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(out))


# --- rules


def test_rules_go_by_name_by_primitive_and_by_class():
    class Negating(Interpreter):
        pass

    @Negating.rule("sin", lax.cos_p)
    def _(ctx, x, **params):
        return -ctx.bind(x)

    class Twice(Negating):
        pass

    @Twice.rule("cos")
    def _(ctx, x, **params):
        return 2 * ctx.bind(x)

    own = Twice({"sin": lambda ctx, x, **params: x})
    assert Negating().transform(jnp.cos)(0.0) == -1
    assert Twice().transform(jnp.cos)(0.0) == 2
    assert Twice().transform(jnp.sin)(1.0) == -jnp.sin(1.0)
    assert own.transform(jnp.sin)(1.0) == 1


def test_a_second_claim_and_a_late_one_are_refused():
    interpreter = Interpreter({"sin": to_mul})
    with pytest.raises(DuplicateRuleError, match="two primitive rules for sin"):
        interpreter.rule("sin")(to_mul)
    interpreter.transform(jnp.cos)(1.0)
    with pytest.raises(RuleError, match="cannot change"):
        interpreter.rule("cos")(to_mul)
    with pytest.raises(RuleError, match="cannot change"):
        interpreter.fallback = "raise"
    with pytest.raises(RuleError, match="every interpreter there is"):
        Interpreter.rule("sin")
    with pytest.raises(RuleError, match="name a primitive"):
        Interpreter({3: to_mul})
    with pytest.raises(RuleError, match="choose one of 'auto', 'transform', 'keep', 'drop'"):
        Interpreter(custom_rules="maybe")
    with pytest.raises(RuleError, match="choose 'initial' or 'final'"):
        SWAP.transform(jnp.sin, style="middle")


def test_extend_derives_another():
    other = SWAP.extend({"sin": lambda ctx, x, **params: x}, custom_rules="drop")
    f = lambda x: jnp.sin(x) + x
    assert other.transform(f)(3.0) == 9 and other.custom_rules == "drop"
    assert SWAP.transform(f)(3.0) == jnp.sin(3.0) * 3 and SWAP.custom_rules == "auto"
    with pytest.raises(RuleError, match="no option 'colour'"):
        SWAP.extend({}, colour="red")


@STYLES
def test_default_meets_every_primitive_without_a_rule(style):
    seen = []

    def default(ctx, *values, **params):
        seen.append(ctx.primitive.name)
        return ctx.bind(*values)

    f = jax.jit(lambda x: lax.cond(x > 0, lambda x: jnp.sin(x) * 2, lambda x: x, x) + 1)
    assert Interpreter({"add": to_mul}, default=default).transform(f, style=style)(1.0) == jnp.sin(1.0) * 2
    assert set(seen) >= {"sin", "mul", "gt"} and "add" not in seen


@STYLES
def test_ctx_default_does_what_no_rule_would(style):
    def rule(ctx, *values, **params):
        return [2 * out for out in ctx.default(*values)]

    doubled = Interpreter({"jit": rule, "sin": lambda ctx, x, **params: ctx.default(x) + 1})
    f = jax.jit(jnp.sin)
    assert doubled.transform(f, style=style)(0.0) == 2


@STYLES
def test_a_context_knows_its_equation(style):
    seen = []

    @jax.jit
    def layer(x):
        return jnp.tanh(x) * 2

    def rule(ctx, x, **params):
        seen.append((ctx.path, ctx.source, ctx.in_avals[0].shape, ctx.out_avals[0].dtype, ctx.primitive.name))
        return ctx.bind(x)

    f = lambda x: lax.scan(lambda c, _: (layer(c), None), x, None, length=2)[0]
    Interpreter({"tanh": rule}).transform(f, style=style)(jnp.ones(3))
    path, source, shape, dtype, name = seen[0]
    assert path == "scan/jit(layer)/tanh" and "test_core.py" in source and "layer" in source
    assert (shape, dtype, name) == ((3,), jnp.float32, "tanh")


@STYLES
def test_bind_checks_what_it_is_given(style):
    def attempt(rule, match):
        with pytest.raises(RuleError, match=match) as caught:
            Interpreter({"mul": rule}).transform(jax.jit(lambda x: x * 2.0), style=style)(1.0)
        assert "`mul` at jit(<lambda>)/mul, from" in str(caught.value) and "test_core.py" in str(caught.value)

    attempt(lambda ctx, x, y, **params: ctx.bind(x), "1 operands where 2 belong")
    attempt(lambda ctx, x, y, **params: ctx.bind(x, y, colour=1), "no parameter colour")
    attempt(lambda ctx, x, y, **params: "three", "its rule returned str")
    attempt(lambda ctx, x, y, **params: jnp.ones(3), r"its rule returned f32\[3\] for f32\[\]")


def test_rules_of_several_results_return_all_of_them():
    with pytest.raises(RuleError, match="returned 1 results where 3 belong"):
        Interpreter({"lu": lambda ctx, x, **params: [x]}).transform(lax.linalg.lu)(jnp.eye(2))
    with pytest.raises(RuleError, match="return a list of results"):
        Interpreter({"lu": lambda ctx, x, **params: x}).transform(lax.linalg.lu)(jnp.eye(2))


@STYLES
def test_any_error_in_a_rule_says_which_equation_it_was_about(style):
    def broken(ctx, x, **params):
        raise ValueError("out of luck")

    inner = jax.jit(lambda c: jnp.sin(c) * 2)
    f = lambda x: lax.scan(lambda c, _: (inner(c), None), x, None, length=2)[0]
    with pytest.raises(ValueError, match="out of luck") as caught:
        Interpreter({"sin": broken}).transform(f, style=style)(1.0)
    (note,) = [n for n in caught.value.__notes__ if n.startswith("while interpreting")]
    assert "`sin` at scan/jit(<lambda>)/sin, from" in note and "test_core.py" in note


# --- Jaxprs


def test_jaxpr_gives_a_jaxpr_and_the_same_one_where_nothing_changes():
    closed = jax.make_jaxpr(lambda x: jax.jit(lambda x: x + x)(jnp.sin(x)))(1.0)
    assert Interpreter({"cos": to_mul}).jaxpr(closed) is closed
    wanted = jax.make_jaxpr(lambda x: jax.jit(lambda x: x * x)(jnp.sin(x)))(1.0)
    assert equal(SWAP.jaxpr(closed), wanted)
    narrow = SWAP.jaxpr(closed, jax.typeof(jnp.bfloat16(1)))
    assert narrow.in_avals[0].dtype == jnp.bfloat16
    with pytest.raises(RuleError, match="2 types for 1 inputs"):
        SWAP.jaxpr(closed, closed.in_avals[0], closed.in_avals[0])


def test_untouched_programs_stay_the_same_objects():
    inner = jax.jit(lambda x: jnp.sin(x) * 2)
    f = lambda x: inner(x) + inner(x + 1)
    before = [v.equation.params["jaxpr"] for v in walk(jax.make_jaxpr(f)(1.0)) if v.equation.primitive.name == "jit"]
    after = jax.make_jaxpr(SWAP.transform(f))(1.0)
    found = [v.equation.params["jaxpr"] for v in walk(after) if v.equation.primitive.name == "jit"]
    assert [id(j) for j in found] == [id(j) for j in before]


@STYLES
def test_one_function_called_often_is_interpreted_once_and_compiled_once(style):
    interpreted, traced = [], []

    def rule(ctx, x, **params):
        interpreted.append(ctx.primitive)
        return ctx.bind(x) * 2

    @jax.jit
    def layer(x):
        traced.append(1)
        return jnp.sin(x)

    def f(x):
        for _ in range(400):
            x = layer(x)
        return x

    interpreter = Interpreter({"sin": rule})
    run = interpreter.transform(f, style=style)
    closed = jax.make_jaxpr(run)(1.0)
    programs = {id(v.equation.params["jaxpr"]) for v in walk(closed) if v.equation.primitive.name == "jit"}
    assert len(programs) == len(interpreted) == len(traced) == 1
    run(1.0)
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(lambda name, *_, **__: compiled.append(name))
    try:
        run(2.0)
        run(3.0)
    finally:
        jax.monitoring.clear_event_listeners()
    assert len(interpreted) == 1
    assert not [name for name in compiled if "backend_compile" in name]


# --- programs out of reach


@STYLES
def test_a_primitive_that_nobody_has_taught_is_named(style):
    combine = lambda a, b: jnp.sin(a + b) * 1.0
    f = jax.jit(lambda x: lax.reduce(x, np.float32(0), combine, (0,)))
    with pytest.raises(UnhandledHigherOrderError, match="out of reach, inside: reduce") as caught:
        SWAP.transform(f, style=style)(jnp.ones(3))
    text = str(caught.value)
    assert "`reduce` at jit(<lambda>)/reduce, from" in text and "test_core.py" in text
    assert 'opaque={"reduce"}' in text and '@unlower.interpret.higher_order("reduce")' in text
    alone = Interpreter({"add": to_mul}, opaque={"reduce"}).transform(f, style=style)
    assert alone(jnp.ones(3)) == f(jnp.ones(3))
    given = Interpreter({"add": to_mul, "reduce": lambda ctx, x, init, **params: [x[0]]}).transform(f, style=style)
    assert given(jnp.ones(3)) == 1


@STYLES
def test_programs_without_rules_inside_may_stay_out_of_reach(style):
    f = lambda x: lax.reduce(x, np.float32(1), lambda a, b: jnp.sin(a) * b, (0,)) + 1.0
    assert SWAP.transform(f, style=style)(jnp.ones(3)) == f(jnp.ones(3)) - 1


# --- effects


@STYLES
def test_effects_keep_their_order(style):
    from jax.experimental import io_callback

    seen = []

    def note(value):
        return io_callback(
            lambda v: (seen.append(float(v)), np.float32(v))[1],
            jax.ShapeDtypeStruct((), np.float32),
            value,
            ordered=True,
        )

    def f(x):
        x = note(x + 1.0)
        x = lax.cond(x > 0, lambda x: note(x + 2.0), lambda x: x, x)
        x, _ = lax.scan(lambda c, _: (note(c + 3.0), None), x, None, length=2)
        return jax.jit(lambda x: note(x + 4.0))(x)

    out = jax.jit(SWAP.transform(f, style=style))(5.0)
    jax.effects_barrier()
    assert out == 5 * 1 * 2 * 3 * 3 * 4
    assert seen == [5, 10, 30, 90, 360]


@STYLES
def test_fallback(style):
    f = lambda x: jnp.sin(x) + 1.0
    boxed = TypeBox(jnp.float32(0))
    assert Interpreter().transform(f, style=style)(boxed) == 1
    with pytest.raises(UnsupportedOpError, match="no rule for a primitive that meets a box: sin"):
        Interpreter(fallback="raise").transform(f, style=style)(boxed)


@jax.tree_util.register_pytree_node_class
class TypeBox(Box):
    def __init__(self, array):
        self.array = array

    @property
    def aval(self):
        return jax.typeof(self.array)

    def materialize(self):
        return self.array

    def tree_flatten(self):
        return (self.array,), None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


def test_types_print_and_compare():
    plain = jax.typeof(jnp.ones(3))
    a = Type(jax.tree.structure(0), (plain,))
    b = Type(jax.tree.structure((0, 0)), (plain, plain))
    assert str(a) == "f32[3]" and str(b) == "('f32[3]', 'f32[3]')"
    assert a.is_plain and not b.is_plain and a != b and hash(a) == hash(Type(a.tree, a.avals))
    assert a.matches(a.replace([jax.typeof(jnp.ones(3))])) and not a.matches(b)
