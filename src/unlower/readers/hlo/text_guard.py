"""Checks and rewrites of HLO text that stand before XLA's own parser, which ends the process on some of it.

In a dump as XLA writes it there is nothing to do, and finding that out takes a few passes of regular expressions, in time
linear in the text. What has to be looked at closely is found again with its place in the text.

- The parameters of a computation must be 0, 1, 2, ...
- A layout must be a permutation; there are no constants of six-bit floats.
- A get-tuple-element whose shape is left out must have an index.
- A computation inside an instruction (`to_apply={...}`) is moved out: jaxlib 0.12 ends the process on any error in it.
- An instruction with an opcode that the parser does not know becomes a custom call, as `carried` has it.
"""

import re
from collections.abc import Iterator

import numpy as np

from unlower._jax_compat import HLO_HAS_EXP2
from unlower.errors import FormatError
from unlower.readers.hlo.carried import CARRIED_TARGET
from unlower.readers.hlo.opcodes import ARITIES, words
from unlower.readers.limits import Limits
from unlower.readers.text import check_nesting

__all__ = ["carry_unknown", "guard_hlo_text"]

_MEND = "the file is damaged or was changed; write it again"

_STRINGS = r'"(?:[^"\\\n]|\\.)*"|/\*.*?\*/|//[^\n]*'
_QUIET = re.compile(_STRINGS, re.DOTALL)
_LISTS = re.compile(r"\{[^{}=]*\}")
_PARAMETER = re.compile(r"[{}]|\bparameter\s*\(\s*(-?\d+)\s*\)")
_NUMBER = re.compile(rb"parameter\s*\(\s*(-?\d+)\s*\)")
_LAYOUT = re.compile(r"\[[^\[\]]*\]\{[^{}]*\}")
_FLOAT6 = re.compile(r"\bf6e\w+\[[^\]]*\](?:\{[^}]*\})?\s+constant\s*\(")
_UNTYPED = re.compile(r"=\s*(?:get-tuple-element|recv|scan)\s*\(")
_CALLED = "to_apply|calls|called_computations|condition|body|select|scatter|true_computation|false_computation"
_INLINE = re.compile(rf"\b(?:{_CALLED})\s*=\s*\{{(?=[^{{}}]*=)")
_OPCODE = re.compile(r"(?<=[\]\s)}])([a-z][a-z0-9]*(?:-[a-z0-9]+)*)\s*\(")
_INSTRUCTION = re.compile(
    r"(=\s*)((?:\([^=]*?\)|[a-z]\w*\[[^\]]*\](?:\{[^}]*\})?)\s+)([a-z][a-z0-9]*(?:-[a-z0-9]+)*)\s*\("
)

_KNOWN = frozenset(ARITIES) | words("mulhi scaled-dot") | (words("exp2 log2") if HLO_HAS_EXP2 else words(""))
_SUGAR = re.compile(r"-(?:start|update|done)$")
_WITHOUT_ATTRIBUTES = words("atan exp2 log2 mulhi")
_KEPT = words("metadata sharding frontend_attributes control-predecessors")


def guard_hlo_text(text: str, limits: Limits) -> str:
    """Checks and rewrites the text of a module for XLA's parser.

    Raises:
      FormatError: what the parser would end the process on, with the line.
    """
    check_nesting(text, limits, "([{", ")]}")
    quiet = _QUIET.sub('""', text)
    _check_shapes(text, quiet)
    if _may_be_inline(quiet) and _INLINE.search(quiet):
        text = _move_out(text)
        quiet = _QUIET.sub('""', text)
    _check_parameters(text, quiet)
    return text


def carry_unknown(text: str) -> str | None:
    """Makes the instructions whose opcode the parser does not know custom calls; None if there are none."""
    unknown = {name for name in set(_OPCODE.findall(_QUIET.sub('""', text))) if not _is_known(name)}
    carried = _carry(text, unknown) if unknown else text
    return None if carried == text else carried


def _blank(text: str) -> str:
    """The text with strings and comments blanked out, every other character in its place."""
    return _QUIET.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)


def _error(what: str, text: str, at: int) -> FormatError:
    line = text.count("\n", 0, at) + 1
    source = text[text.rfind("\n", 0, at) + 1 :].partition("\n")[0].strip()[:120]
    return FormatError(f"ill-formed HLO: {what}", where=f"line {line}: {source}", mend=_MEND)


_INLINE_STARTS = tuple(f"{name}={{" for name in _CALLED.split("|"))
_SPACED = ("= {", "=\t{", "=\n{", "=\r", " ={", "\t={", "\n={")


def _may_be_inline(quiet: str) -> bool:
    """Whether a computation may stand inside an instruction: a quick look, by plain searches."""
    return any(start in quiet for start in (*_INLINE_STARTS, *_SPACED))


# --- shapes


def _check_shapes(text: str, quiet: str) -> None:
    for found in set(_LAYOUT.findall(quiet)):
        shape, _, layout = found[:-1].partition("]{")
        order = layout.partition(":")[0]
        if not re.fullmatch(r"[\d\s,]*", order):
            continue
        rank = len([size for size in shape[1:].split(",") if size.strip()])
        places = [int(place) for place in order.split(",") if place.strip()]
        if places and sorted(places) != list(range(rank)):
            raise _error(f"the layout of {found} is no permutation of its dimensions", text, _find(text, found))
    match = _FLOAT6.search(quiet) if "f6e" in quiet else None
    if match:
        raise _error(
            "constants of six-bit floats are not supported by XLA's own parser", text, _find(text, match.group())
        )
    match = _UNTYPED.search(quiet)
    if match:
        raise _error("an instruction without its shape", text, _find(text, match.group()))


def _find(text: str, what: str) -> int:
    """Where something is that was found outside of strings and comments."""
    return max(_blank(text).find(what), 0)


