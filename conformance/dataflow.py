"""Hashes what a program computes, value by value, so that two programs can be compared that are too big to run.

The hash of a result is built from its operation, the attributes and the hashes of the operands, functions inlined; equal
hashes mean the same operations wired the same way, which equal operation counts do not. What differs in spelling only is
brought to one form first: default attributes, `dot` and `dot_general`, splat constants and broadcast scalars, markers.

    python conformance/dataflow.py FOLDER    every *.before_optimizations.txt below it, original against loaded-and-lowered
"""

import glob
import hashlib
import os
import sys
from typing import Any

from unlower.ir.attributes import DenseElements, DotDimensionNumbers
from unlower.ir.module import Module, Op, Region, Value
from unlower.ops.custom_calls.sharding import MARKERS

IDENTITIES = {"mhlo.copy", "mhlo.domain", "mhlo.add_dependency", "sdy.sharding_constraint"}
DEFAULTS: dict[str, Any] = {
    "precision_config": ("DEFAULT", "DEFAULT"),
    "compare_type": None,
    "indices_are_sorted": False,
    "unique_indices": False,
    "is_stable": False,
    "result_accuracy": None,
    "largest": True,
    "channel_handle": None,
}
DROPPED = {"result_layout", "xla_shape", "operand_layouts", "result_layouts", "compare_type"}


def digest(*parts: Any) -> str:
    """A short hash of the parts' text."""
    return hashlib.blake2b(repr(parts).encode(), digest_size=12).hexdigest()


def attribute(value: Any) -> Any:
    """A comparable form of an attribute."""
    if isinstance(value, DenseElements):
        return ("dense", str(value.type), hashlib.blake2b(value.expanded().tobytes()).hexdigest())
    if isinstance(value, bool | str):
        return str(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value).hex()
    if isinstance(value, tuple | list):
        return tuple(map(attribute, value))
    if isinstance(value, dict):
        return tuple((k, attribute(v)) for k, v in sorted(value.items()))
    return repr(value)


