"""What autocast decided, and why: a row for each operation, totals, and what a person should look at."""

import collections
import html
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from unlower._jax_compat_interpret import Literal, source_summary
from unlower.amp.colouring import colour
from unlower.amp.graph import Call, Node, Program, build
from unlower.amp.painting import paint
from unlower.amp.policy import WIDE, Policy
from unlower.amp.rules import AMPLIFIERS, Kind, contraction_size
from unlower.amp.transform import as_policy

__all__ = ["Explanation", "Row", "explain"]


@dataclass(frozen=True)
class Row:
    """One operation that float32 values go into or come out of.

    Attributes:
      scope: name scopes around it.
      name: its primitive.
      shape: of its first result.
      precision: the dtype that it computes in.
      result: the dtype that its result is stored in.
      reason: why.
      casts: how many of its operands are cast for it.
      cast_bytes: bytes written by those casts.
      flops: floating-point operations, of products only; a multiple of a loop's length where that is known.
      source: the user's line.
      times: how often it runs: the product of the lengths of the loops around.
    """

    scope: str
    name: str
    shape: tuple[int, ...]
    precision: str
    result: str
    reason: str
    casts: int
    cast_bytes: int
    flops: int
    source: str
    times: int


@dataclass(frozen=True)
class Explanation:
    """What `autocast` does with a function; print it, or show it in a notebook.

    Attributes:
      rows: the operations, in the order of the program.
      warnings: what a person should look at.
      low: the name of the low dtype.
      residual_bytes: bytes saved for the backward pass, parameters among them, with autocast and without; None where the
        function has no derivative.
    """

    rows: tuple[Row, ...]
    warnings: tuple[str, ...]
    low: str
    residual_bytes: tuple[int, int] | None

    @property
    def low_flops(self) -> float:
        """The share of the flops of products that is computed in the low dtype: 0 to 1."""
        total = sum(row.flops for row in self.rows)
        return sum(row.flops for row in self.rows if row.precision == self.low) / total if total else 0.0

    @property
    def casts(self) -> int:
        """How many arrays are cast, each counted as often as it is cast."""
        return sum(row.casts for row in self.rows)

    def by_scope(self) -> dict[str, dict[str, float]]:
        """Name scope -> operations, casts, cast bytes, flops, and the share of the flops that is low."""
        groups: dict[str, list[Row]] = collections.defaultdict(list)
        for row in self.rows:
            groups[row.scope].append(row)
        return {scope: _totals(rows, self.low) for scope, rows in groups.items()}

    def __str__(self) -> str:
        head = ("scope", "operation", "shape", "precision", "result", "casts", "why")
        rows = [
            (r.scope, r.name, "x".join(map(str, r.shape)), r.precision, r.result, str(r.casts or ""), r.reason)
            for r in self.rows
        ]
        widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
        lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in (head, *rows)]
        return "\n".join([*lines, "", self._summary(), *(f"warning: {w}" for w in self.warnings)])

    def _summary(self) -> str:
        text = f"{self.low_flops:.1%} of the flops of products in {self.low}, {self.casts} casts"
        if self.residual_bytes is not None:
            ours, original = self.residual_bytes
            text += f", {_size(ours)} saved for the backward pass (float32: {_size(original)})"
        return text

    def to_html(self) -> str:
        """One page that works offline: totals by name scope, then every operation."""
        scopes = _html_table(
            ("scope", "operations", "casts", "cast bytes", "flops", "low flops"),
            [
                (
                    s or "(top)",
                    t["operations"],
                    t["casts"],
                    _size(t["cast_bytes"]),
                    f"{t['flops']:.3g}",
                    f"{t['low']:.0%}",
                )
                for s, t in self.by_scope().items()
            ],
        )
        rows = _html_table(
            ("scope", "operation", "shape", "precision", "result", "casts", "flops", "why", "source"),
            [
                (r.scope, r.name, r.shape, r.precision, r.result, r.casts or "", f"{r.flops:.3g}", r.reason, r.source)
                for r in self.rows
            ],
            [r.precision == self.low for r in self.rows],
        )
        warnings = "".join(f"<p class=warning>{html.escape(w)}</p>" for w in self.warnings)
        return _PAGE.format(summary=html.escape(self._summary()), warnings=warnings, scopes=scopes, rows=rows)

    def _repr_html_(self) -> str:
        return self.to_html()


