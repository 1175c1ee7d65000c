"""What a file can be besides a program: named in the error, with what to do instead.

A new kind is one line in `FOREIGN`. They are tried in order, after every format that can be read; text comes last.
"""

import io
import re
import zipfile
from collections.abc import Callable
from typing import NamedTuple

from unlower.errors import FormatError
from unlower.readers.mlir_bytecode import MAGIC
from unlower.readers.text import first_token
from unlower.readers.tf_saved_model import is_saved_model
from unlower.readers.wire import BYTES, VARINT, fields

__all__ = ["FOREIGN", "Foreign"]


class Foreign(NamedTuple):
    """A kind of file: its name, whether bytes are of it, and what the caller should do."""

    name: str
    matches: Callable[[bytes], bool]
    mend: str


_TORCH = "export the program to StableHLO, for PyTorch with torchax.export.exported_program_to_stablehlo"
_WEIGHTS = "this holds weights, no program; pass it to program.lift_constants(match=...) if it has a program's weights"
_COMPILED = "it is compiled already; load the module that it was compiled from"
_DUMP = "it lies beside modules in an XLA dump: pass the folder, or the file that ends in .hlo.pb or _optimizations.txt"
_DAMAGED = "copy or write the file again; it is cut off or changed"


def _starts(*magics: bytes, at: int = 0) -> Callable[[bytes], bool]:
    return lambda data: data[at : at + 40].startswith(magics)


def _text(pattern: str) -> Callable[[bytes], bool]:
    """Whether the first thing in a text, after blanks and comments, matches."""
    compiled = re.compile(pattern.encode())
    return lambda data: bool(compiled.match(first_token(data, 400)) or compiled.match(data[:400].lstrip()))


def _zip(*patterns: str) -> Callable[[bytes], bool]:
    """Whether this is a zip archive with a member of such a name."""
    compiled = re.compile("|".join(patterns))

    def matches(data: bytes) -> bool:
        if not data.startswith((b"PK\x03\x04", b"PK\x05\x06")):
            return False
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                return any(compiled.search(name) for name in archive.namelist())
        except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError):
            # Cut off: the first member's name stands in its own header.
            length = int.from_bytes(data[26:28], "little")
            return bool(compiled.search(data[30 : 30 + length].decode("utf-8", "replace")))

    return matches


def _is_graph_def(data: bytes) -> bool:
    """Whether this is a GraphDef: nodes (field 1), each with a name, an operation in CamelCase, inputs, attributes."""
    try:
        for field in fields(data):
            if field.number != 1 or field.kind != BYTES:
                return False
            parts = {f.number: data[f.start : f.stop] for f in fields(data, field.start, field.stop) if f.kind == BYTES}
            return bool(re.fullmatch(rb"[A-Z_]\w*", parts.get(2, b""))) and set(parts) <= {1, 2, 3, 4, 5, 6, 7, 8}
    except FormatError:
        pass
    return False


def _is_onnx(data: bytes) -> bool:
    """Whether this is an ONNX ModelProto: a small version number, then the producer, later a graph (field 7)."""
    numbers = []
    try:
        for field in fields(data):
            numbers.append((field.number, field.kind))
            if field.number == 1 and (field.kind != VARINT or data[field.start] > 20):
                return False
    except FormatError:
        pass
    return numbers[:1] == [(1, VARINT)] and (7, BYTES) in numbers and (8, BYTES) in numbers[-60:]


