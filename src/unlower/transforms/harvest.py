"""`tag`, `harvest`, `plant`: values inside a function by name, taken out or put in.

`tag` marks a value. It is the identity, and a primitive: differentiated, it marks the tangent, and transposed the cotangent,
under the same name. So `harvest(jax.grad(f), kind="cotangent")` takes out the gradient with respect to an intermediate value.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.interpreters import ad, batching, mlir

from unlower._jax_compat import eval_closed_jaxpr, new_primitive
from unlower._jax_compat_interpret import jaxpr_parts, scan_groups
from unlower.errors import UnlowerError
from unlower.interpret import Interpreter, Log, walk

__all__ = ["PlantError", "harvest", "plant", "tag", "tag_p"]


class PlantError(UnlowerError, ValueError):
    """A value that cannot be put in: nothing has its name, or what has it has another shape."""


tag_p = new_primitive("tag", several=False)
"""The identity. Parameters: `name`, and `kind`: `"value"`, `"tangent"` or `"cotangent"`, or a row such as `"cotangent.tangent"`
where a derivative is differentiated."""

tag_p.def_impl(lambda x, **params: x)
tag_p.def_abstract_eval(lambda x, **params: x)
mlir.register_lowering(tag_p, lambda ctx, x, **params: [x])


def _batch(values: Sequence[Any], dims: Sequence[int], **params: Any) -> tuple[Any, int]:
    # Wherever the operations before have left the mapped axis: who takes values out, or puts them in, finds it first.
    return tag_p.bind(jnp.moveaxis(values[0], dims[0], 0), **params), 0


batching.primitive_batchers[tag_p] = _batch


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, name: Any, kind: str) -> tuple[Any, Any]:
    out = tag_p.bind(*primals, name=name, kind=kind)
    (tangent,) = tangents
    if type(tangent) is ad.Zero:
        return out, tangent
    inner = "tangent" if kind == "value" else f"{kind}.tangent"
    return out, tag_p.bind(tangent, name=name, kind=inner)


def _transpose(cotangent: Any, x: Any, *, name: Any, kind: str) -> list[Any]:
    if type(cotangent) is ad.Zero:
        return [cotangent]
    head, dot, last = kind.rpartition(".")
    return [tag_p.bind(cotangent, name=name, kind=head + dot + _TRANSPOSED[last])]


_TRANSPOSED = {"value": "cotangent", "tangent": "cotangent", "cotangent": "tangent"}


ad.primitive_jvps[tag_p] = _jvp
ad.primitive_transposes[tag_p] = _transpose


def tag(name: Any, value: Any) -> Any:
    """Gives a value a name by which `harvest` finds it and `plant` replaces it.

    Args:
      name: any hashable value. The leaves of a pytree are named `(name, path)`, as in `("state", "['w']")`.
      value: an array, or a pytree of arrays.

    Returns:
      the value.
    """
    paths, tree = jax.tree_util.tree_flatten_with_path(value)
    named = [(name if not path else (name, jax.tree_util.keystr(path)), leaf) for path, leaf in paths]
    return jax.tree.unflatten(tree, [tag_p.bind(jnp.asarray(leaf), name=n, kind="value") for n, leaf in named])


def harvest(
    function: Callable[..., Any],
    *,
    names: Collection[Any] | None = None,
    kind: str = "value",
    mode: str = "strict",
    **options: Any,
) -> Callable[..., tuple[Any, Log]]:
    """Returns a function that gives, beside the results, the tagged values inside.

    Args:
      function: calls `tag`, at whatever depth.
      names: which to take; all by default.
      kind: `"value"`; `"tangent"` under `jax.jvp`, `"cotangent"` under `jax.grad`, with the derivative inside: of
        `harvest(jax.grad(f), kind="cotangent")`.
      mode: what a second value of one name does: `"strict"` raises, `"append"` makes a tuple, `"last"` replaces.
      options: as `Interpreter.transform` takes them.

    Returns:
      a function of the same arguments that returns `(results, log)`. A `Log` is a mapping from names to values; those of a
      `scan` are stacked, those of a branch not taken are zero with `log.present[name]` False, those of a `while` are the last
      iteration's; of a function under `vmap` inside, the mapped axis comes first.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from unlower.transforms import harvest, tag
      >>> f = lambda x: tag("y", x**2) * 3
      >>> out, log = harvest(f)(2.0)
      >>> float(out), float(log["y"])
      (12.0, 4.0)
      >>> gradient, log = harvest(jax.grad(f), kind="cotangent")(2.0)
      >>> float(gradient), float(log["y"])
      (12.0, 3.0)
    """

    def rule(ctx: Any, x: Any, *, name: Any, kind: str) -> Any:
        if kind == wanted and (names is None or name in names):
            ctx.emit(name, x, mode=mode)
        return ctx.bind(x)

    wanted = kind
    return Interpreter({tag_p: rule}, custom_rules="auto").transform(function, with_log=True, **options)


def plant(
    function: Callable[..., Any], values: Mapping[Any, Any], *, kind: str = "value", **options: Any
) -> Callable[..., Any]:
    """Returns the function with given values in the place of tagged ones.

    Args:
      function: calls `tag`, at whatever depth.
      values: name -> array. Inside a `scan` one value is put in at each iteration; or a row at each, if it has more axes than
        the tagged value, and the first is of the length of the loop. So what `harvest` took out fits, of nested loops too.
      kind: which of value, tangent and cotangent to replace; see `harvest`.
      options: as `Interpreter.transform` takes them.

    Raises:
      PlantError: a value has another shape than what it replaces, or no value of that name is tagged.

    Example:
      >>> from unlower.transforms import plant, tag
      >>> float(plant(lambda x: tag("y", x**2) * 3, {"y": 10.0})(2.0))
      30.0
    """

    def run(*args: Any, **kwargs: Any) -> Any:
        planter = _Planter({name: jnp.asarray(value) for name, value in values.items()}, kind)
        out = planter.interpreter().transform(function, **options)(*args, **kwargs)
        missing = [name for name in values if name not in planter.used]
        if missing:
            raise PlantError(
                f"nothing to replace by {', '.join(map(repr, missing))}",
                mend=f"tag a value of that name (tags of kind {kind!r} were met: {sorted(map(repr, planter.met))})",
            )
        return out

    return run


class _Planter:
    """Replaces tags; inside a loop, by the rows for this iteration."""

    def __init__(self, values: Mapping[Any, Any], kind: str, outer: "_Planter | None" = None):
        self.values, self.kind = values, kind
        self.used: set[Any] = outer.used if outer else set()
        self.met: set[Any] = outer.met if outer else set()

    def interpreter(self) -> Interpreter:
        return Interpreter({tag_p: self.tag, "scan": self.scan}, custom_rules="auto")

    def tag(self, ctx: Any, x: Any, *, name: Any, kind: str) -> Any:
        if kind == self.kind:
            self.met.add(name)
        if kind != self.kind or name not in self.values:
            return ctx.bind(x)
        self.used.add(name)
        value = self.values[name]
        if value.shape != x.shape:
            raise ctx.error(
                PlantError,
                f"a value of shape {value.shape} for {name!r}, which has {x.shape}",
                "plant one of that shape",
            )
        return tag_p.bind(lax.convert_element_type(value, x.dtype), name=name, kind=kind)

    def scan(self, ctx: Any, *operands: Any, jaxpr: Any, length: int, reverse: bool, unroll: int, **params: Any) -> Any:
        shapes = {
            visit.equation.params["name"]: visit.equation.invars[0].aval.shape
            for visit in walk(jaxpr)
            if visit.equation.primitive is tag_p and visit.equation.params["kind"] == self.kind
        }
        rows = {n: v for n, v in self.values.items() if n in shapes and _has_rows(v.shape, length, shapes[n])}
        if not rows:
            return ctx.default(*operands)
        n_consts, n_carry = scan_groups(ctx.params)
        consts, carry, xs = operands[:n_consts], operands[n_consts : n_consts + n_carry], operands[n_consts + n_carry :]

        def body(carry: Any, inputs: Any) -> Any:
            xs, row = inputs
            inner = _Planter({**self.values, **row}, self.kind, self).interpreter()
            outs = inner.transform(lambda *values: eval_closed_jaxpr(jaxpr, *values))(*consts, *carry, *xs)
            return list(outs[:n_carry]), list(outs[n_carry:])

        carry, ys = lax.scan(body, list(carry), (list(xs), rows), length=length, reverse=reverse, unroll=unroll)
        assert len(carry) + len(ys) == len(jaxpr_parts(jaxpr).outvars)
        return [*carry, *ys]


def _has_rows(shape: tuple[int, ...], length: int, tagged: tuple[int, ...]) -> bool:
    """Whether a value has a row for each iteration: of the tagged shape, or of rows for the loops further in."""
    return len(shape) > len(tagged) and shape[0] == length and shape[len(shape) - len(tagged) :] == tagged
