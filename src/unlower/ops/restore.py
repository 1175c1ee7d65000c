"""Equations as they were before lowering, where that lowers to the same operations and has the cheaper derivative.

JAX puts into a module what its equations leave unsaid: that an operand is broadcast, that a power is a chain of products, where
a gradient stops, what is computed again. A derivative that is taken of the module's operations keeps more for its way back than
that of the equations. So they are put back, by rewrites whose lowering is what was there:

- an elementwise equation takes its operand as it was before it was broadcast;
- a chain of products of one value is its power;
- slices that share out an array are its split;
- the gradient stops at a maximum that cancels (`shift_invariance.py`);
- what stands under the name scope `checkpoint` is computed again (`remat.py`).
"""

import collections
import functools
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from unlower._jax_compat import (
    JaxprParts,
    Var,
    closed_jaxpr,
    jit_p,
    open_closed_jaxpr,
    primitives,
    shaped_array,
)
from unlower.ops.remat import group_checkpoints
from unlower.ops.shift_invariance import find_cancelling_maxima

__all__ = ["restore"]

_ELEMENTWISE = frozenset(["add", "atan2", "div", "max", "min", "mul", "pow", "rem", "sub"])


_restored: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
"""What became of closed Jaxprs; None where nothing changed. It keeps none alive."""


def restore(closed: Any) -> Any:
    """Returns a closed Jaxpr that lowers to the same operations, in the equations that JAX would have traced.

    Args:
      closed: a closed Jaxpr; the same one when nothing changes. Functions that it calls are restored as well, and branches;
        loops are when they are differentiated.
    """
    if closed not in _restored:
        _restored[closed] = _rewritten(closed)
    new = _restored[closed]
    return closed if new is None else new


def _rewritten(closed: Any) -> Any:
    parts = open_closed_jaxpr(closed)
    equations = [_inside(equation) for equation in parts.eqns]
    changed = any(new is not old for new, old in zip(equations, parts.eqns, strict=True))
    parts = parts._replace(eqns=equations)
    for rewrite in (_narrow, _powers, _splits, _stop, group_checkpoints):
        new = rewrite(parts)
        changed |= new is not parts
        parts = new
    return closed_jaxpr(parts, "restored", closed.effects) if changed else None


def _inside(equation: Any) -> Any:
    if equation.primitive is jit_p:
        inner = equation.params["jaxpr"]
        new = restore(inner)
        return equation if new is inner else equation.replace(params={**equation.params, "jaxpr": new})
    if equation.primitive is primitives.cond_p:
        branches = equation.params["branches"]
        news = tuple(restore(branch) for branch in branches)
        if any(new is not old for new, old in zip(news, branches, strict=True)):
            return equation.replace(params={**equation.params, "branches": news})
    return equation


