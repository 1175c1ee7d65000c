"""Rewrites of HLO text: computations inside instructions are moved out, instructions of unknown opcodes carried."""

import re
from collections.abc import Iterator

from unlower.errors import FormatError
from unlower.readers.hlo.carried import CARRIED_TARGET
from unlower.readers.hlo.opcodes import words

__all__ = ["carry_unknown", "has_inline", "move_out", "without_strings"]

_QUIET = re.compile(r'"(?:[^"\\\n]|\\.)*"|/\*.*?\*/|//[^\n]*', re.DOTALL)
_CALLED = (
    "to_apply",
    "calls",
    "condition",
    "body",
    "select",
    "scatter",
    "true_computation",
    "false_computation",
)
_INLINE = re.compile(rf"\b(?:{'|'.join(_CALLED)})\s*=\s*\{{(?=[^{{}}]*=)")
_BRACKET = re.compile(r"[(\[{]|[)\]}]")
_BRACE = re.compile(r"[{}]")
_INSTRUCTION = re.compile(
    r"(=\s*)((?:\([^=]*?\)|[a-z]\w*\[[^\]]*\](?:\{[^}]*\})?)\s+)([a-z][a-z0-9]*(?:-[a-z0-9]+)*)\s*\("
)
_ATTRIBUTE = re.compile(r"\s*,\s*([A-Za-z_][\w\-]*)\s*= ?")
_VALUE_END = re.compile(r"[(\[{]|[\s,)\]}]")

_WITHOUT_ATTRIBUTES = words("atan exp2 log2 mulhi")
_KEPT = words("metadata sharding frontend_attributes control-predecessors")


def without_strings(text: str) -> str:
    """The text with strings and comments blanked out, every other character in its place."""
    return _QUIET.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)


def has_inline(text: str) -> bool:
    """Whether there is a computation inside an instruction."""
    for word in _CALLED:
        at = text.find(f"{word}=")
        while at >= 0:
            at += len(word) + 1
            if text[at : at + 1] in ("{", " ", "\t", "\n"):
                # A list of names, perhaps, or a word in a string.
                return _INLINE.search(without_strings(text)) is not None
            at = text.find(f"{word}=", at)
    return False


def _closing(blank: str, opening: int) -> int:
    """Where the group that opens at `opening` ends; the end of the text where it does not."""
    depth = 0
    for match in _BRACKET.finditer(blank, opening):
        depth += 1 if match.group() in "([{" else -1
        if depth == 0:
            return match.start()
    return len(blank)


def move_out(text: str) -> str:
    """Makes each computation inside an instruction one of its own, in front of the one that holds the instruction.

    Raises:
      FormatError: the text is laid out so that there is no place in front of it.
    """
    number = 0
    while True:
        blank = without_strings(text)
        # The last that begins holds no other.
        every = list(_INLINE.finditer(blank))
        if not every:
            return text
        found = every[-1]
        opening = found.end() - 1
        closing = _closing(blank, opening)
        outer = _line_of_computation(blank, opening)
        if closing >= len(blank) or outer is None:
            raise FormatError(
                "ill-formed HLO: a computation inside an instruction, which cannot be moved out of it",
                where=f"line {text.count(chr(10), 0, opening) + 1}",
                mend="the file is damaged, or laid out as no tool does it; write it again",
            )
        name = f"unlower_inline_{number}"
        number += 1
        moved = f"{name} {text[opening : closing + 1]}\n\n"
        text = text[:outer] + moved + text[outer:opening] + name + text[closing + 1 :]


def _line_of_computation(blank: str, inside: int) -> int | None:
    """Where the line begins on which the computation around `inside` does; None if the module's header is on it too."""
    depth = begin = 0
    for match in _BRACE.finditer(blank, 0, inside):
        if match.group() == "{":
            if depth == 0:
                begin = match.start()
            depth += 1
        else:
            depth -= 1
    line = blank.rfind("\n", 0, begin) + 1
    return None if depth < 1 or re.match(r"\s*HloModule\b", blank[line:begin]) else line


def carry_unknown(text: str, unknown: set[str]) -> str:
    """Makes the instructions with one of the `unknown` opcodes custom calls that carry them."""
    blank = without_strings(text)
    pieces, done = [], 0
    for match in _INSTRUCTION.finditer(blank):
        opcode = match.group(3)
        if opcode not in unknown or match.start() < done:
            continue
        closing = _closing(blank, match.end() - 1)
        if blank[match.end() : closing].strip().isdigit():
            continue  # a parameter or a literal, misspelled: the parser says so
        stop = closing + 1
        kept, own = [], []
        for name, start, end in _attributes(blank, stop):
            (kept if name in _KEPT else own).append(text[start:end])
            stop = end
        target = f'custom_call_target="{CARRIED_TARGET}{opcode}", api_version=API_VERSION_TYPED_FFI'
        attributes = ", ".join([target, f'backend_config="{_config(opcode, own)}"', *kept])
        pieces += [text[done : match.start(3)], "custom-call", text[match.end() - 1 : closing + 1], ", ", attributes]
        done = stop
    return "".join([*pieces, text[done:]])


def _config(opcode: str, attributes: list[str]) -> str:
    """What the custom call says of the instruction: its attributes as they are, unless they have no bearing on values."""
    if opcode in _WITHOUT_ATTRIBUTES:
        attributes = [attribute for attribute in attributes if not attribute.startswith("result_accuracy")]
    if not attributes:
        return "{}"
    dictionary = f'{{attributes = "{_escaped(", ".join(attributes))}"}}'
    return _escaped(dictionary)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _attributes(blank: str, at: int) -> Iterator[tuple[str, int, int]]:
    """Yields name, start and stop of each attribute after an instruction's operands."""
    while (match := _ATTRIBUTE.match(blank, at)) is not None:
        start, at = match.start(1), match.end()
        while (found := _VALUE_END.search(blank, at)) is not None and found.group() in "([{":
            at = _closing(blank, found.start()) + 1
        at = len(blank) if found is None else found.start()
        yield match.group(1), start, at
