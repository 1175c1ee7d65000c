"""TensorFlow graphs: nodes and functions out of a GraphDef, and the walk from a tensor back to where it comes from.

Proto field numbers are those of `tensorflow/core/framework/{graph,function,node_def,op_def,attr_value,tensor}.proto`.
"""

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from unlower.errors import FormatError
from unlower.readers.message import Message
from unlower.readers.tensor_bundle import DTYPES

__all__ = [
    "Argument",
    "Frame",
    "Graph",
    "Node",
    "TFFunction",
    "Tensor",
    "frames",
    "origin",
    "read_graph",
    "read_tensor",
]

TRANSPARENT = frozenset(
    {
        # PreventGradient is what jax2tf leaves of `with_gradient=False`; a loaded program has derivatives all the same.
        "EnsureShape",
        "Identity",
        "IdentityN",
        "PreventGradient",
        "ReadVariableOp",
        "Snapshot",
        "StopGradient",
    }
)
"""Operations that give their inputs on."""

_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
_MEND = "copy the folder again, or save the model again; it is cut off or changed"


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """One node of a graph; its inputs are `node:output:index` in a function and `node:index` outside.

    `after` names the nodes that must run first without giving it anything.
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    after: tuple[str, ...]
    attributes: Mapping[str, Message]

    def kind(self, name: str) -> int:
        """The attribute `name` that is an element type."""
        return self.attributes[name].integer(6) if name in self.attributes else 0


@dataclasses.dataclass(frozen=True, slots=True)
class TFFunction:
    """A function: `inputs` are its arguments' names, `results` the tensors it returns, in order, and their names."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    results: tuple[str, ...]
    nodes: Mapping[str, Node]


@dataclasses.dataclass(frozen=True, slots=True)
class Graph:
    """The graph outside of all functions, and the functions."""

    nodes: Mapping[str, Node]
    functions: Mapping[str, TFFunction]


@dataclasses.dataclass(frozen=True, eq=False)
class Frame:
    """A graph that is being walked: a function as one node calls it, or the graph outside (`function` None).

    Attributes:
      graph: all there is.
      function: the function, or None.
      caller: the frame and the node that call it, or None where the walk begins.
    """

    graph: Graph
    function: TFFunction | None = None
    caller: "tuple[Frame, Node] | None" = None

    @property
    def nodes(self) -> Mapping[str, Node]:
        """The nodes by name."""
        return self.graph.nodes if self.function is None else self.function.nodes

    @functools.cached_property
    def calls(self) -> dict[str, "Frame"]:
        """The frames of the calls met so far, by node: each call is one frame."""
        return {}

    @property
    def depth(self) -> int:
        """The number of calls around this one."""
        return 0 if self.caller is None else 1 + self.caller[0].depth

    @property
    def place(self) -> str:
        """Where this is, for error messages."""
        return "the graph" if self.function is None else self.function.name


@dataclasses.dataclass(frozen=True, slots=True)
class Tensor:
    """Output `index` of `node`, seen from `frame`; what `Frame`'s walk ends at."""

    frame: Frame
    node: Node
    index: int

    @property
    def key(self) -> tuple[int, str, int]:
        """What is equal for the same tensor only."""
        return id(self.frame), self.node.name, self.index

    def __str__(self) -> str:
        return f"{self.node.op} {self.node.name} in {self.frame.place}"


@dataclasses.dataclass(frozen=True, slots=True)
class Argument:
    """Argument `index` of the function at which the walk began."""

    name: str
    index: int

    @property
    def key(self) -> tuple[int, str, int]:
        """What is equal for the same argument only."""
        return 0, "", self.index


def read_graph(graph: Message) -> Graph:
    """Reads a GraphDef."""
    functions = [_read_function(function) for function in graph.message(2).messages(1)]
    nodes = map(_read_node, graph.messages(1))
    return Graph({node.name: node for node in nodes}, {function.name: function for function in functions})


def _read_node(node: Message) -> Node:
    inputs = node.strings(3)
    return Node(
        node.string(1),
        node.string(2),
        tuple(name for name in inputs if not name.startswith("^")),
        tuple(name[1:] for name in inputs if name.startswith("^")),
        node.map(5),
    )


def _read_function(function: Message) -> TFFunction:
    signature = function.message(1)
    outputs = tuple(argument.string(1) for argument in signature.messages(3))
    returned = function.string_map(4)
    nodes = map(_read_node, function.messages(3))
    return TFFunction(
        signature.string(1),
        tuple(argument.string(1) for argument in signature.messages(2)),
        outputs,
        tuple(returned.get(name, name) for name in outputs),
        {node.name: node for node in nodes},
    )


