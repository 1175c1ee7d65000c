"""Literals that are cut out of a file, beside the same file read whole: equal bit for bit, in every format and element type."""

import contextlib
import functools
import gzip
import io
from typing import Any

import jax
import numpy as np
import pytest

import unlower
from unlower._jax_compat import hlo_text_to_proto, mlir_hlo, mlir_ir, new_mlir_context
from unlower.errors import FormatError
from unlower.ir.types import DTYPES
from unlower.readers import detect
from unlower.readers.detect import read_source
from unlower.readers.elision import Elision
from unlower.readers.large import cut
from unlower.readers.large.source import Large
from unlower.readers.stablehlo_bytecode import read_bytecode
from unlower.readers.stablehlo_text import read_stablehlo_text

SHAPE = (3, 40, 2, 5)
SIZE = 1200
HLO_NAMES = {
    "i1": "pred",
    "i8": "s8",
    "i16": "s16",
    "i32": "s32",
    "i64": "s64",
    "ui8": "u8",
    "ui16": "u16",
    "ui32": "u32",
    "ui64": "u64",
    "bf16": "bf16",
    "f16": "f16",
    "f32": "f32",
    "f64": "f64",
    "i4": "s4",
    "ui4": "u4",
    "f8E5M2": "f8e5m2",
    "f8E4M3FN": "f8e4m3fn",
    "complex<f32>": "c64",
    "complex<f64>": "c128",
}
SPECIAL = [np.nan, -np.nan, np.inf, -np.inf, -0.0, 1e-45, -1e-40, 5e-324, 0.1]


def storage(element, seed=0):
    """Random bits, as MLIR stores the elements of a tensor."""
    dtype, generator = DTYPES[element], np.random.default_rng(seed)
    if element == "i1":
        return generator.integers(0, 2, SIZE, np.uint8).tobytes()
    raw = generator.integers(0, 256, SIZE * dtype.itemsize, np.uint8)
    if element in ("i2", "ui2", "i4", "ui4", "f4E2M1FN", "f6E2M3FN", "f6E3M2FN"):
        raw &= (1 << int(element.lstrip("uif")[0])) - 1
    return raw.tobytes()


def mlir_text(*literals):
    """A module that returns literals, and a splat of each type."""
    sizes = "x".join(map(str, SHAPE))
    lines, names, types = [], [], []
    for i, (element, data) in enumerate(literals):
        one = "FF" if element == "i1" else "01" * DTYPES[element].itemsize
        type_ = f"tensor<{sizes}x{element}>"
        lines.append(f'    %a{i} = stablehlo.constant dense<"0x{data.hex().upper()}"> : {type_}')
        lines.append(f'    %b{i} = stablehlo.constant dense<"0x{one}"> : {type_}')
        names += [f"%a{i}", f"%b{i}"]
        types += [type_, type_]
    head = f"module {{\n  func.func @main() -> ({', '.join(types)}) {{\n"
    return head + "\n".join(lines) + f"\n    return {', '.join(names)} : {', '.join(types)}\n  }}\n}}\n"


def constants(found):
    module = getattr(found, "module", found)
    return [op.attributes["value"] for op in module.main.body.ops if op.name == "stablehlo.constant"]


def assert_same(found, wanted):
    assert len(found) == len(wanted) > 0
    for one, other in zip(found, wanted, strict=True):
        assert (one.type, one.is_splat, one.array.dtype) == (other.type, other.is_splat, other.array.dtype)
        assert one.array.tobytes() == other.array.tobytes()
        assert one.elided is None and not one.array.flags.writeable


def whole_and_cut(data, monkeypatch, threshold, is_cut=True):
    """Reads a file with cutting and without; returns both lists of constants."""
    elision = Elision()
    small = cut.cut_literals(Large(data), elision, threshold)
    assert (len(small) < len(data)) == is_cut
    monkeypatch.setattr(detect, "cut_literals", lambda source, elision: source.copy())
    whole = constants(read_source(data))
    monkeypatch.setattr(detect, "cut_literals", lambda source, elision: cut.cut_literals(source, elision, threshold))
    return whole, constants(read_source(data))


