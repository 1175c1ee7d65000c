"""Products in low precision: dots and convolutions whose operands are half-precision and whose derivatives are too.

Both products of the backward pass are products of this kind again. The gradient of an operand comes out of its product in the
dtype that the program declares for it, without a stop in the low one: `product_p` takes, beside each cast operand, the operand
that it was cast from, and its derivative is with respect to that one. Nothing reads the wide operand itself, so what is saved
for the backward pass is the low one.
"""

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jax import lax
from jax.interpreters import ad, batching, mlir

from unlower._jax_compat import new_primitive, result_aval, zero_tangent
from unlower._jax_compat_interpret import Literal, Tracer, bind_equation, current_trace, jaxpr_parts, typeof
from unlower.interpret import higher_order

__all__ = ["PRODUCTS", "product", "product_jaxpr", "product_p"]

PRODUCTS = ("dot_general", "conv_general_dilated", "ragged_dot_general", "ragged_dot")
"""The primitives that are products: linear in each of their first two operands."""

product_p = new_primitive("low_precision_product", several=False)
"""`(lhs, rhs, *rest, *wide)`: a product of low operands.

Parameters:
  jaxpr: the program of one equation that is the product, of `lhs`, `rhs` and `rest` (the group sizes of a ragged one).
  wide: for `lhs` and `rhs`, whether what it was cast from follows in `wide`.
"""


def product_jaxpr(primitive: Any, params: dict[str, Any], avals: Sequence[Any], dtype: Any) -> Any:
    """The program of one product: its closed Jaxpr, the same object for the same product.

    Args:
      primitive: one of `PRODUCTS`.
      params: its parameters.
      avals: of its operands, low ones first.
      dtype: of its result.
    """
    params = {**params, "preferred_element_type": jax.numpy.dtype(dtype)}
    try:
        return _product_jaxpr(primitive, tuple(params.items()), tuple(avals))
    except TypeError:  # a parameter without a hash
        return _trace(primitive, params, avals)


@functools.lru_cache(maxsize=4096)
def _product_jaxpr(primitive: Any, params: tuple[tuple[str, Any], ...], avals: tuple[Any, ...]) -> Any:
    return _trace(primitive, dict(params), avals)


def _trace(primitive: Any, params: dict[str, Any], avals: Sequence[Any]) -> Any:
    return jax.make_jaxpr(lambda *operands: bind_equation(primitive, operands, params))(*avals)


def product(
    primitive: Any,
    params: dict[str, Any],
    operands: Sequence[Any],
    dtype: Any,
    wide: Sequence[Any] = (None, None),
) -> Any:
    """Binds a product in low precision.

    Args:
      primitive: one of `PRODUCTS`.
      params: its parameters.
      operands: the low operands, then the others.
      dtype: of the result.
      wide: what each of the two was cast from, or None.
    """
    jaxpr = product_jaxpr(primitive, params, [typeof(x) for x in operands], dtype)
    return _bind(jaxpr, operands, wide)


def _bind(jaxpr: Any, operands: Sequence[Any], wide: Sequence[Any]) -> Any:
    flags = tuple(w is not None for w in wide)
    return product_p.bind(*operands, *(w for w in wide if w is not None), jaxpr=jaxpr, wide=flags)


def _the_equation(jaxpr: Any) -> Any:
    (equation,) = jaxpr_parts(jaxpr).eqns
    return equation


def _split(values: Sequence[Any], wide: tuple[bool, bool]) -> tuple[Sequence[Any], list[Any]]:
    """The operands of the product itself, and for the first two what they were cast from."""
    count = len(values) - sum(wide)
    rest = iter(values[count:])
    return values[:count], [next(rest) if flag else None for flag in wide]


def _run(*values: Any, jaxpr: Any, wide: tuple[bool, bool]) -> Any:
    equation = _the_equation(jaxpr)
    return bind_equation(equation.primitive, _split(values, wide)[0], equation.params)


def _abstract(*avals: Any, jaxpr: Any, wide: tuple[bool, bool]) -> Any:
    out = jaxpr_parts(jaxpr).outvars[0].aval
    varies = any(getattr(aval, "mat", None) and aval.mat.varying for aval in avals)
    return result_aval(avals, out.shape, out.dtype) if varies else out


product_p.def_abstract_eval(_abstract)
mlir.register_lowering(product_p, mlir.lower_fun(_run, multiple_results=False))


