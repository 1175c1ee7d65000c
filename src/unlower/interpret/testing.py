"""The conformance kit: laws that a transform of JAX programs should obey, over programs that hold every kind of sub-program.

For a transform that should change nothing, `check_identity`; for any interpreter, `check_consistency`: that both styles
agree, and that it commutes with `jit` and `vmap`. Both return a `Report`, and `report.check()` raises for a test.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from unlower._jax_compat import eval_closed_jaxpr
from unlower.interpret.structure import diff
from unlower.interpret.testing_surroundings import PROGRAMS, Program

__all__ = ["MODES", "PROGRAMS", "Outcome", "Program", "Report", "check_consistency", "check_identity"]

MODES = ("eager", "structure", "jit", "grad(T)", "T(grad)", "jit(grad(T))", "vmap(T)", "T(vmap)")
"""The ways in which `check_identity` runs a transform T."""

SAME, CLOSE, SKIPPED = "same", "close", "skipped"


class Outcome(NamedTuple):
    """One program in one mode.

    Attributes:
      program: its name.
      mode: one of `MODES`, or the name of a law.
      verdict: `"same"` bits, `"close"` where the caller allows a tolerance, `"skipped"` where the program itself cannot be run
        that way, or what is wrong.
    """

    program: str
    mode: str
    verdict: str

    @property
    def failed(self) -> bool:
        """Whether the law is broken."""
        return self.verdict not in (SAME, CLOSE, SKIPPED)


class Report(list[Outcome]):
    """The outcomes, which print as counts and failures."""

    @property
    def failures(self) -> list[Outcome]:
        """What went wrong."""
        return [outcome for outcome in self if outcome.failed]

    def check(self) -> None:
        """Raises AssertionError if anything went wrong."""
        if self.failures:
            raise AssertionError(str(self))

    def __str__(self) -> str:
        ran = [o for o in self if o.verdict != SKIPPED]
        lines = [f"{len(ran) - len(self.failures)} of {len(ran)} hold ({len(self) - len(ran)} cannot be run at all)"]
        lines += [f"  {o.program}, {o.mode}: {o.verdict}" for o in self.failures]
        return "\n".join(lines)


def check_identity(
    transform: Callable[[Callable[..., Any]], Callable[..., Any]],
    *,
    programs: Iterable[str] | None = None,
    modes: Sequence[str] = MODES,
    tolerance: float = 0.0,
) -> Report:
    """Checks that a transform leaves the meaning of programs as it is, alone and together with `jit`, `grad` and `vmap`.

    In a mode that differentiates, a transform may trace the program before: then sums of cotangents have the order that the
    traced program gives them, and what JAX cannot differentiate once it is traced is skipped.

    Args:
      transform: takes a function, returns a function.
      programs: names out of `PROGRAMS`; all of them by default.
      modes: a selection of `MODES`; leave out `"structure"` for a transform that changes how results are computed.
      tolerance: by how much numbers may differ, relatively and absolutely; 0 asks for the same bits.

    Returns:
      a `Report` of one outcome per program and mode.

    Example:
      >>> from unlower.interpret import Interpreter
      >>> check_identity(Interpreter().transform, programs=["scan", "cond"]).check()
    """
    report = Report()
    for name in PROGRAMS if programs is None else programs:
        program = PROGRAMS[name]()
        for mode in modes:
            report.append(Outcome(name, mode, _identity_cell(transform, program, mode, tolerance)))
    return report


def _identity_cell(transform: Any, program: Program, mode: str, tolerance: float) -> str:
    runs = _modes(program)[mode]
    if runs is None:
        return SKIPPED
    wanted = [_attempt(lambda f=f: runs(lambda g: g)(f)) for f in (program.function, _traced(program.function))]
    if isinstance(wanted[0], Exception):
        return SKIPPED
    found = _attempt(lambda: runs(transform)(program.function))
    if isinstance(found, Exception):
        if isinstance(wanted[1], Exception) and type(found) is type(wanted[1]):
            return SKIPPED
        return f"{type(found).__name__}: {str(found).splitlines()[0] if str(found) else ''}"
    if mode == "structure":
        return diff(found, wanted[0]) or SAME
    verdicts = [_compare(found, w, tolerance) for w in wanted if not isinstance(w, Exception)]
    return next((v for v in verdicts if v in (SAME, CLOSE)), verdicts[0])


def _traced(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as JAX itself runs it once it is traced."""

    def run(*args: Any, **kwargs: Any) -> Any:
        closed, shape = jax.make_jaxpr(lambda a, k: function(*a, **k), return_shape=True)(args, kwargs)
        leaves = eval_closed_jaxpr(closed, *jax.tree.leaves((args, kwargs)))
        return jax.tree.unflatten(jax.tree.structure(shape), leaves)

    return run