def origin(frame: Frame, tensor: str) -> Tensor | Argument:
    """Walks a tensor back through operations that give their inputs on, and through calls, into and out of them.

    Raises:
      FormatError: a node or a function that is not in the graph; more nested calls than any program has.
    """
    while True:
        name, _, rest = tensor.partition(":")
        index = int(number) if (number := rest.rpartition(":")[2]).isdecimal() else 0
        function = frame.function
        if function is not None and name in function.inputs and name not in function.nodes:
            position = function.inputs.index(name)
            if frame.caller is None:
                return Argument(name, position)
            frame, node = frame.caller
            tensor = _input(frame, node, position)
            continue
        if name not in frame.nodes:
            raise FormatError(f"the graph refers to {tensor}, which is not there", where=frame.place, mend=_MEND)
        node = frame.nodes[name]
        called = _called(node, frame.graph)
        if called is not None:
            frame = _enter(frame, node, called)
            if index >= len(called.results):
                raise FormatError(f"{called.name} has no output {index}", where=str(node), mend=_MEND)
            tensor = called.results[index]
        elif node.op == "ReadVariableOp" and _is_assigned(frame, node):
            return Tensor(frame, node, index)
        elif node.op in TRANSPARENT or (node.op == "Cast" and node.kind("SrcT") == node.kind("DstT")):
            tensor = _input(frame, node, index if node.op == "IdentityN" else 0)
        else:
            return Tensor(frame, node, index)


def _is_assigned(frame: Frame, node: Node) -> bool:
    """Whether a variable is read after the function itself has changed it: then its value on disk is not the one read."""
    return any(name in frame.nodes and frame.nodes[name].op.startswith("Assign") for name in node.after)


def _input(frame: Frame, node: Node, position: int) -> str:
    if position >= len(node.inputs):
        raise FormatError(f"{node.op} {node.name} lacks an input", where=frame.place, mend=_MEND)
    return node.inputs[position]


def _called(node: Node, graph: Graph) -> TFFunction | None:
    if node.op in _CALLS and "f" in node.attributes:
        name = node.attributes["f"].message(10).string(1)
        if name not in graph.functions:
            raise FormatError(f"the function {name} is not in the graph", where=f"{node.op} {node.name}", mend=_MEND)
        return graph.functions[name]
    return graph.functions.get(node.op)


def _enter(frame: Frame, node: Node, called: TFFunction) -> Frame:
    if frame.depth > 200:
        raise FormatError("functions call each other without end", where=frame.place, mend=_MEND)
    return frame.calls.setdefault(node.name, Frame(frame.graph, called, (frame, node)))


def frames(frame: Frame) -> Iterator[Frame]:
    """Yields a frame and that of every call in it, calls of calls included; a function is entered once."""
    waiting, seen = [frame], set()
    while waiting:
        current = waiting.pop()
        yield current
        for node in current.nodes.values():
            called = _called(node, frame.graph)
            if called is not None and called.name not in seen:
                seen.add(called.name)
                waiting.append(_enter(current, node, called))


_TENSOR_VALUES: dict[int, tuple[int, Any]] = {
    # DataType: the field of TensorProto that holds its elements, and how they are stored there.
    1: (5, "<f4"),
    2: (6, "<f8"),
    8: (9, "<f4"),
    14: (13, "bits"),
    18: (12, "<f8"),
    19: (13, "bits"),
    9: (10, "int"),
    10: (11, "int"),
    22: (16, "int"),
    23: (17, "int"),
}


def read_tensor(tensor: Message, where: str) -> np.ndarray:
    """Reads a TensorProto: its raw content, or one value for each element, the last of which stands for the rest."""
    number = tensor.integer(1)
    if number not in DTYPES:
        raise FormatError(
            f"a constant of TensorFlow's type {number}, which has no NumPy dtype",
            where=where,
            mend="no XLA program takes one; save the model without it",
        )
    dtype = DTYPES[number]
    shape = tuple(size.integer(1) for size in tensor.message(2).messages(2))
    count = math.prod(shape)
    content = tensor.view(4)
    if len(content):
        values = np.frombuffer(content, np.uint8)
        if values.size != count * dtype.itemsize:
            raise FormatError(f"a constant of {values.size} bytes, not {count * dtype.itemsize}", where=where)
        return values.view(dtype).reshape(shape)
    field, how = _TENSOR_VALUES.get(number, (7, "int"))
    if how == "int":
        values = np.array(tensor.integers(field), np.int64).astype(dtype)
    elif how == "bits":
        values = np.array(tensor.integers(field), np.uint16).view(dtype)
    else:
        values = np.frombuffer(b"".join(map(bytes, tensor.packed(field))), how).view(dtype)
    if values.size > count:
        raise FormatError(f"a constant of {values.size} elements, not {count}", where=where)
    if values.size < count:
        last = values[-1] if values.size else dtype.type(0)
        values = np.concatenate([values, np.full(count - values.size, last, dtype)])
    return values.reshape(shape)
