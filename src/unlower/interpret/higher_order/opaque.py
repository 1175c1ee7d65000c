"""Primitives whose program inside is not interpreted, each with the reason."""

from typing import Any

from unlower.interpret.higher_order.registry import OPAQUE, higher_order

_COMBINER = "its program combines two elements in the way that the primitive's name says already"
_CALLBACK = "it calls Python or foreign code, which is no JAX program"
_ALGORITHM = "its program describes one step of the primitive's own algorithm"

OPAQUE.update(
    dict.fromkeys(
        [
            "scatter",
            "scatter-add",
            "scatter_add",
            "scatter-sub",
            "scatter_sub",
            "scatter_mul",
            "scatter_min",
            "scatter_max",
            "reduce_precision",
            "select_and_scatter_add",
        ],
        _COMBINER,
    )
)
OPAQUE.update(
    dict.fromkeys(
        [
            "pure_callback",
            "io_callback",
            "debug_callback",
            "debug_print",
            "buffer_callback",
            "ffi_call",
            "call_exported",
            "cpu_callback",
        ],
        _CALLBACK,
    )
)
OPAQUE.update(dict.fromkeys(["sort"], _ALGORITHM))

_MEMORY = ["new_ref", "get", "swap", "addupdate", "freeze", "accum_grad_in_ref", "masked_load", "masked_swap"]
_KERNELS = ["pallas_call", "mpmd_map", "core_map", "custom_partitioning"]
_CALLBACKS = [name for name, reason in OPAQUE.items() if reason is _CALLBACK]


@higher_order(*_MEMORY, *_KERNELS, *_CALLBACKS, is_quiet=lambda interpreter, params: not interpreter.overrides_default)
def pinned(ctx: Any, *values: Any, **params: Any) -> Any:
    """Binds a primitive whose operands keep the dtypes that the program declares: memory has one, and so has foreign code.

    A kernel that holds primitives with rules is refused, unless the interpreter's `opaque` names it.
    """
    ctx.refuse_hidden()
    return ctx.bind_as_declared(*values)