def _traced(function: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """The one equation that a function traces to: its primitive has no public name, or its parameters change."""
    with jax.enable_x64(True):
        (equation,) = open_closed_jaxpr(jax.make_jaxpr(function)(jax.ShapeDtypeStruct(shape, dtype))).eqns
    return equation


def _live(parts: JaxprParts) -> JaxprParts:
    """Leaves out equations whose results nobody reads; those with effects stay."""
    needed = {a for a in parts.outvars if type(a) is Var}
    kept = []
    for equation in reversed(parts.eqns):
        if equation.effects or any(v in needed for v in equation.outvars):
            kept.append(equation)
            needed.update(a for a in equation.invars if type(a) is Var)
    kept.reverse()
    return parts._replace(eqns=kept)


# --- operands before they were broadcast


def _narrow(parts: JaxprParts) -> JaxprParts:
    small: dict[Any, Any] = {}
    reshaped: dict[Any, Any] = {}
    equations = []
    found = False
    for equation in parts.eqns:
        if equation.primitive is primitives.reshape_p:
            reshaped[equation.outvars[0]] = equation.invars[0]
        elif equation.primitive is primitives.broadcast_in_dim_p:
            source = _before_broadcast(equation, reshaped)
            if source is not None:
                small[equation.outvars[0]] = source
        elif str(equation.primitive) in _ELEMENTWISE and len(equation.invars) == 2:
            new = _with_small_operands(equation, small)
            found |= new is not equation
            equation = new
        equations.append(equation)
    return _live(parts._replace(eqns=equations)) if found else parts


def _before_broadcast(equation: Any, reshaped: dict[Any, Any]) -> Any:
    """The operand of a broadcast that lowering puts before elementwise operations: of a scalar, or along dimensions of one.

    HLO broadcasts no dimensions of one, so they are dropped before.
    """
    (atom, *sizes), params = equation.invars, equation.params
    shape, dimensions = params["shape"], params["broadcast_dimensions"]
    if sizes or params.get("sharding") is not None:
        return None
    before = atom.aval.shape
    if not before or (dimensions == tuple(range(len(shape))) and before != shape):
        return atom
    whole = reshaped.get(atom) if type(atom) is Var else None
    if whole is None or hasattr(whole, "val"):
        return None
    with_ones = [1] * len(shape)
    for at, size in zip(dimensions, before, strict=True):
        with_ones[at] = size
    return whole if whole.aval.shape == tuple(with_ones) else None


def _with_small_operands(equation: Any, small: dict[Any, Any]) -> Any:
    (result,) = equation.outvars
    shape = result.aval.shape
    atoms = [small.get(a, a) if type(a) is Var else a for a in equation.invars]
    if all(new is old for new, old in zip(atoms, equation.invars, strict=True)):
        return equation
    if np.broadcast_shapes(*(a.aval.shape for a in atoms)) != shape:
        atoms[0] = equation.invars[0]
        if atoms[1] is equation.invars[1]:
            return equation
    return equation.replace(invars=atoms)


# --- powers


def _powers(parts: JaxprParts) -> JaxprParts:
    """Makes powers of chains of products, in the order in which JAX lowers a power to products."""
    powers: dict[Any, tuple[Any, int]] = {}
    products: dict[Any, Any] = {}
    for equation in parts.eqns:
        if equation.primitive is primitives.mul_p:
            x, y = equation.invars
            power = _power(x, y, powers) if type(x) is Var and type(y) is Var else None
            if power is not None:
                powers[equation.outvars[0]] = power
                products[equation.outvars[0]] = equation
    if not powers:
        return parts
    uses = collections.Counter(
        a for atoms in (*(e.invars for e in parts.eqns), parts.outvars) for a in atoms if type(a) is Var
    )
    makers = {v: str(e.primitive) for e in parts.eqns for v in e.outvars}
    made: dict[Any, Any] = {}
    inside: set[Any] = set()
    for result in reversed(products):
        base, exponent = powers[result]
        if exponent < 2 or result in inside or (exponent == 2 and not _is_kept_by_nobody(base, uses, makers)):
            continue
        chain, pending = {result}, [result]
        while pending:
            below = {a for a in products[pending.pop()].invars if a in products and a is not base} - chain
            chain |= below
            pending += below
        own = collections.Counter(a for v in chain for a in products[v].invars)
        if all(uses[v] == own[v] for v in chain if v is not result):
            inside |= chain
            made[result] = products[result].replace(
                primitive=primitives.integer_pow_p, invars=[base], params={"y": exponent}
            )
    equations = [made.get(e.outvars[0], e) if e.outvars else e for e in parts.eqns]
    return _live(parts._replace(eqns=equations)) if made else parts


_KEEPS_NOTHING = frozenset(
    [
        "add",
        "broadcast_in_dim",
        "convert_element_type",
        "dot_general",
        "neg",
        "reduce_sum",
        "reshape",
        "sub",
        "transpose",
    ]
)


def _is_kept_by_nobody(base: Any, uses: Mapping[Any, int], makers: Mapping[Any, str]) -> bool:
    """Whether the square of a value costs less as a power: that keeps twice the value, where a product keeps the value itself.

    If somebody else keeps that for the way back, the product keeps nothing more.
    """
    return uses[base] == 2 and makers.get(base, "add") in _KEEPS_NOTHING


def _power(x: Any, y: Any, known: dict[Any, tuple[Any, Any]]) -> tuple[Any, Any] | None:
    """Base and exponent of a product, if a power is lowered to it: square and multiply, from the lowest bit.

    A cube is lowered to `(x * x) * x`; `x * (x * x)` is only part of a longer power, so its exponent is `_PART`.
    """
    (base, i), (other, j) = known.get(x, (x, 1)), known.get(y, (y, 1))
    if x is y:
        return (base, 2 * i) if i != _PART and i & (i - 1) == 0 else (x, 2)
    if i == 2 and y is base:
        return base, 3
    # The last factor is the highest bit.
    if base is not other or j == _PART or j & (j - 1) or i == 3:
        return None
    if (i, j) == (1, 2):
        return base, _PART
    i = 3 if i == _PART else i
    return (base, i + j) if i < j else None


_PART = -3


# --- slices that share out an array


def _splits(parts: JaxprParts) -> JaxprParts:
    slices: dict[Any, list[int]] = {}
    for i, equation in enumerate(parts.eqns):
        if equation.primitive is primitives.slice_p and type(equation.invars[0]) is Var:
            slices.setdefault(equation.invars[0], []).append(i)
    equations: list[Any] = list(parts.eqns)
    found = False
    for array, places in slices.items():
        pieces = _pieces(array, [parts.eqns[i] for i in places])
        if pieces is None:
            continue
        found = True
        axis, variables = pieces
        sizes = [v.aval.shape[axis] for v in variables]
        example = _traced(functools.partial(lax.split, sizes=sizes, axis=axis), array.aval.shape, array.aval.dtype)
        for i in places:
            equations[i] = None
        first = parts.eqns[places[0]]
        equations[places[0]] = first.replace(
            primitive=example.primitive, invars=[array], outvars=variables, params=example.params
        )
    return parts._replace(eqns=[e for e in equations if e is not None]) if found else parts


def _pieces(array: Any, slices: Sequence[Any]) -> tuple[int, list[Any]] | None:
    """The axis along which slices share out an array, and the pieces, new ones where nobody reads them; None if they do not."""
    shape = array.aval.shape
    if len(slices) < 2 or any(s.params["strides"] not in (None, (1,) * len(shape)) for s in slices):
        return None
    moving = {i for s in slices for i, start in enumerate(s.params["start_indices"]) if start}
    if len(moving) != 1:
        return None
    (axis,) = moving
    end, pieces = 0, []

    def skip(to: int) -> None:
        if to > end:
            pieces.append(Var(shaped_array((*shape[:axis], to - end, *shape[axis + 1 :]), array.aval.dtype)))

    for s in sorted(slices, key=lambda s: s.params["start_indices"]):
        starts, limits = s.params["start_indices"], s.params["limit_indices"]
        if starts[axis] < end or any(n != limits[i] for i, n in enumerate(shape) if i != axis):
            return None
        skip(starts[axis])
        end = limits[axis]
        pieces.append(s.outvars[0])
    skip(shape[axis])
    return axis, pieces


# --- gradients that stop


def _stop(parts: JaxprParts) -> JaxprParts:
    sources = find_cancelling_maxima(parts)
    if not sources:
        return parts
    stop = _traced(lax.stop_gradient, (), np.float32)
    renamed: dict[Any, Any] = {}
    equations = []
    for equation in parts.eqns:
        atoms = [renamed.get(a, a) if type(a) is Var else a for a in equation.invars]
        equations.append(equation.replace(invars=atoms))
        for v in equation.outvars:
            if v in sources:
                renamed[v] = stopped = Var(v.aval)
                equations.append(
                    equation.replace(
                        primitive=stop.primitive, invars=[v], outvars=[stopped], params=stop.params, effects=frozenset()
                    )
                )
    return parts._replace(eqns=equations)