FOREIGN: list[Foreign] = [
    Foreign(
        "a pickle (a serialized PJRT executable, perhaps)",
        lambda data: data[:1] == b"\x80" and data[1:2] in b"\x02\x03\x04\x05" and len(data) > 2,
        "pickles are never loaded, since they can run code; keep the lowered module instead, jax.jit(f).lower(...)",
    ),
    Foreign(
        "a TFLite model",
        _starts(b"TFL3", at=4),
        "TFLite is no XLA program; load the model before its conversion to TFLite",
    ),
    Foreign(
        "an IREE module (.vmfb)",
        lambda data: b"IREE" in (data[4:8], data[8:12]) or _zip(r"module\.fb$")(data),
        "it is compiled code; load the StableHLO that was given to IREE",
    ),
    Foreign(
        "a PyTorch program (.pt2)",
        _zip(r"(^|/)archive_format$", r"(^|/)serialized_exported_program\.json$", r"(^|/)models/.+\.json$"),
        "it holds PyTorch operations, not XLA; load it in PyTorch (torch.export.load) and " + _TORCH,
    ),
    Foreign("a PyTorch checkpoint or TorchScript archive", _zip(r"(^|/)(data|constants)\.pkl$"), _TORCH),
    Foreign("NumPy arrays (.npz)", _zip(r"\.npy$"), _WEIGHTS),
    Foreign(
        "a Keras model (.keras)",
        _zip(r"^config\.json$", r"\.weights\.h5$"),
        "load it in Keras on the JAX backend and write model.export(folder), which holds the XLA program",
    ),
    Foreign("a zip archive", _starts(b"PK\x03\x04", b"PK\x05\x06"), f"unpack it; if it is a model, {_TORCH}"),
    Foreign(
        "the graph of a TensorFlow SavedModel",
        is_saved_model,
        "pass the path of its folder: the variables lie beside it",
    ),
    Foreign(
        "a damaged jax.export file, or another file that holds a StableHLO artifact",
        lambda data: MAGIC + b"\rStableHLO_v" in data,
        "copy the file again; the artifact in it, which starts with the bytes `ML\\xefR`, can be loaded by itself",
    ),
    Foreign("NumPy array data", _starts(b"\x93NUMPY"), _WEIGHTS),
    Foreign("an HDF5 file", _starts(b"\x89HDF\r\n\x1a\n"), "this holds weights, no program"),
    Foreign("a GGUF file", _starts(b"GGUF"), "this holds weights, no program"),
    Foreign(
        "a safetensors file",
        lambda data: len(data) > 8 and data[8:9] == b"{" and int.from_bytes(data[:8], "little") < len(data),
        _WEIGHTS,
    ),
    Foreign(
        "the index of TensorFlow variables",
        lambda data: len(data) >= 48 and data[-8:] == bytes.fromhex("57fb808b247547db"),
        "it lies beside a program: pass the folder that holds saved_model.pb",
    ),
    Foreign("machine code or LLVM bitcode", _starts(b"\x7fELF", b"BC\xc0\xde", b"\xcf\xfa\xed\xfe", b"MZ"), _COMPILED),
    Foreign("a library of machine code", _starts(b"!<arch>\n"), _COMPILED),
    Foreign(
        "a compressed file (Zstandard, xz or bzip2)",
        _starts(b"\x28\xb5\x2f\xfd", b"\xfd7zXZ\x00", b"BZh"),
        "unpack it first; only gzip is unpacked here",
    ),
    Foreign("a tar archive", lambda data: data[257:262] == b"ustar", "unpack it first and pass a file or folder in it"),
    Foreign(
        "a picture or a document",
        _starts(b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"%PDF"),
        "pass the module that it was drawn from",
    ),
    Foreign(
        "an ONNX model",
        _is_onnx,
        "ONNX is no XLA program; export the model to StableHLO from the framework that it came from",
    ),
    Foreign(
        "a TensorFlow graph (GraphDef)",
        _is_graph_def,
        "it holds TensorFlow operations, not XLA; take its HLO in TensorFlow, "
        "tf.function(f, jit_compile=True).experimental_get_compiler_ir(*arguments)(stage='hlo_serialized')",
    ),
    # --- text
    Foreign(
        "a drawing of a graph in Graphviz's language",
        _text(r"(strict\s+)?(di)?graph\b[^{]*\{"),
        "pass the module that it was drawn from: of TensorFlow's compiler IR, stage='optimized_hlo' or 'hlo_serialized'",
    ),
    Foreign("LLVM IR", _text(r"; ModuleID|source_filename\s*=|target (datalayout|triple)\s*="), _COMPILED),
    Foreign("GPU assembly (PTX)", _text(r"\.version\s+\d|//\s*\n// Generated by LLVM NVPTX"), _COMPILED),
    Foreign("a buffer assignment of XLA", _text(r"BufferAssignment:|Total bytes used: |Used values:"), _DUMP),
    Foreign("live ranges of XLA's buffers", _text(r"HloLiveRange "), _DUMP),
    Foreign("a memory report of XLA", _text(r"Memory Space: "), _DUMP),
    Foreign("XLA's options", _text(r"xla_\w+: "), _DUMP),
    Foreign(
        "a pointer of Git LFS",
        _text(r"version https://git-lfs"),
        "fetch the file that it stands for, git lfs pull",
    ),
    Foreign(
        "a web page or XML",
        _text(r"<(!DOCTYPE|html|\?xml|svg)"),
        "a download went wrong, perhaps; pass the module itself",
    ),
    Foreign(
        "a Jaxpr as text",
        _text(r"\{ lambda "),
        "a printed Jaxpr cannot be read back; keep the lowered module, jax.jit(f).lower(...).as_text()",
    ),
    Foreign(
        "a protobuf as text",
        _text(r'(hlo(_module)?\s*\{|name: "|hlo_module_name: "|saved_model_schema_version:|node \{|meta_graphs \{)'),
        "write it in binary; XLA does with --xla_dump_hlo_as_proto",
    ),
    Foreign("JSON", _text(r'\{\s*"|\[\s*[\[{"\d]'), "pass the program that it belongs to"),
]
"""What is no program, tried in order after `FORMATS`."""
