"""What one load leaves for the next: numbers for types, attributes and regions, and the templates traced under them.

A second program made of the same operations (another dump of one model, another layer count, another step of a training
loop) finds most of them traced. Only small templates are kept; when there are too many, everything is forgotten at once.
"""

import itertools
from typing import Any

__all__ = ["SharedTemplates", "shared_templates"]

_MOST_NUMBERS = 200_000
_MOST_TEMPLATES = 20_000
_MOST_BYTES = 4096
"""Templates that hold more constant data than this are not kept."""


class SharedTemplates:
    """Numbers and templates that loads share. Numbers are never used twice, so threads cannot mix them up."""

    def __init__(self) -> None:
        self._counter = itertools.count()
        self._numbers: dict[Any, int] = {}
        self._templates: dict[Any, Any] = {}

    def unique(self) -> int:
        """Returns a number that stands for nothing else."""
        return next(self._counter)

    def number(self, value: Any) -> int:
        """Returns the number of a hashable value."""
        found = self._numbers.get(value)
        return self._numbers.setdefault(value, next(self._counter)) if found is None else found

    def find(self, key: Any) -> Any:
        """Returns the template under `key`, or None."""
        return self._templates.get(key)

    def keep(self, key: Any, template: Any, consts: list[tuple[Any, Any]]) -> None:
        """Keeps a template for later loads, unless its constants are large."""
        if sum(getattr(value, "nbytes", 0) for _, value in consts) <= _MOST_BYTES:
            self._templates[key] = template

    def is_full(self) -> bool:
        """Whether it is time to start afresh."""
        return len(self._numbers) > _MOST_NUMBERS or len(self._templates) > _MOST_TEMPLATES


_current = SharedTemplates()


def shared_templates() -> SharedTemplates:
    """Returns the store of this process, a fresh one when the old one is full."""
    global _current
    if _current.is_full():
        _current = SharedTemplates()
    return _current
