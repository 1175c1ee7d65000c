"""Shardings and device lists: numbers from the file that XLA would size arrays by, and walk through, unchecked."""

import math
from collections.abc import Sequence

from unlower.errors import FormatError
from unlower.readers.hlo.faults import Fault
from unlower.readers.hlo.wire import integers, repeated_integers
from unlower.readers.wire import BYTES, VARINT, fields

__all__ = [
    "MOST_DEVICES",
    "check_device_list",
    "check_device_range",
    "check_mesh_groups",
    "check_replica_groups",
    "check_sharding",
]

MOST_DEVICES = 1 << 20
"""More devices than any machine has; XLA makes arrays of one entry for each."""

_REPLICATED, _MAXIMAL, _TUPLE, _OTHER, _LAST_TYPE = 0, 1, 2, 3, 7


def _submessages(data: bytes, number: int) -> list[bytes]:
    return [data[f.start : f.stop] for f in fields(data) if f.number == number and f.kind == BYTES]


def _scalar(data: bytes, number: int) -> int:
    values = [integers(data[f.start : f.stop])[0] for f in fields(data) if f.number == number and f.kind == VARINT]
    if len(values) >= 2:
        raise Fault(f"its sharding has field {number} twice")
    return values[0] if values else 0


def check_sharding(data: bytes, leaves: int | None = None, depth: int = 0) -> None:
    """Checks an `OpSharding`.

    Args:
      data: the message.
      leaves: how many arrays the sharded value holds, if that is to be checked.
      depth: how many shardings this one is inside of.

    Raises:
      Fault: the tiles do not fit the devices, or are too many.
    """
    try:
        _check_sharding(data, leaves, depth)
    except FormatError as error:
        raise Fault(f"its sharding is damaged: {error.what}") from None


def _check_sharding(data: bytes, leaves: int | None, depth: int) -> None:
    if depth > 1:
        raise Fault("its sharding has tuples inside each other")
    kind = _scalar(data, 1)
    if not 0 <= kind <= _LAST_TYPE:
        raise Fault(f"its sharding is of the unknown type {kind}")
    named = _submessages(data, 14)
    if len(named) >= 2:
        raise Fault("its sharding has a mesh twice")
    if named:
        _check_named(named[0])
        return
    parts = _submessages(data, 5)
    if kind == _TUPLE:
        if not (leaves is None or leaves == len(parts) or (leaves == 0 and len(parts) == 1)):
            raise Fault(f"its sharding is for {len(parts)} arrays, not {leaves}")
        for part in parts:
            _check_sharding(part, None, depth + 1)
        return
    if parts:
        raise Fault("its sharding has parts, and is no tuple")
    tiles, devices = repeated_integers(data, 3), repeated_integers(data, 4)
    if not all(0 <= device < MOST_DEVICES for device in devices):
        raise Fault("its sharding has a device out of range")
    if kind == _MAXIMAL:
        if len(devices) != 1:
            raise Fault(f"its sharding is on one device, and names {len(devices)}")
    elif kind == _OTHER:
        if not (tiles and all(size > 0 for size in tiles)):
            raise Fault("its sharding has tiles without a size")
        count = math.prod(tiles)
        if count > MOST_DEVICES:
            raise Fault(f"its sharding has {count} tiles")
        shape, order = repeated_integers(data, 9), repeated_integers(data, 10)
        if shape or order:
            if devices:
                raise Fault("its sharding has two lists of devices")
            check_iota(shape, order, count, "its sharding")
        else:
            if len(devices) != count:
                raise Fault(f"its sharding has {count} tiles for {len(devices)} devices")
        last = repeated_integers(data, 8)
        if len(last) > len(tiles):
            raise Fault("its sharding has more subgroups than dimensions")
        if not all(0 <= i <= _LAST_TYPE and i != _TUPLE for i in last):
            raise Fault("its sharding has a subgroup of an unknown type")
    else:
        if not (not tiles and not devices):
            raise Fault("its sharding lists devices, and is of a type that has none")


def check_iota(shape: Sequence[int], order: Sequence[int], count: int, what: str) -> None:
    """Checks a list of `count` devices that is a transposed and reshaped range."""
    if not (shape and all(size > 0 for size in shape)):
        raise Fault(f"{what} counts devices without a size")
    if math.prod(shape) != count:
        raise Fault(f"{what} counts {math.prod(shape)} devices, not {count}")
    if sorted(order) != list(range(len(shape))):
        raise Fault(f"{what} orders its devices by no permutation")


