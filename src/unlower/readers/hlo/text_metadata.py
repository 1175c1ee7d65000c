"""Names and source lines in HLO text, taken out before XLA reads it.

Half of a dump is `metadata={op_name="..." stack_frame_id=9}`, which XLA parses, writes to a proto and turns into a location for
each operation, each of them several times. Here each distinct one becomes a short mark, and the location that it stands for
is found again by that mark. What is spelled in any other way stays as it is.
"""

import re

from unlower.ir.module import Location

__all__ = ["shorten_metadata"]

_START = ", metadata={op_name="
_MARK = "unlower#"
_STRING = r'"([^"\\\n]*+(?:\\[\'"\\][^"\\\n]*+)*+)"'
_PLAIN = re.compile(
    rf"""{_STRING}(?: source_file={_STRING} source_line=(\d+)|(?: stack_frame_id=(\d+)))?"""
    r"(?: source_(?:end_line|column|end_column)=\d+)*"
)
_ESCAPE = re.compile(r"\\(.)")
_FILE = re.compile(rf"^(\d+) {_STRING}$", re.MULTILINE)
_PLACE = re.compile(r"^(\d+) \{file_name_id=(\d+) function_name_id=\d+ line=(\d+)\b[^\n]*\}$", re.MULTILINE)
_FRAME = re.compile(r"^(\d+) \{file_location_id=(\d+)\b[^\n]*\}$", re.MULTILINE)


def shorten_metadata(text: str) -> tuple[str, dict[str, Location]]:
    """Puts marks in the place of metadata.

    Returns:
      the text, with the same lines, and the location for each mark, which is the `op_name` of the instructions that have it.
    """
    first, *pieces = text.split(_START)
    frames = _frames(first)
    locations: dict[str, Location] = {}
    known: dict[str, str] = {}
    shortened = [first]
    for piece in pieces:
        inner, closing, rest = piece.partition("}")
        short = known.get(inner)
        if short is None:
            location = _location(inner, frames) if closing else None
            if location is None:
                shortened.append(piece)
                continue
            mark = f"{_MARK}{len(known)}"
            locations[mark] = location
            short = known[inner] = f'"{mark}"}}'
        shortened.append(short + rest)
    return _START.join(shortened), locations


def _location(inner: str, frames: dict[str, tuple[str, int]]) -> Location | None:
    """Returns the location that the rest of some metadata spells; None where that is not known here."""
    match = _PLAIN.fullmatch(inner)
    if match is None:
        return None
    name, file, line, frame = match.groups()
    if not name or (frame is not None and frame not in frames):
        return None
    if file is not None:
        return Location(_unescaped(name), _unescaped(file), int(line))
    return Location(_unescaped(name), *(frames[frame] if frame is not None else (None, None)))


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(r"\1", text) if "\\" in text else text


def _frames(head: str) -> dict[str, tuple[str, int]]:
    """The file and line of each stack frame, by number, as the tables in front of the computations have them."""
    files, places, frames = (
        {number: rest for number, *rest in pattern.findall(_table(head, name))}
        for name, pattern in (("FileNames", _FILE), ("FileLocations", _PLACE), ("StackFrames", _FRAME))
    )
    found: dict[str, tuple[str, int]] = {}
    for frame, (place,) in frames.items():
        if place in places and places[place][0] in files:
            file, line = places[place]
            found[frame] = _unescaped(files[file][0]), int(line)
    return found


def _table(head: str, name: str) -> str:
    start = head.find(f"\n{name}\n")
    return "" if start < 0 else head[start + 1 : head.find("\n\n", start)]
