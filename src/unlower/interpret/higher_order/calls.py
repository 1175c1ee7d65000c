"""Calls: primitives that run one program once, with a meaning of their own on top (`jit`, `checkpoint`, `composite`, ...)."""

from typing import Any

import jax

from unlower._jax_compat_interpret import DEVICE_MEMORY, JAXPR_TYPES, UNSPECIFIED
from unlower.interpret.higher_order.registry import higher_order
from unlower.interpret.values import all_plain


@higher_order("jit", "pjit")
def jit(ctx: Any, *values: Any, jaxpr: Any, **params: Any) -> list[Any]:
    """Keeps the call, its name, its shardings and what it donates; a box brings its own for each of its leaves."""
    staged = ctx.stage(jaxpr, values)
    leaves = ctx.rebind(
        staged.arguments(values),
        jaxpr=staged.jaxpr,
        in_shardings=staged.per_input(params["in_shardings"], values, UNSPECIFIED),
        in_layouts=staged.per_input(params["in_layouts"], values, None),
        donated_invars=staged.per_input(params["donated_invars"], values, False),
        out_shardings=staged.per_output(params["out_shardings"], UNSPECIFIED),
        out_layouts=staged.per_output(params["out_layouts"], None),
    )
    return ctx.finish(staged, leaves)


@higher_order("remat2", "checkpoint", "remat")
def checkpoint(ctx: Any, *values: Any, jaxpr: Any, prevent_cse: Any, **params: Any) -> list[Any]:
    """Keeps what is saved and what is computed again; emitted values are among the saved."""
    staged = ctx.stage(jaxpr, values, is_open=True)
    if isinstance(prevent_cse, tuple):
        prevent_cse = staged.per_input(prevent_cse, values, True)
    leaves = ctx.rebind(staged.arguments(values), jaxpr=staged.jaxpr, prevent_cse=prevent_cse)
    return ctx.finish(staged, leaves)


@higher_order(
    "closed_call",
    "call",
    "core_call",
    "core_closed_call",
    "eval_jaxpr",
    "composite",
    "xla_metadata_call",
    "cudnn_fusion",
    "custom_fusion",
)
def call(ctx: Any, *values: Any, **params: Any) -> list[Any]:
    """Keeps the call and rewrites its program, whichever parameter holds it: that name differs between releases."""
    (name,) = (key for key, value in params.items() if isinstance(value, JAXPR_TYPES))
    staged = ctx.stage(params[name], values, is_open=True)
    return ctx.finish(staged, ctx.rebind(staged.arguments(values), **{name: staged.jaxpr}))


@higher_order("compute_on", "fused_call")
def call_with_places(ctx: Any, *values: Any, jaxpr: Any, **params: Any) -> list[Any]:
    """Keeps where the program runs and in which memory its results lie; what is emitted lies on the device."""
    staged = ctx.stage(jaxpr, values, is_open=True)
    overrides = {"jaxpr": staged.jaxpr}
    for name in ("out_memory_spaces", "out_spaces"):
        if name in params:
            overrides[name] = staged.per_output(params[name], DEVICE_MEMORY)
    return ctx.finish(staged, ctx.rebind(staged.arguments(values), **overrides))


@higher_order("custom_vmap_call", is_quiet=lambda interpreter, params: interpreter.is_inert)
def custom_vmap(ctx: Any, *values: Any, call: Any, rule: Any, out_tree: Any, **params: Any) -> list[Any]:
    """Interprets the function and, when it is called, its batching rule; with boxes or emissions the function stands alone.

    A batching rule knows nothing of boxes, of values from outside, or of a second kind of results. The function without it is
    batched by its primitives, which means the same.
    """
    staged = ctx.stage(call, values, is_open=True)
    if not (all_plain(values) and staged.is_plain):
        return ctx.sub(call, *values)

    def batched(size: int, is_batched: Any, *arguments: Any) -> Any:
        leaves, tree = jax.tree.flatten(arguments)
        flags = []

        def run(*leaves: Any) -> Any:
            out, out_batched = rule(size, is_batched, *jax.tree.unflatten(tree, leaves))
            flags.append(out_batched)
            return out

        return ctx.run_rule("vmap", run, leaves), flags[0]

    return ctx.rebind(values, call=staged.jaxpr, rule=batched)