ELEMENTS = [element for element in DTYPES if element not in ("f4E2M1FN", "f6E2M3FN", "f6E3M2FN")]


@pytest.mark.parametrize("element", ELEMENTS)
def test_stablehlo_text(element, monkeypatch):
    text = mlir_text((element, storage(element)), (element, storage(element, 1)))
    whole, found = whole_and_cut(text.encode(), monkeypatch, 256)
    assert_same(found, whole)


def bytecodes(text):
    """Raw bytecode of a module, and a portable artifact."""
    with new_mlir_context():
        module = mlir_ir.Module.parse(text)
        raw = io.BytesIO()
        module.operation.write_bytecode(raw)
        artifacts = []
        for version in (mlir_hlo.get_minimum_version(), mlir_hlo.get_current_version()):
            # The old version does not have all element types.
            with contextlib.suppress(ValueError):
                artifacts.append(mlir_hlo.serialize_portable_artifact_str(text, version))
        return raw.getvalue(), artifacts


@pytest.mark.parametrize("element", ELEMENTS)
def test_bytecode(element, monkeypatch):
    text = mlir_text((element, storage(element)), (element, storage(element, 1)))
    raw, artifacts = bytecodes(text)
    for data in (raw, *artifacts):
        # Booleans are packed, so nothing is gained by cutting them.
        whole, found = whole_and_cut(data, monkeypatch, 256 if element != "i1" else 100, element != "i1")
        assert_same(found, whole)


@np.errstate(invalid="ignore")
def hlo_text(element):
    name, dtype = HLO_NAMES[element], DTYPES[element]
    raw = np.frombuffer(storage(element), np.uint8)
    if element == "i1":
        values = raw.astype(bool)
    else:
        values = raw.view(np.int8).astype(dtype) if element in ("i4", "ui4") else raw.view(dtype)
    if dtype.kind == "c":
        values = np.nan_to_num(values)
    elif dtype.kind not in "iub" and element not in ("i4", "ui4"):
        values = np.where(np.isfinite(values.astype(np.float64)), values, np.zeros(1, dtype))
        values[:4] = np.array([np.inf, -np.inf, -0.0, 0.1], np.float64).astype(dtype)
        values = np.where(np.isnan(values.astype(np.float64)), np.zeros(1, dtype), values)

    def spelled(x):
        if dtype.kind == "c":
            return f"({float(x.real)!r}, {float(x.imag)!r})"
        if dtype.kind in "iub" or element in ("i4", "ui4"):
            return str(int(x))
        return "-0" if float(x) == 0 and np.signbit(float(x)) else repr(float(x))

    def nest(array, depth=0):
        if array.ndim == 0:
            return spelled(array[()])
        comment = f"/*i{depth - 1}={{}}*/ " if 0 < depth < len(SHAPE) - 1 else ""
        parts = [comment.format(i) + nest(part, depth + 1) for i, part in enumerate(array)]
        return "{ " + ", ".join(parts) + " }" if array.ndim > 1 else "{" + ", ".join(parts) + "}"

    sizes = ",".join(map(str, SHAPE))
    return (
        f"HloModule m\n\nENTRY e {{\n  c.1 = {name}[{sizes}]{{3,2,1,0}} constant({nest(values.reshape(SHAPE))}), "
        f'metadata={{op_name="a"}}\n  p = {name}[] parameter(0)\n'
        f"  ROOT t = ({name}[{sizes}]{{3,2,1,0}}, {name}[]) tuple(c.1, p)\n}}\n"
    ).encode()


@pytest.mark.parametrize("element", HLO_NAMES)
def test_hlo_text(element, monkeypatch):
    is_cut = element not in ("i4", "ui4", "f8E5M2", "f8E4M3FN", "complex<f32>", "complex<f64>")
    whole, found = whole_and_cut(hlo_text(element), monkeypatch, 1000, is_cut)
    assert_same(found, whole)


