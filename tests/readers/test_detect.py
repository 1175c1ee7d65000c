import contextlib
import gzip
import io
import os
import pathlib
import pickle
import select
import subprocess
import sys
import zipfile

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import unlower
from unlower._jax_compat import (
    current_stablehlo_version,
    hlo_text_to_proto,
    mlir_hlo,
    mlir_ir,
    new_mlir_context,
)
from unlower.errors import FormatError, UnlowerError
from unlower.ir.module import walk
from unlower.readers.detect import read
from unlower.readers.wire import encode_field

DATA = pathlib.Path(__file__).parent.parent / "data"


def model(x, w):
    h = jnp.tanh(x @ w)
    return jax.lax.fori_loop(0, 3, lambda i, h: h + jnp.sin(h), h).sum()


LOWERED = jax.jit(model).lower(np.ones((2, 3), np.float32), np.ones((3, 3), np.float32))
HLO_TEXT = LOWERED.as_text("hlo")
PROTO = hlo_text_to_proto(HLO_TEXT)
STABLEHLO = LOWERED.as_text()
BYTECODE = io.BytesIO()
LOWERED.compiler_ir("stablehlo").operation.write_bytecode(BYTECODE)
BYTECODE = BYTECODE.getvalue()
EXPORTED = jax.export.export(jax.jit(model))(np.ones((2, 3), np.float32), np.ones((3, 3), np.float32))
PORTABLE = bytes(EXPORTED.mlir_module_serialized)
GENERIC = LOWERED.compiler_ir("stablehlo").operation.get_asm(print_generic_op_form=True)

SOURCES = {
    "HLO text": HLO_TEXT,
    "HLO text as bytes": HLO_TEXT.encode(),
    "HLO text after comments": "// dumped by a tool\n/* module: */\n\n" + HLO_TEXT,
    "HLO text with a byte order mark": b"\xef\xbb\xbf" + HLO_TEXT.encode(),
    "HloModuleProto": PROTO,
    "HloProto": encode_field(1, PROTO) + encode_field(3, b"\x0a\x01x"),
    "HloSnapshot": encode_field(1, encode_field(1, PROTO)) + encode_field(4, b"CPU"),
    "HloUnoptimizedSnapshot": encode_field(1, PROTO) + encode_field(2, b"\x0a\x00"),
    "gzipped HloProto": gzip.compress(encode_field(1, PROTO)),
    "gzipped HLO text": gzip.compress(HLO_TEXT.encode()),
    "bytearray": bytearray(PROTO),
    "memoryview": memoryview(PROTO),
    "StableHLO text": STABLEHLO,
    "StableHLO text, generic": GENERIC,
    "StableHLO text after a comment": "// RUN: %s\n" + STABLEHLO,
    "StableHLO text with locations": LOWERED.as_text(debug_info=True),
    "MLIR bytecode": BYTECODE,
    "portable artifact": PORTABLE,
    "Lowered": LOWERED,
    "Exported": EXPORTED,
}


def outline(module):
    return sorted(op.name for function in module.functions.values() for op in walk(function.body))


@pytest.mark.parametrize("kind", SOURCES)
def test_every_format_and_wrapper(kind):
    module = read(SOURCES[kind])
    names = outline(module)
    assert [str(value.type) for value in module.main.body.arguments] == ["tensor<2x3xf32>", "tensor<3x3xf32>"]
    assert [str(value.type) for value in module.main.body.results] == ["tensor<f32>"]
    for name in ("stablehlo.dot_general", "stablehlo.tanh", "stablehlo.while", "stablehlo.sine", "stablehlo.reduce"):
        assert name.replace("dot_general", "dot") in names or name in names


@pytest.mark.parametrize("name", ["a.txt", "a.pb", "a", "a.mlir"])
@pytest.mark.parametrize(
    "kind", ["HLO text as bytes", "HloProto", "gzipped HloProto", "MLIR bytecode", "portable artifact"]
)
def test_files_are_known_by_content_never_by_name(tmp_path, name, kind):
    path = tmp_path / name
    path.write_bytes(SOURCES[kind])
    assert outline(read(path)) == outline(read(str(path))) == outline(read(SOURCES[kind]))


