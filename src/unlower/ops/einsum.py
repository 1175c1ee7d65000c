"""The Einstein summations of older StableHLO: their meaning, as one product and what it takes around it."""

from collections.abc import Sequence
from typing import cast

from jax import Array, lax

from unlower.errors import RuleError
from unlower.ir.module import Op
from unlower.ops.linear_algebra import precisions
from unlower.ops.rule import op_rule

Label = str | int
"""What names a dimension: a letter, or an integer for one that an ellipsis stands for."""


@op_rule("stablehlo.einsum")
def einsum(op: Op, lhs: Array, rhs: Array, *, einsum_config: str, precision_config: Sequence[str] = ()) -> Array:
    """Multiplies, sums over the labels that the result lacks, and orders the dimensions as it says.

    Dialect: `einsum` (superseded by `dot_general`). An ellipsis stands for dimensions that line up from the last.
    """
    texts, output = _split(op, einsum_config, 2)
    wanted = _labels(op, output, _ellipsis_rank(texts, (lhs, rhs)))
    left, right = (_labels(op, text, x.ndim, whole=True) for text, x in zip(texts, (lhs, rhs), strict=True))
    lhs, left = _summed(*_diagonals(lhs, left), keep={*wanted, *right})
    rhs, right = _summed(*_diagonals(rhs, right), keep={*wanted, *left})
    shared = [label for label in left if label in right]
    batch = [label for label in shared if label in wanted]
    contracting = [label for label in shared if label not in wanted]
    numbers = tuple(tuple(tuple(map(side.index, which)) for side in (left, right)) for which in (contracting, batch))
    numbers = cast(tuple[tuple[Sequence[int], Sequence[int]], tuple[Sequence[int], Sequence[int]]], numbers)
    precision = cast(tuple[lax.Precision, lax.Precision] | None, precisions(precision_config))
    result = lax.dot_general(lhs, rhs, numbers, precision=precision, preferred_element_type=op.type.dtype)
    made = [
        *batch,
        *(label for label in left if label not in shared),
        *(label for label in right if label not in shared),
    ]
    return _ordered(op, result, made, wanted)


@op_rule("stablehlo.unary_einsum")
def unary_einsum(op: Op, operand: Array, *, einsum_config: str) -> Array:
    """Takes diagonals, sums, and orders dimensions. Dialect: `unary_einsum`; as in `einsum`."""
    texts, output = _split(op, einsum_config, 1)
    wanted = _labels(op, output, _ellipsis_rank(texts, (operand,)))
    result, made = _summed(*_diagonals(operand, _labels(op, texts[0], operand.ndim, whole=True)), keep=set(wanted))
    return _ordered(op, result, made, wanted)


def _split(op: Op, config: str, count: int) -> tuple[list[str], str]:
    inputs, arrow, output = config.replace(" ", "").partition("->")
    texts = inputs.split(",")
    if not arrow or len(texts) != count:
        raise RuleError(f"{op.name} has the equation {config!r}, not one of {count} operands and a result")
    return texts, output


def _ellipsis_rank(texts: Sequence[str], operands: Sequence[Array]) -> int:
    """How many dimensions an ellipsis stands for where it stands for most."""
    ranks = [x.ndim - len(text) + 3 for text, x in zip(texts, operands, strict=True) if "..." in text]
    return max(ranks, default=0)


def _labels(op: Op, text: str, rank: int, *, whole: bool = False) -> list[Label]:
    """The label of each dimension; `rank` is that of the ellipsis, or, for a whole operand, that of the operand."""
    before, ellipsis, after = text.partition("...")
    count = rank - len(before) - len(after) if whole else rank
    if count < 0 or (whole and count and not ellipsis):
        raise RuleError(f"{op.name} names the dimensions {text!r} of an operand of rank {rank}")
    return [*before, *(range(-count, 0) if ellipsis else ()), *after]


def _diagonals(operand: Array, labels: list[Label]) -> tuple[Array, list[Label]]:
    """Takes the diagonal over each label that stands twice."""
    for label in dict.fromkeys(labels):
        while labels.count(label) > 1:
            first = labels.index(label)
            second = labels.index(label, first + 1)
            rest = [i for i in range(operand.ndim) if i not in (first, second)]
            size = operand.shape[first]
            moved = lax.transpose(operand, [*rest, first, second])
            # Along a square read in one row, the diagonal is every (size + 1)th element.
            flat = lax.reshape(moved, (*moved.shape[:-2], size * size))
            operand = lax.slice_in_dim(flat, 0, None, size + 1, axis=flat.ndim - 1)
            labels = [*(labels[i] for i in rest), label]
    return operand, labels


def _summed(operand: Array, labels: list[Label], keep: set[Label]) -> tuple[Array, list[Label]]:
    """Sums over the labels that are not to be kept."""
    axes = [i for i, label in enumerate(labels) if label not in keep]
    return (lax.reduce_sum(operand, axes) if axes else operand), [label for label in labels if label in keep]


def _ordered(op: Op, operand: Array, made: list[Label], wanted: list[Label]) -> Array:
    if sorted(map(str, made)) != sorted(map(str, wanted)):
        raise RuleError(f"{op.name} has labels in its result that no operand has, or one twice: {wanted}")
    if made == wanted:
        return operand
    return lax.transpose(operand, [made.index(label) for label in wanted])
