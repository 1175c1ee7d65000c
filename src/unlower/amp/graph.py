"""The dataflow of a program, through all its sub-programs: who makes each value and who reads it.

A value keeps its identity where it enters a `jit`, a `cond` or a `checkpoint` and where it leaves: colours are chosen for the
whole program at once, and one function called twice may be coloured in two ways. Where a dtype is fixed by the primitive (the
carry of a loop) or worth a choice of its own (a loop's constant, cast once outside), a new value begins, tied to the old by a
node.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from unlower._jax_compat_interpret import Literal, Tracer, jaxpr_parts, scan_groups, sub_jaxprs
from unlower.amp.policy import WIDE
from unlower.amp.rules import Kind

__all__ = ["Call", "Graph", "Node", "Program", "Value", "build"]

TRANSPARENT = frozenset(
    [
        "jit",
        "pjit",
        "closed_call",
        "call",
        "core_call",
        "core_closed_call",
        "remat2",
        "checkpoint",
        "remat",
        "custom_jvp_call",
        "shard_map",
        "xla_metadata_call",
        "compute_on",
        "eval_jaxpr",
    ]
)
"""Primitives that run one program on their operands as they are."""

PINNED = frozenset(["custom_vjp_call", "custom_vmap_call", "composite"])
"""Primitives that run one program, but whose rules are written for the dtypes declared."""

KNOWN_SIZE = 4096
"""Constants up to this many elements are looked at."""


class Value:
    """An array of the program.

    Attributes:
      is_wide: whether it is declared float32, and so may be stored in the low dtype.
      shape: its shape.
      consumers: the nodes that read it.
      constant: what is known of it before the program runs, or None.
      stored_low: the decision.
      amplified: whether it reaches an amplifier through arithmetic; tainted, after_low, reaches_low: see `colouring`.
    """

    __slots__ = (
        "after_low",
        "all_low",
        "amplified",
        "constant",
        "consumers",
        "is_wide",
        "only_products",
        "reaches_low",
        "read_low",
        "shape",
        "stored_low",
        "tainted",
        "wants_full",
        "wants_low",
    )

    def __init__(self, aval: Any, constant: Any = None):
        self.is_wide = getattr(aval, "dtype", None) == WIDE
        self.shape = getattr(aval, "shape", ())
        self.consumers: list[Node] = []
        self.constant = constant
        self.stored_low = self.amplified = self.tainted = self.after_low = self.reaches_low = False
        self.read_low = self.wants_low = self.wants_full = False
        self.all_low = self.only_products = True


@dataclass(eq=False, slots=True)
class Node:
    """An equation, or a tie between values, which its name tells: `carry`, `constant of a loop`, `result`, `branches` ...

    Attributes:
      name: of its primitive.
      equation: None for a tie.
      operands: None for what is no wide array.
      results: likewise.
      scope: names of the scopes around, outermost first.
      kind, reason: how it takes to low precision, and why.
      is_product: whether it is a product of two float32 operands.
      is_forced: whether the caller asked for low precision here.
      low: the decision: whether it computes in the low dtype.
    """

    name: str
    equation: Any
    operands: list[Value | None]
    results: list[Value | None]
    scope: tuple[str, ...]
    kind: Kind = Kind.FULL
    reason: str = ""
    is_product: bool = False
    is_forced: bool = False
    low: bool = False


@dataclass(eq=False, slots=True)
class Call:
    """An equation that runs programs.

    Attributes:
      equation: with its parameters.
      operands: for each operand, the value outside and the value whose storage it must have; None for what is no wide array.
      results: its results.
      children: the programs inside, in the order in which `sub_jaxprs` yields them.
    """

    equation: Any
    operands: list[tuple[Value, Value] | None]
    results: list[Value | None]
    children: list["Program"]


@dataclass(eq=False, slots=True)
class Program:
    """One Jaxpr in one place of the program.

    Attributes:
      jaxpr: as it stands there.
      inputs: its arguments; None for what is no wide array.
      constants: its constants, likewise.
      items: what became of each equation.
      outputs: for each result, the value and the value whose storage it must have, or None.
    """

    jaxpr: Any
    inputs: list[Value | None]
    constants: list[Value | None]
    items: list[Node | Call] = field(default_factory=list)
    outputs: list[tuple[Value, Value] | None] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Graph:
    """All nodes, in an order in which values are made before they are read."""

    program: Program
    nodes: list[Node]


def build(closed: Any, low_inputs: Sequence[bool] = (), low_results: Sequence[bool] = ()) -> Graph:
    """Reads a closed Jaxpr.

    Args:
      closed: the Jaxpr.
      low_inputs: which of its inputs come in the low dtype although they are declared float32; by default none.
      low_results: which of its results are wanted so.
    """
    builder = _Builder()
    inputs = [_wide(Value(v.aval)) for v in jaxpr_parts(closed).invars]
    for value, low in zip(inputs, low_inputs, strict=False):
        if value is not None and low:
            value.stored_low = value.after_low = True
    program = builder.program(closed, inputs, (), pinned=False)
    program.outputs = [
        pair and builder.result(pair[0], low)
        for pair, low in zip(program.outputs, low_results or [False] * len(program.outputs), strict=True)
    ]
    return Graph(program, builder.nodes)


def _wide(value: Value) -> Value | None:
    return value if value.is_wide else None


class _Builder:
    def __init__(self):
        self.nodes: list[Node] = []
        self._scopes: dict[Any, tuple[str, ...]] = {}

    def program(self, jaxpr: Any, inputs: Sequence[Value | None], scope: tuple[str, ...], *, pinned: bool) -> Program:
        """Reads a Jaxpr in one place; `pinned` results must be stored as declared."""
        parts = jaxpr_parts(jaxpr)
        constants = [_wide(Value(v.aval, _known(c))) for v, c in zip(parts.constvars, parts.consts, strict=False)]
        constants += [_wide(Value(v.aval)) for v in parts.constvars[len(constants) :]]
        program = Program(jaxpr, list(inputs), constants)
        env: dict[Any, Value | None] = dict(zip(parts.constvars, constants, strict=True))
        env.update(zip(parts.invars, inputs, strict=True))
        for equation in parts.eqns:
            operands = [self.read(env, v) for v in equation.invars]
            item = self.equation(equation, operands, scope)
            program.items.append(item)
            env.update(zip(equation.outvars, item.results, strict=True))
        outs = [self.read(env, v) for v in parts.outvars]
        program.outputs = [self.pin(v, "result", scope) if pinned and v else v and (v, v) for v in outs]
        return program

    def read(self, env: dict[Any, Value | None], atom: Any) -> Value | None:
        if isinstance(atom, Literal):
            return _wide(Value(atom.aval, np.asarray(atom.val))) if _is_float(atom.aval) else None
        return env[atom]

    def scope(self, equation: Any, outer: tuple[str, ...]) -> tuple[str, ...]:
        stack = equation.source_info.name_stack
        found = self._scopes.get(stack)
        if found is None:
            text = re.sub(r"[\w.\-]+\(|\)", "", str(stack))
            found = self._scopes[stack] = tuple(part for part in text.split("/") if part)
        return outer + found

    def node(self, name: str, equation: Any, operands: Any, results: Any, scope: tuple[str, ...]) -> Node:
        node = Node(name, equation, list(operands), list(results), scope)
        self.nodes.append(node)
        for value in node.operands:
            if value is not None:
                value.consumers.append(node)
        return node

    def pin(self, value: Value, name: str, scope: tuple[str, ...]) -> tuple[Value, Value]:
        """Ties a value to one that is stored as declared."""
        declared = _like(value)
        self.node(name, None, [value], [], scope)
        return value, declared

    def result(self, value: Value, low: bool) -> tuple[Value, Value]:
        """Ties a result to the dtype in which it is wanted."""
        if not low:
            return self.pin(value, "result", ())
        wanted = _like(value)
        wanted.stored_low = True
        self.node("low result", None, [value], [], ())
        return value, wanted

    def equation(self, equation: Any, operands: list[Value | None], outer: tuple[str, ...]) -> Node | Call:
        name, scope = equation.primitive.name, self.scope(equation, outer)
        jaxprs = list(sub_jaxprs(equation.params)) if _may_hold_programs(equation) else []
        if jaxprs:
            called = equation.params.get("name")
            inner = (*scope, called) if isinstance(called, str) else scope
            if name in TRANSPARENT and len(jaxprs) == 1:
                return self.call(equation, jaxprs[0], operands, inner)
            if name in PINNED and len(jaxprs) == 1:
                return self.pinned_call(equation, jaxprs[0], operands, inner)
            if name == "scan":
                return self.scan(equation, jaxprs[0], operands, inner)
            if name == "while":
                return self.while_loop(equation, operands, inner)
            if name == "cond":
                return self.cond(equation, jaxprs, operands, inner)
        results = [_wide(Value(v.aval)) for v in equation.outvars]
        node = self.node(name, equation, operands, results, scope)
        _fold(node)
        return node

    def call(self, equation: Any, jaxpr: Any, operands: list[Value | None], scope: tuple[str, ...]) -> Call:
        child = self.program(jaxpr, operands, scope, pinned=False)
        results = [pair and pair[0] for pair in child.outputs]
        return Call(equation, [v and (v, v) for v in operands], results, [child])

    def pinned_call(self, equation: Any, jaxpr: Any, operands: list[Value | None], scope: tuple[str, ...]) -> Call:
        pins = [v and self.pin(v, equation.primitive.name, scope) for v in operands]
        child = self.program(jaxpr, [pin and self.source(pin[1], scope) for pin in pins], scope, pinned=True)
        return Call(equation, pins, [self.source(_wide(Value(v.aval)), scope) for v in equation.outvars], [child])

    def source(self, value: Value | None, scope: tuple[str, ...]) -> Value | None:
        """Ties a value to nothing before it: where it comes from, it is as declared, and is meant to be."""
        if value is not None:
            self.node("declared", None, [], [value], scope)
        return value

    def constant_of_loop(self, value: Value, scope: tuple[str, ...]) -> tuple[Value, Value]:
        inner = _like(value)
        inner.constant = value.constant
        self.node("constant of a loop", None, [value], [inner], scope)
        return value, inner

    def scan(self, equation: Any, jaxpr: Any, operands: list[Value | None], scope: tuple[str, ...]) -> Call:
        n_consts, n_carry = scan_groups(equation.params)
        groups = operands[:n_consts], operands[n_consts : n_consts + n_carry], operands[n_consts + n_carry :]
        pairs = [v and self.constant_of_loop(v, scope) for v in groups[0]]
        pairs += [v and self.pin(v, "carry", scope) for v in groups[1]]
        pairs += [v and (v, v) for v in groups[2]]
        inputs = [pair and pair[1] for pair in pairs]
        for value in inputs[n_consts : n_consts + n_carry]:
            self.source(value, scope)
        child = self.program(jaxpr, inputs, scope, pinned=False)
        child.outputs[:n_carry] = [pair and self.pin(pair[0], "carry", scope) for pair in child.outputs[:n_carry]]
        results = [self.source(_wide(Value(v.aval)), scope) for v in equation.outvars[:n_carry]]
        results += [pair and pair[0] for pair in child.outputs[n_carry:]]
        return Call(equation, pairs, results, [child])

    def while_loop(self, equation: Any, operands: list[Value | None], scope: tuple[str, ...]) -> Call:
        params = equation.params
        n_cond, n_body = params["cond_nconsts"], params["body_nconsts"]
        pairs = [v and self.constant_of_loop(v, scope) for v in operands[: n_cond + n_body]]
        pairs += [v and self.pin(v, "carry", scope) for v in operands[n_cond + n_body :]]
        constants = [pair and pair[1] for pair in pairs[: n_cond + n_body]]
        avals = [v.aval for v in equation.outvars]
        children = {}
        for key, own in (("cond_jaxpr", constants[:n_cond]), ("body_jaxpr", constants[n_cond:])):
            carry = [self.source(_wide(Value(aval)), scope) for aval in avals]
            children[key] = self.program(params[key], [*own, *carry], scope, pinned=True)
        ordered = [children[key] for key, value in params.items() if key in children and value is not None]
        return Call(equation, pairs, [self.source(_wide(Value(aval)), scope) for aval in avals], ordered)

    def cond(
        self, equation: Any, branches: Sequence[Any], operands: list[Value | None], scope: tuple[str, ...]
    ) -> Call:
        children = [self.program(branch, operands[1:], scope, pinned=False) for branch in branches]
        results: list[Value | None] = []
        for position, var in enumerate(equation.outvars):
            result = _wide(Value(var.aval))
            results.append(result)
            if result is None:
                continue
            outs = [child.outputs[position] for child in children]
            self.node("branches", None, [pair and pair[0] for pair in outs], [result], scope)
            for child, pair in zip(children, outs, strict=True):
                child.outputs[position] = pair and (pair[0], result)
        return Call(equation, [v and (v, v) for v in operands], results, children)


def _like(value: Value) -> Value:
    return Value(jax.ShapeDtypeStruct(value.shape, WIDE))


def _is_float(aval: Any) -> bool:
    return getattr(aval, "dtype", None) == WIDE


def _may_hold_programs(equation: Any) -> bool:
    return any(True for _ in sub_jaxprs(equation.params))


def _known(constant: Any) -> Any:
    """A captured constant, if it can be looked at and is small."""
    if isinstance(constant, Tracer) or getattr(constant, "size", KNOWN_SIZE + 1) > KNOWN_SIZE:
        return None
    return np.asarray(constant) if getattr(constant, "dtype", None) == WIDE else None


_KEEPS_RANGE = frozenset(
    ["broadcast_in_dim", "reshape", "squeeze", "expand_dims", "copy", "copy_p", "stop_gradient", "convert_element_type"]
)
_SCALAR = frozenset(
    [
        "sqrt",
        "rsqrt",
        "neg",
        "exp",
        "log",
        "add",
        "sub",
        "mul",
        "div",
        "max",
        "min",
        "integer_pow",
        "pow",
        "square",
        "tanh",
        "log1p",
    ]
)


def _fold(node: Node) -> None:
    """Works out scalars that are known before the program runs, such as the square root of a width."""
    if not node.operands or any(v is None or v.constant is None for v in node.operands):
        return
    if len(node.results) != 1 or node.results[0] is None:
        return
    values = [v.constant for v in node.operands if v is not None]
    if node.name in _KEEPS_RANGE:
        node.results[0].constant = values[0]
    elif node.name in _SCALAR and all(v.ndim == 0 for v in values):
        with jax.ensure_compile_time_eval():
            node.results[0].constant = np.asarray(node.equation.primitive.bind(*values, **node.equation.params))


def programs(program: Program) -> Iterator[Program]:
    """Yields a program and all those inside it."""
    yield program
    for item in program.items:
        if isinstance(item, Call):
            for child in item.children:
                yield from programs(child)
