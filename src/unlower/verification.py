"""`verify`: the original under XLA beside the loaded program, compared bit for bit."""

import contextlib
import pathlib
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from unlower._xla_child import run_original
from unlower.avals import spell_aval
from unlower.errors import RuleError, SignatureError
from unlower.ir.dimensions import parse_dimension
from unlower.ir.module import Module, walk
from unlower.program import Program, load
from unlower.readers.original import original_stablehlo
from unlower.report import Difference, Timings, Verification

__all__ = ["compare", "random_inputs", "verify"]

_OWN_RANDOMNESS = {"stablehlo.rng", "mhlo.xla.rng_get_and_update_state"}
_MOST_SMALL = 10
_TRIED_SIZES = ((4, 6, 8), (4,), (3, 5, 7), (3,), (8,), (2,), (1,), (16,), (32,), (12,), (64,), (128,))
"""What symbolic sizes are in random inputs, in turn: of these sets the first that the program accepts."""


def verify(
    source: Any,
    *,
    inputs: Sequence[Any] | None = None,
    seed: int = 0,
    rules: Mapping[str, Callable[..., Any]] | None = None,
    signature: str | None = None,
    module: str | None = None,
    platform: str | int | None = None,
    progress: Callable[[str], None] = lambda stage: None,
) -> Verification:
    """Runs the original by XLA and the loaded program on the same inputs, and compares every bit of the results.

    The original is compiled in a process of its own, since XLA aborts on some modules.

    Args:
      source: whatever `load` takes.
      inputs: one array for each argument; random ones unless given, see `random_inputs`.
      seed: what random inputs are drawn from.
      rules: as for `load`.
      signature: as for `load`.
      module: as for `load`.
      platform: as for `load`; the original is given the same.
      progress: called with the name of each stage as it begins.

    Raises:
      FormatError, InvalidModuleError, UnsupportedOpError: as for `load`.
      SignatureError: inputs that do not fit the program.

    Example:
      >>> text = "HloModule m\\nENTRY e { x = f32[2] parameter(0)  ROOT y = f32[2] negate(x) }"
      >>> verify(text).outcome
      'equal'
    """
    progress("loading")
    begun = time.perf_counter()
    program = load(source, rules=rules, signature=signature, module=module, platform=platform)
    load_seconds = time.perf_counter() - begun
    given = inputs is not None
    arrays = [np.asarray(array) for array in inputs] if inputs is not None else random_inputs(program, seed)

    def report(outcome: Any, **found: Any) -> Verification:
        defaults = {"difference": None, "refusal": None, "notes": (), "timings": Timings(load=load_seconds)}
        return Verification(
            name=program.module.name,
            outcome=outcome,
            inputs=tuple(map(spell_aval, arrays)),
            outputs=tuple(map(spell_aval, program.out_avals)),
            seed=None if given else seed,
            **{**defaults, **found},
        )

    progress("the original: compiling and running it by XLA")
    with tempfile.TemporaryDirectory(prefix="unlower-") as folder:
        written = original_stablehlo(source, signature=signature, module=module)
        given_to_it = [np.asarray(array) for array in program.original_inputs(arrays)]
        original = run_original(written, given_to_it, pathlib.Path(folder))
    if original.results is None:
        return report("refused", refusal=original.refusal)
    wanted = original.results
    if program.interface.returned is not None:
        wanted = [wanted[i] for i in program.interface.returned]

    progress("the loaded program: compiling and running it")
    with jax.enable_x64(True):
        begun = time.perf_counter()
        compiled = jax.jit(program.flat, keep_unused=True).lower(*arrays).compile()
        built = time.perf_counter()
        results = [np.asarray(result) for result in jax.block_until_ready(compiled(*arrays))]
        finished = time.perf_counter()
    timings = Timings(
        load=load_seconds,
        original_compile=original.compile_seconds,
        original_run=original.run_seconds,
        loaded_compile=built - begun,
        loaded_run=finished - built,
    )
    difference = compare(wanted, results)
    notes = tuple(_notes(program.module, wanted))
    return report("different" if difference else "equal", difference=difference, notes=notes, timings=timings)


