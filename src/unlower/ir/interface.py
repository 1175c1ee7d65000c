"""What a program takes and gives, as its caller sees it: trees of arguments and results, names, parameters, platforms.

A module has flat inputs and outputs; its `Interface` says what they mean. A reader that knows more than the module (the
trees of a jax.export file, the weights of a bundle) returns a `Source` with an interface of its own; for the others
`unlower.readers.names` finds what the module's own names tell.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from unlower.ir.key_path import AttributeKey, IndexKey, ItemKey, KeyPath, format_key_path
from unlower.ir.module import Module

__all__ = [
    "LEAF",
    "NONE",
    "ExportRecord",
    "Input",
    "Interface",
    "Output",
    "Role",
    "Source",
    "Tree",
    "call_path",
    "call_tree",
]

Kind = Literal["leaf", "none", "tuple", "list", "dict", "custom"]

Role = Literal["argument", "parameter", "platform_index", "dimension", "token"]
"""What fills an input: the caller; a weight that the file brings, unless the caller gives another; the place of the
running platform among the module's; a symbolic dimension, solved from the sizes of the arguments; nothing (a token)."""


@dataclasses.dataclass(frozen=True, slots=True)
class Tree:
    """A nested structure of leaves: what JAX calls a pytree, without its classes.

    Attributes:
      kind: what the node is; `"none"` is an empty node, and `"leaf"` one array.
      keys: one key a child: of a dict its keys, in order; of a custom node its fields, or positions where they are unknown;
        of a tuple or list the positions. Nothing stands for the positions 0, 1, 2, ....
      children: the subtrees, in order of their leaves.
      name: the class of a node that is none of Python's own, as the file spells it, or None.
      make: builds the node of its class from a sequence of children, where this process knows the class.

    Example:
      >>> tree = Tree("dict", ("b", "w"), (LEAF, LEAF))
      >>> tree.num_leaves, list(tree.paths()), str(tree)
      (2, [(ItemKey(key='b'),), (ItemKey(key='w'),)], "{'b': *, 'w': *}")
    """

    kind: Kind
    keys: tuple[Any, ...] = ()
    children: "tuple[Tree, ...]" = ()
    name: str | None = None
    make: Callable[[Sequence[Any]], Any] | None = dataclasses.field(default=None, compare=False, repr=False)

    @property
    def num_leaves(self) -> int:
        """The number of leaves."""
        return 1 if self.kind == "leaf" else sum(child.num_leaves for child in self.children)

    def paths(self) -> Iterator[KeyPath]:
        """Yields the key path of each leaf, in order."""
        if self.kind == "leaf":
            yield ()
        for key, child in self.items():
            for path in child.paths():
                yield (key, *path)

    def items(self) -> "Iterator[tuple[Any, Tree]]":
        """Yields the key and the subtree of each child, in order."""
        for key, child in zip(self.keys or range(len(self.children)), self.children, strict=True):
            if self.kind != "custom":
                yield ItemKey(key), child
            else:
                yield IndexKey(key) if isinstance(key, int) else AttributeKey(str(key)), child

    def __str__(self) -> str:
        inner = [str(child) for child in self.children]
        named = list(zip(self.keys, inner, strict=True)) if self.keys else []
        if self.kind == "leaf":
            return "*"
        if self.kind == "none":
            return "None"
        if self.kind == "dict":
            return f"{{{', '.join(f'{key!r}: {child}' for key, child in named)}}}"
        if self.kind == "custom":
            fields = [child if isinstance(key, int) else f"{key}={child}" for key, child in named] or inner
            return f"{(self.name or 'object').rpartition('.')[2]}({', '.join(fields)})"
        if named:
            # Some are unknown.
            inner = [f"{position}: {child}" for position, child in named]
        if self.kind == "tuple":
            return f"({', '.join(inner)}{',' if len(inner) == 1 else ''})"
        return f"[{', '.join(inner)}]"


LEAF = Tree("leaf")
NONE = Tree("none")


def call_tree(*arguments: Tree, **keywords: Tree) -> Tree:
    """The tree of a call, `(args, kwargs)`: what `Interface.arguments` is."""
    names = tuple(sorted(keywords))
    return Tree("tuple", (), (Tree("tuple", (), arguments), Tree("dict", names, tuple(keywords[n] for n in names))))


