"""`load` and `Program`: an XLA program as a JAX callable."""

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from unlower._collector import collector_paused
from unlower._jax_compat import INLINED, Tracer, jit_equation_params, jit_p
from unlower.avals import KEYS, as_seen, is_key, list_avals, spell_aval, structs_of, tensor_of, typeof
from unlower.binding import Binder, build
from unlower.differentiation import report_of
from unlower.errors import SignatureError
from unlower.evaluate import check_gradients, check_supported, evaluate_directly, is_static, splice
from unlower.ir.check import check
from unlower.ir.dimensions import Equation, parse_dimension, solve_dimensions
from unlower.ir.interface import Interface, Source
from unlower.ir.module import Module
from unlower.ops import op_rules
from unlower.ops.restore import restore
from unlower.parameters import Weights, lift
from unlower.platforms import choose_platform
from unlower.raising.loop_order import order_loops
from unlower.raising.loops import COUNTED, UNCOUNTED, Bounds, Loop, check_bounds, find_loops, raise_loops
from unlower.raising.normalize import normalize
from unlower.raising.slice_sizes import size_slices
from unlower.readers.detect import read_source
from unlower.readers.isolation import Isolation
from unlower.readers.limits import DEFAULT_LIMITS, Limits
from unlower.report import DerivativeReport, Signature
from unlower.signature import signature_of

__all__ = ["Program", "load"]


def load(
    source: Any,
    *,
    rules: Mapping[str, Callable[..., Any]] | None = None,
    elided: str | Mapping[str, Any] | None = None,
    signature: str | None = None,
    module: str | None = None,
    platform: str | int | None = None,
    limits: Limits = DEFAULT_LIMITS,
    isolate: bool | Isolation = False,
    max_iterations: int | Mapping[str, int] | None = None,
    gradients: Mapping[str, Callable[..., Any]] | None = None,
) -> "Program":
    """Loads an XLA program as a JAX function.

    Args:
      source: a path, the bytes or the text of a module, or a live object. Read today, by content and never by name:
        HloModuleProto, HloProto, HloSnapshot and HloUnoptimizedSnapshot (gzipped or not), HLO text, StableHLO text, MLIR
        bytecode, StableHLO portable artifacts, jax.export files, `jax.stages.Lowered`, `jax.export.Exported`, an MLIR module.
      rules: the rules to use instead of `unlower.op_rules`; derive them, `unlower.op_rules | {"stablehlo.foo": f}`. A custom
        call's rule is filed under its target name.
      elided: what stands for constants whose values the file left out: None refuses them, `"zeros"` puts zeros, a mapping
        gives an array for each name.
      signature: which signature or function of a SavedModel or bundle, where there are several: `"serving_default"`.
      module: which module of an XLA dump folder, or which XLA program inside a SavedModel; `unlower inspect` lists them.
      platform: of a program that was lowered for several platforms, the one whose branches to take: a name of its own
        (`"gpu"` is whichever of CUDA and ROCm it has), or a number. None takes that of JAX's default backend, or else the
        first.
      limits: how much the program may ask for: bytes, operations, constants, nesting; each has a default.
      isolate: whether XLA's and MLIR's own code reads the file in a process of its own, which a hostile file may end; an
        `Isolation` says what that process may take.
      max_iterations: at most how often loops run whose iterations depend on data, which gives them a reverse mode: a number
        for all, or a mapping from names in `program.loops`; see `Program.bound_loops`.
      gradients: functions to differentiate instead of the program's own functions of these names, whose rules were lost when
        it was lowered (`jax.custom_vjp`, `jax.lax.stop_gradient`). They take and return the same arrays, and must compute the
        same: that is proved before they are used, and an error where it is not.

    Returns:
      the program, which computes the same bits as the original under XLA.

    Raises:
      FormatError: the source is damaged, elided, or no XLA program.
      InvalidModuleError: the program is ill-formed.
      SignatureError: the program has no such platform, loop or function.
      UnsupportedOpError: operations without a rule, all of them listed, before anything runs.

    Example:
      >>> import jax, jax.numpy as jnp, unlower
      >>> program = unlower.load(jax.jit(lambda x: jnp.sin(x) * 2).lower(1.0))
      >>> jax.grad(program)(0.0)
      Array(2., dtype=float32)
    """
    table = op_rules if rules is None else rules
    # Loading makes many small objects and no garbage: the collector would only walk them again and again.
    with collector_paused():
        found, interface = read_source(
            source, elided=elided, signature=signature, module=module, limits=limits, isolate=isolate
        )
        found, interface = choose_platform(Source(normalize(found), interface), platform)
        found = size_slices(order_loops(found))
        check(found)
        check_supported(found, table)
        return Program(found, table, interface, max_iterations, gradients)


