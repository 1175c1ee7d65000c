"""HLO text as XLA prints it: whole instructions on lines of their own, read by one regular expression.

A line that matches holds one instruction and nothing else, since its attributes are matched up to the end. Where every line is
one that XLA prints, the text needs no parser; where one is anything else, `read_lines` gives up.
"""

import re

__all__ = ["ARRAY", "INSIDE", "TUPLE", "read_lines"]


def _nested(opening: str, between: str, closing: str, depth: int) -> str:
    """Matches a group that holds `between`, and groups inside each other as deep as `depth`."""
    pattern = rf"{opening}{between}{closing}"
    for _ in range(depth - 1):
        pattern = rf"{opening}{between}(?:{pattern}{between})*+{closing}"
    return pattern


ARRAY = r"[a-z]\w*\[[^\[\]]*\](?:\{[^{}]*\})?"
TUPLE = _nested(r"\(", r'[^()"]*+', r"\)", 4)
INSIDE = rf"[^()]*+(?:{_nested('[(]', '[^()]*+', '[)]', 4)}[^()]*+)*+"
"""What is between the parentheses of an instruction."""

_STRING = r'"(?:[^"\\\n]|\\.)*+"'

# Parentheses in braces may be those of an instruction, whose opcode stands before them. What stands before these is none: a
# tile, `T(8,128)`, or a memory space; an alias, `{0}: (1, {})`; an origin, `{("name" {0})}`.
_TILE = r"(?:(?<=[\d\]:)}])|(?<=[\d\]:)}][A-Z]))\([\d,*]*\)"
_OTHER = rf"[\d, {{}}]*+(?:(?:{_STRING}|\w+-alias)[\d, {{}}]*+)*+"
_GROUP = r"(?:(?<=[{,(:])|(?<=[,:}] ))" + _nested(r"\(", _OTHER, r"\)", 4)
_BRACED = rf'[^{{}}"()\n]*+(?:(?:{_STRING}|{_TILE}|{_GROUP})[^{{}}"()\n]*+)*+'
_BRACES = _nested(r"\{", _BRACED, r"\}", 4)
_GROUPS = r"mesh\[[\w'=,]*\] \{(?:[\w',]|:\(\d+\)\d*)*\}"
_VALUE = rf'(?:{_GROUPS}|[^\s="{{}},<]++|,(?! )|<=?|{_STRING}|{_BRACES})++'

_OPERAND = r'[^()"/]*+(?:/\*\w+=\d+\*/[^()"/]*+)*+'
_OPERANDS = rf"{_OPERAND}(?:{_nested('[(]', _OPERAND, '[)]', 3)}{_OPERAND})*+"

_TABLE = rf"\d+ (?:{_STRING}|\{{[\w= ]*\}})|\w+|\s+"
"""A line of the tables of files and places, or a heading there."""

_LINE = re.compile(
    rf"^ *(?:ROOT )?%?([\w.\-]+) = ({ARRAY}|{TUPLE}) ([a-z][a-z0-9\-]*)\(({_OPERANDS})\)((?:, [\w\-]+={_VALUE})*+)$"
    rf"|^(?:{_TABLE})$|^(.+)$",
    re.MULTILINE,
)
_END = re.compile(r'\}(?:, execution_thread="\w+")?')
_HEADER = re.compile(r'(?:ENTRY )?%?[\w.\-]+ (?:\([^="]*\) -> [^="]+ )?\{')
_MODULE = re.compile(r'HloModule [\w.\-]+(?:, [\w\-]+(?:=[^\s={},"]*)?)*')

_QUIET = re.compile(rf"{_STRING}|/\*\w+=\d+\*/")
_VALUES = re.compile("(?<==)" + _nested(r"\{", r'[^{}"]*+', r"\}", 6))
_LAYOUT = re.compile(r"\{[^{}]*\}")


def read_lines(text: str) -> list[tuple[str, str, str, str, str, str]] | None:
    """Splits text into its lines; None where one of them is no line as XLA prints it.

    Returns:
      for each instruction its name, shape, opcode, operands and attributes, as text, and an empty string; for a line that ends
      a computation five empty strings, and the line, which begins with `}`; for any other, six strings of no meaning.
    """
    lines = _LINE.findall(text)
    return lines if all(_is_plain(line[5]) for line in lines if line[5]) else None


def _is_plain(line: str) -> bool:
    """Whether a line is the end or the header of a computation, or the header of the module."""
    if line[0] == "}":
        return _END.fullmatch(line) is not None
    line = _QUIET.sub("", line)
    if line.startswith("HloModule "):
        return _MODULE.fullmatch(_VALUES.sub("", line)) is not None
    return _HEADER.fullmatch(line) is not None and "{" not in _LAYOUT.sub("", line[:-1])
