"""What the names in a module tell of its interface.

JAX names the arguments of a module by their key paths, `params['w']`: in the locations of the entry's arguments (or of the
function inside, `_wrapped_jax_export_main`, which an exported program with symbolic sizes calls), in the attribute
`jax.arg_info`, and in HLO in the `op_name` of a parameter. Results have `jax.result_info`. TensorFlow says
`tf_saved_model.index_path`. Where every argument has such a name, together they are the tree of the call, as far as the module
kept it; unused arguments leave no trace.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from unlower.errors import FormatError
from unlower.ir.dimensions import parse_dimension
from unlower.ir.interface import LEAF, Input, Interface, Output, Role, Tree, call_path, call_tree
from unlower.ir.key_path import AttributeKey, IndexKey, ItemKey, Key, KeyPath, format_key_path, parse_key_path
from unlower.ir.module import CALLS, Function, Module, Value
from unlower.ir.types import TensorType, TokenType, TupleType, Type

__all__ = [
    "argument_names",
    "class_notes",
    "interface_from_names",
    "leaf_types",
    "output_names",
    "roles_and_names",
    "tree_from_paths",
]

_WRAPPED = "_wrapped_jax_export_main"
PLATFORM_INDEX = "_platform_index"


def interface_from_names(module: Module, tuples: tuple[Sequence[Tree], Tree] | None = None) -> Interface:
    """Builds the interface of a module from the names in it.

    Args:
      module: the module as read.
      tuples: the trees of the parameters and of the result where the format has tuples; they are used where the names
        tell nothing.
    """
    names, roles = roles_and_names(module)
    arguments = [i for i, role in enumerate(roles) if role == "argument"]
    leaf: dict[int, int] = {}
    nested = tuples is not None and any(tree.kind != "leaf" for tree in tuples[0])
    if tuples is not None and nested:
        # The converter gives every leaf of a tuple the name of the whole.
        suffixes = [format_key_path(path) for tree in tuples[0] for path in tree.paths()]
        names = [name and name + suffix for name, suffix in zip(names, suffixes, strict=True)]
    tree, roots = _arguments_from_names([names[i] for i in arguments], leaf)
    if tree is None and tuples is not None and nested:
        tree, leaf, roots = call_tree(*tuples[0]), {i: i for i in range(len(arguments))}, ()
        names = [call_path(path, roots) for path in tree.paths()]
    results, order = _results_from_names(module, tuples)
    outputs = list(output_names(module.main))
    number = {position: i for i, position in enumerate(arguments)}
    shapes = _symbolic_shapes(module)
    return Interface(
        inputs=tuple(
            Input(name=name, role=role, leaf=leaf.get(number[i]) if i in number else None, shape=shapes.get(i))
            for i, (name, role) in enumerate(zip(names, roles, strict=True))
        ),
        outputs=tuple(
            Output(name=name, role=role, leaf=None if order is None or role == "token" else order.pop(0))
            for name, role in outputs
        ),
        arguments=tree,
        complete=False,
        argument_names=roots,
        results=results,
        notes=() if results is None else class_notes(results=results),
    )


def class_notes(arguments: Tree | None = None, results: Tree | None = None) -> tuple[str, ...]:
    """Says what stands for the classes in a program's trees that this process does not know."""
    notes: dict[str, None] = {}
    for node in _unknown_nodes(results):
        name = node.name or "an object whose class the file does not name"
        notes[f"{name} comes back as a {'dict of its fields' if _has_fields(node) else 'list of its children'}"] = None
    for node in _unknown_nodes(arguments):
        fields = "the same fields, or a dict of these" if _has_fields(node) else "the same children"
        notes[f"{node.name or 'an object'}, unknown in this process, may be any object with {fields}"] = None
    return tuple(notes)


def _unknown_nodes(tree: Tree | None) -> Iterator[Tree]:
    if tree is not None:
        if tree.kind == "custom" and tree.make is None:
            yield tree
        for child in tree.children:
            yield from _unknown_nodes(child)


def _has_fields(node: Tree) -> bool:
    return bool(node.keys) and all(isinstance(key, str) for key in node.keys)


def _arguments_from_names(
    names: Sequence[str | None], leaf: dict[int, int]
) -> tuple[Tree | None, tuple[str | None, ...]]:
    """The tree of a call whose arguments have these names; puts into `leaf` which leaf each argument is."""
    parsed = [parse_key_path(name) if name else None for name in names]
    if not parsed or any(found is None or not found[0] for found in parsed):
        return None, ()
    paths = [(AttributeKey(found[0]), *found[1]) for found in parsed if found is not None]
    made = tree_from_paths(paths)
    if made is None:
        return None, ()
    tree, order = made
    leaf.update(enumerate(order))
    return call_tree(*tree.children), tuple(map(str, tree.keys))


