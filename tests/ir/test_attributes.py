import ml_dtypes
import numpy as np
import pytest

from unlower.ir.attributes import repeats_one_element


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, ml_dtypes.bfloat16, np.float32, np.complex128])
@pytest.mark.parametrize("size", [1, 2, 16_384, 70_001])
def test_one_element_that_differs_is_seen(dtype, size):
    array = np.ones(size, dtype)
    assert repeats_one_element(array)
    for place in {0, size // 2, size - 1} if size > 1 else ():
        other = array.copy()
        other[place] = 0
        assert not repeats_one_element(other)


def test_bits_are_compared():
    assert not repeats_one_element(np.array([[0.0, 0.0], [0.0, -0.0]]))
    assert repeats_one_element(np.full((2, 3), np.nan))