def _modes(program: Program) -> dict[str, Any]:
    """Mode -> transform -> function -> what to compare; None if the program has no argument to differentiate or batch."""
    args, kwargs = program.args, program.kwargs
    floats = [i for i, arg in enumerate(args) if jax.tree.leaves(arg) and all(map(_is_float, jax.tree.leaves(arg)))]

    def total(f: Callable[..., Any]) -> Callable[..., Any]:
        def loss(*args: Any, **kwargs: Any) -> Any:
            leaves = [leaf for leaf in jax.tree.leaves(f(*args, **kwargs)) if _is_float(leaf)]
            return sum(map(jnp.sum, leaves), jnp.float32(0))

        return loss

    def grad(f: Callable[..., Any]) -> Callable[..., Any]:
        return jax.grad(f, argnums=floats)

    def vmap(f: Callable[..., Any]) -> Callable[..., Any]:
        axes = tuple(0 if i in floats else None for i in range(len(args)))
        return jax.vmap(lambda *a: f(*a, **kwargs), in_axes=axes)

    batch = [jax.tree.map(lambda x: jnp.stack([x, x]), a) if i in floats else a for i, a in enumerate(args)]
    modes: dict[str, Any] = {
        "eager": lambda t: lambda f: t(f)(*args, **kwargs),
        "structure": lambda t: lambda f: jax.make_jaxpr(t(f))(*args, **kwargs),
        "jit": lambda t: lambda f: jax.jit(t(f))(*args, **kwargs),
        "grad(T)": lambda t: lambda f: grad(total(t(f)))(*args, **kwargs),
        "T(grad)": lambda t: lambda f: t(grad(total(f)))(*args, **kwargs),
        "jit(grad(T))": lambda t: lambda f: jax.jit(grad(total(t(f))))(*args, **kwargs),
        "vmap(T)": lambda t: lambda f: vmap(t(f))(*batch),
        "T(vmap)": lambda t: lambda f: t(vmap(f))(*batch),
    }
    return {mode: run if floats or mode in MODES[:3] else None for mode, run in modes.items()}


def _is_float(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating)


def _attempt(run: Callable[[], Any]) -> Any:
    try:
        return run()
    except Exception as error:  # noqa: BLE001 - whatever a program raises is what the transform is held against
        return error


def _compare(found: Any, wanted: Any, tolerance: float) -> str:
    if jax.tree.structure(found) != jax.tree.structure(wanted):
        return f"{jax.tree.structure(found)} where {jax.tree.structure(wanted)} belongs"
    same = True
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        x, y = _numbers(x), _numbers(y)
        if x.dtype != y.dtype or x.shape != y.shape:
            return f"{x.dtype}{list(x.shape)} where {y.dtype}{list(y.shape)} belongs"
        if x.tobytes() != y.tobytes():
            same = False
            exact = not np.issubdtype(x.dtype, np.inexact)
            if exact or not np.allclose(x, y, rtol=tolerance, atol=tolerance, equal_nan=True):
                return f"values differ by up to {np.max(np.abs(np.subtract(x, y, dtype=np.float64)))}"
    return SAME if same else CLOSE


def _numbers(x: Any) -> np.ndarray:
    if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    return np.asarray(jnp.asarray(x))


def check_consistency(
    interpreter: Any, *, programs: Iterable[str] | None = None, tolerance: float = 1e-6, log: bool = False
) -> Report:
    """Checks an interpreter against itself, whatever it means: its styles agree, and it commutes with `jit` and `vmap`.

    Args:
      interpreter: an `unlower.interpret.Interpreter`.
      programs: names out of `PROGRAMS`; all of them by default.
      tolerance: by how much numbers may differ, relatively and absolutely: compilers fuse differently.
      log: also compare what rules emit.

    Returns:
      a `Report`. A program on which both styles raise the same error is skipped.

    Example:
      >>> import jax
      >>> from unlower.interpret import Interpreter
      >>> swap = Interpreter({"sin": lambda ctx, x, **params: jax.lax.cos(x)})
      >>> check_consistency(swap, programs=["scan", "fori_loop"]).check()
    """
    report = Report()
    for name in PROGRAMS if programs is None else programs:
        program = PROGRAMS[name]()

        def transform(f: Any, style: str = "initial") -> Any:
            return interpreter.transform(f, style=style, with_log=log)

        modes = _modes(program)
        laws = {
            "final = initial": (modes["eager"](lambda f: transform(f, "final")), modes["eager"](transform)),
            "jit(T) = T": (modes["jit"](transform), modes["eager"](transform)),
            "T(jit) = T": (modes["eager"](lambda f: transform(jax.jit(f))), modes["eager"](transform)),
        }
        if modes["vmap(T)"] is not None:
            laws["vmap(T) = T(vmap)"] = (modes["vmap(T)"](transform), modes["T(vmap)"](transform))
        for law, (left, right) in laws.items():
            found, wanted = (_attempt(functools.partial(side, program.function)) for side in (left, right))
            if isinstance(wanted, Exception):
                verdict = SKIPPED if type(found) is type(wanted) else f"{wanted!r} on one side only"
            elif isinstance(found, Exception):
                verdict = f"{type(found).__name__}: {found}"
            else:
                verdict = _compare(found, wanted, tolerance)
            report.append(Outcome(name, law, verdict))
    return report
