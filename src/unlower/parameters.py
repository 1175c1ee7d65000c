"""The weights of a program: those that its file brings, those baked into it, and names for the latter.

A weight is an input of the module that the caller need not give. `Weights` puts the file's arrays, or the caller's, in their
places; `lift` makes inputs of baked constants; `named_arrays` and `Checkpoint` read what can name them.
"""

import collections
import dataclasses
import difflib
import itertools
import os
import pathlib
import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from unlower.errors import FormatError, SignatureError
from unlower.ir.interface import Input, Interface, Source
from unlower.ir.module import Module
from unlower.raising.lift_constants import content_key, lift_constants
from unlower.raising.share_arguments import Shared, Use, share_arguments
from unlower.readers.safetensors import read_safetensors, write_safetensors

__all__ = ["Weights", "lift", "named_arrays", "write_arrays"]

_MOST_AXES = 4
"""Up to this rank a constant is compared with the transposes of a checkpoint's arrays."""


class Weights:
    """The weights among a module's flat inputs.

    Args:
      interface: of the module.
      types: shape and dtype of each weight, by name.
    """

    def __init__(self, interface: Interface, types: Mapping[str, Any]):
        self._types = types
        self._arrays = interface.parameters
        self._on_device: dict[str, Any] = {}

    def arrays(self) -> dict[str, np.ndarray]:
        """Every weight by name, in the module's order."""
        return {name: np.asarray(self._arrays[name]) for name in self._types}

    def choose(self, chosen: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the array for each weight: the caller's, or else the file's.

        Raises:
          SignatureError: a name that is none of the weights', or an array of another shape or dtype.
        """
        for name in chosen:
            if name not in self._types:
                near = difflib.get_close_matches(str(name), list(self._types), 3)
                listed = ", ".join(map(repr, near or list(self._types)[:8]))
                raise SignatureError(
                    f"the program has no parameter {name!r}",
                    mend=f"it has {listed}"
                    if listed
                    else "it has none; program.lift_constants() makes some of constants",
                )
        return {
            name: self._checked(name, chosen[name]) if name in chosen else self._default(name) for name in self._types
        }

    def _checked(self, name: str, array: Any) -> Any:
        wanted = self._types[name]
        if isinstance(array, bool | int | float | complex):
            array = np.asarray(array, wanted.dtype)
        given = array if isinstance(array, np.ndarray | np.generic) else jax.typeof(array)
        if given.dtype != wanted.dtype or tuple(given.shape) != tuple(wanted.shape):
            raise SignatureError(
                f"the parameter {name!r} is {given.dtype.name}{list(given.shape)}, "
                f"not {wanted.dtype.name}{list(wanted.shape)}",
                mend="pass an array of the shape and dtype that it has in program.parameters",
            )
        return array

    def _default(self, name: str) -> Any:
        """The file's array, put on the device when first used and kept there."""
        if name not in self._on_device:
            with jax.ensure_compile_time_eval(), jax.enable_x64(True):
                self._on_device[name] = jax.device_put(np.asarray(self._arrays[name]))
        return self._on_device[name]


_DAMAGES = (
    *(ValueError, LookupError, EOFError, OSError, OverflowError, SyntaxError, TypeError, RuntimeError),
    *(zipfile.BadZipFile, zlib.error, tokenize.TokenError),
)
"""What NumPy and the modules below it raise for a damaged archive; the head of an array there is Python."""


def lift(module: Module, interface: Interface, *, min_elements: int = 17, match: Any = None) -> Source:
    """Makes parameters of the float constants that are baked into a module.

    Args:
      module: the program.
      interface: what its inputs mean.
      min_elements: the number of elements from which on a constant counts as a weight.
      match: a checkpoint, see `named_arrays`: a constant that equals one of its arrays gets its name, even if it is smaller
        than `min_elements`; one that equals a transpose becomes a parameter in the checkpoint's layout.

    Returns:
      the new program, or the same objects where there is nothing to lift.
    """
    checkpoint = _Checkpoint({} if match is None else named_arrays(match))

    def chosen(array: np.ndarray) -> bool:
        if not jax.numpy.issubdtype(array.dtype, np.inexact):
            return False
        return array.size >= min_elements or (array.size > 1 and checkpoint.find(array) is not None)

    def name(key: Any, array: np.ndarray) -> str | None:
        found = checkpoint.find(array)
        return None if found is None else found[0]

    lifted_module, lifted = lift_constants(module, chosen, name, tuple(interface.parameters))
    if not lifted:
        return Source(module, interface)
    arrays: dict[str, np.ndarray] = {}
    uses: dict[str, list[Use]] = {}
    for item in lifted:
        found = checkpoint.find(item.array)
        if found is None or found[0] in interface.parameters:
            label, axes, array = item.name, tuple(range(item.array.ndim)), item.array
        else:
            label, axes = found
            array = checkpoint.arrays[label]
        arrays[label] = array
        uses.setdefault(label, []).append(Use(item.position, axes))
    shared = [Shared(label, arrays[label].shape, places) for label, places in uses.items()]
    records = tuple(Input(name=label, role="parameter", parameter=label) for label in uses)
    return Source(
        share_arguments(lifted_module, len(module.main.body.arguments), shared),
        dataclasses.replace(
            interface, inputs=(*interface.inputs, *records), parameters={**interface.parameters, **arrays}
        ),
    )


def named_arrays(source: Any) -> dict[str, np.ndarray]:
    """Reads a checkpoint: arrays by name.

    Args:
      source: a mapping from name to array; a pytree of arrays, whose names are their paths, joined by slashes; or the path of
        a safetensors or `.npz` file.

    Raises:
      FormatError: a damaged file.

    Example:
      >>> list(named_arrays({"encoder": {"w": np.zeros(2)}, "head": [np.ones(3)]}))
      ['encoder/w', 'head/0']
    """
    if isinstance(source, str | os.PathLike):
        with open(source, "rb") as file:
            is_zip = file.read(2) == b"PK"
        if not is_zip:
            return dict(read_safetensors(source))
        try:
            # Opened here, since NumPy leaves a file open that it cannot read.
            with open(source, "rb") as file, np.load(file, allow_pickle=False) as stored:
                return {name: stored[name] for name in stored.files}
        except _DAMAGES as error:
            raise FormatError(
                f"a damaged NumPy archive: {error}", where=str(source), mend="copy or write the file again"
            ) from None
    leaves, _ = jax.tree_util.tree_flatten_with_path(source)
    return {"/".join(map(_key_text, path)) or "array": np.asarray(leaf) for path, leaf in leaves}


def write_arrays(path: pathlib.Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes arrays by name to a file, whose format its name tells: `.safetensors` or `.npz`.

    Raises:
      FormatError: another ending, or arrays of a type that the format does not have.
    """
    if path.suffix == ".safetensors":
        write_safetensors(path, arrays)
    elif path.suffix == ".npz":
        strange = [name for name, array in arrays.items() if array.dtype.kind == "V" or array.dtype.isbuiltin != 1]
        if strange:
            raise FormatError(
                f"NumPy's format has no element type for {arrays[strange[0]].dtype.name}",
                where=f"the array {strange[0]}",
                mend="write a .safetensors file",
            )
        # Not by keywords: a weight may be called `file`.
        with zipfile.ZipFile(path, "w") as archive:
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, np.ascontiguousarray(array), allow_pickle=False)
    else:
        raise FormatError(f"{path.name} is no .safetensors or .npz file", mend="end its name in one of these")


def _key_text(key: Any) -> str:
    for field in ("key", "name", "idx"):
        if hasattr(key, field):
            return str(getattr(key, field))
    return str(key)


class _Checkpoint:
    """Finds arrays in a checkpoint by their content."""

    def __init__(self, arrays: Mapping[str, np.ndarray]):
        self.arrays = {n: a for n, a in arrays.items() if jax.numpy.issubdtype(a.dtype, np.inexact)}
        self._by_bytes: dict[Any, list[str]] = collections.defaultdict(list)
        self._by_sizes: dict[Any, list[str]] = collections.defaultdict(list)
        self._found: dict[int, tuple[np.ndarray, tuple[str, tuple[int, ...]] | None]] = {}
        for name, array in self.arrays.items():
            self._by_bytes[_bytes_key(array)].append(name)
            self._by_sizes[array.dtype, tuple(sorted(array.shape))].append(name)

    def find(self, array: np.ndarray) -> tuple[str, tuple[int, ...]] | None:
        """Returns the name of the entry that an array equals, and the axes that turn the entry into the array.

        Entries with the same bytes come first, and among them those of the same shape; where several are left (tied
        weights) the first gives the name. Else exactly one entry, transposed in exactly one way, must equal the array.
        """
        if not self.arrays:
            return None
        if id(array) not in self._found:
            self._found[id(array)] = array, self._search(array)
        return self._found[id(array)][1]

    def _search(self, array: np.ndarray) -> tuple[str, tuple[int, ...]] | None:
        names = self._by_bytes.get(_bytes_key(array), ())
        for name in sorted(names, key=lambda name: self.arrays[name].shape != array.shape):
            return name, tuple(range(self.arrays[name].ndim))
        if not 2 <= array.ndim <= _MOST_AXES:
            return None
        bits = _bits(array)
        found = [
            (name, axes)
            for name in self._by_sizes.get((array.dtype, tuple(sorted(array.shape))), ())
            for axes in itertools.permutations(range(array.ndim))
            if tuple(self.arrays[name].shape[axis] for axis in axes) == array.shape
            and np.array_equal(_bits(self.arrays[name]).transpose(axes), bits)
        ]
        return found[0] if len(found) == 1 else None


def _bytes_key(array: np.ndarray) -> Any:
    dtype, _, digest = content_key(array)
    return dtype, array.size, digest


def _bits(array: np.ndarray) -> np.ndarray:
    """The elements as their bytes, so that NaN equals itself and minus zero is not zero."""
    return np.ascontiguousarray(array).view(np.dtype((np.void, array.dtype.itemsize)))
