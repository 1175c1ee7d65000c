"""The functions inside the program of an `XlaCallModule` node: their own names, and those of TensorFlow's that it calls."""

import dataclasses
from typing import Any

from unlower.ir.attributes import Symbol
from unlower.ir.module import Function, Module, Op, Region
from unlower.readers.tf_graph import Node

__all__ = ["CALL_TF", "renamed", "with_function_names"]

CALL_TF = "tf.call_tf_function"
"""The custom call that calls a TensorFlow function."""


def with_function_names(module: Module, node: Node) -> Module:
    """Puts the names of the TensorFlow functions that a program calls into the targets of its custom calls.

    The program has only their numbers in the node's `function_list`. So an error names the function, and a rule can be given
    for it: `rules=unlower.op_rules | {"tf.call_tf_function:NAME": ...}`.
    """
    if "function_list" not in node.attributes:
        return module
    names = [function.string(1) for function in node.attributes["function_list"].message(1).messages(9)]

    def region(old: Region) -> Region:
        return Region(old.arguments, tuple(map(op, old.ops)), old.results)

    def op(old: Op) -> Op:
        attributes = dict(old.attributes)
        if old.name == "stablehlo.custom_call" and attributes.get("call_target_name") == CALL_TF:
            config = dict(attributes.pop("tf.backend_config", {}))
            index = int(config.pop("called_index", -1))
            if 0 <= index < len(names):
                attributes["call_target_name"] = f"{CALL_TF}:{names[index]}"
            if any(config.values()):
                attributes["tf.backend_config"] = config
        return dataclasses.replace(old, attributes=attributes, regions=tuple(map(region, old.regions)))

    if not names:
        return module
    functions = {name: dataclasses.replace(f, body=region(f.body)) for name, f in module.functions.items()}
    return dataclasses.replace(module, functions=functions)


def renamed(module: Module, prefix: str) -> dict[str, Function]:
    """Gives every function of a module a prefix, in its own name and wherever it is called."""

    def attribute(value: Any) -> Any:
        if isinstance(value, Symbol) and value in module.functions:
            return Symbol(prefix + value)
        if isinstance(value, tuple) and type(value) is tuple:
            return tuple(attribute(item) for item in value)
        return value

    def region(old: Region) -> Region:
        return Region(old.arguments, tuple(map(op, old.ops)), old.results)

    def op(old: Op) -> Op:
        attributes = {name: attribute(value) for name, value in old.attributes.items()}
        return dataclasses.replace(old, attributes=attributes, regions=tuple(map(region, old.regions)))

    return {
        prefix + name: dataclasses.replace(f, name=prefix + name, body=region(f.body), visibility="private")
        for name, f in module.functions.items()
    }