def _results_from_names(
    module: Module, tuples: tuple[Sequence[Tree], Tree] | None
) -> tuple[Tree | None, list[int] | None]:
    names = [name for name, role in output_names(module.main) if role != "token"]
    parsed = [None if name is None else parse_key_path(name) for name in names]
    if parsed and all(found is not None and found[0] in ("result", "") for found in parsed):
        made = tree_from_paths([found[1] for found in parsed if found is not None], whole=True)
        if made is not None:
            return made[0], list(made[1])
    if tuples is not None and any(child.kind != "leaf" for child in tuples[1].children):
        return tuples[1], list(range(tuples[1].num_leaves))
    return None, None


def tree_from_paths(paths: Sequence[KeyPath], *, whole: bool = False) -> tuple[Tree, list[int]] | None:
    """Builds the tree whose leaves have these key paths.

    Args:
      paths: one key path a leaf.
      whole: whether these are all leaves, so that sequences have no gaps.

    Returns:
      the tree and, for each path, which leaf it is; None where the paths contradict each other.

    Example:
      >>> tree, order = tree_from_paths([(ItemKey("w"), ItemKey(1)), (ItemKey("w"), ItemKey(0))])
      >>> str(tree), order
      ("{'w': (*, *)}", [1, 0])
    """
    nested: dict[Key, Any] = {}
    if list(paths) == [()]:
        return LEAF, [0]
    for number, path in enumerate(paths):
        if not path:
            return None
        node = nested
        for key in path[:-1]:
            node = node.setdefault(key, {})
            if not isinstance(node, dict):
                return None
        if path[-1] in node:
            return None
        node[path[-1]] = number
    order: list[int] = []
    tree = _tree(nested, order, whole)
    if tree is None:
        return None
    leaf_of = {number: leaf for leaf, number in enumerate(order)}
    return tree, [leaf_of[number] for number in range(len(paths))]


def _tree(node: Any, order: list[int], whole: bool) -> Tree | None:
    if not isinstance(node, dict):
        order.append(node)
        return LEAF
    classes = {type(key) for key in node}
    if len(classes) != 1:
        return None
    kind = "custom"
    keys: list[Any] = [
        key.key if isinstance(key, ItemKey) else key.index if isinstance(key, IndexKey) else key.name for key in node
    ]
    if classes == {ItemKey}:
        kind = "tuple" if all(type(key) is int and key >= 0 for key in keys) else "dict"
    if kind == "tuple" or classes == {IndexKey}:
        node = dict(sorted(node.items(), key=lambda item: item[0].key if kind == "tuple" else item[0].index))
        keys = sorted(keys)
        if keys == list(range(len(keys))):
            keys = []
        elif whole:
            return None
    children: list[Tree] = []
    for inner in node.values():
        child = _tree(inner, order, whole)
        if child is None:
            return None
        children.append(child)
    return Tree(kind, tuple(keys), tuple(children))


# --- names and roles of the flat inputs and outputs


def roles_and_names(module: Module) -> tuple[list[str | None], list[Role]]:
    """Returns what each flat input is called, and what fills it."""
    main = module.main
    names = argument_names(module)
    roles: list[Role] = []
    position = 0
    for value, attributes in zip(main.body.arguments, _padded(main.argument_attributes, main), strict=True):
        for type_ in leaf_types(value.type):
            constant = attributes.get("jax.global_constant")
            if constant == PLATFORM_INDEX:
                roles.append("platform_index")
            elif constant is not None:
                roles.append("dimension")
                names[position] = str(constant)
            elif isinstance(type_, TokenType) or "jax.token" in attributes:
                roles.append("token")
            else:
                roles.append("argument")
            position += 1
    return names, roles


def argument_names(module: Module) -> list[str | None]:
    """Returns the name of each flat input, or None where the module has none for it."""
    main = module.main
    found = dict(zip(main.body.arguments, _own_names(main), strict=True))
    if None in found.values():
        inner = _inner_names(module)
        found = {value: name or inner.get(value) for value, name in found.items()}
    names: list[str | None] = []
    for value, name in found.items():
        suffixes = list(_suffixes(value.type))
        names += [name and name + suffix for suffix in suffixes]
    return names


