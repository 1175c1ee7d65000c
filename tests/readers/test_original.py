import gzip

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unlower._jax_compat import compile_with_xla
from unlower.readers.original import original_stablehlo


def function(x):
    return x * x, x.astype(jnp.bfloat16)


def sources(folder):
    """The same program in every form that `read` takes."""
    jitted = jax.jit(function)
    shape = jax.ShapeDtypeStruct((3,), jnp.float32)
    lowered, exported = jitted.lower(shape), jax.export.export(jitted)(shape)
    hlo = lowered.compiler_ir("hlo")
    path = folder / "module"
    path.write_text(lowered.as_text())
    return {
        "Lowered": lowered,
        "Exported": exported,
        "MLIR module": lowered.compiler_ir("stablehlo"),
        "StableHLO text": lowered.as_text(),
        "portable artifact": exported.mlir_module_serialized,
        "HLO text": hlo.as_hlo_text(),
        "HLO proto": hlo.as_serialized_hlo_module_proto(),
        "gzipped": gzip.compress(hlo.as_serialized_hlo_module_proto()),
        "path": path,
        "path as text": str(path),
    }


@pytest.mark.parametrize(
    "kind",
    [
        "Lowered",
        "Exported",
        "MLIR module",
        "StableHLO text",
        "portable artifact",
        "HLO text",
        "HLO proto",
        "gzipped",
        "path",
        "path as text",
    ],
)
def test_xla_runs_the_original_of_every_kind_of_source(kind, tmp_path):
    run = compile_with_xla(original_stablehlo(sources(tmp_path)[kind]))
    square, narrow = run([np.array([1, 2, 3], np.float32)])
    np.testing.assert_array_equal(square, np.array([1, 4, 9], np.float32))
    assert narrow.dtype == jnp.bfloat16
