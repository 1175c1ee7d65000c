"""The coloured program as a Jaxpr: casts stand as equations, each once for all who read it.

First-order equations come out as they will run. An equation that carries programs gets the painted ones; where its rules want
to know of a changed type (`custom_jvp`), the interpreter that runs the painted program tells them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jax import lax

from unlower._jax_compat_interpret import (
    Literal,
    first_equation,
    jaxpr_parts,
    new_equation,
    new_var,
    replace_sub_jaxprs,
    scan_groups,
    scan_params,
    with_equations,
)
from unlower.amp.graph import Call, Node, Program, Value
from unlower.amp.policy import WIDE
from unlower.amp.products import product_jaxpr, product_p
from unlower.amp.spreading import spread_p

__all__ = ["Full", "paint"]


ADDITIONS = ("add", "sub", "add_any")


class Full(dict):
    """The parameters of a product that has been looked at and stays in full precision."""


def paint(program: Program, low: np.dtype, output: np.dtype | None = None) -> Any:
    """Returns the closed Jaxpr that computes as the colours say; the same object where they change nothing.

    Args:
      program: coloured.
      low: the low dtype.
      output: the dtype of float32 results, where it is not float32.
    """
    return _Painter(low).program(program, output)


class _Painter:
    def __init__(self, low: np.dtype):
        self.low = low
        self.known: dict[Any, Any] = {}
        self.cast_params = {"new_dtype": low, "weak_type": False, "sharding": None}

    def program(self, program: Program, output: np.dtype | None = None, twins: tuple[int, ...] = ()) -> Any:
        """Paints one program; for the inputs at `twins` it takes, before all others, what they were cast from."""
        signature = _signature(program)
        if not any(signature) and output is None:
            return program.jaxpr
        key = (id(program.jaxpr), signature, output, twins)
        if key not in self.known:
            self.known[key] = _Page(self, program).paint(output, twins)
        return self.known[key]

    def aval(self, aval: Any, stored_low: bool) -> Any:
        return aval.update(dtype=self.low, weak_type=False) if stored_low else aval


def _signature(program: Program) -> tuple[Any, ...]:
    """What the colours change in one program; falsy in all places if nothing."""
    return (
        _any(_stored(program.inputs)),
        _any(_stored(program.constants)),
        _any(tuple(_item_signature(item) for item in program.items)),
        _any(_stored(wanted for _, wanted in filter(None, program.outputs))),
        _any(_stored(value for value, _ in filter(None, program.outputs))),
    )


def _any(flags: tuple[Any, ...]) -> tuple[Any, ...] | None:
    return flags if any(flags) else None


def _stored(values: Any) -> tuple[bool, ...]:
    return tuple(v is not None and v.stored_low for v in values)


def _item_signature(item: Node | Call) -> Any:
    if isinstance(item, Node):
        flags = (item.low, item.is_product, any(_stored(item.operands)), any(_stored(item.results)))
        return _any(flags)
    changed = tuple(_signature(child) for child in item.children)
    stored = _stored(inner for _, inner in filter(None, item.operands))
    before = _stored(outer for outer, _ in filter(None, item.operands))
    return _any((any(map(any, changed)) and changed, _any(stored), _any(before), _any(_stored(item.results))))


def _is_stored_low(value: Value | None) -> bool:
    return value is not None and value.stored_low


class _Page:
    """One Jaxpr being painted."""

    def __init__(self, painter: _Painter, program: Program):
        self.painter, self.source = painter, program
        self.parts = jaxpr_parts(program.jaxpr)
        self.equations: list[Any] = []
        self.variables: dict[Any, Any] = {}
        """Variable of the old Jaxpr -> variable of the new, in the dtype that its value is stored in."""
        self.casts: dict[tuple[Any, bool], Any] = {}
        """Variable of the old Jaxpr, and whether low is wanted -> variable of the new in that dtype."""

        self.twins: dict[Any, Any] = {}
        """Variable of the old Jaxpr whose value is low -> variable of the new that holds what it was cast from."""

    def paint(self, output: np.dtype | None, twins: tuple[int, ...]) -> Any:
        source, parts = self.source, self.parts
        self.twins = {parts.invars[place]: new_var(parts.invars[place].aval) for place in twins}
        invars = [self.define(v, value) for v, value in zip(parts.invars, source.inputs, strict=True)]
        invars = [*self.twins.values(), *invars]
        for v in parts.constvars:
            self.variables[v] = v
        for equation, item in zip(parts.eqns, source.items, strict=True):
            if isinstance(item, Node):
                self.node(equation, item)
            else:
                self.call(equation, item)
        outvars = []
        for var, pair in zip(parts.outvars, source.outputs, strict=True):
            if pair is None:
                outvars.append(self.variables.get(var, var) if not isinstance(var, Literal) else var)
                continue
            found = self.use(var, *pair, None)
            if output is not None and output != WIDE:
                found = self.convert(found, output, None)
            outvars.append(found)
        return with_equations(source.jaxpr, invars, outvars, self.equations)

    def define(self, var: Any, value: Value | None) -> Any:
        if value is not None and value.stored_low:
            self.variables[var] = new_var(self.painter.aval(var.aval, True))
        else:
            self.variables[var] = var
        return self.variables[var]

    def use(self, var: Any, value: Value, wanted: Value, near: Any) -> Any:
        return self.read(var, value, wanted.stored_low, near)

    def read(self, var: Any, value: Value, low: bool, near: Any) -> Any:
        """The variable that holds an operand in the dtype wanted, made by a cast if need be."""
        if isinstance(var, Literal):
            if not low:
                return var
            return Literal(np.asarray(var.val).astype(self.painter.low), self.painter.aval(var.aval, True))
        if value.stored_low == low:
            return self.variables[var]
        key = (var, low)
        if key not in self.casts:
            dtype = self.painter.low if low else WIDE
            self.casts[key] = self.convert(self.variables[var], dtype, near)
        return self.casts[key]

    def convert(self, var: Any, dtype: Any, near: Any) -> Any:
        """Casts a variable, in the place of the equation `near`, or after all others if it is None."""
        dtype = np.dtype(dtype)
        if isinstance(var, Literal):
            return Literal(np.asarray(var.val).astype(dtype), var.aval.update(dtype=dtype, weak_type=False))
        made = new_var(var.aval.update(dtype=dtype, weak_type=False))
        params = {**self.painter.cast_params, "new_dtype": dtype}
        near = near if near is not None else next(reversed(self.equations), None)
        if near is None:
            equation = first_equation([var], [made], lax.convert_element_type_p, params)
        else:
            changes = {"primitive": lax.convert_element_type_p, "params": params, "effects": frozenset()}
            equation = new_equation(near, [var], [made], **changes)
        self.equations.append(equation)
        return made

    def operands(
        self, equation: Any, values: Sequence[Value | None], low: bool, made: Mapping[int, Any] | None = None
    ) -> list[Any]:
        found = []
        for place, (var, value) in enumerate(zip(equation.invars, values, strict=True)):
            if made and place in made:
                found.append(made[place])
            elif value is None:
                found.append(var if isinstance(var, Literal) else self.variables[var])
            else:
                found.append(self.read(var, value, low, equation))
        return found

    def node(self, equation: Any, node: Node) -> None:
        if node.is_product and node.low:
            self.product(equation, node)
            return
        if node.name == "broadcast_in_dim" and node.low and not _is_stored_low(node.operands[0]):
            self.broadcast(equation, node)
            return
        spreads = self.spread_addends(equation, node) if node.low and node.name in ADDITIONS else {}
        invars = self.operands(equation, node.operands, node.low, spreads)
        outvars = [self.define(v, value) for v, value in zip(equation.outvars, node.results, strict=True)]
        params = equation.params
        if node.is_product:
            params = Full(params)
        elif node.name == "convert_element_type" and node.low and node.results[0] is not None:
            params = {**params, "new_dtype": self.painter.low, "weak_type": False}
        if params is equation.params and invars == equation.invars and outvars == equation.outvars:
            self.equations.append(equation)
        else:
            self.equations.append(new_equation(equation, invars, outvars, params=params))

    def broadcast(self, equation: Any, node: Node) -> None:
        params, var = equation.params, equation.invars[0]
        if isinstance(var, Literal) or len(equation.invars) != 1:
            invars = self.operands(equation, node.operands, True)
            outvars = [self.define(equation.outvars[0], node.results[0])]
            self.equations.append(new_equation(equation, invars, outvars))
            return
        outvar = self.define(equation.outvars[0], node.results[0])
        self.spread(equation, self.variables[var], outvar, params["shape"], params["broadcast_dimensions"])

    def spread(self, near: Any, var: Any, outvar: Any, shape: Any, dimensions: Any) -> None:
        params = {"dtype": self.painter.low, "shape": tuple(shape), "broadcast_dimensions": tuple(dimensions)}
        self.equations.append(new_equation(near, [var], [outvar], primitive=spread_p, params=params))

    def spread_addends(self, equation: Any, node: Node) -> dict[int, Any]:
        """A float32 addend that is smaller than the sum is broadcast in a way whose derivative sums in float32."""
        shape = equation.outvars[0].aval.shape
        spreads = {}
        for place, (var, value) in enumerate(zip(equation.invars, node.operands, strict=True)):
            is_smaller = (
                value is not None and not value.stored_low and len(var.aval.shape) > 0 and var.aval.shape != shape
            )
            if is_smaller and not isinstance(var, Literal):
                made = new_var(self.painter.aval(equation.outvars[0].aval, True))
                self.spread(equation, self.variables[var], made, shape, range(len(shape)))
                spreads[place] = made
        return spreads

    def product(self, equation: Any, node: Node) -> None:
        lows = self.operands(equation, node.operands, True)
        wide = []
        for var, value in zip(equation.invars[:2], node.operands[:2], strict=True):
            wide.append(None if value is None else self.cast_from(var, value))
        (result,) = node.results
        dtype = self.painter.low if result is not None and result.stored_low else WIDE
        jaxpr = product_jaxpr(equation.primitive, equation.params, [v.aval for v in lows], dtype)
        params = {"jaxpr": jaxpr, "wide": tuple(w is not None for w in wide)}
        outvars = [self.define(v, value) for v, value in zip(equation.outvars, node.results, strict=True)]
        invars = [*lows, *(w for w in wide if w is not None)]
        self.equations.append(new_equation(equation, invars, outvars, primitive=product_p, params=params))

    def cast_from(self, var: Any, value: Value) -> Any:
        """The variable that holds a low operand in float32, if there is one."""
        if isinstance(var, Literal):
            return None
        return self.twins.get(var) if value.stored_low else self.variables[var]

    def call(self, equation: Any, call: Call) -> None:
        invars = []
        for var, pair in zip(equation.invars, call.operands, strict=True):
            if pair is None:
                invars.append(var if isinstance(var, Literal) else self.variables[var])
            else:
                invars.append(self.use(var, *pair, equation))
        outvars = [self.define(v, value) for v, value in zip(equation.outvars, call.results, strict=True)]
        if equation.primitive.name == "scan" and (twins := self.loop_twins(equation, call)):
            self.scan(equation, call, twins, invars, outvars)
            return
        painted = [self.painter.program(child) for child in call.children]
        same = all(p is child.jaxpr for p, child in zip(painted, call.children, strict=True))
        if same and invars == equation.invars and outvars == equation.outvars:
            self.equations.append(equation)
            return
        params = equation.params if same else replace_sub_jaxprs(equation.params, painted)
        self.equations.append(new_equation(equation, invars, outvars, params=params))

    def loop_twins(self, equation: Any, call: Call) -> dict[int, Any]:
        """Constants of a loop that are cast before it -> what they are cast from, which goes in beside them.

        The gradient of such a constant is summed over the iterations: in float32, since it is the gradient of the twin.
        """
        count, _ = scan_groups(equation.params)
        twins = {}
        for place, (var, pair) in enumerate(zip(equation.invars[:count], call.operands[:count], strict=True)):
            if pair is not None and pair[1].stored_low and (wide := self.cast_from(var, pair[0])) is not None:
                twins[place] = wide
        return twins

    def scan(self, equation: Any, call: Call, twins: dict[int, Any], invars: list[Any], outvars: list[Any]) -> None:
        n_consts, n_carry = scan_groups(equation.params)
        groups = (n_consts + len(twins), n_carry, len(equation.invars) - n_consts - n_carry)
        body = self.painter.program(call.children[0], twins=tuple(twins))
        params = replace_sub_jaxprs(equation.params, [body]) | scan_params(*groups, len(equation.outvars) - n_carry)
        self.equations.append(new_equation(equation, [*twins.values(), *invars], outvars, params=params))
