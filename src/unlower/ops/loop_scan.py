"""A counted loop as the scan that it was: constants, carry, scanned inputs and stacked outputs.

A loop keeps everything in its carry. For a derivative that costs: an array that is read a row at a time would be carried, and
saved, whole. So what the body does with its slots is looked at, once its calls are seen through:

- a slot that comes back unchanged is a constant; read by `dynamic_slice` at a row for each iteration, it is scanned;
- a slot that only takes a row for each iteration, by `dynamic_update_slice`, is stacked;
- a counter is known; if the body computes with it, its values are scanned;
- the rest is carried.

Rows are not matched but evaluated: every integer that follows from the counters is a table over all iterations, in its own
dtype. The tables of the counters themselves are guessed, and proved by induction; which rows are read and written is then seen.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax import Array, lax

from unlower._jax_compat import (
    JaxprParts,
    Var,
    closed_jaxpr,
    eval_closed_jaxpr,
    jit_p,
    open_closed_jaxpr,
    shaped_array,
)
from unlower.ops.loop_rows import as_slices
from unlower.ops.loop_tables import NUMPY, Table
from unlower.ops.restore import restore

__all__ = ["run_as_scan"]


def run_as_scan(
    body: Any, trip_count: int, starts: Mapping[int, Any], captures: Sequence[Any], operands: Sequence[Any]
) -> tuple[Any, ...]:
    """Runs a loop's body `trip_count` times, as a scan.

    Args:
      body: a closed Jaxpr without effects that takes the captures, then the slots, and returns the slots.
      trip_count: how often.
      starts: the first value of each slot that is known before the loop runs.
      captures: what the body reads and does not return.
      operands: the slots at first.

    Returns:
      the slots at last.
    """
    if trip_count == 0:
        return tuple(operands)
    return _Plan(restore(body), trip_count, starts, len(captures)).run(captures, operands)


class _Rows(NamedTuple):
    """One row for each iteration: `size` places along `axis`, from the first to the last, or the other way."""

    axis: int
    size: int
    backwards: bool


class _Read(NamedTuple):
    source: int
    rows: _Rows
    whole: Any
    squeezed: Any


class _Write(NamedTuple):
    rows: _Rows
    update: Any
    is_squeezed: bool


class _Plan:
    """What becomes of each slot; inputs are numbered, captures first."""

    def __init__(self, body: Any, trip_count: int, starts: Mapping[int, Any], captures: int):
        parts = open_closed_jaxpr(body)
        self._count, self._captures = trip_count, captures
        self._consts: dict[Any, Any] = {}
        self._inputs: list[Any] = [Var(v.aval) for v in parts.invars]
        self._eqns: list[Any] = []
        self._results = self._flatten(parts, self._inputs)
        self._slots: list[Any] = self._inputs[captures:]
        self._makers = {v: e for e in self._eqns for v in e.outvars}
        self._tables: dict[Any, Table | None] = {}
        self._known = self._prove(starts)
        self._canonicalize()
        self._uses: dict[Any, list[Any]] = {}
        for equation in self._eqns:
            for atom in equation.invars:
                if type(atom) is Var:
                    self._uses.setdefault(atom, []).append(equation)
        self._unchanged = {i for i, v in enumerate(self._slots) if self._results[i] is v and i not in self._known}
        self._reads: dict[int, _Read] = {}
        self._writes = {i: w for i in range(len(self._slots)) if (w := self._write(i)) is not None}
        sources = [*range(captures), *(captures + i for i in (*self._unchanged, *self._writes))]
        for source in sources:
            for equation in self._uses.get(self._inputs[source], ()):
                rows = self._rows_read(equation, self._inputs[source])
                if rows is not None and id(equation) not in self._reads:
                    self._reads[id(equation)] = self._read(source, rows, equation)
        self._carried = [
            i
            for i in range(len(self._slots))
            if i not in self._known and i not in self._unchanged and i not in self._writes
        ]

    def _flatten(self, parts: JaxprParts, inputs: Sequence[Any]) -> list[Any]:
        """Adds equations, calls that deal with rows or counters seen through; returns the results."""
        names: dict[Any, Any] = dict(zip(parts.invars, inputs, strict=True))
        for variable, value in zip(parts.constvars, parts.consts, strict=True):
            names[variable] = constant = Var(variable.aval)
            self._consts[constant] = value
        for equation in parts.eqns:
            atoms = [names[a] if type(a) is Var else a for a in equation.invars]
            if equation.primitive is jit_p and _deals_with_rows(equation.params["jaxpr"]):
                results = self._flatten(open_closed_jaxpr(equation.params["jaxpr"]), atoms)
            else:
                results = [Var(v.aval) for v in equation.outvars]
                self._eqns.append(equation.replace(invars=atoms, outvars=results))
            names.update(zip(equation.outvars, results, strict=True))
        return [names[a] if type(a) is Var else a for a in parts.outvars]

    # --- tables

    def _prove(self, starts: Mapping[int, Any]) -> dict[int, Table]:
        """The tables of the slots that are known, with the value after the last iteration at their end.

        What a slot becomes must follow from known slots. Their steps are taken for even, which induction proves or not; where
        it does not, the loop is run on them.
        """
        first = {i: np.asarray(v, self._slots[i].aval.dtype).reshape(1) for i, v in starts.items()}
        while lost := first.keys() - (second := self._step(first)).keys():
            for i in lost:
                del first[i]
        tables = {i: self._even(begin, second[i]) for i, begin in first.items()}
        after = self._step({i: table[:-1] for i, table in tables.items()})
        if all(np.array_equal(np.broadcast_to(after[i], self._count), table[1:]) for i, table in tables.items()):
            return tables
        history = [first]
        for _ in range(self._count):
            history.append(self._step(history[-1]))
        tables = {i: np.concatenate([state[i] for state in history]) for i in first}
        self._step({i: table[:-1] for i, table in tables.items()})
        return tables

    def _even(self, first: Table, second: Table) -> Table:
        steps = np.arange(self._count + 1).astype(first.dtype)
        return np.full_like(steps, first[0]) if first.dtype == bool else steps * (second - first) + first

    def _step(self, state: Mapping[int, Table]) -> dict[int, Table]:
        """What slots become whose values are `state`, as far as it follows from them; `_table` knows these values then."""
        self._tables = {self._slots[i]: table for i, table in state.items()}
        found = {i: self._table(self._results[i]) for i in state}
        return {i: table.reshape(-1) for i, table in found.items() if table is not None}

    def _table(self, atom: Any) -> Table | None:
        """The table of an integer of one element; None where it does not follow from the counters."""
        if hasattr(atom, "val"):  # a literal
            return np.asarray(atom.val, atom.aval.dtype).reshape(()) if _is_integer(atom) else None
        if not _is_integer(atom):
            return None
        if atom not in self._tables:
            self._tables[atom] = None
            equation = self._makers.get(atom)
            rule = None if equation is None else NUMPY.get(str(equation.primitive))
            if atom in self._consts:
                self._tables[atom] = np.asarray(self._consts[atom], atom.aval.dtype).reshape(())
            elif equation is not None and rule is not None:
                inputs = [self._table(a) for a in equation.invars]
                if all(x is not None for x in inputs):
                    with np.errstate(all="ignore"):
                        self._tables[atom] = np.asarray(rule(equation.params, *inputs), atom.aval.dtype)
        return self._tables[atom]

    # --- rows

    def _canonicalize(self) -> None:
        """Makes slices of what gathers or scatters one window, and takes what a predicate that never changes chooses."""
        renamed: dict[Any, Any] = {}
        equations: list[Any] = []
        for equation in self._eqns:
            atoms = [renamed.get(a, a) if type(a) is Var else a for a in equation.invars]
            equation = equation.replace(invars=atoms)
            chosen = self._chosen(equation)
            if chosen is not None:
                renamed[equation.outvars[0]] = chosen
                continue
            parts = as_slices(equation, self._table)
            if parts is None:
                equations.append(equation)
                continue
            names = dict(zip(parts.invars, atoms, strict=True))
            names[parts.outvars[0]] = equation.outvars[0]
            for inner in parts.eqns:
                made = [names.setdefault(v, Var(v.aval)) for v in inner.outvars]
                read = [names[a] if type(a) is Var else a for a in inner.invars]
                equations.append(inner.replace(invars=read, outvars=made))
        self._eqns = equations
        self._results = [renamed.get(a, a) if type(a) is Var else a for a in self._results]
        self._makers = {v: e for e in equations for v in e.outvars}

    def _chosen(self, equation: Any) -> Any:
        """The operand that a selection takes in every iteration; None where that is not known, or another type."""
        if str(equation.primitive) != "select_n":
            return None
        which = equation.invars[0]
        maker = self._makers.get(which) if type(which) is Var else None
        if maker is not None and str(maker.primitive) == "broadcast_in_dim":
            which = maker.invars[0]
        table = self._table(which)
        if table is None or table.size == 0 or (table != table.flat[0]).any():
            return None
        chosen = equation.invars[1 + int(table.flat[0])]
        return chosen if type(chosen) is Var and not _is_integer(chosen) else None

    def _rows(self, array: Any, sizes: Sequence[int], starts: Sequence[Any]) -> _Rows | None:
        """The rows that a slice of an array goes through, if it goes through each of them once and in order."""
        shape = array.aval.shape
        partial = [axis for axis, size in enumerate(sizes) if size != shape[axis]]
        if len(partial) != 1:
            return None
        (axis,) = partial
        size, table = sizes[axis], self._table(starts[axis])
        if size == 0 or table is None or shape[axis] != self._count * size:
            return None
        table = np.broadcast_to(table, self._count)
        if table.dtype == np.uint64:
            table = np.minimum(table, np.uint64(shape[axis]))
        table = np.clip(table.astype(np.int64), 0, shape[axis] - size)
        forwards = np.arange(self._count, dtype=np.int64) * size
        if np.array_equal(table, forwards):
            return _Rows(axis, size, False)
        return _Rows(axis, size, True) if np.array_equal(table, forwards[::-1]) else None

    def _rows_read(self, equation: Any, array: Any) -> _Rows | None:
        if equation.primitive is not lax.dynamic_slice_p or equation.invars[0] is not array:
            return None
        return self._rows(array, equation.params["slice_sizes"], equation.invars[1:])

    def _read(self, source: int, rows: _Rows, equation: Any) -> _Read:
        (whole,) = equation.outvars
        squeezed: Any = None
        if rows.size == 1:
            shape = _without(whole.aval.shape, rows.axis)
            squeezed = Var(shaped_array(shape, whole.aval.dtype))
        return _Read(source, rows, whole, squeezed)

    def _write(self, i: int) -> _Write | None:
        """How a slot is stacked: it takes a row in each iteration, and is read, if at all, where it was not written yet."""
        slot, result = self._slots[i], self._results[i]
        equation = self._makers.get(result) if type(result) is Var else None
        if i in self._known or equation is None or equation.primitive is not lax.dynamic_update_slice_p:
            return None
        array, update, *starts = equation.invars
        if array is not slot or type(update) is not Var or self._uses.get(result):
            return None
        if sum(r is result for r in self._results) != 1 or any(r is slot for r in self._results):
            return None
        taken: Any = update.aval
        rows = self._rows(slot, taken.shape, starts)
        if rows is None:
            return None
        for user in self._uses[slot]:
            if user is not equation and self._rows_read(user, slot) != rows:
                return None
            if user is equation and sum(a is slot for a in user.invars) != 1:
                return None
        return self._squeeze(update, rows)

    def _squeeze(self, update: Any, rows: _Rows) -> _Write:
        """The row before it got its dimension of size 1, where that is to be seen."""
        maker = self._makers.get(update)
        if rows.size == 1 and maker is not None and str(maker.primitive) in ("reshape", "broadcast_in_dim"):
            row: Any = maker.invars[0]
            shape = _without(update.aval.shape, rows.axis)
            kept = tuple(axis for axis in range(len(update.aval.shape)) if axis != rows.axis)
            straight = maker.params.get("broadcast_dimensions", kept) == kept and maker.params.get("dimensions") is None
            if not hasattr(row, "val") and row.aval.shape == shape and straight:
                return _Write(rows, row, True)
        return _Write(rows, update, False)

    # --- running

    def run(self, captures: Sequence[Any], operands: Sequence[Any]) -> tuple[Any, ...]:
        """Runs the scan."""
        values = [*captures, *operands]
        directions = [r.rows.backwards for r in self._reads.values()] + [
            w.rows.backwards for w in self._writes.values()
        ]
        reverse = sum(directions) * 2 > len(directions)
        step, reads, counters = self._program()
        xs = [_to_rows(values[r.source], r.rows, self._count, r.rows.backwards != reverse) for r in reads]
        tables = [np.array(self._known[i][:-1][:: -1 if reverse else 1]) for i in counters]
        carry, ys = lax.scan(
            lambda carry, x: step(values, carry, *x),
            tuple(operands[i] for i in self._carried),
            (xs, tables),
            length=self._count,
            reverse=reverse,
        )
        results = list(operands)
        for i, value in zip(self._carried, carry, strict=True):
            results[i] = value
        for (i, write), rows in zip(self._writes.items(), ys, strict=True):
            results[i] = _from_rows(rows, write.rows, self._slots[i].aval.shape, write.rows.backwards != reverse)
        for i, table in self._known.items():
            results[i] = table[-1]
        return tuple(results)

    def _program(self) -> tuple[Callable[..., Any], list[_Read], list[int]]:
        """The body of the scan, which reads it has, and which counters."""
        wanted = [*(self._results[i] for i in self._carried), *(w.update for w in self._writes.values())]
        wanted, equations, needed = self._live(wanted)
        reads = [r for r in self._reads.values() if r.whole in needed or r.squeezed in needed]
        counters = [i for i in self._known if self._slots[i] in needed]
        rows = [v for r in reads for v in (r.whole, r.squeezed) if v in needed]
        constants = list(self._consts)
        fixed = [
            j
            for j, v in enumerate(self._inputs)
            if v in needed and j - self._captures not in self._carried and j - self._captures not in counters
        ]
        carried = [self._slots[i] for i in self._carried]
        invars = [*(self._inputs[j] for j in fixed), *carried, *rows, *(self._slots[i] for i in counters)]
        closed = closed_jaxpr(
            JaxprParts(invars, wanted, equations, constants, [self._consts[v] for v in constants]), "body"
        )

        def step(values: Sequence[Any], carry: Any, slices: Sequence[Any], numbers: Sequence[Any]) -> tuple[Any, Any]:
            given = []
            for read, row in zip(reads, slices, strict=True):
                if read.whole in needed:
                    given.append(row if read.squeezed is None else lax.expand_dims(row, (read.rows.axis,)))
                if read.squeezed in needed:
                    given.append(row)
            found = eval_closed_jaxpr(closed, *(values[j] for j in fixed), *carry, *given, *numbers)
            made = []
            for write, update in zip(self._writes.values(), found[len(carry) :], strict=True):
                narrow = write.rows.size == 1 and not write.is_squeezed
                made.append(lax.squeeze(update, (write.rows.axis,)) if narrow else update)
            return tuple(found[: len(carry)]), tuple(made)

        return step, reads, counters

    def _live(self, wanted: Sequence[Any]) -> tuple[list[Any], list[Any], set[Any]]:
        """The results, the equations that they need, and all variables that are read.

        Rows take the place of slices from which only a dimension of size 1 was dropped.
        """
        renamed: dict[Any, Any] = {}
        for read in self._reads.values():
            if read.squeezed is not None:
                for user in self._uses.get(read.whole, ()):
                    axes = user.params.get("dimensions")
                    narrow = (str(user.primitive), axes) in (("reshape", None), ("squeeze", (read.rows.axis,)))
                    if narrow and user.outvars[0].aval.shape == read.squeezed.aval.shape:
                        renamed[user.outvars[0]] = read.squeezed
        ends = {read.whole for read in self._reads.values()}
        results = [renamed.get(a, a) if type(a) is Var else a for a in wanted]
        needed = {a for a in results if type(a) is Var}
        equations: list[Any] = []
        for equation in reversed(self._eqns):
            made = [v for v in equation.outvars if v in needed]
            if not made or any(v in ends for v in equation.outvars):
                continue
            atoms = [renamed.get(a, a) if type(a) is Var else a for a in equation.invars]
            needed.update(a for a in atoms if type(a) is Var)
            equations.append(equation.replace(invars=atoms))
        equations.reverse()
        return results, equations, needed


def _without(shape: Sequence[int], axis: int) -> tuple[int, ...]:
    return (*shape[:axis], *shape[axis + 1 :])


def _to_rows(array: Array, rows: _Rows, count: int, turned: bool) -> Array:
    axis = rows.axis
    if rows.size != 1:
        array = lax.reshape(array, (*array.shape[:axis], count, rows.size, *array.shape[axis + 1 :]))
    order = (axis, *(i for i in range(array.ndim) if i != axis))
    array = lax.transpose(array, order) if axis else array
    return lax.rev(array, (0,)) if turned else array


def _from_rows(array: Array, rows: _Rows, shape: Sequence[int], turned: bool) -> Array:
    array = lax.rev(array, (0,)) if turned else array
    axis = rows.axis
    array = lax.transpose(array, (*range(1, axis + 1), 0, *range(axis + 1, array.ndim))) if axis else array
    return lax.reshape(array, tuple(shape)) if rows.size != 1 else array


_ROWS = frozenset(["dynamic_slice", "dynamic_update_slice", "gather", "scatter"])


def _deals_with_rows(closed: Any) -> bool:
    """Whether a function slices by numbers, or returns one."""
    parts = open_closed_jaxpr(closed)
    if any(_is_integer(v) for v in parts.outvars):
        return True
    return any(
        str(e.primitive) in _ROWS or (e.primitive is jit_p and _deals_with_rows(e.params["jaxpr"])) for e in parts.eqns
    )


def _is_integer(atom: Any) -> bool:
    return atom.aval.size == 1 and isinstance(atom.aval.dtype, np.dtype) and atom.aval.dtype.char in "?bhilqBHILQ"
