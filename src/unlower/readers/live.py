"""Live objects of JAX -> module and interface: `jax.stages.Traced`, `jax.stages.Lowered`, `jax.export.Exported`."""

from typing import Any

import jax

from unlower._jax_compat import exported_shardings, kept_arguments, node_builder
from unlower.errors import FormatError
from unlower.ir.interface import LEAF, NONE, ExportRecord, Source, Tree
from unlower.ir.key_path import AttributeKey, IndexKey, ItemKey
from unlower.ir.module import Module
from unlower.readers.elision import Elision
from unlower.readers.exported import Exported, LeafType, interface_from_exported
from unlower.readers.large.cut import cut_literals
from unlower.readers.large.source import Large
from unlower.readers.mlir_module import module_from_mlir
from unlower.readers.stablehlo_bytecode import read_bytecode

__all__ = ["read_exported", "read_lowered", "read_traced", "tree_from_definition"]


def read_exported(exported: Any, elision: Elision) -> Source:
    """Reads a `jax.export.Exported`."""
    artifact = cut_literals(Large(bytes(exported.mlir_module_serialized)), elision)
    module = read_bytecode(artifact, elision)
    inputs, outputs = exported_shardings(exported)
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
        argument_types=list(map(_type, exported.in_avals, inputs)),
        result_types=list(map(_type, exported.out_avals, outputs)),
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


def read_traced(traced: Any, elision: Elision) -> Module | Source:
    """Reads a `jax.stages.Traced`, lowered as JAX does by default."""
    return read_lowered(traced.lower(), elision)


def tree_from_definition(definition: Any) -> Tree:
    """The tree that a `jax.tree_util.PyTreeDef` is, its classes remembered."""
    data = definition.node_data()
    if data is None:
        return LEAF
    class_ = data[0]
    if class_ is type(None):
        return NONE
    children = tuple(map(tree_from_definition, definition.children()))
    if class_ in (tuple, list):
        return Tree("tuple" if class_ is tuple else "list", (), children)
    if class_ is dict:
        return Tree("dict", tuple(data[1]), children)
    name, make = f"{class_.__module__}.{class_.__qualname__}", node_builder(definition)
    keys = _keys(definition)
    if keys and all(isinstance(key, ItemKey) for key in keys):
        plain = tuple(key.key for key in keys)
        in_order = plain == tuple(range(len(plain)))
        return Tree("list" if in_order else "dict", () if in_order else plain, children, name, make)
    if all(isinstance(key, AttributeKey) for key in keys):
        return Tree("custom", tuple(key.name for key in keys), children, name, make)
    return Tree("custom", (), children, name, make)


def _keys(definition: Any) -> list[Any]:
    """The keys of the children of a node of a class of its own; positions where it has none, or cannot be built."""
    try:
        node = definition.unflatten(range(definition.num_leaves))
        pairs, _ = jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda inner: inner is not node)
    except Exception:  # noqa: BLE001 - a class that looks at its leaves when it is built
        pairs = []
    if len(pairs) != len(definition.children()):
        return [IndexKey(position) for position in range(len(definition.children()))]
    return [_key(path[0]) for path, _ in pairs]


def _key(key: Any) -> Any:
    """A key of JAX's as ours."""
    if isinstance(key, jax.tree_util.DictKey):
        return ItemKey(key.key)
    if isinstance(key, jax.tree_util.SequenceKey):
        return ItemKey(key.idx)
    if isinstance(key, jax.tree_util.GetAttrKey):
        return AttributeKey(key.name)
    return IndexKey(key.key if isinstance(key, jax.tree_util.FlattenedIndexKey) else -1)


def _type(aval: Any, sharding: Any = None) -> LeafType:
    dtype = aval.dtype
    if jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
        name = str(dtype)
    else:
        name = "float0" if dtype == jax.dtypes.float0 else dtype.name
    shape = tuple(size if isinstance(size, int) else str(size) for size in aval.shape)
    return LeafType(name, shape, _sharding(sharding))


def _sharding(sharding: Any) -> str | None:
    """The layout over devices in text."""
    if not hasattr(sharding, "spec"):
        return None if sharding is None else "an HLO sharding"
    sizes = ", ".join(f"{name}={size}" for name, size in sharding.mesh.shape.items())
    return f"PartitionSpec({', '.join(map(repr, sharding.spec))}) over ({sizes})"


def _class_name(thing: Any) -> str:
    return f"{type(thing).__module__}.{type(thing).__qualname__}"
