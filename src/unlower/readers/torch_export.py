"""The bundles that `torch_xla.stablehlo.save_as_stablehlo` writes -> module and interface, without PyTorch.

A folder: `functions/NAME.meta` (JSON) says for each input of the module `functions/NAME.bytecode` (or `.mlir`) whether it
is a parameter in `data/`, a constant in `constants/` or an argument, and how arguments and results nest.
"""

import json
import pathlib
import tokenize
from collections.abc import Sequence
from typing import Any

import numpy as np

from unlower.errors import FormatError, UnlowerError
from unlower.ir.interface import LEAF, NONE, Input, Interface, Output, Source, Tree
from unlower.ir.module import Module
from unlower.ir.types import TensorType
from unlower.readers.elision import Elision
from unlower.readers.folders import Content
from unlower.readers.large.cut import cut_literals
from unlower.readers.large.source import Large
from unlower.readers.stablehlo_bytecode import is_bytecode, read_bytecode
from unlower.readers.stablehlo_text import read_stablehlo_text

__all__ = ["bundle_bytes", "bundle_contents", "bundle_functions", "is_torch_bundle", "read_torch_bundle", "treespec"]

_MEND = "copy the folder again, or write it again with torch_xla.stablehlo.save_as_stablehlo"
_MODULES = (".bytecode", ".mlir")


def is_torch_bundle(folder: pathlib.Path) -> bool:
    """Whether a folder holds `functions/*.meta`."""
    return bool(bundle_functions(folder))


def bundle_functions(folder: pathlib.Path) -> list[str]:
    """The names of the functions in a bundle."""
    return sorted(path.stem for path in (folder / "functions").glob("*.meta"))


def bundle_contents(folder: pathlib.Path) -> list[Content]:
    """Lists the functions and the weights of a bundle."""
    names = bundle_functions(folder)
    listed = []
    for name in names:
        files = [folder / "functions" / f"{name}{suffix}" for suffix in _MODULES]
        size = next((file.stat().st_size for file in files if file.is_file()), None)
        chosen = len(names) == 1 or name == "forward"
        listed.append(Content(name, "a function", size, f"signature={name!r}", chosen))
    for kind in ("data", "constants"):
        what = "a weight" if kind == "data" else "a constant"
        listed += [
            Content(f"{kind}/{file.name}", what, file.stat().st_size) for file in sorted((folder / kind).glob("*"))
        ]
    return listed


def read_torch_bundle(folder: pathlib.Path, elision: Elision, *, function: str | None = None) -> Source:
    """Reads one function of a bundle, with its weights.

    A bundle that was saved without weights is read too; its program takes them as its first argument, a dict by name.

    Args:
      folder: the bundle.
      elision: decides about constants without values.
      function: which function; needed where there are several and none is called `forward`.

    Raises:
      FormatError: missing or damaged files, an unknown or ambiguous function, weights that do not fit the module.
    """
    function = _choose(folder, function)
    meta = _read_meta(folder / "functions" / f"{function}.meta")
    path = _module_file(folder, function)
    size = path.stat().st_size
    elision.limits.check("input_bytes", size, f"the module has {size:,} bytes", where=str(path))
    if not size:
        raise FormatError("the module is empty", where=str(path), mend=_MEND)
    data = cut_literals(Large(path), elision)
    module = (read_bytecode if is_bytecode(data) else read_stablehlo_text)(data, elision)
    try:
        return Source(module, _Bundle(folder, meta, module).interface())
    except (AttributeError, LookupError, OverflowError, TypeError, ValueError) as error:
        if isinstance(error, UnlowerError):
            raise
        raise FormatError(f"damaged metadata: {error}", where=f"{folder}, {function}.meta", mend=_MEND) from error


def bundle_bytes(folder: pathlib.Path, function: str | None = None) -> bytes:
    """Returns the module of a function as the bundle has it; arguments and errors as of `read_torch_bundle`."""
    return _module_file(folder, _choose(folder, function)).read_bytes()


def _choose(folder: pathlib.Path, function: str | None) -> str:
    names = bundle_functions(folder)
    if function is None and (len(names) == 1 or "forward" in names):
        function = names[0] if len(names) == 1 else "forward"
    if function not in names:
        what = "has several functions" if function is None else f"has no function {function!r}"
        raise FormatError(
            f"the torch_xla bundle {what}: {', '.join(names)}",
            where=str(folder),
            mend=f"choose one, signature={names[0]!r}" if names else _MEND,
        )
    return function


