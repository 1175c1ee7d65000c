"""The helper process of `isolation`: reads what it is handed, and answers with the module or the error."""

import math
import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any

from unlower.errors import FormatError, UnlowerError
from unlower.ir.interface import Source
from unlower.ir.module import Module
from unlower.readers.codec import encode_module
from unlower.readers.elision import Elision
from unlower.readers.hlo_proto import module_from_hlo_proto
from unlower.readers.hlo_text import proto_from_hlo_text
from unlower.readers.hlo_tuples import program_shape
from unlower.readers.isolation import read_message, write_message
from unlower.readers.limits import Limits
from unlower.readers.stablehlo_bytecode import parse_bytecode
from unlower.readers.stablehlo_text import parse_stablehlo_text

__all__ = ["READERS", "main"]

READERS: Mapping[str, Callable[[bytes, Elision], Module | Source]] = {
    "HLO proto": module_from_hlo_proto,
    "MLIR bytecode": parse_bytecode,
    "StableHLO text": parse_stablehlo_text,
}
"""The formats that XLA's or MLIR's own code reads; all others are read by Python, which needs no isolation."""


_GRACE = 5
"""Seconds after the other side's limit from which it seems to be gone."""


def main() -> None:
    """Serves requests until the other side goes away."""
    requests = sys.stdin.buffer
    # Whatever else prints must not print into the answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    while (message := read_message(requests)) is not None:
        header, data = message
        if header["kind"] == "hello":
            write_message(answers, {}, [])
            continue
        _end_after(math.ceil(header["seconds"]) + _GRACE)
        answer, payload = _answer(header, data)
        _end_after(0)
        write_message(answers, answer, payload)
        if answer.get("last"):
            return


def _end_after(seconds: int) -> None:
    """Lets this process end by itself, since the other side, which would end it in time, may be gone; 0 for never."""
    if hasattr(signal, "alarm"):
        signal.alarm(seconds)


def _answer(header: Mapping[str, Any], data: bytes) -> tuple[dict[str, Any], list[bytes]]:
    _limit_memory(header["memory"])
    try:
        kind, elision, answer = header["kind"], Elision(limits=Limits(**header["limits"])), {}
        elision.count(header["constant_bytes"])
        for value, name in header["marks"].items():
            elision.mark(bytes.fromhex(value), name)
        if kind == "HLO text":
            kind, data = "HLO proto", proto_from_hlo_text(data, elision)
            answer["shape"] = program_shape(data).hex()
        found = READERS[kind](data, elision)
        return answer, encode_module(found.module if isinstance(found, Source) else found)
    except MemoryError:
        # There may be too little left to go on with.
        return {"last": True, **_error(_too_large(header["memory"]))}, []
    except RecursionError:
        return _error(FormatError("it nests attributes or types too deeply")), []
    except UnlowerError as error:
        return _error(error), []
    except Exception as error:  # noqa: BLE001 (the other side is to know, and to have an error of ours)
        what = f"reading it failed: {type(error).__name__}: {error}"
        return _error(FormatError(what, mend="the file is damaged; if it is not, please report it")), []


def _too_large(memory: int) -> FormatError:
    return FormatError(
        f"reading it takes more than {memory:,} bytes of memory",
        mend=f"if you trust it, pass isolate=unlower.Isolation(memory={memory * 4})",
    )


def _error(error: UnlowerError) -> dict[str, Any]:
    fields = {"what": error.what, "where": error.where, "mend": error.mend}
    return {"error": {"class": type(error).__name__, **fields}}


def _limit_memory(allowed: int) -> None:
    """Limits the address space to what there is now and `allowed` bytes more, where the system can."""
    try:
        import resource

        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (used + allowed, most))
    except (ImportError, OSError, ValueError):
        return
