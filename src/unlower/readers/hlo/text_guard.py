"""Checks and rewrites of HLO text that stand before XLA's own parser, which ends the process on some of it.

A dump has an instruction on each line (`text_lines`), and most need no more; where text is laid out otherwise, strings and
comments are taken away first. Time is linear in the text.

- The parameters of a computation must be 0, 1, 2, ...
- An instruction must be what the parser takes for granted (`text_instructions`), and say its shape.
- A computation inside an instruction (`to_apply={...}`) is moved out: jaxlib 0.12 ends the process on any error in it.
- An instruction with an opcode that the parser does not know becomes a custom call, as `carried` has it.
"""

import math
import re
from collections.abc import Iterator, Sequence

from unlower._jax_compat import HLO_HAS_EXP2, HLO_PARSER_CHECKS
from unlower.errors import FormatError
from unlower.readers.hlo.faults import Fault
from unlower.readers.hlo.opcodes import ARITIES, words
from unlower.readers.hlo.text_instructions import CHECKED, TextInstruction, check_instruction
from unlower.readers.hlo.text_lines import ARRAY, INSIDE, TUPLE, read_lines
from unlower.readers.hlo.text_rewrite import carry_unknown, has_inline, move_out, without_strings
from unlower.readers.limits import Limits
from unlower.readers.text import check_nesting

__all__ = ["guard_hlo_text"]

_MEND = "the file is damaged or was changed; write it again"

_LOOSE = rf"%?([\w.\-]+)\s*=\s*({ARRAY}|{TUPLE})\s+([a-z][a-z0-9\-]*)\s*\((?:({INSIDE})\)|([^=]*))"
"""An instruction in text without strings; if its parentheses do not close, with all that may be inside them."""

_MARK = re.compile(rf"{_LOOSE}|([{{}}])|\bparameter\s*\(\s*(-?\d+)\s*\)")
_UNTYPED = re.compile(r"=\s*(?:get-tuple-element|recv|scan)\s*\(")
_MESH = re.compile(r"sharding=\{[^\n]*?mesh\[(?P<axes>[^\]]*)\](?P<rest>[^\n]*)")
# The literal comes first, which is how a regular expression is fast to find nothing.
_SIZED = [re.compile(rf"{name}\[(?<=\b{name}\[)(?:[^\]]|\]\{{)") for name in ("token", "opaque")]
_TILES = re.compile(r"devices=(?<=\bdevices=)\[([\d,]+)\]<=\[([\d,]+)\]")
_AXIS = re.compile(r"""["']([^"'\n]*)["']""")
_ORIGIN = re.compile(r", origin=\{[^{}\n]*(?:\{[^{}\n]*\}[^{}\n]*)*\}")

_KNOWN = frozenset(ARITIES) | words("mulhi scaled-dot") | (words("exp2 log2") if HLO_HAS_EXP2 else words(""))
_SUGAR = re.compile(r"-(?:start|update|done)$")


def guard_hlo_text(text: str, limits: Limits) -> str:
    """Checks and rewrites the text of a module for XLA's parser.

    Raises:
      FormatError: what the parser would end the process on, with the line.
    """
    if "\r" in text:
        text = text.replace("\r\n", "\n")
    if not HLO_PARSER_CHECKS:
        _check_meshes(text)
        _check_tiles(text)
        if ", origin={" in text:
            # Of no bearing on values; the older parser does not survive every one that the newer writes.
            text = _ORIGIN.sub("", text)
    _check_tokens(text)
    lines = read_lines(text)
    scan = _Scan(limits)
    if lines is not None:
        scan.lines(text, lines)
    else:
        check_nesting(text, limits, "([{", ")]}")
        if has_inline(text):
            text = move_out(text)
        scan.whole(without_strings(text))
    return carry_unknown(text, scan.unknown) if scan.unknown else text


