"""Loss scaling: gradients too small for float16 are multiplied before the backward pass and divided after it.

The scale that a gradient is divided by is the one that the loss was multiplied by, in float32; a step whose gradients are not
finite is for `select` to skip; and the scale moves between two bounds.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from unlower.amp.policy import Policy
from unlower.amp.transform import as_policy, autocast
from unlower.errors import UnlowerError

__all__ = ["LossScale", "LossScaleError", "grad", "value_and_grad"]

T = TypeVar("T")

SMALLEST, LARGEST = 2.0**-24, 2.0**24


class LossScaleError(UnlowerError, ValueError):
    """A loss scale that cannot be: not positive, outside its bounds, or no `LossScale` where one belongs."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LossScale:
    """The state of loss scaling, a pytree: pass it through `jit`, `scan` and checkpoints as you do the optimizer's.

    Make one by `dynamic`, `static` or `none`.

    Attributes:
      scale: float32 scalar, what the loss is multiplied by.
      count: int32 scalar, finite steps since the scale last changed.
      finite: boolean scalar, whether the gradients of the last step were finite.
      period: finite steps until the scale grows; 0 if it is static.
      factor: what it grows and shrinks by.
      smallest, largest: its bounds.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from unlower import amp
      >>> scale = amp.LossScale.dynamic(2.0**10)
      >>> step = amp.value_and_grad(lambda w, x: jnp.mean((x @ w) ** 2), policy="f16")
      >>> w, x = jnp.ones((32, 4)), jnp.ones((8, 32))
      >>> (loss, grads), scale = step(scale, w, x)
      >>> w = scale.select(w - 0.01 * grads, w)
      >>> float(loss), bool(scale.finite)
      (1024.0, True)
    """

    scale: Any
    count: Any
    finite: Any
    period: int = dataclasses.field(default=0, metadata={"static": True})
    factor: float = dataclasses.field(default=2.0, metadata={"static": True})
    smallest: float = dataclasses.field(default=SMALLEST, metadata={"static": True})
    largest: float = dataclasses.field(default=LARGEST, metadata={"static": True})

    @classmethod
    def dynamic(
        cls,
        initial: float = 2.0**15,
        *,
        period: int = 2000,
        factor: float = 2.0,
        smallest: float = SMALLEST,
        largest: float = LARGEST,
    ) -> "LossScale":
        """Grows by `factor` after `period` finite steps, shrinks by it at each step that is not, within bounds."""
        if period < 1 or not factor > 1 or not 0 < smallest <= initial <= largest < np.inf:
            raise LossScaleError(
                f"a dynamic loss scale of {initial}, period {period}, factor {factor}, bounds {smallest} and {largest}",
                mend="choose 0 < smallest <= initial <= largest, a factor above 1 and a period of at least 1",
            )
        return cls(jnp.float32(initial), jnp.int32(0), jnp.bool_(True), period, factor, smallest, largest)

    @classmethod
    def static(cls, scale: float) -> "LossScale":
        """Stays as it is; gradients that are not finite are noticed all the same."""
        if not 0 < scale < np.inf:
            raise LossScaleError(f"a loss scale of {scale}", mend="choose a positive number")
        return cls(jnp.float32(scale), jnp.int32(0), jnp.bool_(True))

    @classmethod
    def none(cls) -> "LossScale":
        """The scale 1: for bfloat16, which has the range of float32."""
        return cls.static(1.0)

    def apply(self, loss: Any) -> Any:
        """Multiplies a loss by the scale, in float32."""
        return jnp.asarray(loss, jnp.float32) * self.scale

    def unscale(self, gradients: T) -> T:
        """Divides gradients by the scale, in float32; each keeps its dtype."""
        return jax.tree.map(lambda g: _divide(g, self.scale), gradients)

    def update(self, gradients: Any) -> "LossScale":
        """The state after a step whose unscaled gradients are these: one check whether all of them are finite."""
        finite = all_finite(gradients)
        if not self.period:
            return dataclasses.replace(self, finite=finite)
        grown = jnp.minimum(self.scale * self.factor, self.largest)
        shrunk = jnp.maximum(self.scale / self.factor, self.smallest)
        grows = self.count + 1 >= self.period
        scale = jnp.where(finite, jnp.where(grows, grown, self.scale), shrunk).astype(jnp.float32)
        count = jnp.where(finite & ~grows, self.count + 1, 0).astype(jnp.int32)
        return dataclasses.replace(self, scale=scale, count=count, finite=finite)

    def select(self, new: T, old: T) -> T:
        """The new pytree if the last step was finite, else the old: for parameters and optimizer state alike."""
        return jax.tree.map(lambda n, o: jax.lax.select(self.finite, jnp.asarray(n), jnp.asarray(o)), new, old)