def test_optimized_hlo():
    text = LOWERED.compile().as_text()
    assert "stablehlo.while" in outline(read(text))


def test_a_gzipped_dump_on_disk():
    module = read(DATA / "before_optimizations.hlo.pb.gz")
    assert module.name == "jit_train_step"
    assert "stablehlo.dot_general" in outline(module) or "stablehlo.dot" in outline(module)


def test_an_artifact_that_jax_no_longer_takes():
    module = read(DATA / "portable_0_4_30.mlirbc")
    assert "stablehlo.while" in outline(module)


def test_an_mlir_module():
    assert outline(read(LOWERED.compiler_ir("stablehlo"))) == outline(read(STABLEHLO))


def test_nothing_keeps_an_mlir_context():
    before = mlir_ir.Context._get_live_count()
    modules = [read(SOURCES[kind]) for kind in ("HLO text", "HloProto", "StableHLO text", "MLIR bytecode", "Exported")]
    assert mlir_ir.Context._get_live_count() == before
    del modules


def saved_zip():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("data.pkl", b"x")
    return buffer.getvalue()


NO_PROGRAMS = {
    "empty": (b"", "the input is empty"),
    "blank": (b" \n\n", "the input is empty"),
    "pickle": (pickle.dumps({"a": 1}, protocol=5), "this is a pickle"),
    "zip": (saved_zip(), "this is a PyTorch checkpoint or TorchScript archive"),
    "tflite": (b"\x1c\0\0\0TFL3" + bytes(40), "this is a TFLite model"),
    "iree": (b"\x1c\0\0\0IREE" + bytes(40), "this is an IREE module"),
    "npy": (b"\x93NUMPY\x01\0" + bytes(40), "this is NumPy array data"),
    "safetensors": (b'\x0a\0\0\0\0\0\0\0{"a":{}}  ' + bytes(8), "this is a safetensors file"),
    "elf": (b"\x7fELF" + bytes(40), "this is machine code"),
    "saved model": (
        b"\x08\x01\x12\x0a\x0a\x08\x12\x06serve" + bytes(20),
        "this is the graph of a TensorFlow SavedModel",
    ),
    "random": (bytes(range(200, 256)) * 4, "no XLA program in a known format"),
    "json": (b'{"name": "forward"}', "this is JSON"),
    "buffer assignment": (b"Total bytes used: 34796\n", "this is a buffer assignment of XLA"),
    "prose": (b"Dear reader,\nthis is a letter.\n", "text, but neither an HLO nor a StableHLO module"),
    "gzip of nothing": (gzip.compress(b""), "the input is empty"),
    "cut gzip": (gzip.compress(PROTO)[:-20], "damaged gzip data"),
    "broken gzip": (b"\x1f\x8b" + bytes(20), "damaged gzip data"),
    "not utf-8": (b"HloModule m\n\xff\xfe", "text that is not UTF-8"),
    "cut bytecode": (PORTABLE[:200], "damaged StableHLO portable artifact"),
    "raw bytecode, cut": (BYTECODE[:200], "damaged or incompatible MLIR bytecode"),
    "cut proto": (PROTO[: len(PROTO) // 2], "damaged|cannot convert"),
    "a wrapper of nothing": (encode_field(1, b"\x0a\x01x\x12\x01y"), "no XLA program"),
}


@pytest.mark.parametrize("kind", NO_PROGRAMS)
def test_what_is_no_program_is_named(kind):
    data, message = NO_PROGRAMS[kind]
    with pytest.raises(FormatError, match=message) as caught:
        read(data)
    assert caught.value.mend


def test_a_damaged_export_is_named():
    data = b"\x20\0\0\0" + bytes(28) + PORTABLE
    with pytest.raises(FormatError, match=r"a damaged jax\.export file"):
        read(data)


def test_a_newer_artifact_names_both_versions():
    newer = PORTABLE.replace(f"StableHLO_v{current_stablehlo_version()}".encode(), b"StableHLO_v9.9.9", 1)
    if newer == PORTABLE:
        newer = b"ML\xefR\x0dStableHLO_v9.9.9\0" + PORTABLE.split(b"\0", 1)[1]
    damaged = newer[: len(newer) // 2]
    with pytest.raises(FormatError, match=r"of StableHLO 9\.9\.9, newer than") as caught:
        read(damaged)
    assert current_stablehlo_version() in str(caught.value)


def test_directories_are_named(tmp_path):
    with pytest.raises(FormatError, match="the folder holds no program\n.*it is empty"):
        read(tmp_path)
    (tmp_path / "saved_model.pb").touch()
    with pytest.raises(FormatError, match="the SavedModel holds no graph"):
        read(tmp_path)


def test_sources_of_another_class():
    with pytest.raises(TypeError, match=r"cannot load a builtins\.int"):
        read(3)
    with pytest.raises(FileNotFoundError):
        read("no/such/file.hlo")
    with pytest.raises(FormatError, match="an empty string"):
        read("")
    with pytest.raises(FormatError, match="a string with a zero byte"):
        read("a\0b")
    with pytest.raises(TypeError, match="lower a function first"):
        read(jax.jit(jnp.sin))
    with pytest.raises(TypeError, match="pass what it was compiled from"):
        read(LOWERED.compile())


def test_errors_of_hlo_text_have_line_and_column():
    with pytest.raises(FormatError, match="Unknown opcode: paramter") as caught:
        read("HloModule m\n\nENTRY e {\n ROOT a = f32[2] paramter(0)\n}")
    assert caught.value.where.startswith("line 4, column")
    assert "paramter(0)" in caught.value.where


def test_errors_of_stablehlo_text_have_line_and_column():
    with pytest.raises(FormatError, match="same shape for all operands") as caught:
        read(
            'module {\n func.func @main(%a: tensor<2xf32>) -> tensor<3xf32> {\n  %0 = "stablehlo.add"(%a, %a) : '
            "(tensor<2xf32>, tensor<2xf32>) -> tensor<3xf32>\n  return %0 : tensor<3xf32> } }"
        )
    assert caught.value.where.startswith('line 3, column 8: %0 = "stablehlo.add"')


def test_quantized_types_are_named():
    text = "module { func.func @main(%a: tensor<2x!quant.uniform<i8:f32, 0.5>>) {\n return } }"
    with pytest.raises(FormatError, match="it has quantized types, for which jaxlib carries no dialect") as caught:
        read(text)
    assert caught.value.where.startswith("line 1, column 46: module")


@pytest.mark.parametrize(
    ("instruction", "what"),
    [
        ("f32[2] add(p, i)", "lax.add requires arguments to have the same dtypes"),
        ("s32[2] negate(p)", "returned float32"),
        ("f32[2] power(p, i)", "it mixes"),
        ("f32[2] select(i, p, p)", "no predicate"),
        ("f32[2] slice(p), slice={[1:3]}", "slice limit_indices"),
    ],
)
def test_ill_typed_hlo_is_refused(instruction, what):
    parameters = "p = f32[2] parameter(0)  i = s32[2] parameter(1)"
    with pytest.raises(UnlowerError, match=what) as caught:
        unlower.load(hlo_text_to_proto(f"HloModule m\nENTRY e {{ {parameters}  ROOT c = {instruction} }}"))
    assert caught.value.where


def test_reading_prints_nothing(capfd):
    for data in (PORTABLE[:300], BYTECODE[:300], PROTO[:300]):
        with pytest.raises(UnlowerError):
            read(data)
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")


def mutated(data, edits):
    changed = bytearray(data)
    for place, byte in edits:
        changed[place % len(changed)] = byte
    return bytes(changed)


EDITS = st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), min_size=1, max_size=4)


def read_or_refuse(data):
    try:
        read(data, elided="zeros")
    except UnlowerError:
        pass


WORKER = """
import sys
from unlower.errors import UnlowerError
from unlower.readers.detect import read
answers = open(int(sys.argv[1]), "w", buffering=1)
answers.write("ready\\n")
while header := sys.stdin.buffer.read(8):
    data = sys.stdin.buffer.read(int.from_bytes(header, "little"))
    try:
        read(data, elided="zeros")
        answers.write("read\\n")
    except UnlowerError as error:
        answers.write("refused\\n")
    except BaseException as error:
        answers.write(f"{type(error).__name__}: {error}".replace("\\n", " ") + "\\n")
"""


class Worker:
    """Reads in a process of its own: MLIR can die or hang on damaged bytes, and must not take pytest along.

    Answers `"read"`, `"refused"`, the text of a foreign exception, or None when the process died or hung."""

    def __init__(self):
        self.deaths = 0
        self._process = None

    def ask(self, data, timeout=4.0):
        if self._process is None:
            self._start()
        answer = None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(len(data).to_bytes(8, "little") + data)
            self._process.stdin.flush()
            answer = self._answer(timeout)
        if answer is None:
            self.deaths += 1
            self.close()
        return answer

    def _start(self):
        reading, writing = os.pipe()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        self._process = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(writing)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            pass_fds=[writing],
        )
        os.close(writing)
        self._answers = open(reading)  # noqa: SIM115 (closed with the process)
        assert self._answer(60) == "ready"

    def _answer(self, timeout):
        if not select.select([self._answers], [], [], timeout)[0]:
            return None
        return self._answers.readline().rstrip("\n") or None

    def close(self):
        if self._process is not None:
            self._process.kill()
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
            self._process.wait()
            self._answers.close()
            self._process = None