def _read_meta(path: pathlib.Path) -> dict[str, Any]:
    try:
        meta = json.loads(path.read_text())
        if not isinstance(meta, dict) or not isinstance(meta["input_locations"], list):
            raise TypeError("no input locations")
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(f"damaged metadata: {error}", where=str(path), mend=_MEND) from None
    return meta


def _module_file(folder: pathlib.Path, function: str) -> pathlib.Path:
    for suffix in _MODULES:
        path = folder / "functions" / f"{function}{suffix}"
        if path.is_file():
            return path
    raise FormatError(
        f"the torch_xla bundle has no module for {function!r}",
        where=f"{folder / 'functions'}: neither {function}.bytecode nor {function}.mlir",
        mend=_MEND,
    )


class _Bundle:
    """One function of a bundle, while its interface is built."""

    def __init__(self, folder: pathlib.Path, meta: dict[str, Any], module: Module):
        self._folder = folder
        self._meta = meta
        self._arguments = module.main.body.arguments
        self._results = module.main.body.results
        self._parameters: dict[str, np.ndarray] = {}
        self._notes: list[str] = []

    def interface(self) -> Interface:
        locations = self._meta["input_locations"]
        if len(locations) != len(self._arguments):
            raise FormatError(
                f"the metadata has {len(locations)} inputs, the module {len(self._arguments)}",
                where=str(self._folder),
                mend=_MEND,
            )
        without_weights = not (self._folder / "data").is_dir() and any(x["type_"] == "parameter" for x in locations)
        weights = sorted({x["name"] for x in locations if x["type_"] == "parameter"}) if without_weights else []
        arguments, leaf_of = self._argument_tree(locations)
        if weights:
            self._notes.append("the bundle was saved without weights; the program takes them first, a dict by name")
            arguments, leaf_of = _with_weights(arguments, leaf_of, weights)
        inputs = []
        for location, value in zip(locations, self._arguments, strict=True):
            kind, name, position = location["type_"], location.get("name", ""), location.get("position", -1)
            if kind == "parameter" and weights:
                inputs.append(Input(name=name, leaf=weights.index(name)))
            elif kind == "parameter":
                inputs.append(self._parameter(name, self._folder / "data" / name, value.type))
            elif kind == "constant":
                name = f"constants/{position}"
                inputs.append(self._parameter(name, self._folder / "constants" / str(position), value.type))
            elif kind == "input_arg":
                inputs.append(Input(leaf=leaf_of.get(position) if arguments else None))
            else:
                raise FormatError(f"an input of the unknown kind {kind!r}", where=str(self._folder), mend=_MEND)
        results = self._tree("output_pytree_spec")
        if results is not None and results.num_leaves != len(self._results):
            self._notes.append(f"the results are told to be {results}, but there are {len(self._results)}")
            results = None
        return Interface(
            inputs=tuple(inputs),
            outputs=tuple(Output(leaf=None if results is None else i) for i in range(len(self._results))),
            arguments=arguments,
            results=results,
            parameters=self._parameters,
            notes=tuple(self._notes),
        )

    def _argument_tree(self, locations: Sequence[Any]) -> tuple[Tree | None, dict[int, int]]:
        """Returns the tree of the call, and for each of PyTorch's leaves which leaf it is here.

        To PyTorch None is a leaf. Where it was one it is an empty node here, as in JAX.
        """
        spec = self._tree("input_pytree_spec")
        used = [x["position"] for x in locations if x["type_"] == "input_arg"]
        empty = {
            location["position"]
            for location, signature in self._meta.get("unused_inputs") or ()
            if "NoneType" in signature.get("dtype", "")
        }
        if spec is None:
            count = max([*used, *(x["position"] for x, _ in self._meta.get("unused_inputs") or ())], default=-1) + 1
            spec = Tree("tuple", (), (LEAF,) * count)
        if spec.kind != "tuple" or [child.kind for child in spec.children] != ["tuple", "dict"]:
            spec = Tree("tuple", (), (spec, Tree("dict")))
        if spec.num_leaves <= max(used, default=-1):
            self._notes.append(f"the arguments are told to be {spec}, which has no leaf {max(used)}")
            return None, {}
        kept = [position for position in range(spec.num_leaves) if position not in empty]
        tree = _without(spec, iter(range(spec.num_leaves)), empty)
        return tree, {position: leaf for leaf, position in enumerate(kept)}

    def _tree(self, key: str) -> Tree | None:
        text = self._meta.get(key)
        if not text:
            return None
        try:
            return treespec(text)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self._notes.append(f"{key} cannot be read: {error}")
            return None

    def _parameter(self, name: str, path: pathlib.Path, type_: Any) -> Input:
        if name not in self._parameters:
            self._parameters[name] = _read_array(path, name, type_)
        return Input(name=name, role="parameter", parameter=name)