# --- computations


def _check_parameters(text: str, quiet: str) -> None:
    """Checks the numbers of the parameters in each computation, a group of braces that is in no other."""
    # Lists of numbers (layouts, dimensions, groups) are braces too, and far more of them.
    if _may_be_faulty(_LISTS.sub("", quiet).encode()):
        faulty = _faulty(_blank(text))
        if faulty is None:
            return
        numbers, at = faulty
        raise _error(f"the parameters of a computation have the numbers {', '.join(map(str, numbers))}", text, at)


def _may_be_faulty(data: bytes) -> bool:
    """Whether a computation may have parameters of other numbers than 0, 1, 2, ...: a quick look, all braces at once."""
    characters = np.frombuffer(data, np.uint8)
    braces = np.flatnonzero((characters == ord("{")) | (characters == ord("}")))
    depth = np.cumsum(np.where(characters[braces] == ord("{"), 1, -1))
    ends = braces[depth == 0]
    found = [(match.start(), int(match.group(1))) for match in _NUMBER.finditer(data)]
    groups: dict[int, list[int]] = {}
    for group, (_, number) in zip(np.searchsorted(ends, [at for at, _ in found]).tolist(), found, strict=True):
        groups.setdefault(group, []).append(number)
    return any(sorted(numbers) != list(range(len(numbers))) for numbers in groups.values())


def _faulty(text: str) -> tuple[list[int], int] | None:
    depth = start = 0
    numbers: list[int] = []
    for match in _PARAMETER.finditer(text):
        token = match.group()
        if token == "{":
            if depth == 0:
                numbers, start = [], match.start()
            depth += 1
        elif token == "}":
            depth -= 1
            if depth == 0 and sorted(numbers) != list(range(len(numbers))):
                return numbers, start
        else:
            numbers.append(int(match.group(1)))
    if depth > 0 and sorted(numbers) != list(range(len(numbers))):
        return numbers, start
    return None


def _closing(blank: str, opening: int) -> int:
    """Where the group that opens at `opening` ends; the end of the text where it does not."""
    depth = 0
    for match in re.compile(r"[(\[{]|[)\]}]").finditer(blank, opening):
        depth += 1 if match.group() in "([{" else -1
        if depth == 0:
            return match.start()
    return len(blank)


def _move_out(text: str) -> str:
    """Makes each computation inside an instruction one of its own, in front of the one that holds the instruction."""
    number = 0
    while True:
        blank = _blank(text)
        match = _innermost(blank)
        if match is None:
            return text
        opening = match.end() - 1
        closing = _closing(blank, opening)
        outer = _header(blank, opening)
        if closing >= len(blank) or outer is None:
            raise _error("a computation inside an instruction, which cannot be moved out of it", text, opening)
        name = f"unlower_inline_{number}"
        number += 1
        moved = f"{name} {text[opening : closing + 1]}\n\n"
        text = text[:outer] + moved + text[outer:opening] + name + text[closing + 1 :]


def _innermost(blank: str) -> re.Match[str] | None:
    """The last computation that begins inside an instruction: it holds no other."""
    found = None
    for match in _INLINE.finditer(blank):
        found = match
    return found


def _header(blank: str, inside: int) -> int | None:
    """Where the line begins with which the computation around `inside` begins; None if the module's header is on it."""
    depth = begin = 0
    for match in re.compile(r"[{}]").finditer(blank, 0, inside):
        if match.group() == "{":
            if depth == 0:
                begin = match.start()
            depth += 1
        else:
            depth -= 1
    line = blank.rfind("\n", 0, begin) + 1
    return None if depth < 1 or re.match(r"\s*HloModule\b", blank[line:begin]) else line


# --- opcodes


def _is_known(opcode: str) -> bool:
    return opcode in _KNOWN or _SUGAR.sub("", opcode) in _KNOWN


def _carry(text: str, unknown: set[str]) -> str:
    """Makes the instructions with one of the `unknown` opcodes custom calls."""
    blank = _blank(text)
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
        config = _config(opcode, own)
        target = f'custom_call_target="{CARRIED_TARGET}{opcode}", api_version=API_VERSION_TYPED_FFI'
        attributes = ", ".join([target, f'backend_config="{config}"', *kept])
        pieces += [text[done : match.start(3)], "custom-call", text[match.end() - 1 : closing + 1], ", ", attributes]
        done = stop
    return "".join([*pieces, text[done:]])


def _config(opcode: str, attributes: list[str]) -> str:
    """What the custom call says of the instruction: its attributes as they are, unless they have no bearing on values."""
    if opcode in _WITHOUT_ATTRIBUTES:
        attributes = [attribute for attribute in attributes if not attribute.startswith("result_accuracy")]
    if not attributes:
        return "{}"
    spelled = ", ".join(attributes).replace("\\", "\\\\").replace('"', '\\"')
    dictionary = f'{{attributes = "{spelled}"}}'
    return dictionary.replace("\\", "\\\\").replace('"', '\\"')


def _attributes(blank: str, at: int) -> Iterator[tuple[str, int, int]]:
    """Yields name, start and stop of each attribute after an instruction's operands."""
    head = re.compile(r"\s*,\s*([A-Za-z_][\w\-]*)\s*=")
    value = re.compile(r"[(\[{]|[\s,)\]}]")
    while (match := head.match(blank, at)) is not None:
        start = match.start(1)
        at = match.end()
        at += len(blank[at:]) - len(blank[at:].lstrip(" ")) if blank[at : at + 1] == " " else 0
        while (found := value.search(blank, at)) is not None and found.group() in "([{":
            at = _closing(blank, found.start()) + 1
        at = len(blank) if found is None else found.start()
        yield match.group(1), start, at
