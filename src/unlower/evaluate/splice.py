"""From a static module to a finished Jaxpr: each distinct operation is traced once, and its equations copied.

Three passes over the module:

1. `plan`: every operation gets a `Template`, shared by all operations of the same structural key (`keys.py`).
2. `fill`: the templates are traced through their rules, all those of one height in a single `jax.make_jaxpr`: first the
   operations that hold no program, then those that hold only such, and so on; a loop finds its body traced already.
3. `splice`: regions and functions are assembled by copying the equations of their operations' templates. A private function
   becomes one closed Jaxpr under a `jit` equation of its name, however often it is called.

Only 2 to 12 % of a real model's operations are distinct, and copying an equation costs a few microseconds, so this is
faster than tracing. Small templates are kept for the next load (`cache.py`). Equations carry the name scope of the operation
they came from.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from unlower._jax_compat import (
    JaxprEqn,
    JaxprParts,
    Literal,
    Var,
    canonical_constant,
    closed_jaxpr,
    equation_context,
    eval_closed_jaxpr,
    jit_equation_params,
    jit_p,
    open_closed_jaxpr,
    scoped_source_info,
    shaped_array,
    splat_equation_params,
    splat_p,
)
from unlower.errors import RuleError, UnlowerError
from unlower.evaluate.cache import shared_templates
from unlower.evaluate.keys import Interner
from unlower.evaluate.library import library_name, own_gradient, with_derivative
from unlower.evaluate.support import find_rule
from unlower.ir.attributes import DenseElements
from unlower.ir.module import CALLS, CONSTANTS, CUSTOM_CALLS, Function, Module, Op, Region, Value, walk
from unlower.ir.printer import print_place
from unlower.ir.types import TensorType
from unlower.ops.rule import apply_rule, is_specialized
from unlower.raising.outline import OUTLINED, outline

__all__ = ["splice"]

_SPECIALIZED_ELEMENTS = 1024
"""Constant operands up to this many elements are shown to the rules that ask for them."""

_SHARED_REGION_OPS = 8
"""Templates of operations that hold larger programs are not kept for later loads."""

_HOLDS_FUNCTIONS = CUSTOM_CALLS | {"stablehlo.composite"}
"""Operations whose attributes name functions, or whose attributes choose the rule."""


def splice(module: Module, rules: Mapping[str, Callable[..., Any]], gradients: Mapping[str, Callable[..., Any]]) -> Any:
    """Evaluates the entry function of a static module to a closed Jaxpr.

    Args:
      module: a checked module in which every size is known and every operation has a rule.
      rules: op name or custom-call target -> rule.
      gradients: name of a function -> what to differentiate in its place.

    Returns:
      a closed Jaxpr that takes and returns the entry's flat arrays.

    Raises:
      RuleError: a rule failed; the message draws the operation.
    """
    return _Splicer(outline(module), rules, gradients).function(module.entry)


class _Template:
    """The equations of one distinct operation, with integers for variables: operands first, then results in order."""

    __slots__ = ("consts", "key", "op", "operands", "results", "rule", "steps")

    def __init__(self, op: Op, rule: Callable[..., Any], operands: tuple[Value | np.ndarray, ...], key: Any):
        self.op, self.rule, self.operands, self.key = op, rule, operands, key
        self.steps: list[tuple[Any, ...]] = []
        self.results: list[Any] = []
        self.consts: list[tuple[Any, Any]] = []


class _RegionProgram:
    """A region as a rule sees it, its captures being tracers; see `unlower.ops.rule.Subprogram`."""

    __slots__ = ("_scope", "_splicer", "captures", "region")

    def __init__(self, splicer: "_Splicer", region: Region, captures: Sequence[Any], scope: str):
        self._splicer, self.region, self.captures, self._scope = splicer, region, captures, scope

    def jaxpr(self, *arguments: Any) -> Any:
        return self._splicer.region(self.region, self._scope)

    def __call__(self, *arguments: Any) -> tuple[Any, ...]:
        return tuple(eval_closed_jaxpr(self.jaxpr(), *self.captures, *arguments))


class _Splicer:
    def __init__(
        self, module: Module, rules: Mapping[str, Callable[..., Any]], gradients: Mapping[str, Callable[..., Any]]
    ):
        self._module, self._rules, self._gradients = module, rules, gradients
        self._constants: dict[Value, DenseElements] = {}
        for function in module.functions.values():
            for op in walk(function.body):
                if op.name in CONSTANTS:
                    self._constants[op.results[0]] = op.attributes["value"]
        self._context = equation_context()
        self._shared = shared_templates()
        self._interner = Interner(self._constants, self._shared)
        self._templates: dict[Any, _Template] = {}
        self._plans: dict[Region, list[_Template | None]] = {}
        self._closed_regions: dict[int, Any] = {}
        self._closed_functions: dict[str, Any] = {}
        self._called: dict[str, tuple[Any, dict[str, Any], Any]] = {}
        self._literals: dict[Value, Any] = {}
        self._avals: dict[int, Any] = {}
        self._found_rules: dict[str, tuple[Callable[..., Any], bool]] = {}
        self._heights: dict[Region, int] = {}
        self._waiting: dict[int, list[_Template]] = {}
        for function in module.functions.values():
            self._plan(function.body)
        for height in sorted(self._waiting):
            self._fill(self._waiting[height])

    # ------------------------------------------------------------------ pass 1: a template for every operation

    def _plan(self, region: Region) -> int:
        """Gives every operation of the region its template; returns the height of the highest.

        An operation is one higher than what it holds: its regions, and the functions that they or its attributes call.
        """
        if region in self._heights:
            return self._heights[region]
        plan: list[_Template | None] = []
        highest = 0
        templates, key_of, functions = self._templates, self._interner.op, self._module.functions
        rules = self._found_rules
        for op in region.ops:
            if op.name in CONSTANTS:
                plan.append(None)
                continue
            if op.name in CALLS:
                plan.append(None)
                highest = max(highest, self._plan(functions[str(op.attributes["callee"])].body))
                continue
            name, height = op.name, 0
            if op.regions or name in _HOLDS_FUNCTIONS:
                inner = [*op.regions, *(function.body for function in called_functions(op, self._module))]
                if inner:
                    height = 1 + max(map(self._plan, inner))
                    highest = max(highest, height)
            found = rules.get(name)
            if found is None:
                rule = find_rule(op, self._rules)
                assert rule is not None, name
                found = rule, is_specialized(rule)
                if name not in _HOLDS_FUNCTIONS:
                    rules[name] = found
            rule, specialized = found
            key, operands = key_of(op), op.operands
            if specialized:
                operands, shown = self._show_constants(op)
                key = (key, shown)
            template = templates.get(key)
            if template is None:
                # What a rule traces to depends on the op, the rule, and JAX's context (a mesh, for one).
                shared_key = (key, rule, self._context)
                template = templates[key] = _Template(op, rule, operands, shared_key)
                traced = self._shared.find(shared_key)
                if traced is None:
                    self._waiting.setdefault(height, []).append(template)
                else:
                    template.steps, template.results, template.consts = traced
            plan.append(template)
        self._plans[region] = plan
        self._heights[region] = highest
        return highest

    def _show_constants(self, op: Op) -> tuple[tuple[Value | np.ndarray, ...], tuple[Any, ...]]:
        """Replaces operands that are small constants by their values; also returns what to add to the key."""
        operands: list[Value | np.ndarray] = []
        shown: list[Any] = []
        for value in op.operands:
            constant = self._constants.get(value)
            if constant is None or constant.type.size > _SPECIALIZED_ELEMENTS:
                operands.append(value)
                shown.append(None)
            else:
                operands.append(np.array(constant.expanded()))
                shown.append(self._interner.intern(constant))
        return tuple(operands), tuple(shown)

    def _region_captures(self, op: Op) -> list[tuple[Value, ...]]:
        return [self._interner.region(region).captures for region in op.regions]

    # ------------------------------------------------------------------ pass 2: tracing the templates

    def _fill(self, templates: Sequence[_Template]) -> None:
        """Traces all `templates` at once, and cuts the trace into their equations."""
        # Operands of one type share their formal arguments between templates, but never within one: the trace has few.
        positions: dict[tuple[int, int], int] = {}
        structs: list[Any] = []
        formals: list[list[int]] = []
        for template in templates:
            seen: dict[int, int] = {}
            own: list[int] = []
            captured = [value for captures in self._region_captures(template.op) for value in captures]
            for value in (*template.op.operands, *captured):
                type_ = self._interner.intern(value.type)
                occurrence = seen[type_] = seen.get(type_, -1) + 1
                position = positions.setdefault((type_, occurrence), len(structs))
                if position == len(structs):
                    structs.append(jax.ShapeDtypeStruct(*shape_and_dtype(value)))
                own.append(position)
            formals.append(own)
        counts: list[int] = []

        def run(*tracers: Any) -> list[Any]:
            results: list[Any] = []
            for template, own in zip(templates, formals, strict=True):
                outs = self._apply(template, [tracers[position] for position in own])
                counts.append(len(outs))
                results.extend(outs)
            return results

        with jax.enable_x64(True):
            parts = open_closed_jaxpr(jax.make_jaxpr(run)(*structs))
        self._cut(parts, templates, formals, counts)

    def _apply(self, template: _Template, tracers: Sequence[Any]) -> tuple[Any, ...]:
        op, count = template.op, len(template.op.operands)
        operands = [
            shown if isinstance(shown, np.ndarray) else tracer
            for shown, tracer in zip(template.operands, tracers[:count], strict=True)
        ]
        subprograms: list[Any] = []
        scope = op.location.name if op.location and op.location.name else ""
        position = count
        for region, captures in zip(op.regions, self._region_captures(op), strict=True):
            subprograms.append(_RegionProgram(self, region, tracers[position : position + len(captures)], scope))
            position += len(captures)
        subprograms.extend(
            _RegionProgram(self, function.body, (), scope) for function in called_functions(op, self._module)
        )
        try:
            results = apply_rule(template.rule, op, operands, subprograms)
            self._check_results(op, results)
            return results
        except UnlowerError as error:
            if error.where is None:
                raise type(error)(error.what, where=print_place(op), mend=error.mend) from error
            raise
        except Exception as error:
            raise RuleError(f"the rule of {op.name} failed: {error}", where=print_place(op)) from error

    def _check_results(self, op: Op, results: Sequence[Any]) -> None:
        if len(results) != len(op.results):
            raise RuleError(f"the rule of {op.name} returned {len(results)} results, not {len(op.results)}")
        for value, result in zip(op.results, results, strict=True):
            wanted = self._aval(value)
            if np.shape(result) != wanted.shape or result.dtype != wanted.dtype:
                got = f"{result.dtype}{list(np.shape(result))}"
                raise RuleError(f"the rule of {op.name} returned {got} where the module says {value.type}")

    def _cut(
        self,
        parts: JaxprParts,
        templates: Sequence[_Template],
        formals: Sequence[Sequence[int]],
        counts: Sequence[int],
    ) -> None:
        """Hands each equation of the common trace to the template whose results need it."""
        owner: dict[Any, int] = {}
        outs: list[Sequence[Any]] = []
        position = 0
        for index, count in enumerate(counts):
            outs.append(parts.outvars[position : position + count])
            position += count
            for atom in outs[-1]:
                if type(atom) is Var:
                    owner[atom] = index
        shared = {*parts.invars, *parts.constvars}
        steps: list[list[Any]] = [[] for _ in templates]
        for equation in reversed(parts.eqns):
            index = next((owner[v] for v in equation.outvars if v in owner), None)
            if index is None:
                continue
            steps[index].append(equation)
            for atom in equation.invars:
                if type(atom) is Var and atom not in shared:
                    owner[atom] = index
        consts = dict(zip(parts.constvars, parts.consts, strict=True))
        for template, own, equations, results in zip(templates, formals, steps, outs, strict=True):
            equations.reverse()
            numbers: dict[Any, int] = {parts.invars[position]: i for i, position in enumerate(own)}
            needed = dict.fromkeys(
                v
                for atoms in (*(e.invars for e in equations), results)
                for v in atoms
                if type(v) is Var and v in consts
            )
            for v in needed:
                numbers[v] = len(numbers)
            template.consts = [(v.aval, consts[v]) for v in needed]
            template.steps = []
            for equation in equations:
                inputs = [numbers[a] if type(a) is Var else a for a in equation.invars]
                for v in equation.outvars:
                    numbers[v] = len(numbers)
                made = [v.aval for v in equation.outvars]
                template.steps.append((inputs, made, equation.primitive, equation.params, equation.effects))
            template.results = [numbers[a] if type(a) is Var else a for a in results]
            if sum(len(region.ops) for region in template.op.regions) <= _SHARED_REGION_OPS:
                self._shared.keep(template.key, (template.steps, template.results, template.consts), template.consts)

    # ------------------------------------------------------------------ pass 3: assembling

    def function(self, name: str) -> Any:
        """Returns the closed Jaxpr of a function."""
        if name not in self._closed_functions:
            function = self._module.functions[name]
            self._closed_functions[name] = self._assemble(function.body, (), function.name, "")
        return self._closed_functions[name]

    def region(self, region: Region, scope: str) -> Any:
        """Returns the closed Jaxpr of a region, which takes its captures and then its arguments.

        Names inside are made relative to `scope`, the name of the operation around, since JAX puts it before them again.
        """
        info = self._interner.region(region)
        if info.key not in self._closed_regions:
            self._closed_regions[info.key] = self._assemble(region, info.captures, "region", scope)
        return self._closed_regions[info.key]

    def _assemble(self, region: Region, captures: Sequence[Value], name: str, scope: str) -> Any:
        environment: dict[Value, Any] = {}
        invars: list[Any] = []
        for value in (*captures, *region.arguments):
            environment[value] = variable = Var(self._aval(value))
            invars.append(variable)
        equations: list[Any] = []
        constvars: list[Any] = []
        consts: list[Any] = []
        context, append = self._context, equations.append
        default_source = scoped_source_info("")
        scopes: dict[str, Any] = {}
        plan = self._plans[region]

        def read(value: Value) -> Any:
            atom = environment.get(value)
            return self._literal(value) if atom is None else atom

        for op, template in zip(region.ops, plan, strict=True):
            location = op.location
            if location is None or location.name is None:
                source = default_source
            else:
                source = scopes.get(location.name)
                if source is None:
                    source = scopes[location.name] = scoped_source_info(_scope(location.name, scope))
            if template is None:
                if op.name in CONSTANTS:
                    self._constant(op, environment, append, source, constvars, consts)
                else:
                    self._call(op, [read(v) for v in op.operands], environment, append, source)
                continue
            try:
                atoms = [environment[v] for v in op.operands]
            except KeyError:  # a scalar constant from around
                atoms = [read(v) for v in op.operands]
            if op.regions:
                for captured in self._region_captures(op):
                    atoms.extend(map(read, captured))
            for aval, value in template.consts:
                variable = Var(aval)
                constvars.append(variable)
                consts.append(value)
                atoms.append(variable)
            for inputs, made, primitive, params, effects in template.steps:
                outs = [Var(aval) for aval in made]
                append(
                    JaxprEqn(
                        [atoms[a] if type(a) is int else a for a in inputs],
                        outs,
                        primitive,
                        params,
                        effects,
                        source,
                        context,
                    )
                )
                atoms.extend(outs)
            for value, number in zip(op.results, template.results, strict=True):
                environment[value] = atoms[number] if type(number) is int else number
        outvars = [read(value) for value in region.results]
        effects = frozenset().union(*(equation.effects for equation in equations))
        return closed_jaxpr(JaxprParts(invars, outvars, equations, constvars, consts), name, effects)

    def _literal(self, value: Value) -> Any:
        """The literal of a scalar constant, which is no capture of the regions that use it."""
        literal = self._literals.get(value)
        if literal is None:
            array = self._constants[value].array
            literal = self._literals[value] = Literal(canonical_constant(array), shaped_array((), array.dtype))
        return literal

    def _constant(
        self, op: Op, environment: dict[Value, Any], append: Any, source: Any, constvars: list[Any], consts: list[Any]
    ) -> None:
        (value,) = op.results
        constant = self._constants[value]
        if constant.type.shape == ():
            environment[value] = self._literal(value)
            return
        environment[value] = variable = Var(self._aval(value))
        if constant.is_splat:
            scalar = Literal(canonical_constant(constant.array), shaped_array((), constant.array.dtype))
            params = splat_equation_params(constant.type.shape)
            append(JaxprEqn([scalar], [variable], splat_p, params, frozenset(), source, self._context))
        else:
            constvars.append(variable)
            consts.append(canonical_constant(constant.array))

    def _call(self, op: Op, atoms: list[Any], environment: dict[Value, Any], append: Any, source: Any) -> None:
        name = str(op.attributes["callee"])
        found = self._called.get(name)
        if found is None:
            found = self._called[name] = self._equation(name, op)
        primitive, params, effects = found
        outs = [Var(self._aval(value)) for value in op.results]
        append(JaxprEqn(atoms, outs, primitive, params, effects, source, self._context))
        environment.update(zip(op.results, outs, strict=True))

    def _equation(self, name: str, op: Op) -> tuple[Any, dict[str, Any], Any]:
        """Primitive, parameters and effects of the equation that calls a function."""
        closed = self.function(name)
        params = jit_equation_params(closed, len(op.operands), len(op.results), name)
        known = library_name(name) is not None or own_gradient(name, self._gradients) is not None
        if not known or closed.effects:
            return jit_p, params, closed.effects

        def run(*arguments: Any) -> tuple[Any, ...]:
            inlined = name.startswith(OUTLINED)  # its operations stand in place
            return tuple(eval_closed_jaxpr(closed, *arguments) if inlined else jit_p.bind(*arguments, **params))

        structs = [jax.ShapeDtypeStruct(*shape_and_dtype(value)) for value in op.operands]
        with jax.enable_x64(True):
            traced = jax.make_jaxpr(with_derivative(run, closed, self._module, name, self._gradients))(*structs)
        (equation,) = open_closed_jaxpr(traced).eqns
        return equation.primitive, equation.params, equation.effects

    # ------------------------------------------------------------------ types

    def _aval(self, value: Value) -> Any:
        aval = self._avals.get(id(value.type))
        if aval is None:
            aval = self._avals[id(value.type)] = shaped_array(*shape_and_dtype(value))
        return aval


def shape_and_dtype(value: Value) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and dtype of the array that stands for a value; a token is an empty array of booleans."""
    if isinstance(value.type, TensorType):
        return value.type.shape, value.type.dtype  # pyright: ignore[reportReturnType]
    return (0,), np.dtype(bool)


def called_functions(op: Op, module: Module) -> list[Function]:
    """The functions that an operation names in its attributes (a composite's decomposition, a custom call's callees)."""
    if op.name == "stablehlo.composite":
        return [module.functions[str(op.attributes["decomposition"])]]
    names = op.attributes.get("called_computations", ())
    return [module.functions[str(name)] for name in names if str(name) in module.functions]


_REGION_SCOPE = re.compile(r"/(body|cond|branch_\d+_fun)(?=/)")


def _scope(name: str, around: str) -> str:
    """The name scope of an operation: its name without the last part, relative to the operation around."""
    if around and name.startswith(around):
        name = name[len(around) :]
        inner = _REGION_SCOPE.match(name)
        name = (name[inner.end() :] if inner else name).lstrip("/")
    return name.rpartition("/")[0]
