"""Functions of JAX's libraries, recognised by proof, and their derivatives.

JAX lowers `jax.nn.relu` to a function of that name, and the rule that says how it is differentiated is gone. The name is a
hint only: the library's function is lowered at the same types, by the same way as the module came, and is taken for what was
lowered once where the two compute the same (`raising.canonical`). Then it is differentiated in its place; the program itself
stays what it is. All of this waits until somebody asks for a derivative.
"""

import contextlib
import functools
import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.special
from jax import lax

from unlower._jax_compat import NATIVE_ERRORS, eval_closed_jaxpr, mlir_ir
from unlower.errors import SignatureError, UnlowerError
from unlower.ir.module import Module
from unlower.ir.types import TensorType
from unlower.ops.restore import restore
from unlower.raising.canonical import canonical_form
from unlower.raising.loop_order import came_through_hlo
from unlower.raising.normalize import normalize
from unlower.raising.outline import OUTLINED
from unlower.readers.elision import Elision
from unlower.readers.hlo_proto import module_from_hlo_proto
from unlower.readers.mlir_module import module_from_mlir

__all__ = ["LIBRARY", "check_gradients", "differentiated_as", "library_name", "own_gradient", "with_derivative"]

Function = Callable[..., Any]
Candidates = Callable[[Sequence[Any]], Iterator[Function]]

_NUMBERED = re.compile(r"[._]\d+$")


def _plain(function: Function) -> Candidates:
    return lambda avals: iter([function])


def _along_axes(function: Function, **static: Sequence[Any]) -> Candidates:
    """Candidates for every axis of the first argument, and for each value of another static argument."""

    def candidates(avals: Sequence[Any]) -> Iterator[Function]:
        for axis in range(len(avals[0].shape)):
            if not static:
                yield functools.partial(function, axis=axis)
            for name, values in static.items():
                for value in values:
                    yield functools.partial(function, axis=axis, **{name: value})

    return candidates


def _expn(avals: Sequence[Any]) -> Iterator[Function]:
    """Candidates of an exponential integral, whose order is an argument or the constant 1."""
    yield jax.scipy.special.exp1 if len(avals) == 1 else jax.scipy.special.expn


def _random_gamma(avals: Sequence[Any]) -> Iterator[Function]:
    """Candidates of what takes the data of one key, and shape parameters."""
    for implementation in ("threefry2x32", "rbg", "unsafe_rbg"):
        for sample in (jax.random.gamma, jax.random.loggamma):

            def run(key: Any, a: Any, implementation: str = implementation, sample: Any = sample) -> Any:
                return sample(jax.random.wrap_key_data(key, impl=implementation), a, a.shape, a.dtype)

            yield run


LIBRARY: Mapping[str, Candidates] = {
    **{
        name: _plain(getattr(jax.nn, name))
        for name in (
            "hard_sigmoid",
            "hard_silu",
            "log_sigmoid",
            "mish",
            "relu",
            "relu6",
            "silu",
            "soft_sign",
            "softplus",
            "sparse_plus",
            "sparse_sigmoid",
            "squareplus",
        )
    },
    **{
        OUTLINED + name: _plain(function)
        for name, function in {
            "asin": lax.asin,
            "entr": jax.scipy.special.entr,
            "logaddexp": jnp.logaddexp,
            "logistic": lax.logistic,
            "logit": jax.scipy.special.logit,
            "softplus": lambda x: jnp.logaddexp(x, 0.0),
            "power_of_minus_2": lambda x: lax.integer_pow(x, -2),
            "power_of_minus_3": lambda x: lax.integer_pow(x, -3),
            "power_of_minus_4": lambda x: lax.integer_pow(x, -4),
        }.items()
    },
    "_expn": _expn,
    "_gamma": _random_gamma,
    "_rel_entr": _plain(jax.scipy.special.rel_entr),
    "cumlogsumexp": _along_axes(lax.cumlogsumexp, reverse=(False, True)),
    "cummax": _along_axes(lax.cummax, reverse=(False, True)),
    "cummin": _along_axes(lax.cummin, reverse=(False, True)),
    "cumprod": _along_axes(lax.cumprod, reverse=(False, True)),
    "cumsum": _along_axes(lax.cumsum, reverse=(False, True)),
    "expn": _expn,
    "expi": _plain(jax.scipy.special.expi),
    "hypot": _plain(jnp.hypot),
    "lgamma_impl": _plain(lax.lgamma),
    "log_softmax": _along_axes(jax.nn.log_softmax),
    "logaddexp": _plain(jnp.logaddexp),
    "logaddexp2": _plain(jnp.logaddexp2),
    "sici": _plain(jax.scipy.special.sici),
    "sinc": _plain(jnp.sinc),
}
"""Name of a function in a module -> what it may have been lowered from, given the types of its arguments.

Those are here whose own derivative is not that of their body: at ties and edges, at zero, far out, or everywhere.
"""


def library_name(name: str) -> str | None:
    """The name under which `LIBRARY` has the function `name` of a module, which may have got a number; None if not at all.

    Example:
      >>> library_name("relu_3"), library_name("relu.12"), library_name("log_softmax"), library_name("layer_3")
      ('relu', 'relu', 'log_softmax', None)
    """
    return _named(name, LIBRARY)


def _named(name: str, table: Container[str]) -> str | None:
    while name not in table:
        shorter = _NUMBERED.sub("", name)
        if shorter == name:
            return None
        name = shorter
    return name


def own_gradient(name: str, gradients: Mapping[str, Function]) -> Function | None:
    """What the caller wants differentiated in place of the function `name` of a module, which may have got a number."""
    found = _named(name, gradients)
    return None if found is None else gradients[found]