def random_inputs(program: Program, seed: int = 0) -> list[np.ndarray]:
    """Draws an array for each argument of a program.

    Floats and complex numbers are normal, booleans fair, integers small and not negative, so that they serve as
    indices, counts and keys. Symbolic sizes are small numbers that the program accepts.

    Raises:
      SignatureError: no such numbers were found.
    """
    generator = np.random.default_rng(seed)
    return [_draw(generator, struct) for struct in _with_sizes(program)]


def _with_sizes(program: Program) -> Sequence[jax.ShapeDtypeStruct]:
    """The types of the arguments, with numbers for the symbols in them."""
    sizes = [str(size) for aval in program.in_avals for size in aval.shape]
    symbols = sorted({symbol for size in sizes for symbol in parse_dimension(size).variables})
    if not symbols:
        return program.in_avals
    for values in _TRIED_SIZES:
        known = {symbol: values[i % len(values)] for i, symbol in enumerate(symbols)}
        structs = [
            jax.ShapeDtypeStruct(tuple(parse_dimension(str(n)).evaluate(known) for n in aval.shape), aval.dtype)
            for aval in program.in_avals
        ]
        with contextlib.suppress(SignatureError, RuleError), jax.enable_x64(True):
            jax.eval_shape(program.flat, *structs)
            return structs
    raise SignatureError(
        f"no sizes found for {', '.join(symbols)}",
        mend="pass arrays of the sizes you mean: verify(source, inputs=[...])",
    )


def _draw(generator: np.random.Generator, aval: jax.ShapeDtypeStruct) -> np.ndarray:
    dtype = aval.dtype
    if dtype == bool:
        return generator.integers(0, 2, aval.shape).astype(bool)
    if jax.numpy.issubdtype(dtype, np.integer):
        largest = int(jax.numpy.iinfo(dtype).max)
        return generator.integers(0, min(_MOST_SMALL, largest + 1), aval.shape).astype(dtype)
    numbers = generator.standard_normal(aval.shape)
    if jax.numpy.issubdtype(dtype, np.complexfloating):
        return (numbers + 1j * generator.standard_normal(aval.shape)).astype(dtype)
    return np.asarray(numbers).astype(dtype)


def compare(original: Sequence[np.ndarray], loaded: Sequence[np.ndarray]) -> Difference | None:
    """Finds the first element whose bits differ, in the order of results and then row by row; None if there is none."""
    first: tuple[int, np.ndarray] | None = None
    results = 0
    for position, (want, got) in enumerate(zip(original, loaded, strict=True)):
        assert want.shape == got.shape and want.dtype == got.dtype, "the program keeps the module's types"
        wrong = (_bits(want) != _bits(got)).any(axis=-1)
        if wrong.any():
            results += 1
            first = first or (position, wrong)
    if first is None:
        return None
    position, wrong = first
    flat = int(wrong.argmax())
    want, got = original[position], loaded[position]
    return Difference(
        result=position,
        index=tuple(int(i) for i in np.unravel_index(flat, want.shape)),
        original=_spell(want.reshape(-1)[flat]),
        loaded=_spell(got.reshape(-1)[flat]),
        elements=int(wrong.sum()),
        size=want.size,
        results=results,
    )


def _bits(array: np.ndarray) -> np.ndarray:
    """The bytes of an array, a row for each element."""
    return np.frombuffer(array.tobytes(), np.uint8).reshape(array.size, array.dtype.itemsize)


def _spell(value: np.generic) -> str:
    """A value with the bits behind it: `1.5 (0x3fc00000)`."""
    return f"{value} (0x{value.tobytes()[::-1].hex()})"


def _notes(module: Module, results: Sequence[np.ndarray]) -> Iterator[str]:
    names = {op.name for function in module.functions.values() for op in walk(function.body)}
    for name in sorted(names & _OWN_RANDOMNESS):
        yield f"{name} draws random numbers of its own, which two runs need not share"
    empty = [
        str(i)
        for i, result in enumerate(results)
        if result.size and jax.numpy.issubdtype(result.dtype, np.inexact) and np.isnan(result).all()
    ]
    if empty:
        yield f"nothing but NaN in result {', '.join(empty)}: these inputs tell little about it"
