"""What an instruction in HLO text must be: what ends the process already in XLA's parser, before there is a proto to check.

The parser of jaxlib 0.12 reports nearly all faults; that of 0.10 takes numbers of operands, sizes and names of axes for
granted. What is refused here is wrong for both.
"""

import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from unlower.readers.hlo.faults import Fault
from unlower.readers.hlo.opcodes import ARITIES, VARIADIC, words

__all__ = ["CHECKED", "TextInstruction", "check_instruction", "split_operands"]

_ARRAY = r"[a-z]\w*\[[^\[\]]*\](?:\{[^{}]*\})?"
_SHAPE = re.compile(rf"{_ARRAY}|\((?=[^)]*[\[)])[^()]*(?:\([^()]*(?:\([^()]*\)[^()]*)*\)[^()]*)*\)")
_LAYOUT = re.compile(r"\[([^\[\]]*)\]\{([^{}]*)\}")
_ELEMENT = re.compile(r"([a-z]\w*)\[")
_WORD = re.compile(r"\b(?:true|false)\b")
_PUNCTUATION = re.compile(r"[{}(),]")
_SIZES = re.compile(r"\[([^\[\]]*)\]")
_TRANSPOSE = re.compile(r"\btranspose_a\s*=\s*(\w*)")
_DIMENSIONS = re.compile(r"\bdimensions\s*=\s*\{\s*\d+\s*\}")
_SUGAR = re.compile(r"-(?:start|update|done)$")
_NUMBERS = re.compile(r"(?:\s*\d+\s*(?:,|$))*")

_WITHOUT_OPERANDS = words("constant parameter")
"""Opcodes with something else between their parentheses."""

_LOOKS_UP_OPERANDS = words("conditional dot dynamic-reshape rng-bit-generator")
"""Opcodes for which the older parser follows operands that it did not find."""

_OWN_ENDS = words("""all-gather-done all-reduce-done collective-permute-done copy-done recv-done send-done""")
"""Ends that are no sugar for an `async-done`."""


class TextInstruction(NamedTuple):
    """An instruction as its line has it; the operands by name."""

    name: str
    shape: str
    opcode: str
    operands: str
    attributes: str


Known = Mapping[str, tuple[str, str]]
"""Name -> shape and opcode, for the instructions before it in its computation."""

Check = Callable[[TextInstruction, Sequence[str], Known], None]


def split_operands(operands: str) -> list[str]:
    """Splits the text between the parentheses into names; shapes in front of them go."""
    if "[" in operands or "(" in operands:
        operands = _SHAPE.sub("", operands)
    return [part.strip().lstrip("%") for part in operands.split(",")] if operands.strip() else []


def check_instruction(instruction: TextInstruction, known: Known) -> None:
    """Checks an instruction whose opcode is in `CHECKED`, or ends as those of asynchronous instructions do.

    Raises:
      Fault: XLA's parser would not survive it.
    """
    opcode = instruction.opcode
    operands = [] if opcode in _WITHOUT_OPERANDS else split_operands(instruction.operands)
    base = opcode if opcode in ARITIES else _SUGAR.sub("", opcode)
    # The end of an asynchronous instruction takes its start alone.
    arity = 1 if base != opcode and not opcode.endswith("-start") else ARITIES.get(base, VARIADIC)
    if arity != VARIADIC and opcode not in _WITHOUT_OPERANDS and not opcode.endswith("-update"):
        found = len([operand for operand in operands if operand])
        if not found == len(operands) == arity:
            raise Fault(f"it has {found} operands, and {opcode} takes {arity}")
    if opcode in _LOOKS_UP_OPERANDS:
        for operand in operands:
            # A word that is an opcode is taken for the beginning of an instruction inside this one.
            if operand not in known and operand.partition("(")[0].strip() in ARITIES:
                raise Fault(f"its operand {operand} is no instruction before it")
    check = _CHECKS.get(opcode)
    if check is not None:
        check(instruction, operands, known)
    elif opcode.endswith(("-done", "-update")) and opcode not in _OWN_ENDS and operands and operands[0] in known:
        begins = known[operands[0]][1]
        if not begins.endswith(("-start", "-update")):
            raise Fault(f"it ends {operands[0]}, which is a {begins}")


def _is_array(shape: str) -> bool:
    return not shape.startswith(("(", "token", "opaque"))


def _tuple(instruction: TextInstruction, operands: Sequence[str], known: Known) -> None:
    if not instruction.shape.startswith("("):
        raise Fault(f"it gives {instruction.shape}, no tuple")


def _constant(instruction: TextInstruction, operands: Sequence[str], known: Known) -> None:
    shape, literal = instruction.shape, instruction.operands
    if "true" in literal or "false" in literal:
        _check_words(shape, literal)
    if re.search(r"\b(?:token|opaque)\b", shape):
        raise Fault(f"it is a constant {shape}")
    if re.search(r"\bf6e", shape):
        raise Fault("constants of six-bit floats are not supported by XLA's own parser")
    for sizes, layout in _LAYOUT.findall(shape):
        order = layout.partition(":")[0]
        if order.strip() and _NUMBERS.fullmatch(order):
            rank = len([size for size in sizes.split(",") if size.strip()])
            places = [int(place) for place in order.split(",") if place.strip()]
            if sorted(places) != list(range(rank)):
                raise Fault(f"the layout of {shape} is no permutation of its dimensions")


