"""How custom calls say what they do: settings in a dictionary, in JSON or in bytes; layouts; results that are no values."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import Array, lax

from unlower.errors import RuleError
from unlower.ir.module import Op
from unlower.ir.types import TensorType

__all__ = ["check_names", "dictionary", "differentiated_as", "integers", "json_config", "refusal", "zeros"]


def refusal(op: Op, what: str) -> RuleError:
    """The error of a call whose configuration has no meaning here."""
    target = op.attributes["call_target_name"]
    return RuleError(
        f"the custom call {target!r} {what}",
        mend=f'pass rules=unlower.op_rules | {{"{target}": my_rule}}, with a rule that knows what it means',
    )


def check_names(op: Op, names: Iterable[str], known: Iterable[str]) -> None:
    """Raises RuleError where a configuration holds a name that is not among the known ones."""
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise refusal(op, f"has the setting {', '.join(unknown)} that its rule does not know")


def dictionary(op: Op) -> Mapping[str, Any]:
    """Returns the attributes of a typed call (XLA's FFI), which are a dictionary; an empty one where there are none."""
    config = op.attributes.get("mhlo.backend_config", op.attributes.get("backend_config"))
    if config is None or config == "":
        return {}
    if not isinstance(config, Mapping):
        raise refusal(op, f"has the configuration {str(config)[:80]!r}, and not a dictionary")
    return config


def json_config(op: Op, name: str) -> Mapping[str, Any]:
    """Returns the part `name` of XLA's own configuration, which is JSON; all of it where it was written without that part.

    XLA: `backend_configs.proto`. A field that has its default, zero or nothing, is left out.
    """
    config = op.attributes.get("backend_config", "") or "{}"
    try:
        found = json.loads(config)
    except (TypeError, ValueError):
        found = None
    if not isinstance(found, dict):
        raise refusal(op, f"has the configuration {str(config)[:80]!r}, which is no JSON")
    part = found.get(name, found)
    return part if isinstance(part, dict) else {}


def integers(op: Op) -> tuple[int, ...]:
    """Returns the 32-bit integers of a packed descriptor, as many as are whole."""
    config = op.attributes.get("backend_config", "")
    data = config if isinstance(config, bytes) else str(config).encode("utf-8", "surrogateescape")
    return tuple(int(n) for n in np.frombuffer(data[: len(data) // 4 * 4], "<i4"))


def zeros(type_: TensorType) -> Array:
    """What stands for a workspace."""
    return lax.full(type_.shape, np.zeros((), type_.dtype), type_.dtype)


def differentiated_as(
    function: Callable[..., Sequence[Array]], meaning: Callable[..., Sequence[Array]]
) -> Callable[..., Sequence[Array]]:
    """Returns `function` with the derivative of `meaning`, which computes the same in operations that have one."""
    result = jax.custom_jvp(function)

    @result.defjvp
    def _(primals: Sequence[Array], tangents: Sequence[Array]) -> tuple[Any, Any]:
        return result(*primals), jax.jvp(meaning, primals, tangents)[1]

    return result
