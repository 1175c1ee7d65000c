"""TensorFlow SavedModels that hold XLA programs -> module and interface, without TensorFlow.

jax2tf, Keras on JAX and orbax-export write the program as a node `XlaCallModule` of a TensorFlow function. Which one is
found by following the signature (pullbacks look alike and may come first); its inputs are followed back to the caller's
arguments, to variables, which lie beside the graph, and to constants. What TensorFlow operations compute is refused.

Proto field numbers: `tensorflow/core/protobuf/{saved_model,meta_graph}.proto`.
"""

import dataclasses
import functools
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from unlower.errors import FormatError
from unlower.ir.interface import LEAF, Source, Tree, call_tree
from unlower.readers.elision import Elision
from unlower.readers.folders import Content
from unlower.readers.message import Message
from unlower.readers.tensor_bundle import TensorBundle
from unlower.readers.tf_graph import Frame, Graph, Node, TFFunction, frames, read_graph
from unlower.readers.tf_objects import Concrete, Objects, read_objects, structure
from unlower.readers.tf_program import XLA, Entry, entry_bytes, read_entry

__all__ = ["SavedModel", "is_saved_model", "is_saved_model_path", "read_saved_model", "saved_model_bytes"]

_FILE = "saved_model.pb"
_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_DEFAULT = "serving_default"
_INTERNAL = frozenset({"__saved_model_init_op", "__saved_model_train_op"})
_PLAIN = (
    "it computes with TensorFlow's own operations; take its HLO in TensorFlow, "
    "tf.function(f, jit_compile=True).experimental_get_compiler_ir(*arguments)(stage='hlo_serialized'), "
    "or export it from JAX (jax2tf, Keras on JAX, orbax-export)"
)


def is_saved_model(data: bytes) -> bool:
    """Whether bytes start as a `saved_model.pb` does: schema version 1, then a graph whose metadata comes first."""
    return data.startswith(b"\x08\x01\x12") and b"\n" in data[3:9]


def is_saved_model_path(path: pathlib.Path) -> bool:
    """Whether a path is a SavedModel: its folder, or the `saved_model.pb` in it."""
    if path.is_dir():
        return any((path / name).is_file() for name in (_FILE, "saved_model.pbtxt", "saved_model.cpb"))
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return is_saved_model(file.read(16))


def read_saved_model(
    path: pathlib.Path, elision: Elision, *, signature: str | None = None, module: str | None = None
) -> Source:
    """Reads the program of a SavedModel.

    Args:
      path: the folder, or the `saved_model.pb` in it.
      elision: decides about constants without values.
      signature: a signature, or the path of a function, such as `"serving_default"` or `"f"`; needed where there are
        several and none is the default one.
      module: the name of an XLA program inside, such as `"__inference_f_39/XlaCallModule"`, to read it alone, without the
        TensorFlow operations around it.

    Raises:
      FormatError: no XLA program in it, TensorFlow operations around it, an unknown or ambiguous signature, damaged files.
    """
    model = SavedModel(path)
    return read_entry(model.entry(signature, module), model.variables, elision)


def saved_model_bytes(path: pathlib.Path, *, signature: str | None = None, module: str | None = None) -> bytes:
    """Returns the XLA program that a call leads to, as the SavedModel has it; arguments as of `read_saved_model`.

    Raises:
      FormatError: as of `read_saved_model`, or several programs make up the one.
    """
    return entry_bytes(SavedModel(path).entry(signature, module))