def call_path(path: KeyPath, names: Sequence[str | None]) -> str:
    """Spells the path of a leaf in the tree `(args, kwargs)`: `params['w']`, or `args[0]['w']` without the name."""
    which, key, *rest = path
    assert isinstance(key, ItemKey)
    root = str(key.key)
    if which == ItemKey(0):
        root = (names[key.key] if key.key < len(names) else None) or f"args[{key.key}]"
    return f"{root}{format_key_path(tuple(rest))}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One flat input of the module.

    Attributes:
      name: what to call it, e.g. `"params['dense']['kernel']"`, or None.
      role: what fills it.
      leaf: which leaf of `Interface.arguments` it is; None where there is no tree, or the caller does not give it.
      parameter: the key in `Interface.parameters` of the weight that fills it, or None.
      shape: the sizes as the file spells them, with symbols such as `"2*b+1"`; None where the module's type says it all.
      dtype: the dtype that the caller sees where it is not the module's: `"key<fry>"` for a PRNG key, whose module type is
        that of its bits, or `"float0"`; else None.
      sharding: how the file says it is laid out over devices, as text, or None.
    """

    name: str | None = None
    role: Role = "argument"
    leaf: int | None = None
    parameter: str | None = None
    shape: tuple[int | str, ...] | None = None
    dtype: str | None = None
    sharding: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """One flat output of the module; fields as of `Input`, `leaf` counts in `Interface.results`."""

    name: str | None = None
    role: Literal["result", "token"] = "result"
    leaf: int | None = None
    shape: tuple[int | str, ...] | None = None
    dtype: str | None = None
    sharding: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ExportRecord:
    """What a jax.export file says besides the module and its signature.

    Attributes:
      function_name: the Python function's name.
      jax_version: the JAX that wrote the file, where it says so (since July 2026).
      serialization_version: the version of the file's schema; 2 in every file before July 2026.
      calling_convention_version: the version of the module's calling convention.
      num_devices: the number of devices the module was lowered for.
      ordered_effects: the class names of effects that tokens order.
      unordered_effects: the class names of other effects.
      disabled_checks: the safety checks that the exporter turned off, such as `custom_call:my_target`.
      uses_global_constants: whether the module needs a platform index or dimensions.
      vjp: the pullback that the file nests (arguments: the primals, then the cotangents), itself a record, or None. The
        loaded program has its own derivatives and does not use it; `unlower.load(record)` loads it.
      data: the bytes of the file.
      position: where the record's table starts in `data`.
    """

    function_name: str
    jax_version: str | None
    serialization_version: int
    calling_convention_version: int
    num_devices: int
    ordered_effects: tuple[str, ...]
    unordered_effects: tuple[str, ...]
    disabled_checks: tuple[str, ...]
    uses_global_constants: bool
    vjp: "ExportRecord | None"
    data: bytes = dataclasses.field(repr=False)
    position: int = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Interface:
    """What the flat inputs and outputs of a module mean.

    Attributes:
      inputs: one record for each flat input, in the module's order.
      outputs: one record for each flat output, in the module's order.
      arguments: the tree of the original call, `(args, kwargs)` (see `call_tree`); it may hold leaves that the module
        does not take, since unused arguments are pruned. None where the file tells nothing.
      complete: whether `arguments` is all of the original tree. Else it holds what the module kept, and the call may have
        more.
      argument_names: the names of the positional arguments, as far as known.
      argument_types: dtype and sizes of each leaf of `arguments`, pruned ones included, where the file tells them.
      results: the tree of the original result, or None.
      parameters: the weights that the file brings, by name; arrays, or any mapping that makes them when asked.
      platforms: the platforms that the module was lowered for, in the order of its platform index.
      platform: the one that loading chose, or None where there is no choice.
      fixed: the inputs that the file's module has and the loaded one lacks, position in the file's module -> value.
      returned: which results of the file's module the outputs are, or None where they are all of them.
      export: the record of the jax.export file, or None.
      notes: what the caller should know, one sentence each.
    """

    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    arguments: Tree | None = None
    complete: bool = True
    argument_names: tuple[str | None, ...] = ()
    argument_types: tuple[str, ...] | None = None
    results: Tree | None = None
    parameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    platforms: tuple[str, ...] = ()
    platform: str | None = None
    fixed: Mapping[int, Any] = dataclasses.field(default_factory=dict)
    returned: tuple[int, ...] | None = None
    export: ExportRecord | None = None
    notes: tuple[str, ...] = ()


class Source(NamedTuple):
    """What a reader returns: the module, and what its inputs and outputs mean."""

    module: Module
    interface: Interface
