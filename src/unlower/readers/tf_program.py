"""An entry of a SavedModel -> module and interface: its `XlaCallModule` nodes, linked, and what their inputs are."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from unlower.errors import FormatError
from unlower.ir.attributes import Symbol
from unlower.ir.interface import Input, Interface, Output, Source, Tree
from unlower.ir.module import Function, Module, Op, Region, Value
from unlower.ir.types import TensorType, TokenType
from unlower.readers.elision import Elision
from unlower.readers.stablehlo_bytecode import is_bytecode, read_bytecode
from unlower.readers.stablehlo_text import read_stablehlo_text
from unlower.readers.tf_functions import renamed, with_function_names
from unlower.readers.tf_graph import Argument, Frame, Node, Tensor, frames, origin, read_tensor
from unlower.readers.tf_objects import Objects

__all__ = ["XLA", "Entry", "entry_bytes", "read_entry"]

XLA = "XlaCallModule"
"""The TensorFlow operation that holds an XLA program; `tensorflow/compiler/tf2xla/ops/xla_ops.cc`."""

_MEND = "copy the folder again, or save the model again; it is cut off or changed"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Entry:
    """Where a call enters a SavedModel, and what it takes and gives.

    Attributes:
      label: what to call it in messages.
      frame: the graph in which it begins.
      objects: the object graph.
      outputs: the name and the tensor of each result; None for all results of `only`.
      bound: the objects that fill the function's last arguments.
      names: the names of the caller's tensors.
      placeholders: which of `names` a node of the graph outside of functions stands for.
      arguments, argument_names, leaves, results: as of `Interface`; `leaves` has one entry for each of `names`.
      only: the program to read alone, whatever TensorFlow computes around it.
      notes: what the caller should know.
    """

    label: str
    frame: Frame
    objects: Objects
    outputs: tuple[tuple[str | None, str], ...] | None = ()
    bound: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    placeholders: Mapping[str, int] = dataclasses.field(default_factory=dict)
    arguments: Tree | None = None
    argument_names: tuple[str | None, ...] = ()
    leaves: tuple[int, ...] = ()
    results: Tree | None = None
    only: tuple[Frame, Node] | None = None
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class _Call:
    """One `XlaCallModule`: its program, and where its inputs and its leading arguments come from."""

    tensor: Tensor
    module: Module
    platforms: tuple[str, ...]
    inputs: tuple[Tensor | Argument, ...]
    roles: tuple[Any, ...]


def read_entry(entry: Entry, variables: Mapping[str, Any], elision: Elision) -> Source:
    """Reads the program that an entry leads to.

    Args:
      entry: where the call enters.
      variables: the arrays on disk by key.
      elision: decides about constants without values.

    Raises:
      FormatError: TensorFlow operations between the signature and the program, or a damaged SavedModel.
    """
    return _Reader(entry, variables, elision).read()


def entry_bytes(entry: Entry) -> bytes:
    """Returns the bytes of the only program that an entry leads to.

    Raises:
      FormatError: it leads to several.
    """
    found: dict[Any, Node] = {}

    def visit(tensor: Tensor | Argument) -> None:
        if isinstance(tensor, Tensor) and tensor.node.op == XLA and tensor.key[:2] not in found:
            found[tensor.key[:2]] = tensor.node
            for name in tensor.node.inputs:
                visit(origin(tensor.frame, name))

    if entry.only is not None:
        return bytes(entry.only[1].attributes["module"].view(2))
    for _, name in entry.outputs or ():
        visit(origin(entry.frame, name))
    if len(found) != 1:
        raise FormatError(
            f"{entry.label} joins {len(found)} programs, so there is no single original",
            mend="load one of them alone, module=...",
        )
    (node,) = found.values()
    return bytes(node.attributes["module"].view(2))


class _Reader:
    def __init__(self, entry: Entry, variables: Mapping[str, Any], elision: Elision):
        self._entry = entry
        self._variables = variables
        self._elision = elision
        self._calls: dict[Any, _Call] = {}
        self._inputs: dict[Any, tuple[Value, Input]] = {}
        self._parameters: dict[str, Any] = {}
        self._opaque: list[Tensor] = []
        self._notes = list(entry.notes)

    def read(self) -> Source:
        entry = self._entry
        if entry.only is not None:
            frame, node = entry.only
            call = self._call(Tensor(frame, node, 0))
            outputs: Any = [Tensor(frame, node, i) for i in range(self._num_results(call))]
            names: list[str | None] = [None] * len(outputs)
            results = None
        else:
            found = [origin(entry.frame, tensor) for _, tensor in entry.outputs or ()]
            for tensor in found:
                self._gather(tensor)
            outputs, names, results = found, [name for name, _ in entry.outputs or ()], entry.results
        if self._opaque:
            raise self._refusal()
        self._note_updates()
        direct = self._direct(outputs)
        module, inputs = direct or self._linked(outputs)
        returned = None
        if direct is not None:
            (call,) = self._calls.values()
            returned = tuple(self._result(call, output.index) for output in outputs)
        result_types = [value.type for value in module.main.body.results]
        kinds = ["token" if isinstance(type_, TokenType) else "result" for type_ in result_types]
        has_leaves = results is not None
        if any(record.role == "argument" and record.leaf is None for record in inputs):
            # Something that the signature does not take: arguments are known by name only.
            entry = dataclasses.replace(entry, arguments=None, argument_names=())
            inputs = tuple(dataclasses.replace(record, leaf=None) for record in inputs)
        interface = Interface(
            inputs=inputs,
            outputs=tuple(
                Output(name=name, role=kind, leaf=i if has_leaves else None)  # pyright: ignore[reportArgumentType]
                for i, (name, kind) in enumerate(zip(names, kinds, strict=True))
            ),
            arguments=entry.arguments,
            argument_names=entry.argument_names,
            results=results,
            parameters=self._parameters,
            platforms=self._platforms(),
            returned=returned,
            notes=tuple(self._notes),
        )
        return Source(module, interface)

    def _platforms(self) -> tuple[str, ...]:
        """The platforms that every program was lowered for; they share one platform index."""
        found = {call.platforms for call in self._calls.values() if len(call.platforms) > 1}
        if len(found) > 1:
            raise FormatError(
                f"{self._entry.label} joins programs of different platforms: {' and '.join(map(str, sorted(found)))}",
                mend="load one of them alone, module=...",
            )
        return found.pop() if found else ()

    # --- the walk

    def _gather(self, found: Tensor | Argument) -> None:
        """Reads every program that a tensor needs; what else it needs of TensorFlow is kept for the refusal."""
        if isinstance(found, Argument):
            return
        if found.node.op == XLA:
            if found.key[:2] not in self._calls:
                for tensor in self._call(found).inputs:
                    self._gather(tensor)
        elif not self._is_source(found):
            self._opaque.append(found)

    def _is_source(self, tensor: Tensor) -> bool:
        return tensor.node.op in ("Const", "VarHandleOp", "Placeholder")

    def _call(self, tensor: Tensor) -> _Call:
        frame, node = tensor.frame, tensor.node
        if "module" not in node.attributes:
            raise FormatError(f"{tensor} holds no program", mend=_MEND)
        data = bytes(node.attributes["module"].view(2))
        module = (read_bytecode if is_bytecode(data) else read_stablehlo_text)(data, self._elision)
        module = with_function_names(module, node)
        platforms = tuple(name.lower() for name in _listed(node, "platforms"))
        inputs = tuple(origin(frame, name) for name in node.inputs)
        call = _Call(tensor, module, platforms, inputs, self._roles(tensor, module, platforms, len(inputs)))
        self._calls[tensor.key[:2]] = call
        return call

    def _roles(self, tensor: Tensor, module: Module, platforms: tuple[str, ...], count: int) -> tuple[Any, ...]:
        """Says what each argument of the module is: an index into the node's inputs, or a leading argument's record.

        The operation itself puts the platform index first, where there are several platforms, then the dimension
        variables (calling conventions before 5), then tokens.
        """
        arguments = module.main.body.arguments
        roles: list[Any] = []
        dimensions = _listed(tensor.node, "dim_args_spec")
        if len(platforms) > 1 and len(arguments) > count:
            roles.append(Input(name="platform index", role="platform_index"))
        for spec in dimensions:
            roles.append(Input(name=f"d{spec.replace('.', '_')}", role="dimension"))
        position = 0
        for value in arguments[len(roles) :]:
            if isinstance(value.type, TokenType):
                roles.append(Input(role="token"))
            else:
                roles.append(position)
                position += 1
        if position != count:
            raise FormatError(
                f"{tensor} gives {count} arrays to a program that takes {position}",
                where=self._entry.label,
                mend=_MEND,
            )
        return tuple(roles)

    def _num_results(self, call: _Call) -> int:
        return sum(not isinstance(value.type, TokenType) for value in call.module.main.body.results)

    def _result(self, call: _Call, index: int) -> int:
        """The place among the program's results of the array that the operation gives as output `index`."""
        places = [i for i, v in enumerate(call.module.main.body.results) if not isinstance(v.type, TokenType)]
        if index >= len(places):
            raise FormatError(f"{call.tensor} has {len(places)} results, and no result {index}", mend=_MEND)
        return places[index]

    # --- building the program

    def _direct(self, outputs: list[Any]) -> tuple[Module, tuple[Input, ...]] | None:
        """Takes the only program as it is, its results picked; None where inputs or outputs must be wired by a call."""
        if len(self._calls) != 1:
            return None
        (call,) = self._calls.values()
        keys = [tensor.key for tensor in call.inputs]
        if len(set(keys)) != len(keys) or any(o.key[:2] != call.tensor.key[:2] for o in outputs):
            return None
        main = call.module.main
        inputs = tuple(
            role if isinstance(role, Input) else self._input(call.inputs[role], value)
            for role, value in zip(call.roles, main.body.arguments, strict=True)
        )
        # A dimension variable names a size of another argument; see `_roles`.
        inputs = _with_dimensions(inputs, call)
        picked = [self._result(call, output.index) for output in outputs]
        attributes = main.result_attributes or ({},) * len(main.body.results)
        body = Region(main.body.arguments, main.body.ops, tuple(main.body.results[i] for i in picked))
        function = dataclasses.replace(main, body=body, result_attributes=tuple(attributes[i] for i in picked))
        functions = dict(call.module.functions) | {call.module.entry: function}
        return dataclasses.replace(call.module, functions=functions), inputs

    def _linked(self, outputs: list[Any]) -> tuple[Module, tuple[Input, ...]]:
        """Calls every program from a new entry function, each after those it needs."""
        functions: dict[str, Function] = {}
        ops: list[Op] = []
        arguments: dict[Any, tuple[Value, Input]] = {}
        made: dict[Any, Value] = {}
        number = 0

        def fresh(type_: Any) -> Value:
            nonlocal number
            number += 1
            return Value(number - 1, type_)

        def argument(key: Any, type_: Any, record: Input) -> Value:
            if key not in arguments:
                arguments[key] = fresh(type_), record
            return arguments[key][0]

        def value(tensor: Tensor | Argument, like: Value | None) -> Value:
            if isinstance(tensor, Tensor) and tensor.node.op == XLA:
                if tensor.key not in made:
                    run(self._calls[tensor.key[:2]])
                return made[tensor.key]
            if like is None and tensor.key not in arguments:
                raise FormatError(
                    f"{self._entry.label} returns an argument that no program takes: {tensor}",
                    mend="export the signature without it",
                )
            return argument(tensor.key, like and like.type, self._input(tensor, like))

        def run(call: _Call) -> None:
            prefix = f"module_{len(functions)}."
            body = call.module.main.body
            operands = [
                argument((role.role, role.name) if role.name else (role.role, i, prefix), like.type, role)
                if isinstance(role, Input)
                else value(call.inputs[role], like)
                for i, (role, like) in enumerate(zip(call.roles, body.arguments, strict=True))
            ]
            functions.update(renamed(call.module, prefix))
            results = tuple(fresh(v.type) for v in body.results)
            target = Symbol(prefix + call.module.entry)
            ops.append(Op("func.call", tuple(operands), results, {"callee": target}))
            for index in range(self._num_results(call)):
                key = (*call.tensor.key[:2], index)
                made[key] = results[self._result(call, index)]

        for call in self._calls.values():
            if any(tensor.key[:2] == call.tensor.key[:2] for tensor in outputs):
                value(dataclasses.replace(call.tensor, index=0), None) if self._num_results(call) else run(call)
        results = tuple(value(tensor, None) for tensor in outputs)
        inputs = tuple(record for _, record in arguments.values())
        body = Region(tuple(v for v, _ in arguments.values()), tuple(ops), results)
        count = len(inputs)
        main = Function("main", body, "public", ({},) * count, ({},) * len(results), (None,) * count)
        return Module("module", {"main": main} | functions, "main"), inputs

    def _input(self, found: Tensor | Argument, value: Value | None) -> Input:
        """Says what fills an input: the caller, a variable or a constant; reads the latter two."""
        entry = self._entry
        if isinstance(found, Argument):
            if found.index < len(entry.names):
                name = entry.names[found.index]
                return Input(name=name, leaf=entry.leaves[found.index] if entry.leaves else None)
            at = found.index - (len(entry.frame.function.inputs) - len(entry.bound)) if entry.frame.function else -1
            if 0 <= at < len(entry.bound):
                return self._bound(entry.bound[at], value, found.name)
            return Input(name=found.name)
        node = found.node
        if node.op == "Const":
            return self._parameter(node.name, read_tensor(node.attributes["value"].message(8), str(found)), value)
        if node.op == "VarHandleOp":
            name = node.attributes["shared_name"].view(2).tobytes().decode() if "shared_name" in node.attributes else ""
            name = name or node.name
            return self._stored(name, entry.objects.restored(name) or name, value)
        if node.name in entry.placeholders:
            position = entry.placeholders[node.name]
            return Input(name=entry.names[position], leaf=entry.leaves[position])
        return Input(name=f"{node.name}:{found.index}" if found.index else node.name)

    def _bound(self, number: int, value: Value | None, name: str) -> Input:
        objects = self._entry.objects
        if number in objects.variables:
            variable = objects.variables[number]
            return self._stored(variable.name, variable.key, value)
        constant = objects.nodes[number].message(9).string(1) if 0 <= number < len(objects.nodes) else ""
        if constant in self._entry.frame.graph.nodes:
            node = self._entry.frame.graph.nodes[constant]
            return self._parameter(constant, read_tensor(node.attributes["value"].message(8), constant), value)
        if self._entry.only is not None:
            # A pullback, say: it takes tensors of the forward pass.
            return Input(name=name)
        path = objects.paths.get(number) or f"object {number}"
        raise FormatError(
            f"the program takes {path}, which is neither a variable nor a constant",
            where=self._entry.label,
            mend="export the model without it (a table, an asset or another resource of TensorFlow)",
        )

    def _stored(self, name: str, key: str | None, value: Value | None) -> Input:
        if key is None or key not in self._variables:
            raise FormatError(
                f"the value of the variable {name} is not in the folder",
                where=f"{self._entry.label}, variables/variables.index",
                mend="keep saved_model.pb beside its folder `variables`, or save the model again",
            )
        return self._parameter(name, self._variables[key], value)

    def _parameter(self, name: str, array: np.ndarray, value: Value | None) -> Input:
        type_ = value.type if value is not None else None
        if isinstance(type_, TensorType) and (
            array.dtype != type_.dtype
            or array.ndim != type_.rank
            or any(n is not None and n != m for n, m in zip(type_.shape, array.shape, strict=True))
        ):
            raise FormatError(
                f"{name} is {array.dtype.name}{list(array.shape)} on disk, but the program takes {type_}",
                where=self._entry.label,
                mend=_MEND,
            )
        while name in self._parameters and self._parameters[name] is not array:
            name += "_"
        self._parameters[name] = array
        return Input(name=name, role="parameter", parameter=name)

    # --- what is told

    def _refusal(self) -> FormatError:
        ops = ", ".join(sorted({tensor.node.op for tensor in self._opaque}))
        inside = [str(tensor) for tensor in self._opaque]
        modules = sorted(
            f"{frame.function.name}/{node.name}" if frame.function else node.name
            for frame in frames(self._entry.frame)
            for node in frame.nodes.values()
            if node.op == XLA
        )
        return FormatError(
            f"{self._entry.label} computes with TensorFlow operations around its XLA program: {ops}",
            where="; ".join(inside[:5]),
            mend="export it without pre- and postprocessing, or load the XLA program alone, "
            + (" or ".join(f"module={name!r}" for name in modules[:4]) or "from another signature"),
        )

    def _note_updates(self) -> None:
        if self._entry.only is not None or self._entry.frame.function is None:
            return
        changed = []
        for frame in frames(self._entry.frame):
            for node in frame.nodes.values():
                if node.op.startswith("Assign") and node.inputs:
                    found = origin(frame, node.inputs[0])
                    if isinstance(found, Argument):
                        at = found.index - len(self._entry.names)
                        if 0 <= at < len(self._entry.bound) and self._entry.bound[at] in self._entry.objects.variables:
                            changed.append(self._entry.objects.variables[self._entry.bound[at]].name)
        if changed:
            self._notes.append(
                f"{self._entry.label} also updates variables, which a program does not: {', '.join(changed)}"
            )


def _listed(node: Node, name: str) -> list[str]:
    return node.attributes[name].message(1).strings(2) if name in node.attributes else []


def _with_dimensions(inputs: tuple[Input, ...], call: _Call) -> tuple[Input, ...]:
    """Puts the name of each dimension variable into the sizes of the argument that it is a size of."""
    shapes: dict[int, list[Any]] = {}
    for spec in _listed(call.tensor.node, "dim_args_spec"):
        argument, _, axis = spec.partition(".")
        place = call.roles.index(int(argument))
        type_ = call.module.main.body.arguments[place].type
        sizes = shapes.setdefault(place, list(type_.shape) if isinstance(type_, TensorType) else [])
        if int(axis) < len(sizes):
            sizes[int(axis)] = f"d{argument}_{axis}"
    found = list(inputs)
    for place, sizes in shapes.items():
        named = [f"_{place}_{i}" if size is None else size for i, size in enumerate(sizes)]
        found[place] = dataclasses.replace(found[place], shape=tuple(named))
    return tuple(found)
