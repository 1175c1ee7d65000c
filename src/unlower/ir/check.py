"""Structural checks, run on whatever a reader returns and raising rewrites.

MLIR's own verifier has seen most modules already; this holds for those it has not (rewritten, or built by hand), and is
what the rest of the library may rely on: values are defined before use, in scope, once; calls fit their callee; the
regions of an operation take and give what its operands and results ask for; every element type is known.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from unlower.errors import InvalidModuleError
from unlower.ir.module import Function, Module, Op, Region, Value
from unlower.ir.printer import print_place
from unlower.ir.types import OpaqueType, TensorType, Type

__all__ = ["check"]


def check(module: Module) -> None:
    """Checks `module`.

    Raises:
      InvalidModuleError: the first fault, with its function, operation and source line.
    """
    if module.entry not in module.functions:
        raise InvalidModuleError(f"the entry function @{module.entry} is missing", where=f"module {module.name}")
    for name, function in module.functions.items():
        if name != function.name:
            raise InvalidModuleError(f"@{function.name} is filed under the name {name}", where=f"module {module.name}")
        _Checker(module, function).run()


class _FaultError(Exception):
    """What is wrong with the operation at hand."""


class _Checker:
    """Checks one function."""

    def __init__(self, module: Module, function: Function):
        self._functions = module.functions
        self._function = function
        self._defined: set[Value] = set()
        self._known: set[int] = set()
        self._count = -1

    def run(self) -> None:
        function = self._function
        for what, attributes, values in (
            ("argument_attributes", function.argument_attributes, function.body.arguments),
            ("argument_locations", function.argument_locations, function.body.arguments),
            ("result_attributes", function.result_attributes, function.body.results),
        ):
            if attributes and len(attributes) != len(values):
                raise InvalidModuleError(
                    f"{len(attributes)} {what} for {len(values)} values", where=f"@{function.name}"
                )
        try:
            self._region(function.body)
        except _FaultError as fault:
            raise InvalidModuleError(str(fault), where=f"@{function.name}, its arguments or results") from None

    def _region(self, region: Region) -> None:
        # The hot loop: one set look-up for each operand, one insertion for each result.
        defined, known = self._defined, self._known
        added: list[Value] = []
        self._define(region.arguments, added)
        for op in region.ops:
            self._count += 1
            index = self._count
            try:
                for value in op.operands:
                    if value not in defined:
                        raise _FaultError(f"%{value.number} is used where it is not defined")
                if op.regions:
                    for inner in op.regions:
                        self._region(inner)
                special = _CHECKS.get(op.name)
                if special is not None:
                    special(self._functions, op)
                for value in op.results:
                    if value in defined:
                        raise _FaultError(f"%{value.number} is defined twice")
                    if id(value.type) not in known:
                        self._check_type(value.type)
                    defined.add(value)
                    added.append(value)
            except _FaultError as fault:
                raise self._error(str(fault), op, index) from None
        for value in region.results:
            if value not in defined:
                raise _FaultError(f"%{value.number} is returned where it is not defined")
        defined.difference_update(added)

    def _define(self, values: Sequence[Value], added: list[Value]) -> None:
        for value in values:
            if value in self._defined:
                raise _FaultError(f"%{value.number} is defined twice")
            self._check_type(value.type)
            self._defined.add(value)
            added.append(value)

    def _check_type(self, type_: Type) -> None:
        if isinstance(type_, OpaqueType):
            raise _FaultError(f"the type {type_} is not known")
        self._known.add(id(type_))

    def _error(self, what: str, op: Op, index: int) -> InvalidModuleError:
        return InvalidModuleError(
            what,
            where=f"@{self._function.name}, op {index}, {print_place(op)}",
            mend="the module was damaged or rewritten wrongly; if it is as a tool wrote it, please report it",
        )


# --- operations that call or hold programs

_Functions = Mapping[str, Function]


def _compatible(first: Type, second: Type) -> bool:
    """Whether a value of one type may stand for the other: equal, up to sizes that one of them does not know."""
    if first is second or first == second:
        return True
    if not isinstance(first, TensorType) or not isinstance(second, TensorType):
        return False
    if first.element != second.element or len(first.shape) != len(second.shape):
        return False
    return all(a == b or a is None or b is None for a, b in zip(first.shape, second.shape, strict=True))


def _expect(what: str, given: Sequence[Value], wanted: Sequence[Type]) -> None:
    if len(given) != len(wanted):
        raise _FaultError(f"{what}: {len(given)} values where {len(wanted)} are expected")
    for i, (value, type_) in enumerate(zip(given, wanted, strict=True)):
        if not _compatible(value.type, type_):
            raise _FaultError(f"{what} {i}: {value.type} where {type_} is expected")


def _types(values: Sequence[Value]) -> list[Type]:
    return [value.type for value in values]


def _scalars(what: str, values: Sequence[Value], count: int) -> None:
    if len(values) != count:
        raise _FaultError(f"{what}: {len(values)} values where {count} are expected")
    for i, value in enumerate(values):
        if not isinstance(value.type, TensorType) or value.type.shape:
            raise _FaultError(f"{what} {i}: {value.type} where a scalar is expected")


def _is_predicate(what: str, value: Value) -> None:
    type_ = value.type
    if not isinstance(type_, TensorType) or type_.element != "i1":
        raise _FaultError(f"{what}: {type_} where tensor<i1> is expected")


def _regions(op: Op, count: int) -> tuple[Region, ...]:
    if len(op.regions) != count:
        raise _FaultError(f"{len(op.regions)} regions where {count} are expected")
    return op.regions


def _callee(functions: _Functions, op: Op, attribute: str) -> Function:
    name = op.attributes.get(attribute)
    function = functions.get(str(name))
    if function is None:
        raise _FaultError(f"{attribute} @{name} is no function of the module")
    return function


def _check_call(attribute: str) -> Callable[[_Functions, Op], None]:
    def check_call(functions: _Functions, op: Op) -> None:
        function = _callee(functions, op, attribute)
        _expect(f"operand of @{function.name}", op.operands, _types(function.body.arguments))
        _expect(f"result of @{function.name}", op.results, _types(function.body.results))

    return check_call


def _check_custom_call(functions: _Functions, op: Op) -> None:
    for name in op.attributes.get("called_computations", ()):
        if str(name) not in functions:
            raise _FaultError(f"called_computations @{name} is no function of the module")


def _check_while(functions: _Functions, op: Op) -> None:
    cond, body = _regions(op, 2)
    carried = _types(op.operands)
    _expect("argument of cond", cond.arguments, carried)
    _expect("argument of body", body.arguments, carried)
    _expect("result of body", body.results, carried)
    _expect("result", op.results, carried)
    if len(cond.results) != 1:
        raise _FaultError(f"result of cond: {len(cond.results)} values where 1 is expected")
    _is_predicate("result of cond", cond.results[0])


def _check_branches(functions: _Functions, op: Op) -> None:
    if len(op.operands) != 1 or not op.regions:
        raise _FaultError("one operand and at least one branch are expected")
    if op.name == "stablehlo.if":
        _regions(op, 2)
        _is_predicate("operand", op.operands[0])
    for i, branch in enumerate(op.regions):
        _expect(f"argument of branch {i}", branch.arguments, ())
        _expect(f"result of branch {i}", branch.results, _types(op.results))


def _check_reducer(op: Op, region: Region, count: int) -> None:
    """A region that takes `2 * count` scalars, as many running as new, and gives `count`."""
    _scalars("argument of the region", region.arguments, 2 * count)
    _scalars("result of the region", region.results, count)


def _check_reduce(functions: _Functions, op: Op) -> None:
    (body,) = _regions(op, 1)
    if len(op.operands) % 2 or 2 * len(op.results) != len(op.operands):
        raise _FaultError(f"{len(op.operands)} operands and {len(op.results)} results where 2 n and n are expected")
    _check_reducer(op, body, len(op.results))


def _check_scatter(functions: _Functions, op: Op) -> None:
    (body,) = _regions(op, 1)
    count = len(op.results)
    if len(op.operands) != 2 * count + 1:
        raise _FaultError(f"{len(op.operands)} operands and {count} results where 2 n + 1 and n are expected")
    _expect("result", op.results, _types(op.operands[:count]))
    _check_reducer(op, body, count)


def _check_select_and_scatter(functions: _Functions, op: Op) -> None:
    select, scatter = _regions(op, 2)
    _scalars("argument of select", select.arguments, 2)
    _scalars("result of select", select.results, 1)
    _is_predicate("result of select", select.results[0])
    _check_reducer(op, scatter, 1)


def _check_sort(functions: _Functions, op: Op) -> None:
    (comparator,) = _regions(op, 1)
    _expect("result", op.results, _types(op.operands))
    _scalars("argument of the comparator", comparator.arguments, 2 * len(op.operands))
    _scalars("result of the comparator", comparator.results, 1)
    _is_predicate("result of the comparator", comparator.results[0])


def _check_map(functions: _Functions, op: Op) -> None:
    (computation,) = _regions(op, 1)
    _scalars("argument of the computation", computation.arguments, len(op.operands))
    _scalars("result of the computation", computation.results, 1)


def _check_cross_replica(functions: _Functions, op: Op) -> None:
    (computation,) = _regions(op, 1)
    _check_reducer(op, computation, 1)


def _check_constant(functions: _Functions, op: Op) -> None:
    value: Any = op.attributes.get("value")
    shape = getattr(getattr(value, "array", None), "shape", None)
    if shape is not None and shape not in ((), value.type.shape):
        raise _FaultError(f"{list(shape)} elements for a constant of type {value.type}")


_CHECKS: dict[str, Callable[[_Functions, Op], None]] = {
    "func.call": _check_call("callee"),
    "stablehlo.composite": _check_call("decomposition"),
    "stablehlo.custom_call": _check_custom_call,
    "stablehlo.while": _check_while,
    "stablehlo.if": _check_branches,
    "stablehlo.case": _check_branches,
    "stablehlo.reduce": _check_reduce,
    "stablehlo.reduce_window": _check_reduce,
    "stablehlo.scatter": _check_scatter,
    "stablehlo.select_and_scatter": _check_select_and_scatter,
    "stablehlo.sort": _check_sort,
    "stablehlo.map": _check_map,
    "stablehlo.all_reduce": _check_cross_replica,
    "stablehlo.reduce_scatter": _check_cross_replica,
    "stablehlo.constant": _check_constant,
}