def _check_words(shape: str, literal: str) -> None:
    """Checks that `true` and `false` stand for predicates only."""
    elements = _ELEMENT.findall(shape)
    if all(element == "pred" for element in elements):
        return
    if len(elements) > 1:
        leaves, depth, start = [], 0, 0
        for match in _PUNCTUATION.finditer(literal):
            mark = match.group()
            depth += (mark == "{") - (mark == "}")
            if depth < 0 or (depth > 0 and mark in "()"):
                raise Fault("it is a constant whose brackets do not match")
            if mark == "," and depth == 0:
                leaves.append(literal[start : match.start()])
                start = match.end()
        leaves.append(literal[start:])
        if len(leaves) != len(elements):
            raise Fault(f"it is a constant {shape} with {len(leaves)} parts")
    else:
        leaves = [literal]
    for element, leaf in zip(elements, leaves, strict=True):
        if element != "pred" and (match := _WORD.search(leaf)):
            raise Fault(f"it is a constant {shape} with the value {match.group()} where it has {element}")


def _copy(instruction: TextInstruction, operands: Sequence[str], known: Known) -> None:
    if "opaque" in instruction.shape:
        raise Fault(f"it copies {instruction.shape}")


def _map(instruction: TextInstruction, operands: Sequence[str], known: Known) -> None:
    if not _is_array(instruction.shape):
        raise Fault(f"it gives {instruction.shape}, no array")


def _own_id(instruction: TextInstruction, operands: Sequence[str], known: Known) -> None:
    if re.sub(r"\{[^}]*\}", "", instruction.shape) != "u32[]":
        raise Fault(f"it gives {instruction.shape}, not u32[]")


def _from_outside(instruction: TextInstruction, operands: Sequence[str], known: Known) -> None:
    shape = instruction.shape
    if not (shape.startswith("(") and shape[1:-1].strip()):
        raise Fault(f"it gives {shape}, not values and a token")


def _receive_done(instruction: TextInstruction, operands: Sequence[str], known: Known) -> None:
    shape, _ = known.get(operands[0], ("(token[])", ""))
    if not (shape.startswith("(") and shape[1:-1].strip()):
        raise Fault(f"it ends {shape}, which no transfer gives")


def _dynamic_slice(instruction: TextInstruction, operands: Sequence[str], known: Known) -> None:
    for operand in operands:
        shape, _ = known.get(operand, ("f32[]", ""))
        if not _is_array(shape):
            raise Fault(f"it takes {shape}, no array")


def _triangular_solve(instruction: TextInstruction, operands: Sequence[str], known: Known) -> None:
    for value in _TRANSPOSE.findall(instruction.attributes):
        known_values = ("NO_TRANSPOSE", "TRANSPOSE", "ADJOINT")
        if value not in known_values:
            raise Fault(f"it has the unknown kind of transposition {value}")


def _dimension_size(instruction: TextInstruction, operands: Sequence[str], known: Known) -> None:
    if not _DIMENSIONS.search(instruction.attributes):
        raise Fault("it names no dimension")


def _conditional(instruction: TextInstruction, operands: Sequence[str], known: Known) -> None:
    if not (operands and all(operands)):
        raise Fault("it has nothing to choose by")


def _counted(instruction: TextInstruction, operands: Sequence[str], known: Known) -> None:
    """Nothing more than the number of operands."""


def _reshape(instruction: TextInstruction, operands: Sequence[str], known: Known) -> None:
    shape, _ = known.get(operands[0], (instruction.shape, ""))
    if not (_is_array(shape) and _is_array(instruction.shape)):
        raise Fault(f"it takes {shape} to {instruction.shape}")
    sizes = _size(shape), _size(instruction.shape)
    if None not in sizes and sizes[0] != sizes[1]:
        raise Fault(f"it takes {shape} to {instruction.shape}")


def _dynamic_reshape(instruction: TextInstruction, operands: Sequence[str], known: Known) -> None:
    if not (operands and all(operands)):
        raise Fault("it has no operands")
    _reshape(instruction, operands, known)
    sizes = _SIZES.search(instruction.shape)
    rank = len([size for size in sizes.group(1).split(",") if size.strip()]) if sizes else 0
    if len(operands) != rank + 1:
        raise Fault(f"it has {len(operands)} operands for {rank} dimensions")


@functools.lru_cache(maxsize=4096)
def _size(shape: str) -> int | None:
    match = _SIZES.search(shape)
    if match is None or not _NUMBERS.fullmatch(match.group(1)):
        return None
    return math.prod(int(size) for size in match.group(1).split(",") if size.strip())


_CHECKS: dict[str, Check] = {
    "conditional": _conditional,
    "constant": _constant,
    "copy": _copy,
    "dot": _counted,
    "dynamic-reshape": _dynamic_reshape,
    "dynamic-slice": _dynamic_slice,
    "dynamic-update-slice": _dynamic_slice,
    "get-dimension-size": _dimension_size,
    "infeed": _from_outside,
    "map": _map,
    "partition-id": _own_id,
    "ragged-dot": _counted,
    "recv": _from_outside,
    "recv-done": _receive_done,
    "replica-id": _own_id,
    "reshape": _reshape,
    "rng-bit-generator": _counted,
    "scaled-dot": _counted,
    "set-dimension-size": _dimension_size,
    "triangular-solve": _triangular_solve,
    "tuple": _tuple,
}

CHECKED = frozenset(_CHECKS)
"""Opcodes that need a look."""
