"""What autocast is told: the low dtype, what is handed back, and what the caller knows better."""

import fnmatch
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from unlower.errors import UnlowerError

__all__ = ["Policy", "PolicyError"]

LOW = tuple(map(np.dtype, (jnp.bfloat16, jnp.float16)))
WIDE = np.dtype(np.float32)

_NAMES = {
    "bf16": jnp.bfloat16, "bfloat16": jnp.bfloat16, "half": jnp.bfloat16,
    "f16": jnp.float16, "fp16": jnp.float16, "float16": jnp.float16,
    "f32": jnp.float32, "float32": jnp.float32, "full": jnp.float32, "single": jnp.float32,
}  # fmt: skip

Choice = str
CHOICES = ("full", "low")


class PolicyError(UnlowerError, ValueError):
    """A policy that makes no sense: an unknown dtype, field or choice."""


@dataclass(frozen=True)
class Policy:
    """How `autocast` chooses precisions.

    Attributes:
      low: the dtype of products and of what stands between them, `bfloat16` or `float16`; `float32` leaves everything alone.
      output: the dtype of float results, or None for the dtypes that the function declares.
      scopes: glob over name scopes -> `"full"` or `"low"`. `*` stands for one scope, `**` for any number: `"**/head"`.
      primitives: name of a primitive -> `"full"` or `"low"`.
      where: a function of `(primitive name, parameters, scope)` that returns `"full"`, `"low"` or None.
      kernels: names of opaque calls (pallas kernels, foreign functions) that accept operands in `low`, whatever they declare.
      param: the dtype in which parameters are kept: read from jmp's grammar, and used by `cast_to_param` alone.

    The most specific of them wins: `where`, then `primitives`, then `full_precision` and `half_precision` regions and
    `scopes`, innermost first.

    Raises:
      PolicyError: a dtype is none of bfloat16, float16 and float32, or a choice is neither `"full"` nor `"low"`.

    Example:
      >>> Policy.parse("p=f32,c=bf16,o=f32").low
      dtype(bfloat16)
      >>> Policy(low="fp16", scopes={"**/head": "full"}).low
      dtype('float16')
    """

    low: Any = jnp.bfloat16
    output: Any = None
    scopes: Mapping[str, Choice] = field(default_factory=dict)
    primitives: Mapping[str, Choice] = field(default_factory=dict)
    where: Callable[[str, Mapping[str, Any], str], Choice | None] | None = None
    kernels: frozenset[str] = frozenset()
    param: Any = WIDE

    def __post_init__(self):
        for name in ("low", "output", "param"):
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None and name == "output" else _dtype(value, name))
        object.__setattr__(self, "kernels", frozenset(self.kernels))
        for table in (self.scopes, self.primitives):
            for key, choice in table.items():
                _check_choice(choice, repr(key))

    @classmethod
    def parse(cls, text: str) -> "Policy":
        """Reads jmp's grammar: `"p=f32,c=bf16,o=f32"` with param, compute and output dtypes, or one dtype for compute."""
        fields: dict[str, Any] = {}
        for part in text.replace(" ", "").split(","):
            name, _, value = part.rpartition("=")
            key = {"": "low", "p": "param", "params": "param", "c": "low", "compute": "low", "o": "output"}.get(
                name, "output" if name == "output" else None
            )
            if key is None or key in fields:
                raise PolicyError(
                    f"policy {text!r}: {part!r}", mend='write "p=DTYPE,c=DTYPE,o=DTYPE", or the compute dtype alone'
                )
            fields[key] = value
        return cls(**fields)

    @property
    def is_identity(self) -> bool:
        """Whether nothing is computed in low precision."""
        return self.low == WIDE

    def cast_to_param(self, tree: Any) -> Any:
        """Casts the floats of a pytree to the dtype of parameters."""
        return _cast(tree, self.param)

    def cast_to_compute(self, tree: Any) -> Any:
        """Casts the floats of a pytree to the low dtype."""
        return _cast(tree, self.low)

    def cast_to_output(self, tree: Any) -> Any:
        """Casts the floats of a pytree to the dtype of results."""
        return tree if self.output is None else _cast(tree, self.output)

    def choice(self, primitive: str, params: Mapping[str, Any], scope: tuple[str, ...]) -> tuple[Choice, str] | None:
        """What the caller says of an equation: `"full"` or `"low"` and why, or None."""
        if self.where is not None:
            chosen = self.where(primitive, params, "/".join(scope))
            if chosen is not None:
                _check_choice(chosen, "where")
                return chosen, "policy.where"
        if primitive in self.primitives:
            return self.primitives[primitive], f"policy.primitives[{primitive!r}]"
        return self._scope_choice(scope)

    def _scope_choice(self, scope: tuple[str, ...]) -> tuple[Choice, str] | None:
        for depth in range(len(scope), 0, -1):
            for choice, marker in MARKERS.items():
                if scope[depth - 1] == marker:
                    return choice, f"inside {marker}"
            for pattern, choice in self.scopes.items():
                if _matches(scope[:depth], pattern.split("/")):
                    return choice, f"policy.scopes[{pattern!r}]"
        return None


MARKERS = {"full": "amp.full_precision", "low": "amp.half_precision"}
"""Choice -> the name scope that a region has which the user marked."""


def _matches(scope: tuple[str, ...], pattern: list[str]) -> bool:
    if not pattern:
        return not scope
    if pattern[0] == "**":
        return any(_matches(scope[n:], pattern[1:]) for n in range(len(scope) + 1))
    return bool(scope) and fnmatch.fnmatchcase(scope[0], pattern[0]) and _matches(scope[1:], pattern[1:])


def _dtype(value: Any, name: str) -> np.dtype:
    try:
        found = np.dtype(_NAMES.get(value, value) if isinstance(value, str) else value)
    except TypeError:
        found = None
    if found is None or (found != WIDE and found not in LOW):
        raise PolicyError(f"policy {name}={value!r}", mend="choose bfloat16, float16 or float32")
    return found


def _check_choice(choice: Any, where: str) -> None:
    if choice not in CHOICES:
        raise PolicyError(f"policy choice {choice!r} for {where}", mend='choose "full" or "low"')


def _cast(tree: Any, dtype: Any) -> Any:
    is_float = lambda x: hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.floating)
    return jax.tree.map(lambda x: jnp.asarray(x, dtype) if is_float(x) else x, tree)
