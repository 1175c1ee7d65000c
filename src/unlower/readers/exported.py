"""From what JAX says of an exported or lowered function to its interface, whether it says so in a file or in this process."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from unlower.errors import FormatError
from unlower.ir.dimensions import parse_dimension
from unlower.ir.interface import ExportRecord, Input, Interface, Output, Tree, call_path
from unlower.ir.key_path import AttributeKey, ItemKey, KeyPath, format_key_path, parse_key_path
from unlower.ir.module import Module, Value
from unlower.ir.types import TensorType
from unlower.readers.names import class_notes, leaf_types, output_names, roles_and_names

__all__ = ["Exported", "LeafType", "interface_from_exported"]

_MEND = "the file is damaged; copy or write it again"


@dataclasses.dataclass(frozen=True, slots=True)
class LeafType:
    """The type of an argument or a result, as the caller sees it.

    Attributes:
      dtype: `"float32"`; `"key<fry>"` and its like for PRNG keys, `"float0"` for the tangents of integers.
      shape: the sizes; a string is a symbolic one.
      sharding: the layout over devices as text, or None.
    """

    dtype: str
    shape: tuple[int | str, ...]
    sharding: str | None = None

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(str(size).replace(' ', '') for size in self.shape)}]"


@dataclasses.dataclass(frozen=True, slots=True)
class Exported:
    """What a `jax.export.Exported`, its file, or a `jax.stages.Lowered` says of the call.

    Attributes:
      arguments: the tree of `(args, kwargs)`.
      results: the tree of the result.
      argument_types: one for each leaf of `arguments`.
      result_types: one for each leaf of `results`.
      kept: the leaves of `arguments` that the module takes, in its order.
      platforms: the platforms that the module was lowered for.
      record: the rest, or None.
    """

    arguments: Tree
    results: Tree
    argument_types: Sequence[LeafType]
    result_types: Sequence[LeafType]
    kept: Sequence[int]
    platforms: tuple[str, ...] = ()
    record: ExportRecord | None = None


def interface_from_exported(module: Module, exported: Exported) -> Interface:
    """Says what the inputs and outputs of a module mean.

    Raises:
      FormatError: the module and what is said of it do not fit.
    """
    names, roles = roles_and_names(module)
    values = module.main.body.arguments
    arrays = [i for i, role in enumerate(roles) if role == "argument"]
    if len(exported.platforms) > 1 and "platform_index" not in roles and len(arrays) == len(exported.kept) + 1:
        roles[arrays.pop(0)] = "platform_index"
    if len(arrays) != len(exported.kept):
        raise FormatError(f"the file keeps {len(exported.kept)} arguments, its module takes {len(arrays)}", mend=_MEND)
    paths = list(exported.arguments.paths())
    for what, tree, types in (
        ("arguments", exported.arguments, exported.argument_types),
        ("results", exported.results, exported.result_types),
    ):
        if tree.num_leaves != len(types):
            raise FormatError(
                f"the tree of the {what} has {tree.num_leaves} leaves, and {len(types)} types", mend=_MEND
            )
    if any(leaf >= len(paths) for leaf in exported.kept):
        raise FormatError(f"the module takes argument {max(exported.kept)} of {len(paths)}", mend=_MEND)
    if len(exported.arguments.children) != 2:
        raise FormatError("the tree of the arguments is not of (args, kwargs)", mend=_MEND)
    leaf_of = dict(zip(arrays, exported.kept, strict=True))
    roots = _positional_names(exported.arguments, {leaf: names[i] for i, leaf in leaf_of.items()})
    result_names = [name for name, _ in output_names(module.main)]
    exported = _named(exported, {leaf: names[i] for i, leaf in leaf_of.items()}, result_names)
    paths = list(exported.arguments.paths())
    inputs: list[Input] = []
    for i, (value, role) in enumerate(zip(values, roles, strict=True)):
        leaf = leaf_of.get(i)
        if leaf is None:
            inputs.append(Input(name=names[i], role=role))
            continue
        type_ = exported.argument_types[leaf]
        name = names[i] or call_path(paths[leaf], roots)
        _check_type(value, type_, name)
        inputs.append(
            Input(name=name, leaf=leaf, shape=type_.shape, dtype=_seen_dtype(value, type_), sharding=type_.sharding)
        )
    return Interface(
        inputs=tuple(inputs),
        outputs=_outputs(module, exported, result_names),
        arguments=exported.arguments,
        argument_names=roots,
        argument_types=tuple(map(str, exported.argument_types)),
        results=exported.results,
        platforms=exported.platforms,
        export=exported.record,
        notes=class_notes(exported.arguments, exported.results),
    )


def _outputs(module: Module, exported: Exported, names: Sequence[str | None]) -> tuple[Output, ...]:
    body = module.main.body
    tokens = len(body.results) - len(exported.result_types)
    if tokens < 0 or any(isinstance(v.type, TensorType) and v.type.element != "i1" for v in body.results[:tokens]):
        raise FormatError(
            f"the file has {len(exported.result_types)} results, its module {len(body.results)}", mend=_MEND
        )
    outputs = [Output(role="token")] * tokens
    for leaf, (value, type_, path, name) in enumerate(
        zip(body.results[tokens:], exported.result_types, exported.results.paths(), names[tokens:], strict=True)
    ):
        called = name if name and name.startswith("result") else f"result{format_key_path(path)}"
        _check_type(value, type_, called)
        outputs.append(
            Output(name=called, leaf=leaf, shape=type_.shape, dtype=_seen_dtype(value, type_), sharding=type_.sharding)
        )
    return tuple(outputs)


def _positional_names(tree: Tree, names: dict[int, str | None]) -> tuple[str | None, ...]:
    """What the positional arguments are called, where the names of their leaves agree: `params`, or `rest[0]` of `*rest`."""
    roots: list[str | None] = []
    leaf = 0
    for argument in tree.children[0].children:
        found: set[str | None] = set()
        for path in argument.paths():
            parsed = parse_key_path(names.get(leaf) or "")
            if parsed is not None and parsed[0]:
                root, named = parsed
                above = named[: len(named) - len(path)]
                fits = len(named) >= len(path) and len(above) <= 1
                found.add(f"{root}{format_key_path(above)}" if fits else None)
            leaf += 1
        roots.append(found.pop() if len(found) == 1 else None)
    return tuple(roots)


def _named(exported: Exported, arguments: dict[int, str | None], results: Sequence[str | None]) -> Exported:
    """Gives custom nodes of unknown classes the fields that the names in the module tell."""
    paths: list[KeyPath | None] = []
    positional, keywords = exported.arguments.children
    for which, (place, tree) in (
        *((0, item) for item in positional.items()),
        *((1, item) for item in keywords.items()),
    ):
        for path in tree.paths():
            parsed = parse_key_path(arguments.get(len(paths)) or "")
            # Under the root there may be more than in the tree: the position in `*rest`, the key in `**kwargs`.
            own = None if parsed is None else parsed[1][max(0, len(parsed[1]) - len(path)) :]
            paths.append(None if own is None or len(own) != len(path) else (ItemKey(which), place, *own))
    found = [parse_key_path(name) if name else None for name in results[len(results) - len(exported.result_types) :]]
    trees = [
        _with_fields(exported.arguments, paths),
        _with_fields(exported.results, [None if parsed is None else parsed[1] for parsed in found]),
    ]
    # A node with an empty child does not tell all its fields, but another of its class may.
    known = {(node.name, len(node.children)): node.keys for tree in trees for node in _custom_nodes(tree) if node.keys}
    made = [_with_known_fields(tree, known) for tree in trees]
    return dataclasses.replace(exported, arguments=made[0], results=made[1])


def _custom_nodes(tree: Tree) -> Iterator[Tree]:
    if tree.kind == "custom":
        yield tree
    for child in tree.children:
        yield from _custom_nodes(child)


def _with_known_fields(tree: Tree, known: Mapping[tuple[str | None, int], tuple[Any, ...]]) -> Tree:
    keys = tree.keys or (known.get((tree.name, len(tree.children)), ()) if tree.kind == "custom" else ())
    children = tuple(_with_known_fields(child, known) for child in tree.children)
    return dataclasses.replace(tree, keys=keys, children=children)


def _with_fields(tree: Tree, names: Sequence[KeyPath | None], start: int = 0, depth: int = 0) -> Tree:
    """The tree with the fields of its custom nodes, as far as the key paths of its leaves tell them."""
    children: list[Tree] = []
    keys: list[Any] = []
    for child in tree.children:
        count = child.num_leaves
        paths = [path for path in names[start : start + count] if path is not None and len(path) > depth]
        key = paths[0][depth] if paths else None
        keys.append(key.name if isinstance(key, AttributeKey) else key.key if isinstance(key, ItemKey) else None)
        children.append(_with_fields(child, names, start, depth + 1))
        start += count
    if tree.kind == "custom" and not tree.keys and all(isinstance(key, str) for key in keys):
        return dataclasses.replace(tree, keys=tuple(keys), children=tuple(children))
    return dataclasses.replace(tree, children=tuple(children)) if children else tree


def _check_type(value: Value, type_: LeafType, name: str) -> None:
    (own,) = leaf_types(value.type)
    variables = [parse_dimension(size) for size in type_.shape if isinstance(size, str)]
    assert all(variable.kind for variable in variables)
    if not isinstance(own, TensorType):
        raise FormatError(f"{name} is {type_} in the file, and {own} in its module", mend=_MEND)
    special = type_.dtype.startswith("key<") or type_.dtype == "float0"
    sizes = own.shape[: len(type_.shape)]
    fits = len(own.shape) == len(type_.shape) or (special and len(own.shape) > len(type_.shape))
    fits = fits and all(isinstance(a, str) or b is None or a == b for a, b in zip(type_.shape, sizes, strict=True))
    if not fits or (not special and own.dtype.name != type_.dtype):
        raise FormatError(f"{name} is {type_} in the file, and {own} in its module", mend=_MEND)


def _seen_dtype(value: Value, type_: LeafType) -> str | None:
    return None if value.type.dtype.name == type_.dtype else type_.dtype  # pyright: ignore[reportAttributeAccessIssue]