@pytest.mark.parametrize("layout", ["3,2,1,0", "0,2,3,1"])
@pytest.mark.parametrize("element", HLO_NAMES)
def test_hlo_proto(element, layout, monkeypatch):
    text = hlo_text(element).replace(b"{3,2,1,0}", b"{" + layout.encode() + b"}")
    proto = hlo_text_to_proto(text.decode())
    whole, found = whole_and_cut(proto, monkeypatch, 256, element not in ("i4", "ui4"))
    assert_same(found, whole)


def test_specials_of_hlo_text(monkeypatch):
    """What XLA's parser makes of numbers at the edge; NaNs are left to it."""
    numbers = [
        "inf",
        "-inf",
        "-0",
        "1e-45",
        "3.4028235e38",
        "0.1",
        "-1e-40",
        "16777217",
        "1.00000017881393432617187499",
    ]
    for more in ([], ["nan", "-nan"]):
        text = ", ".join((numbers + more) * 100)
        count = 100 * len(numbers + more)
        data = f"HloModule m\nENTRY e {{\n  ROOT c = f32[{count}]{{0}} constant({{{text}}})\n}}\n".encode()
        whole, found = whole_and_cut(data, monkeypatch, 1000, not more)
        assert_same(found, whole)


@pytest.mark.parametrize(
    ("literal", "shape"),
    [
        ("{" + "1, " * 5000 + "}", "f32[5000]"),
        ("{" + "1, " * 5000 + "1 }", "f32[5000]"),
        ("{ {" + "1, " * 4999 + "1 } }", "f32[5000]"),
        ("{" + "1, " * 4999 + "1 }", "f32[50,100]"),
        ("{ {" + "1, " * 2498 + "1 }, {" + "1, " * 2500 + "1} }", "f32[2,2500]"),
        ("{" + "1, " * 4999 + "1e }", "f32[5000]"),
        ("{" + "300, " * 4999 + "1 }", "u8[5000]"),
        ("{" + "1e39, " * 4999 + "1 }", "f32[5000]"),
        ("{" + "1e39, " * 4999 + "1 }", "bf16[5000]"),
        ("{" + "1.5, " * 4999 + "1 }", "s32[5000]"),
    ],
)
def test_wrong_literals_of_text_are_refused(literal, shape, monkeypatch):
    data = f"HloModule m\nENTRY e {{\n  ROOT c = {shape} constant({literal})\n}}\n".encode()
    monkeypatch.setattr(detect, "cut_literals", lambda source, elision: cut.cut_literals(source, elision, 1000))
    assert len(cut.cut_literals(Large(data), Elision(), 1000)) < 1000
    with pytest.raises(FormatError, match="damaged"):
        read_source(data)


def test_equal_literals_are_one(monkeypatch):
    data, other = storage("f32"), storage("f32")[:-1] + b"\0"
    text = mlir_text(("f32", data), ("f32", data), ("f32", other)).encode()
    whole, found = whole_and_cut(text, monkeypatch, 256)
    assert_same(found, whole)
    first, second, third = found[::2]
    assert first is second
    assert first is not third


def test_wrong_digits_are_refused():
    text = mlir_text(("f32", storage("f32")))
    wrong = text.replace('dense<"0x', 'dense<"0xGG')
    for data in (wrong, text.replace('dense<"0x', 'dense<"0x00')):
        elision = Elision()
        small = cut.cut_literals(Large(data.encode()), elision, 256)
        assert len(small) < 1000
        with pytest.raises(FormatError):
            read_stablehlo_text(small, elision)


def test_constants_are_limited():
    text = mlir_text(("f32", storage("f32")), ("f32", storage("f32", 1))).encode()
    with pytest.raises(FormatError, match=r"9,600 bytes of constants, more than the 9,000"):
        cut.cut_literals(Large(text), Elision(limits=unlower.Limits(constant_bytes=9000)), 256)


