"""Live objects of JAX -> module and interface: `jax.stages.Lowered`, `jax.export.Exported`."""

from typing import Any

import jax

from unlower._jax_compat import kept_arguments, node_builder
from unlower.errors import FormatError
from unlower.ir.interface import LEAF, NONE, ExportRecord, Source, Tree
from unlower.ir.key_path import AttributeKey, IndexKey, ItemKey, KeyPath
from unlower.ir.module import Module
from unlower.readers.elision import Elision
from unlower.readers.exported import Exported, LeafType, interface_from_exported
from unlower.readers.mlir_module import module_from_mlir
from unlower.readers.stablehlo_bytecode import read_bytecode

__all__ = ["read_exported", "read_lowered", "tree_from_definition"]


def read_exported(exported: Any, elision: Elision) -> Source:
    """Reads a `jax.export.Exported`."""
    module = read_bytecode(bytes(exported.mlir_module_serialized), elision)
    record = ExportRecord(
        function_name=exported.fun_name,
        jax_version=None,
        serialization_version=0,
        calling_convention_version=exported.calling_convention_version,
        num_devices=exported.nr_devices,
        ordered_effects=tuple(_class_name(effect) for effect in exported.ordered_effects),
        unordered_effects=tuple(_class_name(effect) for effect in exported.unordered_effects),
        disabled_checks=tuple(map(str, exported.disabled_safety_checks)),
        uses_global_constants=exported.uses_global_constants,
        vjp=None,
        data=b"",
        position=0,
    )
    found = Exported(
        arguments=tree_from_definition(exported.in_tree),
        results=tree_from_definition(exported.out_tree),
        argument_types=[_type(aval) for aval in exported.in_avals],
        result_types=[_type(aval) for aval in exported.out_avals],
        kept=exported.module_kept_var_idx,
        platforms=tuple(exported.platforms),
        record=record,
    )
    return Source(module, interface_from_exported(module, found))


def read_lowered(lowered: Any, elision: Elision) -> Module | Source:
    """Reads a `jax.stages.Lowered`."""
    module = module_from_mlir(lowered.compiler_ir("stablehlo"), elision)
    types = [_type(info) for info in jax.tree_util.tree_leaves(lowered.args_info)]
    results = [_type(info) for info in jax.tree_util.tree_leaves(lowered.out_info)]
    kept = kept_arguments(lowered)
    found = Exported(
        arguments=tree_from_definition(lowered.in_tree),
        results=tree_from_definition(lowered.out_tree),
        argument_types=types,
        result_types=results,
        kept=range(len(types)) if kept is None else kept,
    )
    try:
        return Source(module, interface_from_exported(module, found))
    except FormatError:
        # Lowered with conventions of its own (constants as arguments, say): the names are what is left.
        return module


def tree_from_definition(definition: Any) -> Tree:
    """The tree that a `jax.tree_util.PyTreeDef` is, its classes remembered."""
    count = definition.num_leaves
    try:
        paths: list[Any] = [
            path for path, _ in jax.tree_util.tree_flatten_with_path(definition.unflatten(range(count)))[0]
        ]
    except Exception:  # noqa: BLE001 - a class that looks at its leaves when it is built; its fields stay unknown
        paths = []
    if len(paths) != count:
        paths = [None] * count
    return _tree(definition, [path and tuple(map(_key, path)) for path in paths], 0)


def _tree(definition: Any, paths: list[KeyPath | None], depth: int) -> Tree:
    data = definition.node_data()
    if data is None:
        return LEAF
    class_ = data[0]
    if class_ is type(None):
        return NONE
    children: list[Tree] = []
    keys: list[Any] = []
    start = 0
    for position, child in enumerate(definition.children()):
        inner = paths[start : start + child.num_leaves]
        start += child.num_leaves
        children.append(_tree(child, inner, depth + 1))
        path = inner[0] if inner else None
        keys.append(path[depth] if path is not None and len(path) > depth else IndexKey(position))
    if class_ in (tuple, list):
        return Tree("tuple" if class_ is tuple else "list", (), tuple(children))
    if class_ is dict:
        return Tree("dict", tuple(data[1]), tuple(children))
    name, make = f"{class_.__module__}.{class_.__qualname__}", node_builder(definition)
    if keys and all(isinstance(key, ItemKey) for key in keys):
        plain = tuple(key.key for key in keys)
        kind = "list" if plain == tuple(range(len(plain))) else "dict"
        return Tree(kind, plain if kind == "dict" else (), tuple(children), name, make)
    fields = tuple(key.name if isinstance(key, AttributeKey) else position for position, key in enumerate(keys))
    return Tree("custom", fields, tuple(children), name, make)


def _key(key: Any) -> Any:
    """A key of JAX's as ours."""
    if isinstance(key, jax.tree_util.DictKey):
        return ItemKey(key.key)
    if isinstance(key, jax.tree_util.SequenceKey):
        return ItemKey(key.idx)
    if isinstance(key, jax.tree_util.GetAttrKey):
        return AttributeKey(key.name)
    return IndexKey(key.key if isinstance(key, jax.tree_util.FlattenedIndexKey) else -1)


def _type(aval: Any) -> LeafType:
    dtype = aval.dtype
    if jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
        name = str(dtype)
    else:
        name = "float0" if dtype == jax.dtypes.float0 else dtype.name
    shape = tuple(size if isinstance(size, int) else str(size) for size in aval.shape)
    return LeafType(name, shape, _sharding(getattr(aval, "sharding", None)))


def _sharding(sharding: Any) -> str | None:
    """The layout over devices in text, where there is one worth saying."""
    spec = getattr(sharding, "spec", None)
    if spec is None or not any(part is not None for part in spec):
        return None
    sizes = ", ".join(f"{name}={size}" for name, size in sharding.mesh.shape.items())
    return f"{spec} over ({sizes})"


def _class_name(thing: Any) -> str:
    return f"{type(thing).__module__}.{type(thing).__qualname__}"