def _own_names(function: Function) -> list[str | None]:
    count = len(function.body.arguments)
    locations = [*function.argument_locations, *[None] * (count - len(function.argument_locations))]
    return [
        _name_in(attributes) or (location.name if location else None)
        for attributes, location in zip(_padded(function.argument_attributes, function), locations, strict=True)
    ]


def _name_in(attributes: Mapping[str, Any]) -> str | None:
    if "jax.arg_info" in attributes:
        return str(attributes["jax.arg_info"]) or None
    path = attributes.get("tf_saved_model.index_path")
    if isinstance(path, tuple) and path and str(path[0]).isidentifier():
        return str(path[0]) + "".join(f"[{key!r}]" for key in path[1:])
    return None


def _inner_names(module: Module) -> dict[Value, str | None]:
    """The names that the arguments have in the function that was the entry before the exporter wrapped it."""
    main = module.main
    names: dict[Value, str | None] = {}
    source = {value: value for value in main.body.arguments}
    for op in main.body.ops:
        if op.name == "stablehlo.convert" and op.operands[0] in source:
            source[op.results[0]] = source[op.operands[0]]
        elif op.name in CALLS and str(op.attributes["callee"]).startswith(_WRAPPED):
            callee = module.functions.get(str(op.attributes["callee"]))
            if callee is not None:
                for operand, name in zip(op.operands, _own_names(callee), strict=False):
                    if operand in source:
                        names[source[operand]] = name
    return names


def output_names(main: Function) -> list[tuple[str | None, Any]]:
    """Returns the name and the role of each flat output."""
    attributes = [*main.result_attributes, *[{}] * (len(main.body.results) - len(main.result_attributes))]
    names: list[tuple[str | None, Any]] = []
    for value, own in zip(main.body.results, attributes, strict=True):
        name = str(own["jax.result_info"]) if "jax.result_info" in own else None
        for type_, suffix in zip(leaf_types(value.type), _suffixes(value.type), strict=True):
            role = "token" if isinstance(type_, TokenType) or "jax.token" in own else "result"
            names.append((None if name is None else name + suffix, role))
    return names


def leaf_types(type_: Type) -> list[Type]:
    """The types in a type: those of a tuple, nested ones too, or the type itself."""
    if isinstance(type_, TupleType):
        return [leaf for element in type_.elements for leaf in leaf_types(element)]
    return [type_]


def _suffixes(type_: Type) -> list[str]:
    if isinstance(type_, TupleType):
        return [f"[{i}]{rest}" for i, element in enumerate(type_.elements) for rest in _suffixes(element)]
    return [""]


def _padded(attributes: Sequence[Mapping[str, Any]], function: Function) -> list[Mapping[str, Any]]:
    return [*attributes, *[{}] * (len(function.body.arguments) - len(attributes))]


# --- symbolic sizes

_SPECIFICATIONS = "polymorphic shapes specifications: "
_SPECIFICATION = re.compile(r"\.shape = \(((?:[^()]|\([^()]*\))*)\)")
_COMMA = re.compile(r",(?![^()]*\))")


def _symbolic_shapes(module: Module) -> dict[int, tuple[int | str, ...]]:
    """The sizes of the inputs, as the assertions that JAX exports about them spell them.

    Their message lists every argument of unknown size, in the module's order: `args[0].shape = (b, 3),args[2].shape = (2*b,)`.
    """
    main = module.main
    unknown = [
        (i, value.type)
        for i, value in enumerate(main.body.arguments)
        if isinstance(value.type, TensorType) and not value.type.is_static
    ]
    if not unknown:
        return {}
    for op in main.body.ops:
        message = str(op.attributes.get("error_message", ""))
        if op.attributes.get("call_target_name") != "shape_assertion" or _SPECIFICATIONS not in message:
            continue
        found = [_sizes(text) for text in _SPECIFICATION.findall(message.partition(_SPECIFICATIONS)[2])]
        shapes = dict(zip((i for i, _ in unknown), found, strict=False))
        if len(found) == len(unknown) and all(_fits(shapes[i], type_) for i, type_ in unknown):
            return {i: shape for i, shape in shapes.items() if shape is not None}
        break
    return {}


def _sizes(text: str) -> tuple[int | str, ...] | None:
    sizes = [size.strip() for size in _COMMA.split(text) if size.strip()]
    try:
        for size in sizes:
            parse_dimension(size)
    except FormatError:
        return None
    return tuple([int(size) if size.isdecimal() else size for size in sizes])


def _fits(shape: tuple[int | str, ...] | None, type_: TensorType) -> bool:
    if shape is None or len(shape) != len(type_.shape):
        return False
    return all(n is None or n == size for n, size in zip(type_.shape, shape, strict=True))
