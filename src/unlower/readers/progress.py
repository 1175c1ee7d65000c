"""Progress on a terminal, for files that take a while to read; silence anywhere else, and without rich."""

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["SHOWN", "console", "reading"]

SHOWN = 256 << 20
"""Bytes of a file from which on reading it shows progress: about the first that takes seconds."""


@functools.cache
def console() -> Any:
    """The only `rich.console.Console` that writes to stderr, so that what moves on it is drawn by one; raises ImportError."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


@contextlib.contextmanager
def reading(name: str, size: int) -> Iterator[Callable[[int], None] | None]:
    """Shows on the terminal how far a file is read; yields what to call with the place in it, or None for nothing.

    Args:
      name: of the file.
      size: of the file, in bytes.
    """
    if size < SHOWN or sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    try:
        from rich.errors import LiveError
        from rich.markup import escape
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn
    except ImportError:
        yield None
        return
    columns = TextColumn("reading {task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn()
    # On its own lines, and gone when the file is read.
    progress = Progress(*columns, console=console(), transient=True)
    task = progress.add_task(escape(name), total=size)
    try:
        progress.start()
    except LiveError:
        yield None
        return
    try:
        yield lambda place: progress.update(task, completed=place)
    finally:
        progress.stop()