_PAGE = """<!doctype html><html lang=en><meta charset=utf-8><title>Mixed precision</title><style>
body {{ font: 14px/1.4 system-ui, sans-serif; margin: 2em; }}
table {{ border-collapse: collapse; margin-bottom: 2em; }}
th, td {{ text-align: left; padding: .15em .8em; border-bottom: 1px solid #ddd; }}
tr.low td:nth-child(4) {{ background: #cdeac0; }} .warning {{ color: #a40000; }}
</style><h1>Mixed precision</h1><p>{summary}</p>{warnings}<h2>By scope</h2>{scopes}<h2>Operations</h2>{rows}</html>
"""


def _html_table(head: Sequence[str], rows: Iterable[Sequence[Any]], marked: Sequence[bool] = ()) -> str:
    flags = list(marked) or None
    body = []
    for number, row in enumerate(rows):
        name = " class=low" if flags and flags[number] else ""
        body.append(f"<tr{name}>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) + "</tr>")
    return f"<table><tr>{''.join(f'<th>{h}</th>' for h in head)}</tr>{''.join(body)}</table>"


def _totals(rows: Sequence[Row], low: str) -> dict[str, float]:
    flops = sum(r.flops for r in rows)
    return {
        "operations": len(rows),
        "casts": sum(r.casts for r in rows),
        "cast_bytes": sum(r.cast_bytes for r in rows),
        "flops": flops,
        "low": sum(r.flops for r in rows if r.precision == low) / flops if flops else 0.0,
    }


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError


def explain(function: Callable[..., Any], policy: Policy | str | None = None) -> Callable[..., Explanation]:
    """Tells what `autocast(function, policy)` does with given arguments.

    Returns:
      a function that takes what `function` takes (arrays, or `jax.ShapeDtypeStruct`s) and returns an `Explanation`.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from unlower import amp
      >>> told = amp.explain(lambda x, w: jax.nn.softmax(x @ w))(jnp.ones((4, 32)), jnp.ones((32, 8)))
      >>> [(row.name, row.precision, row.result) for row in told.rows][:2]
      [('dot_general', 'bfloat16', 'float32'), ('reduce_max', 'float32', 'float32')]
      >>> told.low_flops
      1.0
    """
    found = as_policy(policy)

    def explained(*args: Any, **kwargs: Any) -> Explanation:
        closed = jax.make_jaxpr(function)(*args, **kwargs)
        graph = build(closed)
        if not found.is_identity:
            colour(graph, found)
        rows = tuple(_rows(graph.program, found.low.name, 1, set()))
        warnings = tuple(_warnings(graph.nodes, rows, closed, found.low.name))
        painted = paint(graph.program, found.low)
        return Explanation(rows, warnings, found.low.name, _residuals(closed, painted))

    return explained


def _rows(program: Program, low: str, times: int, cast: set[Any]) -> Iterable[Row]:
    for item in program.items:
        if isinstance(item, Call):
            params = item.equation.params
            length = params.get("length", 1) if item.equation.primitive.name == "scan" else 1
            for child in item.children:
                yield from _rows(child, low, times * length, cast)
        elif _concerns_floats(item):
            yield _row(item, low, times, cast)


def _concerns_floats(node: Node) -> bool:
    return any(v is not None for v in (*node.operands, *node.results))


def _row(node: Node, low: str, times: int, seen: set[Any]) -> Row:
    equation = node.equation
    casts = {
        id(v): math.prod(v.shape) * (2 if node.low else 4)
        for v, atom in zip(node.operands, equation.invars, strict=True)
        if v is not None and v.stored_low != node.low and v.constant is None and not isinstance(atom, Literal)
    }
    new = {key: size for key, size in casts.items() if (key, node.low) not in seen}
    seen |= {(key, node.low) for key in new}
    result = next((v for v in node.results if v is not None), None)
    aval = equation.outvars[0].aval if equation.outvars else None  # what only has an effect has no result
    return Row(
        scope="/".join(node.scope),
        name=node.name,
        shape=tuple(getattr(aval, "shape", ())),
        precision=low if node.low else "float32",
        result=str(getattr(aval, "dtype", "")) if result is None else low if result.stored_low else "float32",
        reason=node.reason or ("moves values" if node.kind is Kind.CLEAR else ""),
        casts=len(new),
        cast_bytes=sum(new.values()),
        flops=_flops(node) * times,
        source=source_summary(equation.source_info),
        times=times,
    )


def _flops(node: Node) -> int:
    if node.kind is not Kind.LOW and not node.is_product:
        return 0
    lhs, rhs = (tuple(v.aval.shape) for v in node.equation.invars[:2])
    if "ragged" in node.name:
        return 2 * math.prod(lhs) * rhs[-1]
    contracted = contraction_size(node.name, node.equation.params, lhs, rhs)
    return 2 * contracted * math.prod(node.equation.outvars[0].aval.shape)


def _residuals(closed: Any, painted: Any) -> tuple[int, int] | None:
    """Bytes that `jax.vjp` keeps, with autocast and without."""
    from unlower._jax_compat import eval_closed_jaxpr

    def saved(jaxpr: Any) -> int:
        avals = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in jaxpr.invars]
        floats = [i for i, a in enumerate(avals) if a.dtype == WIDE]

        def pull_back(*values: Any) -> Any:
            def of_floats(*moved: Any) -> Any:
                filled = list(values)
                for place, value in zip(floats, moved, strict=True):
                    filled[place] = value
                outs = eval_closed_jaxpr(jaxpr, *filled)
                return [o for o in outs if jax.numpy.issubdtype(o.dtype, np.floating)]

            return jax.vjp(of_floats, *(values[i] for i in floats))[1]

        kept = jax.tree.leaves(jax.eval_shape(pull_back, *avals))
        return sum(math.prod(x.shape) * np.dtype(x.dtype).itemsize for x in kept if hasattr(x, "dtype"))

    try:
        return saved(painted), saved(closed)
    except Exception:  # noqa: BLE001 - whatever keeps a function from being differentiated, it is no fault of the report
        return None


