"""Literals in a file -> arrays: how the elements are spelled there, and what they become."""

import abc
import binascii
import dataclasses
import math
import re
import warnings
from collections.abc import Callable

import numpy as np

from unlower.errors import FormatError
from unlower.ir.attributes import DenseElements, repeats_one_element
from unlower.ir.types import TensorType
from unlower.readers.constants import aligned, dense_from_storage, own
from unlower.readers.hlo.wire import packed_integers
from unlower.readers.large.source import PIECE, Large

__all__ = ["Decimals", "Hexadecimal", "Integers", "Literal", "Raw", "dense_from_literal"]

_COMMENT = re.compile(rb"/\*[^*]*\*/")
_NARROW = ("i2", "i4", "ui2", "ui4")
_TRUTH = ((b"true", b"1"), (b"false", b"0"))


@dataclasses.dataclass(frozen=True, slots=True)
class Literal(abc.ABC):
    """A literal that was left in the file.

    Attributes:
      source: the file.
      start: where the elements begin in it.
      stop: where they end.
      minor_to_major: the order in which the file has the elements, or None where the last dimension varies fastest.
    """

    source: Large
    start: int
    stop: int
    minor_to_major: tuple[int, ...] | None = None

    @abc.abstractmethod
    def read(self, type_: TensorType) -> np.ndarray:
        """Returns the elements as MLIR stores them, in memory of their own, in one dimension; ValueError if damaged."""

    def _decoded(self, size: int, decode: Callable[[memoryview], bytes | memoryview]) -> np.ndarray:
        """Decodes a piece at a time, to `size` bytes in all."""
        storage, done = aligned((size,), np.dtype(np.uint8)), 0
        for at in range(self.start, self.stop, PIECE):
            end = min(at + PIECE, self.stop)
            piece = np.frombuffer(decode(self.source.view[at:end]), np.uint8)
            storage[done : done + len(piece)] = piece
            done += len(piece)
            self.source.release(at, end)
        return storage


class Raw(Literal):
    """Elements, little-endian, one after another."""

    __slots__ = ()

    def read(self, type_: TensorType) -> np.ndarray:
        """Copies them."""
        return self._decoded(self.stop - self.start, lambda piece: piece)