def _run_widened(*values: Any, jaxpr: Any, wide: tuple[bool, bool]) -> Any:
    """The same product on a CPU, with operands widened where the result is: a product of two halves is exact in float32.

    XLA's CPU compiler runs some products of low operands with a float32 result and fails on others ("Unsupported element type
    for DotThunk::Execute: BF16 x BF16 = F32", jaxlib 0.10 to 0.12).
    """
    equation = _the_equation(jaxpr)
    operands, _ = _split(values, wide)
    dtype = equation.outvars[0].aval.dtype
    if dtype != typeof(operands[0]).dtype:
        operands = [lax.convert_element_type(x, dtype) if i < 2 else x for i, x in enumerate(operands)]
    return bind_equation(equation.primitive, operands, equation.params)


mlir.register_lowering(product_p, mlir.lower_fun(_run_widened, multiple_results=False), platform="cpu")


# --- derivatives


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, jaxpr: Any, wide: tuple[bool, bool]) -> tuple[Any, Any]:
    operands, _ = _split(primals, wide)
    given, given_wide = _split(tangents, wide)
    out = _value(operands, jaxpr)
    total = None
    for side in (0, 1):
        tangent = given_wide[side] if wide[side] else given[side]
        if type(tangent) is ad.Zero:
            continue
        moved = list(operands)
        moved[side], source = _lowered(tangent, typeof(operands[side]).dtype)
        term = _bind(jaxpr, moved, [source, None] if side == 0 else [None, source])
        total = term if total is None else ad.add_jaxvals(total, term)
    return out, zero_tangent(out) if total is None else total


def _lowered(value: Any, dtype: Any) -> tuple[Any, Any]:
    """A value in a low dtype, and itself if it had to be cast for that."""
    if typeof(value).dtype == dtype:
        return value, None
    return _casts.cast(value, dtype), value


class _Casts:
    """Remembers what a traced value was cast to: a cotangent goes into two products, and is cast once."""

    def __init__(self):
        self._known: dict[tuple[int, Any], tuple[Any, Any, Any]] = {}

    def cast(self, value: Any, dtype: Any) -> Any:
        if not isinstance(value, Tracer):
            return lax.convert_element_type(value, dtype)
        key, trace = (id(value), dtype), current_trace()
        known = self._known.get(key)
        if known is not None and known[0]() is value and known[1]() is trace:
            return known[2]
        made = lax.convert_element_type(value, dtype)
        forget = lambda _: self._known.pop(key, None)
        self._known[key] = (weakref.ref(value, forget), weakref.ref(trace), made)
        return made


_casts = _Casts()


def _value(operands: Sequence[Any], jaxpr: Any) -> Any:
    """The plain product, so that a policy of `jax.checkpoint` knows it for one; on a CPU, where that may not run, ours."""
    if jax.default_backend() == "cpu":
        return _bind(jaxpr, operands, (None, None))
    return _run(*operands, jaxpr=jaxpr, wide=(False, False))


ad.primitive_jvps[product_p] = _jvp


class _Pair(NamedTuple):
    """A low array and what it was cast from, which go through the same rearrangements side by side."""

    low: Any
    wide: Any


def _low(value: Any) -> Any:
    return value.low if type(value) is _Pair else value


def _wide(value: Any) -> Any:
    return value.wide if type(value) is _Pair else None


def _rearranged(jaxpr: Any, values: Sequence[Any], dtype: Any) -> Any:
    """Runs a program around one product on arrays and pairs, with a product of ours in its place that gives `dtype`."""
    parts = jaxpr_parts(jaxpr)
    env: dict[Any, Any] = dict(zip([*parts.constvars, *parts.invars], [*parts.consts, *values], strict=True))
    for equation in parts.eqns:
        operands = [v.val if isinstance(v, Literal) else env[v] for v in equation.invars]
        run = _product_equation if equation.primitive.name in PRODUCTS else _moving_equation
        outs = run(equation, operands, dtype)
        env.update(zip(equation.outvars, outs, strict=True))
    (out,) = parts.outvars
    return env[out]


def _product_equation(equation: Any, operands: Sequence[Any], dtype: Any) -> list[Any]:
    wide = [_wide(x) for x in operands[:2]]
    return [product(equation.primitive, equation.params, list(map(_low, operands)), dtype, wide)]


def _moving_equation(equation: Any, operands: Sequence[Any], dtype: Any) -> list[Any]:
    """Reshapes, transposes, reversals, pads: a pair goes through twice, once in each dtype."""
    several = equation.primitive.multiple_results
    bind = lambda values: bind_equation(equation.primitive, values, equation.params)
    as_list = lambda out: list(out) if several else [out]
    lows = as_list(bind(list(map(_low, operands))))
    if not any(type(x) is _Pair for x in operands):
        return lows
    wides = as_list(bind([_as_wide(x, operands) for x in operands]))
    return [_Pair(low, wide) for low, wide in zip(lows, wides, strict=True)]


