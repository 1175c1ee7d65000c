"""`inverse`, `inverse_and_log_det`: functions run backwards, with the logarithm of the volume that they change."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from unlower._jax_compat_interpret import Tracer
from unlower.errors import UnlowerError
from unlower.interpret.propagate import Place, Propagate, Values

__all__ = ["InverseError", "inverse", "inverse_and_log_det"]


class InverseError(UnlowerError, ValueError):
    """A function that cannot be run backwards with what is known."""


def inverse(function: Callable[..., Any], *like: Any) -> Callable[..., Any]:
    """Returns the inverse of a function.

    Every equation is turned round for itself: elementwise bijections, sums and products with what is known, products with a
    known square matrix, triangular solves, cumulative sums, splits, slices and concatenations, transposes, through `jit`,
    `scan`, `cond` and `checkpoint`. Operations that are one to one only on part of their domain (`x**2`) are refused.

    Args:
      function: a function of JAX arrays.
      like: its arguments: `jax.ShapeDtypeStruct`s for what is looked for, arrays for what is known. Without any, a function of
        as many arguments as it has results, of the same shapes.

    Returns:
      a function of `function`'s results that returns its arguments: one of them as it is, several as a tuple.

    Raises:
      InverseError: when called, if an argument does not follow from the results; names the equation.

    Example:
      >>> import jax.numpy as jnp
      >>> round(float(inverse(lambda x: jnp.exp(jnp.tanh(x)) * 2)(jnp.exp(jnp.tanh(0.3)) * 2)), 5)
      0.3
    """
    run = inverse_and_log_det(function, *like)
    return lambda *results: run(*results)[0]


def inverse_and_log_det(function: Callable[..., Any], *like: Any) -> Callable[..., Any]:
    """Returns the inverse, and the logarithm of its Jacobian's absolute determinant.

    Args:
      function: as `inverse` takes it.
      like: as `inverse` takes it.

    Returns:
      a function of `function`'s results that returns the arguments and a scalar: `log |det d arguments / d results|`, over all
      elements that were looked for.

    Example:
      >>> import jax.numpy as jnp
      >>> x, log_det = inverse_and_log_det(lambda x: 2 * x)(jnp.ones(3))
      >>> x.tolist(), round(float(log_det), 4)
      ([0.5, 0.5, 0.5], -2.0794)
    """

    def run(*results: Any) -> Any:
        leaves = jax.tree.leaves(results)
        wanted = like or results
        flat, tree = jax.tree.flatten(wanted)
        closed, shape = jax.make_jaxpr(function, return_shape=True)(*wanted)
        count = len(jax.tree.leaves(shape))
        if count != len(leaves):
            raise InverseError(
                f"{len(leaves)} results of a function that has {count}",
                mend="pass the results that the function returns",
            )
        abstract = lambda x: isinstance(x, jax.ShapeDtypeStruct)
        known = [None if abstract(x) or not like else jnp.asarray(x) for x in flat]
        outputs = [jnp.asarray(x, aval.dtype) for x, aval in zip(leaves, closed.out_avals, strict=True)]
        found, _, total = ENGINE.solve(closed, known, outputs)
        if any(value is None for value in found):
            where = ENGINE.obstacle(closed, known, outputs)
            place = next(i for i, value in enumerate(found) if value is None)
            raise InverseError(
                f"argument {place} does not follow from the results",
                where=where,
                mend="pass what is known of the arguments (inverse(f, *like)), or add a rule to inverse.ENGINE.backward",
            )
        arguments = jax.tree.unflatten(tree, found)
        one = arguments[0] if len(wanted) == 1 else tuple(arguments)
        return one, jnp.zeros(()) if total is None else total

    return run


# --- rules

_UNARY: dict[str, tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]] = {
    # primitive -> the inverse, and the logarithm of the derivative at operand x with result y
    "exp": (jnp.log, lambda x, y: x),
    "exp2": (jnp.log2, lambda x, y: x * math.log(2) + math.log(math.log(2))),
    "expm1": (jnp.log1p, lambda x, y: x),
    "log": (jnp.exp, lambda x, y: -y),
    "log1p": (jnp.expm1, lambda x, y: -y),
    "tanh": (jnp.arctanh, lambda x, y: jnp.log1p(-y * y)),
    "atanh": (jnp.tanh, lambda x, y: -jnp.log1p(-x * x)),
    "logistic": (lambda y: jnp.log(y) - jnp.log1p(-y), lambda x, y: jnp.log(y) + jnp.log1p(-y)),
    "sinh": (jnp.arcsinh, lambda x, y: 0.5 * jnp.log1p(y * y)),
    "asinh": (jnp.sinh, lambda x, y: -0.5 * jnp.log1p(x * x)),
    "atan": (jnp.tan, lambda x, y: -jnp.log1p(x * x)),
    "erf": (lax.erf_inv, lambda x, y: math.log(2 / math.sqrt(math.pi)) - x * x),
    "erf_inv": (lax.erf, lambda x, y: math.log(math.sqrt(math.pi) / 2) + y * y),
    "sqrt": (jnp.square, lambda x, y: -jnp.log(2 * y)),
    "rsqrt": (lambda y: 1 / (y * y), lambda x, y: jnp.log(0.5) + 3 * jnp.log(y)),
    "cbrt": (lambda y: y**3, lambda x, y: -jnp.log(3 * y * y)),
    "neg": (jnp.negative, lambda x, y: jnp.zeros_like(y)),
}

_BACKWARD: dict[str, Any] = {}


def _rule(*names: str) -> Callable[[Any], Any]:
    def decorate(function: Any) -> Any:
        _BACKWARD.update(dict.fromkeys(names, function))
        return function

    return decorate


def _unary(name: str) -> Any:
    undo, log_slope = _UNARY[name]

    def rule(place: Place, ins: Values, outs: Values) -> Values:
        x = undo(outs[0])
        place.add(-log_slope(x, outs[0]).sum())
        return [x]

    return rule


_BACKWARD.update({name: _unary(name) for name in _UNARY})


def _binary(solve: Callable[[int, Any, Any], tuple[Any, Any]]) -> Any:
    """A rule for two operands of which one is known: `(which is unknown, the other, the result)` -> it, log |slope|."""

    def rule(place: Place, ins: Values, outs: Values) -> Values | None:
        unknown = [i for i in (0, 1) if ins[i] is None]
        if len(unknown) != 1 or place.aval(unknown[0]).shape != outs[0].shape:
            return None
        side = unknown[0]
        value, log_slope = solve(side, ins[1 - side], outs[0])
        place.add(-jnp.broadcast_to(log_slope, outs[0].shape).sum())
        return [value, ins[1]] if side == 0 else [ins[0], value]

    return rule


_log_abs = lambda x: jnp.log(jnp.abs(x))
_BACKWARD["add"] = _BACKWARD["add_any"] = _binary(lambda side, c, y: (y - c, jnp.zeros(())))
_BACKWARD["sub"] = _binary(lambda side, c, y: (y + c if side == 0 else c - y, jnp.zeros(())))
_BACKWARD["mul"] = _binary(lambda side, c, y: (y / c, _log_abs(c)))
_BACKWARD["div"] = _binary(
    lambda side, c, y: (y * c, -_log_abs(c)) if side == 0 else (c / y, 2 * _log_abs(y) - _log_abs(c))
)
_BACKWARD["pow"] = _binary(
    lambda side, c, y: (
        (y ** (1 / c), _log_abs(c) + (1 - 1 / c) * jnp.log(y))
        if side == 0
        else (jnp.log(y) / jnp.log(c), jnp.log(y) + _log_abs(jnp.log(c)))
    )
)


@_rule("integer_pow")
def _integer_power(place: Place, ins: Values, outs: Values) -> Values | None:
    power = place.params["y"]
    if power % 2 == 0:
        return None  # two operands have this result
    y = outs[0]
    x = jnp.sign(y) * jnp.abs(y) ** (1 / power)
    place.add(-(math.log(abs(power)) + (power - 1) * _log_abs(x)).sum())
    return [x]


@_rule("reshape", "squeeze", "expand_dims")
def _reshape(place: Place, ins: Values, outs: Values) -> Values:
    return [outs[0].reshape(place.aval(0).shape), *ins[1:]]


@_rule("broadcast_in_dim")
def _broadcast(place: Place, ins: Values, outs: Values) -> Values | None:
    shape = place.aval(0).shape
    return [outs[0].reshape(shape), *ins[1:]] if math.prod(shape) == outs[0].size else None


@_rule("copy", "copy_p", "name", "tag", "stop_gradient", "sharding_constraint")
def _same(place: Place, ins: Values, outs: Values) -> Values:
    return list(outs)


@_rule("convert_element_type")
def _convert(place: Place, ins: Values, outs: Values) -> Values | None:
    dtypes = place.aval(0).dtype, outs[0].dtype
    return [outs[0].astype(dtypes[0])] if all(jnp.issubdtype(d, jnp.inexact) for d in dtypes) else None


@_rule("transpose")
def _transpose(place: Place, ins: Values, outs: Values) -> Values:
    permutation = place.params["permutation"]
    return [outs[0].transpose(sorted(range(len(permutation)), key=lambda i: permutation[i]))]


@_rule("rev")
def _reverse(place: Place, ins: Values, outs: Values) -> Values:
    return [place.bind(outs[0])]


@_rule("concatenate")
def _concatenate(place: Place, ins: Values, outs: Values) -> Values:
    axis, start, found = place.params["dimension"], 0, []
    for operand in range(len(ins)):
        stop = start + place.aval(operand).shape[axis]
        found.append(lax.slice_in_dim(outs[0], start, stop, axis=axis))
        start = stop
    return found


@_rule("split")
def _split(place: Place, ins: Values, outs: Values) -> Values:
    return [jnp.concatenate(outs, place.params["axis"])]


def _slice(place: Place, ins: Values) -> tuple[slice, ...]:
    p = place.params
    return tuple(map(slice, p["start_indices"], p["limit_indices"], p["strides"] or (1,) * len(p["start_indices"])))


def _dynamic_slice(place: Place, ins: Values) -> tuple[slice, ...] | None:
    starts = ins[1:]
    if any(s is None or isinstance(s, Tracer) for s in starts):
        return None
    sizes, shape = place.params["slice_sizes"], place.aval(0).shape
    clamped = [min(max(int(s), 0), n - size) for s, n, size in zip(starts, shape, sizes, strict=True)]
    return tuple(slice(s, s + n) for s, n in zip(clamped, sizes, strict=True))


@_rule("pad")
def _pad(place: Place, ins: Values, outs: Values) -> Values | None:
    config = place.params["padding_config"]
    if any(low < 0 or high < 0 for low, high, _ in config):
        return None
    shape = outs[0].shape
    index = tuple(slice(low, n - high, inner + 1) for (low, high, inner), n in zip(config, shape, strict=True))
    return [outs[0][index], ins[1] if ins[1] is not None else jnp.zeros((), outs[0].dtype)]


@_rule("cumsum")
def _cumulative_sum(place: Place, ins: Values, outs: Values) -> Values:
    axis, reverse = place.params["axis"], place.params["reverse"]
    y = jnp.flip(outs[0], axis) if reverse else outs[0]
    x = jnp.diff(y, axis=axis, prepend=jnp.zeros_like(lax.slice_in_dim(y, 0, 1, axis=axis)))
    return [jnp.flip(x, axis) if reverse else x]


@_rule("dot_general")
def _product(place: Place, ins: Values, outs: Values) -> Values | None:
    """A product with a known square matrix, without batch axes."""
    ((left, right), batch), unknown = place.params["dimension_numbers"], [i for i in (0, 1) if ins[i] is None]
    if any(batch) or len(unknown) != 1 or len(left) != 1:
        return None
    side = unknown[0]
    matrix, ours, theirs = ins[1 - side], (left, right)[side][0], (left, right)[1 - side][0]
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        return None
    # Rows of `matrix` are what is summed over. The free axis of the matrix stands last in the result, or first.
    matrix = matrix if theirs == 0 else matrix.T
    y = jnp.moveaxis(outs[0], -1 if side == 0 else 0, -1)
    x = jnp.linalg.solve(matrix.T, y.reshape(-1, y.shape[-1]).T).T.reshape(y.shape)
    place.add(-jnp.linalg.slogdet(matrix)[1] * (y.size // y.shape[-1]))
    found = jnp.moveaxis(x, -1, ours)
    return [found, ins[1]] if side == 0 else [ins[0], found]


@_rule("triangular_solve")
def _triangular(place: Place, ins: Values, outs: Values) -> Values | None:
    """The right-hand side out of the solution."""
    p = place.params
    if ins[0] is None:
        return None
    a = jnp.tril(ins[0]) if p["lower"] else jnp.triu(ins[0])
    if p["unit_diagonal"]:
        a = a - a * jnp.eye(a.shape[-1], dtype=a.dtype) + jnp.eye(a.shape[-1], dtype=a.dtype)
    a = a.conj() if p["conjugate_a"] else a
    a = a.swapaxes(-1, -2) if p["transpose_a"] else a
    columns = outs[0].shape[-1 if p["left_side"] else -2]
    place.add(_log_abs(jnp.diagonal(a, axis1=-2, axis2=-1)).sum() * columns)
    return [ins[0], a @ outs[0] if p["left_side"] else outs[0] @ a]


ENGINE = Propagate(_BACKWARD, {"slice": _slice, "dynamic_slice": _dynamic_slice})
"""The rules at work; a rule filed in `ENGINE.backward` holds from then on."""