class SavedModel:
    """What a SavedModel holds; nothing is read that is not asked for.

    Args:
      path: the folder, or the `saved_model.pb` in it.

    Raises:
      FormatError: this is no SavedModel, or a damaged one.
    """

    def __init__(self, path: pathlib.Path):
        self.folder = path if path.is_dir() else path.parent
        file = self.folder / _FILE if path.is_dir() else path
        if not file.is_file():
            raise FormatError(
                f"{self.folder} has no {_FILE}",
                mend="a SavedModel in chunks (saved_model.cpb) or as text cannot be read; save it in one piece",
            )
        graphs = Message(file.read_bytes()).messages(2)
        if not graphs:
            raise FormatError("the SavedModel holds no graph", where=str(file), mend="save the model again")
        serving = [graph for graph in graphs if "serve" in graph.message(1).strings(4)]
        self._meta = (serving or graphs)[0]

    @functools.cached_property
    def graph(self) -> Graph:
        """The graph and the functions."""
        return read_graph(self._meta.message(2))

    @functools.cached_property
    def variables(self) -> Mapping[str, Any]:
        """The variables on disk by key."""
        prefix = self.folder / "variables" / "variables"
        return TensorBundle(prefix) if prefix.with_name("variables.index").is_file() else {}

    @functools.cached_property
    def objects(self) -> Objects:
        """The object graph; empty in a SavedModel of TensorFlow 1."""
        stored = Message()
        if isinstance(self.variables, TensorBundle) and _OBJECT_GRAPH in self.variables:
            stored = Message(self.variables.strings(_OBJECT_GRAPH)[0])
        return read_objects(self._meta.message(7), stored)

    @functools.cached_property
    def signatures(self) -> "dict[str, Entry]":
        """Where a call can enter by the name of a signature."""
        found = {}
        for name, definition in self._meta.map(5).items():
            concrete = self.objects.signatures.get(name)
            if name in _INTERNAL:
                continue
            if concrete is None or concrete.name not in self.graph.functions:
                found[name] = self._from_definition(name, definition)
            else:
                found[name] = self._from_function(f"the signature {name!r}", concrete, is_signature=True)
        return found

    @functools.cached_property
    def functions(self) -> "dict[str, Entry]":
        """Where a call can enter by the path of a function; its traces are numbered where there are several."""
        found = {}
        for path, traces in self.objects.functions.items():
            known = [trace for trace in traces if trace.name in self.graph.functions]
            for position, trace in enumerate(known):
                label = path if len(known) == 1 else f"{path}[{position}]"
                found[label] = self._from_function(f"the function {label!r}", trace, is_signature=False)
        return found

    def programs(self) -> Iterator[tuple[str, Node, TFFunction | None]]:
        """Yields every XLA program in the graph, with the name that `module=` takes."""
        for node in self.graph.nodes.values():
            if node.op == XLA:
                yield node.name, node, None
        for function in self.graph.functions.values():
            for node in function.nodes.values():
                if node.op == XLA:
                    yield f"{function.name}/{node.name}", node, function

    def contents(self) -> list[Content]:
        """Lists the signatures and functions, and the XLA programs they may lead to."""
        try:
            chosen = self.entry()
        except FormatError:
            chosen = None
        listed = []
        for kind, entries in (("signature", self.signatures), ("function", self.functions)):
            for name, entry in entries.items():
                what = f"a {kind}" + ("" if _holds_xla(entry.frame) else " of TensorFlow operations, no XLA program")
                option = f"signature={name!r}" if _holds_xla(entry.frame) else None
                listed.append(Content(name, what, None, option, entry is chosen))
        for name, node, function in self.programs():
            pullback = function is not None and "internal_grad_fn" in function.name
            what = "an XLA program" + (", the pullback of another" if pullback else "")
            size = len(node.attributes["module"].view(2)) if "module" in node.attributes else 0
            listed.append(Content(name, what, size, f"module={name!r}"))
        return listed

    def entry(self, signature: str | None = None, module: str | None = None) -> "Entry":
        """Chooses where to enter; see `read_saved_model`."""
        if not any(self.programs()):
            raise FormatError(
                "this is a TensorFlow SavedModel without an XLA program (no XlaCallModule)",
                where=str(self.folder),
                mend=_PLAIN,
            )
        if module is not None:
            return self._module(signature, module)
        if signature is not None:
            return self._named(signature)
        for entries in (self.signatures, self.functions):
            usable = {name: entry for name, entry in entries.items() if _holds_xla(entry.frame)}
            if _DEFAULT in usable:
                return usable[_DEFAULT]
            if len(usable) == 1:
                return next(iter(usable.values()))
            if usable:
                raise FormatError(
                    f"the SavedModel has several programs: {', '.join(sorted(usable))}",
                    where=str(self.folder),
                    mend=f"choose one, signature={min(usable)!r}",
                )
        modules = ", ".join(name for name, *_ in self.programs())
        raise FormatError(
            "no signature or function of the SavedModel leads to an XLA program",
            where=f"{self.folder}, which holds {modules}",
            mend="name one of these, module=...",
        )

    def _named(self, signature: str) -> "Entry":
        entry = self.signatures.get(signature) or self.functions.get(signature)
        if entry is None:
            names = [*self.signatures, *self.functions]
            raise FormatError(
                f"the SavedModel has no signature or function {signature!r}",
                where=str(self.folder),
                mend=f"it has: {', '.join(names) or 'none'}",
            )
        return entry

    def _module(self, signature: str | None, module: str) -> "Entry":
        """Enters at one XLA program. The signatures are searched for a call of it, which tells its variables."""
        programs = {name: (node, function) for name, node, function in self.programs()}
        if module not in programs:
            raise FormatError(
                f"the SavedModel has no XLA program {module!r}",
                where=str(self.folder),
                mend=f"it has: {', '.join(programs)}",
            )
        node, function = programs[module]
        entries = [self._named(signature)] if signature else [*self.signatures.values(), *self.functions.values()]
        for entry in entries:
            for frame in frames(entry.frame):
                if frame.function is function:
                    return dataclasses.replace(entry, label=f"the module {module!r}", outputs=None, only=(frame, node))
        if function is None:
            entry = self._entry(f"the module {module!r}", Frame(self.graph))
        else:
            concrete = self.objects.concrete_function(function.name)
            entry = self._from_function(f"the module {module!r}", concrete, is_signature=False)
        return dataclasses.replace(entry, outputs=None, only=(entry.frame, node))

    def _entry(self, label: str, frame: Frame, **fields: Any) -> "Entry":
        return Entry(label=label, frame=frame, objects=self.objects, **fields)

    def _from_function(self, label: str, concrete: Concrete, *, is_signature: bool) -> "Entry":
        function = self.graph.functions[concrete.name]
        count = max(len(function.inputs) - len(concrete.bound), 0)
        names = concrete.names if len(concrete.names) == count else function.inputs[:count]
        arguments, positional, leaves = _signature_call(names)
        results, order = _results(concrete, function, is_signature=is_signature)
        notes: tuple[str, ...] = ()
        if not is_signature and concrete.arguments is not None:
            tree, kinds = structure(concrete.arguments, label)
            taken = tuple(position for position, (kind, _) in enumerate(kinds) if kind == "tensor")
            if len(taken) == count and [child.kind for child in tree.children] == ["tuple", "dict"]:
                arguments, positional, leaves = tree, concrete.positional, taken
                fixed = [repr(value) for kind, value in kinds if kind == "value"]
                if fixed:
                    notes = (f"{label} was traced for the Python values {', '.join(fixed)}, which are fixed",)
        outputs = tuple((_output_name(results, leaf), function.results[i]) for leaf, i in enumerate(order))
        return self._entry(
            label,
            Frame(self.graph, function),
            bound=concrete.bound,
            names=tuple(names),
            arguments=arguments,
            argument_names=tuple(positional),
            leaves=leaves,
            outputs=outputs,
            results=results,
            notes=notes,
        )

    def _from_definition(self, name: str, definition: Message) -> "Entry":
        """Enters by a signature that only the graph outside of the functions tells: those of TensorFlow 1."""
        inputs = {info.string(1): key for key, info in definition.map(1).items()}
        outputs = {key: info.string(1) for key, info in definition.map(2).items()}
        keys = tuple(sorted(outputs, key=_natural))
        names = tuple(sorted(inputs.values(), key=_natural))
        arguments, positional, leaves = _signature_call(names)
        return self._entry(
            f"the signature {name!r}",
            Frame(self.graph),
            names=names,
            placeholders={tensor.partition(":")[0]: names.index(key) for tensor, key in inputs.items()},
            arguments=arguments,
            argument_names=positional,
            leaves=leaves,
            outputs=tuple((key, outputs[key]) for key in keys),
            results=Tree("dict", keys, (LEAF,) * len(keys)),
        )