@pytest.fixture(scope="module")
def worker():
    worker = Worker()
    yield worker
    worker.close()


def assert_read_or_refused(worker, data):
    # None: the process died in MLIR's or XLA's own code, which only isolation can mend. It must stay rare.
    assert worker.ask(data) in ("read", "refused", None)
    assert worker.deaths < 8


@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.sampled_from([PORTABLE, BYTECODE, PROTO]), edits=EDITS)
def test_flipped_bytes_are_read_or_refused(worker, data, edits):
    assert_read_or_refused(worker, mutated(data, edits))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(data=st.sampled_from([PORTABLE, BYTECODE, PROTO, gzip.compress(PROTO)]), length=st.integers(0, 1 << 20))
def test_cut_bytes_are_read_or_refused(worker, data, length):
    assert_read_or_refused(worker, data[: length % len(data)])


@settings(max_examples=150, deadline=None)
@given(st.sampled_from([STABLEHLO.encode(), GENERIC.encode()]), EDITS)
def test_flipped_text_is_read_or_refused(data, edits):
    read_or_refuse(mutated(data, edits))


@settings(max_examples=150, deadline=None)
@given(st.sampled_from([STABLEHLO, GENERIC, HLO_TEXT]), st.integers(0, 1 << 20))
def test_cut_text_is_read_or_refused(text, length):
    read_or_refuse(text[: length % len(text)].encode())


@settings(max_examples=200, deadline=None)
@given(
    st.binary(max_size=100), st.sampled_from([b"", b"\x0a", b"\x1f\x8b", b"PK\x03\x04", b"\x08\x01\x12", b"\x80\x04"])
)
def test_any_bytes_are_refused(data, start):
    read_or_refuse(start + data)


def test_an_artifact_for_an_older_version_reads():
    with new_mlir_context() as context:
        module = mlir_ir.Module.parse(STABLEHLO)
        old = mlir_hlo.serialize_portable_artifact(module, mlir_hlo.get_minimum_version())
        del module, context
    assert outline(read(bytes(old))) == outline(read(STABLEHLO))


def test_an_artifact_that_mlir_signed():
    data = (DATA / "portable_0_4_30.mlirbc").read_bytes()
    producer = data[5 : data.index(b"\0", 5)]
    assert producer.startswith(b"StableHLO_v")
    signed = data.replace(producer, b"MLIRxxx-trunk".ljust(len(producer), b"-"), 1)
    assert outline(read(signed)) == outline(read(data))
