"""Whether a loaded program is the original to XLA: the same optimised HLO, text for text, and the same bits.

    python benchmarks/same_program.py [--source stablehlo|hlo] [NAME ...]

Each model of `models.py` is lowered, loaded from that text, lowered again, and both are compiled. Where the optimised
texts are equal, run time and memory are equal by construction, so nothing is timed. Names and metadata are left out of
the comparison, and so is the order of scalar constants. Exits with 1 unless all are the same.
"""

import argparse
import re
import sys

import jax
import numpy as np
from models import MODELS

import unlower


def canonical(text):
    """Optimised HLO without names, metadata, and the order of scalar constants."""
    text = re.sub(r"^(FileNames|FunctionNames|FileLocations|StackFrames)\n(.+\n)*", "", text, flags=re.M)
    text = re.sub(r", metadata=\{[^{}]*(\{[^{}]*\}[^{}]*)*\}", "", text)
    text = re.sub(r",? ?origin=\{.*?\}\}|, frontend_attributes=\{[^{}]*\}|^HloModule .*$", "", text, flags=re.M)
    scalars = dict(re.findall(r"^\s+(%[\w.\-]+) = (\w+\[\] constant\([^\n]*?\))$", text, flags=re.M))
    text = re.sub(r"^\s+%[\w.\-]+ = \w+\[\] constant\([^\n]*?\)\n", "", text, flags=re.M)
    text = re.sub(r"%[\w.\-]+", lambda match: scalars.get(match[0], match[0]), text)
    numbers: dict[str, str] = {}
    text = re.sub(r"%[\w.\-]+", lambda match: numbers.setdefault(match[0], f"%{len(numbers)}"), text)
    return re.sub(r"(?<=[(, ])[A-Za-z_][\w.\-]*(?=: [a-z]+\d*\[)", "p", text)


def flatten(function, arguments):
    """`function` over the flat leaves of its arguments, as a tuple, and those leaves."""
    leaves, tree = jax.tree.flatten(arguments)
    return (lambda *xs: tuple(jax.tree.leaves(function(*jax.tree.unflatten(tree, xs))))), leaves


def compare(function, arguments, source):
    """Returns whether the optimised HLO is the same, and whether the bits are."""
    flat, leaves = flatten(function, arguments)
    first = jax.jit(flat, keep_unused=True).lower(*leaves)
    text = (
        first.as_text() if source == "stablehlo" else first.compiler_ir("hlo").as_hlo_text(print_large_constants=True)
    )
    program = unlower.load(text)
    second = jax.jit(lambda *xs: program.flat(*xs), keep_unused=True).lower(*leaves)
    compiled = first.compile(), second.compile()
    texts = [canonical(c.as_text()) for c in compiled]
    results = [[np.asarray(r).tobytes() for r in c(*leaves)] for c in compiled]
    return texts[0] == texts[1], results[0] == results[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of: {' '.join(MODELS)}")
    parser.add_argument("--source", choices=["stablehlo", "hlo"], default="stablehlo")
    options = parser.parse_args()
    names = options.names or list(MODELS)
    outcomes = {}
    for name in names:
        outcomes[name] = compare(*MODELS[name](), options.source)
        same_text, same_bits = ("same" if same else "OTHER" for same in outcomes[name])
        print(f"{name:20} optimised HLO {same_text}, bits {same_bits}", flush=True)
    texts, bits = (sum(column) for column in zip(*outcomes.values(), strict=True))
    print(
        f"jax {jax.__version__}, {options.source}: optimised HLO {texts} of {len(names)}, bits {bits} of {len(names)}"
    )
    return 0 if texts == bits == len(names) else 1


if __name__ == "__main__":
    sys.exit(main())
