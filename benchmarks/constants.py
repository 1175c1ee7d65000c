"""Time and peak memory of loading large constants, beside jaxlib alone on the same file.

    python benchmarks/constants.py [--sizes 1,100,1000] [--formats bytecode,proto,stablehlo,hlo]

For one float32 constant of each size (MB), in each format, each in a process of its own:

- unlower: `unlower.load` of the path, until the constant is an array;
- jaxlib: the file read, parsed (HLO converted to StableHLO and parsed again), and the constant's attribute as an array.

Printed: the peak of resident memory above what the process had before, over the constant's size; the seconds; and the
ratio of each to jaxlib's.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time

FORMATS = ("bytecode", "proto", "stablehlo", "hlo")


def resident(key):
    """Bytes of resident memory, now (VmRSS) or at their peak (VmHWM)."""
    status = pathlib.Path("/proc/self/status").read_text()
    found = re.search(rf"{key}:\s+(\d+)", status)
    assert found is not None
    return int(found[1]) << 10


def write(path, format_, megabytes):
    """Writes a module with one constant."""
    import jax
    import numpy as np
    from jax._src.interpreters import mlir

    table = np.random.default_rng(0).standard_normal((megabytes * 250, 1000), np.float32)
    lowered = jax.jit(lambda x: x + table).lower(table)
    if format_ == "bytecode":
        path.write_bytes(mlir.module_to_bytecode(lowered.compiler_ir()))
    elif format_ == "proto":
        path.write_bytes(lowered.compiler_ir("hlo").as_serialized_hlo_module_proto())
    elif format_ == "stablehlo":
        path.write_text(lowered.as_text())
    else:
        path.write_text(lowered.compiler_ir("hlo").as_hlo_text(True))


def by_jaxlib(path, format_):
    """The floor: what jaxlib's own functions take."""
    import numpy as np
    from jax._src.interpreters import mlir
    from jax._src.lib import _jax
    from jax._src.lib.mlir import ir
    from jaxlib import _hlo

    data = path.read_text() if format_ in ("stablehlo", "hlo") else path.read_bytes()
    if format_ == "hlo":
        data = _hlo.hlo_module_from_text(data).as_serialized_hlo_module_proto()
    if format_ in ("proto", "hlo"):
        data = _jax.mlir.hlo_to_stablehlo(data)
    with mlir.make_ir_context():
        module = ir.Module.parse(data)
        for op in module.body.operations[0].body.blocks[0]:
            if op.operation.name == "stablehlo.constant":
                return np.array(ir.DenseElementsAttr(op.attributes["value"]))
    raise AssertionError("no constant")


def by_unlower(path, format_):
    """What is measured."""
    import unlower

    program = unlower.load(path)
    (constant,) = (op.attributes["value"] for op in program.module.main.body.ops if op.name == "stablehlo.constant")
    return constant.array


def measure(path, format_, who):
    """Runs in a process of its own; prints seconds, bytes at the peak, and bytes of the constant."""
    import jax

    import unlower  # noqa: F401 (its import is not what is measured)

    jax.jit(lambda x: x + 1).lower(1.0)
    before, begun = resident("VmRSS"), time.perf_counter()
    array = {"unlower": by_unlower, "jaxlib": by_jaxlib}[who](path, format_)
    print(json.dumps([time.perf_counter() - begun, resident("VmHWM") - before, array.nbytes, float(array[-1, -1])]))


def child(*arguments):
    """Runs this file with other arguments; returns what it prints."""
    done = subprocess.run([sys.executable, __file__, *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode:
        return None
    return json.loads(done.stdout) if done.stdout else []


def main():
    """Prints a line for each size and format."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1,100", help="MB, with commas")
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--child", nargs=4, metavar="X", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        what, path, format_, size = options.child
        if what == "write":
            write(pathlib.Path(path), format_, int(size))
        else:
            measure(pathlib.Path(path), format_, what)
        return
    print("|   MB | format    | peak / constant | jaxlib's | ratio | seconds | jaxlib's | ratio |")
    print("|-----:|-----------|----------------:|---------:|------:|--------:|---------:|------:|")
    for size in map(int, options.sizes.split(",")):
        for format_ in options.formats.split(","):
            with tempfile.TemporaryDirectory() as folder:
                path = pathlib.Path(folder) / "program"
                if child("--child", "write", path, format_, size) is None:
                    print(f"| {size:4} | {format_:9} | jaxlib cannot write it |")
                    continue
                found = {who: child("--child", who, path, format_, size) for who in ("unlower", "jaxlib")}
            mine, floor = found["unlower"], found["jaxlib"]
            assert mine is not None, "unlower failed"
            line = f"| {size:4} | {format_:9} | {mine[1] / mine[2]:15.2f} |"
            if floor is None:
                print(f"{line}   failed |       | {mine[0]:7.2f} |          |       |")
                continue
            assert mine[2:] == floor[2:]
            peaks = f"{floor[1] / floor[2]:8.2f} | {mine[1] / floor[1]:5.2f}"
            print(f"{line} {peaks} | {mine[0]:7.2f} | {floor[0]:8.2f} | {mine[0] / floor[0]:5.2f} |", flush=True)


if __name__ == "__main__":
    main()
