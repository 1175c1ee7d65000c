"""`shard_map`, on several devices where there are any (see XLA_FLAGS in the child below), and on one."""

import os
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, PartitionSpec

from unlower.interpret import Interpreter, walk

STYLES = pytest.mark.parametrize("style", ["initial", "final"])


@STYLES
@pytest.mark.parametrize("check_vma", [True, False])
def test_mesh_specs_and_collectives_stay(style, check_vma):
    mesh = jax.make_mesh((1,), ("d",), axis_types=(AxisType.Auto,))
    f = lambda x: lax.psum(jnp.sin(x), "d")
    mapped = jax.shard_map(f, mesh=mesh, in_specs=PartitionSpec("d"), out_specs=PartitionSpec(), check_vma=check_vma)
    run = Interpreter({"sin": lambda ctx, x, **params: x * 3}).transform(mapped, style=style)
    x = jnp.arange(2.0)
    np.testing.assert_array_equal(run(x), x * 3)
    np.testing.assert_array_equal(jax.grad(lambda x: run(x).sum())(x), [3, 3])
    (equation,) = (v.equation for v in walk(jax.make_jaxpr(run)(x)) if v.equation.primitive.name == "shard_map")
    assert equation.params["in_specs"] == (PartitionSpec("d"),) and equation.params["check_vma"] == check_vma


def test_on_four_devices():
    """In a process of its own: the number of devices is fixed when JAX starts."""
    script = textwrap.dedent("""
        import jax, jax.numpy as jnp, numpy as np
        from jax import lax
        from jax.sharding import AxisType, PartitionSpec as P
        from unlower.interpret import Interpreter
        from unlower.transforms import find_nonfinite, harvest, tag
        assert jax.device_count() == 4
        mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
        def f(x):
            row = tag("row", lax.psum(jnp.sin(x), "b"))
            return row * lax.axis_index("a")
        mapped = jax.shard_map(f, mesh=mesh, in_specs=P("a", "b"), out_specs=P("a"))
        x = jnp.arange(8.0).reshape(4, 2)
        for style in ("initial", "final"):
            run = Interpreter({"sin": lambda ctx, x, **params: x + 1}).transform(mapped, style=style)
            wanted = np.concatenate([0 * x[:2].sum(1, keepdims=True), x[2:].sum(1, keepdims=True) + 2])
            np.testing.assert_array_equal(run(x), wanted)
            np.testing.assert_array_equal(jax.jit(run)(x), wanted)
            out, log = harvest(run, style=style)(x)
            assert log["row"].shape == (2, 2, 1), log["row"].shape
            np.testing.assert_array_equal(log["row"].reshape(4, 1), x.sum(1, keepdims=True) + 2)
        bad = jax.shard_map(lambda x: 1 / x, mesh=mesh, in_specs=P("a", "b"), out_specs=P("a", "b"))
        found = find_nonfinite(bad)(x + jnp.where(x == 5, -5, 0) + jnp.where(x == 0, 1, 0))
        assert found.path.endswith("div") and 0.0 in found.inputs[-1].ravel().tolist(), found
        assert found.iteration == (3,), found
    """)
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
