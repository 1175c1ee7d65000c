"""Control flow: `while`, `if`, `case`, `scan`.

Loops and choices bind JAX's primitives themselves, with the values that their regions use from around as constants, so that
they lower again to the very operation; `lax.cond` and `lax.switch` would add a comparison or a clamp.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import Array, lax
from jax.custom_derivatives import SymbolicZero
from jax.interpreters import batching

from unlower._jax_compat import (
    JaxprParts,
    Var,
    closed_jaxpr,
    eval_closed_jaxpr,
    mlir,
    new_primitive,
    open_closed_jaxpr,
    primitives,
)
from unlower.ir.attributes import Int, IntArray
from unlower.ir.module import Op
from unlower.ir.types import TensorType, element_of_dtype
from unlower.ops.bounded_loop import forward_only, run_bounded
from unlower.ops.loop_scan import run_as_scan
from unlower.ops.reemit import (
    Call,
    batching_rule,
    equivalent,
    jvp_of_moving,
    jvp_rule,
    none_for_zero,
    reemit,
    transpose_rule,
    transpose_through,
    types_of,
)
from unlower.ops.restore import restore
from unlower.ops.rule import Subprogram, op_rule

__all__: list[str] = []


@op_rule("stablehlo.while")
def while_(op: Op, *operands: Array, cond: Subprogram, body: Subprogram) -> tuple[Array, ...]:
    """Runs `body` on the carry while `cond` holds.

    Spec: `while`. `raising/loops.py` makes `raised.counted_while` and `raised.uncounted_while` of it, which see to derivatives.
    """
    loop = _While(cond, body, operands)
    return loop.run(*loop.inputs)


@op_rule("raised.counted_while")
def counted_while(
    op: Op, *operands: Array, cond: Subprogram, body: Subprogram, trip_count: Int, starts: Mapping[str, Int]
) -> tuple[Array, ...]:
    """Runs `body` on the carry, `trip_count` times, which is as often as `cond` holds.

    Computes with the very `while`, and differentiates as a scan of the body, so it has a reverse mode.
    """

    def differentiate(loop: _While, values: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        # Tables of more iterations would cost more than they save.
        known = {int(slot): int(start) for slot, start in starts.items()} if trip_count <= _MOST_TABLED else {}

        def as_scan(*values: Any) -> tuple[Any, ...]:
            _, of_body, slots = loop.split(values)
            return run_as_scan(loop.body, int(trip_count), known, of_body, slots)

        return jvp_of_moving(as_scan, values, tangents)

    return _run_with_rule(op, operands, cond, body, differentiate)


@op_rule("raised.uncounted_while")
def uncounted_while(
    op: Op,
    *operands: Array,
    cond: Subprogram,
    body: Subprogram,
    loop: str,
    place: str,
    max_iterations: int,
) -> tuple[Array, ...]:
    """Runs `body` on the carry while `cond` holds.

    Computes with the very `while`. Forward mode goes through the loop; reverse mode raises an error that names it, unless
    `max_iterations` bounds it: then tangents go through a nest of that many steps (`bounded_loop.py`).
    """

    def differentiate(while_: _While, values: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        if not max_iterations:
            results, out = jvp_of_moving(while_.run, values, tangents)
            return results, forward_only(loop, place, out)

        def bounded(*values: Any) -> tuple[Any, ...]:
            of_cond, of_body, slots = while_.split(values)
            slots, runs_on = run_bounded(
                while_.cond, restore(while_.body), of_cond, of_body, int(max_iterations), slots
            )
            return (*slots, runs_on)

        # The loop itself gives the values, which no bound can change.
        results, (*out, _) = jvp_of_moving(bounded, values, tangents)
        return while_.with_rule(*values), tuple(_nan_where(results[-1], tangent) for tangent in out)

    return _run_with_rule(op, operands, cond, body, differentiate)


def _nan_where(pred: Array, tangent: Any) -> Any:
    if tangent.dtype == jax.dtypes.float0:
        return tangent
    number = lax.select(pred, np.asarray(np.nan, tangent.dtype), np.asarray(1, tangent.dtype))
    return lax.mul(tangent, lax.broadcast(number, tangent.shape))


_MOST_TABLED = 1 << 22
"""Loops of more iterations carry their counters."""


class _While:
    """A loop whose inputs are what its condition captures, what its body captures, and its slots."""

    def __init__(self, cond: Subprogram, body: Subprogram, operands: Sequence[Any]):
        self.cond, self.body = cond.jaxpr(*operands), body.jaxpr(*operands)
        # The captures are known once the Jaxprs are made.
        self._of_cond, self._of_body = len(cond.captures), len(body.captures)
        self.inputs = (*cond.captures, *body.captures, *operands)
        self.with_rule: Any = self.run

    def split(self, inputs: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
        end = self._of_cond + self._of_body
        return inputs[: self._of_cond], inputs[self._of_cond : end], inputs[end:]

    def run(self, *inputs: Any) -> tuple[Any, ...]:
        found = primitives.while_p.bind(
            *inputs,
            cond_jaxpr=self.cond,
            body_jaxpr=self.body,
            cond_nconsts=self._of_cond,
            body_nconsts=self._of_body,
        )
        return tuple(found)


def _run_with_rule(
    op: Op,
    operands: Sequence[Any],
    cond: Subprogram,
    body: Subprogram,
    differentiate: Callable[[_While, Sequence[Any], Sequence[Any]], tuple[Any, Any]],
) -> tuple[Any, ...]:
    loop = _While(cond, body, operands)
    # Rules of derivatives hold no effects.
    if not (loop.cond.effects or loop.body.effects) and any(
        jax.numpy.issubdtype(x.dtype, np.inexact) for x in operands
    ):
        loop.with_rule = jax.custom_jvp(loop.run)

        def rule(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
            moving = [None if isinstance(tangent, SymbolicZero) else tangent for tangent in tangents]
            return differentiate(loop, primals, moving)

        loop.with_rule.defjvp(rule, symbolic_zeros=True)
    return tuple(loop.with_rule(*loop.inputs))


# --- choices


@op_rule("stablehlo.case")
def case(op: Op, index: Array, *, branches: tuple[Subprogram, ...]) -> tuple[Array, ...]:
    """Runs the branch that `index` chooses; the last one where it is out of range.

    Spec: `case`.
    """
    if len(branches) == 1:
        return branches[0]()
    jaxprs = [branch.jaxpr() for branch in branches]
    return _choose(index, jaxprs, [branch.captures for branch in branches])


@op_rule("stablehlo.if")
def if_(op: Op, pred: Array, *, true_branch: Subprogram, false_branch: Subprogram) -> tuple[Array, ...]:
    """Runs one of two branches.

    Spec: `if`. JAX has one primitive for `if` and `case`, which takes an integer, and XLA compiles the two differently: so the
    operation is re-emitted, and becomes JAX's primitive when it is transformed.
    """
    branches = (true_branch, false_branch)
    jaxprs = [branch.jaxpr() for branch in branches]
    captures = [branch.captures for branch in branches]
    if any(jaxpr.effects for jaxpr in jaxprs):
        # Effects order equations, which only JAX's own primitive passes on.
        return _choose(_as_index(pred), jaxprs[::-1], captures[::-1])
    types = [TensorType(v.aval.shape, element_of_dtype(v.aval.dtype)) for v in open_closed_jaxpr(jaxprs[0]).outvars]
    return reemit(op.name, (pred,), types, op.attributes, jaxprs, captures)


def _as_index(pred: Array) -> Array:
    return lax.convert_element_type(pred, np.dtype(np.int32))


def _if_as_case(call: Call, pred: Array, *captured: Any) -> tuple[Any, ...]:
    split = call.captures[0]
    regions = [restore(region) for region in call.regions]
    return _choose(_as_index(pred), regions[::-1], (captured[split:], captured[:split]))


@jvp_rule("stablehlo.if")
def _if_jvp(call: Call, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    # One choice for results and tangents together.
    results, out = jvp_of_moving(lambda *xs: _if_as_case(call, *xs), primals, tangents)
    return results, none_for_zero(out)


@batching_rule("stablehlo.if")
def _if_batch(call: Call, size: int, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
    del size
    results = jax.vmap(lambda *xs: tuple(_if_as_case(call, *xs)), in_axes=tuple(dims))(*operands)
    return results, (0,) * len(results)


transpose_rule("stablehlo.if")(transpose_through(_if_as_case))


def _choose(index: Array, jaxprs: Sequence[Any], captures: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
    # All branches of the primitive take the same inputs: every branch's captures, each once.
    positions: dict[int, int] = {}
    inputs: list[Any] = []
    owned: list[list[int]] = []
    for values in captures:
        own = []
        for value in values:
            position = positions.setdefault(id(value), len(inputs))
            if position == len(inputs):
                inputs.append(value)
            own.append(position)
        owned.append(own)
    avals: list[Any] = [None] * len(inputs)
    for jaxpr, own in zip(jaxprs, owned, strict=True):
        for variable, position in zip(open_closed_jaxpr(jaxpr).invars, own, strict=True):
            avals[position] = variable.aval
    widened = tuple(_with_inputs(jaxpr, own, avals) for jaxpr, own in zip(jaxprs, owned, strict=True))
    (index,) = branch_index_p.bind(index, branches=len(widened))
    return tuple(primitives.cond_p.bind(index, *inputs, branches=widened))


def _with_inputs(jaxpr: Any, own: Sequence[int], avals: Sequence[Any]) -> Any:
    """Returns the closed Jaxpr with inputs of all `avals`, of which it reads those at the positions `own`."""
    parts = open_closed_jaxpr(jaxpr)
    invars = [Var(aval) for aval in avals]
    for variable, position in zip(parts.invars, own, strict=True):
        invars[position] = variable
    return closed_jaxpr(
        JaxprParts(invars, parts.outvars, parts.eqns, parts.constvars, parts.consts), "branch", jaxpr.effects
    )


def _branch_index_batch(operands: Sequence[Any], dims: Sequence[Any], *, branches: int) -> tuple[Any, Any]:
    (index,) = operands
    last = lax.full_like(index, branches - 1)
    inside = lax.bitwise_and(lax.ge(index, lax.full_like(index, 0)), lax.le(index, last))
    return (lax.select(inside, index, last),), dims


# Lowers to its operand: XLA itself takes the last branch where the index is out of range. A batch of indices makes JAX select
# among the branches' results, where the index must be in range.
branch_index_p = new_primitive("branch_index")
branch_index_p.def_abstract_eval(lambda index, branches: (index,))
mlir.register_lowering(branch_index_p, lambda context, index, branches: (index,))
batching.primitive_batchers[branch_index_p] = _branch_index_batch


# --- scan


@op_rule("mhlo.scan", "chlo.scan")
def scan(
    op: Op,
    *operands: Array,
    body: Subprogram,
    dimension: Int,
    is_reverse: bool = False,
    is_associative: Any = None,
    operandSegmentSizes: IntArray,  # noqa: N803 (MLIR's spelling)
    resultSegmentSizes: IntArray | None = None,  # noqa: N803
) -> tuple[Array, ...]:
    """Carries values through `body` along a dimension, and stacks what it puts out.

    Source: XLA's `Scan`: operands are inputs, then carries; `body` takes a slice of each input and the carries, and returns a
    slice of each output and the carries. `is_associative` permits another order. Re-emitted, since XLA's loop rounds
    otherwise than JAX's, which it becomes when it is transformed.
    """
    del is_reverse, is_associative, resultSegmentSizes
    axis, inputs = int(dimension), operands[: int(operandSegmentSizes[0])]
    carries = operands[len(inputs) :]
    closed = body.jaxpr(*[lax.index_in_dim(x, 0, axis, keepdims=False) for x in inputs], *carries)
    shapes = [variable.aval.shape for variable in open_closed_jaxpr(closed).outvars]
    for i in range(len(shapes) - len(carries)):
        shapes[i] = (*shapes[i][:axis], inputs[0].shape[axis], *shapes[i][axis:])
    return reemit(op.name, operands, types_of(op, *shapes), op.attributes, [closed], [body.captures])


@equivalent("mhlo.scan", "chlo.scan", batches=True)
def _scan_in_lax(call: Call, *operands: Array) -> tuple[Array, ...]:
    axis, count = int(call.attributes["dimension"]), int(call.attributes["operandSegmentSizes"][0])
    end = len(operands) - call.captures[0]
    inputs, carries, captures = operands[:count], operands[count:end], operands[end:]

    def step(carry: Any, slices: Any) -> tuple[Any, Any]:
        results = eval_closed_jaxpr(call.regions[0], *captures, *slices, *carry)
        split = len(results) - len(carries)
        return tuple(results[split:]), tuple(results[:split])

    reverse = bool(call.attributes.get("is_reverse", False))
    carry, outputs = lax.scan(step, tuple(carries), tuple(_to_front(x, axis) for x in inputs), reverse=reverse)
    return (*(_from_front(x, axis) for x in outputs), *carry)


def _to_front(x: Array, axis: int) -> Array:
    return lax.transpose(x, (axis, *(i for i in range(x.ndim) if i != axis))) if axis else x


def _from_front(x: Array, axis: int) -> Array:
    return lax.transpose(x, (*range(1, axis + 1), 0, *range(axis + 1, x.ndim))) if axis else x
