"""Draws a program's signature from its module and its interface."""

from unlower.ir.interface import Input, Interface, Output, call_path
from unlower.ir.module import Module, Value
from unlower.ir.types import TensorType
from unlower.report import Argument, Signature

__all__ = ["argument_of", "signature_of"]


def signature_of(module: Module, interface: Interface) -> Signature:
    """Says how a program is called.

    Args:
      module: a normalized module.
      interface: what its inputs and outputs mean.
    """
    body = module.main.body
    arguments = [
        argument_of(value, declared)
        for value, declared in zip(body.arguments, interface.inputs, strict=True)
        if declared.role != "token"
    ]
    return Signature(
        call=f"{_name(module, interface)}({', '.join(_parameters(interface, len(arguments)))})",
        arguments=(*arguments, *_unused(interface)),
        results=tuple(
            argument_of(value, declared)
            for value, declared in zip(body.results, interface.outputs, strict=True)
            if declared.role != "token"
        ),
        arguments_tree=None if interface.arguments is None else str(interface.arguments),
        results_tree=None if interface.results is None else str(interface.results),
        complete=interface.arguments is not None and interface.complete,
        platform=interface.platform,
        platforms=interface.platforms,
        notes=interface.notes,
    )


def _name(module: Module, interface: Interface) -> str:
    name = interface.export.function_name if interface.export is not None else ""
    return name or module.name


def _parameters(interface: Interface, count: int) -> list[str]:
    """The parameters of the call, as a Python signature has them."""
    if interface.arguments is None:
        return [x.name or f"arg{i}" for i, x in enumerate(interface.inputs) if x.role in ("argument", "dimension")]
    positional, keywords = interface.arguments.children
    names = [*interface.argument_names, *[None] * len(positional.children)]
    shown = [names[i] or f"args[{i}]" for i in range(len(positional.children))]
    return shown + (["*", *map(str, keywords.keys)] if keywords.keys else [])


def argument_of(value: Value, declared: Input | Output) -> Argument:
    """Describes a flat input or output."""
    type_ = value.type
    text, size = str(type_), None
    if isinstance(type_, TensorType) and isinstance(type_.element, str):
        spelled = [*(declared.shape or ()), *[None] * len(type_.shape)]
        sizes = [n if n is not None else spelled[i] or "?" for i, n in enumerate(type_.shape)]
        text = f"{type_.dtype.name}[{','.join(str(n).replace(' ', '') for n in sizes)}]"
        size = type_.size * type_.dtype.itemsize if type_.is_static else None
        if declared.dtype is not None and declared.shape is not None:
            text = f"{declared.dtype}[{','.join(str(n).replace(' ', '') for n in declared.shape)}]"
    return Argument(type=text, bytes=size, name=declared.name, role=declared.role, sharding=declared.sharding)


def _unused(interface: Interface) -> list[Argument]:
    """The leaves of the original call that the module does not take."""
    if interface.arguments is None or interface.argument_types is None:
        return []
    taken = {declared.leaf for declared in interface.inputs}
    return [
        Argument(type=type_, bytes=None, name=call_path(path, interface.argument_names), role="unused")
        for leaf, (path, type_) in enumerate(zip(interface.arguments.paths(), interface.argument_types, strict=True))
        if leaf not in taken
    ]