def _read_array(path: pathlib.Path, name: str, type_: Any) -> np.ndarray:
    if path.name in ("", "..") or path.parent.name not in ("data", "constants"):
        raise FormatError(f"the weight {name!r} lies outside of the bundle", where=str(path), mend=_MEND)
    if not path.is_file():
        raise FormatError(f"the bundle lacks the weight {name}", where=str(path), mend=_MEND)
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError, OverflowError, SyntaxError, TypeError, tokenize.TokenError) as error:
        # The head of a NumPy file is Python, and so are the errors in it.
        raise FormatError(f"the weight {name} is no array: {error}", where=str(path), mend=_MEND) from None
    if not isinstance(type_, TensorType):
        raise FormatError(f"the weight {name} stands for {type_}", where=str(path), mend=_MEND)
    if array.dtype.kind == "V" and array.dtype.itemsize == type_.dtype.itemsize:
        # NumPy does not know bfloat16 and its kin, and stores their bytes.
        array = array.view(type_.dtype)
    if array.dtype != type_.dtype or array.shape != type_.shape:
        raise FormatError(
            f"the weight {name} is {array.dtype.name}{list(array.shape)}, but the module takes {type_}",
            where=str(path),
            mend=_MEND,
        )
    return array


def treespec(text: str) -> Tree:
    """Reads a tree as `torch.utils._pytree.treespec_dumps` writes it: `[1, {"type": ..., "context": ..., ...}]`.

    Example:
      >>> leaf = '{"type": null, "context": null, "children_spec": []}'
      >>> print(treespec('[1, {"type": "builtins.dict", "context": "[\\\\"x\\\\"]", "children_spec": [%s]}]' % leaf))
      {'x': *}
    """
    version, spec = json.loads(text)
    if version != 1:
        raise ValueError(f"protocol {version} of PyTorch's tree specifications is not known")
    return _node(spec)


def _node(spec: dict[str, Any]) -> Tree:
    kind, children = spec["type"], tuple(map(_node, spec["children_spec"]))
    if kind is None:
        return LEAF
    context = _context(spec.get("context"))
    short = kind.rpartition(".")[2]
    if short in ("tuple", "Size"):
        return Tree("tuple", (), children)
    if short in ("list", "deque", "immutable_list"):
        return Tree("list", (), children)
    keys = _keys(context, len(children))
    if short in ("dict", "OrderedDict", "defaultdict", "immutable_dict") and keys is not None:
        return Tree("dict", keys, children)
    name = context.get("class_name", kind) if isinstance(context, dict) else kind
    return Tree("custom", keys or (None,) * len(children), children, str(name))


def _context(context: Any) -> Any:
    try:
        return json.loads(context) if isinstance(context, str) else context
    except ValueError:
        return context


def _keys(context: Any, count: int) -> tuple[Any, ...] | None:
    """Finds the keys in what PyTorch stores for a node: a list of them, or a dict that holds one."""
    candidates = [context]
    if isinstance(context, dict):
        candidates = [_context(context.get(key)) for key in ("dict_context", "fields", "keys")]
    for candidate in candidates:
        if isinstance(candidate, list) and len(candidate) == count:
            return tuple(key if isinstance(key, str | int | float | bool) else json.dumps(key) for key in candidate)
    return None


def _without(tree: Tree, positions: Any, empty: set[int]) -> Tree:
    if tree.kind == "leaf":
        return NONE if next(positions) in empty else tree
    return Tree(tree.kind, tree.keys, tuple(_without(c, positions, empty) for c in tree.children), tree.name)


def _with_weights(
    tree: Tree | None, leaf_of: dict[int, int], weights: Sequence[str]
) -> tuple[Tree | None, dict[int, int]]:
    if tree is None:
        return None, {}
    positional, keywords = tree.children
    first = Tree("dict", tuple(weights), (LEAF,) * len(weights))
    tree = Tree("tuple", (), (Tree("tuple", (), (first, *positional.children)), keywords))
    return tree, {position: leaf + len(weights) for position, leaf in leaf_of.items()}
