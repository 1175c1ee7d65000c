"""Bring XLA programs back to life as JAX functions."""

from unlower.errors import UnlowerError  # noqa: F401  (temporary while the pieces land)


def __getattr__(name):
    if name in ("load", "Program"):
        import unlower.program as p

        return getattr(p, name)
    if name in ("op_rule", "op_rules"):
        import unlower.ops as o

        return getattr(o, name)
    raise AttributeError(name)
