"""From a call with trees to the module's flat arrays, and from flat results back to a tree.

The caller's trees are matched with `Interface.arguments` by their keys where they have any, and else by the order of their
children: a dict may stand for an object, and any class for one that this process does not know. What the module does not take
is not looked at.
"""

import bisect
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

from unlower.errors import SignatureError
from unlower.ir.interface import Interface, Tree

__all__ = ["Binder", "build"]

_MEND = "pass the arguments of the original call; print(program.signature) shows them"
_MOST_READINGS = 200
"""In how many ways a call is read that has more positional arguments than the module kept."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Slot:
    """Stands for a leaf of the caller's, so that where it goes is worked out once for each structure."""

    place: int


@dataclasses.dataclass(frozen=True, slots=True)
class _Argument:
    """A top-level argument of the original call, and the number of its first leaf."""

    name: str
    tree: Tree
    start: int


_MISSING = object()
_Reading = list[tuple[_Argument, Any]]


class Binder:
    """Finds the module's arrays in the arguments of a call.

    Args:
      interface: one with a tree of arguments.
      fits: whether an array has the type of a leaf; asked only where the structure leaves a choice.
    """

    def __init__(self, interface: Interface, fits: Callable[[int, Any], bool]):
        assert interface.arguments is not None
        positional, keywords = interface.arguments.children
        names = [*interface.argument_names, *[None] * len(positional.children)]
        self._complete = interface.complete
        self._fits = fits
        self._flat = [i.leaf for i in interface.inputs if i.leaf is not None and i.role == "argument"]
        self._needed = sorted(self._flat)
        self._positional: list[_Argument] = []
        self._keywords: list[_Argument] = []
        start = 0
        for position, tree in enumerate(positional.children):
            self._positional.append(_Argument(names[position] or f"args[{position}]", tree, start))
            start += tree.num_leaves
        for name, tree in zip(keywords.keys, keywords.children, strict=True):
            self._keywords.append(_Argument(str(name), tree, start))
            start += tree.num_leaves
        self._known: dict[Any, dict[int, int]] = {}

    def __call__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[int, Any]:
        """Returns the array for each leaf that the module takes.

        Raises:
          SignatureError: a leaf is missing or misplaced, or an argument is none of the program's; by its path.
        """
        try:
            leaves, definition = jax.tree_util.tree_flatten((args, dict(kwargs)))
        except (ValueError, TypeError) as error:
            raise SignatureError(f"the arguments are no tree: {error}", mend=_MEND) from error
        try:
            places = self._known.get(definition)
        except TypeError:  # static data in the tree that cannot be hashed
            places = None
        if places is not None:
            return {leaf: leaves[place] for leaf, place in places.items()}
        try:
            args, kwargs = jax.tree_util.tree_unflatten(definition, [_Slot(place) for place in range(len(leaves))])
        except Exception:  # noqa: BLE001 - a class that looks at its leaves when it is built: it is read as it is
            return self._match(args, kwargs, leaves)[0]
        found, sure = self._match(args, kwargs, leaves)
        if sure:
            try:
                self._known[definition] = {leaf: slot.place for leaf, slot in found.items()}
            except TypeError:
                pass
        return {leaf: leaves[slot.place] for leaf, slot in found.items()}

    def _match(self, args: Sequence[Any], kwargs: Mapping[str, Any], leaves: list[Any]) -> tuple[dict[int, Any], bool]:
        """Returns what stands for each leaf, and whether that follows from the structure alone."""
        if self._complete:
            return self._take(self._read_complete(args, kwargs)), True
        first: SignatureError | None = None
        for reading in self._read_by_names(args, kwargs):
            try:
                return self._take(reading), True
            except SignatureError as error:
                first = first or error
        found: dict[tuple[Any, ...], dict[int, Any]] = {}
        for reading in self._read_with_gaps(args, kwargs):
            try:
                taken = self._take(reading)
            except SignatureError as error:
                first = first or error
                continue
            arrays = {leaf: leaves[x.place] if isinstance(x, _Slot) else x for leaf, x in taken.items()}
            if all(self._fits(leaf, array) for leaf, array in arrays.items()):
                found[tuple(id(array) for array in arrays.values())] = taken
        if len(found) == 1:
            return next(iter(found.values())), False
        if (
            not found
            and not kwargs
            and len(args) == len(self._flat)
            and all(_children(value) is None for value in args)
        ):
            # Names are not always key paths, though they look like some: the arrays in the module's order will do.
            return dict(zip(self._flat, args, strict=True)), True
        names = ", ".join(argument.name for argument in self._positional)
        if found:
            raise SignatureError(
                f"{len(args)} positional arguments, of which the module kept {len(self._positional)}: it is not clear which",
                mend=f"pass by name those that it kept: {names}",
            )
        raise first or SignatureError(f"{len(args)} positional arguments; the program has {names}", mend=_MEND)

    # --- which argument is which

    def _read_complete(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Reading:
        """The original call's own convention; a positional argument may be named, too."""
        left = dict(kwargs)
        if len(args) > len(self._positional):
            raise SignatureError(
                f"{_count(len(args), 'positional argument')}; the program takes {len(self._positional)}", mend=_MEND
            )
        reading: _Reading = []
        for position, argument in enumerate(self._positional):
            if position < len(args):
                reading.append((argument, args[position]))
            else:
                reading.append((argument, left.pop(argument.name, _MISSING)))
        for argument in self._keywords:
            reading.append((argument, left.pop(argument.name, _MISSING)))
        if left:
            raise SignatureError(f"the program has no argument {', '.join(left)}", mend=_MEND)
        return reading

    def _read_by_names(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[_Reading]:
        """The names of a module do not say how its arguments were passed: by position, by name, or as `*args`, `**kwargs`."""
        arguments = self._positional
        names = {argument.name for argument in arguments}
        extra = {name: value for name, value in kwargs.items() if name not in names}

        def rest(taken: int) -> _Reading:
            reading: _Reading = []
            for argument in arguments[taken:]:
                value = kwargs.get(argument.name, _MISSING)
                if value is _MISSING and extra and argument.tree.kind == "dict":
                    value = extra
                reading.append((argument, value))
            return reading

        if len(args) <= len(arguments):
            yield [*zip(arguments, args, strict=False), *rest(len(args))]
        for position, argument in enumerate(arguments[: len(args) + 1]):
            if argument.tree.kind == "tuple" and argument.name not in kwargs:
                yield [
                    *zip(arguments, args[:position], strict=False),
                    (argument, tuple(args[position:])),
                    *rest(position + 1),
                ]

    def _read_with_gaps(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[_Reading]:
        """Every way to leave out positional arguments, which the module may have pruned."""
        arguments = [argument for argument in self._positional if argument.name not in kwargs]
        named: _Reading = [(a, kwargs[a.name]) for a in self._positional if a.name in kwargs]
        if len(args) <= len(arguments):
            return
        for chosen in itertools.islice(itertools.combinations(args, len(arguments)), _MOST_READINGS):
            yield [*zip(arguments, chosen, strict=True), *named]

    # --- what is in an argument

    def _take(self, reading: _Reading) -> dict[int, Any]:
        found: dict[int, Any] = {}
        for argument, value in reading:
            if value is _MISSING:
                if self._needs(argument.start, argument.tree):
                    raise SignatureError(f"{argument.name} is missing", mend=_MEND)
            else:
                self._walk(argument.tree, value, argument.name, argument.start, found)
        return found

    def _needs(self, start: int, tree: Tree) -> bool:
        """Whether the module takes a leaf of the tree whose first leaf is `start`."""
        at = bisect.bisect_left(self._needed, start)
        return at < len(self._needed) and self._needed[at] < start + tree.num_leaves

    def _walk(self, tree: Tree, value: Any, path: str, start: int, found: dict[int, Any]) -> None:
        if tree.kind != "none" and not self._needs(start, tree):
            return
        children = _children(value)
        if tree.kind == "leaf":
            if children is not None:
                what = (
                    "missing: None was passed" if value is None else f"{_describe(value)}, where an array is expected"
                )
                raise SignatureError(f"{path} is {what}", mend=_MEND)
            found[start] = value
            return
        if tree.kind == "none":
            if jax.tree_util.tree_leaves(value):
                raise SignatureError(f"{path} is {_describe(value)}, where None is expected", mend=_MEND)
            return
        place = _places(tree, value, children)
        if place is None:
            raise SignatureError(f"{path} is {_describe(value)}, where {_shorten(str(tree))} is expected", mend=_MEND)
        for key, child in tree.items():
            at = f"{path}{key}"
            if (name := _plain(key)) in place:
                self._walk(child, place.pop(name), at, start, found)
            elif self._needs(start, child):
                raise SignatureError(f"{at} is missing", mend=_MEND)
            start += child.num_leaves
        if self._complete:
            for name, extra in place.items():
                if jax.tree_util.tree_leaves(extra):
                    raise SignatureError(f"{path}[{name!r}] is not among the program's arguments", mend=_MEND)


def _places(tree: Tree, value: Any, children: list[tuple[Any, Any]] | None) -> dict[Any, Any] | None:
    """The children of `value` under the keys that `tree` has for them; None where the two do not fit at all."""
    keys = [_plain(key) for key, _ in tree.items()]
    if children is None:
        return None
    named = {_plain(key): child for key, child in children if not _is_position(key)}
    if not named and isinstance(value, Mapping) and children:
        # A mapping that gives JAX no keys.
        named = dict(value.items())
    in_order = dict(enumerate(child for _, child in children))
    if tree.kind in ("tuple", "list"):
        return named if isinstance(value, Mapping) and named else in_order
    if tree.kind == "custom" and not all(isinstance(key, str) for key in keys):
        # Fields that nobody named; what a mapping is sorted by says nothing about them.
        return None if isinstance(value, Mapping) else in_order
    if named or not children:
        return named
    return dict(zip(keys, in_order.values(), strict=True)) if len(children) == len(keys) else None


def _children(value: Any) -> list[tuple[Any, Any]] | None:
    """The keys and children of a tree's top node, as JAX sees it; None for a leaf."""
    if isinstance(value, _Slot):
        return None
    pairs, _ = jax.tree_util.tree_flatten_with_path(value, is_leaf=lambda node: node is not value)
    if len(pairs) == 1 and not pairs[0][0]:
        return None
    return [(path[0], child) for path, child in pairs]


def _is_position(key: Any) -> bool:
    return isinstance(key, jax.tree_util.SequenceKey | jax.tree_util.FlattenedIndexKey)


def _plain(key: Any) -> Any:
    """What a key holds, whether it is one of JAX's or of ours; a class may give JAX any object for a key."""
    if isinstance(key, str | int):
        return key
    for field in ("key", "name", "index", "idx"):
        if hasattr(key, field):
            return getattr(key, field)
    return key


def _describe(value: Any) -> str:
    if value is None:
        return "None"
    if isinstance(value, _Slot):
        return "an array"
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def _shorten(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:97]}..."


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def build(tree: Tree, leaves: Sequence[Any]) -> Any:
    """Builds a tree from its leaves, of the original classes where this process knows them.

    Nodes of other classes are dicts of their fields, or lists where these have no names.

    Example:
      >>> from unlower.ir.interface import LEAF
      >>> build(Tree("dict", ("a", "b"), (LEAF, Tree("tuple", (), (LEAF, LEAF)))), [1, 2, 3])
      {'a': 1, 'b': (2, 3)}
    """
    return _build(tree, iter(leaves))


def _build(tree: Tree, leaves: Iterator[Any]) -> Any:
    if tree.kind == "leaf":
        return next(leaves)
    if tree.kind == "none":
        return None
    children = [_build(child, leaves) for child in tree.children]
    if tree.make is not None:
        try:
            return tree.make(children)
        except Exception as error:
            raise SignatureError(
                f"a result of the class {tree.name} cannot be built: {error}",
                mend="register the class with jax.export as it was when the file was written, or use program.flat",
            ) from error
    if tree.kind == "tuple":
        return tuple(children)
    if tree.kind == "dict" or (tree.kind == "custom" and tree.keys and isinstance(tree.keys[0], str)):
        return dict(zip(tree.keys, children, strict=True))
    return children
