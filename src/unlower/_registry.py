"""Tables from names to rules, where duplicates and misses are loud."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from unlower.errors import DuplicateRuleError

__all__ = ["Registry"]

F = TypeVar("F", bound=Callable[..., Any])


class Registry(Mapping[str, Callable[..., Any]]):
    """An append-only mapping from names to rules; `table | {...}` derives a table in which a rule is replaced.

    Example:
      >>> table = Registry("demo")
      >>> @table.register("a", "b")
      ... def rule(): ...
      >>> sorted(table), sorted(table | {"c": rule})
      (['a', 'b'], ['a', 'b', 'c'])
    """

    def __init__(self, kind: str, rules: Mapping[str, Callable[..., Any]] | None = None):
        self._kind = kind
        self._rules: dict[str, Callable[..., Any]] = dict(rules or {})

    def register(self, *names: str) -> Callable[[F], F]:
        """Returns a decorator that files its function under `names`; raises DuplicateRuleError on a second claim."""

        def decorate(rule: F) -> F:
            for name in names:
                self.add(name, rule)
            return rule

        return decorate

    def add(self, name: str, rule: Callable[..., Any]) -> None:
        """Files `rule` under `name`; raises DuplicateRuleError when another rule is there."""
        if name in self._rules:
            first, second = (f"{f.__module__}.{f.__qualname__}" for f in (self._rules[name], rule))
            raise DuplicateRuleError(
                f"two {self._kind} rules for {name}: {first} and {second}",
                mend="keep one, or derive a table: rules=table | {name: rule}",
            )
        self._rules[name] = rule

    def __getitem__(self, name: str) -> Callable[..., Any]:
        return self._rules[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rules)

    def __len__(self) -> int:
        return len(self._rules)

    def __or__(self, other: Mapping[str, Callable[..., Any]]) -> "Registry":
        return Registry(self._kind, {**self._rules, **other})

    def __repr__(self) -> str:
        return f"<{len(self)} {self._kind} rules>"
