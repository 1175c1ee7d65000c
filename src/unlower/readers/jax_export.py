"""jax.export files -> module and interface, of every JAX since 0.4.30, whatever their age.

`Exported.serialize()` writes one FlatBuffer without a file identifier. Its schema is `jax/_src/export/serialization.fbs`; the
numbers here are the positions of the fields in its tables. Fields came with time and some went; what a file does not have is
read from where older or newer ones keep it. No version is refused by its number: `serialization_version` was 2 or 3 in every
file before July 2026.
"""

import json
from collections.abc import Iterator, Sequence

from unlower._jax_compat import registered_node
from unlower.errors import FormatError
from unlower.ir.interface import LEAF, NONE, ExportRecord, Source, Tree
from unlower.ir.module import Module
from unlower.readers.elision import Elision
from unlower.readers.exported import Exported, LeafType, interface_from_exported
from unlower.readers.flatbuffer import Table, root_table
from unlower.readers.large.cut import cut_literals
from unlower.readers.large.source import Large
from unlower.readers.mlir_bytecode import MAGIC
from unlower.readers.stablehlo_bytecode import read_bytecode

__all__ = ["exported_module", "is_jax_export", "read_jax_export", "read_record"]

# Exported
_VERSION, _NAME, _IN_TREE, _IN_AVALS, _OUT_TREE, _OUT_AVALS, _DEVICES_SHORT, _IN_SHARDINGS, _OUT_SHARDINGS = range(9)
_PLATFORMS, _ORDERED, _UNORDERED, _CHECKS, _MODULE, _CONVENTION, _KEPT, _GLOBAL_CONSTANTS, _VJP, _DEVICES = range(9, 19)
_AVALS, _MESHES, _SHARDINGS, _IN_AVAL_IDS, _OUT_AVAL_IDS, _IN_SHARDING_IDS, _OUT_SHARDING_IDS, _JAX = range(19, 27)
# PyTreeDef
_KIND, _CHILDREN, _CHILD_NAMES, _CUSTOM_NAME, _CUSTOM_DATA = range(5)
_LEAF, _NONE, _TUPLE, _LIST, _DICT, _CUSTOM = range(6)
# AbstractValue
_AVAL_KIND, _SHAPE, _DTYPE = range(3)
_ARRAY = 0
# Sharding, NamedSharding, AbstractMesh, PartitionSpec
_HLO_SHARDING, _NAMED = 1, 2
_MESH, _SPEC, _MEMORY, _MESH_ID = range(4)