def all_finite(tree: Any) -> Any:
    """Whether every float in a pytree is finite: a boolean scalar."""
    floats = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(jnp.result_type(x), jnp.inexact)]
    finite = jnp.bool_(True)
    for x in floats:
        finite &= jnp.isfinite(x).all()
    return finite


def _divide(gradient: Any, scale: Any) -> Any:
    dtype = jnp.result_type(gradient)
    if not jnp.issubdtype(dtype, jnp.inexact):
        return gradient  # float0: an integer has no gradient
    wide = jnp.promote_types(dtype, jnp.float32)
    return (jnp.asarray(gradient, wide) / scale.astype(wide)).astype(dtype)


def value_and_grad(
    function: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    *,
    policy: Policy | str | None = None,
) -> Callable[..., Any]:
    """`jax.value_and_grad` of the function under autocast, with loss scaling.

    Args:
      function: returns a scalar, or a scalar and anything else if `has_aux`.
      argnums: what to differentiate with respect to, counted among the function's own arguments.
      has_aux: whether the function returns a pair.
      policy: as `autocast` takes it; a function that is autocast already stays as it is.

    Returns:
      a function that takes a `LossScale` and then what `function` takes, and returns `(value, gradients)` as
      `jax.value_and_grad` does, and the next `LossScale`. Value and gradients are not scaled. Where `finite` of the next scale
      is False, the step is to be skipped: `scale.select(new, old)`.

    Raises:
      LossScaleError: the first argument is no `LossScale`.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from unlower import amp
      >>> step = amp.value_and_grad(lambda w: jnp.sum(w**2), policy="f16")
      >>> (value, gradient), scale = step(amp.LossScale.dynamic(period=1), jnp.ones(2))
      >>> gradient.tolist(), float(scale.scale)
      ([2.0, 2.0], 65536.0)
    """
    cast = autocast(function, as_policy(policy))

    def differentiated(scale: LossScale, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(scale, LossScale):
            raise LossScaleError(
                f"{type(scale).__name__} as the first argument of a scaled gradient",
                mend="pass an amp.LossScale before the function's own arguments, such as amp.LossScale.none()",
            )

        def scaled(*args: Any, **kwargs: Any) -> Any:
            out = cast(*args, **kwargs)
            loss, aux = out if has_aux else (out, None)
            return scale.apply(loss), (loss, aux)

        run = jax.value_and_grad(scaled, argnums, has_aux=True)
        (_, (loss, aux)), gradients = run(*args, **kwargs)
        gradients = scale.unscale(gradients)
        return ((((loss, aux) if has_aux else loss), gradients), scale.update(gradients))

    return differentiated


def grad(
    function: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    *,
    policy: Policy | str | None = None,
) -> Callable[..., Any]:
    """`jax.grad` of the function under autocast, with loss scaling; see `value_and_grad`.

    Returns:
      a function that takes a `LossScale` and then what `function` takes, and returns the gradients (and the auxiliary output
      beside them, if `has_aux`) and the next `LossScale`.

    Example:
      >>> import jax.numpy as jnp
      >>> from unlower import amp
      >>> gradient, scale = amp.grad(lambda w: jnp.sum(w**3))(amp.LossScale.none(), jnp.ones(2))
      >>> gradient.tolist()
      [3.0, 3.0]
    """
    run = value_and_grad(function, argnums, has_aux, policy=policy)

    def differentiated(scale: LossScale, *args: Any, **kwargs: Any) -> Any:
        (value, gradients), scale = run(scale, *args, **kwargs)
        return ((gradients, value[1]) if has_aux else gradients), scale

    return differentiated
