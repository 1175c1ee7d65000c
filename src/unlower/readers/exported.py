"""From what JAX says of an exported or lowered function to its interface, whether it says so in a file or in this process."""

import dataclasses
from collections.abc import Sequence

from unlower.errors import FormatError
from unlower.ir.dimensions import parse_dimension
from unlower.ir.interface import ExportRecord, Input, Interface, Output, Tree, call_path
from unlower.ir.key_path import AttributeKey, ItemKey, KeyPath, format_key_path, parse_key_path
from unlower.ir.module import Module, Value
from unlower.ir.types import TensorType
from unlower.readers.names import leaf_types, roles_and_names

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
      notes: what the caller should know.
    """

    arguments: Tree
    results: Tree
    argument_types: Sequence[LeafType]
    result_types: Sequence[LeafType]
    kept: Sequence[int]
    platforms: tuple[str, ...] = ()
    record: ExportRecord | None = None
    notes: tuple[str, ...] = ()


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
    leaf_of = dict(zip(arrays, exported.kept, strict=True))
    roots = _positional_names(exported.arguments, {leaf: names[i] for i, leaf in leaf_of.items()})
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
        outputs=_outputs(module, exported),
        arguments=exported.arguments,
        argument_names=roots,
        argument_types=tuple(map(str, exported.argument_types)),
        results=exported.results,
        platforms=exported.platforms,
        export=exported.record,
        notes=exported.notes,
    )


def _outputs(module: Module, exported: Exported) -> tuple[Output, ...]:
    body = module.main.body
    tokens = len(body.results) - len(exported.result_types)
    if tokens < 0 or any(isinstance(v.type, TensorType) and v.type.element != "i1" for v in body.results[:tokens]):
        raise FormatError(
            f"the file has {len(exported.result_types)} results, its module {len(body.results)}", mend=_MEND
        )
    outputs = [Output(role="token")] * tokens
    for leaf, (value, type_, path) in enumerate(
        zip(body.results[tokens:], exported.result_types, exported.results.paths(), strict=True)
    ):
        name = f"result{format_key_path(path)}"
        _check_type(value, type_, name)
        outputs.append(
            Output(name=name, leaf=leaf, shape=type_.shape, dtype=_seen_dtype(value, type_), sharding=type_.sharding)
        )
    return tuple(outputs)


def _positional_names(tree: Tree, names: dict[int, str | None]) -> tuple[str | None, ...]:
    """The names of the positional arguments, where those of their leaves agree on one."""
    if len(tree.children) != 2:
        raise FormatError("the tree of the arguments is not of (args, kwargs)", mend=_MEND)
    roots: list[str | None] = []
    leaf = 0
    for argument in tree.children[0].children:
        found: set[str | None] = set()
        for path in argument.paths():
            name = names.get(leaf)
            parsed = parse_key_path(name) if name else None
            if parsed is not None:
                found.add(parsed[0] if parsed[0] and _same(parsed[1], path) else None)
            leaf += 1
        roots.append(found.pop() if len(found) == 1 else None)
    return tuple(roots)


def _same(named: KeyPath, path: KeyPath) -> bool:
    """Whether a key path read from a name is a path in the tree, whose custom nodes may not know their fields."""
    return len(named) == len(path) and all(
        a == b or not isinstance(a, ItemKey) or not isinstance(b, ItemKey | AttributeKey)
        for a, b in zip(named, path, strict=True)
    )


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
