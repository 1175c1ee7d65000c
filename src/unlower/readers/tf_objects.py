"""The object graph of a SavedModel: the paths and names of its variables, its functions, the trees they take and give.

Proto field numbers are those of `tensorflow/core/protobuf/{saved_object_graph,trackable_object_graph,struct}.proto`.
"""

import collections
import dataclasses
import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any

from unlower.errors import FormatError
from unlower.ir.interface import LEAF, NONE, Tree
from unlower.readers.message import Message

__all__ = ["Concrete", "Objects", "Variable", "read_objects", "structure"]

_DEFAULT_NAME = re.compile(r"Variable(_\d+)?")


@dataclasses.dataclass(frozen=True, slots=True)
class Variable:
    """A variable: what to call it, and the key of its value on disk (None: the file does not tell)."""

    name: str
    key: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class Concrete:
    """A function that was traced for certain argument types.

    Attributes:
      name: of the graph function.
      bound: the objects that fill the arguments after the caller's, by id.
      arguments: the structure of the caller's arguments, `(args, kwargs)`, or None.
      results: the structure of the results, or None.
      names: the names of the caller's tensors, in order, where the file tells them.
      positional: the names of the Python function's positional arguments, where the file tells them.
    """

    name: str
    bound: tuple[int, ...]
    arguments: Message | None
    results: Message | None
    names: tuple[str, ...] = ()
    positional: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, eq=False)
class Objects:
    """The object graph; objects are numbered, and 0 is the root."""

    nodes: tuple[Message, ...]
    concrete: Mapping[str, Message]
    checkpoint: tuple[Message, ...]

    @functools.cached_property
    def paths(self) -> dict[int, str]:
        """The path from the root to each object, the shortest one, as TensorFlow itself names it on disk."""
        paths = {0: ""} if self.nodes else {}
        waiting = collections.deque(paths)
        while waiting:
            parent = waiting.popleft()
            for name, child in _children(self.nodes[parent]):
                if child not in paths and 0 <= child < len(self.nodes):
                    paths[child] = f"{paths[parent]}/{name}".lstrip("/")
                    waiting.append(child)
        return paths

    @functools.cached_property
    def variables(self) -> dict[int, Variable]:
        """Every variable by its object.

        An attribute path such as `layers/0/kernel` is the best name there is. Where it ends in a position in a list, the
        name given to the variable is better, unless it is TensorFlow's default, and if two have the same both are told.
        """
        given = {number: node.message(7).string(6) for number, node in enumerate(self.nodes) if 7 in node}
        listed = [
            number
            for number, name in given.items()
            if self.paths.get(number, "0").rpartition("/")[2].isdecimal() and name and not _DEFAULT_NAME.fullmatch(name)
        ]
        unique = len({given[number] for number in listed}) == len(listed)
        keys = self._keys()
        variables = {}
        for number, name in given.items():
            path = self.paths.get(number, name or f"variable_{number}")
            if number in listed:
                path = name if unique else f"{path}/{name}"
            variables[number] = Variable(path, keys.get(number, (None, None))[0])
        return variables

    @functools.cached_property
    def signatures(self) -> dict[str, Concrete]:
        """The signatures by name."""
        root = dict(_children(self.nodes[0])) if self.nodes else {}
        if "signatures" not in root:
            return {}
        found = _children(self.nodes[root["signatures"]])
        return {name: self._bare(self.nodes[child]) for name, child in found if 8 in self.nodes[child]}

    @functools.cached_property
    def functions(self) -> dict[str, tuple[Concrete, ...]]:
        """The functions of the objects by path, with each of their traces."""
        functions = {}
        for number, node in enumerate(self.nodes):
            path = self.paths.get(number)
            if path is None or path.startswith("signatures/") or 6 not in node:
                continue
            traces = {child.name: child for _, i in _children(node) if (child := self._traced(i))}
            names = node.message(6).strings(1)
            positional = _positional(node.message(6).message(2))
            functions[path] = tuple(
                dataclasses.replace(traces.get(name) or self.concrete_function(name), positional=positional)
                for name in names
            )
        return functions

    def restored(self, full_name: str) -> str | None:
        """The key on disk of the variable that the graph calls `full_name`."""
        keys = {name: key for key, name in self._keys().values()}
        return keys.get(full_name)

    def _traced(self, number: int) -> Concrete | None:
        return self._bare(self.nodes[number]) if 8 in self.nodes[number] else None

    def _bare(self, node: Message) -> Concrete:
        bare = node.message(8)
        return dataclasses.replace(self.concrete_function(bare.string(1)), names=tuple(bare.strings(2)))

    def concrete_function(self, name: str) -> Concrete:
        """What is known of a graph function."""
        found = self.concrete.get(name, Message())
        arguments = found.message(3) if 3 in found else None
        return Concrete(name, tuple(found.integers(2)), arguments, found.message(4) if 4 in found else None)

    def _keys(self) -> dict[int, tuple[str, str]]:
        """The key on disk and the full name of each variable: both graphs are walked along equal names, as a restore does.

        Where there is no checkpoint graph, the key is made of the path.
        """
        if not self.checkpoint:
            return {n: (f"{_escape(path)}/.ATTRIBUTES/VARIABLE_VALUE", "") for n, path in self.paths.items()}
        keys: dict[int, tuple[str, str]] = {}
        seen = {0}
        waiting = [(0, 0)]
        while waiting:
            saved, stored = waiting.pop()
            for attribute in self.checkpoint[stored].messages(2):
                if attribute.string(1) == "VARIABLE_VALUE":
                    keys[saved] = (attribute.string(3), attribute.string(2))
            children = dict(_children(self.checkpoint[stored]))
            for name, child in _children(self.nodes[saved]):
                at = children.get(name, -1)
                if child not in seen and 0 <= at < len(self.checkpoint) and 0 <= child < len(self.nodes):
                    seen.add(child)
                    waiting.append((child, at))
        return keys


