"""Checks and rewrites of HLO text that stand before XLA's own parser, which ends the process on some of it.

A dump has an instruction on each line. Such a line is read by one regular expression, and most need no more; where text is
laid out otherwise, strings and comments are taken away first. Time is linear in the text.

- The parameters of a computation must be 0, 1, 2, ...
- An instruction must be what the parser takes for granted (`text_instructions`), and say its shape.
- A computation inside an instruction (`to_apply={...}`) is moved out: jaxlib 0.12 ends the process on any error in it.
- An instruction with an opcode that the parser does not know becomes a custom call, as `carried` has it.
"""

import re
from collections.abc import Iterator

from unlower._jax_compat import HLO_HAS_EXP2, HLO_PARSER_CHECKS
from unlower.errors import FormatError
from unlower.readers.hlo.faults import Fault
from unlower.readers.hlo.opcodes import ARITIES, words
from unlower.readers.hlo.text_instructions import CHECKED, READS_ATTRIBUTES, TextInstruction, check_instruction
from unlower.readers.hlo.text_rewrite import carry_unknown, has_inline, move_out, without_strings
from unlower.readers.limits import Limits
from unlower.readers.text import check_nesting

__all__ = ["guard_hlo_text"]

_MEND = "the file is damaged or was changed; write it again"

_LINE = re.compile(r" *(?:ROOT )?%?([^ ]+) = ([a-z][^ (]*) ([a-z0-9\-]+)\(([^()\"/]*)\)")
"""A line with one instruction, as XLA prints it, that gives an array."""

_ARRAY = r"[a-z]\w*\[[^\[\]]*\](?:\{[^{}]*\})?"
_TUPLE = r"\([^()]*(?:\([^()]*(?:\([^()]*(?:\([^()]*\)[^()]*)*\)[^()]*)*\)[^()]*)*\)"
_LOOSE = re.compile(rf"%?([\w.\-]+)\s*=\s*({_ARRAY}|{_TUPLE})\s+([a-z][a-z0-9\-]*)\s*\(([^()]*(?:\([^()]*\)[^()]*)*)\)")
_PLAIN = r'[^{}"/]*+(?:"(?:[^"\\\n]|\\.)*+"[^{}"/]*+)*+'
_NESTED = rf"{_PLAIN}(?:\{{{_PLAIN}(?:\{{{_PLAIN}(?:\{{{_PLAIN}\}}{_PLAIN})*+\}}{_PLAIN})*+\}}{_PLAIN})*+"
_BALANCED = re.compile(_NESTED)
"""Text in which every brace that closes was opened before, and every one that opens is closed; strings hide braces."""

_UNTYPED = re.compile(r"=\s*(?:get-tuple-element|recv|scan)\s*\(")
_BRACE_OR_PARAMETER = re.compile(r"[{}]|\bparameter\s*\(\s*(-?\d+)\s*\)")
_MESH = re.compile(r"sharding=\{[^\n]*?mesh\[(?P<axes>[^\]]*)\](?P<rest>[^\n]*)")
_AXIS = re.compile(r"""["']([^"'\n]*)["']""")
_ORIGIN = re.compile(r", origin=\{[^{}\n]*(?:\{[^{}\n]*\}[^{}\n]*)*\}")

_EQUALS = re.compile(r"[\w.\-]\s+=\s*[(a-z%]")
_ODD_EQUALS = ("\t=", "\n=", "\v=", "\f=", "*/=")

_KNOWN = frozenset(ARITIES) | words("mulhi scaled-dot") | (words("exp2 log2") if HLO_HAS_EXP2 else words(""))
_SUGAR = re.compile(r"-(?:start|update|done)$")


def guard_hlo_text(text: str, limits: Limits) -> str:
    """Checks and rewrites the text of a module for XLA's parser.

    Raises:
      FormatError: what the parser would end the process on, with the line.
    """
    check_nesting(text, limits, "([{", ")]}")
    if "\r" in text:
        text = text.replace("\r\n", "\n")
    if has_inline(text):
        text = move_out(text)
    if not HLO_PARSER_CHECKS:
        _check_meshes(text)
        if ", origin={" in text:
            # Of no bearing on values; the older parser does not survive every one that the newer writes.
            text = _ORIGIN.sub("", text)
    unknown = _Scan(text).run()
    return carry_unknown(text, unknown) if unknown else text


def _instructions(blank: str) -> int:
    """How many instructions a text without strings and comments seems to have: names, equals signs, shapes."""
    return len(_EQUALS.findall(blank))


def _is_balanced(text: str) -> bool:
    """Whether braces close in `text` in the order in which they open, at any depth."""
    depth = 0
    for match in re.finditer(r"[{}]", without_strings(text)):
        depth += 1 if match.group() == "{" else -1
        if depth < 0:
            return False
    return depth == 0


class _NotByLineError(Exception):
    """The text is not laid out with whole instructions on each line."""


