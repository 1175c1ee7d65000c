"""Lets one argument of the entry function stand for several, in a layout of its own.

For weights that are known in another layout than the module has them: the argument is transposed and reshaped first thing.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

from unlower.ir.attributes import IntArray
from unlower.ir.module import Function, Location, Module, Op, Region, Value, next_number
from unlower.ir.types import TensorType

__all__ = ["Shared", "Use", "share_arguments"]


class Use(NamedTuple):
    """An old argument: its position, and the axes that transpose the new one into it, up to a reshape."""

    position: int
    axes: tuple[int, ...]


class Shared(NamedTuple):
    """A new argument: its name, its shape, and the old ones that it stands for."""

    name: str
    shape: tuple[int, ...]
    uses: Sequence[Use]


def share_arguments(module: Module, first: int, arguments: Sequence[Shared]) -> Module:
    """Replaces the arguments of the entry function.

    Args:
      module: the module; not changed.
      first: the position from which on arguments are replaced.
      arguments: the new ones, in order; together they stand for every argument from `first` on.
    """
    main = module.main
    old = main.body.arguments
    number = next_number(main.body)
    ops: list[Op] = []

    def fresh(shape: tuple[int, ...], like: Value) -> Value:
        nonlocal number
        number += 1
        return Value(number - 1, TensorType(shape, _tensor(like).element))

    def op(name: str, operand: Value, result: Value, **attributes: Any) -> Value:
        ops.append(Op(name, (operand,), (result,), attributes))
        return result

    new: list[Value] = []
    for argument in arguments:
        straight = tuple(range(len(argument.shape)))
        model = old[argument.uses[0].position]
        if len(argument.uses) == 1 and argument.uses[0].axes == straight and _tensor(model).shape == argument.shape:
            new.append(model)
            continue
        given = fresh(argument.shape, model)
        new.append(given)
        for position, axes in argument.uses:
            value, target = given, old[position]
            if axes != straight:
                turned = fresh(tuple(argument.shape[axis] for axis in axes), model)
                value = op("stablehlo.transpose", value, turned, permutation=IntArray(axes))
            if _tensor(value).shape != _tensor(target).shape:
                value = op("stablehlo.reshape", value, fresh(_tensor(target).shape, model))
            # Without a barrier XLA would fold the transpose into a matrix product, which then adds in another order.
            op("stablehlo.optimization_barrier", value, target)
    body = Region((*old[:first], *new), (*ops, *main.body.ops), main.body.results)
    function = dataclasses.replace(
        main,
        body=body,
        argument_attributes=(*(main.argument_attributes or ({},) * first)[:first], *[{}] * len(new)),
        argument_locations=(
            *(main.argument_locations or (None,) * first)[:first],
            *(Location(argument.name) for argument in arguments),
        ),
    )
    functions: dict[str, Function] = {**module.functions, module.entry: function}
    return dataclasses.replace(module, functions=functions)


def _tensor(value: Value) -> TensorType:
    assert isinstance(value.type, TensorType)
    return value.type