class Hexadecimal(Literal):
    """Elements as MLIR prints them: the bytes, two digits each."""

    __slots__ = ()

    def read(self, type_: TensorType) -> np.ndarray:
        """Decodes the digits."""
        return self._decoded((self.stop - self.start) // 2, binascii.unhexlify)


class Integers(Literal):
    """Elements as packed integers of the protobuf wire format."""

    __slots__ = ()

    def read(self, type_: TensorType) -> np.ndarray:
        """Decodes them."""
        array = aligned((type_.size,), type_.dtype)
        done, at = 0, self.start
        while at < self.stop:
            piece = np.frombuffer(self.source.view[at : min(at + PIECE, self.stop)], np.uint8)
            ends = np.flatnonzero(piece < 0x80)
            if not ends.size:
                raise ValueError("it ends inside a number")
            length = int(ends[-1]) + 1
            values, _ = packed_integers(piece[:length].tobytes(), np.array([0]), np.array([length]))
            if done + len(values) > type_.size:
                raise ValueError(f"more than {type_.size} elements")
            array[done : done + len(values)] = values.astype(type_.dtype)
            done += len(values)
            self.source.release(at, at + length)
            at += length
        if done != type_.size:
            raise ValueError(f"{done} elements, not {type_.size}")
        return array.view(np.uint8)


class Decimals(Literal):
    """Elements as HLO text has them: numbers in braces, one pair for each row of each dimension."""

    __slots__ = ()

    def read(self, type_: TensorType) -> np.ndarray:
        """Parses the numbers."""
        array = aligned((type_.size,), type_.dtype)
        braces = _Braces(type_.shape)
        wide = (
            np.dtype(np.float64)
            if type_.dtype.kind not in "biu"
            else np.dtype(np.uint64 if type_.dtype.kind == "u" else np.int64)
        )
        done, at = 0, self.start
        while at < self.stop:
            end = min(at + PIECE, self.stop)
            piece = bytes(self.source.view[at:end])
            if end < self.stop:
                piece = _whole(piece)
            self.source.release(at, at + len(piece))
            at += len(piece)
            text = _COMMENT.sub(b"", piece)
            if type_.dtype.kind == "b":
                for word, digit in _TRUTH:
                    text = text.replace(word, digit)
            braces.check(text)
            numbers = text.translate(None, b"{}").strip().rstrip(b",").decode("ascii")
            values = _numbers(numbers, wide)
            if len(values) != numbers.count(",") + 1 or done + len(values) > type_.size:
                raise ValueError(f"numbers that do not fit {type_}")
            with np.errstate(over="ignore"):
                kept = values.astype(type_.dtype)
            if wide.kind == "f" and not np.array_equal(np.isinf(kept), np.isinf(values)):
                raise ValueError(f"numbers beyond {type_.element}")
            if type_.dtype.kind in "iu" and not np.array_equal(kept.astype(wide), values):
                raise ValueError(f"numbers that are no {type_.element}")
            array[done : done + len(values)] = kept
            done += len(values)
        braces.finish()
        if done != type_.size:
            raise ValueError(f"{done} elements, not {type_.size}")
        return array.view(np.uint8)


def _whole(piece: bytes) -> bytes:
    """Cuts a piece of text behind its last comma outside of comments."""
    end = piece.rfind(b",") + 1
    while end and piece.count(b"/*", 0, end) != piece.count(b"*/", 0, end):
        end = piece.rfind(b",", 0, piece.rfind(b"/*", 0, end)) + 1
    if not end:
        raise ValueError("a number without end")
    return piece[:end]


def _numbers(text: str, dtype: np.dtype) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return np.fromstring(text, dtype, sep=",")
        except (DeprecationWarning, ValueError, OverflowError):
            raise ValueError("something that is no number") from None


class _Braces:
    """Checks that a pair of braces is around every row of each dimension, and that there are no others."""

    def __init__(self, shape: tuple[int, ...]):
        self._rows = [math.prod(shape[at:]) for at in range(len(shape))]
        self._elements = 0
        self._opened = self._closed = 0
        self._size = math.prod(shape)

    def check(self, text: bytes) -> None:
        """Looks at one piece of the text, without its comments, that ends behind a comma or at the end."""
        characters = np.frombuffer(text, np.uint8)
        commas = np.flatnonzero(characters == ord(","))
        for brace, is_open in ((b"{", True), (b"}", False)):
            places = np.flatnonzero(characters == brace[0])
            # The number of commas before tells between which elements a brace stands.
            elements = np.searchsorted(commas, places) + self._elements
            where, counts = np.unique(elements, return_counts=True)
            beside = where if is_open else where + 1
            wanted = sum(((beside % row == 0).astype(np.int64) for row in self._rows), np.zeros(len(where), np.int64))
            if not np.array_equal(counts, wanted):
                raise ValueError("braces that do not fit the shape")
            if is_open:
                self._opened += len(places)
            else:
                self._closed += len(places)
        self._elements += len(commas)

    def finish(self) -> None:
        """Checks that none is missing."""
        if {self._opened, self._closed} != {sum(self._size // row for row in self._rows)}:
            raise ValueError("braces that do not fit the shape")


def dense_from_literal(literal: Literal, type_: TensorType) -> DenseElements:
    """Reads a literal.

    Raises:
      FormatError: it does not fit the type, or is damaged.
    """
    try:
        storage = literal.read(type_)
        return _dense(storage, type_, literal.minor_to_major)
    except (ValueError, IndexError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(
            f"a constant of type {type_} is damaged: {error}",
            mend="copy or write the file again; it is cut off or changed",
        ) from None


def _dense(storage: np.ndarray, type_: TensorType, minor_to_major: tuple[int, ...] | None) -> DenseElements:
    if type_.element == "i1":
        # A byte each, here, of which MLIR and XLA ask whether it is zero.
        np.not_equal(storage, 0, out=storage.view(np.bool_))
    if len(storage) != type_.size * type_.dtype.itemsize:
        raise ValueError(f"it has {len(storage)} bytes")
    if str(type_.element) in _NARROW:
        return dense_from_storage(storage.data, type_)
    array = storage.view(type_.dtype)
    if repeats_one_element(array):
        # As MLIR has it: one element where all are equal.
        return DenseElements(type_, own(array[:1].reshape(())))
    if minor_to_major is None:
        array = array.reshape(type_.shape)
    else:
        order = minor_to_major[::-1]
        array = np.ascontiguousarray(array.reshape([type_.shape[d] for d in order]).transpose(np.argsort(order)))
    array.flags.writeable = False
    return DenseElements(type_, array)
