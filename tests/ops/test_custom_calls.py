"""Custom calls: LAPACK, markers of placement, assertions, kernels known to the process."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from jax import lax
from op_checks import assert_same_bits, module

import unlower
from unlower._jax_compat import lapack_kernels
from unlower.errors import RuleError, SignatureError, UnlowerError, UnsupportedOpError
from unlower.ir.module import walk
from unlower.ir.printer import format_attribute
from unlower.ops.custom_calls.lapack import TARGETS
from unlower.ops.custom_calls.sharding import MARKERS, PARTS
from unlower.readers.detect import read

_RNG = np.random.default_rng(0)


def _matrix(*shape: int) -> np.ndarray:
    return _RNG.standard_normal(shape) + 2 * np.eye(*shape[-2:])


def _symmetric(n: int) -> np.ndarray:
    x = _RNG.standard_normal((n, n))
    return x @ x.T + np.diag(np.arange(1.0, n + 1))


class Routine(NamedTuple):
    """A function that JAX lowers to one routine of LAPACK.

    Attributes:
      name: the routine, without the letter of its element type; the real one of two.
      function: takes and returns arrays.
      inputs: real ones; the complex ones have an imaginary part made of them.
      derivative: whether JAX has one.
    """

    name: str
    function: Callable[..., Any]
    inputs: Sequence[np.ndarray]
    derivative: bool = True


def _reflected(a: jax.Array) -> tuple[jax.Array, jax.Array]:
    return lax.linalg.qr(a, full_matrices=False)


_SVD = lax.linalg.SvdAlgorithm
_DIAGONALS = [np.r_[0.0, _RNG.standard_normal(3)], _RNG.standard_normal(4) + 3, np.r_[_RNG.standard_normal(3), 0.0]]
_ROUTINES = [
    Routine("potrf", lambda a: lax.linalg.cholesky(a), [_symmetric(4)]),
    Routine(
        "trsm",
        lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True, lower=True),
        [_matrix(4, 4), _matrix(4, 2)],
    ),
    Routine(
        "trsm",
        lambda a, b: lax.linalg.triangular_solve(a, b, transpose_a=True, conjugate_a=True, unit_diagonal=True),
        [_matrix(4, 4), _matrix(2, 4)],
    ),
    Routine("getrf", lambda a: lax.linalg.lu(a)[0], [_matrix(4, 3)]),
    Routine("getrf", lambda a: lax.linalg.lu(a)[0], [_matrix(3, 4)]),
    Routine("geqrf", _reflected, [_matrix(4, 3)]),
    Routine("geqrf", _reflected, [_matrix(3, 4)]),
    Routine("geqp3", lambda a: lax.linalg.qr(a, pivoting=True, full_matrices=False), [_matrix(4, 3)]),
    Routine("orgqr", lax.linalg.householder_product, [_matrix(4, 3), _RNG.standard_normal(3)], derivative=False),
    Routine("syevd", lambda a: lax.linalg.eigh(a), [_symmetric(4)]),
    Routine("syevd", lambda a: lax.linalg.eigh(a, lower=False)[1], [_symmetric(4)]),
    Routine(
        "geev",
        lambda a: lax.linalg.eig(a, compute_left_eigenvectors=False, compute_right_eigenvectors=False),
        [_matrix(4, 4)],
    ),
    Routine("geev", lambda a: lax.linalg.eig(a), [_matrix(4, 4)], derivative=False),
    Routine("gees", lambda a: lax.linalg.schur(a), [_matrix(4, 4)], derivative=False),
    Routine("gehrd", lambda a: lax.linalg.hessenberg(a), [_matrix(4, 4)], derivative=False),
    Routine("gesdd", lambda a: lax.linalg.svd(a, full_matrices=False), [_matrix(4, 3)]),
    Routine("gesdd", lambda a: lax.linalg.svd(a, full_matrices=False, compute_uv=False), [_matrix(3, 4)]),
    Routine("gesvd", lambda a: lax.linalg.svd(a, algorithm=_SVD.QR), [_matrix(4, 4)]),
    Routine("sytrd", lambda a: lax.linalg.tridiagonal(a), [_symmetric(4)], derivative=False),
    Routine("gtsv", lax.linalg.tridiagonal_solve, [*_DIAGONALS, _matrix(4, 2)]),
]
_COMPLEX_NAMES = {"orgqr": "ungqr", "ormqr": "unmqr", "syevd": "heevd", "sytrd": "hetrd"}
_CASES = [(routine, dtype) for routine in _ROUTINES for dtype in (np.float64, np.complex128)]


def _places(*, derivative: bool = False) -> Any:
    """Parametrizes a test over the places in `_CASES`."""
    places = [i for i, (routine, _) in enumerate(_CASES) if routine.derivative or not derivative]
    names = [f"{_CASES[i][0].name} {np.dtype(_CASES[i][1]).name} {i // 2}" for i in places]
    return pytest.mark.parametrize("place", places, ids=names)


def _inputs(routine: Routine, dtype: type) -> list[np.ndarray]:
    if dtype is np.float64:
        return [x.astype(dtype) for x in routine.inputs]
    made = []
    for x in routine.inputs:
        part = np.roll(x, 1, 0) if x.ndim == 2 else np.roll(x, 0)
        # Hermitian where the real one is symmetric.
        part = 0.1 * (part - part.T) if x.ndim == 2 and x.shape[0] == x.shape[1] and np.array_equal(x, x.T) else part
        made.append((x + 0.5j * part * (x != 0 if x.ndim == 1 else 1)).astype(dtype))
    return made


def _flat(function: Callable[..., Any]) -> Callable[..., tuple[Any, ...]]:
    return lambda *xs: tuple(jax.tree.leaves(function(*xs)))


@functools.cache
def _lowered(place: int) -> tuple[str, unlower.Program]:
    routine, dtype = _CASES[place]
    text = jax.jit(_flat(routine.function)).lower(*_inputs(routine, dtype)).as_text()
    return text, unlower.load(text)


@_places()
def test_value(place: int) -> None:
    routine, dtype = _CASES[place]
    with jax.enable_x64(True):
        inputs = _inputs(routine, dtype)
        text, program = _lowered(place)
        name = routine.name if dtype is np.float64 else _COMPLEX_NAMES.get(routine.name, routine.name)
        assert f"@lapack_{'d' if dtype is np.float64 else 'z'}{name}_ffi" in text
        assert_same_bits(program.flat(*inputs), jax.jit(_flat(routine.function))(*inputs))
        # The modules hold more that nobody reads, which does not come out again.
        again = jax.jit(program.flat).lower(*inputs).as_text()
        assert _calls(again) == _calls(text), again


def _calls(text: str) -> list[Any]:
    """The custom calls in a module, attribute for attribute."""
    found = []
    for function in read(text).functions.values():
        for op in walk(function.body):
            if op.name == "stablehlo.custom_call":
                attributes = {n: format_attribute(a) for n, a in op.attributes.items() if a != ""}
                found.append((sorted(attributes.items()), [str(type_) for type_ in op.types]))
    return found


@_places()
def test_vmap(place: int) -> None:
    """A batch goes to the kernel whole, and each element has the bits it has alone."""
    routine, dtype = _CASES[place]
    with jax.enable_x64(True):
        inputs = _inputs(routine, dtype)
        _, program = _lowered(place)
        batched = jax.jit(jax.vmap(jax.vmap(program.flat, in_axes=(1,) + (None,) * (len(inputs) - 1))))
        stacked = [
            np.stack([np.stack([x, 2 * x], 1), np.stack([3 * x, x], 1)]) if i == 0 else np.stack([x, x])
            for i, x in enumerate(inputs)
        ]
        assert "stablehlo.while" not in batched.lower(*stacked).as_text() or "getrf" in routine.name
        together = batched(*stacked)
        for i, row in enumerate(((1, 2), (3, 1))):
            for j, factor in enumerate(row):
                alone = program.flat(factor * inputs[0], *inputs[1:])
                for t, a in zip(together, alone, strict=True):
                    assert_same_bits([np.asarray(t)[i, j]], [a])


@_places(derivative=True)
def test_derivative_is_that_of_jax(place: int) -> None:
    routine, dtype = _CASES[place]
    with jax.enable_x64(True):
        inputs = _inputs(routine, dtype)
        _, program = _lowered(place)
        directions = [x + np.roll(x, 1, -1) for x in inputs]
        if routine.name in ("potrf", "syevd"):
            directions = [d + np.conj(d).T for d in directions]

        def moving(function: Callable[..., Any]) -> Callable[..., list[Any]]:
            return lambda *xs: [r for r in function(*xs) if jax.numpy.issubdtype(r.dtype, jax.numpy.inexact)]

        original, loaded = moving(_flat(routine.function)), moving(program.flat)
        expected = jax.jit(lambda x, d: jax.jvp(original, x, d)[1])(inputs, directions)
        actual = jax.jit(lambda x, d: jax.jvp(loaded, x, d)[1])(inputs, directions)
        for a, e in zip(actual, expected, strict=True):
            np.testing.assert_allclose(a, e, rtol=1e-8, atol=1e-9)
        weights = [np.asarray(e) + 1 for e in expected]
        expected = jax.jit(lambda x, w: jax.vjp(original, *x)[1](w))(inputs, weights)
        actual = jax.jit(lambda x, w: jax.vjp(loaded, *x)[1](w))(inputs, weights)
        for a, e in zip(actual, expected, strict=True):
            np.testing.assert_allclose(a, e, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("name", ["schur", "hessenberg", "tridiagonal"])
def test_routines_without_a_derivative_say_so(name: str) -> None:
    with jax.enable_x64(True):
        a = _symmetric(3)
        program = unlower.load(jax.jit(_flat(getattr(lax.linalg, name))).lower(a))
        with pytest.raises(UnlowerError, match=r"lapack_d\w+_ffi has no derivative"):
            jax.jvp(program.flat, (a,), (a,))


def test_full_singular_vectors_have_no_derivative() -> None:
    with jax.enable_x64(True):
        a = _matrix(4, 3)
        program = unlower.load(jax.jit(_flat(lambda a: lax.linalg.svd(a, full_matrices=True))).lower(a))
        with pytest.raises(UnlowerError, match="not determined"):
            jax.jvp(program.flat, (a,), (a,))


def test_reflectors_have_derivatives_of_their_own() -> None:
    """JAX has none for the bare product, so it is held to differences."""
    with jax.enable_x64(True):
        a, taus = _matrix(4, 3), _RNG.standard_normal(3)
        program = unlower.load(jax.jit(lax.linalg.householder_product).lower(a, taus))
        direction = (_matrix(4, 3), _RNG.standard_normal(3))
        _, (tangent,) = jax.jvp(program.flat, (a, taus), direction)
        step = 1e-6
        ahead, behind = (program.flat(a + s * direction[0], taus + s * direction[1])[0] for s in (step, -step))
        np.testing.assert_allclose(tangent, (ahead - behind) / (2 * step), rtol=1e-6, atol=1e-7)


def test_every_kernel_of_jaxlib_has_a_rule() -> None:
    assert set(lapack_kernels()) == set(TARGETS)


def test_a_kernel_without_a_rule_is_called_by_its_name() -> None:
    with jax.enable_x64(True):
        a = _symmetric(3)
        lowered = jax.jit(lax.linalg.hessenberg).lower(a)
        others = {name: rule for name, rule in unlower.op_rules.items() if not name.startswith("lapack")}
        program = unlower.load(lowered, rules=others)
        assert_same_bits(program.flat(a), jax.tree.leaves(jax.jit(lax.linalg.hessenberg)(a)))
        (together, _) = jax.vmap(program.flat)(np.stack([a, 2 * a]))
        np.testing.assert_array_equal(together[1], program.flat(2 * a)[0])


# --- markers


def _call(target: str, argument: str, result: str, more: str = "") -> str:
    return module(
        argument,
        result,
        f'    %0 = stablehlo.custom_call @"{target}"(%a0) {{{more}}} : ({argument}) -> {result}\n    return %0 : {result}',
    )


_X = _RNG.standard_normal((2, 4)).astype(np.float32)


@pytest.mark.parametrize("target", [name for name in (*MARKERS, *PARTS) if not name.startswith("sdy.")])
def test_markers_pass_their_operand_on(target: str) -> None:
    program = unlower.load(_call(target, "tensor<2x4xf32>", "tensor<2x4xf32>", 'mhlo.sharding = "{devices=[2,1]0,1}"'))
    assert_same_bits(program.flat(_X), [_X])


@pytest.mark.parametrize("target", PARTS)
def test_parts_are_refused(target: str) -> None:
    with pytest.raises(UnsupportedOpError, match=r"cuts tensor<\w+> into parts tensor<\w+>"):
        unlower.load(_call(target, "tensor<2x4xf32>", "tensor<1x4xf32>"))


_MANUAL = """sdy.mesh @mesh = <["a"=1]>
func.func public @main(%a0: tensor<2x4xf32>) -> tensor<2x4xf32> {
  %0 = sdy.sharding_constraint %a0 <@mesh, [{"a"}, {}]> : tensor<2x4xf32>
  %1 = sdy.manual_computation(%0) in_shardings=[<@mesh, [{"a"}, {}]>] out_shardings=[<@mesh, [{"a"}, {}]>] manual_axes={"a"} (%x: tensor<PARTxf32>) {
    %2 = stablehlo.sine %x : tensor<PARTxf32>
    sdy.return %2 : tensor<PARTxf32>
  } : (tensor<2x4xf32>) -> tensor<2x4xf32>
  return %1 : tensor<2x4xf32>
}
"""


def test_shardy_on_one_device() -> None:
    program = unlower.load(_MANUAL.replace("PART", "2x4"))
    assert_same_bits(program.flat(_X), [jax.jit(lax.sin)(_X)])


def test_shardy_on_several_devices() -> None:
    with pytest.raises(UnsupportedOpError, match="sdy.manual_computation cuts"):
        unlower.load(_MANUAL.replace('"a"=1', '"a"=2').replace("PART", "1x4"))


# --- assertions and sizes

_ASSERTION = module(
    "tensor<?xf32>",
    "tensor<?xf32>",
    """    %0 = stablehlo.get_dimension_size %a0, dim = 0 : (tensor<?xf32>) -> tensor<i32>
    %two = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.remainder %0, %two : tensor<i32>
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %2 = stablehlo.compare EQ, %1, %zero : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.custom_call @shape_assertion(%2, %0, %two) {
      api_version = 2 : i32, has_side_effect = true, error_message = "The size {0} is no multiple of {1}: {see}"
    } : (tensor<i1>, tensor<i32>, tensor<i32>) -> ()
    return %a0 : tensor<?xf32>""",
)


def test_shape_assertion() -> None:
    program = unlower.load(_ASSERTION)
    assert program.flat(np.zeros(4, np.float32))[0].shape == (4,)
    with pytest.raises(SignatureError, match=r"The size 3 is no multiple of 2: \{see\}"):
        program.flat(np.zeros(3, np.float32))


def test_shape_assertion_about_data_is_refused() -> None:
    text = module(
        "tensor<i1>; tensor<2xf32>",
        "tensor<2xf32>",
        """    stablehlo.custom_call @shape_assertion(%a0) {has_side_effect = true, error_message = ""} : (tensor<i1>) -> ()
    return %a1 : tensor<2xf32>""",
    )
    with pytest.raises(RuleError, match="depends on the data"):
        unlower.load(text)


def _polymorphic(function: Callable[..., Any], *shapes: str) -> unlower.Program:
    """Exports with symbolic sizes and loads."""
    arguments = [jax.ShapeDtypeStruct(jax.export.symbolic_shape(shape), np.float64) for shape in shapes]
    return unlower.load(jax.export.export(jax.jit(function))(*arguments))


def test_sizes_that_are_known_when_called() -> None:
    with jax.enable_x64(True):
        x = _RNG.standard_normal((3, 5))

        def reduced(x: jax.Array) -> jax.Array:
            return lax.reduce_window(x, np.float64(0), lax.add, (2, x.shape[1]), (1, 1), "VALID")

        assert_same_bits(_polymorphic(reduced, "3, b").flat(x), [jax.jit(reduced)(x)])
        a = _symmetric(3)
        assert_same_bits(_polymorphic(lax.linalg.cholesky, "b, b").flat(a), [jax.jit(lax.linalg.cholesky)(a)])

        def drawn(x: jax.Array) -> jax.Array:
            state = np.arange(2, dtype=np.uint64)
            return lax.rng_bit_generator(state, x.shape, np.uint32)[1]

        assert_same_bits(_polymorphic(drawn, "3, b").flat(x), [jax.jit(drawn)(x)])


def test_pivots_out_of_range_exchange_nothing() -> None:
    text = module(
        "tensor<2x3xi32>",
        "tensor<2x4xi32>",
        "    %0 = stablehlo.custom_call @cu_lu_pivots_to_permutation(%a0) {mhlo.backend_config = {}} : (tensor<2x3xi32>) -> tensor<2x4xi32>\n"
        "    return %0 : tensor<2x4xi32>",
    )
    (actual,) = unlower.load(text).flat(np.array([[3, 1, 2], [9, -1, 3]], np.int32))
    np.testing.assert_array_equal(actual, [[3, 1, 2, 0], [0, 1, 3, 2]])


# --- what nobody knows


def test_unknown_targets_are_listed() -> None:
    with pytest.raises(UnsupportedOpError, match="no rule for the custom call 'mystery'"):
        unlower.load(_call("mystery", "tensor<2x4xf32>", "tensor<2x4xf32>"))


def test_python_callbacks_are_refused() -> None:
    lowered = jax.jit(lambda x: jax.pure_callback(np.sin, x, x)).lower(_X)
    with pytest.raises(UnsupportedOpError, match="callback"):
        unlower.load(lowered.as_text())