def read_objects(saved: Message, checkpoint: Message) -> Objects:
    """Reads a SavedObjectGraph, and the TrackableObjectGraph that lies with the variables."""
    return Objects(tuple(saved.messages(1)), saved.map(2), tuple(checkpoint.messages(1)))


def _children(node: Message) -> Iterator[tuple[str, int]]:
    return ((child.string(2), child.integer(1)) for child in node.messages(1))


def _escape(path: str) -> str:
    return "/".join(part.replace(".", "..") for part in path.split("/"))


def _positional(spec: Message) -> tuple[str, ...]:
    """The names of the positional arguments, from what Python's `inspect.getfullargspec` said."""
    for pair in spec.message(1).message(54).messages(2):
        if pair.string(1) == "args":
            value = pair.message(2)
            names = tuple(item.string(13) for kind in (51, 52) for item in value.message(kind).messages(1))
            return names[1:] if spec.integer(2) and names[:1] == ("self",) else names
    return ()


def structure(value: Message, where: str) -> tuple[Tree, tuple[tuple[str, Any], ...]]:
    """Reads a StructuredValue: its tree, and for each leaf its kind and what it is.

    A leaf is `("tensor", name)` for a tensor, or `("value", x)` for a Python value that the trace was made for.

    Raises:
      FormatError: a composite tensor (ragged, sparse), which is several.
    """
    leaves: list[tuple[str, Any]] = []

    def read(value: Message) -> Tree:
        for number in value.numbers:
            if number == 1:
                return NONE
            if number in (33, 35):
                leaves.append(("tensor", value.message(number).string(1)))
                return LEAF
            if number in (51, 52):
                kind = "list" if number == 51 else "tuple"
                return Tree(kind, (), tuple([read(item) for item in value.message(number).messages(1)]))
            if number == 53:
                # Leaves come in the order of the sorted keys, whatever the order on disk.
                entries = sorted(value.message(53).map(1).items())
                return Tree("dict", tuple(key for key, _ in entries), tuple([read(item) for _, item in entries]))
            if number == 54:
                pairs = value.message(54).messages(2)
                fields = tuple(pair.string(1) for pair in pairs)
                return Tree("custom", fields, tuple([read(p.message(2)) for p in pairs]), value.message(54).string(1))
            if number == 34:
                kind = value.message(34).string(3) or "unknown"
                raise FormatError(f"an argument of the composite type {kind}", where=where, mend="export plain tensors")
            leaves.append(("value", _literal(value, number)))
            return LEAF
        return NONE

    return read(value), tuple(leaves)


def _literal(value: Message, number: int) -> Any:
    if number == 12:
        # sint64: zigzag.
        raw = value.integer(12) & (1 << 64) - 1
        return raw >> 1 ^ -(raw & 1)
    if number == 13:
        return value.string(13)
    if number == 14:
        return bool(value.integer(14))
    return "a Python value"
