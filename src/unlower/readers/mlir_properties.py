"""The properties of operations in MLIR bytecode, version 5 on: the attributes that their definitions name, without the names.

Each distinct set of properties stands in the file once: the number of each attribute in the order of their names, where an
optional one is marked or missing. Source: `genPropertiesBytecode` of MLIR's `mlir-tblgen`, and `BytecodeWriter.cpp`. Which
attributes an operation has is read off the bindings of the jaxlib that wrote the file, so no table here can grow stale.
"""

from collections.abc import Mapping
from typing import Any

from unlower._jax_compat_mlir import inherent_attributes
from unlower.readers.mlir_bytecode import PROPERTIES, Bytecode, varint

__all__ = ["Properties", "UnknownPropertiesError"]


class UnknownPropertiesError(Exception):
    """Properties in another form than this; MLIR can write the file again without any."""


class Properties:
    """The properties in a file.

    Args:
      bytecode: the file.
      attributes: its table of attributes.
    """

    def __init__(self, bytecode: Bytecode, attributes: Any):
        self._data, self._attributes = bytecode.data, attributes
        self._spans: list[tuple[int, int]] = []
        self._known: dict[tuple[str, int, int], Mapping[str, Any]] = {}
        at, stop = bytecode.span(PROPERTIES)
        if at < stop:
            count, at = varint(self._data, at)
            for _ in range(count):
                size, at = varint(self._data, at)
                self._spans.append((at, at + size))
                at += size

    def join(self, operation: str, index: int, others: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns all attributes of an operation: its properties, and those that its definition does not name.

        Args:
          operation: its name.
          index: the number of its properties.
          others: the other attributes, an entry of the table; equal arguments give the same object.

        Raises:
          UnknownPropertiesError: it is not known how they are stored.
        """
        key = operation, index, id(others)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = dict(sorted({**others, **self._read(operation, *self._spans[index])}.items()))
        return found

    def _read(self, operation: str, at: int, stop: int) -> dict[str, Any]:
        declared = inherent_attributes(operation)
        if declared is None:
            raise UnknownPropertiesError(operation)
        values: dict[str, Any] = {}
        for name, optional in declared:
            number, at = varint(self._data, at)
            if optional:
                number, present = number >> 1, number & 1
                if not present:
                    continue
            values[name] = self._attributes[number]
        if at != stop:
            raise UnknownPropertiesError(operation)
        return values
