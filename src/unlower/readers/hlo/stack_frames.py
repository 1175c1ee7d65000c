"""The table of stack frames of a module (`StackFrameIndexProto`): numbers that XLA follows without a look."""

import numpy as np

from unlower.readers.hlo.faults import Fault
from unlower.readers.hlo.wire import decode_fields
from unlower.readers.wire import BYTES, fields

__all__ = ["check_stack_frames"]

_FILES, _FUNCTIONS, _PLACES, _FRAMES = 1, 2, 3, 4


def check_stack_frames(data: bytes) -> None:
    """Checks that every number is of an entry of its table (they count from 1), and that no frame is its own parent.

    Raises:
      Fault: it is not so; XLA would read past the end of a table, or walk in a circle.
    """
    spans: dict[int, tuple[list[int], list[int]]] = {number: ([], []) for number in (1, 2, 3, 4)}
    for number, kind, start, stop in fields(data):
        if number in spans and kind == BYTES:
            spans[number][0].append(start)
            spans[number][1].append(stop)
    counts = {number: len(starts) for number, (starts, _) in spans.items()}
    for table, column, of, what in (
        (_PLACES, 1, _FILES, "a place in a file"),
        (_PLACES, 2, _FUNCTIONS, "a place in a function"),
        (_FRAMES, 1, _PLACES, "a stack frame"),
    ):
        values = _column(data, spans[table], column)
        wrong = (values < 0) | (values > counts[of])
        if wrong.any():
            raise Fault(f"it has {what} number {values[wrong][:1]} of {counts[of]}")
    parents = _column(data, spans[_FRAMES], 2)
    own = np.arange(1, len(parents) + 1)
    if not ((parents >= 0) & (parents <= len(parents))).all():
        raise Fault("it has a stack frame whose parent is not there")
    if (parents >= own).any():
        _refuse_circles(parents)


def _column(data: bytes, spans: tuple[list[int], list[int]], number: int) -> np.ndarray:
    table = decode_fields(data, *spans)
    rows = table.where((table.number == number) & (table.kind == 0))
    values = np.zeros(len(spans[0]), np.int64)
    values[rows.owner] = rows.value
    return values


def _refuse_circles(parents: np.ndarray) -> None:
    """Walks from every frame to the outermost; the same frame is walked once."""
    state = [0] * (len(parents) + 1)
    for start in range(1, len(parents) + 1):
        walked, frame = [], start
        while frame and state[frame] == 0:
            state[frame] = 1
            walked.append(frame)
            frame = int(parents[frame - 1])
        if frame and state[frame] == 1:
            raise Fault(f"its stack frame {frame} is inside itself")
        for frame in walked:
            state[frame] = 2
