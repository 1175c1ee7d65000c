"""Chooses among the platforms that a module was lowered for."""

import dataclasses

import jax
import numpy as np

from unlower.errors import SignatureError
from unlower.ir.interface import Source
from unlower.raising.platform import count_platforms, fix_platform

__all__ = ["choose_platform"]

_GPUS = ("cuda", "rocm")


def choose_platform(source: Source, platform: str | int | None = None) -> Source:
    """Fixes the platform index of a program, if it has one.

    Args:
      source: a normalized module, and its interface.
      platform: one of the program's platforms (`"gpu"` is whichever of CUDA and ROCm it has), or the place of one among
        them, which also works where the file does not name them. None: the platform of the default backend; if the program
        was not lowered for it, or does not say for which it was, the first one, and a note says so.

    Raises:
      SignatureError: the program has no such platform.
    """
    module, interface = source
    positions = [i for i, x in enumerate(interface.inputs) if x.role == "platform_index"]
    if not positions:
        if platform is not None and platform != 0 and not _names(platform, interface.platforms):
            raise _unknown(platform, interface.platforms, 1)
        return source
    (position,) = positions
    count = len(interface.platforms) or count_platforms(module, position)
    index, note = _index(platform, interface.platforms, count)
    chosen = interface.platforms[index] if interface.platforms else f"number {index}"
    fixed = dataclasses.replace(
        interface,
        inputs=tuple(x for i, x in enumerate(interface.inputs) if i != position),
        platform=chosen,
        fixed={**interface.fixed, position: np.int32(index)},
        notes=(*interface.notes, *([note] if note else [])),
    )
    return Source(fix_platform(module, position, index), fixed)


def _names(platform: str | int, platforms: tuple[str, ...]) -> list[int]:
    """The places of the platforms that a name means."""
    wanted = _GPUS if platform == "gpu" else (platform,)
    return [i for i, name in enumerate(platforms) if name in wanted]


def _index(platform: str | int | None, platforms: tuple[str, ...], count: int | None) -> tuple[int, str | None]:
    if isinstance(platform, int):
        if not 0 <= platform < (count or platform + 1):
            raise _unknown(platform, platforms, count)
        return platform, None
    if platform is not None:
        found = _names(platform, platforms)
        if not found:
            raise _unknown(platform, platforms, count)
        return found[0], None
    if not platforms:
        several = f"{count} platforms" if count else "several platforms"
        return 0, (
            f"the module was lowered for {several} and does not say which; this is the first of them, and "
            "load(..., platform=1) is the second"
        )
    backend = jax.default_backend()
    found = _names(backend, platforms)
    if found:
        return found[0], None
    return 0, f"the program was lowered for {', '.join(platforms)}, not for {backend}; this is what {platforms[0]} runs"


def _unknown(platform: str | int, platforms: tuple[str, ...], count: int | None) -> SignatureError:
    if platforms:
        known = f"it was lowered for {', '.join(platforms)}"
    elif count and count > 1:
        known = f"it was lowered for {count} platforms that it does not name: give a number below {count}"
    else:
        known = "it does not say what it was lowered for, and does not choose by the platform"
    return SignatureError(
        f"the program has no platform {platform!r}: {known}", mend="leave out platform=, or pass one of these"
    )
