"""`autocast`: the colours are chosen for the whole program, and an interpreter runs what was painted."""

import re
from collections.abc import Callable, Sequence
from typing import Any

from jax import lax

from unlower._jax_compat_interpret import current_name_stack, typeof
from unlower.amp.colouring import colour
from unlower.amp.graph import build
from unlower.amp.painting import Full, paint
from unlower.amp.policy import WIDE, Policy, PolicyError
from unlower.amp.products import PRODUCTS, product, product_p
from unlower.amp.rules import Kind, kind_of
from unlower.interpret import Context, Interpreter, Type

__all__ = ["autocast"]


class Autocast(Interpreter):
    """Runs painted programs.

    Their equations are what they shall be; what is left to do is to put equations together again whose programs inside have
    changed their types, and to rewrite derivative rules, which show themselves only when JAX calls them. In those, products are
    made low one by one.
    """

    custom_rules = "transform"
    default_is_local = True
    opaque = frozenset({product_p.name})

    def __init__(self, policy: Policy):
        super().__init__()
        self.policy = policy

    def prepare(
        self, jaxpr: Any, types: Sequence[Type] | None = None, results: Sequence[Type | None] | None = None
    ) -> Any:
        """Colours and paints a program; a derivative rule may get low values, and be asked for some."""
        low = self.policy.low
        is_low = lambda of: [t is not None and getattr(t.avals[0], "dtype", None) == low for t in of or ()]
        graph = build(jaxpr, is_low(types), is_low(results))
        if not self.policy.is_identity:
            colour(graph, self.policy)
        return paint(graph.program, low, self.policy.output if types is None else None)

    def default(self, ctx: Context, *values: Any, **params: Any) -> Any:
        """Operands that disagree, as in a derivative rule that got some low ones, take the dtypes that were declared."""
        return ctx.bind_as_declared(*values)

    def join(self, first: Type, second: Type, round: int) -> Type:
        """Where a loop or a branch has both, float32."""
        return super().join(first, second, max(round, 1))


@Autocast.rule(*PRODUCTS)
def _product(ctx: Context, *values: Any, **params: Any) -> Any:
    policy: Policy = ctx.interpreter.policy  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(ctx.params, Full):
        return ctx.bind(*values)
    kind, _ = kind_of(ctx.primitive.name, params, policy.low)
    chosen = policy.choice(ctx.primitive.name, params, _scope())
    if kind is not Kind.LOW or (chosen is not None and chosen[0] == "full") or ctx.out_avals[0].dtype != WIDE:
        return ctx.bind_as_declared(*values)
    operands, wide = list(values), [None, None]
    for side in (0, 1):
        found = typeof(values[side]).dtype
        if found == WIDE:
            operands[side], wide[side] = lax.convert_element_type(values[side], policy.low), values[side]
        elif found != policy.low:
            return ctx.bind_as_declared(*values)
    return product(ctx.primitive, params, operands, ctx.out_avals[0].dtype, wide)


def _scope() -> tuple[str, ...]:
    text = re.sub(r"[\w.\-]+\(|\)", "", str(current_name_stack()))
    return tuple(part for part in text.split("/") if part)


def autocast(
    function: Callable[..., Any],
    policy: Policy | str | None = None,
    *,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
) -> Callable[..., Any]:
    """Makes a function compute its products, and what stands between them, in half precision.

    It takes and returns the same pytrees of the same shapes and dtypes; only what is in between changes. Softmax, norms, sums,
    losses and whatever else is brittle stay in float32. Float32 values alone are touched: integers, complex numbers, keys,
    float64, and what the function itself declares in half precision are as they were. It composes with `jit`, `grad`, `vmap`,
    `scan` and `checkpoint`, outside and inside, and changes nothing in a function that is autocast already.

    Args:
      function: a function of JAX arrays.
      policy: a `Policy`, or a string as `Policy.parse` takes; bfloat16 by default.
      static_argnums: positions of arguments that are not arrays.
      static_argnames: names of such arguments.

    Raises:
      PolicyError: the policy makes no sense.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> f = autocast(lambda x, w: jnp.tanh(x @ w) @ w)
      >>> jax.eval_shape(f, jnp.ones((4, 32)), jnp.ones((32, 32))).dtype
      dtype('float32')
    """
    found = as_policy(policy)
    if found.is_identity and found.output is None:
        return function
    return Autocast(found).transform(function, static_argnums=static_argnums, static_argnames=static_argnames)


def as_policy(policy: Policy | str | None) -> Policy:
    """Reads what a caller passes as a policy."""
    if policy is None:
        return Policy()
    if isinstance(policy, str):
        return Policy.parse(policy)
    if not isinstance(policy, Policy):
        raise PolicyError(f"policy {policy!r}", mend='pass an amp.Policy, or a string such as "p=f32,c=bf16,o=f32"')
    return policy