def _check_named(data: bytes) -> None:
    """Checks a `NamedShardingProto`: axes must be those of its mesh."""
    meshes = _submessages(data, 2)
    if len(meshes) >= 2:
        raise Fault("its sharding has two meshes")
    sizes = check_mesh(meshes[0]) if meshes else []
    used = [axis for number in (4, 5, 7) for axis in _submessages(data, number)]
    for dimension in _submessages(data, 3):
        used += _submessages(dimension, 1)
    for axis in used:
        check_axis(axis, sizes)


def check_mesh(data: bytes) -> list[int]:
    """Checks a `MeshProto`, and returns the sizes of its axes."""
    sizes = [sum(repeated_integers(axis, 2)) for axis in _submessages(data, 1)]
    names = [b"".join(_submessages(axis, 1)) for axis in _submessages(data, 1)]
    if not all(size > 0 for size in sizes):
        raise Fault("its mesh has an axis without a size")
    if not (all(names) and len(set(names)) == len(names)):
        raise Fault("its mesh has axes without a name of their own")
    count = math.prod(sizes)
    if count > MOST_DEVICES:
        raise Fault(f"its mesh has {count} devices")
    devices = repeated_integers(data, 2)
    for each in _submessages(data, 3):
        if devices:
            raise Fault("its mesh has two lists of devices")
        check_iota(repeated_integers(each, 1), repeated_integers(each, 2), count, "its mesh")
    if devices and sizes:
        if sorted(devices) != list(range(count)):
            raise Fault(f"its mesh of {count} devices lists others")
    else:
        if not (len(devices) <= 1 and all(0 <= d < MOST_DEVICES for d in devices)):
            raise Fault("its mesh lists devices, and has no axes")
    return sizes


def check_axis(data: bytes, sizes: Sequence[int]) -> None:
    """Checks an `AxisRefProto` against the sizes of its mesh."""
    index = sum(repeated_integers(data, 1))
    if not 0 <= index < len(sizes):
        raise Fault(f"its sharding names axis {index} of a mesh of {len(sizes)}")
    for part in _submessages(data, 2):
        before, size = sum(repeated_integers(part, 1)), sum(repeated_integers(part, 2))
        fits = before >= 1 and size >= 1 and sizes[index] % (before * size) == 0 and before * size <= sizes[index]
        if not fits:
            raise Fault(f"its sharding cuts an axis of {sizes[index]} at {before} into {size}")


def check_replica_groups(groups: Sequence[bytes]) -> None:
    """Checks `ReplicaGroup`s: XLA makes an array of one row for each."""
    lists = [repeated_integers(group, 1) for group in groups]
    if not all(lists):
        raise Fault("it has a replica group without members")
    longest = max(map(len, lists), default=0)
    if len(lists) * longest > MOST_DEVICES:
        raise Fault(f"it has {len(lists)} replica groups of up to {longest}")
    if not all(0 <= i < MOST_DEVICES for group in lists for i in group):
        raise Fault("it has a replica group with a member out of range")
    members = [i for group in lists for i in group]
    if len(set(members)) != len(members):
        raise Fault("it has a member in two replica groups")


def check_device_list(data: bytes) -> None:
    """Checks a `CollectiveDeviceListProto`."""
    check_replica_groups(_submessages(data, 1))
    if _submessages(data, 2):
        raise Fault("it has a list of devices in a form that is not known")


def check_device_range(data: bytes) -> None:
    """Checks an `IotaReplicaGroupListProto`: groups that are a transposed and reshaped range."""
    count, size = sum(repeated_integers(data, 1)), sum(repeated_integers(data, 2))
    if not (0 < count <= MOST_DEVICES and 0 < size <= MOST_DEVICES):
        raise Fault("its device list has no sizes")
    if count * size > MOST_DEVICES:
        raise Fault(f"its device list has {count * size} devices")
    check_iota(repeated_integers(data, 3), repeated_integers(data, 4), count * size, "its device list")


def check_mesh_groups(data: bytes) -> None:
    """Checks a `MeshAxesReplicaGroupListProto`: groups along axes of a mesh."""
    meshes = _submessages(data, 1)
    if len(meshes) != 1:
        raise Fault("its device list has no mesh, or two")
    sizes = check_mesh(meshes[0])
    axes = _submessages(data, 2)
    if not (axes and len(set(axes)) == len(axes)):
        raise Fault("its device list has no axes, or one twice")
    for axis in axes:
        check_axis(axis, sizes)
