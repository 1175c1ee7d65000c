"""Reading in a process of its own: what ends that process, or takes it too long, is an error here and nothing worse.

One helper serves all loads of this process, one after another; it is started at the first and again after a death. Bytes go
in; what comes back is plain data (`codec`), so nothing that MLIR or XLA makes of the file is parsed here again.
"""

import atexit
import dataclasses
import json
import os
import pathlib
import re
import signal
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from typing import IO, Any

from unlower.errors import FormatError, InvalidModuleError
from unlower.ir.module import Module
from unlower.readers.codec import decode_module
from unlower.readers.elision import Elision

__all__ = ["Isolation", "read_isolated", "read_message", "write_message"]

_LENGTHS = struct.Struct("<QQ")
_MAIN = "from unlower.readers.isolated import main; main()"
_START_SECONDS = 120.0
_FATAL = re.compile(r"Check failed:.*|LLVM ERROR:.*|UNREACHABLE executed.*|.*bad_alloc.*|.*Assertion .*")
_LONGEST = 300

_ERRORS = {"FormatError": FormatError, "InvalidModuleError": InvalidModuleError}


@dataclasses.dataclass(frozen=True, slots=True)
class Isolation:
    """What a reader in a process of its own may take.

    Attributes:
      seconds: for one file.
      memory: bytes of address space beyond what the process has when it is idle; where the system has no such limit, as on
        Windows, it is not enforced.

    Example:
      >>> import unlower
      >>> unlower.load("HloModule m\\nENTRY e { x = f32[2] parameter(0) }", isolate=unlower.Isolation(seconds=30))
      <unlower.Program m: (float32[2]) -> (float32[2])>
    """

    seconds: float = 120.0
    memory: int = 16 << 30


def read_isolated(
    kind: str, data: bytes, elision: Elision, isolation: "Isolation | None" = None
) -> tuple[Module, bytes]:
    """Reads a file in the helper process; returns its module, and of HLO text the program shape in a proto.

    Args:
      kind: the format, a key of `isolated.READERS`.
      data: the file.
      elision: the caller's wishes.
      isolation: the limits, where the caller's wishes hold none.

    Raises:
      FormatError: the file cannot be read, or ended the helper, or took it too long.
      InvalidModuleError: the program is ill-formed.
    """
    isolation = elision.isolation or isolation
    assert isolation is not None
    marks = {value.hex(): name for value, name in elision.marks.items()}
    request = {
        "kind": kind,
        "seconds": isolation.seconds,
        "memory": isolation.memory,
        "limits": dataclasses.asdict(elision.limits),
        "marks": marks,
        "constant_bytes": elision.constant_bytes,
    }
    header, payload = _helper.ask(request, data, isolation.seconds)
    if "error" in header:
        error = header["error"]
        raise _ERRORS.get(error["class"], FormatError)(error["what"], where=error["where"], mend=error["mend"])
    return decode_module(payload, elision.fill), bytes.fromhex(header.get("shape", ""))


def write_message(stream: IO[bytes], header: dict[str, Any], payload: Sequence[bytes]) -> None:
    """Writes a message: lengths, a header in JSON, a payload in pieces."""
    text = json.dumps(header).encode()
    stream.write(_LENGTHS.pack(len(text), sum(map(len, payload))))
    stream.write(text)
    for piece in payload:
        stream.write(piece)
    stream.flush()


def read_message(stream: IO[bytes]) -> tuple[dict[str, Any], bytes] | None:
    """Reads a message; None where the other side has ended, in the middle of it or before."""
    lengths = stream.read(_LENGTHS.size)
    if len(lengths) < _LENGTHS.size:
        return None
    text_length, payload_length = _LENGTHS.unpack(lengths)
    text, payload = stream.read(text_length), stream.read(payload_length)
    if len(text) < text_length or len(payload) < payload_length:
        return None
    return json.loads(text), payload


class _Helper:
    """The process, as far as it runs; one request at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._owner = 0

    def ask(self, request: dict[str, Any], data: bytes, seconds: float) -> tuple[dict[str, Any], bytes]:
        with self._lock:
            process = self._running()
            printed = self._printed()
            answer, late = self._exchange(process, request, data, seconds)
            if answer is None:
                raise self._death(process, seconds if late else None, printed)
            if answer[0].get("last"):
                self._stop()
            return answer

    def _exchange(
        self, process: "subprocess.Popen[bytes]", request: dict[str, Any], data: bytes, seconds: float
    ) -> tuple[tuple[dict[str, Any], bytes] | None, bool]:
        assert process.stdin is not None and process.stdout is not None
        late = threading.Event()

        def end() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(seconds, end)
        timer.daemon = True
        timer.start()
        try:
            write_message(process.stdin, request, [data])
            return read_message(process.stdout), late.is_set()
        except (BrokenPipeError, OSError):
            return None, late.is_set()
        except BaseException:
            # Interrupted half way: what the process would answer belongs to nobody.
            self._stop()
            raise
        finally:
            timer.cancel()

    def _running(self) -> "subprocess.Popen[bytes]":
        if self._process is not None and self._owner == os.getpid() and self._process.poll() is None:
            return self._process
        if self._owner == os.getpid():
            self._stop()
        # After a fork the process belongs to the parent, which still talks to it.
        self._process, self._errors = None, None
        self._start()
        assert self._process is not None
        return self._process

    def _start(self) -> None:
        environment = os.environ | {
            "JAX_PLATFORMS": "cpu",
            # The same modules as here.
            "PYTHONPATH": os.pathsep.join(str(pathlib.Path(entry).resolve()) for entry in sys.path if entry),
        }
        self._errors = tempfile.TemporaryFile(prefix="unlower-")  # noqa: SIM115 (as long as the process)
        self._process = subprocess.Popen(
            [sys.executable, "-c", _MAIN],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
        )
        self._owner = os.getpid()
        answer, late = self._exchange(self._process, {"kind": "hello"}, b"", _START_SECONDS)
        if answer is None:
            printed = self._since(0)
            self._stop()
            raise RuntimeError(
                f"the helper process for isolated reading does not start{' in time' if late else ''}: {printed[-_LONGEST:]}"
            )

    def _printed(self) -> int:
        assert self._errors is not None
        return os.fstat(self._errors.fileno()).st_size

    def _since(self, start: int) -> str:
        if self._errors is None:
            return ""
        # The process writes at the same place in the file, and is dead by now.
        self._errors.seek(start)
        return self._errors.read(1 << 20).decode("utf-8", "replace")

    def _death(self, process: "subprocess.Popen[bytes]", seconds: float | None, printed: int) -> FormatError:
        status = process.wait()
        said = self._since(printed)
        self._stop()
        mend = "the file is damaged, or made to do this; if it is neither, please report it"
        if seconds is not None:
            more = f"if you trust it, pass isolate=unlower.Isolation(seconds={seconds * 4:g})"
            return FormatError(f"reading it took longer than {seconds:g} seconds", mend=f"{mend}, or {more}")
        name = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        found = _FATAL.findall(said)
        reason = f": {found[0].strip()[:_LONGEST]}" if found else ""
        return FormatError(f"reading it ended the helper process by {name}{reason}", mend=mend)

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    try:
                        stream.close()
                    except OSError:
                        pass
            process.wait()
        if self._errors is not None:
            self._errors.close()
            self._errors = None

    def close(self) -> None:
        """Ends the process, if this process started it."""
        if self._owner == os.getpid():
            self._stop()


_helper = _Helper()
atexit.register(_helper.close)
