"""What the names in a module tell of its interface: argument locations, attributes of arguments and results."""

from unlower.ir.interface import Input, Interface, Output
from unlower.ir.module import Module

__all__ = ["interface_from_names"]


def interface_from_names(module: Module) -> Interface:
    """Builds the interface of a module from nothing but the module."""
    main = module.main
    names = [location and location.name for location in main.argument_locations]
    names += [None] * (len(main.body.arguments) - len(names))
    results = [str(attributes.get("jax.result_info", "")) or None for attributes in main.result_attributes]
    results += [None] * (len(main.body.results) - len(results))
    return Interface(
        inputs=tuple(Input(name=name) for name in names), outputs=tuple(Output(name=name) for name in results)
    )
