"""What is wrong with an instruction: raised where it is found, and given its place by who knows the place."""

__all__ = ["Fault"]


class Fault(Exception):  # noqa: N818 (no error of the library's: it never leaves the readers)
    """What is wrong with the instruction, computation or module at hand; one sentence without a full stop."""