def _signature_call(names: Sequence[str]) -> tuple[Tree, tuple[str, ...], tuple[int, ...]]:
    """The tree of a call by a signature, the names of its positional arguments, and which leaf each tensor is.

    TensorFlow takes keywords only, since it forgets the order of the original function's arguments; one needs no order.
    """
    if len(names) == 1:
        return call_tree(LEAF), tuple(names), (0,)
    ordered = sorted(names)
    return call_tree(**dict.fromkeys(names, LEAF)), (), tuple(ordered.index(name) for name in names)


def _results(concrete: Concrete, function: TFFunction, *, is_signature: bool) -> tuple[Tree | None, tuple[int, ...]]:
    """Returns the tree of the results, and which result of the function each of its leaves is.

    A signature returns a dict. TensorFlow sorts its keys as text, `output_10` before `output_2`; here numbers count.
    """
    count = len(function.results)
    if concrete.results is None:
        return None, tuple(range(count))
    tree, kinds = structure(concrete.results, concrete.name)
    taken = [position for position, (kind, _) in enumerate(kinds) if kind == "tensor"]
    if len(taken) != count or len(kinds) != count:
        return None, tuple(range(count))
    if is_signature and tree.kind == "dict" and all(child.kind == "leaf" for child in tree.children):
        order = tuple(sorted(range(count), key=lambda i: _natural(tree.keys[i])))
        return Tree("dict", tuple(tree.keys[i] for i in order), tree.children), order
    return tree, tuple(range(count))


def _output_name(results: Tree | None, leaf: int) -> str | None:
    return str(results.keys[leaf]) if results is not None and results.kind == "dict" and _is_flat(results) else None


def _is_flat(tree: Tree) -> bool:
    return all(child.kind == "leaf" for child in tree.children)


def _natural(name: str) -> list[Any]:
    return [(1, int(part), "") if part.isdecimal() else (0, 0, part) for part in re.split(r"(\d+)", name)]


def _holds_xla(frame: Frame) -> bool:
    if frame.function is None:
        return True
    return any(node.op == XLA for inner in frames(frame) for node in inner.nodes.values())
