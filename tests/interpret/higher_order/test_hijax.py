"""The hijax forms of custom_jvp, custom_vjp and checkpoint, where this JAX has the flags: in a process of their own."""

import os
import subprocess
import sys
import textwrap

import jax
import pytest

FLAGS = [name for name in ("jax_custom_jvp3", "jax_custom_vjp3", "jax_remat3") if hasattr(jax.config, name)]


@pytest.mark.skipif("jax_custom_vjp3" not in FLAGS, reason="this JAX has no such flags")
def test_they_mean_what_the_older_forms_do():
    script = textwrap.dedent("""
        import jax, jax.numpy as jnp, numpy as np
        from jax import lax
        from unlower.interpret import Interpreter, testing, walk
        from unlower.transforms import find_nonfinite, harvest, plant, swap, tag

        @jax.custom_jvp
        def f(x):
            return jnp.sin(x)
        f.defjvp(lambda p, t: (f(*p), t[0] * 5))

        @jax.custom_vjp
        def g(x):
            return jnp.sin(x)
        g.defvjp(lambda x: (g(x), x), lambda x, ct: (ct * 7,))

        ONE = jnp.float32(1)
        assert "call_hi_primitive" in {v.equation.primitive.name for v in walk(jax.make_jaxpr(g)(ONE))}
        for style in ("initial", "final"):
            for function, own in ((f, 5.0), (g, 7.0)):
                untouched = Interpreter({"cos": lambda ctx, x, **p: x}).transform(function, style=style)
                assert float(jax.grad(untouched)(ONE)) == own
                turned = swap(function, {"sin": lambda x, **p: x * 2}, style=style)
                assert float(turned(ONE)) == 2.0 and float(jax.grad(turned)(ONE)) == 2.0
                keep = Interpreter({"sin": lambda ctx, x, **p: x * 2}, custom_rules="keep").transform(function, style=style)
                assert float(keep(ONE)) == 2.0 and float(jax.grad(keep)(ONE)) == own
                tagged = lambda x: tag("y", function(x) * 3)
                assert float(harvest(tagged, style=style)(ONE)[1]["y"]) == float(jnp.sin(ONE) * 3)
                assert float(jax.grad(plant(lambda x: function(x) + tag("z", x), {"z": 1.0}))(ONE)) == own
            again = swap(jax.checkpoint(lambda x: jnp.sin(x) * 3), {"sin": lambda x, **p: x * x}, style=style)
            assert float(jax.grad(again)(2 * ONE)) == 12.0
        found = find_nonfinite(lambda x: jax.nn.relu(jnp.log(x)))(0 * ONE)
        assert found.path == "log"
        some = ["custom_jvp", "custom_vjp", "checkpoint"]
        names = [n for n in testing.PROGRAMS if any(word in n for word in some)]
        assert names
        testing.check_identity(Interpreter().transform, programs=names).check()
    """)
    environment = {**os.environ, **{name.upper(): "1" for name in FLAGS}, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
