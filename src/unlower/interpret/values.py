"""Values and their types as an interpreter sees them.

A value is an array, or a `Box`: a pytree of the user's with any number of leaves, which stands for one array of the program.
No box is ever a JAX type. Where a value crosses into a sub-program (the body of a `scan`, a branch of a `cond`), it is
flattened to its leaves, which are arrays, and put together again inside.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from unlower._jax_compat_interpret import AbstractValue, strip_weak_type, typematch, typeof
from unlower.errors import RuleError

__all__ = ["Box", "Type"]

LEAF = jax.tree.structure(0)


class Box:
    """A value of the user's that stands for one array of the program: an interval, a quantized tensor, a pair of dtypes.

    A subclass is a registered pytree whose leaves are arrays or other boxes, and says through `aval` which array the program
    takes it for. `materialize` makes that array; without it the box can only meet primitives that have a rule.

    Example:
      >>> import dataclasses, jax
      >>> @jax.tree_util.register_dataclass
      ... @dataclasses.dataclass
      ... class Interval(Box):
      ...     lower: jax.Array
      ...     upper: jax.Array
      ...
      ...     @property
      ...     def aval(self):
      ...         return jax.typeof(self.lower)
      >>> Interval(jax.numpy.zeros(3), jax.numpy.ones(3)).shape
      (3,)
    """

    @property
    def aval(self) -> Any:
        """The type of the array that the program takes this value for."""
        raise NotImplementedError(f"{type(self).__name__} must define the property `aval`, as Box explains")

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of that array."""
        return self.aval.shape

    @property
    def dtype(self) -> np.dtype:
        """The dtype of that array."""
        return self.aval.dtype

    def materialize(self) -> Any:
        """Returns the array that this value stands for."""
        raise RuleError(
            f"{type(self).__name__} cannot be turned into one array",
            mend="define its method `materialize`, or give the primitive that it meets a rule",
        )


@dataclass(frozen=True, eq=False)
class Type:
    """The type of a value: how it is put together, and the types of its leaves.

    Attributes:
      tree: the tree structure; that of a single leaf for a plain array.
      avals: the abstract value of each leaf.
    """

    tree: Any
    avals: tuple[Any, ...]

    @property
    def is_plain(self) -> bool:
        """Whether this is the type of an array."""
        return self.tree == LEAF

    def matches(self, other: "Type") -> bool:
        """Whether a value of the other type can stand where one of this type is expected; weak types do not matter."""
        return self.tree == other.tree and all(map(typematch, self.avals, other.avals))

    def replace(self, avals: Iterable[Any]) -> "Type":
        """The same structure with other leaves."""
        return Type(self.tree, tuple(avals))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Type) and self.tree == other.tree and self.avals == other.avals

    def __hash__(self) -> int:
        return hash((self.tree, self.avals))

    def __str__(self) -> str:
        leaves = [aval.str_short(short_dtypes=True) for aval in self.avals]
        return leaves[0] if self.is_plain else str(jax.tree.unflatten(self.tree, leaves))


def is_box(value: Any) -> bool:
    """Whether a value is a box."""
    return isinstance(value, Box)


def aval_of(value: Any) -> Any:
    """The type of the array that a value stands for."""
    return value.aval if isinstance(value, Box) else typeof(value)


def plain_type(aval: Any) -> Type:
    """The type of an array."""
    return Type(LEAF, (aval,))


def type_of(value: Any, program: Any = None) -> Type:
    """The type of a value; a plain one keeps the program's own aval (weak type, sharding) where that fits."""
    if not isinstance(value, Box):
        aval = value if isinstance(value, AbstractValue) else typeof(value)
        return plain_type(program if program is not None and typematch(aval, program) else aval)
    leaves, tree = jax.tree.flatten(value)
    return Type(tree, tuple(map(typeof, leaves)))


def flatten(values: Iterable[Any]) -> list[Any]:
    """The leaves of some values, one after the other."""
    leaves: list[Any] = []
    for value in values:
        if isinstance(value, Box):
            leaves += jax.tree.leaves(value)
        else:
            leaves.append(value)
    return leaves


def unflatten(types: Iterable[Type], leaves: Iterable[Any]) -> list[Any]:
    """Puts values together again from their leaves."""
    remaining = iter(leaves)
    return [
        next(remaining)
        if type.is_plain
        else jax.tree.unflatten(type.tree, list(itertools.islice(remaining, len(type.avals))))
        for type in types
    ]


def all_plain(values: Iterable[Any]) -> bool:
    """Whether there is no box among some values."""
    return not any(isinstance(value, Box) for value in values)


def convert_leaf(leaf: Any, aval: Any) -> Any:
    """Converts an array to another dtype where its type differs; raises RuleError when its shape does."""
    found = typeof(leaf)
    if typematch(found, aval):
        return leaf
    numeric = hasattr(aval, "dtype") and not jax.dtypes.issubdtype(aval.dtype, jax.dtypes.extended)
    if numeric and getattr(found, "shape", None) == aval.shape:
        if found.dtype != aval.dtype:
            return lax.convert_element_type(leaf, aval.dtype)
        if (missing := _missing_axes(found, aval)) is not None:
            return lax.pcast(leaf, missing, to="varying")
    raise RuleError(
        f"a value of type {found.str_short(short_dtypes=True)} where {aval.str_short(short_dtypes=True)} is needed",
        mend="let the rules agree on one type, or override `join`",
    )


def _missing_axes(found: Any, wanted: Any) -> tuple[Any, ...] | None:
    """Inside a shard_map: the axes along which `found` must vary to be `wanted`."""
    missing = wanted.mat.varying - found.mat.varying
    return tuple(missing) if missing and found.mat.varying <= wanted.mat.varying else None


def promote(first: Any, second: Any) -> Any:
    """The aval that two leaves of the same shape both convert to."""
    if typematch(first, second):
        return first
    first, second = strip_weak_type(first), strip_weak_type(second)
    if first.shape != second.shape:
        return first
    # Under strict promotion JAX refuses what a carry needs: the dtype that holds both.
    with jax.numpy_dtype_promotion("standard"):
        return first.update(dtype=jnp.promote_types(first.dtype, second.dtype))


def same_types(first: Sequence[Type], second: Sequence[Type]) -> bool:
    """Whether two lists of types match one by one."""
    return len(first) == len(second) and all(a.matches(b) for a, b in zip(first, second, strict=True))
