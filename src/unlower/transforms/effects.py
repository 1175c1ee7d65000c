"""`perform`, `effect_handler`: operations whose meaning is given from outside, with a state that they share.

A function says `perform("sample", x)`; what that does is told by the handler around it: a function of the state and the
operands that returns the next state and the result. The state goes through `jit`, `scan`, `while`, `cond` and `checkpoint` as
one more carry. (G. Plotkin, M. Pretnar, Handlers of Algebraic Effects, 2009.)
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.interpreters import ad, batching, mlir

from unlower._jax_compat import eval_closed_jaxpr, new_primitive
from unlower._jax_compat_interpret import close_jaxpr, jaxpr_parts, scan_groups
from unlower.errors import UnhandledHigherOrderError, UnlowerError
from unlower.interpret import Interpreter, walk

__all__ = ["EffectError", "effect_handler", "perform", "perform_p"]


class EffectError(UnlowerError, ValueError):
    """An operation that nobody handles, or a handler that returns what does not fit."""


perform_p = new_primitive("perform")
"""An operation to be handled. Parameters: its `name`, and `avals`, the types of its results."""

perform_p.def_abstract_eval(lambda *operands, name, avals: list(avals))


def _unhandled(*operands: Any, name: Any, **params: Any) -> Any:
    raise EffectError(
        f"nobody handles {name!r}",
        mend=f"wrap the function: effect_handler(f, {{{name!r}: lambda state, *xs: ...}})(state)",
    )


perform_p.def_impl(_unhandled)
mlir.register_lowering(perform_p, lambda ctx, *operands, **params: _unhandled(**params))


def _too_early(transform: str) -> Callable[..., Any]:
    """A state has no meaning for one row of a batch, nor a derivative, before it is known what the operation does."""

    def refuse(*operands: Any, name: Any, **params: Any) -> Any:
        raise EffectError(
            f"{name!r} is performed under jax.{transform}, with its handler outside of that, or nowhere",
            mend=f"handle it inside: jax.{transform}(effect_handler(f, ...))",
        )

    return refuse


batching.primitive_batchers[perform_p] = _too_early("vmap")
ad.primitive_jvps[perform_p] = _too_early("grad")


def perform(name: Any, *operands: Any, like: Any = None) -> Any:
    """Does what the handler of `name` around this says.

    Args:
      name: of the operation, any hashable value.
      operands: arrays.
      like: a pytree of arrays or `jax.ShapeDtypeStruct`s that has the structure and types of the result. The first operand by
        default.

    Raises:
      EffectError: there is no such handler: when the function is run, or compiled; or it is outside of `vmap` or `grad`.
    """
    arrays = list(map(jnp.asarray, operands))
    shapes, tree = jax.tree.flatten(arrays[0] if like is None else like)
    avals = tuple(jax.typeof(jax.eval_shape(lambda s=s: jnp.zeros(s.shape, s.dtype))) for s in shapes)
    return jax.tree.unflatten(tree, perform_p.bind(*arrays, name=name, avals=avals))


def effect_handler(
    function: Callable[..., Any], handlers: Mapping[Any, Callable[..., tuple[Any, Any]]], **options: Any
) -> Callable[..., tuple[Any, Any]]:
    """Returns the function with its operations handled, and a state threaded through them.

    Args:
      function: calls `perform`, at whatever depth.
      handlers: name -> function of the state and the operands that returns the next state, of the same structure and types, and
        the result. Operations without one are left to a handler further out.
      options: as `Interpreter.transform` takes them.

    Returns:
      a function of a state, a pytree of arrays, and of what `function` takes, that returns `(results, state)`.

    Raises:
      EffectError: a handler changes the types of the state, or returns a result of another type.
      UnhandledHigherOrderError: an operation stands in a primitive that no state can be threaded through.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from unlower.transforms import effect_handler, perform
      >>> def f(x):
      ...     return jax.lax.scan(lambda c, _: (c + perform("count", c), None), x, None, length=3)[0]
      >>> count = lambda state, x: (state + 1, x * 0 + state)
      >>> out, state = effect_handler(f, {"count": count})(0.0, 10.0)
      >>> float(out), float(state)
      (13.0, 3.0)
    """

    def run(state: Any, *args: Any, **kwargs: Any) -> Any:
        return _Thread(handlers, jax.tree.map(jnp.asarray, state)).run(function, args, kwargs, options)

    return run


CALLS = ("jit", "pjit", "remat2", "checkpoint", "remat", "closed_call", "core_call", "call", "eval_jaxpr", "composite")
"""Primitives that run one program once. If it performs something, those that are neither `jit` nor `checkpoint` are inlined."""


class _Thread:
    """One walk through a program with the state at hand."""

    def __init__(self, handlers: Mapping[Any, Any], state: Any):
        self.handlers, self.state = handlers, state
        rules = {"scan": self.scan, "while": self.while_loop, "cond": self.cond}
        calls = dict.fromkeys(CALLS, self.call)
        derivatives = dict.fromkeys(["custom_jvp_call", "custom_vjp_call"], self.derivative)
        self.interpreter = Interpreter({perform_p: self.perform, **rules, **calls, **derivatives})

    def run(self, function: Callable[..., Any], args: Any, kwargs: Any, options: Any) -> tuple[Any, Any]:
        out = self.interpreter.transform(function, **options)(*args, **kwargs)
        return out, self.state

    def perform(self, ctx: Any, *operands: Any, name: Any, avals: Any) -> Any:
        if name not in self.handlers:
            return ctx.bind(*operands)
        if not ctx.path.startswith(perform_p.name):  # in a program that was staged without the state
            raise ctx.error(
                UnhandledHigherOrderError,
                f"{name!r} is performed where no state can be threaded through, in {ctx.path.rpartition('/')[0]}",
                "give the primitive around it a rule that takes it apart, or move the operation outside",
            )
        state, out = self.handlers[name](self.state, *operands)
        state = jax.tree.map(jnp.asarray, state)
        if _types(state) != _types(self.state):
            raise ctx.error(
                EffectError,
                f"the handler of {name!r} makes the state {_types(state)} out of {_types(self.state)}",
                "return a state of the same structure, shapes and dtypes",
            )
        self.state = state
        leaves = list(map(jnp.asarray, jax.tree.leaves(out)))
        if [(x.shape, x.dtype) for x in leaves] != [(a.shape, a.dtype) for a in avals]:
            raise ctx.error(
                EffectError,
                f"the handler of {name!r} returned {[str(jax.typeof(x)) for x in leaves]} for {list(map(str, avals))}",
                "return what `perform(..., like=)` says",
            )
        return leaves

    def inner(self, jaxpr: Any) -> Callable[..., tuple[Any, list[Any]]]:
        """A program as a function of the state and its arguments."""
        closed = close_jaxpr(jaxpr, ()) if not hasattr(jaxpr, "consts") else jaxpr

        def run(state: Any, *values: Any) -> tuple[Any, list[Any]]:
            thread = _Thread(self.handlers, state)
            out, state = thread.run(lambda *v: eval_closed_jaxpr(closed, *v), values, {}, {})
            return state, list(out)

        return run

    def performs(self, *jaxprs: Any) -> bool:
        visits = (visit.equation for jaxpr in jaxprs for visit in walk(jaxpr))
        return any(e.primitive is perform_p and e.params["name"] in self.handlers for e in visits)

    def call(self, ctx: Any, *values: Any, **params: Any) -> Any:
        jaxpr = params.get("jaxpr", params.get("call_jaxpr"))
        if not self.performs(jaxpr):
            return ctx.default(*values)
        run = self.inner(jaxpr)
        if ctx.primitive.name in ("jit", "pjit"):
            run.__name__ = params["name"]
            run = jax.jit(run, inline=params["inline"])
        elif "policy" in params:
            run = jax.checkpoint(run, policy=params["policy"], prevent_cse=params["prevent_cse"])
        self.state, out = run(self.state, *values)
        return out

    def derivative(self, ctx: Any, *values: Any, call_jaxpr: Any, **params: Any) -> Any:
        """A function that performs has no derivative rule of its own any more: what it computes is the handler's affair."""
        if not self.performs(call_jaxpr):
            return ctx.default(*values)
        self.state, out = self.inner(call_jaxpr)(self.state, *values)
        return out

    def scan(self, ctx: Any, *values: Any, jaxpr: Any, length: int, reverse: bool, unroll: int, **params: Any) -> Any:
        if not self.performs(jaxpr):
            return ctx.default(*values)
        n_consts, n_carry = scan_groups(ctx.params)
        consts, carry, xs = values[:n_consts], values[n_consts : n_consts + n_carry], values[n_consts + n_carry :]
        run = self.inner(jaxpr)

        def body(carried: Any, row: Any) -> Any:
            state, out = run(carried[0], *consts, *carried[1], *row)
            return (state, out[:n_carry]), out[n_carry:]

        start = (self.state, list(carry))
        (self.state, carry), ys = lax.scan(body, start, list(xs), length=length, reverse=reverse, unroll=unroll)
        return [*carry, *ys]

    def while_loop(
        self, ctx: Any, *values: Any, cond_jaxpr: Any, body_jaxpr: Any, cond_nconsts: int, body_nconsts: int
    ) -> Any:
        if not self.performs(cond_jaxpr, body_jaxpr):
            return ctx.default(*values)
        cond_consts, rest = values[:cond_nconsts], values[cond_nconsts:]
        body_consts, carry = rest[:body_nconsts], list(rest[body_nconsts:])
        condition, body = self.inner(cond_jaxpr), self.inner(body_jaxpr)

        def check(state: Any, carry: Sequence[Any]) -> Any:
            state, (go,) = condition(state, *cond_consts, *carry)
            return state, go

        def step(carried: Any) -> Any:
            state, carry, _ = carried
            state, carry = body(state, *body_consts, *carry)
            state, go = check(state, carry)
            return state, carry, go

        state, go = check(self.state, carry)
        self.state, carry, _ = lax.while_loop(lambda carried: carried[2], step, (state, carry, go))
        return carry

    def cond(self, ctx: Any, index: Any, *operands: Any, branches: Any, **params: Any) -> Any:
        if not self.performs(*branches):
            return ctx.default(index, *operands)
        self.state, out = lax.switch(index, [self.inner(branch) for branch in branches], self.state, *operands)
        assert len(out) == len(jaxpr_parts(branches[0]).outvars)
        return out


def _types(state: Any) -> Any:
    return jax.tree.map(lambda x: f"{x.dtype.name}{list(x.shape)}", state)
