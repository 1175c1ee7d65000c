"""Shardings and device lists: numbers from the file that XLA would size arrays by, and walk through, unchecked."""

import math
from collections.abc import Sequence

from unlower.errors import FormatError
from unlower.readers.hlo.faults import Fault, require
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
    require(len(values) < 2, f"its sharding has field {number} twice")
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
    require(depth <= 1, "its sharding has tuples inside each other")
    kind = _scalar(data, 1)
    require(0 <= kind <= _LAST_TYPE, f"its sharding is of the unknown type {kind}")
    named = _submessages(data, 14)
    require(len(named) < 2, "its sharding has a mesh twice")
    if named:
        _check_named(named[0])
        return
    parts = _submessages(data, 5)
    if kind == _TUPLE:
        require(
            leaves is None or leaves == len(parts) or (leaves == 0 and len(parts) == 1),
            f"its sharding is for {len(parts)} arrays, not {leaves}",
        )
        for part in parts:
            _check_sharding(part, None, depth + 1)
        return
    require(not parts, "its sharding has parts, and is no tuple")
    tiles, devices = repeated_integers(data, 3), repeated_integers(data, 4)
    require(all(0 <= device < MOST_DEVICES for device in devices), "its sharding has a device out of range")
    if kind == _MAXIMAL:
        require(len(devices) == 1, f"its sharding is on one device, and names {len(devices)}")
    elif kind == _OTHER:
        require(tiles and all(size > 0 for size in tiles), "its sharding has tiles without a size")
        count = math.prod(tiles)
        require(count <= MOST_DEVICES, f"its sharding has {count} tiles")
        shape, order = repeated_integers(data, 9), repeated_integers(data, 10)
        if shape or order:
            require(not devices, "its sharding has two lists of devices")
            check_iota(shape, order, count, "its sharding")
        else:
            require(len(devices) == count, f"its sharding has {count} tiles for {len(devices)} devices")
        last = repeated_integers(data, 8)
        require(len(last) <= len(tiles), "its sharding has more subgroups than dimensions")
        require(
            all(0 <= i <= _LAST_TYPE and i != _TUPLE for i in last), "its sharding has a subgroup of an unknown type"
        )
    else:
        require(not tiles and not devices, "its sharding lists devices, and is of a type that has none")


def check_iota(shape: Sequence[int], order: Sequence[int], count: int, what: str) -> None:
    """Checks a list of `count` devices that is a transposed and reshaped range."""
    require(shape and all(size > 0 for size in shape), f"{what} counts devices without a size")
    require(math.prod(shape) == count, f"{what} counts {math.prod(shape)} devices, not {count}")
    require(sorted(order) == list(range(len(shape))), f"{what} orders its devices by no permutation")


def _check_named(data: bytes) -> None:
    """Checks a `NamedShardingProto`: axes must be those of its mesh."""
    meshes = _submessages(data, 2)
    require(len(meshes) < 2, "its sharding has two meshes")
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
    require(all(size > 0 for size in sizes), "its mesh has an axis without a size")
    require(all(names) and len(set(names)) == len(names), "its mesh has axes without a name of their own")
    count = math.prod(sizes)
    require(count <= MOST_DEVICES, f"its mesh has {count} devices")
    devices = repeated_integers(data, 2)
    for each in _submessages(data, 3):
        require(not devices, "its mesh has two lists of devices")
        check_iota(repeated_integers(each, 1), repeated_integers(each, 2), count, "its mesh")
    if devices and sizes:
        require(sorted(devices) == list(range(count)), f"its mesh of {count} devices lists others")
    else:
        require(
            len(devices) <= 1 and all(0 <= d < MOST_DEVICES for d in devices), "its mesh lists devices, and has no axes"
        )
    return sizes


def check_axis(data: bytes, sizes: Sequence[int]) -> None:
    """Checks an `AxisRefProto` against the sizes of its mesh."""
    index = sum(repeated_integers(data, 1))
    require(0 <= index < len(sizes), f"its sharding names axis {index} of a mesh of {len(sizes)}")
    for part in _submessages(data, 2):
        before, size = sum(repeated_integers(part, 1)), sum(repeated_integers(part, 2))
        fits = before >= 1 and size >= 1 and sizes[index] % (before * size) == 0 and before * size <= sizes[index]
        require(fits, f"its sharding cuts an axis of {sizes[index]} at {before} into {size}")


def check_replica_groups(groups: Sequence[bytes]) -> None:
    """Checks `ReplicaGroup`s: XLA makes an array of one row for each."""
    lists = [repeated_integers(group, 1) for group in groups]
    require(all(lists), "it has a replica group without members")
    longest = max(map(len, lists), default=0)
    require(len(lists) * longest <= MOST_DEVICES, f"it has {len(lists)} replica groups of up to {longest}")
    require(
        all(0 <= i < MOST_DEVICES for group in lists for i in group),
        "it has a replica group with a member out of range",
    )
    members = [i for group in lists for i in group]
    require(len(set(members)) == len(members), "it has a member in two replica groups")


def check_device_list(data: bytes) -> None:
    """Checks a `CollectiveDeviceListProto`."""
    check_replica_groups(_submessages(data, 1))
    require(not _submessages(data, 2), "it has a list of devices in a form that is not known")


def check_device_range(data: bytes) -> None:
    """Checks an `IotaReplicaGroupListProto`: groups that are a transposed and reshaped range."""
    count, size = sum(repeated_integers(data, 1)), sum(repeated_integers(data, 2))
    require(0 < count <= MOST_DEVICES and 0 < size <= MOST_DEVICES, "its device list has no sizes")
    require(count * size <= MOST_DEVICES, f"its device list has {count * size} devices")
    check_iota(repeated_integers(data, 3), repeated_integers(data, 4), count * size, "its device list")


def check_mesh_groups(data: bytes) -> None:
    """Checks a `MeshAxesReplicaGroupListProto`: groups along axes of a mesh."""
    meshes = _submessages(data, 1)
    require(len(meshes) == 1, "its device list has no mesh, or two")
    sizes = check_mesh(meshes[0])
    axes = _submessages(data, 2)
    require(axes and len(set(axes)) == len(axes), "its device list has no axes, or one twice")
    for axis in axes:
        check_axis(axis, sizes)
