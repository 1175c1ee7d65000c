"""How long loading takes, as ratios to what nobody can avoid, all measured in one run.

    python benchmarks/load.py [FILE ...] [--sizes 1000,10000] [--repeats 5]

For each HLO or StableHLO text file, and for a synthetic module of each size, in CPU seconds, medians of interleaved
repeats:

- parse: jaxlib alone, from the text to an MLIR module;
- retrace: JAX tracing the loaded program's own equations once more, each distinct sub-Jaxpr once;
- load: `unlower.load` and a trace of the program.

Printed: load / (parse + retrace), where 1.00 means that loading is as fast as parsing plus JAX tracing equal work, and
for synthetic modules (load + lower) / (trace + lower of the Python function itself).
"""

import argparse
import collections
import gc
import pathlib
import statistics
import time

import jax
from jax._src import core
from jax._src.interpreters import mlir
from jax._src.lib import _jax
from jax._src.lib.mlir import ir
from jaxlib import _hlo
from models import chain

import unlower


def parse(text):
    """The floor of reading: jaxlib's own parsers and converter."""
    if text.startswith("HloModule"):
        text = _jax.mlir.hlo_to_stablehlo(_hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto())
    with mlir.make_ir_context():
        return ir.Module.parse(text)


def opened(jaxpr):
    """The Jaxpr proper, on either side of jax 0.11."""
    return getattr(jaxpr, "jaxpr", jaxpr) if hasattr(jaxpr, "consts") else jaxpr


def retrace(closed, avals):
    """The floor of tracing: JAX evaluates the equations under a trace, no user code in between."""
    jax.make_jaxpr(lambda *xs: core.eval_jaxpr(opened(closed), closed.consts, *xs))(*avals)
    seen = set()
    waiting = [opened(closed)]
    while waiting:
        for equation in waiting.pop().eqns:
            for inner in map(opened, core.jaxprs_in_params(equation.params)):
                if id(inner) not in seen:
                    seen.add(id(inner))
                    waiting.append(inner)
                    shapes = [
                        [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in vs]
                        for vs in (inner.constvars, inner.invars)
                    ]
                    jax.make_jaxpr(lambda cs, xs, inner=inner: core.eval_jaxpr(inner, cs, *xs))(*shapes)


def trace(text):
    """Loads and traces."""
    elided = "zeros" if "constant({...})" in text else None
    program = unlower.load(text, elided=elided)
    return program, jax.jit(lambda *xs: program.flat(*xs)).trace(*program.in_avals)


def timed(action):
    """CPU seconds of one call: the machine may be shared."""
    gc.collect()
    begun = time.process_time()
    action()
    return time.process_time() - begun


def measure(text, repeats, original=None):
    """Returns the ratios of one module."""
    program, traced = trace(text)
    fresh = [traced]
    actions = {
        "parse": lambda: parse(text),
        "load": lambda: trace(text),
        "retrace": lambda: retrace(program.jaxpr, program.in_avals),
        "lower": lambda: fresh[0].lower(),
    }
    if original is not None:
        function, arguments = original
        actions["original"] = lambda: jax.jit(lambda *xs: function(*xs)).lower(*arguments)
    times = collections.defaultdict(list)
    for repeat in range(repeats):
        fresh[0] = trace(text)[1]  # a trace remembers its lowering
        for name in list(actions)[:: 1 if repeat % 2 == 0 else -1]:
            times[name].append(timed(actions[name]))
    seconds = {name: statistics.median(values) for name, values in times.items()}
    ratios = {"load/floor": seconds["load"] / (seconds["parse"] + seconds["retrace"])}
    if original is not None:
        ratios["load+lower/original"] = (seconds["load"] + seconds["lower"]) / seconds["original"]
    return ratios, seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    parser.add_argument("--sizes", default="1000,10000", help="operations of the synthetic modules")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    cases = {path.name: (path.read_text(), None) for path in options.files}
    for size in filter(None, options.sizes.split(",")):
        original = chain(int(size))
        cases[f"synthetic {size}"] = (jax.jit(original[0]).lower(*original[1]).as_text(), original)
    floors = []
    print(f"jax {jax.__version__}")
    for name, (text, original) in cases.items():
        ratios, seconds = measure(text, options.repeats, original)
        floors.append(ratios["load/floor"])
        print(
            f"{name:40}",
            *(f"{k} {v:.2f}" for k, v in ratios.items()),
            *(f"{k} {v:.3f} s" for k, v in seconds.items()),
            sep="  ",
        )
    if floors:
        print(f"load/floor: mean {statistics.geometric_mean(floors):.2f}, worst {max(floors):.2f}")


if __name__ == "__main__":
    main()
