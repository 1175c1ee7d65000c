"""The walk over a Jaxpr: what no rule touches is copied, or bound again; the rest goes through the interpreter.

Where a Jaxpr is being traced, an untouched equation is appended to it as it is, with a twentieth of the work of tracing it
again, and its variables are those of the new Jaxpr too. Under any other trace (evaluation, `grad`, `vmap`) it is bound.
"""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from unlower._jax_compat_interpret import (
    EquationCopier,
    JaxprEqn,
    Literal,
    Var,
    bind_equation,
    can_copy_into,
    current_name_stack,
    current_trace,
    jaxpr_is_high,
    jaxpr_parts,
    new_var,
    user_context,
)
from unlower.interpret.values import all_plain

__all__ = ["walk"]


def walk(frame: Any, jaxpr: Any, values: Iterable[Any], *, owned: bool = False) -> list[Any]:
    """Interprets a Jaxpr in the current trace.

    Args:
      frame: the program it becomes part of.
      jaxpr: a Jaxpr; a closed one brings its constants.
      values: its inputs.
      owned: whether its equations are walked once in this trace, so that their variables may be used as they are.

    Returns:
      its results.
    """
    trace = current_trace()
    if can_copy_into(trace):
        return _Copying(frame, trace, jaxpr, list(values), owned).run()
    return _bind_all(frame, jaxpr, list(values))


def equation_context(equation: JaxprEqn) -> AbstractContextManager[None]:
    """Makes what a rule binds look as if it stood where the equation does: source line, name scope, mesh, configuration."""
    return _in_place_of(equation)


@contextmanager
def _in_place_of(equation: JaxprEqn) -> Any:
    source = equation.source_info
    stack = current_name_stack() + source.name_stack
    with user_context(source.traceback, name_stack=stack), equation.ctx.manager:
        yield


def _bind_all(frame: Any, jaxpr: Any, values: Sequence[Any]) -> list[Any]:
    parts = jaxpr_parts(jaxpr)
    env: dict[Any, Any] = dict(zip([*parts.constvars, *parts.invars], [*parts.consts, *values], strict=True))
    is_quiet = frame.interpreter.is_quiet
    last_use = _last_uses(parts)
    for index, equation in enumerate(parts.eqns):
        operands = [v.val if type(v) is Literal else env[v] for v in equation.invars]
        primitive, params = equation.primitive, equation.params
        with _in_place_of(equation):
            if is_quiet(primitive, params) and all_plain(operands) and _unchanged(operands, equation.invars):
                outs = bind_equation(primitive, operands, params)
                outs = outs if primitive.multiple_results else [outs]
            else:
                outs = _apply(frame, equation, operands)
        env.update(zip(equation.outvars, outs, strict=True))
        for v in last_use.get(index, ()):  # lets go of arrays that nothing reads any more
            env.pop(v, None)
    return [v.val if type(v) is Literal else env[v] for v in parts.outvars]


def _unchanged(operands: Sequence[Any], atoms: Sequence[Any]) -> bool:
    """Whether operands have the dtypes that the program declares, so that binding gives what it expects."""
    return all(
        type(atom) is Literal or getattr(operand, "dtype", None) == getattr(atom.aval, "dtype", None)
        for operand, atom in zip(operands, atoms, strict=True)
    )


def _last_uses(parts: Any) -> dict[int, list[Any]]:
    last = {v: index for index, equation in enumerate(parts.eqns) for v in equation.invars if type(v) is not Literal}
    for v in parts.outvars:
        if type(v) is not Literal:
            last.pop(v, None)
    uses: dict[int, list[Any]] = {}
    for v, index in last.items():
        uses.setdefault(index, []).append(v)
    return uses


def _apply(frame: Any, equation: Any, operands: Sequence[Any]) -> list[Any]:
    return frame.apply(
        equation.primitive,
        operands,
        equation.params,
        [v.aval for v in equation.invars],
        [v.aval for v in equation.outvars],
        equation.source_info,
    )


class _Copying:
    """A walk in which untouched equations are copied.

    A variable of the old Jaxpr stands for an atom of the new one (`atoms`; itself, if it is not there) or for a value that a
    rule has made, or that came in (`values`). Both may hold; then the value is what a rule gets to see.
    """

    __slots__ = ("atoms", "copier", "frame", "is_high", "owned", "parts", "values")

    def __init__(self, frame: Any, trace: Any, jaxpr: Any, values: list[Any], owned: bool):
        self.frame, self.owned, self.is_high = frame, owned, jaxpr_is_high(jaxpr)
        self.parts = jaxpr_parts(jaxpr)
        self.copier = EquationCopier(trace)
        inputs = [*self.parts.constvars, *self.parts.invars]
        self.values: dict[Any, Any] = dict(zip(inputs, [*self.parts.consts, *values], strict=True))
        self.atoms: dict[Any, Any] = {}
        # In the order of the inputs, so that constants keep theirs.
        for var, value in zip(self.parts.constvars, self.parts.consts, strict=True):
            self.atoms[var] = self.copier.atom(value, var.aval) or value

    def run(self) -> list[Any]:
        is_quiet, copy = self.frame.interpreter.is_quiet, self.copy
        for equation in self.parts.eqns:
            if is_quiet(equation.primitive, equation.params) and copy(equation):
                continue
            operands = [self.read(v) for v in equation.invars]
            with _in_place_of(equation):
                outs = _apply(self.frame, equation, operands)
            self.values.update(zip(equation.outvars, outs, strict=True))
        if self.is_high:
            self.copier.mark_high()
        return [self.read(v) for v in self.parts.outvars]

    def copy(self, equation: Any) -> bool:
        """Copies an equation, unless the type of an operand has changed."""
        atoms, values = self.atoms, self.values
        invars: list[Any] | None = None
        for position, var in enumerate(equation.invars):
            if type(var) is Literal:
                continue
            atom = atoms.get(var)
            if atom is None:
                if var not in values:
                    continue  # defined by a copied equation, under its own name
                atom = self.copier.atom(values[var], var.aval)
                if atom is None:
                    return False
                atoms[var] = atom
            elif type(atom) is not Var and type(atom) is not Literal:
                return False
            if invars is None:
                invars = list(equation.invars)
            invars[position] = atom
        outvars = None
        if not self.owned:
            outvars = [new_var(v.aval) for v in equation.outvars]
            atoms.update(zip(equation.outvars, outvars, strict=True))
        self.copier.copy(equation, invars, outvars)
        return True

    def read(self, atom: Any) -> Any:
        """The value of an operand, for a rule."""
        if type(atom) is Literal:
            return self.copier.tracer(atom)
        if atom in self.values:
            return self.values[atom]
        return self.copier.tracer(self.atoms.get(atom, atom))
