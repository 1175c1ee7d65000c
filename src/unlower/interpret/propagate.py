"""Values pushed through a program in both directions, until nothing moves: the engine under inverse functions.

A program starts with some of its inputs and outputs known. Each equation whose operands are known gives its results; a rule may
give operands for results. What a `slice` knows of its operand is kept piece by piece, until the pieces make it whole.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from unlower._jax_compat_interpret import Literal, bind_equation, jaxpr_parts, scan_groups, source_summary
from unlower.errors import UnlowerError
from unlower.interpret.higher_order.registry import hidden_programs

__all__ = ["Place", "Propagate", "PropagateError"]

Values = Sequence[Any]
UNKNOWN = None


class PropagateError(UnlowerError, ValueError):
    """What was asked for cannot be worked out: no rule leads from what is known to it."""


class Place:
    """The equation that a rule is called for.

    Attributes:
      equation: with `primitive`, `params`, and the avals of `invars` and `outvars`.
    """

    def __init__(self, run: "_Run", equation: Any):
        self._run, self.equation = run, equation

    @property
    def params(self) -> Mapping[str, Any]:
        """The equation's parameters."""
        return self.equation.params

    def aval(self, operand: int) -> Any:
        """The type of an operand."""
        return self.equation.invars[operand].aval

    def bind(self, *values: Any, **overrides: Any) -> Any:
        """Binds the equation's primitive to operands."""
        return bind_equation(self.equation.primitive, values, {**self.params, **overrides})

    def add(self, value: Any) -> None:
        """Adds to the total that goes with the solution, such as the logarithm of a determinant."""
        self._run.total = value if self._run.total is None else self._run.total + value


Rule = Callable[[Place, Values, Values], Values | None]


class Propagate:
    """Rules that lead from results to operands.

    Args:
      backward: name of a primitive -> rule. It is called with a `Place`, the operands and the results, None for what is not
        known yet, when all results and not all operands are known, and returns the operands, None for what it cannot tell; or
        None if it can tell nothing.
      parts: name of a primitive that takes a part of its first operand -> function of a `Place` and the operands that returns
        the index of the part, a tuple of slices, or None if it is not known.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> rules = {"exp": lambda place, operands, results: [jnp.log(results[0])]}
      >>> jaxpr = jax.make_jaxpr(jax.jit(lambda x: jnp.exp(jnp.exp(x))))(1.0)
      >>> (x,), _, _ = Propagate(rules).solve(jaxpr, [None], [jnp.exp(jnp.exp(0.5))])
      >>> round(float(x), 5)
      0.5
    """

    def __init__(self, backward: Mapping[str, Rule], parts: Mapping[str, Callable[[Place, Values], Any]] | None = None):
        self.backward, self.parts = dict(backward), dict(parts or {})

    def solve(self, jaxpr: Any, inputs: Values, outputs: Values) -> tuple[list[Any], list[Any], Any]:
        """Works out what it can.

        Args:
          jaxpr: a closed Jaxpr.
          inputs: its inputs, None for what is not known.
          outputs: likewise.

        Returns:
          inputs and outputs, with None where nothing leads, and the total of what rules added (None if nothing).
        """
        run = _Run(self, jaxpr)
        run.start(inputs, outputs)
        run.settle()
        return (*run.ends(), run.total)

    def obstacle(self, jaxpr: Any, inputs: Values, outputs: Values) -> str:
        """The equation at which the way back ends, for messages."""
        run = _Run(self, jaxpr)
        run.start(inputs, outputs)
        run.settle()
        for equation in reversed(run.parts.eqns):
            if equation.primitive.name in _CALLS and run.knows(equation.outvars) and not run.knows(equation.invars):
                (inner,) = hidden_programs(equation.primitive, equation.params)
                return self.obstacle(inner, list(map(run.read, equation.invars)), list(map(run.read, equation.outvars)))
            if run.knows(equation.outvars) and not run.knows(equation.invars):
                source = source_summary(equation.source_info)
                return f"`{equation.primitive.name}`" + (f", from {source}" if source else "")
        return "a result that does not depend on it one to one"