def _warnings(nodes: Sequence[Node], rows: Sequence[Row], closed: Any, low: str) -> Iterable[str]:
    products = [n for n in nodes if n.is_product]
    if not products:
        yield "nothing is eligible: the function has no product of float32 operands"
    wide = [str(v.aval.dtype) for v in closed.invars if str(getattr(v.aval, "dtype", "")) in ("float64", "complex128")]
    if wide:
        yield f"{len(wide)} inputs are {wide[0]}, which autocast leaves alone: cast them to float32 for low precision"
    waves = AMPLIFIERS & {"sin", "cos", "tan"}
    for node in products:
        if node.low and any(v is not None and _feeds(v, waves) for v in node.results):
            where = source_summary(node.equation.source_info)
            yield (
                f"a {low} product feeds a sine or cosine, which its rounding may throw off by a whole turn"
                f"{f', {where}' if where else ''}: mark it with amp.full_precision"
            )


def _feeds(value: Any, names: Iterable[str], depth: int = 6) -> bool:
    """Whether a value reaches one of some primitives through a little arithmetic."""
    if depth == 0:
        return False
    for node in value.consumers:
        if node.name in names:
            return True
        passes = node.kind is not Kind.LOW and node.name in ("add", "sub", "mul", "div", "neg", "reshape", "transpose")
        if passes and any(v is not None and _feeds(v, names, depth - 1) for v in node.results):
            return True
    return False
