"""Writes FlatBuffers, and jax.export files of any age from live exports, for the tests of the readers.

An independent writer of `jax/_src/export/serialization.fbs`: the tests need no `flatbuffers`, and can write what today's JAX
does not any more.
"""

import collections
import json
import struct

import jax

LEAF, NONE, TUPLE, LIST, DICT, CUSTOM = range(6)
NAMES = {
    0: ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    9: ("float16", "float32", "float64", "complex64", "complex128", "bfloat16"),
    27: ("key<fry>",),
}
DTYPES = {name: first + i for first, names in NAMES.items() for i, name in enumerate(names)}


class Writer:
    """Writes tables forward: a table, and then what it refers to. Values are `(kind, value)` by field number."""

    def __init__(self):
        self.data = bytearray(4)

    def finish(self, fields):
        struct.pack_into("<I", self.data, 0, self.table(fields))
        return bytes(self.data)

    def table(self, fields):
        fields = {number: field for number, field in fields.items() if field[1] is not None}
        places, size = {}, 4
        for number, (kind, _) in fields.items():
            places[number] = size
            size += struct.calcsize(kind) if len(kind) == 1 else 4
        count = max(fields, default=-1) + 1
        vtable = struct.pack(f"<{count + 2}H", 4 + 2 * count, size, *(places.get(i, 0) for i in range(count)))
        self.data += vtable
        position = len(self.data)
        self.data += struct.pack("<i", len(vtable)) + bytes(size - 4)
        for number, (kind, value) in fields.items():
            at = position + places[number]
            if len(kind) == 1:
                struct.pack_into(f"<{kind}", self.data, at, value)
            else:
                self.refer(at, getattr(self, kind)(value))
        return position

    def refer(self, at, target):
        struct.pack_into("<I", self.data, at, target - at)

    def bytes(self, value):
        position = len(self.data)
        self.data += struct.pack("<I", len(value)) + value
        return position

    def string(self, value):
        return self.bytes(value.encode())

    def numbers(self, value):
        kind, numbers = value
        position = len(self.data)
        self.data += struct.pack(f"<I{len(numbers)}{kind}", len(numbers), *numbers)
        return position

    def each(self, values, write):
        position = len(self.data)
        self.data += struct.pack("<I", len(values)) + bytes(4 * len(values))
        written = {}  # what is one object here is one there
        for i, value in enumerate(values):
            if id(value) not in written:
                written[id(value)] = write(value)
            self.refer(position + 4 + 4 * i, written[id(value)])
        return position

    def tables(self, values):
        return self.each(values, self.table)

    def strings(self, values):
        return self.each(values, self.string)


def node(kind, children=(), keys=None, name=None, data=None):
    """The fields of a PyTreeDef."""
    return {
        0: ("b", kind),
        1: ("tables", list(children) or None),
        2: ("strings", keys),
        3: ("string", name),
        4: ("bytes", data),
    }


def tree(definition, names):
    """The fields of a tree; `names` has the name and the data of each class of its own."""
    made = definition.node_data()
    children = [tree(child, names) for child in definition.children()]
    if made is None:
        return node(LEAF)
    if made[0] is type(None):
        return node(NONE)
    if made[0] in (tuple, list):
        return node(TUPLE if made[0] is tuple else LIST, children)
    if made[0] is dict:
        return node(DICT, children, list(made[1]))
    if made[0] is collections.OrderedDict:
        return node(CUSTOM, children, name="collections.OrderedDict", data=json.dumps(list(made[1])).encode())
    name, data = names[made[0]]
    return node(CUSTOM, children, name=name, data=data)


def aval(value):
    """The fields of an AbstractValue."""
    special = jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)
    number = 22 if value.dtype == jax.dtypes.float0 else DTYPES[str(value.dtype) if special else value.dtype.name]
    return {0: ("b", 0), 1: ("strings", [str(size) for size in value.shape]), 2: ("b", number)}


def record(exported, *, old=False, vjp=0, names=None):
    """The fields of an Exported, as jax 0.4.30 wrote them (`old`), or jax 0.12."""
    names = names or {}
    fields = {
        0: ("H", 2 if old else 12),
        1: ("string", exported.fun_name),
        2: ("table", tree(exported.in_tree, names)),
        4: ("table", tree(exported.out_tree, names)),
        9: ("strings", list(exported.platforms)),
        10: ("tables", [{0: ("string", str(type(effect)))} for effect in exported.ordered_effects]),
        11: ("tables", [{0: ("string", str(type(effect)))} for effect in exported.unordered_effects]),
        12: ("tables", []),
        13: ("bytes", bytes(exported.mlir_module_serialized)),
        14: ("H", exported.calling_convention_version),
        15: ("numbers", ("H", exported.module_kept_var_idx)),
        16: ("?", exported.uses_global_constants),
        17: ("table", record(exported.vjp(), old=old, vjp=vjp - 1) if vjp else None),
    }
    avals = [*exported.in_avals, *exported.out_avals]
    if old:
        count = len(exported.in_avals)
        fields |= {
            3: ("tables", [aval(a) for a in avals[:count]]),
            5: ("tables", [aval(a) for a in avals[count:]]),
            6: ("h", exported.nr_devices),
        }
    else:
        unique = list(dict.fromkeys((str(a.dtype), a.shape) for a in avals))
        places = [unique.index((str(a.dtype), a.shape)) for a in avals]
        first = dict(zip(places, avals, strict=True))
        fields |= {
            18: ("I", exported.nr_devices),
            19: ("tables", [aval(first[i]) for i in range(len(unique))]),
            22: ("numbers", ("I", places[: len(exported.in_avals)])),
            23: ("numbers", ("I", places[len(exported.in_avals) :])),
            26: ("string", jax.__version__),
        }
    return fields


def file(exported, **options):
    """The bytes of a jax.export file."""
    return Writer().finish(record(exported, **options))
