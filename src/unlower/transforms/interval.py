"""`interval`: bounds on every result of a function, given bounds on its arguments.

Each primitive is replaced by one that takes lower and upper ends and gives ends again, rounded outward, so that whatever the
function computes in floating point lies between them. (R. E. Moore, Interval Analysis, 1966.)
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from unlower.errors import UnsupportedOpError
from unlower.interpret import Box, Context, Interpreter, Type
from unlower.transforms._wrapping import as_real, both_signs, difference, is_integer, leaves_range, whole_range_where

__all__ = ["Bounds", "Interval", "interval"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Interval(Box):
    """All arrays between two: `lower <= x <= upper`, element by element. Of booleans, False is below True.

    Attributes:
      lower: the lower ends.
      upper: the upper ends, of the same shape and dtype.

    Example:
      >>> import jax.numpy as jnp
      >>> Interval.around(jnp.ones(2), 0.5).upper.tolist()
      [1.5, 1.5]
    """

    lower: Any
    upper: Any

    @classmethod
    def around(cls, centre: Any, radius: Any) -> "Interval":
        """All that is at most `radius` away."""
        return cls(jnp.asarray(centre) - radius, jnp.asarray(centre) + radius)

    @property
    def aval(self) -> Any:
        """The type of the array that lies in between."""
        return jax.typeof(self.lower)


def interval(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Returns a function of intervals that bounds what `function` makes of anything inside them.

    The bounds are sound, rounding included, for all results that are numbers (a NaN lies in no interval). How tight they are
    depends on how often a value occurs: of `x - x` nothing is known but that both are in the same interval.

    Args:
      function: a function of JAX arrays.
      options: as `Interpreter.transform` takes them.

    Returns:
      a function that takes `Interval`s, or arrays for what is known exactly, and returns intervals for what depends on them.

    Raises:
      UnsupportedOpError: a primitive without a rule meets an interval, or a loop's condition depends on one.

    Example:
      >>> import jax.numpy as jnp
      >>> out = interval(lambda x: jnp.maximum(x, 0) * 2)(Interval(jnp.array(-1.0), jnp.array(3.0)))
      >>> float(out.lower) <= 0, 6 <= float(out.upper) < 6.001
      (True, True)
    """
    return Bounds().transform(function, **options)


class Bounds(Interpreter):
    """The rules."""

    fallback = "raise"
    custom_rules = "drop"

    def lift(self, value: Any, like: Type) -> Any:
        """An array is an interval of no width."""
        return Interval(value, value)

    def default(self, ctx: Context, *values: Any, **params: Any) -> Any:
        """Without an interval among its operands, a primitive stays."""
        if any(isinstance(v, Interval) for v in values):
            raise ctx.error(
                UnsupportedOpError,
                "no interval rule for a primitive",
                "add one: transforms.Bounds.rule(...), or rewrite it",
            )
        return ctx.bind(*values)


def _ends(value: Any) -> tuple[Any, Any]:
    return (value.lower, value.upper) if isinstance(value, Interval) else (value, value)


def _outward(lower: Any, upper: Any, ulps: float = 1.0) -> Interval:
    """The ends moved outward by some units in the last place, so that rounding cannot cross them."""
    if not jnp.issubdtype(lower.dtype, jnp.floating):
        return Interval(lower, upper)
    info: Any = jnp.finfo(lower.dtype)
    slack = lambda x: jnp.abs(x) * jnp.asarray(ulps * float(info.eps), x.dtype) + jnp.asarray(float(info.tiny), x.dtype)
    moved = lower - slack(lower), upper + slack(upper)
    # An end that is infinite stays so: its slack is, too, but of the wrong sign for a minimum of +inf.
    lower, upper = jnp.where(jnp.isinf(lower), lower, moved[0]), jnp.where(jnp.isinf(upper), upper, moved[1])
    # Infinity less infinity, or zero times it, says nothing of the numbers in between.
    return Interval(jnp.where(jnp.isnan(lower), -jnp.inf, lower), jnp.where(jnp.isnan(upper), jnp.inf, upper))