def check_gradients(gradients: Mapping[str, Function], module: Module) -> None:
    """Raises SignatureError where the caller names functions that the module does not have."""
    if not gradients:
        return
    there = {_named(name, gradients) for name in module.functions}
    if missing := [name for name in gradients if name not in there]:
        private = [name for name in module.functions if name != module.entry]
        raise SignatureError(
            f"gradients names functions that the program does not have: {', '.join(missing)}",
            mend=f"it has {', '.join(private) or 'none'}; a function under jax.jit keeps its name when it is lowered",
        )


def differentiated_as(module: Module, name: str, gradients: Mapping[str, Function] | None = None) -> Function | None:
    """Finds the library's function that was lowered to the function `name` of a module; None if there is no proof.

    Args:
      module: where the function is.
      name: its name there.
      gradients: the caller's own functions by name, which are looked at first.

    Returns:
      a function that takes the same arguments and returns a tuple of the same results, for its derivative.

    Raises:
      UnlowerError: the caller's own function does not compute the same.

    Example:
      >>> import jax, unlower
      >>> module = unlower.load(jax.jit(jax.nn.relu).lower(1.0)).module
      >>> jax.grad(lambda x: differentiated_as(module, "relu")(x)[0])(0.0)
      Array(0., dtype=float32, weak_type=True)
    """
    known, own = library_name(name), own_gradient(name, gradients or {})
    function = module.functions[name]
    types = [value.type for value in function.body.arguments]
    if not all(isinstance(type_, TensorType) and type_.is_static for type_ in types):
        return None
    wanted = canonical_form(module, name)
    avals = tuple((type_.shape, type_.dtype) for type_ in types if isinstance(type_, TensorType))
    through_hlo = came_through_hlo(module)
    variants: list[_Variant] = []
    if own is not None:
        variants += _variants_of(_plain(own), avals, through_hlo)
    if known is not None:
        variants += _variants(known, avals, through_hlo)
    for variant in variants:
        # The module may have lost results that nobody read.
        if wanted is not None and variant.form is not None and set(wanted) <= set(variant.form):
            return functools.partial(_some_results, variant, tuple(map(variant.form.index, wanted)))
    if own is not None:
        spelled = ", ".join(map(str, types))
        raise UnlowerError(
            f"the function that gradients has for @{name} does not compute what it computes",
            where=f"@{name}({spelled})",
            mend="give the function that was lowered; it takes these arrays and returns its results, or a tree of them",
        )
    return None


@contextlib.contextmanager
def _as_written(wide: bool) -> Iterator[None]:
    """The library's own surroundings: some functions take no arrays of 64 bits, others are cut short without them."""
    with jax.enable_x64(wide), jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


class _Variant:
    """A candidate, lowered at some types in one of several ways; not before its form is asked for."""

    def __init__(self, candidate: Function, structs: Sequence[Any], through_hlo: bool, wide: bool):
        self.candidate = candidate
        self._structs, self._through_hlo, self.wide = structs, through_hlo, wide

    @functools.cached_property
    def form(self) -> tuple[bytes, ...] | None:
        """What it computes; None if it takes no such arguments."""
        try:
            module = self._lowered()
        except (TypeError, ValueError, UnlowerError, mlir_ir.MLIRError, *NATIVE_ERRORS):
            return None
        return canonical_form(module, module.entry)

    def _lowered(self) -> Module:
        with _as_written(self.wide):
            # A name of its own keeps JAX from taking it for the function that is there.
            lowered = jax.jit(lambda *arguments: self.candidate(*arguments)).lower(*self._structs)
        if not self._through_hlo:
            return normalize(module_from_mlir(lowered.compiler_ir("stablehlo")))
        computation = lowered.compiler_ir("hlo")
        assert computation is not None
        read = module_from_hlo_proto(computation.as_serialized_hlo_module_proto(), Elision())
        return normalize(read if isinstance(read, Module) else read.module)


def _some_results(variant: _Variant, kept: tuple[int, ...], *arguments: Any) -> tuple[Any, ...]:
    with _as_written(variant.wide):
        results = jax.tree.leaves(variant.candidate(*arguments))
    return tuple(results[i] for i in kept)


@functools.lru_cache(maxsize=1024)
def _variants(name: str, avals: tuple[Any, ...], through_hlo: bool) -> list[_Variant]:
    """What a function of this name and of arguments of these types may have been lowered from, and how."""
    return _variants_of(LIBRARY[name], avals, through_hlo)


def _variants_of(candidates: Candidates, avals: tuple[Any, ...], through_hlo: bool) -> list[_Variant]:
    found = []
    # A scalar that was a Python number has a type of its own, which changes what some functions are lowered to.
    for weak in [False, True] if any(shape == () for shape, _ in avals) else [False]:
        structs = [jax.ShapeDtypeStruct(shape, dtype, weak_type=weak and shape == ()) for shape, dtype in avals]
        for candidate in candidates(structs):
            found += [_Variant(candidate, structs, through_hlo, wide) for wide in (False, True)]
    return found


def with_derivative(
    run: Function, closed: Any, module: Module, name: str, gradients: Mapping[str, Function] | None = None
) -> Function:
    """Returns `run`, the function `name` of a module, with the derivative of what it was lowered from, if that is proved.

    Args:
      run: the function.
      closed: the same as a closed Jaxpr, which is differentiated if nothing is proved.
      module: where it is.
      name: its name there.
      gradients: the caller's own functions by name.
    """
    find = functools.cache(lambda: differentiated_as(module, name, gradients))
    with_rule = jax.custom_jvp(run)

    @with_rule.defjvp
    def _(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        candidate = find()
        if candidate is None:
            return jax.jvp(lambda *xs: tuple(eval_closed_jaxpr(restore(closed), *xs)), primals, tangents)
        return jax.jvp(candidate, primals, tangents)

    return with_rule
