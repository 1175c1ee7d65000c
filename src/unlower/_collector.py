"""The garbage collector, out of the way while many small objects are made and none of them is garbage."""

import contextlib
import gc
from collections.abc import Iterator

__all__ = ["collector_paused"]


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Pauses the collector, which would walk what is made again and again; it goes on only if it was on before.

    What was made is old by then: else the collector's first act would be to walk all of it.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            # Freezing takes every object out of the young generations, and thawing puts it into the oldest, at no cost.
            if gc.get_freeze_count() == 0:
                gc.freeze()
                gc.unfreeze()
            gc.enable()
