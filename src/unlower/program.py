"""`load` and `Program`: an XLA program as a JAX callable."""

import contextlib
import functools
import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from unlower._jax_compat import INLINED, Tracer, jit_equation_params, jit_p
from unlower.errors import SignatureError
from unlower.evaluate import check_supported, evaluate_directly, is_static, splice
from unlower.ir.check import check
from unlower.ir.interface import Interface
from unlower.ir.module import Module, Value
from unlower.ir.types import TensorType
from unlower.ops import op_rules
from unlower.raising.loop_order import order_loops
from unlower.raising.normalize import normalize
from unlower.raising.slice_sizes import size_slices
from unlower.readers.detect import read_source

__all__ = ["Program", "load", "spell_aval"]


def load(
    source: Any,
    *,
    rules: Mapping[str, Callable[..., Any]] | None = None,
    elided: str | Mapping[str, Any] | None = None,
    signature: str | None = None,
    module: str | None = None,
) -> "Program":
    """Loads an XLA program as a JAX function.

    Args:
      source: a path, the bytes or the text of a module, or a live object. Read today, by content and never by name:
        HloModuleProto, HloProto, HloSnapshot and HloUnoptimizedSnapshot (gzipped or not), HLO text, StableHLO text, MLIR
        bytecode, StableHLO portable artifacts, `jax.stages.Lowered`, `jax.export.Exported`, an MLIR module.
      rules: the rules to use instead of `unlower.op_rules`; derive them, `unlower.op_rules | {"stablehlo.foo": f}`. A custom
        call's rule is filed under its target name.
      elided: what stands for constants whose values the file left out: None refuses them, `"zeros"` puts zeros, a mapping
        gives an array for each name.
      signature: which signature or function of a SavedModel or bundle, where there are several: `"serving_default"`.
      module: which module of an XLA dump folder, or which XLA program inside a SavedModel; `unlower inspect` lists them.

    Returns:
      the program, which computes the same bits as the original under XLA.

    Raises:
      FormatError: the source is damaged, elided, or no XLA program.
      InvalidModuleError: the program is ill-formed.
      UnsupportedOpError: operations without a rule, all of them listed, before anything runs.

    Example:
      >>> import jax, jax.numpy as jnp, unlower
      >>> program = unlower.load(jax.jit(lambda x: jnp.sin(x) * 2).lower(1.0))
      >>> jax.grad(program)(0.0)
      Array(2., dtype=float32)
    """
    table = op_rules if rules is None else rules
    # Loading makes many small objects and no garbage: the collector would only walk them again and again.
    with _collector_paused():
        found, interface = read_source(source, elided=elided, signature=signature, module=module)
        found = size_slices(order_loops(normalize(found)))
        check(found)
        check_supported(found, table)
        return Program(found, table, interface)


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class Program:
    """A loaded XLA program: a JAX callable that takes every transformation.

    Attributes:
      module: the program in `unlower.ir`.
      interface: what its flat inputs and outputs mean: trees, names, parameters, platforms.
      in_avals: shape and dtype of each flat argument, in the module's order.
      out_avals: shape and dtype of each flat result.
    """

    def __init__(self, module: Module, rules: Mapping[str, Callable[..., Any]], interface: Interface):
        self.module = module
        self.interface = interface
        self._rules = rules
        self._static = is_static(module)
        body = module.main.body
        scope = jax.export.SymbolicScope()
        self.in_avals = _structs(body.arguments, "arg", scope)
        self.out_avals = _structs(body.results, "out", scope)
        self.__name__ = self.__qualname__ = module.name
        if self._static:
            self._jaxpr = splice(module, rules)
            self._params = jit_equation_params(self._jaxpr, len(self.in_avals), len(self.out_avals), module.name)
            # Lowered in place, a program that is all there is to a jit compiles to what the original compiled to.
            bind: Callable[..., Any] = functools.partial(jit_p.bind, **self._params | {"inline": INLINED})
        else:

            def run(*arguments: Any) -> tuple[Any, ...]:
                return evaluate_directly(module, rules, arguments)

            run.__name__ = run.__qualname__ = module.name
            bind = run
        self._bind = bind
        self._compiled = jax.jit(lambda *arguments: bind(*arguments))

    @property
    def jaxpr(self) -> Any:
        """The program as a closed Jaxpr over its flat arrays; raises SignatureError where sizes are not known yet."""
        if not self._static:
            raise SignatureError(
                "the program has sizes that are known only when it is called, so it has no single Jaxpr",
                mend="use jax.make_jaxpr(program.flat)(*arrays)",
            )
        return self._jaxpr

    def __call__(self, *arrays: Any) -> Any:
        """Runs the program on its arrays; returns an array, or a tuple of them unless there is exactly one."""
        results = self.flat(*arrays)
        return results[0] if len(results) == 1 else results

    def flat(self, *arrays: Any) -> tuple[Any, ...]:
        """Runs the program on arrays in the module's flat order, and returns a tuple in the module's flat order.

        Args:
          *arrays: one array for each of `in_avals`, of its very shape and dtype; Python scalars take the dtype.

        Raises:
          SignatureError: the number, a shape or a dtype differs; the message has the expected and the given signature.
        """
        arguments = self._arguments(arrays)
        if any(isinstance(argument, Tracer) for argument in arguments):
            return tuple(self._bind(*arguments))
        # Without this JAX would narrow the program's 64-bit arguments on their way in.
        with jax.enable_x64(True):
            return tuple(self._compiled(*arguments))

    def _arguments(self, arrays: Sequence[Any]) -> list[Any]:
        if len(arrays) != len(self.in_avals):
            raise self._mismatch(f"the program takes {len(self.in_avals)} arrays, not {len(arrays)}", arrays)
        arguments = []
        for position, (array, wanted) in enumerate(zip(arrays, self.in_avals, strict=True)):
            if isinstance(array, bool | int | float | complex):
                array = np.asarray(array, wanted.dtype)
            given = _typeof(array)
            same = given.dtype == wanted.dtype and len(given.shape) == len(wanted.shape)
            if not same or any(isinstance(w, int) and g != w for g, w in zip(given.shape, wanted.shape, strict=True)):
                raise self._mismatch(f"argument {position} is {spell_aval(given)}, not {spell_aval(wanted)}", arrays)
            arguments.append(array)
        return arguments

    def _mismatch(self, what: str, arrays: Sequence[Any]) -> SignatureError:
        narrowed = {"float32": "float64", "int32": "int64", "uint32": "uint64", "complex64": "complex128"}
        wide = any(
            narrowed.get(_typeof(array).dtype.name) == aval.dtype.name
            for array, aval in zip(arrays, self.in_avals, strict=False)
        )
        given = ", ".join(spell_aval(_typeof(a)) for a in arrays)
        expected = ", ".join(map(spell_aval, self.in_avals))
        mend = "pass arrays of the expected shapes and dtypes"
        if wide and not jax.config.read("jax_enable_x64"):
            mend = "the program computes in 64 bits: jax.config.update('jax_enable_x64', True)"
        return SignatureError(f"{what}\n  expected: ({expected})\n  given:    ({given})", mend=mend)

    def __repr__(self) -> str:
        inputs = ", ".join(map(spell_aval, self.in_avals))
        outputs = ", ".join(map(spell_aval, self.out_avals))
        return f"<unlower.Program {self.module.name}: ({inputs}) -> ({outputs})>"


def _typeof(array: Any) -> Any:
    """Shape and dtype as they are, where `jax.typeof` would narrow NumPy's 64-bit types."""
    return array if isinstance(array, np.ndarray | np.generic) else jax.typeof(array)


def spell_aval(aval: Any) -> str:
    """Spells shape and dtype, e.g. `float32[2,3]`."""
    return f"{aval.dtype.name}[{','.join(map(str, aval.shape))}]"


def _structs(values: Sequence[Value], prefix: str, scope: Any) -> tuple[jax.ShapeDtypeStruct, ...]:
    structs = []
    for position, value in enumerate(values):
        if not isinstance(value.type, TensorType):
            structs.append(jax.ShapeDtypeStruct((0,), np.dtype(bool)))
            continue
        sizes = [f"{prefix}{position}_{i}" if n is None else str(n) for i, n in enumerate(value.type.shape)]
        shape = value.type.shape
        if None in shape:
            shape = jax.export.symbolic_shape(", ".join(sizes), scope=scope)
        structs.append(jax.ShapeDtypeStruct(shape, value.type.dtype))
    return tuple(structs)