def _wrapping(bounds: Interval, estimates: Callable[[], Any]) -> Interval:
    """The bounds of arithmetic, given what its results would be if integers did not wrap around."""
    if not is_integer(bounds.lower):
        return bounds
    return Interval(*whole_range_where(leaves_range(bounds.lower.dtype, *estimates()), *_ends(bounds)))


def _rule(*names: str) -> Callable[[Any], Any]:
    """Files a rule that is asked only where there is an interval among the operands."""

    def decorate(rule: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(ctx: Context, *values: Any, **params: Any) -> Any:
            if not any(isinstance(v, Interval) for v in values):
                return ctx.bind(*values)
            return rule(ctx, *values, **params)

        Bounds.rule(*names)(guarded)
        return rule

    return decorate


# --- what keeps order

EXACT = """
    broadcast_in_dim reshape squeeze expand_dims transpose rev slice concatenate stack copy copy_p stop_gradient name max min
    reduce_max reduce_min cummax cummin floor ceil round sign select_and_gather_add reduce_window_max reduce_window_min
    reduce_and reduce_or clamp sharding_constraint pad tag real imag optimization_barrier split reduce_precision
""".split()  # noqa: SIM905 - a table of words

ROUNDED = {
    "exp": 8, "exp2": 8, "expm1": 8, "log": 8, "log1p": 8, "tanh": 16, "logistic": 16, "sqrt": 2, "cbrt": 8, "erf": 16,
    "asinh": 16, "atan": 8, "sinh": 16, "asin": 16, "acosh": 16, "atanh": 16, "erf_inv": 64, "add": 1, "add_any": 1,
    "convert_element_type": 1,
}  # fmt: skip
"""Primitives that grow with each operand -> units in the last place by which the result may be off."""

FALLING = {"rsqrt": 4, "erfc": 32, "acos": 16}
"""Primitives of one operand that fall with it."""


DOMAIN = {
    "log": (0.0, math.inf), "log1p": (-1.0, math.inf), "sqrt": (0.0, math.inf), "rsqrt": (0.0, math.inf),
    "asin": (-1.0, 1.0), "acos": (-1.0, 1.0), "atanh": (-1.0, 1.0), "acosh": (1.0, math.inf), "erf_inv": (-1.0, 1.0),
}  # fmt: skip
"""Where a primitive is a number: outside there is nothing to bound, so that ends are moved inside."""


def _inside_domain(ctx: Context, value: Any) -> Any:
    if ctx.primitive.name not in DOMAIN or not isinstance(value, Interval):
        return value
    low, high = (jnp.asarray(end, value.lower.dtype) for end in DOMAIN[ctx.primitive.name])
    return Interval(jnp.clip(value.lower, low, high), jnp.clip(value.upper, low, high))


def _keep_order(ulps: float) -> Callable[..., Any]:
    def rule(ctx: Context, *values: Any, **params: Any) -> Any:
        values = tuple(_inside_domain(ctx, v) for v in values)
        lower, upper = ctx.bind(*(_ends(v)[0] for v in values)), ctx.bind(*(_ends(v)[1] for v in values))
        if ctx.primitive.multiple_results:
            return [Interval(a, b) for a, b in zip(lower, upper, strict=True)]
        if not ulps:
            return Interval(lower, upper)
        sums = lambda: [sum(as_real(_ends(v)[side]) for v in values) for side in (0, 1)]  # of one, if it is converted
        return _wrapping(_outward(lower, upper, ulps), sums)

    return rule


_rule(*EXACT)(_keep_order(0))


@_rule("and", "or", "xor")
def _logical(ctx: Context, x: Any, y: Any, **params: Any) -> Any:
    """Of booleans: the ends are all that there is. Bits of integers follow no order."""
    if ctx.in_avals[0].dtype != bool:
        raise ctx.error(
            UnsupportedOpError, "bits of integers that are intervals", "mask by arrays known exactly, outside"
        )
    return Interval(*_extremes([ctx.bind(a, b) for a in _ends(x) for b in _ends(y)]))


@_rule("top_k")
def _largest(ctx: Context, x: Any, **params: Any) -> Any:
    (lower, place), (upper, _) = (ctx.bind(end) for end in _ends(x))
    last = x.lower.shape[params.get("axis", -1)] - 1
    return [Interval(lower, upper), Interval(jnp.zeros_like(place), jnp.full_like(place, last))]


for _name, _ulps in ROUNDED.items():
    _rule(_name)(_keep_order(_ulps))


@_rule("sort")
def _sort(ctx: Context, *values: Any, **params: Any) -> Any:
    if len(values) > 1:
        raise ctx.error(UnsupportedOpError, "several arrays sorted together", "sort each alone")
    return [Interval(*(ctx.bind(end)[0] for end in _ends(value))) for value in values]


def _reverse_order(ulps: float) -> Callable[..., Any]:
    def rule(ctx: Context, value: Any, **params: Any) -> Any:
        lower, upper = _ends(_inside_domain(ctx, value))
        return _outward(ctx.bind(upper), ctx.bind(lower), ulps)

    return rule


for _name, _ulps in FALLING.items():
    _rule(_name)(_reverse_order(_ulps))


@_rule("neg", "not")
def _negate(ctx: Context, value: Any, **params: Any) -> Any:
    lower, upper = _ends(value)
    bounds = Interval(ctx.bind(upper), ctx.bind(lower))
    return _wrapping(bounds, lambda: (-as_real(upper), -as_real(lower))) if ctx.primitive.name == "neg" else bounds


@_rule("sub")
def _subtract(ctx: Context, x: Any, y: Any, **params: Any) -> Any:
    (a, b), (c, d) = _ends(x), _ends(y)
    return _wrapping(_outward(ctx.bind(a, d), ctx.bind(b, c)), lambda: (difference(a, d), difference(b, c)))


# --- what has more than one branch


def _extremes(candidates: Sequence[Any]) -> tuple[Any, Any]:
    lower, upper = candidates[0], candidates[0]
    for c in candidates[1:]:
        lower, upper = jnp.minimum(lower, c), jnp.maximum(upper, c)
    return lower, upper


@_rule("mul")
def _multiply(ctx: Context, x: Any, y: Any, **params: Any) -> Any:
    if x is y:
        return _power(ctx, x, y=2)
    # Zero times infinity is no number, but the end of an interval it is: zero.
    products = [
        jnp.where((a == 0) | (b == 0), jnp.zeros_like(ctx.bind(a, b)), ctx.bind(a, b))
        for a in _ends(x)
        for b in _ends(y)
    ]
    reals = lambda: [as_real(a) * as_real(b) for a in _ends(x) for b in _ends(y)]
    return _wrapping(_outward(*_extremes(products)), reals)


@_rule("div")
def _divide(ctx: Context, x: Any, y: Any, **params: Any) -> Any:
    c, d = _ends(y)
    quotients = [ctx.bind(a, b) for a in _ends(x) for b in (c, d)]
    lower, upper = _extremes(quotients)
    crosses = (c <= 0) & (d >= 0)
    if is_integer(lower):
        least = jnp.iinfo(lower.dtype).min  # by -1 it wraps around
        return Interval(*whole_range_where(crosses | ((_ends(x)[0] == least) & (c < 0) & (least < 0)), lower, upper))
    inf = jnp.asarray(jnp.inf, lower.dtype)
    return _outward(jnp.where(crosses, -inf, lower), jnp.where(crosses, inf, upper))


@_rule("rem")
def _remainder(ctx: Context, x: Any, y: Any, **params: Any) -> Any:
    """It has the sign of the dividend, and is no larger than either; of integers, by zero it is the dividend."""
    (a, b), (_, largest), (c, divisor) = _ends(x), _absolute_ends(x), _absolute_ends(y)
    reach = jnp.where(c <= 0, largest, jnp.minimum(largest, divisor))
    none = jnp.zeros_like(reach)
    bounds = Interval(jnp.where(a < 0, -reach, none), jnp.where(b > 0, reach, none))
    return _wrapping(bounds, lambda: [jnp.where(c <= 0, -as_real(a), 0)])


@_rule("abs")
def _absolute(ctx: Context, x: Any, **params: Any) -> Any:
    return Interval(*_absolute_ends(x))


@_rule("square")
def _square(ctx: Context, x: Any, **params: Any) -> Any:
    return _power(ctx, x, y=2)


@_rule("integer_pow")
def _power(ctx: Context, x: Any, *, y: int, **params: Any) -> Any:
    a, b = _ends(x)
    if y < 0:
        return _divide_one(_power(ctx, x, y=-y))
    lower, upper = _extremes([lax.integer_pow(a, y), lax.integer_pow(b, y)])
    if y % 2 == 0 and y:
        lower = jnp.where((a <= 0) & (b >= 0), jnp.zeros_like(lower), lower)
    if is_integer(lower):
        return _wrapping(Interval(lower, upper), lambda: (as_real(a) ** y, as_real(b) ** y))
    bounds = _outward(lower, upper, 2 * y)
    return Interval(jnp.maximum(bounds.lower, 0), bounds.upper) if y % 2 == 0 else bounds


def _divide_one(x: Interval) -> Interval:
    crosses = (x.lower <= 0) & (x.upper >= 0)
    lower = jnp.where(crosses & (x.lower < 0), -jnp.inf, 1 / x.upper)
    return _outward(lower.astype(x.lower.dtype), jnp.where(crosses, jnp.inf, 1 / x.lower).astype(x.lower.dtype))


@_rule("pow")
def _real_power(ctx: Context, x: Any, y: Any, **params: Any) -> Any:
    a, b = _ends(x)
    lower, upper = _extremes([ctx.bind(base, e) for base in (a, b) for e in _ends(y)])
    unknown = a < 0  # then it is a number for whole exponents only
    bounds = _outward(lower, upper, 64)
    return Interval(jnp.where(unknown, -jnp.inf, bounds.lower), jnp.where(unknown, jnp.inf, bounds.upper))


def _wave(peak: float) -> Callable[..., Any]:
    """Sine or cosine: 1 at `peak` and every turn from there, -1 half a turn later."""

    def rule(ctx: Context, x: Any, **params: Any) -> Any:
        a, b = _ends(x)
        lower, upper = _extremes([ctx.bind(a), ctx.bind(b)])
        slack = (jnp.abs(a) + jnp.abs(b) + 1) * 4 * float(jnp.finfo(a.dtype).eps)

        def holds(point: float) -> Any:
            turns = lambda v: jnp.floor((v - point) / (2 * math.pi))
            return turns(b + slack) > turns(a - slack)

        bounds = _outward(lower, upper, 8)
        upper = jnp.where(holds(peak), jnp.ones_like(upper), jnp.minimum(bounds.upper, 1))
        lower = jnp.where(holds(peak + math.pi), -jnp.ones_like(lower), jnp.maximum(bounds.lower, -1))
        return Interval(lower, upper)

    return rule


_rule("sin")(_wave(math.pi / 2))
_rule("cos")(_wave(0.0))


@_rule("tan")
def _tangent(ctx: Context, x: Any, **params: Any) -> Any:
    a, b = _ends(x)
    slack = (jnp.abs(a) + jnp.abs(b) + 1) * 4 * float(jnp.finfo(a.dtype).eps)
    turns = lambda v: jnp.floor(v / math.pi + 0.5)
    jumps = turns(b + slack) > turns(a - slack)
    bounds = _outward(ctx.bind(a), ctx.bind(b), 16)
    return Interval(jnp.where(jumps, -jnp.inf, bounds.lower), jnp.where(jumps, jnp.inf, bounds.upper))


@_rule("cosh")
def _cosh(ctx: Context, x: Any, **params: Any) -> Any:
    near = _absolute_ends(x)
    return _outward(jnp.cosh(near[0]), jnp.cosh(near[1]), 16)


def _absolute_ends(x: Any) -> tuple[Any, Any]:
    a, b = _ends(x)
    lower, upper = _extremes([jnp.abs(a), jnp.abs(b)])
    bounds = Interval(jnp.where((a <= 0) & (b >= 0), jnp.zeros_like(lower), lower), upper)
    return _ends(_wrapping(bounds, lambda: [-as_real(a)]) if jnp.issubdtype(a.dtype, jnp.signedinteger) else bounds)


# --- sums and products of many terms


@_rule("reduce_sum", "cumsum", "reduce_window_sum")
def _sum(ctx: Context, x: Any, **params: Any) -> Any:
    a, b = _ends(x)
    lower, upper, size = ctx.bind(a), ctx.bind(b), ctx.bind(jnp.maximum(jnp.abs(a), jnp.abs(b)))
    terms = (
        max(1, math.prod(a.shape) // max(1, math.prod(lower.shape))) if ctx.primitive.name == "reduce_sum" else a.size
    )
    largest = terms * jnp.max(_reach(x), initial=0)
    return _widened(lower, upper, size, terms, largest)


def _reach(x: Any) -> Any:
    return jnp.maximum(*(jnp.abs(as_real(end)) for end in _ends(x)))


def _widened(lower: Any, upper: Any, size: Any, terms: int, largest: Any = 0.0) -> Interval:
    """Ends of a sum moved outward by what summing so many terms of this total size may lose."""
    if not jnp.issubdtype(lower.dtype, jnp.floating):
        return _wrapping(Interval(lower, upper), lambda: both_signs(lower.dtype, largest))
    slack = size * jnp.asarray((terms + 2) * float(jnp.finfo(lower.dtype).eps), lower.dtype)
    return _outward(lower - slack, upper + slack)


@_rule("dot_general", "conv_general_dilated", "ragged_dot_general")
def _product(ctx: Context, x: Any, y: Any, *rest: Any, **params: Any) -> Any:
    # By sign: each side split into what is positive and what is negative, so that a side without width costs no tightness.
    (a, b), (c, d) = _ends(x), _ends(y)
    up, down = lambda v: jnp.maximum(v, 0), lambda v: jnp.minimum(v, 0)
    times = lambda u, v: ctx.bind(u, v, *rest)
    if isinstance(x, Interval) and isinstance(y, Interval):
        centre, spread = ((a + b) / 2, (c + d) / 2), ((b - a) / 2, (d - c) / 2)
        middle = times(*centre)
        reach = times(jnp.abs(centre[0]), spread[1]) + times(spread[0], jnp.abs(centre[1])) + times(*spread)
        lower, upper = middle - reach, middle + reach
    elif isinstance(x, Interval):
        lower, upper = times(a, up(c)) + times(b, down(c)), times(b, up(c)) + times(a, down(c))
    else:
        lower, upper = times(up(a), c) + times(down(a), d), times(up(a), d) + times(down(a), c)
    size = times(jnp.maximum(jnp.abs(a), jnp.abs(b)), jnp.maximum(jnp.abs(c), jnp.abs(d)))
    terms = _contracted(ctx, a) if ctx.primitive.name == "dot_general" else math.prod(a.shape) + math.prod(c.shape)
    largest = terms * jnp.max(_reach(x), initial=0) * jnp.max(_reach(y), initial=0)
    return _widened(lower, upper, size, 4 * terms, largest)


def _contracted(ctx: Context, lhs: Any) -> int:
    (contracted, _), _ = ctx.params["dimension_numbers"]
    return math.prod(lhs.shape[d] for d in contracted)


# --- choices


@_rule("lt", "le", "gt", "ge", "eq", "ne")
def _compare(ctx: Context, x: Any, y: Any, **params: Any) -> Any:
    (a, b), (c, d) = _ends(x), _ends(y)
    name = ctx.primitive.name
    if name in ("gt", "ge"):
        (a, b), (c, d), name = (c, d), (a, b), {"gt": "lt", "ge": "le"}[name]
    if name == "lt":
        return Interval(b < c, a < d)
    if name == "le":
        return Interval(b <= c, a <= d)
    surely, maybe = (a == b) & (c == d) & (a == c), (a <= d) & (c <= b)
    return Interval(surely, maybe) if name == "eq" else Interval(~maybe, ~surely)


@_rule("select_n")
def _select(ctx: Context, which: Any, *cases: Any, **params: Any) -> Any:
    ends = [_ends(case) for case in cases]
    if not isinstance(which, Interval):
        return Interval(ctx.bind(which, *(e[0] for e in ends)), ctx.bind(which, *(e[1] for e in ends)))
    lower, upper = ctx.bind(which.lower, *(e[0] for e in ends)), ctx.bind(which.lower, *(e[1] for e in ends))
    for number, (a, b) in enumerate(ends):
        chosen = jnp.asarray(number, which.lower.dtype)
        possible = jnp.broadcast_to((which.lower <= chosen) & (chosen <= which.upper), a.shape)
        lower = jnp.where(possible, jnp.minimum(lower, a), lower)
        upper = jnp.where(possible, jnp.maximum(upper, b), upper)
    return Interval(lower, upper)


@_rule("gather", "dynamic_slice")
def _at_known_places(ctx: Context, operand: Any, *indices: Any, **params: Any) -> Any:
    if any(isinstance(i, Interval) for i in indices):
        raise ctx.error(UnsupportedOpError, "indices that are intervals", "index by arrays that are known exactly")
    return Interval(*(ctx.bind(end, *indices) for end in _ends(operand)))


@_rule("dynamic_update_slice", "scatter-add", "scatter")
def _update_known_places(ctx: Context, operand: Any, *rest: Any, **params: Any) -> Any:
    update, indices = (rest[0], rest[1:]) if ctx.primitive.name == "dynamic_update_slice" else (rest[1], rest[:1])
    if any(isinstance(i, Interval) for i in indices):
        raise ctx.error(UnsupportedOpError, "indices that are intervals", "index by arrays that are known exactly")
    order = lambda o, u: (o, u, *indices) if ctx.primitive.name == "dynamic_update_slice" else (o, *indices, u)
    bounds = Interval(*(ctx.bind(*order(o, u)) for o, u in zip(_ends(operand), _ends(update), strict=True)))
    if ctx.primitive.name != "scatter-add":
        return bounds
    size = ctx.bind(*order(*(jnp.maximum(jnp.abs(a), jnp.abs(b)) for a, b in map(_ends, (operand, update)))))
    terms = _ends(update)[0].size
    largest = jnp.max(_reach(operand), initial=0) + terms * jnp.max(_reach(update), initial=0)
    return _widened(bounds.lower, bounds.upper, size, terms, largest)


@_rule("argmax", "argmin")
def _some_place(ctx: Context, x: Any, *, axes: tuple[int, ...], index_dtype: Any, **params: Any) -> Any:
    like = ctx.bind(_ends(x)[0])
    return Interval(jnp.zeros_like(like), jnp.full_like(like, x.shape[axes[0]] - 1))


@_rule("is_finite")
def _is_finite(ctx: Context, x: Any, **params: Any) -> Any:
    a, b = map(ctx.bind, _ends(x))
    return Interval(a & b, jnp.ones_like(a))


@Bounds.rule("cond")
def _cond(ctx: Context, index: Any, *operands: Any, **params: Any) -> Any:
    if not isinstance(index, Interval):
        return ctx.default(index, *operands)
    outs = [ctx.sub(branch, *operands, name=f"branch{i}") for i, branch in enumerate(params["branches"])]
    joined = []
    for results in zip(*outs, strict=True):
        ends = list(map(_ends, results))
        joined.append(Interval(_extremes([a for a, _ in ends])[0], _extremes([b for _, b in ends])[1]))
    return joined