def _as_wide(value: Any, operands: Sequence[Any]) -> Any:
    """What stands beside the wide half of a pair: a padding value that comes in the low dtype is converted."""
    if type(value) is _Pair:
        return value.wide
    pair = next(x for x in operands if type(x) is _Pair)
    same = getattr(value, "dtype", None) == typeof(pair.low).dtype
    return lax.convert_element_type(value, typeof(pair.wide).dtype) if same else value


def _transpose(cotangent: Any, *values: Any, jaxpr: Any, wide: tuple[bool, bool]) -> list[Any]:
    operands, _sources = _split(values, wide)
    side = next(i for i in (0, 1) if ad.is_undefined_primal(operands[i]))
    results: list[Any] = [None] * len(values)
    target = len(operands) + sum(wide[:side]) if wide[side] else side
    undefined = values[target].aval
    if wide[side]:
        results[side] = ad.Zero(operands[side].aval)
    if type(cotangent) is ad.Zero:
        results[target] = ad.Zero(undefined)
        return results
    aval = operands[side].aval
    low, source = _lowered(cotangent, aval.dtype)
    others = [x for i, x in enumerate(operands) if i != side]
    program = _transposed(jaxpr, side, aval.dtype)
    carried = low if source is None else _Pair(low, source)
    results[target] = _rearranged(program, [carried, *others], undefined.dtype)
    return results


@functools.lru_cache(maxsize=4096)
def _transposed(jaxpr: Any, side: int, dtype: Any) -> Any:
    """The program `(cotangent, *others) -> cotangent of one operand`, all low."""
    equation = _the_equation(jaxpr)
    params = {**equation.params, "preferred_element_type": jax.numpy.dtype(dtype)}
    avals = [v.aval for v in jaxpr_parts(jaxpr).invars]
    out = jaxpr_parts(jaxpr).outvars[0].aval.update(dtype=jax.numpy.dtype(dtype))

    def run(cotangent: Any, *others: Any) -> Any:
        def of_side(x: Any) -> Any:
            return bind_equation(equation.primitive, [*others[:side], x, *others[side:]], params)

        return jax.linear_transpose(of_side, avals[side])(cotangent)

    return jax.make_jaxpr(run)(out, *(a for i, a in enumerate(avals) if i != side))


ad.primitive_transposes[product_p] = _transpose


# --- batching


def _batch(values: Sequence[Any], dims: Sequence[Any], *, jaxpr: Any, wide: tuple[bool, bool]) -> tuple[Any, int]:
    operands, sources = _split(values, wide)
    places, source_places = _split(dims, wide)
    size = next(x.shape[d] for x, d in zip(values, dims, strict=True) if d is not None)
    pairs: list[Any] = []
    in_axes = []
    for i, (operand, place) in enumerate(zip(operands, places, strict=True)):
        source = sources[i] if i < 2 else None
        if source is None:
            pairs.append(operand)
            in_axes.append(place)
            continue
        if place is None and source_places[i] is None:
            in_axes.append(None)
        else:
            in_axes.append(0)
            operand = batching.bdim_at_front(operand, place, size)
            source = batching.bdim_at_front(source, source_places[i], size)
        pairs.append(_Pair(operand, source))
    avals = tuple(typeof(_low(p)) for p in pairs)
    program = _batched(jaxpr, tuple(in_axes), avals)
    return _rearranged(program, pairs, jaxpr_parts(jaxpr).outvars[0].aval.dtype), 0


@functools.lru_cache(maxsize=4096)
def _batched(jaxpr: Any, in_axes: tuple[Any, ...], avals: tuple[Any, ...]) -> Any:
    run: Callable[..., Any] = lambda *operands: _run(*operands, jaxpr=jaxpr, wide=(False, False))
    return jax.make_jaxpr(jax.vmap(run, in_axes))(*avals)


batching.primitive_batchers[product_p] = _batch


@higher_order(product_p)
def _interpreted(ctx: Any, *values: Any, jaxpr: Any, wide: tuple[bool, bool]) -> Any:
    """Under an interpreter that has a rule for the product inside, that rule is for the low product."""
    staged = ctx.stage(jaxpr, _split(values, wide)[0])
    return ctx.bind(*values) if not staged.changed else ctx.sub(jaxpr, *_split(values, wide)[0])[0]
