"""The bytes of a file that may be larger than what one wants to have in memory."""

import mmap
import pathlib
from collections.abc import Callable
from typing import Any

__all__ = ["PIECE", "Large"]

PIECE = 1 << 20
"""Bytes that are looked at in one step."""


class Large:
    """Bytes in memory, or a file that is mapped and let go of again behind those who read it.

    Args:
      data: the bytes, or the path of a file that is not empty.

    Attributes:
      watch: is called with the place up to which the bytes were read just now.

    Raises:
      OSError: the file cannot be read.
    """

    def __init__(self, data: bytes | pathlib.Path):
        self.watch: Callable[[int], None] | None = None
        self._map: mmap.mmap | None = None
        if isinstance(data, pathlib.Path):
            with data.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._data: Any = data if isinstance(data, bytes) else self._map
        self.view = memoryview(self._data)

    def __len__(self) -> int:
        return len(self.view)

    def copy(self, start: int = 0, stop: int | None = None) -> bytes:
        """Returns a copy of some of the bytes."""
        stop = len(self.view) if stop is None else stop
        found = bytes(self.view[start:stop])
        self.release(start, stop)
        return found

    def find(self, wanted: bytes, start: int, stop: int | None = None) -> int:
        """Returns where `wanted` begins at or after `start`; -1 where it does not."""
        stop = len(self.view) if stop is None else stop
        while start < stop:
            end = min(start + PIECE, stop)
            found = self._data.find(wanted, start, min(end + len(wanted) - 1, stop))
            if found >= 0:
                return found
            self.release(start, end)
            start = end
        return -1

    def release(self, start: int, stop: int) -> None:
        """Says that a range will not be read again soon, so that a mapped file need not stay in memory."""
        if self.watch is not None:
            self.watch(stop)
        if self._map is None or not hasattr(self._map, "madvise"):
            return
        # What the range shares a page with may go as well: it would only be read again.
        start -= start % mmap.PAGESIZE
        if stop > start:
            self._map.madvise(mmap.MADV_DONTNEED, start, stop - start)