class Program:
    """A loaded XLA program: a JAX callable that takes every transformation.

    Attributes:
      module: the program in `unlower.ir`.
      interface: what its flat inputs and outputs mean: trees, names, parameters, platforms.
      in_avals: shape and dtype of each array that `flat` takes, in the module's order; symbolic sizes are the file's.
      out_avals: shape and dtype of each array that `flat` returns.
    """

    def __init__(
        self,
        module: Module,
        rules: Mapping[str, Callable[..., Any]],
        interface: Interface,
        max_iterations: Bounds = None,
        gradients: Mapping[str, Callable[..., Any]] | None = None,
    ):
        self.module = module
        self.interface = interface
        self._rules = rules
        self._bounds, self._gradients = max_iterations, dict(gradients or {})
        check_gradients(self._gradients, module)
        check_bounds(max_iterations, self.loops if isinstance(max_iterations, Mapping) else ())
        # A rule of the caller's own for loops sees every loop.
        own = (
            rules.get("stablehlo.while") is not op_rules["stablehlo.while"] or not {COUNTED, UNCOUNTED} <= rules.keys()
        )
        self._raised = module if own else raise_loops(module, self.loops, max_iterations)
        self.__name__ = self.__qualname__ = module.name
        body = module.main.body
        inputs = interface.inputs
        self._dimensions = [i for i, x in enumerate(inputs) if x.role == "dimension"]
        self._equations = [(x.name, x.shape) for x in inputs if x.role == "argument" and x.shape is not None]
        known = {
            v for _, shape in self._equations for n in shape if isinstance(n, str) for v in parse_dimension(n).variables
        }
        self._solved = bool(self._dimensions) and all(inputs[i].name in known for i in self._dimensions)
        given = ("argument",) if self._solved else ("argument", "dimension")
        self._given = [i for i, x in enumerate(inputs) if x.role in given]
        self._returned = [i for i, x in enumerate(interface.outputs) if x.role != "token"]
        scope = jax.export.SymbolicScope()
        self.in_avals = structs_of(body.arguments, inputs, self._given, "arg", scope)
        self.out_avals = structs_of(body.results, interface.outputs, self._returned, "out", scope)
        weights = {
            str(x.parameter): tensor_of(body.arguments[i]) for i, x in enumerate(inputs) if x.role == "parameter"
        }
        self._weights = Weights(interface, weights)
        self._static = is_static(module) and not self._dimensions
        if self._static:
            self._spliced = splice(self._raised, rules, self._gradients)
        self._compiled = jax.jit(
            lambda *inputs: self._bind(*inputs), static_argnums=() if self._solved else tuple(self._dimensions)
        )
        self._expected = [
            None if interface.inputs[i].role == "dimension" else (aval.dtype, aval.shape)
            for i, aval in zip(self._given, self.in_avals, strict=True)
        ]
        self._binder = None if interface.arguments is None else Binder(interface, self._fits)

    @property
    def jaxpr(self) -> Any:
        """The program as a closed Jaxpr over its flat arrays; raises SignatureError where sizes are not known yet."""
        if not self._static:
            raise SignatureError(
                "the program has sizes that are known only when it is called, so it has no single Jaxpr",
                mend="use jax.make_jaxpr(program.flat)(*arrays)",
            )
        return self._restored

    @functools.cached_property
    def _restored(self) -> Any:
        # Waits for the first call: that costs more than loading may.
        return restore(self._spliced)

    @functools.cached_property
    def _bind(self) -> Callable[..., Any]:
        if not self._static:
            return self._evaluate
        body = self.module.main.body
        params = jit_equation_params(self._restored, len(body.arguments), len(body.results), self.module.name)
        # Lowered in place, a program that is all there is to a jit compiles to what the original compiled to.
        return functools.partial(jit_p.bind, **params | {"inline": INLINED})

    @functools.cached_property
    def loops(self) -> tuple[Loop, ...]:
        """The loops of the program: how often each runs, which gives it a reverse mode, or why that is not known."""
        return tuple(find_loops(self.module))

    @functools.cached_property
    def signature(self) -> Signature:
        """How the program is called: arguments and results, by name and type, platforms, notes; made to be printed."""
        return signature_of(self.module, self.interface)

    def report(self) -> DerivativeReport:
        """Says how the program is differentiated: its loops, functions whose rules were recovered or not, what has none.

        Returns:
          a record that prints as text, and turns into JSON by `to_json`.

        Example:
          >>> import jax, unlower
          >>> print(unlower.load(jax.jit(jax.nn.relu).lower(1.0)).report())
          jit_relu: nothing is known to be lost
            functions with a derivative of their own:
              relu, @relu, 1 call: differentiates as the original
        """
        closed = self._spliced if self._static else None
        return report_of(self.module, self.loops, self._bounds, self._gradients, closed)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the program on the arguments of the original call, as far as the file tells what that was.

        `print(program.signature)` shows them. Arguments are found by their key paths, so a dict may stand for an object of
        the original, and what the module does not use may be there or not. Results come back in the tree of the original;
        objects of classes that this process does not know are dicts or lists. Where the file tells nothing, this takes the
        arrays of `flat`, and returns an array, or a tuple of them unless there is exactly one.

        Raises:
          SignatureError: an argument is missing, misplaced or of the wrong type; the message has its path.
        """
        return self._call(args, kwargs, {})

    @property
    def parameters(self) -> dict[str, np.ndarray]:
        """The weights that the file or folder brings, by name; empty where it takes them as arguments or bakes them in.

        Calls use them by default, `apply` uses others. `lift_constants` makes parameters of what is baked in.
        """
        return self._weights.arrays()

    def apply(self, parameters: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Runs the program with other weights: the functional form, for training.

        Args:
          parameters: arrays by name, of the shapes and dtypes in `self.parameters`; those that are left out keep the file's
            values, so a part of a model can be trained alone.
          *args: as of a call.
          **kwargs: as of a call.

        Raises:
          SignatureError: a name or an array that does not fit, or as of a call.

        Example:
          >>> import jax, jax.numpy as jnp, numpy as np, unlower
          >>> frozen = unlower.load(jax.jit(lambda x: x @ np.arange(20.0, dtype="f4")).lower(jnp.ones(20)))
          >>> program = frozen.lift_constants()
          >>> (name,) = program.parameters
          >>> loss = lambda parameters, x: program.apply(parameters, x)
          >>> jax.grad(loss)(program.parameters, jnp.ones(20))[name].shape
          (20,)
        """
        return self._call(args, kwargs, parameters)

    def lift_constants(self, *, min_elements: int = 17, match: Any = None) -> "Program":
        """Makes parameters of the weights that are baked into the program, so that it can be fine-tuned.

        Weights are float constants whose elements are not all the same; integers never are. Constants with the same bytes
        become one parameter. They are named by the scope and operand of what first uses them (`encoder/dot_general.rhs`).

        Args:
          min_elements: the number of elements from which on a constant is a weight.
          match: where to take names from: a mapping from name to array, a pytree of arrays, or the path of a safetensors or
            `.npz` file. A constant that has the bytes of an array there gets its name, however small it is, and becomes a
            parameter of its shape; so does one that equals exactly one transpose of exactly one array.

        Returns:
          a new program, which gives the same results; its `parameters` hold what was lifted, beside those of this one.

        Raises:
          FormatError: a damaged checkpoint.
        """
        lifted = lift(self.module, self.interface, min_elements=min_elements, match=match)
        if lifted.module is self.module:
            return self
        return Program(lifted.module, self._rules, lifted.interface, self._bounds, self._gradients)

    def bound_loops(self, max_iterations: int | Mapping[str, int]) -> "Program":
        """Gives loops whose iterations depend on data a reverse mode, by saying at most how often they run.

        Values stay those of the loop itself, however often it runs. Derivatives go through a nest of scans that skips what
        the loop does not run, and keeps about the square root of the bound in memory (its cube root above 4096). Where the
        loop runs on after that many iterations, they are NaN.

        Args:
          max_iterations: a number for all such loops, or a mapping from names in `loops`, for these alone.

        Returns:
          a new program, which gives the same results.

        Raises:
          SignatureError: a number below 1, or a loop that is not there.

        Example:
          >>> import jax, unlower
          >>> f = lambda x: jax.lax.while_loop(lambda y: y < 10.0, lambda y: y * 2.0, x)
          >>> program = unlower.load(jax.jit(f).lower(1.5))
          >>> [loop.name for loop in program.loops]
          ['main.while_0']
          >>> jax.grad(program.bound_loops({"main.while_0": 8}))(1.5)
          Array(8., dtype=float32)
        """
        bounds: Bounds = max_iterations
        if isinstance(self._bounds, Mapping) and isinstance(max_iterations, Mapping):
            bounds = {**self._bounds, **max_iterations}
        return Program(self.module, self._rules, self.interface, bounds, self._gradients)

    def _call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], parameters: Mapping[str, Any]) -> Any:
        if self._binder is None:
            if kwargs:
                raise SignatureError(
                    f"the file does not say what its arguments are called, so there is no {', '.join(kwargs)}",
                    mend="pass the arrays by position, in the module's order",
                )
            arrays: Sequence[Any] = args
        else:
            found = self._binder(args, kwargs)
            arrays = [self._leaf(found, i) for i in self._given]
        results = self._run(arrays, parameters)
        outputs = [self.interface.outputs[i] for i in self._returned]
        results = [as_seen(result, output.dtype) for result, output in zip(results, outputs, strict=True)]
        if self.interface.results is None:
            return results[0] if len(results) == 1 else tuple(results)
        by_leaf = {output.leaf: result for output, result in zip(outputs, results, strict=True)}
        return build(self.interface.results, [by_leaf[leaf] for leaf in range(len(by_leaf))])

    def flat(self, *arrays: Any) -> tuple[Any, ...]:
        """Runs the program on arrays in the module's flat order, and returns a tuple in the module's flat order.

        Args:
          *arrays: one array for each of `in_avals`, of its very shape and dtype; Python scalars take the dtype.

        Raises:
          SignatureError: the number, a shape or a dtype differs; the message has the expected and the given signature.
        """
        return self._run(arrays, {})

    def _run(self, arrays: Sequence[Any], parameters: Mapping[str, Any]) -> tuple[Any, ...]:
        inputs = self._fill(self._checked(arrays), parameters)
        if any(isinstance(argument, Tracer) for argument in inputs):
            # Equations are staged here, a program's worth of small objects and no garbage.
            with collector_paused():
                results = self._bind(*inputs)
        else:
            # Without this JAX would narrow the program's 64-bit arguments on their way in.
            with jax.enable_x64(True):
                results = self._compiled(*inputs)
        return tuple([results[i] for i in self._returned])

    # --- the module's inputs

    def _fill(self, arrays: Sequence[Any], parameters: Mapping[str, Any]) -> list[Any]:
        """Puts beside the caller's arrays what else the module takes; dimensions that are solved come later.

        Args:
          arrays: one for each of `in_avals`.
          parameters: weights to use instead of the file's, by name.
        """
        inputs: list[Any] = [None] * len(self.interface.inputs)
        for i, array in zip(self._given, arrays, strict=True):
            inputs[i] = array
        weights = self._weights.choose(parameters)
        for i, declared in enumerate(self.interface.inputs):
            if declared.role == "parameter":
                inputs[i] = weights[str(declared.parameter)]
            elif declared.role == "token":
                inputs[i] = np.zeros((0,), bool)
        return inputs

    def original_inputs(self, arrays: Sequence[Any]) -> list[Any]:
        """Returns what the module in the file takes for the arrays that `flat` takes: the platform index too, for one."""
        inputs = self._with_dimensions(self._fill(self._checked(arrays), {}))
        for position, value in sorted(self.interface.fixed.items()):
            inputs.insert(position, value)
        return inputs

    def _evaluate(self, *inputs: Any) -> tuple[Any, ...]:
        """Runs a program with unknown sizes; every input has a shape by now."""
        return evaluate_directly(self._raised, self._rules, self._with_dimensions(inputs))

    def _with_dimensions(self, inputs: Sequence[Any]) -> list[Any]:
        filled = list(inputs)
        if self._solved:
            names = [str(self.interface.inputs[i].name) for i in self._dimensions]
            sizes = solve_dimensions(names, self._size_equations(inputs))
            for i, name in zip(self._dimensions, names, strict=True):
                filled[i] = sizes[name]
        for i in self._dimensions:
            filled[i] = np.asarray(filled[i], tensor_of(self.module.main.body.arguments[i]).dtype)
        return filled

    def _size_equations(self, inputs: Sequence[Any]) -> list[Equation]:
        equations: list[Equation] = []
        for declared, array in zip(self.interface.inputs, inputs, strict=True):
            if declared.role != "argument":
                continue
            for axis, size in enumerate(declared.shape or ()):
                if isinstance(size, str):
                    place = f"size {axis} of {declared.name}"
                    equations.append(Equation(parse_dimension(size), np.shape(array)[axis], place))
        return equations

    # --- checking what the caller gave

    def _leaf(self, found: Mapping[int, Any], position: int) -> Any:
        declared = self.interface.inputs[position]
        if declared.leaf is None or declared.leaf not in found:
            raise SignatureError(
                f"the program also takes {declared.name or f'input {position}'}, which is no part of its call",
                mend="use program.flat",
            )
        return found[declared.leaf]

    def _fits(self, leaf: int, array: Any) -> bool:
        """Whether an array has the type of a leaf of the arguments."""
        for number, position in enumerate(self._given):
            if self.interface.inputs[position].leaf == leaf:
                return self._misfit(number, array) is None
        return True

    def _checked(self, arrays: Sequence[Any]) -> list[Any]:
        if len(arrays) != len(self.in_avals):
            raise self._mismatch(f"the program takes {len(self.in_avals)} arrays, not {len(arrays)}", arrays)
        checked: list[Any] = []
        for number, (array, expected) in enumerate(zip(arrays, self._expected, strict=True)):
            # Most arguments are arrays of the very type, and there can be hundreds.
            if expected is not None and hasattr(array, "dtype") and (array.dtype, array.shape) == expected:
                checked.append(array)
                continue
            problem = self._misfit(number, array)
            if problem is not None:
                raise self._mismatch(problem, arrays)
            declared, wanted = self.interface.inputs[self._given[number]], self.in_avals[number]
            if declared.role == "dimension":
                array = operator.index(array)
            elif isinstance(array, bool | int | float | complex):
                array = np.asarray(array, wanted.dtype)
            elif is_key(array):
                array = jax.random.key_data(array)
            elif array.dtype == jax.dtypes.float0:
                array = np.zeros(array.shape, bool)
            checked.append(array)
        return checked

    def _misfit(self, number: int, array: Any) -> str | None:
        """Says what is wrong with the array for one of `in_avals`, or None."""
        declared, wanted = self.interface.inputs[self._given[number]], self.in_avals[number]
        name = declared.name or f"argument {number}"
        if declared.role == "dimension":
            try:
                operator.index(array)
            except TypeError:
                return f"{name} is a size, and must be a number that is known while tracing"
            return None
        if isinstance(array, bool | int | float | complex):
            return None if not wanted.shape else f"{name} is a number, not {spell_aval(wanted)}"
        try:
            given = typeof(array)
        except TypeError:
            return f"{name} is of the class {type(array).__name__}, which is no array"
        dtype, shape = given.dtype, tuple(wanted.shape)
        if declared.dtype in KEYS and is_key(array):
            dtype, shape = wanted.dtype, shape[: len(given.shape)]
            if str(given.dtype) != declared.dtype:
                return f"{name} is {given.dtype}, not {declared.dtype}"
        elif declared.dtype == "float0" and given.dtype == jax.dtypes.float0:
            dtype = wanted.dtype
        same = dtype == wanted.dtype and len(given.shape) == len(shape)
        if same and all(g == w for g, w in zip(given.shape, shape, strict=True) if isinstance(w, int)):
            return None
        return f"{name} is {spell_aval(given)}, not {spell_aval(wanted)}"

    def _mismatch(self, what: str, arrays: Sequence[Any]) -> SignatureError:
        narrowed = {"float32": "float64", "int32": "int64", "uint32": "uint64", "complex64": "complex128"}
        wide = any(
            hasattr(array, "dtype") and narrowed.get(array.dtype.name) == aval.dtype.name
            for array, aval in zip(arrays, self.in_avals, strict=False)
        )
        mend = "pass arrays of the expected shapes and dtypes"
        if wide and not jax.config.read("jax_enable_x64"):
            mend = "the program computes in 64 bits: jax.config.update('jax_enable_x64', True)"
        expected, given = list_avals(self.in_avals), list_avals(arrays)
        return SignatureError(f"{what}\n  expected: ({expected})\n  given:    ({given})", mend=mend)

    def __repr__(self) -> str:
        inputs = ", ".join(map(spell_aval, self.in_avals))
        outputs = ", ".join(map(spell_aval, self.out_avals))
        return f"<unlower.Program {self.module.name}: ({inputs}) -> ({outputs})>"
