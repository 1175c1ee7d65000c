"""Values that rules send out of a program, from whatever depth: `ctx.emit(name, value)` inside, a `Log` outside."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from unlower.errors import RuleError
from unlower.interpret.values import Type

__all__ = ["Log"]

MODES = ("strict", "append", "last")


class Emission(NamedTuple):
    """One emitted value on its way out.

    Attributes:
      name: the name it is emitted under.
      mode: what happens to a second value of that name: `"strict"` raises, `"append"` keeps both, `"last"` replaces.
      value: a pytree of arrays.
      present: whether the program came by, a boolean array; None if it surely did.
    """

    name: Any
    mode: str
    value: Any
    present: Any = None


class EmissionType(NamedTuple):
    """What is known of an emission without its value."""

    name: Any
    mode: str
    type: Type
    may_be_absent: bool

    @property
    def leaves(self) -> int:
        """How many arrays it takes to a program's outputs."""
        return len(self.type.avals) + self.may_be_absent


@jax.tree_util.register_pytree_node_class
class Log(Mapping[Any, Any]):
    """What a program has emitted: name -> value, a pytree.

    Values emitted in a loop are stacked along a first axis. Where a branch was not taken the value is zero, and `present` is
    False there.

    Attributes:
      present: name -> boolean array, whether (and for a loop: in which iterations) the program came by the emission.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jax.ad_checkpoint import checkpoint_name
      >>> note = Interpreter({"name": lambda ctx, x, *, name: (ctx.emit(name, x), x)[1]})
      >>> def f(x):
      ...     return jax.lax.scan(lambda c, _: (checkpoint_name(c * 2, "c"), None), x, None, length=3)[0]
      >>> note.transform(f, with_log=True)(1.0)[1]["c"]
      Array([2., 4., 8.], dtype=float32)
    """

    def __init__(self, values: Mapping[Any, Any], present: Mapping[Any, Any]):
        self._values, self.present = dict(values), dict(present)

    def __getitem__(self, name: Any) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Log({self._values!r})"

    def tree_flatten(self) -> tuple[Any, Any]:
        """Splits into arrays and names, for JAX."""
        return (list(self._values.values()), list(self.present.values())), tuple(self._values)

    @classmethod
    def tree_unflatten(cls, names: Any, children: Any) -> "Log":
        """Puts a log together again, for JAX."""
        values, present = children
        return cls(dict(zip(names, values, strict=True)), dict(zip(names, present, strict=True)))


class Emissions:
    """The emissions of one program, in order."""

    __slots__ = ("entries",)

    def __init__(self):
        self.entries: list[Emission] = []

    def add(self, emission: Emission) -> None:
        """Adds an emission, by its mode; raises RuleError for a second one of a name that allows only one."""
        earlier = [i for i, e in enumerate(self.entries) if e.name == emission.name]
        if earlier and not emission.mode == self.entries[earlier[0]].mode != "strict":
            raise RuleError(
                f"{emission.name!r} is emitted twice",
                mend='give each a name of its own (ctx.path tells them apart), or emit with mode="append" or mode="last"',
            )
        if earlier and emission.mode == "last":
            old = self.entries.pop(earlier[0])
            emission = _replace(old, emission)
        self.entries.append(emission)

    def log(self) -> Log:
        """What the caller of the outermost program gets."""
        values: dict[Any, Any] = {}
        present: dict[Any, Any] = {}
        for name, mode, value, there in self.entries:
            there = jnp.ones((), bool) if there is None else there
            if mode == "append":
                values[name], present[name] = (*values.get(name, ()), value), (*present.get(name, ()), there)
            else:
                values[name], present[name] = value, there
        return Log(values, present)

    def types(self, types: Iterable[Type]) -> tuple[EmissionType, ...]:
        """The types of these emissions, given those of their values."""
        return tuple(
            EmissionType(e.name, e.mode, type, e.present is not None)
            for e, type in zip(self.entries, types, strict=True)
        )


def _replace(old: Emission, new: Emission) -> Emission:
    """The later value where there is one, else the earlier."""
    if new.present is None:
        return new
    same = jax.tree.structure(old.value) == jax.tree.structure(new.value) and new.present.shape == ()
    if not same:
        raise RuleError(
            f"{new.name!r} is emitted with mode='last' by values of two kinds", mend="give each its own name"
        )
    value = jax.tree.map(lambda a, b: jnp.where(new.present, b, a), old.value, new.value)
    return Emission(new.name, new.mode, value, None if old.present is None else old.present | new.present)
