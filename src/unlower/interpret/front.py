"""The two ways to apply an interpreter to a Python function, and the one to apply it to a Jaxpr."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from unlower._jax_compat_interpret import close_jaxpr, debug_info, trace_to_jaxpr, unnamed
from unlower.errors import RuleError
from unlower.interpret.context import Frame
from unlower.interpret.staging import stage
from unlower.interpret.trace import run_final
from unlower.interpret.values import Box, Type, aval_of, is_box, plain_type, type_of
from unlower.interpret.walker import walk

__all__ = ["interpret_jaxpr", "transform"]

STYLES = ("initial", "final")
_NUMBERS = (bool, int, float, complex, np.generic, np.ndarray)


def transform(
    interpreter: Any,
    function: Callable[..., Any],
    style: str,
    static_argnums: int | Sequence[int],
    static_argnames: str | Sequence[str],
    with_log: bool,
) -> Callable[..., Any]:
    """Applies an interpreter to a function; see `Interpreter.transform`."""
    if style not in STYLES:
        raise RuleError(f"style={style!r}", mend="choose 'initial' or 'final'")
    if not callable(function):
        raise RuleError(f"transform of {type(function).__name__}", mend="pass a function; `jaxpr` takes closed Jaxprs")
    numbers = (static_argnums,) if isinstance(static_argnums, int) else tuple(static_argnums)
    names = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames)
    numbers, names = _resolve_static(function, numbers, names)
    run = _run_initial if style == "initial" else _run_final

    @functools.wraps(function, assigned=_present(function), updated=())
    def transformed(*args: Any, **kwargs: Any) -> Any:
        call = _Call(function, args, kwargs, numbers, names)
        frame = Frame(interpreter)
        out = run(frame, call)
        return (out, frame.emissions.log()) if with_log else out

    return transformed


def _present(function: Any) -> tuple[str, ...]:
    """What `functools.wraps` may copy; a jitted function or a `partial` lacks some."""
    return tuple(name for name in functools.WRAPPER_ASSIGNMENTS if hasattr(function, name))


def _resolve_static(
    function: Callable[..., Any], numbers: tuple[int, ...], names: tuple[str, ...]
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Adds the names of static positions, and the positions of static names."""
    if not numbers and not names:
        return numbers, names
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return numbers, names
    positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    found = [positional[n] for n in numbers if -len(positional) <= n < len(positional)]
    places = [positional.index(name) for name in names if name in positional]
    return (*numbers, *places), (*names, *found)


class _Call:
    """A call of a function with pytrees, seen as a function of flat values."""

    def __init__(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        numbers: tuple[int, ...],
        names: tuple[str, ...],
    ):
        self.function, self.args, self.kwargs = function, args, kwargs
        self._static = {n % len(args) for n in numbers if args and -len(args) <= n < len(args)}
        self._fixed = {k: v for k, v in kwargs.items() if k in names}
        dynamic = [a for i, a in enumerate(args) if i not in self._static]
        named = {k: v for k, v in kwargs.items() if k not in self._fixed}
        leaves, self._tree = jax.tree.flatten((dynamic, named), is_leaf=is_box)
        self.values = [self._checked(leaf, i) for i, leaf in enumerate(leaves)]

    def _checked(self, leaf: Any, position: int) -> Any:
        if is_box(leaf) or isinstance(leaf, jax.Array):
            return leaf
        if isinstance(leaf, _NUMBERS):
            return jnp.asarray(leaf)
        try:
            aval_of(leaf)
        except TypeError:
            path, _ = jax.tree_util.tree_flatten_with_path(jax.tree.unflatten(self._tree, range(self._tree.num_leaves)))
            place = jax.tree_util.keystr(path[position][0])
            raise RuleError(
                f"argument {place} of {getattr(self.function, '__name__', 'the function')} is {type(leaf).__name__}, no array",
                mend="name it in static_argnums or static_argnames",
            ) from None
        return leaf

    def __call__(self, *values: Any) -> Any:
        dynamic, named = jax.tree.unflatten(self._tree, values)
        rest = iter(dynamic)
        args = [a if i in self._static else next(rest) for i, a in enumerate(self.args)]
        return self.function(*args, **named, **self._fixed)

    @property
    def debug_info(self) -> Any:
        """The names of the arguments, for messages about tracers."""
        return unnamed(debug_info("unlower.interpret", self.function, self.args, self.kwargs, tuple(self._static)))


def _run_initial(frame: Frame, call: _Call) -> Any:
    store: list[Any] = []

    def flat(*values: Any) -> list[Any]:
        leaves, tree = jax.tree.flatten(call(*values))
        store.append(tree)
        return leaves

    jaxpr, consts = trace_to_jaxpr(flat, [aval_of(value) for value in call.values], call.debug_info)
    program = frame.interpreter.prepare(close_jaxpr(jaxpr, consts))
    outs = walk(frame, program, call.values, owned=True)
    return jax.tree.unflatten(store[0], list(map(_finished, outs)))


def _finished(out: Any) -> Any:
    """A result that the program left as a literal, or that is a Python scalar, becomes an array."""
    return (
        jnp.asarray(out)
        if isinstance(out, _NUMBERS) or (hasattr(out, "dtype") and not isinstance(out, (jax.Array, Box)))
        else out
    )


def _run_final(frame: Frame, call: _Call) -> Any:
    return jax.tree.map(_finished, run_final(frame, call, call.values), is_leaf=is_box)


def interpret_jaxpr(interpreter: Any, closed: Any, types: Sequence[Any]) -> Any:
    """Applies an interpreter to a closed Jaxpr; see `Interpreter.jaxpr`."""
    closed = interpreter.prepare(closed)
    program = [plain_type(v.aval) for v in closed.invars]
    if types and len(types) != len(program):
        raise RuleError(f"{len(types)} types for {len(program)} inputs", mend="pass one for each, or none at all")
    given = [t if isinstance(t, Type) else type_of(t, p.avals[0]) for t, p in zip(types, program, strict=bool(types))]
    return stage(Frame(interpreter), closed, given or program, None, ()).jaxpr
