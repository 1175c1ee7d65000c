"""Batch normalization."""

import numpy as np
import pytest
from op_checks import Case, check_derivative, check_relowers, check_value, check_vmap, ids, normal, one_operation

_DATA, _SCALE, _OFFSET = normal(4, 3, 5), normal(3), normal(3)
_MEAN, _VARIANCE = normal(3), np.abs(normal(3)) + 0.5
_STATISTICS = "{epsilon = 1.0e-3 : f32, feature_index = 1 : i64}"


def _normalize(kind: str, arguments: str, results: str) -> str:
    return one_operation(arguments, results, f"stablehlo.batch_norm_{kind} {_STATISTICS}")


_ARRAY, _VECTOR = "tensor<4x3x5xf64>", "tensor<3xf64>"
_NORMALIZATIONS = [
    Case(
        "batch_norm_training",
        _normalize("training", f"{_ARRAY}; {_VECTOR}; {_VECTOR}", f"{_ARRAY}, {_VECTOR}, {_VECTOR}"),
        [_DATA, _SCALE, _OFFSET],
        moving=(0, 1, 2),
    ),
    Case(
        "batch_norm_inference",
        _normalize("inference", "; ".join([_ARRAY] + [_VECTOR] * 4), _ARRAY),
        [_DATA, _SCALE, _OFFSET, _MEAN, _VARIANCE],
        moving=(0, 1, 2, 3, 4),
    ),
    Case(
        "batch_norm_grad",
        _normalize("grad", f"{_ARRAY}; {_VECTOR}; {_VECTOR}; {_VECTOR}; {_ARRAY}", f"{_ARRAY}, {_VECTOR}, {_VECTOR}"),
        [_DATA, _SCALE, _MEAN, _VARIANCE, normal(4, 3, 5)],
        moving=(0, 1, 2, 3, 4),
    ),
]


@pytest.mark.parametrize("case", _NORMALIZATIONS, ids=ids)
def test_value(case: Case) -> None:
    check_value(case)


@pytest.mark.parametrize("case", _NORMALIZATIONS, ids=ids)
def test_relowers(case: Case) -> None:
    check_relowers(case)


@pytest.mark.parametrize("case", _NORMALIZATIONS, ids=ids)
def test_vmap(case: Case) -> None:
    check_vmap(case)


@pytest.mark.parametrize("case", _NORMALIZATIONS, ids=ids)
def test_derivative(case: Case) -> None:
    check_derivative(case)