class Flow:
    """Data-flow hashes of one module."""

    def __init__(self, module: Module):
        self.module = module
        self.called: dict[Any, tuple[str, ...]] = {}
        self.reshaped: dict[str, str] = {}  # the hash of a reshape -> the hash of what was reshaped first
        # The hash of a broadcast -> hash and shape of what was broadcast first, and where its dimensions have gone, but for
        # those of size one, which may come and go.
        self.spread: dict[str, tuple[str, tuple[int, ...], tuple[int, ...]]] = {}

    def results(self) -> tuple[str, ...]:
        """One hash for each result of the entry, over `arg0`, `arg1`, ..."""
        arguments = tuple(f"arg{i}" for i in range(len(self.module.main.body.arguments)))
        return self.function(self.module.entry, arguments)

    def function(self, name: str, arguments: tuple[str, ...]) -> tuple[str, ...]:
        key = (name, arguments)
        if key not in self.called:
            self.called[key] = self.region(self.module.functions[name].body, {}, arguments)
        return self.called[key]

    def region(self, region: Region, around: dict[Value, str], arguments: tuple[str, ...]) -> tuple[str, ...]:
        known = dict(around)
        known.update(zip(region.arguments, arguments, strict=True))
        for op in region.ops:
            known.update(zip(op.results, self.op(op, known), strict=True))
        return tuple(known[v] for v in region.results)

    def op(self, op: Op, known: dict[Value, str]) -> tuple[str, ...]:
        operands = tuple(known[v] for v in op.operands)
        name = {"mhlo.topk": "chlo.top_k", "chlo.square": "stablehlo.multiply"}.get(op.name, op.name)
        if op.name == "chlo.square":
            operands *= 2
        if name == "func.call":
            return self.function(str(op.attributes["callee"]), operands)
        if name == "stablehlo.constant":
            return (self.constant(op.attributes["value"]),)
        if name in IDENTITIES or op.attributes.get("call_target_name") in MARKERS:
            return operands[:1]
        source, result = (op.operands[0].type if op.operands else None), op.results[0].type if op.results else None
        if name in ("stablehlo.convert", "stablehlo.reshape", "stablehlo.broadcast_in_dim") and source == result:
            return operands
        if name == "stablehlo.reshape":
            if _long(source.shape) == _long(result.shape):
                own = self.broadcast(operands[0], source.shape, _moves(source.shape, result.shape), result)
                self.reshaped.setdefault(own, self.reshaped.get(operands[0], operands[0]))
                return (own,)
            # A chain of reshapes is its last one, and that is one without sizes of one, which are put in afterwards.
            base, long = self.reshaped.get(operands[0], operands[0]), tuple(_long(result.shape))
            own = digest("reshape", base, long, str(result.element))
            self.reshaped[own] = base
            if long != result.shape:
                own = self.broadcast(own, long, _moves(long, result.shape), result)
                self.reshaped.setdefault(own, base)
            return (own,)
        if name == "stablehlo.broadcast_in_dim":
            moves = dict(enumerate(map(int, op.attributes["broadcast_dimensions"])))
            return (self.broadcast(operands[0], source.shape, moves, result),)
        attributes = {k: v for k, v in op.attributes.items() if "." not in k and k not in DROPPED}
        if name == "stablehlo.dot":
            name = "stablehlo.dot_general"
            lhs = op.operands[0].type
            attributes["dot_dimension_numbers"] = DotDimensionNumbers((), (), (len(lhs.shape) - 1,), (0,))
        kept = {k: attribute(v) for k, v in attributes.items() if k not in DEFAULTS or v != DEFAULTS[k]}
        if name == "chlo.top_k":
            # What a dump does not say and the newest lowering spells out: ties keep their order.
            kept.pop("is_stable", None)
        total = op.attributes.get("compare_type") == "TOTALORDER"
        regions = []
        for region in op.regions:
            formals = tuple(f"region{i}" for i in range(len(region.arguments)))
            regions.append(self.region(region, known, formals))
        key = (name, operands, sorted(kept.items()), total, tuple(regions), tuple(map(str, op.types)))
        return tuple(digest(i, *key) for i in range(len(op.results)))

    def broadcast(self, operand: str, shape: tuple[int, ...], moves: dict[int, int], result: Any) -> str:
        """A chain of broadcasts is one; so is a reshape that adds and removes sizes of one. `moves`: where dimensions go."""
        own_places = tuple(place for place, size in enumerate(shape) if size != 1)
        base, first, places = self.spread.get(operand, (operand, shape, own_places))
        gone = tuple(moves[place] for place in places)
        back = result.shape == first and gone == tuple(place for place, size in enumerate(first) if size != 1)
        own = base if back else digest("broadcast", base, str(result), gone)
        if not back:
            self.spread[own] = (base, first, gone)
        return own

    def constant(self, value: DenseElements) -> str:
        element, first, data = str(value.type.element), value.array.reshape(-1)[:1].tobytes(), value.array.tobytes()
        if value.type.shape == ():
            return digest("scalar", element, data)
        if value.is_splat or (first and data == first * value.array.size):
            # One element everywhere is the broadcast of a scalar, however the file spells it.
            return self.broadcast(digest("scalar", element, first), (), {}, value.type)
        return digest("constant", str(value.type), hashlib.blake2b(data).hexdigest())


def _long(shape: tuple[int, ...]) -> list[int]:
    return [size for size in shape if size != 1]


def _moves(before: tuple[int, ...], after: tuple[int, ...]) -> dict[int, int]:
    """Where the dimensions go in a reshape that only adds and removes sizes of one."""
    places = [[place for place, size in enumerate(shape) if size != 1] for shape in (before, after)]
    return dict(zip(*places, strict=True))


def compare(source: Any, **options: Any) -> tuple[int, int]:
    """Loads, lowers again, and compares: (results whose hashes agree, results)."""
    import jax

    import unlower
    from unlower.raising.normalize import normalize
    from unlower.readers.detect import read

    program = unlower.load(source, **options)
    lowered = jax.jit(lambda *a: program.flat(*a), keep_unused=True).lower(*program.in_avals)
    first = Flow(normalize(read(source, **options))).results()
    second = Flow(normalize(read(lowered))).results()
    return sum(a == b for a, b in zip(first, second, strict=True)), len(first)


def main() -> int:
    same = total = 0
    for path in sorted(glob.glob(os.path.join(sys.argv[1], "**", "*.before_optimizations.txt"), recursive=True)):
        with open(path) as file:
            text = file.read()
        if len(text) < 1000:
            continue
        options = {"elided": "zeros"} if "constant({...})" in text else {}
        try:
            agree, results = compare(text, **options)
        except Exception as error:  # noqa: BLE001 - the table shows every failure
            agree, results = 0, 1
            print(f"error  {path}: {type(error).__name__}: {str(error)[:200]}")
        same += agree == results
        total += 1
        if agree != results:
            print(f"{agree} of {results} results  {path}")
    print(f"data-flow hash: {same} of {total} dumps")
    return 0 if same == total else 1


if __name__ == "__main__":
    sys.exit(main())