class _Scan:
    """One pass over the text: line by line where that is how it is laid out, else as a whole."""

    def __init__(self, text: str):
        self._text = text
        self._start()

    def _start(self) -> None:
        self._known: dict[str, tuple[str, str]] = {}
        self._parameters: list[int] = []
        self._depth = 0
        self._unknown: set[str] = set()

    def run(self) -> set[str]:
        """Checks every instruction; returns the opcodes that the parser does not know."""
        try:
            self._lines(self._text.split("\n"))
        except _NotByLineError:
            self._start()
            self._whole(without_strings(self._text))
        return self._unknown

    def _lines(self, lines: list[str]) -> None:
        match_line, known, opcodes, checked = _LINE.match, self._known, _KNOWN, CHECKED
        balanced = _BALANCED.fullmatch
        number, equals = -1, 0
        try:
            for line in lines:
                number += 1
                match = match_line(line)
                if match is None:
                    equals += self._loose_line(line)
                    continue
                if balanced(line, match.end()) is None and not _is_balanced(line[match.end() :]):
                    # The computation ends on this line, and what follows belongs to another.
                    raise _NotByLineError
                equals += 1
                name, shape, opcode, operands = match.groups()
                known[name] = (shape, opcode)
                if opcode == "parameter":
                    self._parameter(operands)
                elif opcode in checked or opcode not in opcodes:
                    self._look_at(TextInstruction(name, shape, opcode, operands, line[match.end() :]))
            self._end_computation()
        except Fault as fault:
            raise self._error(fault, number) from None
        # An instruction has a blank in front of its equals sign, an attribute has none: are there any not seen?
        if any(odd[:-1] in self._text and odd in self._text for odd in _ODD_EQUALS):
            raise _NotByLineError
        if equals != self._text.count(" ="):
            several = (line for line in lines if line.count(" =") > 1 and match_line(line))
            if any(_instructions(without_strings(line)) > 1 for line in several):
                raise _NotByLineError

    def _loose_line(self, line: str) -> int:
        """Reads a line that is not one plain instruction; returns how many equals signs of instructions are on it."""
        if line == "}":
            self._end_computation()
            self._depth = 0
            return 0
        equals = line.count(" =")
        if not equals and "parameter" not in line and "/*" not in line:
            # Tables of files and lines; the header of a computation.
            opened = line.count("{") - line.count("}")
            if opened == 0 or (opened == 1 and line[-1] == "{" and '"' not in line):
                self._depth += opened
                return 0
        if '"' in line or "/" in line:
            line = without_strings(line)
            if '"' in line or "/*" in line or "*/" in line:
                raise _NotByLineError
        if self._read(line) != _instructions(line):
            raise _NotByLineError
        return equals

    def _read(self, text: str) -> int:
        """Reads any text without strings and comments; returns how many instructions are in it."""
        count = 0
        if _UNTYPED.search(text):
            raise Fault("an instruction without its shape")
        for match in _LOOSE.finditer(text):
            count += 1
            name, shape, opcode, operands = match.groups()
            self._known[name] = (shape, opcode)
            if opcode in CHECKED or opcode not in _KNOWN:
                following = text.find(" =", match.end())
                attributes = text[match.end() : following if following >= 0 else len(text)]
                self._look_at(TextInstruction(name, shape, opcode, operands, attributes))
        for match in _BRACE_OR_PARAMETER.finditer(text):
            if match.group() == "{":
                self._depth += 1
            elif match.group() == "}":
                self._depth -= 1
                if self._depth <= 0:
                    self._depth = 0
                    self._end_computation()
            else:
                self._parameters.append(int(match.group(1)))
        return count

    def _whole(self, blank: str) -> None:
        try:
            self._read(blank)
            self._end_computation()
        except Fault as fault:
            raise FormatError(f"ill-formed HLO: {fault}", where="the text of the module", mend=_MEND) from None

    def _look_at(self, instruction: TextInstruction) -> None:
        opcode = instruction.opcode
        if opcode not in _KNOWN and _SUGAR.sub("", opcode) not in _KNOWN:
            self._unknown.add(opcode)
            return
        if opcode in READS_ATTRIBUTES and instruction.attributes.rstrip().endswith(","):
            # They go on on the next line.
            raise _NotByLineError
        check_instruction(instruction, self._known)

    def _parameter(self, number: str) -> None:
        if re.fullmatch(r"\s*-?\d+\s*", number):
            self._parameters.append(int(number))

    def _end_computation(self) -> None:
        numbers, self._parameters = sorted(self._parameters), []
        if numbers != list(range(len(numbers))):
            raise Fault(f"the parameters of a computation have the numbers {', '.join(map(str, numbers))}")

    def _error(self, fault: Fault, number: int) -> FormatError:
        line = self._text.split("\n")[max(number, 0)].strip()[:120]
        return FormatError(f"ill-formed HLO: {fault}", where=f"line {number + 1}: {line}", mend=_MEND)


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
