"""A process of its own for XLA to compile and run an original in: where XLA aborts, that process is lost and no other.

XLA does abort: on modules after its own optimisations, which it does not take back ("Check failed:
output_shape.has_layout()"). The two sides exchange a folder: the module, the inputs, and afterwards the results or the
reason why there are none.
"""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from unlower._jax_compat import (
    compile_with_xla,
    deserialize_portable_artifact,
    mlir_hlo,
    new_mlir_context,
    refine_shapes,
)
from unlower._jax_compat import mlir_ir as ir
from unlower.ir.types import DTYPES, element_of_dtype

__all__ = ["Outcome", "main", "run_original"]

_TEXT, _BYTECODE, _INPUTS, _RESULTS, _OUTCOME = (
    "module.mlir",
    "module.mlirbc",
    "inputs.npz",
    "results.npz",
    "outcome.json",
)
_MAIN = "import sys; from unlower._xla_child import main; main(sys.argv[1])"
_FATAL = re.compile(r"Check failed:.*|LLVM ERROR:.*|Unexpected .*|.*Fatal.*")
_LONGEST = 500
_ORIGINAL = "unlower_original"
"""What the entry of a module is called once another calls it."""


class Outcome(NamedTuple):
    """What came of the original: its results and seconds, or XLA's refusal."""

    results: list[np.ndarray] | None = None
    compile_seconds: float | None = None
    run_seconds: float | None = None
    refusal: str | None = None


def run_original(module: str | bytes, inputs: Sequence[np.ndarray], folder: pathlib.Path) -> Outcome:
    """Runs a StableHLO module by XLA in a new process, on the platform of this one.

    Args:
      module: text, MLIR bytecode or a portable artifact.
      inputs: one array for each argument.
      folder: an empty folder for the exchange.
    """
    if isinstance(module, str):
        (folder / _TEXT).write_text(module)
    else:
        (folder / _BYTECODE).write_bytes(module)
    _save(folder / _INPUTS, inputs)
    environment = os.environ | {
        "JAX_PLATFORMS": jax.default_backend(),
        # The same modules as here, although the process starts in another folder.
        "PYTHONPATH": os.pathsep.join(str(pathlib.Path(entry).resolve()) for entry in sys.path if entry),
        # This process may hold an accelerator's memory already.
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }
    command = [sys.executable, "-c", _MAIN, str(folder)]
    child = subprocess.run(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if not (folder / _OUTCOME).exists():
        return Outcome(refusal=_death(child.returncode, child.stderr))
    outcome = json.loads((folder / _OUTCOME).read_text())
    if "refusal" in outcome:
        return Outcome(**outcome)
    return Outcome(_load(folder / _RESULTS), **outcome)


def main(folder: str) -> None:
    """Runs the module in `folder`; what the new process does."""
    place = pathlib.Path(folder)
    text = place / _TEXT
    module = text.read_text() if text.exists() else (place / _BYTECODE).read_bytes()
    with jax.enable_x64(True):
        try:
            arrays = _load(place / _INPUTS)
            started = time.perf_counter()
            run = compile_with_xla(_fix_sizes(module, arrays))
            compiled = time.perf_counter()
            results = run(arrays)
            finished = time.perf_counter()
        except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
            outcome: dict[str, object] = {"refusal": _first_line(str(error))}
        else:
            _save(place / _RESULTS, [np.asarray(result) for result in results])
            outcome = {"compile_seconds": compiled - started, "run_seconds": finished - compiled}
    (place / _OUTCOME).write_text(json.dumps(outcome))


def _death(status: int, stderr: str) -> str:
    """Says how the process ended, with the reason XLA printed, if any."""
    name = signal.Signals(-status).name if status < 0 else f"exit status {status}"
    found = _FATAL.findall(stderr)
    return f"the process ended by {name}" + (f": {_first_line(found[0])}" if found else "")


def _first_line(message: str) -> str:
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return lines[0][:_LONGEST] if lines else "no reason given"


def _save(path: pathlib.Path, arrays: Sequence[np.ndarray]) -> None:
    """Writes arrays of any element type: NumPy's own format cannot say bfloat16 and its kin, so bytes and types."""
    types = [[element_of_dtype(array.dtype), list(array.shape)] for array in arrays]
    data = {f"array{i}": np.frombuffer(array.tobytes(), np.uint8) for i, array in enumerate(arrays)}
    np.savez(path, types=np.array(json.dumps(types)), **data)  # pyright: ignore[reportArgumentType]


def _load(path: pathlib.Path) -> list[np.ndarray]:
    """Reads what `_save` wrote."""
    with np.load(path, allow_pickle=False) as data:
        types = json.loads(str(data["types"]))
        return [data[f"array{i}"].view(DTYPES[element]).reshape(shape) for i, (element, shape) in enumerate(types)]


def _fix_sizes(module: str | bytes, arrays: Sequence[np.ndarray]) -> str | bytes:
    """Fixes the sizes of a module that has unknown ones to those of its arguments.

    A module whose arguments have known sizes is returned as it is. The refinement of shapes works from static arguments on, so
    the entry gets a wrapper that has these.
    """
    context = new_mlir_context()
    with context, ir.Location.unknown(context):
        try:
            if isinstance(module, bytes) and b"StableHLO_v" in module[:32]:
                parsed = deserialize_portable_artifact(context, module)
            else:
                parsed = ir.Module.parse(module)
        except (ir.MLIRError, ValueError):
            return module  # XLA says what is wrong with it
        functions: list[Any] = [op for op in parsed.body.operations if op.operation.name == "func.func"]
        public = [op for op in functions if _is_public(op.operation)]
        if not public:
            return module
        entry = next((op for op in public if op.name.value == "main"), public[0])
        inputs, results = list(entry.type.inputs), list(entry.type.results)
        if all(not hasattr(type_, "has_static_shape") or type_.has_static_shape for type_ in inputs):
            return module
        known = [
            ir.RankedTensorType.get(array.shape, type_.element_type) if hasattr(type_, "element_type") else type_
            for type_, array in zip(inputs, arrays, strict=True)
        ]
        entry.attributes["sym_visibility"] = ir.StringAttr.get("private")
        ir.SymbolTable(parsed.operation).set_symbol_name(entry, _ORIGINAL)
        wrapper = ir.Operation.create(
            "func.func",
            attributes={
                "sym_name": ir.StringAttr.get("main"),
                "sym_visibility": ir.StringAttr.get("public"),
                "function_type": ir.TypeAttr.get(ir.FunctionType.get(known, results)),
            },
            regions=1,
            ip=ir.InsertionPoint.at_block_begin(parsed.body),
        )
        block = wrapper.regions[0].blocks.append(*known)
        with ir.InsertionPoint(block):
            arguments = [
                value if value.type == type_ else mlir_hlo.convert(type_, value)
                for value, type_ in zip(block.arguments, inputs, strict=True)
            ]
            callee: dict[str, Any] = {"callee": ir.FlatSymbolRefAttr.get(_ORIGINAL)}
            call = ir.Operation.create("func.call", results, arguments, callee)
            ir.Operation.create("func.return", operands=list(call.results))
        return refine_shapes(parsed)


def _is_public(function: Any) -> bool:
    attributes = function.attributes
    return "sym_visibility" not in attributes or ir.StringAttr(attributes["sym_visibility"]).value == "public"