@pytest.mark.parametrize("isolate", [False, True])
@pytest.mark.parametrize("kind", ["text", "bytecode"])
def test_constants_that_are_cut_and_others_are_limited_together(kind, isolate, monkeypatch):
    text = mlir_text(("f32", storage("f32")), ("f32", storage("f32", 1)))
    size = 2 * len(storage("f32")) + 4  # two literals, and the splat that they share
    data: Any = text.encode()
    if kind == "bytecode":
        with new_mlir_context():
            buffer = io.BytesIO()
            mlir_ir.Module.parse(text).operation.write_bytecode(buffer)
            data = buffer.getvalue()
    for threshold in (256, 1 << 20):
        monkeypatch.setattr(detect, "cut_literals", functools.partial(cut.cut_literals, threshold=threshold))
        unlower.load(data, limits=unlower.Limits(constant_bytes=size), isolate=isolate)
        with pytest.raises(FormatError, match=rf"{size:,} bytes of constants, more than the {size - 1:,}"):
            unlower.load(data, limits=unlower.Limits(constant_bytes=size - 1), isolate=isolate)


def test_marks_differ_from_every_constant():
    """All 254 bytes that may stand for a literal of one byte are taken but one, so one of two is cut."""
    literals = [("i8", storage("i8", seed)) for seed in (0, 1)]
    lines = "".join(
        f"    %s{i} = stablehlo.constant dense<{i - 256 if i > 127 else i}> : tensor<7xi8>\n" for i in range(254)
    )
    text = mlir_text(*literals).replace("    return", lines + "    return")
    raw, _ = bytecodes(text)
    elision = Elision()
    small = cut.cut_literals(Large(raw), elision, 256)
    assert list(elision.marks) == [bytes([254])]
    assert_same(constants(read_bytecode(small, elision)), constants(read_bytecode(raw, Elision())))


@pytest.mark.parametrize("kind", ["bytecode", "text", "hlo", "proto", "gzip"])
@pytest.mark.parametrize("isolate", [False, True])
def test_files(kind, isolate, tmp_path):
    """Whole programs from mapped files, read here and in a process of its own."""
    table = np.random.default_rng(0).standard_normal((600, 700), np.float32)
    function = jax.jit(lambda x: (x @ table, table[::2], x + 1))
    x = np.ones((2, 600), np.float32)
    lowered = function.lower(x)
    raw = io.BytesIO()
    hlo: Any = lowered.compiler_ir("hlo")
    stablehlo: Any = lowered.compiler_ir("stablehlo")
    stablehlo.operation.write_bytecode(raw)
    text = lowered.as_text().encode()
    data = {
        "bytecode": raw.getvalue,
        "text": lambda: text,
        "hlo": lambda: hlo.as_hlo_text(True).encode(),
        "proto": hlo.as_serialized_hlo_module_proto,
        "gzip": lambda: gzip.compress(text, 1),
    }[kind]()
    path = tmp_path / "program"
    path.write_bytes(data)
    program = unlower.load(path, isolate=isolate)
    for found, wanted in zip(jax.tree.leaves(program(x)), function(x), strict=True):
        assert np.asarray(found).tobytes() == np.asarray(wanted).tobytes()
    lifted = unlower.load(path).parameters
    assert lifted is not None


def test_cut_off_files(tmp_path):
    """Whatever is cut off is refused, wherever it ends."""
    text = mlir_text(("f32", storage("f32")), ("i32", storage("i32")))
    raw, (artifact, *_) = bytecodes(text)
    proto = hlo_text_to_proto(hlo_text("f32").decode())
    for data in (text.encode(), raw, artifact, proto, hlo_text("f32")):
        for stop in range(len(data) // 20, len(data) * 19 // 20, len(data) // 7):
            elision = Elision()
            with pytest.raises(FormatError):
                detect._read_bytes(cut.cut_literals(Large(data[:stop]), elision, 256), elision)
