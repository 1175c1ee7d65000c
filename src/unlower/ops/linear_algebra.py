"""Products, Fourier transforms, factorizations and triangular systems of StableHLO, CHLO and MHLO.

A product is bound to JAX's primitive where that lowers to the very operation again, and re-emitted otherwise: JAX converts
operands of different types before it multiplies them, and knows the algorithms of `dot_general` as a list of presets.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from unlower._jax_compat import primitives, ragged_dot_in_lax
from unlower.ir.attributes import DotAlgorithm, DotDimensionNumbers, IntArray, RaggedDotDimensionNumbers
from unlower.ir.module import Op
from unlower.ops import factorizations
from unlower.ops.reemit import (
    Call,
    batching_rule,
    equivalent,
    jvp_rule,
    materialize_batch,
    move_batch,
    reemit,
    transpose_rule,
    transpose_through,
    types_of,
)
from unlower.ops.rule import op_rule

__all__ = ["batch_in_front", "common_type", "precisions"]


def precisions(config: Sequence[str]) -> tuple[lax.Precision, ...] | None:
    """Spells a `precision_config` as JAX does; None where every operand has the default."""
    if all(name == "DEFAULT" for name in config):
        return None
    return tuple(lax.Precision[name] for name in config)


def batch_in_front(
    call: Call, size: int, operands: Sequence[Any], dims: Sequence[int | None]
) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    """Batches an operation that takes leading batch dimensions on every operand and result."""
    moved = [materialize_batch(operand, dim, size) for operand, dim in zip(operands, dims, strict=True)]
    return call.batched(size).bind(*moved), (0,) * len(call.result_types)


# --- products

_Preset = lax.DotAlgorithmPreset

# The presets that JAX lowers on every platform; it refuses the others on the CPU, where XLA computes them as it likes.
_PRESETS: Mapping[DotAlgorithm, lax.DotAlgorithmPreset] = {
    DotAlgorithm("f16", "f16", "f16", 1, 1, 1, False): _Preset.F16_F16_F16,
    DotAlgorithm("f32", "f32", "f32", 1, 1, 1, False): _Preset.F32_F32_F32,
    DotAlgorithm("f64", "f64", "f64", 1, 1, 1, False): _Preset.F64_F64_F64,
    DotAlgorithm("bf16", "bf16", "f32", 1, 1, 1, False): _Preset.BF16_BF16_F32,
    DotAlgorithm("bf16", "bf16", "f32", 1, 1, 3, False): _Preset.BF16_BF16_F32_X3,
    DotAlgorithm("bf16", "bf16", "f32", 1, 1, 6, False): _Preset.BF16_BF16_F32_X6,
}


def _preset(algorithm: DotAlgorithm, lhs: np.dtype, rhs: np.dtype, result: np.dtype) -> lax.DotAlgorithmPreset | None:
    """The preset that means `algorithm` without converting operands or result; None if there is none."""
    preset = _PRESETS.get(algorithm)
    if preset is None or lhs != rhs:
        return None
    inputs, outputs = preset.supported_lhs_types, preset.supported_output_types(lhs, rhs)
    fits = lhs in [np.dtype(t) for t in inputs or ()] and result in [np.dtype(t) for t in outputs or ()]
    return preset if fits else None


def _is_narrowed(operand: np.dtype, result: np.dtype) -> bool:
    """Whether JAX refuses the result type: a product of integers or complex numbers in fewer bits."""
    return not jnp.issubdtype(operand, jnp.floating) and _bits(result) < _bits(operand)


def _bits(dtype: np.dtype) -> int:
    if dtype == bool:
        return 1
    return (jnp.finfo if jnp.issubdtype(dtype, jnp.inexact) else jnp.iinfo)(dtype).bits


def common_type(*dtypes: np.dtype) -> np.dtype:
    """The narrowest type that holds the values of all, integers among floats taken for floats."""
    inexact = [dtype for dtype in dtypes if jnp.issubdtype(dtype, jnp.inexact)]
    widest = max(inexact or dtypes, key=_bits)
    if any(_bits(dtype) == _bits(widest) and jnp.finfo(dtype).dtype != jnp.finfo(widest).dtype for dtype in inexact):
        # bf16 beside f16, or two kinds of f8.
        widest = np.dtype(np.float32)
    if any(jnp.issubdtype(dtype, jnp.complexfloating) for dtype in dtypes):
        return np.dtype(np.complex128 if _bits(widest) > 32 else np.complex64)
    return widest


@op_rule("stablehlo.dot_general")
def dot_general(
    op: Op,
    lhs: Array,
    rhs: Array,
    *,
    dot_dimension_numbers: DotDimensionNumbers,
    precision_config: Sequence[str] = (),
    algorithm: DotAlgorithm | None = None,
) -> Array:
    """Multiplies over contracting dimensions, once for every index of the batching dimensions.

    Spec: `dot_general`. The result type is the type that is accumulated in, as far as `algorithm` says nothing else.
    """
    dtype = op.type.dtype
    precision: Any = precisions(precision_config)
    expressible = lhs.dtype == rhs.dtype and not _is_narrowed(lhs.dtype, dtype)
    if algorithm is not None:
        precision = _preset(algorithm, lhs.dtype, rhs.dtype, dtype)
        expressible = precision is not None
    if not expressible:
        types = types_of(op, _dot_shape(lhs, rhs, dot_dimension_numbers))
        return reemit(op.name, (lhs, rhs), types, op.attributes)[0]
    return _dot(lhs, rhs, dot_dimension_numbers, precision, dtype)


def _dot(lhs: Array, rhs: Array, numbers: DotDimensionNumbers, precision: Any, dtype: np.dtype) -> Array:
    contracting = (numbers.lhs_contracting_dimensions, numbers.rhs_contracting_dimensions)
    batching = (numbers.lhs_batching_dimensions, numbers.rhs_batching_dimensions)
    return primitives.dot_general_p.bind(
        lhs,
        rhs,
        dimension_numbers=(contracting, batching),
        precision=precision,
        preferred_element_type=dtype,
        out_sharding=None,
    )


def _free(x: Array, contracting: Sequence[int], batching: Sequence[int]) -> list[int]:
    return [i for i in range(x.ndim) if i not in contracting and i not in batching]


def _dot_shape(lhs: Array, rhs: Array, numbers: DotDimensionNumbers) -> tuple[int, ...]:
    left = _free(lhs, numbers.lhs_contracting_dimensions, numbers.lhs_batching_dimensions)
    right = _free(rhs, numbers.rhs_contracting_dimensions, numbers.rhs_batching_dimensions)
    batch = [lhs.shape[i] for i in numbers.lhs_batching_dimensions]
    return (*batch, *(lhs.shape[i] for i in left), *(rhs.shape[i] for i in right))


@equivalent("stablehlo.dot_general")
def _dot_general_in_lax(call: Call, lhs: Array, rhs: Array) -> tuple[Array]:
    # Derivatives only: the algorithm concerns how a product is rounded.
    dtype = call.result_types[0].dtype
    common = common_type(dtype, lhs.dtype, rhs.dtype)
    precision = precisions(call.attributes.get("precision_config", ()))
    numbers = call.attributes["dot_dimension_numbers"]
    product = _dot(lhs.astype(common), rhs.astype(common), numbers, precision, common)
    return (product.astype(dtype),)


@batching_rule("stablehlo.dot_general")
def _batch_dot_general(
    call: Call, size: int, operands: Sequence[Any], dims: Sequence[int | None]
) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    numbers: DotDimensionNumbers = call.attributes["dot_dimension_numbers"]
    fields = {
        "lhs_batching_dimensions": numbers.lhs_batching_dimensions,
        "rhs_batching_dimensions": numbers.rhs_batching_dimensions,
        "lhs_contracting_dimensions": numbers.lhs_contracting_dimensions,
        "rhs_contracting_dimensions": numbers.rhs_contracting_dimensions,
    }
    moved = [move_batch(operand, dim) for operand, dim in zip(operands, dims, strict=True)]
    for side, dim in zip(("lhs", "rhs"), dims, strict=True):
        if dim is not None:
            for kind in ("batching", "contracting"):
                name = f"{side}_{kind}_dimensions"
                fields[name] = tuple(i + 1 for i in fields[name])
    batch_rank = len(numbers.lhs_batching_dimensions)
    if None not in dims:
        for side in ("lhs", "rhs"):
            fields[f"{side}_batching_dimensions"] = (0, *fields[f"{side}_batching_dimensions"])
        out = 0
    elif dims[0] is not None:
        out = batch_rank
    else:
        left = _free(moved[0], numbers.lhs_contracting_dimensions, numbers.lhs_batching_dimensions)
        out = batch_rank + len(left)
    batched = call.batched(size, at=out, attributes={"dot_dimension_numbers": DotDimensionNumbers(**fields)})
    return batched.bind(*moved), (out,)


@op_rule("stablehlo.dot")
def dot(op: Op, lhs: Array, rhs: Array, *, precision_config: Sequence[str] = ()) -> Array:
    """Multiplies the last dimension of `lhs` into the first of `rhs`.

    Spec: dropped from the specification in favor of `dot_general`, and what XLA's converter still writes for plain products.
    """
    numbers = DotDimensionNumbers((), (), (lhs.ndim - 1,), (0,))
    attributes = {name: value for name, value in op.attributes.items() if name != "dot_dimension_numbers"}
    general = Op("stablehlo.dot_general", op.operands, op.results, {**attributes, "dot_dimension_numbers": numbers})
    return dot_general(general, lhs, rhs, dot_dimension_numbers=numbers, precision_config=precision_config)


@op_rule("chlo.ragged_dot", "mhlo.ragged_dot")
def ragged_dot(
    op: Op,
    lhs: Array,
    rhs: Array,
    group_sizes: Array,
    *,
    ragged_dot_dimension_numbers: RaggedDotDimensionNumbers,
    precision_config: Sequence[str] = (),
) -> Array:
    """Multiplies groups of rows, columns or batches, whose sizes are data.

    Spec: `ragged_dot` of CHLO, in its three modes: the ragged dimension of `lhs` is free, contracting or batching.
    """
    numbers = ragged_dot_dimension_numbers
    dense = numbers.dot_dimension_numbers
    settings = {
        "ragged_dot_dimension_numbers": lax.RaggedDotDimensionNumbers(
            dot_dimension_numbers=(
                (list(dense.lhs_contracting_dimensions), list(dense.rhs_contracting_dimensions)),
                (list(dense.lhs_batching_dimensions), list(dense.rhs_batching_dimensions)),
            ),
            lhs_ragged_dimensions=list(numbers.lhs_ragged_dimensions),
            rhs_group_dimensions=list(numbers.rhs_group_dimensions),
        ),
        "precision": precisions(precision_config),
        "preferred_element_type": op.type.dtype,
    }
    # JAX's primitive has a derivative in one mode, and batches only if every operand does; what it expands to has no limits.
    expanded = functools.partial(ragged_dot_in_lax, **settings)
    product = jax.custom_batching.custom_vmap(functools.partial(lax.ragged_dot_general, **settings))

    @product.def_vmap
    def _(size: int, batched: Sequence[bool], *operands: Array) -> tuple[Array, bool]:
        del size
        return jax.vmap(expanded, in_axes=tuple(0 if b else None for b in batched))(*operands), True

    differentiable = jax.custom_jvp(product)

    @differentiable.defjvp
    def _(primals: Sequence[Array], tangents: Sequence[Array]) -> tuple[Array, Array]:
        lhs, rhs, sizes = primals
        lhs_dot, rhs_dot, _ = tangents
        return differentiable(*primals), expanded(lhs_dot, rhs, sizes) + expanded(lhs, rhs_dot, sizes)

    return differentiable(lhs, rhs, group_sizes)


# --- Fourier transforms


@op_rule("stablehlo.fft")
def fft(op: Op, operand: Array, *, fft_type: str, fft_length: IntArray) -> Array:
    """Transforms the last dimensions, as many as there are lengths.

    Spec: `fft`, of types FFT, IFFT, RFFT and IRFFT.
    """
    return primitives.fft_p.bind(operand, fft_type=lax.FftType[fft_type], fft_lengths=tuple(fft_length))


# --- factorizations and triangular systems


@op_rule("stablehlo.cholesky")
def cholesky(op: Op, a: Array, *, lower: bool = False) -> Array:
    """Factors Hermitian matrices, of which one triangle is read.

    Spec: `cholesky`. The other triangle of the result is the implementation's choice, so the operation is re-emitted:
    JAX's own Cholesky is a call of LAPACK on the CPU, with other bits.
    """
    return reemit(op.name, (a,), types_of(op, a.shape), op.attributes)[0]


@jvp_rule("stablehlo.cholesky")
def _cholesky_jvp(call: Call, primals: Sequence[Array], tangents: Sequence[Array | None]) -> tuple[Any, Any]:
    (factor,) = call.bind(*primals)
    (a_dot,) = tangents
    assert a_dot is not None
    return (factor,), (factorizations.cholesky(factor, a_dot, lower=bool(call.attributes.get("lower", False))),)


@op_rule("stablehlo.triangular_solve")
def triangular_solve(
    op: Op, a: Array, b: Array, *, left_side: bool, lower: bool, unit_diagonal: bool, transpose_a: str
) -> Array:
    """Solves `op(a) x = b`, or `x op(a) = b`, for triangular `a`.

    Spec: `triangular_solve`. Re-emitted, since JAX's own is a call of LAPACK on the CPU, with other bits.
    """
    return reemit(op.name, (a, b), types_of(op, b.shape), op.attributes)[0]


def _triangular_solve_dot(call: Call, a: Array, x: Array, a_dot: Array | None, b_dot: Array | None) -> Array:
    attributes = call.attributes
    return factorizations.triangular_solve(
        a,
        x,
        a_dot,
        b_dot,
        left_side=bool(attributes["left_side"]),
        lower=bool(attributes["lower"]),
        unit_diagonal=bool(attributes["unit_diagonal"]),
        transpose_a=attributes["transpose_a"] in ("TRANSPOSE", "ADJOINT"),
        conjugate_a=attributes["transpose_a"] == "ADJOINT",
    )


@jvp_rule("stablehlo.triangular_solve")
def _triangular_solve_jvp(call: Call, primals: Sequence[Array], tangents: Sequence[Array | None]) -> tuple[Any, Any]:
    a, b = primals
    (x,) = call.bind(a, b)
    return (x,), (_triangular_solve_dot(call, a, x, *tangents),)


# The solution is linear in `b`, so it is its own tangent.
transpose_rule("stablehlo.triangular_solve")(
    transpose_through(lambda call, a, b: (_triangular_solve_dot(call, a, b, None, b),))
)
batching_rule("stablehlo.cholesky", "stablehlo.triangular_solve")(batch_in_front)
