"""What a function computes, as one number: equal for two functions only if they compute the same bits.

Values are numbered by what they are made of, so the order of operations, their names and dead code have no say; calls are seen
through. Rewrites that leave every bit as it is are undone: reshapes and conversions to the type that is there already,
broadcasts of constants. Operands are never put in order: the larger of two equal zeros depends on it.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from unlower.ir.attributes import DenseElements, ResultAccuracy
from unlower.ir.module import CALLS, CONSTANTS, CUSTOM_CALLS, EFFECTFUL, Module, Op, Region, Value
from unlower.ir.printer import format_attribute
from unlower.ir.types import TensorType
from unlower.raising.loops import COUNTED, KNOWLEDGE, UNCOUNTED

__all__ = ["canonical_form"]

_MOST_OPERATIONS = 5000
"""Larger functions have no form: no function of a library is so large, and calls are counted as often as they are made."""

Number = bytes


def canonical_form(module: Module, name: str) -> tuple[Number, ...] | None:
    """Returns the numbers of a function's results; None for one that has effects or is very large.

    Args:
      module: where the function is, and those that it calls.
      name: the function's name.

    Example:
      >>> import jax, unlower
      >>> inner = jax.jit(lambda z: z + 1.0)
      >>> first = unlower.load(jax.jit(lambda x: (x + 1.0) * 2.0).lower(1.0)).module
      >>> second = unlower.load(jax.jit(lambda y: inner(y) * 2.0).lower(1.0)).module
      >>> canonical_form(first, first.entry) == canonical_form(second, second.entry)
      True
    """
    body = module.functions[name].body
    try:
        return _Numbering(module).region(body, {}, ("argument",))
    except _NoForm:
        return None


class _NoForm(Exception):  # noqa: N818 (no error, a way out)
    pass


class _Numbering:
    def __init__(self, module: Module):
        self._functions = module.functions
        self._seen = 0
        self._depth = 0
        self._splats: dict[Number, np.ndarray] = {}
        self._reshaped: dict[Number, tuple[Number, TensorType]] = {}

    def region(self, region: Region, around: Mapping[Value, Number], arguments: tuple[Any, ...]) -> tuple[Number, ...]:
        """Numbers a region whose arguments are new values, told from those of other regions by `arguments`."""
        numbers = dict(around)
        for i, value in enumerate(region.arguments):
            numbers[value] = _digest((*arguments, i, str(value.type)))
        return self._body(region, numbers)

    def _body(self, region: Region, numbers: dict[Value, Number]) -> tuple[Number, ...]:
        for op in region.ops:
            self._seen += 1
            if self._seen > _MOST_OPERATIONS or op.name in EFFECTFUL or op.attributes.get("has_side_effect"):
                raise _NoForm
            operands = [numbers[value] for value in op.operands]
            if op.name in CALLS:
                callee = self._functions[str(op.attributes["callee"])].body
                results: Sequence[Number] = self._body(callee, dict(zip(callee.arguments, operands, strict=True)))
            elif op.name in CONSTANTS:
                results = (self._constant(op.attributes["value"]),)
            else:
                same = self._same(op, operands)
                results = self._operation(op, operands, numbers) if same is None else (same,)
            numbers.update(zip(op.results, results, strict=True))
        return tuple(numbers[value] for value in region.results)

    def _operation(self, op: Op, operands: list[Number], numbers: Mapping[Value, Number]) -> list[Number]:
        if op.name in CUSTOM_CALLS and op.attributes.get("called_computations"):
            raise _NoForm
        dialect = op.name.partition(".")[0]
        attributes = tuple(
            (name, _digest(value) if isinstance(value, DenseElements) else format_attribute(value, dialect))
            for name, value in sorted(op.attributes.items())
            if "." not in name and name not in KNOWLEDGE and not _is_default(name, value)
        )
        self._depth += 1
        regions = tuple(self.region(region, numbers, ("inner", self._depth)) for region in op.regions)
        self._depth -= 1
        types = tuple(str(value.type) for value in op.results)
        # What is known of a loop has no bearing on what it computes.
        name = "stablehlo.while" if op.name in (COUNTED, UNCOUNTED) else op.name
        number = _digest((name, attributes, tuple(operands), regions, types))
        return [_digest((number, i)) if len(types) > 1 else number for i in range(len(types))]

    def _constant(self, value: DenseElements) -> Number:
        number = _digest(value)
        if value.array.shape == ():
            self._splats[number] = value.array
        return number

    def _same(self, op: Op, operands: list[Number]) -> Number | None:
        """The number of a result that is only another view of the operand, or a constant again; None of any other."""
        if len(operands) != 1 or len(op.results) != 1:
            return None
        before, after = op.operands[0].type, op.results[0].type
        if not isinstance(before, TensorType) or not isinstance(after, TensorType):
            return None
        kept = before == after
        if op.name == "stablehlo.broadcast_in_dim":
            kept = kept and tuple(op.attributes["broadcast_dimensions"]) == tuple(range(len(after.shape)))
        elif op.name not in ("stablehlo.reshape", "stablehlo.convert"):
            return None
        if kept:
            return operands[0]
        splat = self._splats.get(operands[0])
        if splat is not None:
            if op.name == "stablehlo.convert":
                converted = splat.astype(after.dtype)
                # Only where nothing is rounded, and so nothing can be rounded otherwise.
                if not np.array_equal(converted.astype(splat.dtype), splat):
                    return None
                splat = converted
            return self._constant(DenseElements(after, splat))
        return self._moved(op, operands[0], before, after)

    def _moved(self, op: Op, operand: Number, before: TensorType, after: TensorType) -> Number | None:
        """A broadcast that only adds dimensions of size 1 is a reshape."""
        if op.name == "stablehlo.broadcast_in_dim":
            dimensions = list(op.attributes["broadcast_dimensions"])
            static = before.is_static and after.is_static
            if not static or dimensions != sorted(dimensions) or before.size != after.size:
                return None
        elif op.name != "stablehlo.reshape":
            return None
        first, type_ = self._reshaped.get(operand, (operand, before))
        if type_ == after:
            return first
        number = _digest(("reshape", first, str(after)))
        self._reshaped[number] = first, type_
        return number


_ONES = frozenset(["base_dilations", "lhs_dilation", "rhs_dilation", "window_dilations", "window_strides"])


def _is_default(name: str, value: Any) -> bool:
    """Whether an attribute says what holds where it is missing: some formats write these, others do not."""
    if name in _ONES:
        return all(size == 1 for size in value)
    if name == "window_reversal":
        return not any(np.ravel(value.expanded() if isinstance(value, DenseElements) else value))
    if name == "padding" and isinstance(value, DenseElements):
        return not value.array.any()
    if name == "precision_config":
        return all(str(item) == "DEFAULT" for item in value)
    if name == "result_accuracy":
        return isinstance(value, ResultAccuracy) and str(value.mode) == "DEFAULT"
    return value is False or (name == "compare_type" and str(value) == "NOTYPE")


def _digest(key: Any) -> Number:
    if isinstance(key, DenseElements):
        key = ("constant", str(key.type), key.is_splat, key.elided, key.array.tobytes())
    return hashlib.blake2b(repr(key).encode("utf-8", "surrogatepass"), digest_size=16).digest()
