"""Runs a module rule by rule under the caller's trace, for programs with sizes unknown before the call.

Sizes are known by then: every array has a shape. What depends on shapes and constants alone (`get_dimension_size`, the
arithmetic on it, the helper functions that do it) is computed on the spot and stays a NumPy array, so the operations that
take shapes as operands (`dynamic_broadcast_in_dim`, `dynamic_reshape`, ...) find concrete ones.
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from unlower._jax_compat import Tracer
from unlower.errors import RuleError, UnlowerError
from unlower.evaluate.splice import called_functions, shape_and_dtype
from unlower.evaluate.support import find_rule
from unlower.ir.module import CALLS, CONSTANTS, EFFECTFUL, Function, Module, Op, Region, Value, walk
from unlower.ir.printer import print_place
from unlower.ops.rule import apply_rule, is_specialized
from unlower.raising.counters import Counters, is_counter
from unlower.raising.loops import UNCOUNTED, as_counted

__all__ = ["evaluate_directly"]

_SHAPE_ELEMENTS = 1024
"""Arrays up to this many elements are computed on the spot when everything they depend on is known."""


def evaluate_directly(
    module: Module, rules: Mapping[str, Callable[..., Any]], arguments: Sequence[Any]
) -> tuple[Any, ...]:
    """Runs the entry function on flat arrays or tracers, and returns its flat results.

    Raises:
      RuleError: a rule failed on these shapes; the message draws the operation.
    """
    evaluator = _Evaluator(module, rules)
    with jax.enable_x64(True):
        return tuple(evaluator.function(module.main, arguments))


def _is_known(value: Any) -> bool:
    return isinstance(value, np.ndarray | np.generic)


class _RegionProgram:
    """A region over an environment; see `unlower.ops.rule.Subprogram`. Captures stay in the environment."""

    captures: Sequence[Any] = ()

    def __init__(self, evaluator: "_Evaluator", region: Region, environment: Mapping[Value, Any]):
        self._evaluator, self.region, self._environment = evaluator, region, environment

    def __call__(self, *arguments: Any) -> tuple[Any, ...]:
        return tuple(self._evaluator.region(self.region, dict(self._environment), arguments))

    def jaxpr(self, *arguments: Any) -> Any:
        """Traces the region on the types of `arguments`, or on its own where they are all known."""
        if not arguments:
            arguments = tuple(jax.ShapeDtypeStruct(*shape_and_dtype(value)) for value in self.region.arguments)
        structs = [jax.ShapeDtypeStruct(np.shape(x), x.dtype) for x in arguments]
        # Traced values that the region closes over become inputs, so that the Jaxpr is closed.
        used = [v for op in walk(self.region) for v in op.operands] + list(self.region.results)
        outer = list(dict.fromkeys(v for v in used if isinstance(self._environment.get(v), Tracer)))
        self.captures = tuple(self._environment[v] for v in outer)

        def run(*values: Any) -> tuple[Any, ...]:
            environment = {**self._environment, **dict(zip(outer, values, strict=False))}
            return tuple(self._evaluator.region(self.region, environment, values[len(outer) :]))

        return jax.make_jaxpr(run)(*[jax.ShapeDtypeStruct(c.shape, c.dtype) for c in self.captures], *structs)


class _Evaluator:
    def __init__(self, module: Module, rules: Mapping[str, Callable[..., Any]]):
        self._module, self._rules = module, rules

    @functools.cached_property
    def _counters(self) -> Counters:
        return Counters(self._module)

    def function(self, function: Function, arguments: Sequence[Any]) -> list[Any]:
        return self.region(function.body, {}, arguments)

    def region(self, region: Region, environment: dict[Value, Any], arguments: Sequence[Any]) -> list[Any]:
        environment.update(zip(region.arguments, arguments, strict=True))
        for op in region.ops:
            if op.name in CONSTANTS:
                environment[op.results[0]] = np.array(op.attributes["value"].expanded())
                continue
            operands = [environment[value] for value in op.operands]
            results = self._call(op, operands) if op.name in CALLS else self._apply(op, operands, environment)
            environment.update(zip(op.results, results, strict=True))
        return [environment[value] for value in region.results]

    def _call(self, op: Op, operands: Sequence[Any]) -> Sequence[Any]:
        callee = self._module.functions[str(op.attributes["callee"])]
        if all(map(_is_known, operands)):
            return self.function(callee, operands)
        # Known operands (sizes, most often) stay known inside; the others are the named function's arguments.
        traced = [i for i, value in enumerate(operands) if not _is_known(value)]

        def run(*values: Any) -> tuple[Any, ...]:
            full = list(operands)
            for i, value in zip(traced, values, strict=True):
                full[i] = value
            return tuple(self.function(callee, full))

        run.__name__ = run.__qualname__ = callee.name
        return jax.jit(run)(*[operands[i] for i in traced])

    def _counted(self, op: Op, operands: Sequence[Any], environment: Mapping[Value, Any]) -> Op:
        """A loop that sizes count is counted here, where they are known."""

        def known(pairs: Iterable[tuple[Any, Value, Any]]) -> dict[Any, np.ndarray]:
            return {k: np.asarray(x).reshape(1) for k, value, x in pairs if _is_known(x) and is_counter(value)}

        first = known(zip(range(len(operands)), op.operands, operands, strict=True))
        count = self._counters.count(op, first, known((value, value, x) for value, x in environment.items()))
        return op if isinstance(count, str) else as_counted(op, count, first)

    def _apply(self, op: Op, operands: Sequence[Any], environment: Mapping[Value, Any]) -> Sequence[Any]:
        if op.name == UNCOUNTED:
            op = self._counted(op, operands, environment)
        rule = find_rule(op, self._rules)
        assert rule is not None, op.name
        subprograms: list[Any] = [_RegionProgram(self, region, environment) for region in op.regions]
        subprograms += [_RegionProgram(self, function.body, {}) for function in called_functions(op, self._module)]
        known = all(map(_is_known, operands)) and op.name not in EFFECTFUL and bool(op.results)
        try:
            if known and self._is_small(op, operands):
                with jax.ensure_compile_time_eval():
                    results = apply_rule(rule, op, operands, subprograms)
                return [np.asarray(result) for result in results]
            if not is_specialized(rule):
                operands = [jax.numpy.asarray(x) if _is_known(x) else x for x in operands]
            return apply_rule(rule, op, operands, subprograms)
        except UnlowerError:
            raise
        except Exception as error:
            raise RuleError(f"the rule of {op.name} failed: {error}", where=print_place(op)) from error

    def _is_small(self, op: Op, operands: Sequence[Any]) -> bool:
        if any(np.size(operand) > _SHAPE_ELEMENTS for operand in operands):
            return False
        sizes = [getattr(value.type, "shape", ()) for value in op.results]
        return all(None not in s and int(np.prod(s)) <= _SHAPE_ELEMENTS for s in sizes)
