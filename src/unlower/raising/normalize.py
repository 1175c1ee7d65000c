"""Takes away what converters leave and rules should not see: fusions, tuples, asynchronous pairs.

Every step preserves values, and the order of operations with effects:

- the region of a `mhlo.fusion` is put in its place;
- `stablehlo.tuple` and `get_tuple_element` disappear: a tuple-typed value becomes its leaves, so that a custom call
  with a tuple result has several results, and a function with tuple arguments has more arguments;
- `async_start` becomes what it wraps, in place (a `func.call` where that is a function); `async_update` and
  `async_done` pass its results on.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from unlower.errors import InvalidModuleError
from unlower.ir.attributes import OutputOperandAlias, Symbol
from unlower.ir.module import Function, Location, Module, Op, Region, Value, next_number, walk
from unlower.ir.types import TupleType, Type

__all__ = ["normalize"]

_INLINED = ("mhlo.fusion", "stablehlo.async_start")
_PASSED_ON = ("mhlo.async_update", "mhlo.async_done", "stablehlo.async_done")
_HANDLED = frozenset(
    [*_INLINED, *_PASSED_ON, "mhlo.async_start", "stablehlo.tuple", "stablehlo.get_tuple_element", "mhlo.tuple"]
)
_LEAF_BY_LEAF = frozenset(["mhlo.copy", "mhlo.domain", "mhlo.add_dependency"])

Tree = Any
"""A value, or a tuple of trees: what a tuple-typed value stands for."""


def normalize(module: Module) -> Module:
    """Rewrites `module`; returns it as it is when there is nothing to do.

    Raises:
      InvalidModuleError: a tuple index out of range, or an asynchronous operation without a start.
    """
    vocabulary = module.vocabulary
    if vocabulary.names.isdisjoint(_HANDLED) and TupleType not in map(type, vocabulary.types):
        return module
    changed = {
        name: _Rewriter(module, function).function()
        for name, function in module.functions.items()
        if _concerned(function.body)
    }
    return dataclasses.replace(module, functions={**module.functions, **changed})


def _concerned(body: Region) -> bool:
    if any(type(value.type) is TupleType for value in body.arguments):
        return True
    for op in walk(body):
        if op.name in _HANDLED:
            return True
        for value in op.results:
            if type(value.type) is TupleType:
                return True
    return False


def _leaf_types(type_: Type) -> Iterator[Type]:
    if isinstance(type_, TupleType):
        for element in type_.elements:
            yield from _leaf_types(element)
    else:
        yield type_


def _leaves(tree: Tree) -> Iterator[Value]:
    if type(tree) is tuple:
        for part in tree:
            yield from _leaves(part)
    else:
        yield tree


def _unflatten(type_: Type, leaves: Iterator[Value]) -> Tree:
    if isinstance(type_, TupleType):
        return tuple([_unflatten(element, leaves) for element in type_.elements])
    return next(leaves)


class _Rewriter:
    """Rewrites one function. `trees` holds what stands for a value that is gone."""

    def __init__(self, module: Module, function: Function):
        self._module = module
        self._function = function
        self._trees: dict[Value, Tree] = {}
        self._next_number = next_number(function.body)

    def function(self) -> Function:
        function = self._function
        inputs = [list(_leaf_types(v.type)) for v in function.body.arguments]
        outputs = [list(_leaf_types(v.type)) for v in function.body.results]
        body = self._region(function.body)
        return dataclasses.replace(
            function,
            body=body,
            argument_attributes=_repeat(function.argument_attributes, inputs),
            result_attributes=_repeat(function.result_attributes, outputs),
            argument_locations=_leaf_locations(function.argument_locations, function.body.arguments),
        )

    # --- values

    def _new(self, type_: Type) -> Value:
        number = self._next_number
        self._next_number = number + 1
        return Value(number, type_)

    def _define(self, values: Iterable[Value]) -> tuple[Value, ...]:
        """Replaces each tuple-typed value by new values for its leaves."""
        flat: list[Value] = []
        for value in values:
            if isinstance(value.type, TupleType):
                leaves = [self._new(type_) for type_ in _leaf_types(value.type)]
                self._trees[value] = _unflatten(value.type, iter(leaves))
                flat.extend(leaves)
            else:
                flat.append(value)
        return tuple(flat)

    def _tree(self, value: Value) -> Tree:
        return self._trees.get(value, value)

    def _use(self, values: Iterable[Value]) -> tuple[Value, ...]:
        return tuple([leaf for value in values for leaf in _leaves(self._tree(value))])

    def _bind(self, values: Iterable[Value], leaves: Iterable[Value], op: Op) -> None:
        """Lets `leaves` stand for `values`."""
        rest = iter(leaves)
        try:
            for value in values:
                self._trees[value] = _unflatten(value.type, rest)
        except StopIteration:
            pass
        else:
            if next(rest, None) is None:
                return
        raise self._error(op, "passes on another number of values than it declares")

    def _error(self, op: Op, what: str) -> InvalidModuleError:
        place = f", from {op.location}" if op.location else ""
        return InvalidModuleError(f"{op.name} {what}", where=f"@{self._function.name}{place}")

    # --- operations

    def _region(self, region: Region) -> Region:
        arguments = self._define(region.arguments)
        ops: list[Op] = []
        self._ops(region.ops, ops)
        return Region(arguments, tuple(ops), self._use(region.results))

    def _ops(self, ops: Iterable[Op], out: list[Op]) -> None:
        for op in ops:
            if op.name in _INLINED:
                self._inline(op, out)
            elif op.name == "mhlo.async_start":
                self._call(op, out)
            elif op.name in _PASSED_ON:
                self._pass_on(op)
            elif op.name == "stablehlo.tuple" or op.name == "mhlo.tuple":
                self._trees[op.results[0]] = tuple([self._tree(value) for value in op.operands])
            elif op.name == "stablehlo.get_tuple_element":
                tree = self._tree(op.operands[0])
                index = op.attributes.get("index", 0)
                if type(tree) is not tuple or not 0 <= index < len(tree):
                    raise self._error(op, f"takes element {index} of {op.operands[0].type}")
                self._trees[op.results[0]] = tree[index]
            elif op.name in _LEAF_BY_LEAF and isinstance(op.results[0].type, TupleType):
                self._split(op, out)
            else:
                out.append(self._rebuilt(op))

    def _rebuilt(self, op: Op) -> Op:
        operands, results = self._use(op.operands), self._define(op.results)
        regions = tuple([self._region(region) for region in op.regions]) if op.regions else ()
        if operands == op.operands and results == op.results and not regions:
            return op
        attributes = op.attributes
        if "output_operand_aliases" in attributes and len(operands) + len(results) != len(op.operands) + len(
            op.results
        ):
            aliases = tuple([flat for a in attributes["output_operand_aliases"] for flat in self._flat_aliases(op, a)])
            attributes = {**attributes, "output_operand_aliases": aliases}
        return Op(op.name, operands, results, attributes, regions, op.location)

    def _flat_aliases(self, op: Op, alias: OutputOperandAlias) -> Iterator[OutputOperandAlias]:
        """An alias between parts of tuples, as aliases between the leaves of these."""
        out = [(i, *path) for i, r in enumerate(op.results) for path in _paths(r.type)]
        wanted = alias.output_tuple_indices
        if len(op.results) == 1:
            # The indices lead into the only result, with no first index for the result itself.
            out = [path[1:] for path in out]
        operand = [(i, *path) for i, v in enumerate(op.operands) for path in _paths(v.type)]
        source = (alias.operand_index, *alias.operand_tuple_indices)
        outputs = [i for i, path in enumerate(out) if path[: len(wanted)] == wanted]
        inputs = [i for i, path in enumerate(operand) if path[: len(source)] == source]
        for output, index in zip(outputs, inputs, strict=False):
            yield OutputOperandAlias((output,) if len(out) > 1 else (), index, ())

    def _split(self, op: Op, out: list[Op]) -> None:
        """One operation for each leaf of its first operand, which are all alike to it."""
        first, *others = op.operands
        rest = self._use(others)
        results = self._define(op.results)
        for leaf, result in zip(self._use([first]), results, strict=True):
            out.append(Op(op.name, (leaf, *rest), (result,), op.attributes, (), op.location))

    def _inline(self, op: Op, out: list[Op]) -> None:
        if len(op.regions) != 1:
            raise self._error(op, "has no region")
        (region,) = op.regions
        self._bind(region.arguments, self._use(op.operands), op)
        self._ops(region.ops, out)
        results = self._use(region.results)
        if op.name == "stablehlo.async_start":
            self._trees[op.results[0]] = results
        else:
            self._bind(op.results, results, op)

    def _call(self, op: Op, out: list[Op]) -> None:
        name = op.attributes.get("called_computation")
        callee = self._module.functions.get(str(name))
        if callee is None:
            raise self._error(op, f"calls {name}, which the module does not have")
        results = tuple([self._new(type_) for v in callee.body.results for type_ in _leaf_types(v.type)])
        attributes = {"callee": Symbol(callee.name)}
        out.append(Op("func.call", self._use(op.operands), results, attributes, (), op.location))
        self._trees[op.results[0]] = results

    def _pass_on(self, op: Op) -> None:
        tree = self._trees.get(op.operands[0])
        if tree is None or len(op.operands) > 1:
            raise self._error(op, "does not continue an async_start")
        if op.name == "mhlo.async_update":
            self._trees[op.results[0]] = tree
        else:
            self._bind(op.results, _leaves(tree), op)


def _paths(type_: Type) -> Iterator[tuple[int, ...]]:
    """The indices that lead to each leaf of a type."""
    if isinstance(type_, TupleType):
        for i, element in enumerate(type_.elements):
            for path in _paths(element):
                yield (i, *path)
    else:
        yield ()


def _repeat(attributes: tuple[Mapping[str, Any], ...], leaves: list[list[Type]]) -> tuple[Mapping[str, Any], ...]:
    # An attribute of a whole tuple (a sharding, say) is none of its leaves'.
    flat: list[Mapping[str, Any]] = []
    for attribute, types in zip(attributes, leaves, strict=False):
        flat.extend([attribute] if len(types) == 1 else [{}] * len(types))
    return tuple(flat)


def _leaf_locations(locations: tuple[Location | None, ...], values: tuple[Value, ...]) -> tuple[Location | None, ...]:
    flat: list[Location | None] = []
    for location, value in zip(locations, values, strict=False):
        for path in _paths(value.type):
            name = location and location.name
            suffix = "".join(f"[{i}]" for i in path)
            flat.append(dataclasses.replace(location, name=name + suffix) if location and name and path else location)
    return tuple(flat)
