"""How much a program may ask for, before a reader gives up on it."""

import dataclasses
from typing import Any

from unlower.errors import FormatError

__all__ = ["DEFAULT_LIMITS", "Limits"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds on what `load` takes; each default is far above what real programs need.

    Attributes:
      input_bytes: the size of the source, unzipped, in bytes.
      constant_bytes: the data of all constants, in bytes.
      operations: operations as the file has them.
      expanded_operations: operations after those of shared HLO computations are copied to every place of use, which is how
        they reach XLA: a file of a few kilobytes can ask for millions.
      nesting: regions, tuples or brackets inside each other.

    Example:
      >>> import unlower
      >>> unlower.load(b"HloModule m", limits=unlower.Limits(input_bytes=8))
      Traceback (most recent call last):
          ...
      unlower.errors.FormatError: the source has 11 bytes, more than the 8 that are allowed
        mend:  if you trust it, pass limits=unlower.Limits(input_bytes=11)
    """

    input_bytes: int = 64 << 30
    constant_bytes: int = 64 << 30
    operations: int = 2_000_000
    expanded_operations: int = 4_000_000
    nesting: int = 100

    def check(self, field: str, count: int, what: str, *, where: str | None = None) -> None:
        """Raises FormatError if `count` is more than the limit `field`; `what` says of what there is too much."""
        allowed: Any = getattr(self, field)
        if count > allowed:
            raise FormatError(
                f"{what}, more than the {allowed:,} that are allowed",
                where=where,
                mend=f"if you trust it, pass limits=unlower.Limits({field}={count})",
            )


DEFAULT_LIMITS = Limits()
