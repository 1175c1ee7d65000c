"""Constants whose values the file left out: found, refused by name, or filled in.

XLA prints a large array as `constant({...})`, and its own parser reads that back without a word, as garbage. MLIR
prints `dense_resource<__elided__>`, which parses too. Protos can hold literals without payload. Each kind is marked
before the file is parsed; what becomes of the marks is decided here.
"""

import functools
import re
import secrets
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from unlower.errors import FormatError
from unlower.ir.attributes import DenseElements
from unlower.ir.types import TensorType
from unlower.readers.constants import own
from unlower.readers.limits import DEFAULT_LIMITS, Limits

__all__ = ["ELIDED_TARGET", "Elision", "mark_hlo_text", "mark_mlir_text"]

ELIDED_TARGET = "unlower.elided"
"""The custom call that stands for an elided constant on its way through XLA's parser and converter."""

_HEAD = 256
"""Bytes at the start of a constant by which others like it are looked up."""

_HLO_ELIDED = re.compile(r"""constant\(\{\.\.\.\}\)|"(?:[^"\\]|\\.)*"|/\*.*?\*/|//[^\n]*|\{\.\.\.\}""")
_HLO_NAME = re.compile(r"(?:ROOT\s+)?%?([\w.\-]+)\s*=[^=]*$")
_MLIR_ELIDED = re.compile(r"""dense_resource<__elided__>|"(?:[^"\\]|\\.)*"|//[^\n]*""")
_MLIR_NAME = re.compile(r"%([\w$.\-]+)(?::\d+)?\s*=[^\n]*$")


class Elision:
    """What the caller wants of a reader: for elided constants, of which it keeps those that were met; and how to read.

    Args:
      wish: for elided constants, None to refuse, `"zeros"`, or a mapping from name to array.
      limits: how much the program may ask for.
      isolation: the limits of the process of its own that reads it; None to read in this one.

    Attributes:
      constant_bytes: the data of the constants that were met so far, in bytes.
      marks: from bytes of a single element to the name of the literal for which it stands; see `mark`.

    Raises:
      ValueError: another wish.
    """

    def __init__(
        self,
        wish: str | Mapping[str, Any] | None = None,
        *,
        limits: Limits = DEFAULT_LIMITS,
        isolation: Any = None,
    ):
        self.limits = limits
        self.isolation = isolation
        if not (wish is None or wish == "zeros" or isinstance(wish, Mapping)):
            raise ValueError(f'elided={wish!r}: None, "zeros" or a mapping from name to array is expected')
        self._wish = wish
        self._met: dict[tuple[str, TensorType], DenseElements] = {}
        self._wrong: list[str] = []
        self.marks: dict[bytes, str] = {}
        self._token = ""
        self._cut: dict[str, Callable[[TensorType], DenseElements]] = {}
        self.constant_bytes = 0
        self._distinct: dict[Any, list[DenseElements]] = {}

    def count(self, size: int) -> None:
        """Counts the data of a constant, in bytes; raises FormatError where the limits do not allow so much in all."""
        self.constant_bytes += size
        self.limits.check(
            "constant_bytes", self.constant_bytes, f"the module has {self.constant_bytes:,} bytes of constants"
        )

    def cut(self, size: int, read: Callable[[TensorType], DenseElements]) -> str:
        """Gives a literal of `size` bytes that was cut out of the file the name by which `fill` finds it again.

        Args:
          size: bytes of the elements.
          read: called with the type when the constant is met.

        Raises:
          FormatError: more bytes of constants than the limits allow.
        """
        self.count(size)
        # Nobody who writes a file can know it.
        self._token = self._token or f"unlower.{secrets.token_hex(16)}"
        name = f"{self._token}.{len(self._cut)}"
        self._cut[name] = functools.cache(lambda type_: self._shared(read(type_)))
        return name

    def _shared(self, found: DenseElements) -> DenseElements:
        """Returns the constant met before with the same type and bytes, if any: MLIR keeps one of those that are equal."""
        bits = found.array.reshape(-1).view(np.uint8)
        like = self._distinct.setdefault((found.type, bits[:_HEAD].tobytes()), [])
        for each in like:
            if np.array_equal(each.array.reshape(-1).view(np.uint8), bits):
                return each
        like.append(found)
        return found

    def mark(self, value: bytes, name: str) -> None:
        """Has the constant with a single element of these bytes, which no other has, stand for a literal that was cut."""
        self.marks[value] = name

    def fill(self, name: str, type_: TensorType) -> DenseElements:
        """Returns what stands for the constant `name`; `finish` raises later if nothing can."""
        if name in self._cut:
            return self._cut[name](type_)
        found = self._met.get((name, type_))
        if found is None:
            array = np.zeros((), type_.dtype)
            if isinstance(self._wish, Mapping):
                array = self._given(self._wish, name, type_)
            found = self._met[name, type_] = DenseElements(type_, own(array), None if self._wish else name)
        return found

    def _given(self, arrays: Mapping[str, Any], name: str, type_: TensorType) -> np.ndarray:
        if name not in arrays:
            self._wrong.append(f"no array for {name}: {type_}")
            return np.zeros((), type_.dtype)
        array = np.asarray(arrays[name])
        if array.shape != type_.shape or array.dtype != type_.dtype:
            self._wrong.append(f"{name} is {type_}, but the given array is {array.dtype}{list(array.shape)}")
            return np.zeros((), type_.dtype)
        return array

    def finish(self) -> None:
        """Raises FormatError that names every constant that is left open."""
        listed = ", ".join(f"{name}: {type_}" for name, type_ in self._met)
        if isinstance(self._wish, Mapping):
            unknown = sorted(set(self._wish) - {name for name, _ in self._met})
            if unknown:
                self._wrong.append(f"no elided constant is called {', '.join(unknown)}")
            if self._wrong:
                raise FormatError(
                    "the arrays given for elided constants do not fit: " + "; ".join(self._wrong),
                    where=f"elided: {listed or 'none'}",
                    mend="elided={name: array} takes one array for each of these",
                )
        elif self._met and self._wish is None:
            count = len(self._met)
            raise FormatError(
                f"the values of {count} constant{'s were' if count > 1 else ' was'} left out of the file",
                where=listed,
                mend="write the file with its constants (as a proto, or with XLA_FLAGS=--xla_dump_large_constants), "
                'or pass elided="zeros" or elided={name: array}',
            )


