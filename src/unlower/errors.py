"""Every exception that `unlower` raises on purpose.

The tree, each leaf with the builtin a caller would expect to catch::

    UnlowerError
    ├── FormatError             (ValueError)           damaged, elided or foreign input
    ├── InvalidModuleError      (ValueError)           well-formed bytes, ill-formed program
    ├── UnsupportedOpError      (NotImplementedError)  operations that have no rule, all at once
    ├── SignatureError          (TypeError)            a call that does not fit the program
    ├── DuplicateRuleError      (ValueError)           two rules claim one name
    ├── RuleError               (TypeError)            a rule and its operation disagree
    └── UnhandledHigherOrderError (NotImplementedError) a primitive nobody has taught hides a program to be rewritten
"""

__all__ = [
    "DuplicateRuleError",
    "FormatError",
    "InvalidModuleError",
    "RuleError",
    "SignatureError",
    "UnhandledHigherOrderError",
    "UnlowerError",
    "UnsupportedOpError",
]


class UnlowerError(Exception):
    """The root of every error that `unlower` raises on purpose.

    Args:
      what: what went wrong, one sentence.
      where: the place in the file or module, or None.
      mend: what the caller can do about it, or None.
    """

    def __init__(self, what: str, *, where: str | None = None, mend: str | None = None):
        self.what, self.where, self.mend = what, where, mend
        lines = [what]
        if where:
            lines.append(f"  where: {where}")
        if mend:
            lines.append(f"  mend:  {mend}")
        super().__init__("\n".join(lines))


class FormatError(UnlowerError, ValueError):
    """Input that is damaged, elided, or no XLA program at all."""


class InvalidModuleError(UnlowerError, ValueError):
    """A module that breaks the structure or the types of its vocabulary."""


class UnsupportedOpError(UnlowerError, NotImplementedError):
    """Operations that no rule covers; the message lists all of them."""


class SignatureError(UnlowerError, TypeError):
    """Arguments that do not fit the program's signature."""


class DuplicateRuleError(UnlowerError, ValueError):
    """Two rules claim the same operation."""


class RuleError(UnlowerError, TypeError):
    """A rule that cannot take the operands or attributes of its operation."""


class UnhandledHigherOrderError(UnlowerError, NotImplementedError):
    """A primitive that nobody has taught carries a program in which a primitive with a rule stands."""
