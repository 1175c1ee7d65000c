"""Linear algebra on TPUs, as functions of `lax.linalg`.

XLA's TPU compiler expands these calls itself. JAX wraps each in a function of its own, `xla_fallback_lu` and so on.

Source: `jax/_src/tpu/linalg`, `jax/_src/lax/linalg.py`; XLA's `qr_expander` and `eigh_expander`.
"""

from typing import Any

from jax import Array, lax

from unlower._jax_compat import geqrf
from unlower.ir.module import Op
from unlower.ops import factorizations
from unlower.ops.custom_calls.conventions import differentiated_as, refusal
from unlower.ops.rule import op_rule

__all__ = ["eigh", "householder_product", "lu", "qr"]


@op_rule("LuDecomposition")
def lu(op: Op, a: Array, **_: Any) -> tuple[Array, ...]:
    """Factors matrices into permuted triangles: the packed factors, pivots from zero, the permutation of rows.

    Source: `jax/_src/lax/linalg.py`.
    """
    return tuple(lax.linalg.lu(a))


@op_rule("Qr")
def qr(op: Op, a: Array, **_: Any) -> tuple[Array, ...]:
    """Factors matrices into packed reflectors and an upper triangle, and the reflectors' scalars.

    XLA: `qr_expander`.
    """
    return tuple(differentiated_as(geqrf, factorizations.householder_qr)(a))


@op_rule("ProductOfElementaryHouseholderReflectors")
def householder_product(op: Op, a: Array, taus: Array, **_: Any) -> Array:
    """Multiplies packed reflectors to the first columns of their product.

    XLA: `qr_expander`.
    """
    product = differentiated_as(
        lambda *xs: (lax.linalg.householder_product(*xs),), lambda *xs: (factorizations.householder_product(*xs),)
    )
    return product(a, taus)[0]


@op_rule("Eigh")
def eigh(op: Op, a: Array, *, backend_config: str = "", **_: Any) -> tuple[Array, ...]:
    """Computes eigenvectors and eigenvalues of Hermitian matrices, of which one triangle is read.

    XLA: `eigh_expander`. The configuration is `lower,sort,iterations,tolerance`. Eigenvalues that need not be sorted are
    sorted all the same: any order would do.

    Raises:
      RuleError: the configuration is another.
    """
    parts = str(backend_config).split(",")
    if len(parts) != 4 or parts[0] not in ("0", "1"):
        raise refusal(op, f"has the configuration {backend_config!r}, and not four numbers")
    return tuple(lax.linalg.eigh(a, lower=parts[0] == "1", symmetrize_input=False))