def mark_hlo_text(text: str) -> str:
    """Puts a custom call in the place of each `constant({...})`; the name travels in its `backend_config`.

    Raises:
      FormatError: a tuple constant with elided parts.
    """
    names: dict[str, int] = {}
    pieces: list[str] = []
    done, found = 0, text.find("{...}")
    while found >= 0:
        start, stop = text.rfind("\n", 0, found) + 1, text.find("\n", found)
        stop = len(text) if stop < 0 else stop
        pieces += [text[done:start], _mark_hlo_line(text[start:stop], names, text.count("\n", 0, start) + 1)]
        done, found = stop, text.find("{...}", stop)
    return "".join([*pieces, text[done:]]) if pieces else text


def _mark_hlo_line(text: str, names: dict[str, int], number: int) -> str:
    """Marks one line: strings end where it ends, so nothing before it matters."""

    def replace(match: re.Match[str]) -> str:
        if match.group() == "{...}":
            raise FormatError(
                "a constant has part of its values left out",
                where=f"line {number}: {text[: match.end()].strip()[:120]}",
                mend="write the file with its constants (as a proto, or with XLA_FLAGS=--xla_dump_large_constants)",
            )
        if not match.group().startswith("constant"):
            return match.group()
        found = _HLO_NAME.search(re.sub(r"/\*.*?\*/", "", text[: match.start()]))
        name = _unique(found.group(1) if found else "constant", names)
        return f'custom-call(), custom_call_target="{ELIDED_TARGET}", backend_config="{name}"'

    return _HLO_ELIDED.sub(replace, text)


def mark_mlir_text(text: str) -> str:
    """Gives each `dense_resource<__elided__>` a key of its own: the name of the value it defines."""
    if "__elided__" not in text:
        return text
    names: dict[str, int] = {}

    def replace(match: re.Match[str]) -> str:
        if not match.group().startswith("dense_resource"):
            return match.group()
        line = text[text.rfind("\n", 0, match.start()) + 1 : match.start()]
        found = _MLIR_NAME.search(line)
        return f'dense_resource<"{_unique(found.group(1) if found else "constant", names)}">'

    return _MLIR_ELIDED.sub(replace, text)


def _unique(name: str, names: dict[str, int]) -> str:
    """Tells apart what has one name in several functions: the second `cst` is `cst#2`."""
    names[name] = count = names.get(name, 0) + 1
    return name if count == 1 else f"{name}#{count}"