class _Run:
    def __init__(self, engine: Propagate, jaxpr: Any):
        self.engine, self.parts = engine, jaxpr_parts(jaxpr)
        self.env: dict[Any, Any] = dict(zip(self.parts.constvars, self.parts.consts, strict=False))
        self.pieces: dict[Any, tuple[np.ndarray, Any]] = {}
        self.done: set[int] = set()
        self.total: Any = None

    def start(self, inputs: Values, outputs: Values) -> None:
        for var, value in (
            *zip(self.parts.invars, inputs, strict=True),
            *zip(self.parts.outvars, outputs, strict=True),
        ):
            self.write(var, value)

    def ends(self) -> tuple[list[Any], list[Any]]:
        return [self.read(v) for v in self.parts.invars], [self.read(v) for v in self.parts.outvars]

    def read(self, atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else self.env.get(atom)

    def write(self, atom: Any, value: Any) -> bool:
        if value is UNKNOWN or isinstance(atom, Literal) or atom in self.env:
            return False
        self.env[atom] = value
        return True

    def knows(self, atoms: Sequence[Any]) -> bool:
        return all(isinstance(a, Literal) or a in self.env for a in atoms)

    def part(self, number: int, equation: Any, index: Any) -> None:
        """An equation that takes a part of a value that is not known: the part may be, or makes more of the value known."""
        (out,), whole = equation.outvars, equation.invars[0]
        if out in self.env:
            self.learn(whole, index, self.env[out])
            self.done.add(number)
        elif whole in self.pieces and self.pieces[whole][0][index].all():
            self.write(out, self.pieces[whole][1][index])
            self.done.add(number)

    def learn(self, atom: Any, index: Any, value: Any) -> None:
        aval = atom.aval
        mask, known = self.pieces.get(atom, (np.zeros(aval.shape, bool), jnp.zeros(aval.shape, aval.dtype)))
        mask = mask.copy()
        mask[index] = True
        known = known.at[index].set(value)
        self.pieces[atom] = (mask, known)
        if mask.all():
            self.env[atom] = known

    def settle(self) -> None:
        """Forwards and backwards, until nothing moves."""
        moved = True
        while moved:
            before = len(self.env), len(self.done)
            for number, equation in (*enumerate(self.parts.eqns), *reversed([*enumerate(self.parts.eqns)])):
                if number not in self.done:
                    self.visit(number, equation)
            moved = (len(self.env), len(self.done)) != before

    def visit(self, number: int, equation: Any) -> None:
        ins, outs = equation.invars, equation.outvars
        known_in, known_out = self.knows(ins), self.knows(outs)
        if known_in and known_out:
            self.done.add(number)
        elif known_in:
            results = bind_equation(equation.primitive, [self.read(v) for v in ins], equation.params)
            results = results if equation.primitive.multiple_results else [results]
            for var, value in zip(outs, results, strict=True):
                self.write(var, value)
            self.done.add(number)
        else:
            self.backward(number, equation)

    def backward(self, number: int, equation: Any) -> None:
        ins, outs = [self.read(v) for v in equation.invars], [self.read(v) for v in equation.outvars]
        name = equation.primitive.name
        place = Place(self, equation)
        if name in self.engine.parts:
            index = self.engine.parts[name](place, ins)
            if index is not None:
                self.part(number, equation, index)
            return
        if name in _HIGHER:
            found = _HIGHER[name](self.engine, place, ins, outs)
        elif name in _CALLS:
            (inner,) = hidden_programs(equation.primitive, equation.params)
            found = _call(self.engine, place, inner, ins, outs)
        elif name in self.engine.backward and self.knows(equation.outvars):
            operands = self.engine.backward[name](place, ins, outs)
            found = None if operands is None else (operands, outs)
        else:
            found = None
        if found is None:
            return
        for var, value in (*zip(equation.invars, found[0], strict=True), *zip(equation.outvars, found[1], strict=True)):
            self.write(var, value)
        if self.knows(equation.invars) and self.knows(equation.outvars):
            self.done.add(number)


_CALLS = frozenset(
    ["jit", "pjit", "closed_call", "core_call", "core_closed_call", "remat2", "checkpoint", "remat", "custom_jvp_call",
     "custom_vjp_call"]
)  # fmt: skip


def _call(engine: Propagate, place: Place, inner: Any, ins: Values, outs: Values) -> tuple[Values, Values] | None:
    solved_in, solved_out, total = engine.solve(inner, ins, outs)
    if _complete(solved_in, solved_out) and total is not None:
        place.add(total)
    elif total is not None:
        return None  # the total goes with a solution as a whole
    return solved_in, solved_out


def _complete(*groups: Values) -> bool:
    return all(value is not UNKNOWN for group in groups for value in group)


def _scan(engine: Propagate, place: Place, ins: Values, outs: Values) -> tuple[Values, Values] | None:
    """Runs a loop from its end to its start: each iteration gives, of the carry after it, the carry before.

    Where the start is known and the end is not, it runs forwards, and each iteration gives its inputs.
    """
    params = dict(place.params)
    body, length = params["jaxpr"], params["length"]
    n_consts, n_carry = scan_groups(params)
    consts, carry, xs = ins[:n_consts], ins[n_consts : n_consts + n_carry], ins[n_consts + n_carry :]
    after, ys = outs[:n_carry], outs[n_carry:]
    if not _complete(consts):
        return None
    forwards = _complete(carry)
    if not forwards and not _complete(after):
        return None
    known_xs, known_ys = [x for x in xs if x is not UNKNOWN], [y for y in ys if y is not UNKNOWN]
    found: list[Any] = []

    def step(state: Any, rows: Any) -> Any:
        at, total = state
        row_x, row_y = iter(rows[0]), iter(rows[1])
        free = [None] * n_carry
        inner_in = [*consts, *(at if forwards else free), *(None if x is UNKNOWN else next(row_x) for x in xs)]
        inner_out = [*(free if forwards else at), *(None if y is UNKNOWN else next(row_y) for y in ys)]
        solved_in, solved_out, added = engine.solve(body, inner_in, inner_out)
        if not _complete(solved_in, solved_out):
            raise _Stuck
        found[:] = [added is not None]
        total = total if added is None else total + added
        reached = solved_out[:n_carry] if forwards else solved_in[n_consts : n_consts + n_carry]
        return (reached, total), (solved_in[n_consts + n_carry :], solved_out[n_carry:])

    start, reverse = (carry, params["reverse"]) if forwards else (after, not params["reverse"])
    try:
        (reached, total), (all_xs, all_ys) = lax.scan(
            step, (list(start), jnp.zeros(())), (known_xs, known_ys), length=length, reverse=reverse
        )
    except _Stuck:
        return None
    if found and found[0]:
        place.add(total)
    before, behind = (carry, reached) if forwards else (reached, after)
    return [*consts, *before, *all_xs], [*behind, *all_ys]


def _cond(engine: Propagate, place: Place, ins: Values, outs: Values) -> tuple[Values, Values] | None:
    """Goes back through the branch that was taken: the choice must be known, and each branch must lead back."""
    index, *operands = ins
    if index is UNKNOWN or not _complete(outs):
        return None
    known = [x for x in operands if x is not UNKNOWN]
    adds: list[bool] = []

    def through(branch: Any) -> Callable[..., Any]:
        def run(known: Any, outs: Any) -> Any:
            rest = iter(known)
            given = [None if x is UNKNOWN else next(rest) for x in operands]
            solved_in, solved_out, total = engine.solve(branch, given, outs)
            if not _complete(solved_in, solved_out):
                raise _Stuck
            adds.append(total is not None)
            return solved_in, jnp.zeros(()) if total is None else jnp.asarray(total, jnp.float32)

        return run

    try:
        solved, total = lax.switch(index, [through(b) for b in place.params["branches"]], known, list(outs))
    except _Stuck:
        return None
    if any(adds):
        place.add(total)
    return [index, *solved], outs


class _Stuck(Exception):  # noqa: N818 - never leaves this file
    pass


_HIGHER = {"scan": _scan, "cond": _cond}
