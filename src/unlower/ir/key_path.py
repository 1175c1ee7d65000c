"""Key paths: where a leaf stands in a tree, as JAX spells it: `params['dense'].kernel[0]`.

The same text as `jax.tree_util.keystr`, and a parser for it. Such text names the arguments of a lowered module (their
locations), the parameters of HLO (`op_name` of the metadata) and the results (`jax.result_info`).
"""

import ast
import dataclasses
import re
from typing import Any

__all__ = ["AttributeKey", "IndexKey", "ItemKey", "Key", "KeyPath", "format_key_path", "parse_key_path"]


@dataclasses.dataclass(frozen=True, slots=True)
class ItemKey:
    """`[key]`: an entry of a dict, or of a tuple or list, whose key is an integer."""

    key: Any

    def __str__(self) -> str:
        return f"[{self.key!r}]"


@dataclasses.dataclass(frozen=True, slots=True)
class AttributeKey:
    """`.name`: a field of an object."""

    name: str

    def __str__(self) -> str:
        return f".{self.name}"


@dataclasses.dataclass(frozen=True, slots=True)
class IndexKey:
    """`[<flat index 0>]`: a child of a custom node that does not say what it is called."""

    index: int

    def __str__(self) -> str:
        return f"[<flat index {self.index}>]"


Key = ItemKey | AttributeKey | IndexKey
KeyPath = tuple[Key, ...]


def format_key_path(path: KeyPath) -> str:
    """Spells a key path, as `jax.tree_util.keystr` does.

    Example:
      >>> format_key_path((AttributeKey("params"), ItemKey("w"), ItemKey(0)))
      ".params['w'][0]"
    """
    return "".join(map(str, path))


_ATTRIBUTE = re.compile(r"\.([^\W\d]\w*)")
_INDEX = re.compile(r"\[<flat index (\d+)>\]")
_ITEM = re.compile(r"\[(?:'([ -&(-\[\]-~]*)'|(0|[1-9]\d{0,17}))\]")
"""Nearly every key: printable ASCII, or a number, spelled as Python does."""

_ROOT = re.compile(r"[^\W\d]\w*")
_LONGEST = 64
"""Longer paths are none: no tree is nested so deep."""
_STRING = re.compile(r"""[bBrRuU]{0,2}('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")""", re.DOTALL)


def parse_key_path(text: str) -> tuple[str, KeyPath] | None:
    """Takes apart a name such as `params['w'][0]`: the root (may be empty) and the key path under it.

    Keys are Python literals (strings, numbers, tuples of them, ...); a key that is none is kept as `Opaque` text.

    Returns:
      the root and the path, or None where the text is no such name.

    Example:
      >>> parse_key_path("opt[0].mu['w']")
      ('opt', (ItemKey(key=0), AttributeKey(name='mu'), ItemKey(key='w')))
    """
    match = _ROOT.match(text)
    root, at = (match.group(), match.end()) if match else ("", 0)
    path: list[Key] = []
    while at < len(text):
        if len(path) == _LONGEST:
            return None
        if match := _ITEM.match(text, at):
            key, number = match.groups()
            path.append(ItemKey(int(number) if key is None else key))
            at = match.end()
        elif match := _ATTRIBUTE.match(text, at):
            path.append(AttributeKey(match.group(1)))
            at = match.end()
        elif match := _INDEX.match(text, at):
            path.append(IndexKey(int(match.group(1))))
            at = match.end()
        elif text[at] == "[" and (end := _closing(text, at)) is not None:
            path.append(ItemKey(_literal(text[at + 1 : end])))
            at = end + 1
        else:
            return None
    return root, tuple(path)


class Opaque(str):
    """The text of a key that is no Python literal, such as `<Color.RED: 1>`; prints as it stands."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _closing(text: str, start: int) -> int | None:
    """The place of the bracket that closes the one at `start`; brackets inside string literals do not count."""
    depth, at = 0, start
    while at < len(text):
        if match := _STRING.match(text, at):
            at = match.end()
            continue
        if text[at] in "[({":
            depth += 1
        elif text[at] in "])}":
            depth -= 1
            if depth == 0:
                return at if text[at] == "]" and at > start + 1 else None
        at += 1
    return None


def _literal(text: str) -> Any:
    try:
        value = ast.literal_eval(text)
        hash(value)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return Opaque(text)
    # Only what spells itself the same way: the name must lead back to the key.
    return value if repr(value) == text else Opaque(text)
