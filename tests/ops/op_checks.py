"""What every operation is held to: a case is a module and inputs, and each check takes a case.

The reference is XLA running the same module, bit by bit. Derivatives are held to differences of the function itself, so
differentiable cases are written in f64.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

import unlower
from unlower._jax_compat import compile_with_xla
from unlower.ir.module import Module, walk
from unlower.ir.printer import format_attribute
from unlower.readers.detect import read

__all__ = [
    "Case",
    "assert_same_bits",
    "check_derivative",
    "check_relowers",
    "check_value",
    "check_vmap",
    "check_vmap_to_rounding",
    "ids",
    "integers",
    "module",
    "normal",
    "one_operation",
    "primitives_of",
]


@dataclasses.dataclass(frozen=True)
class Case:
    """A module and inputs.

    Attributes:
      name: names the test.
      text: StableHLO.
      inputs: one array for each argument.
      moving: the arguments to differentiate; none for a case without derivative.
      relowers: whether lowering the loaded program gives the same operations, attribute for attribute.
      primitive: a primitive that must be in the loaded Jaxpr, or None.
      expected: results, where XLA does not run the module.
    """

    name: str
    text: str
    inputs: Sequence[Any]
    moving: Sequence[int] = ()
    relowers: bool = True
    primitive: str | None = None
    expected: Sequence[Any] | None = None


def ids(case: Case) -> str:
    return case.name


def module(arguments: str, results: str, body: str, more: str = "") -> str:
    """Writes a module around `body`, whose arguments are `%a0`, `%a1`, ... and which ends in `return`."""
    named = ", ".join(f"%a{i}: {t}" for i, t in enumerate(_split(arguments)))
    return f"module @m {{\n  func.func public @main({named}) -> ({results}) {{\n{body}\n  }}\n{more}\n}}\n"


def one_operation(arguments: str, results: str, operation: str) -> str:
    """Writes a module of one operation, a name and attributes in braces, on `%a0`, `%a1`, ..."""
    types = _split(arguments)
    names = ", ".join(f"%a{i}" for i in range(len(types)))
    name, _, attributes = operation.partition(" ")
    count = len(_split(results.replace(", ", ";")))
    made = f"%0:{count}" if count > 1 else "%0"
    returned = ", ".join(f"%0#{i}" for i in range(count)) if count > 1 else "%0"
    body = f'    {made} = "{name}"({names}) {attributes} : ({", ".join(types)}) -> ({results})'
    return module(arguments, results, f"{body}\n    return {returned} : {results}")


_RNG = np.random.default_rng(0)


def normal(*shape: int, dtype: Any = np.float64) -> np.ndarray:
    """An array of normal numbers, complex ones where the dtype is."""
    values = _RNG.standard_normal(shape)
    if np.issubdtype(np.dtype(dtype), np.complexfloating):
        values = values + 1j * _RNG.standard_normal(shape)
    return values.astype(dtype)


def integers(*shape: int, dtype: Any = np.int32) -> np.ndarray:
    """An array of integers from 0 to 8."""
    return _RNG.integers(0, 9, shape).astype(dtype)


def _split(types: str) -> list[str]:
    return [t.strip() for t in types.split(";") if t.strip()]


def _bits(array: Any) -> np.ndarray:
    array = np.ascontiguousarray(array)
    return array.reshape(-1).view(np.uint8)


def assert_same_bits(actual: Sequence[Any], expected: Sequence[Any]) -> None:
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected, strict=True):
        a, e = np.asarray(a), np.asarray(e)
        assert (a.dtype, a.shape) == (e.dtype, e.shape)
        nan = (a != a) & (e != e)
        same = _bits(np.where(nan, np.zeros_like(a), a)) == _bits(np.where(nan, np.zeros_like(e), e))
        assert same.all(), (a, e)


def check_value(case: Case) -> None:
    """The loaded program gives the bits that XLA gives, by itself and under jit."""
    with jax.enable_x64(True):
        inputs = [np.asarray(x) for x in case.inputs]
        expected = case.expected if case.expected is not None else compile_with_xla(case.text)(inputs)
        program = unlower.load(case.text)
        if case.primitive:
            assert case.primitive in primitives_of(program.jaxpr), program.jaxpr
        assert_same_bits(program.flat(*inputs), expected)
        assert_same_bits(jax.jit(program.flat)(*inputs), expected)


def check_relowers(case: Case) -> None:
    """Lowering the loaded program gives the operations of the original, with the same attributes."""
    if not case.relowers:
        return
    with jax.enable_x64(True):
        program = unlower.load(case.text)
        again = jax.jit(program.flat).lower(*case.inputs).as_text()
        assert _operations(read(again)) == _operations(read(case.text)), again


_DEFAULTS = {
    "compare_type": "#stablehlo<comparison_type FLOAT>",
    "indices_are_sorted": "false",
    "unique_indices": "false",
    "is_stable": "false",
}


def _operations(module: Module) -> list[Any]:
    found = []
    for function in module.functions.values():
        for op in walk(function.body):
            if op.name in ("stablehlo.constant", "func.call"):
                continue
            attributes = {
                name: format_attribute(value) for name, value in op.attributes.items() if name != "compare_type"
            }
            attributes = {n: a for n, a in attributes.items() if _DEFAULTS.get(n) != a and not _is_plain(n, a)}
            attributes.pop("called_computations", None)
            found.append((op.name, sorted(attributes.items()), [str(t) for t in op.types]))
    return sorted(found, key=str)


def _is_plain(name: str, text: str) -> bool:
    """Whether an attribute spells a default: strides and dilations of one, no padding, no backend configuration."""
    if name in ("window_strides", "base_dilations", "window_dilations"):
        return set(text.partition(":")[2].strip(" >").split(", ")) == {"1"}
    if name == "padding":
        return text.startswith("dense<0>")
    return name == "backend_config" and text == '""'


def check_vmap(case: Case) -> None:
    """Under vmap each element of the batch has the bits it has alone, whichever arguments are batched."""
    with jax.enable_x64(True):
        program = unlower.load(case.text)
        compiled, count = jax.jit(program.flat), len(case.inputs)
        choices = {tuple(range(count)), *((i,) for i in range(count))} if count else set()
        for batched in choices:
            stacked = [
                np.stack([_variant(x, k) for k in range(3)], -1) if i in batched else x
                for i, x in enumerate(case.inputs)
            ]
            axes = [-1 if i in batched else None for i in range(count)]
            together = jax.jit(jax.vmap(program.flat, in_axes=axes))(*stacked)
            for k in range(3):
                alone = compiled(*[_variant(x, k) if i in batched else x for i, x in enumerate(case.inputs)])
                assert_same_bits([np.asarray(r)[k] for r in together], alone)


def check_vmap_to_rounding(case: Case) -> None:
    """As `check_vmap` but for the last bits: XLA chooses other kernels for larger products."""
    with jax.enable_x64(True):
        program = unlower.load(case.text)
        inputs = [np.asarray(x) for x in case.inputs]
        alone = [np.asarray(program.flat(*[np.roll(x, k) for x in inputs])[0]) for k in range(2)]
        stacked = [np.stack([np.roll(x, k) for k in range(2)], 1) for x in inputs]
        _assert_close(jax.jit(jax.vmap(program.flat, in_axes=1))(*stacked)[0], alone)
        for i in range(len(inputs)):
            mixed = [stacked[i] if i == k else x for k, x in enumerate(inputs)]
            axes = [1 if i == k else None for k in range(len(inputs))]
            _assert_close(jax.jit(jax.vmap(program.flat, in_axes=axes))(*mixed)[0][:1], alone[:1])


def _assert_close(batch: Any, expected: Sequence[np.ndarray]) -> None:
    wide: Any = np.complex128 if np.iscomplexobj(expected[0]) else np.float64
    close = {"bfloat16": 1e-2, "float64": 1e-12, "complex128": 1e-12}.get(expected[0].dtype.name, 1e-5)
    for actual, wanted in zip(np.asarray(batch), expected, strict=True):
        np.testing.assert_allclose(actual.astype(wide), wanted.astype(wide), rtol=close, atol=close)


def _variant(array: Any, k: int) -> np.ndarray:
    """Another input of the same kind: the elements rotated."""
    array = np.asarray(array)
    return np.roll(array.reshape(-1), k).reshape(array.shape)


def check_derivative(case: Case) -> None:
    """Forward and reverse mode agree with differences of the function, in a random direction."""
    if not case.moving:
        return
    with jax.enable_x64(True):
        program = unlower.load(case.text)
        rng = np.random.default_rng(7)
        base = [np.asarray(case.inputs[i]) for i in case.moving]
        # What does not move is an argument all the same: of constants XLA may compute something else.
        fixed = [np.asarray(x) for x in case.inputs]
        directions = [rng.standard_normal(x.shape).astype(x.dtype) for x in base]

        def function(fixed: list[Any], *moving: Any) -> list[Any]:
            full = list(fixed)
            for i, x in zip(case.moving, moving, strict=True):
                full[i] = x
            return [r for r in program.flat(*full) if jax.numpy.issubdtype(r.dtype, jax.numpy.inexact)]

        def forward(fixed: list[Any], x: list[Any], d: list[Any]) -> list[Any]:
            return jax.jvp(lambda *x: function(fixed, *x), x, d)[1]

        def backward(fixed: list[Any], x: list[Any], w: list[Any]) -> tuple[Any, ...]:
            return jax.vjp(lambda *x: function(fixed, *x), *x)[1](w)

        # Compiled as one, since op by op each derivative would compile dozens of programs.
        tangents = jax.jit(forward)(fixed, base, directions)
        step = 1e-6
        compiled = jax.jit(function)
        ahead = compiled(fixed, *[x + step * d for x, d in zip(base, directions, strict=True)])
        behind = compiled(fixed, *[x - step * d for x, d in zip(base, directions, strict=True)])
        for tangent, a, b in zip(tangents, ahead, behind, strict=True):
            np.testing.assert_allclose(tangent, (np.asarray(a) - np.asarray(b)) / (2 * step), rtol=1e-6, atol=1e-7)
        weights = [rng.standard_normal(r.shape).astype(r.dtype) for r in tangents]
        cotangents = jax.jit(backward)(fixed, base, weights)
        pushed = sum(np.vdot(w, t) for w, t in zip(weights, tangents, strict=True))
        pulled = sum(np.vdot(c, d) for c, d in zip(cotangents, directions, strict=True))
        np.testing.assert_allclose(pushed, pulled, rtol=1e-10, atol=1e-12)
        # Directions under vmap, and a derivative of the derivative, must trace.
        jax.jit(jax.vmap(lambda *d: forward(fixed, base, list(d)))).lower(*[d[None] for d in directions])
        second = lambda x, d: jax.jvp(lambda *x: backward(fixed, x, weights), x, d)
        jax.jit(second).lower(base, directions)


def primitives_of(jaxpr: Any) -> set[str]:
    """The names of the primitives in a Jaxpr and in those inside it."""
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    names = set()
    for equation in inner.eqns:
        names.add(equation.primitive.name)
        for value in equation.params.values():
            for part in value if isinstance(value, tuple | list) else (value,):
                if hasattr(part, "eqns") or hasattr(part, "jaxpr"):
                    names |= primitives_of(part)
    return names
