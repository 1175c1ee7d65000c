"""StableHLO text -> `ir.Module`: pretty or generic form, with CHLO and the MHLO that MLIR still parses."""

import re

from unlower._jax_compat import NATIVE_ERRORS, collect_diagnostics, new_mlir_context
from unlower._jax_compat import mlir_ir as ir
from unlower.errors import FormatError
from unlower.ir.module import Module
from unlower.readers.elision import Elision, mark_mlir_text
from unlower.readers.isolation import Isolation, read_isolated
from unlower.readers.mlir_module import bytecode_of, module_from_bytecode
from unlower.readers.mlir_text_guard import guard_mlir_text
from unlower.readers.text import decode_utf8, first_token

__all__ = ["is_stablehlo_text", "mlir_message", "parse_stablehlo_text", "read_stablehlo_text"]

_START = re.compile(
    rb'module\b|"?builtin\.module\b|"?func\.func\b|"?(?:sdy|vhlo|stablehlo|mhlo|chlo)\.|#\w+ *=|#loc|!\w+ *=|\{-#'
)
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')
_ESCAPE = re.compile(rb"\\([0-9A-Fa-f]{2})")
_HIGH_ESCAPE = re.compile(rb"\\[89A-Fa-f][0-9A-Fa-f]")
_LOCATED = re.compile(r'(?:error: )?(?:loc\()?"?-"?:(\d+):(\d+)\)?: (?:error: )?(.*)', re.DOTALL)


def is_stablehlo_text(data: bytes) -> bool:
    """Whether `data` starts as an MLIR module does."""
    return bool(_START.match(first_token(data)))


def read_stablehlo_text(data: bytes, elision: Elision) -> Module:
    """Reads the text of a module.

    Raises:
      FormatError: text that MLIR cannot parse or verify, with its line and column; elided constants.
    """
    if elision.isolation is not None or not _has_plain_strings(data):
        # Quoting a name that is not UTF-8 in an error, MLIR ends the process.
        return read_isolated("StableHLO text", data, elision, Isolation())[0]
    return parse_stablehlo_text(data, elision)


def parse_stablehlo_text(data: bytes, elision: Elision) -> Module:
    """Reads the text of a module in this process, whatever the caller wishes; raises as `read_stablehlo_text` does."""
    text = mark_mlir_text(decode_utf8(data))
    guard_mlir_text(text, elision.limits)
    context = new_mlir_context()
    with context, collect_diagnostics(context) as diagnostics:
        try:
            data = bytecode_of(ir.Module.parse(text))
        except (ir.MLIRError, *NATIVE_ERRORS) as error:
            what, where = mlir_message([*diagnostics, str(error)][0], text)
            raise FormatError(
                f"MLIR cannot read this text: {what}",
                where=where,
                mend="print the module again with the StableHLO release that this jaxlib carries, or save it as a "
                "portable artifact, which stays readable",
            ) from None
    # MLIR's own module is gone by now: memory holds one of the two at a time.
    del context
    return module_from_bytecode(data, elision)


def _has_plain_strings(text: bytes) -> bool:
    """Whether what `\\XX` spells in the strings of `text` is UTF-8."""
    if not _HIGH_ESCAPE.search(text):
        return True
    try:
        for match in _STRING.finditer(text):
            _ESCAPE.sub(lambda m: bytes([int(m.group(1), 16)]), match.group()).decode()
    except UnicodeDecodeError:
        return False
    return True


def mlir_message(message: str, text: str | None = None) -> tuple[str, str | None]:
    """Cuts MLIR's diagnostics down to the first error: what it says, and where (line and column, if it tells)."""
    _, marker, rest = message.partition("\nerror: ")
    what = (rest if marker else message.removeprefix("error: ")).partition("\nerror: ")[0]
    what = what.partition("\n note:")[0].strip()
    match = _LOCATED.match(what)
    line, column, what = match.groups() if match else ("0", "0", what)
    if re.search(r"\bquant\b", what):
        what = "it has quantized types, for which jaxlib carries no dialect"
    if line == "0":
        return what, None
    where = f"line {line}, column {column}"
    lines = text.split("\n", int(line)) if text else []
    if len(lines) >= int(line):
        where += f": {lines[int(line) - 1].strip()[:120]}"
    return what, where
