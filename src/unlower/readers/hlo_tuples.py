"""The tuple trees of an HLO module's parameters and result, which the conversion to StableHLO flattens.

HloModuleProto: field 4 is the program shape, in which 1 are the parameters and 2 is the result. ShapeProto: 2 is the element
type, 4 are the elements of a tuple.
"""

from unlower.errors import FormatError
from unlower.ir.interface import LEAF, Source, Tree
from unlower.ir.module import Module
from unlower.readers.names import interface_from_names, leaf_types
from unlower.readers.wire import BYTES, encode_field, fields, first, varints

__all__ = ["program_shape", "read_tuples", "with_tuples"]

_PROGRAM_SHAPE, _PARAMETERS, _RESULT = 4, 1, 2
_ELEMENT_TYPE, _ELEMENTS = 2, 4
_TUPLE, _TOKEN = 13, 17
_MOST_NESTED = 64


def with_tuples(module: Module, proto: bytes) -> Module | Source:
    """Returns the module, with an interface that has the tuples of the HLO module it came from, if there are any."""
    found = read_tuples(proto)
    if found is None:
        return module
    parameters, result = found
    inputs = sum(len(leaf_types(value.type)) for value in module.main.body.arguments)
    outputs = sum(len(leaf_types(value.type)) for value in module.main.body.results)
    if sum(tree.num_leaves for tree in parameters) != inputs or result.num_leaves != outputs:
        return module
    return Source(module, interface_from_names(module, found))


def read_tuples(proto: bytes) -> tuple[list[Tree], Tree] | None:
    """Returns the trees of the parameters and of the result; None where the proto does not say, or tokens are among them.

    Args:
      proto: a serialized HloModuleProto.
    """
    try:
        shape = first(proto, _PROGRAM_SHAPE)
        result = None if shape is None else first(shape, _RESULT)
        if shape is None or result is None:
            return None
        parameters = [
            shape[field.start : field.stop]
            for field in fields(shape)
            if field.number == _PARAMETERS and field.kind == BYTES
        ]
        # Most are like another.
        trees = {each: _tree(each) for each in dict.fromkeys(parameters)}
        return [trees[each] for each in parameters], _tree(result)
    except (FormatError, _Token):
        return None


def program_shape(proto: bytes) -> bytes:
    """Returns what `read_tuples` reads of a serialized HloModuleProto, as a proto with nothing else."""
    shape = first(proto, _PROGRAM_SHAPE)
    return b"" if shape is None else encode_field(_PROGRAM_SHAPE, shape)


class _Token(Exception):  # noqa: N818 - no error, a way out
    pass


def _tree(shape: bytes, depth: int = 0) -> Tree:
    kind = varints(shape, _ELEMENT_TYPE)
    if kind == [_TOKEN] or depth > _MOST_NESTED:
        raise _Token
    if kind != [_TUPLE]:
        return LEAF
    elements = [
        shape[field.start : field.stop] for field in fields(shape) if field.number == _ELEMENTS and field.kind == BYTES
    ]
    return Tree("tuple", (), tuple(_tree(element, depth + 1) for element in elements))
