"""JAX's own primitive harnesses under an interpreter that changes nothing: the bits must be the same, in both styles.

    python conformance/identity.py [--every N]     every Nth of some 7,400 harnesses; all by default

The harnesses come with JAX's test utilities and need absl-py. Every primitive is bound again by the interpreter (its `default`
is its own), so that none is copied unseen. Prints the figures, and each case that fails; exits with 1 if one does.
"""

import argparse
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from unlower import interpret

STYLES = ("initial", "final")


def main(arguments: list[str] | None = None) -> int:
    """Runs the harnesses; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=1)
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    jax.config.update("jax_enable_x64", True)
    ran = skipped = failed = 0
    for harness in _harnesses(options.every):
        outcome = _outcome(harness)
        ran, skipped, failed = ran + (outcome == ""), skipped + (outcome is None), failed + bool(outcome)
        if outcome:
            print(f"{harness.fullname}: {outcome}", flush=True)
    print(
        f"identity, jax {jax.__version__}: {ran} of {ran + failed} harnesses bit-equal in both styles, {skipped} do not run"
    )
    return 1 if failed else 0


def _harnesses(every: int) -> Iterator[Any]:
    from jax._src.internal_test_util import test_harnesses  # noqa: TID251 - JAX keeps its harnesses there

    yield from test_harnesses.all_harnesses[::every]


def _outcome(harness: Any) -> str | None:
    """The empty string if all is well, None if the harness itself does not run, else what is wrong."""
    try:
        if not harness.filter("cpu"):
            return None
        args = harness.dyn_args_maker(np.random.RandomState(0))
        wanted = jax.tree.leaves(harness.dyn_fun(*args))
    except Exception:  # noqa: BLE001 - dtypes and sizes that this backend declines
        return None
    for style in STYLES:
        identity = interpret.Interpreter(default=lambda ctx, *values, **params: ctx.bind(*values))
        try:
            found = jax.tree.leaves(identity.transform(harness.dyn_fun, style=style)(*args))
        except Exception as error:  # noqa: BLE001 - the table shows every failure
            return f"{style}: {type(error).__name__}: {str(error)[:200]}"
        if not all(map(_same, found, wanted)):
            return f"{style}: another value"
    return ""


def _same(first: Any, second: Any) -> bool:
    if jax.dtypes.issubdtype(second.dtype, jax.dtypes.prng_key):
        first, second = jax.random.key_data(first), jax.random.key_data(second)
    return first.dtype == second.dtype and np.asarray(first).tobytes() == np.asarray(second).tobytes()


if __name__ == "__main__":
    sys.exit(main())