class _Scan:
    """One pass over the instructions of a text.

    Attributes:
      unknown: the opcodes that were met and that the parser does not know.
    """

    def __init__(self, limits: Limits):
        self.unknown: set[str] = set()
        self._limits = limits
        self._known: dict[str, tuple[str, str]] = {}
        self._parameters: list[int] = []

    def lines(self, text: str, lines: Sequence[tuple[str, str, str, str, str, str]]) -> None:
        """Checks the instructions of a text that is laid out as XLA does it."""
        known, seen, looked_at = self._known, _KNOWN, CHECKED
        deepest = self._limits.nesting
        ends, name = 0, ""
        try:
            for name, shape, opcode, operands, attributes, other in lines:
                if name:
                    known[name] = (shape, opcode)
                    if opcode == "parameter":
                        self._parameter(operands)
                    elif opcode in looked_at or opcode not in seen:
                        if operands.count("{") > deepest:
                            check_nesting(operands, self._limits, "{", "}")
                        self._look_at(TextInstruction(name, shape, opcode, operands, attributes))
                elif other[:1] == "}":
                    ends += 1
                    self._end_computation()
            self._end_computation()
        except Fault as fault:
            pattern = rf"^ *(?:ROOT )?%?{re.escape(name)} = " if name else r"^\}"
            places = [match.end() for match in re.finditer(pattern, text, re.MULTILINE)]
            place = places[0] if name else [*places, len(text)][ends - 1]
            raise _error(fault, text, place) from None

    def whole(self, blank: str) -> None:
        """Checks the instructions of any text without strings and comments."""
        depth = 0
        try:
            if _UNTYPED.search(blank):
                raise Fault("an instruction without its shape")
            for match in _MARK.finditer(blank):
                name, shape, opcode, operands, unclosed, brace, number = match.groups()
                operands = unclosed if operands is None else operands
                if brace == "{":
                    depth += 1
                elif brace == "}":
                    depth = max(depth - 1, 0)
                    if depth == 0:
                        self._end_computation()
                elif number is not None:
                    self._parameters.append(int(number))
                elif opcode == "parameter":
                    self._known[name] = (shape, opcode)
                    self._parameter(operands)
                else:
                    self._known[name] = (shape, opcode)
                    if opcode in CHECKED or opcode not in _KNOWN:
                        following = blank.find(" =", match.end())
                        attributes = blank[match.end() : following if following >= 0 else len(blank)]
                        self._look_at(TextInstruction(name, shape, opcode, operands, attributes))
            self._end_computation()
        except Fault as fault:
            raise FormatError(f"ill-formed HLO: {fault}", where="the text of the module", mend=_MEND) from None

    def _look_at(self, instruction: TextInstruction) -> None:
        opcode = instruction.opcode
        if opcode not in _KNOWN and _SUGAR.sub("", opcode) not in _KNOWN:
            self.unknown.add(opcode)
            return
        check_instruction(instruction, self._known)

    def _parameter(self, number: str) -> None:
        if re.fullmatch(r"\s*-?\d+\s*", number):
            self._parameters.append(int(number))

    def _end_computation(self) -> None:
        numbers, self._parameters = sorted(self._parameters), []
        self._known.clear()
        if numbers != list(range(len(numbers))):
            raise Fault(f"the parameters of a computation have the numbers {', '.join(map(str, numbers))}")


def _error(fault: Fault, text: str, place: int) -> FormatError:
    start, stop = text.rfind("\n", 0, place) + 1, text.find("\n", place)
    line = text[start : stop if stop >= 0 else len(text)].strip()[:120]
    return FormatError(
        f"ill-formed HLO: {fault}", where=f"line {text.count(chr(10), 0, start) + 1}: {line}", mend=_MEND
    )


def _check_tokens(text: str) -> None:
    """Refuses tokens and opaque values with sizes or layouts."""
    if any(pattern.search(text) for pattern in _SIZED):
        blank = without_strings(text)
        for pattern in _SIZED:
            if match := pattern.search(blank):
                raise _error(Fault(f"the shape {match.group()}...: it has no sizes and no layout"), text, match.start())


def _check_tiles(text: str) -> None:
    """Refuses a sharding in tiles whose number is not that of its devices."""
    for match in _TILES.finditer(text):
        tiles, devices = (math.prod(map(int, filter(None, numbers.split(",")))) for numbers in match.groups())
        if tiles != devices:
            raise _error(Fault(f"its sharding has {tiles} tiles for {devices} devices"), text, match.start())


def _check_meshes(text: str) -> None:
    """Refuses names of axes in a sharding that its mesh does not have."""
    if "mesh[" not in text:
        return
    for match in _MESH.finditer(text):
        axes = set(_AXIS.findall(match.group("axes")))
        for axis in _named_axes(match.group("rest")):
            if axis not in axes:
                line = text.count("\n", 0, match.start()) + 1
                raise FormatError(
                    f"ill-formed HLO: its mesh has no axis {axis}",
                    where=f"line {line}: {match.group()[:120]}",
                    mend=_MEND,
                )


def _named_axes(rest: str) -> Iterator[str]:
    """The names of axes after a mesh, up to the end of the sharding."""
    depth = 1
    for at, character in enumerate(rest):
        depth += (character in "{[(") - (character in "}])")
        if depth == 0:
            rest = rest[:at]
            break
    for name in _AXIS.findall(rest.partition("metadata=")[0]):
        yield name.partition(":")[0]