_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_FLOATS = ("float16", "float32", "float64", "complex64", "complex128", "bfloat16")
_SMALL = (
    *("int4", "uint4", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"),
    *("float0", "float8_e4m3", "float8_e3m4", "float8_e8m0fnu", "float4_e2m1fn"),
)
_DTYPES = ("bool", *_INTEGERS, *_FLOATS, *_SMALL, "key<fry>", "key<rbg>", "key<urbg>")
"""The dtypes in the order of the schema's enumeration."""

_MOST_NESTED = 200
_MOST_PULLBACKS = 16
_MEND = "copy or write the file again; it is cut off or changed"


def is_jax_export(data: bytes) -> bool:
    """Whether `data` is a FlatBuffer that holds an MLIR module where jax.export puts it."""
    if len(data) < 64 or MAGIC not in data:
        return False
    try:
        return root_table(data).begins(_MODULE, MAGIC)
    except FormatError:
        return False


def read_jax_export(data: bytes, elision: Elision) -> Source:
    """Reads a jax.export file.

    Raises:
      FormatError: damaged bytes, or a module of a StableHLO newer than this jaxlib.
    """
    return _read(root_table(data), data, elision)


def read_record(record: ExportRecord, elision: Elision) -> Source:
    """Reads what a record stands for: a pullback that a file nests, say."""
    return _read(Table(record.data, record.position), record.data, elision)


def exported_module(data: bytes, position: int | None = None) -> bytes:
    """Returns the portable artifact in a jax.export file, or in the record of it that starts at `position`."""
    table = root_table(data) if position is None else Table(data, position)
    return table.bytes(_MODULE) or b""


def _read(table: Table, data: bytes, elision: Elision) -> Source:
    budget = _Budget(len(data))
    shardings = _Shardings(table)
    exported = Exported(
        arguments=_tree(_needed(table, _IN_TREE, "in_tree"), budget),
        results=_tree(_needed(table, _OUT_TREE, "out_tree"), budget),
        argument_types=_types(table, _IN_AVAL_IDS, _IN_AVALS, shardings.of(_IN_SHARDING_IDS, _IN_SHARDINGS)),
        result_types=_types(table, _OUT_AVAL_IDS, _OUT_AVALS, shardings.of(_OUT_SHARDING_IDS, _OUT_SHARDINGS)),
        kept=table.numbers(_KEPT, "H"),
        platforms=table.strings(_PLATFORMS),
        record=_record(table, data),
    )
    artifact = cut_literals(Large(table.bytes(_MODULE) or b""), elision)
    module: Module = read_bytecode(artifact, elision)
    return Source(module, interface_from_exported(module, exported))


def _needed(table: Table, field: int, name: str) -> Table:
    found = table.table(field)
    if found is None:
        raise FormatError(f"damaged jax.export file: {name} is missing", mend=_MEND)
    return found


def _record(table: Table, data: bytes, depth: int = 0) -> ExportRecord:
    if depth > _MOST_PULLBACKS:
        raise FormatError(f"a jax.export file with more than {_MOST_PULLBACKS} nested pullbacks", mend=_MEND)
    vjp = table.table(_VJP)
    checks = [
        f"custom_call:{check.string(1)}" if check.number(0, "b") == 1 else ("platform", "", "shape_assertions")[kind]
        for check in table.tables(_CHECKS)
        if (kind := check.number(0, "b")) in (0, 1, 2)
    ]
    return ExportRecord(
        function_name=table.string(_NAME) or "",
        jax_version=table.string(_JAX),
        serialization_version=table.number(_VERSION, "H"),
        calling_convention_version=table.number(_CONVENTION, "H"),
        num_devices=table.number(_DEVICES, "I") or table.number(_DEVICES_SHORT, "h"),
        ordered_effects=_effects(table, _ORDERED),
        unordered_effects=_effects(table, _UNORDERED),
        disabled_checks=tuple(checks),
        uses_global_constants=bool(table.number(_GLOBAL_CONSTANTS, "?")),
        vjp=None if vjp is None else _record(vjp, data, depth + 1),
        data=data,
        position=table.position,
    )


def _effects(table: Table, field: int) -> tuple[str, ...]:
    return tuple(
        [(effect.string(0) or "").removeprefix("<class '").removesuffix("'>") for effect in table.tables(field)]
    )


# --- trees


class _Budget:
    """Counts nodes: tables can be shared, and a small file could describe a tree without end."""

    def __init__(self, size: int):
        # A node that is not shared takes a table (its offset to a vtable) and a reference to it.
        self.left = size // 8 + 1

    def take(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise FormatError("damaged jax.export file: a tree with more nodes than the file has room for", mend=_MEND)


def _tree(node: Table, budget: _Budget, depth: int = 0) -> Tree:
    budget.take()
    if depth > _MOST_NESTED:
        raise FormatError(f"a jax.export file with a tree nested over {_MOST_NESTED} deep", mend=_MEND)
    kind = node.number(_KIND, "b")
    if kind == _LEAF:
        return LEAF
    if kind == _NONE:
        return NONE
    children = tuple([_tree(child, budget, depth + 1) for child in node.tables(_CHILDREN)])
    if kind in (_TUPLE, _LIST):
        return Tree("tuple" if kind == _TUPLE else "list", (), children)
    if kind == _DICT:
        keys = node.strings(_CHILD_NAMES)
        if len(keys) != len(children) or len(set(keys)) != len(keys):
            raise FormatError(f"damaged jax.export file: a dict of {len(children)} with {len(keys)} keys", mend=_MEND)
        return Tree("dict", keys, children)
    if kind == _CUSTOM:
        return _custom(node.string(_CUSTOM_NAME) or "", node.bytes(_CUSTOM_DATA) or b"", children)
    raise FormatError(f"damaged jax.export file: a tree node of kind {kind}", mend=_MEND)


def _custom(name: str, data: bytes, children: tuple[Tree, ...]) -> Tree:
    """A node of a class of its own. Named tuples and ordered dicts have the names of their children in their data."""
    keys = _keys(data, len(children)) or ()
    kind = "dict" if keys and name == "collections.OrderedDict" else "custom"
    return Tree(kind, keys, children, name, registered_node(name, data))


def _keys(data: bytes, count: int) -> tuple[str, ...] | None:
    try:
        names = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(names, list) or len(names) != count or not all(isinstance(name, str) for name in names):
        return None
    return tuple(names) if len(set(names)) == count else None


# --- types and shardings


def _types(table: Table, ids: int, avals: int, shardings: Sequence[str | None]) -> list[LeafType]:
    if numbers := table.numbers(ids, "I"):
        unique = table.tables(_AVALS)
        if max(numbers) >= len(unique):
            raise FormatError(f"damaged jax.export file: type {max(numbers)} of {len(unique)}", mend=_MEND)
        found = [unique[number] for number in numbers]
    else:
        found = table.tables(avals)
    padded = [*shardings, *[None] * (len(found) - len(shardings))]
    return [_type(aval, sharding) for aval, sharding in zip(found, padded, strict=False)]


def _type(aval: Table, sharding: str | None) -> LeafType:
    number = aval.number(_DTYPE, "b")
    if aval.number(_AVAL_KIND, "b") != _ARRAY or not 0 <= number < len(_DTYPES):
        raise FormatError(f"a jax.export file with an unknown dtype, number {number}", mend="upgrade unlower, or jax")
    # A size, as JAX spells it: a number or an expression.
    sizes = [int(size) if size.isascii() and size.isdecimal() else size for size in aval.strings(_SHAPE)]
    return LeafType(_DTYPES[number], tuple(sizes), sharding)


class _Shardings:
    """The shardings of a file: a table of distinct ones since April 2026, one for each array before."""

    def __init__(self, table: Table):
        self._table = table
        self._meshes = [_mesh(mesh) for mesh in table.tables(_MESHES)]
        self._unique = [self._named(sharding) for sharding in table.tables(_SHARDINGS)]

    def of(self, ids: int, each: int) -> list[str | None]:
        """The sharding of each array, in text."""
        if numbers := self._table.numbers(ids, "I"):
            if max(numbers) > len(self._unique):
                raise FormatError(
                    f"damaged jax.export file: sharding {max(numbers)} of {len(self._unique)}", mend=_MEND
                )
            return [self._unique[number - 1] if number else None for number in numbers]
        return [self._any(sharding) for sharding in self._table.tables(each)]

    def _any(self, sharding: Table) -> str | None:
        named = sharding.table(_NAMED)
        if named is not None:
            return self._named(named)
        return "an HLO sharding" if sharding.has(_HLO_SHARDING) else None

    def _named(self, sharding: Table) -> str:
        number, own = sharding.number(_MESH_ID, "I"), sharding.table(_MESH)
        mesh = self._meshes[number] if number < len(self._meshes) else "" if own is None else _mesh(own)
        spec = sharding.table(_SPEC)
        text = f"PartitionSpec({', '.join(_partitions(spec) if spec is not None else ())})"
        memory = sharding.string(_MEMORY)
        return f"{text} over {mesh}{f' in {memory}' if memory and memory != 'device' else ''}"


def _mesh(mesh: Table) -> str:
    sizes = mesh.numbers(0, "I")
    return f"({', '.join(f'{name}={size}' for name, size in zip(mesh.strings(1), sizes, strict=False))})"


def _partitions(spec: Table) -> Iterator[str]:
    for partition in spec.tables(0):
        axes = partition.strings(0)
        yield repr(axes[0] if len(axes) == 1 else axes or None)
    for field, name in ((1, "reduced"), (2, "unreduced")):
        if axes := spec.strings(field):
            yield f"{name}={{{', '.join(map(repr, sorted(axes)))}}}"
