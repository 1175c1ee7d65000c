"""Modules to start from, in every format that `unlower.load` reads from bytes: small, and as unlike each other as can be."""

import concurrent.futures
import functools
import io

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from unlower._jax_compat import hlo_text_to_proto

F32 = np.float32


def rows(*shape):
    return np.linspace(-1, 1, int(np.prod(shape)), dtype=F32).reshape(shape)


def mlp(x, w, v):
    return jax.nn.softmax(jnp.tanh(x @ w) @ v)


def loop(x, n):
    return jax.lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, jnp.sin(c[1]) + c[1]), (0, x))


def scanned(xs):
    return jax.lax.scan(lambda c, x: (c + x, c * x), jnp.zeros(xs.shape[1:]), xs)


def chosen(i, x):
    return jax.lax.switch(i, [jnp.sin, jnp.cos, lambda x: x * 2], x)


def conv(x, k):
    y = jax.lax.conv_general_dilated(x, k, (1, 2), "SAME", feature_group_count=1)
    return jax.lax.reduce_window(y, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")


def attention(q, k, v):
    return jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(jnp.einsum("bqd,bkd->bqk", q, k)), v)


def indexing(x, i):
    return x[i], x.at[i].add(1.0), jax.lax.dynamic_slice(x, (i[0], 0), (2, 3))


def sorts(x):
    return jnp.sort(x), jnp.argsort(x), jax.lax.top_k(x, 2), jnp.cumsum(x), jnp.median(x)


def linalg(a):
    return jnp.linalg.cholesky(a @ a.T + jnp.eye(3)), jnp.linalg.solve(a, a), jnp.linalg.eigh(a + a.T)


def types(x):
    narrow = [x.astype(t) for t in (jnp.bfloat16, jnp.float8_e4m3fn, jnp.int4, jnp.uint8, bool, jnp.complex64)]
    return narrow, jax.lax.bitcast_convert_type(x, jnp.int32), jnp.fft.fft(x)


def random(key):
    key = jax.random.wrap_key_data(key)
    return jax.random.normal(key, (3,)), jax.random.randint(key, (2,), 0, 9)


def train(w, x, y):
    def loss(w):
        return jnp.mean((jax.nn.relu(x @ w) - y) ** 2)

    value, slope = jax.value_and_grad(loss)(w)
    return value, w - 0.1 * slope


def constants(x):
    return x + np.arange(12, dtype=F32).reshape(3, 4), x * np.array([1, 2, 3, 4], np.int32).astype(F32)


def nested(tree):
    return {"a": tree["a"] + tree["b"][0], "b": [tree["b"][1] * 2]}


def padded(x):
    return jax.lax.pad(x, 0.0, ((1, 2, 0), (0, -1, 1))), x[::2, ::-1], jnp.concatenate([x, x]), x.T.reshape(-1)


FUNCTIONS = {
    "mlp": (mlp, (rows(2, 3), rows(3, 4), rows(4, 2))),
    "loop": (loop, (rows(3), 4)),
    "scan": (scanned, (rows(4, 3),)),
    "switch": (chosen, (1, rows(3))),
    "conv": (conv, (rows(1, 2, 6, 8), rows(3, 2, 3, 3))),
    "attention": (attention, (rows(2, 3, 4),) * 3),
    "indexing": (indexing, (rows(5, 4), np.array([1, 3]))),
    "sort": (sorts, (rows(5),)),
    "linalg": (linalg, (rows(3, 3),)),
    "types": (types, (rows(4),)),
    "random": (random, (np.array([0, 7], np.uint32),)),
    "train": (train, (rows(3, 2), rows(4, 3), rows(4, 2))),
    "constants": (constants, (rows(3, 4),)),
    "tree": (nested, ({"a": rows(2), "b": [rows(2), rows(3)]},)),
    "pad": (padded, (rows(3, 4),)),
}

HANDWRITTEN = {
    "asynchronous": """HloModule asynchronous
add { x = f32[] parameter(0)  y = f32[] parameter(1)  ROOT z = f32[] add(x, y) }
twice { p = f32[2]{0} parameter(0)  n = f32[2]{0} add(p, p)  ROOT t = (f32[2]{0}, f32[2]{0}) tuple(n, p) }
ENTRY main {
  a = f32[2]{0} parameter(0)
  b = f32[3]{0} parameter(1)
  s = ((f32[2]{0}), (f32[2]{0}, f32[2]{0}), s32[]) async-start(a), calls=twice
  u = ((f32[2]{0}), (f32[2]{0}, f32[2]{0}), s32[]) async-update(s)
  d = (f32[2]{0}, f32[2]{0}) async-done(u)
  c = (f32[2]{0}, f32[2]{0}, u32[]) copy-start(a)
  e = f32[2]{0} copy-done(c)
  r = (f32[2]{0}, f32[3]{0}) all-reduce-start(a, b), to_apply=add, replica_groups={{0,1}}
  q = (f32[2]{0}, f32[3]{0}) all-reduce-done(r)
  g = (f32[2]{0}, f32[4]{0}) all-gather-start(a), dimensions={0}, replica_groups={{0,1}}
  h = f32[4]{0} all-gather-done(g)
  m = (f32[2]{0}, f32[2]{0}, u32[], u32[]) collective-permute-start(a), source_target_pairs={{0,1},{1,0}}
  o = f32[2]{0} collective-permute-done(m)
  ROOT t = (f32[2]{0}, f32[2]{0}, f32[4]{0}, f32[2]{0}) tuple(e, a, h, o)
}
""",
    "collectives": """HloModule collectives, replica_count=4
add { x = f32[] parameter(0)  y = f32[] parameter(1)  ROOT z = f32[] add(x, y) }
ENTRY main {
  a = f32[4,2]{1,0} parameter(0), sharding={devices=[2,1,2]<=[4] last_tile_dim_replicate}
  r = f32[4,2]{1,0} all-reduce(a), to_apply=add, replica_groups={{0,1},{2,3}}, channel_id=1, use_global_device_ids=true
  g = f32[8,2]{1,0} all-gather(r), dimensions={0}, replica_groups=[2,2]<=[4]
  s = f32[2,2]{1,0} reduce-scatter(a), to_apply=add, dimensions={0}, replica_groups={{0,1},{2,3}}
  t = f32[4,2]{1,0} all-to-all(a), dimensions={0}, replica_groups={{0,1},{2,3}}
  p = f32[4,2]{1,0} collective-permute(t), source_target_pairs={{0,1},{1,2}}
  i = u32[] partition-id()
  j = u32[] replica-id()
  k = (f32[4,2]{1,0}, f32[4,2]{1,0}) all-to-all(a, p), replica_groups={{0,1}}
  ROOT o = (f32[8,2]{1,0}, f32[2,2]{1,0}, f32[4,2]{1,0}, u32[], u32[]) tuple(g, s, p, i, j)
}
""",
    "calls": """HloModule calls, input_output_alias={ {0}: (0, {}, may-alias) }
callee { p = f32[2]{0} parameter(0)  q = (f32[2]{0}, s32[]) parameter(1)
  g = f32[2]{0} get-tuple-element(q), index=0  ROOT n = f32[2]{0} multiply(p, g) }
fused { p = f32[2]{0} parameter(0)  c = f32[] constant(2)  b = f32[2]{0} broadcast(c), dimensions={}
  ROOT m = f32[2]{0} multiply(p, b) }
yes { p = f32[2]{0} parameter(0)  ROOT r = f32[2]{0} sine(p) }
no { p = f32[2]{0} parameter(0)  ROOT r = f32[2]{0} cosine(p) }
ENTRY main {
  a = f32[2]{0} parameter(0), metadata={op_name="params['w']" source_file="train.py" source_line=7}
  i = s32[] constant(3)
  t = (f32[2]{0}, s32[]) tuple(a, i)
  c = f32[2]{0} call(a, t), to_apply=callee
  f = f32[2]{0} fusion(c), kind=kLoop, calls=fused
  x = f32[2]{0} custom-call(f), custom_call_target="Sharding", sharding={replicated}
  z = (f32[2]{0}, f32[2]{0}) custom-call(x), custom_call_target="foo", api_version=API_VERSION_TYPED_FFI,
    backend_config="{a = 1 : i32}"
  w = f32[2]{0} get-tuple-element(z), index=1
  l = pred[] constant(true)
  d = f32[2]{0} conditional(l, w, a), true_computation=yes, false_computation=no
  e = f32[2]{0} conditional(i, d, a, d), branch_computations={yes, no, yes}
  ROOT o = (f32[2]{0}, f32[2]{0}) tuple(e, d)
}
""",
    "transfers": """HloModule transfers
ENTRY main {
  k = token[] after-all()
  a = f32[2]{0} parameter(0)
  s = (f32[2]{0}, u32[], token[]) send(a, k), channel_id=1, is_host_transfer=true
  d = token[] send-done(s), channel_id=1, is_host_transfer=true
  r = (f32[2]{0}, u32[], token[]) recv(d), channel_id=2, is_host_transfer=true
  e = (f32[2]{0}, token[]) recv-done(r), channel_id=2, is_host_transfer=true
  i = (f32[3]{0}, token[]) infeed(k), infeed_config="x"
  o = token[] outfeed(a, k), outfeed_shape=f32[2]{0}
  ROOT g = f32[2]{0} get-tuple-element(e), index=0
}
""",
    "numbers": """HloModule numbers
ENTRY main {
  c = (f32[2]{0}, (s32[3]{0}, pred[])) constant(({1, 2}, ({3, 4, 5}, true)))
  b = bf16[2,2]{1,0} constant({{1, nan}, {inf, -0}})
  k = c64[2]{0} constant({(1, 2), (3, -4)})
  h = s4[4]{0:E(4)} constant({-8, 1, 2, 7})
  f = f8e4m3fn[2]{0} constant({1.5, 448})
  g = u64[] constant(18446744073709551615)
  i = s32[2,3]{1,0} iota(), iota_dimension=1
  ROOT t = (bf16[2,2]{1,0}, c64[2]{0}, s4[4]{0:E(4)}, f8e4m3fn[2]{0}, u64[], s32[2,3]{1,0}) tuple(b, k, h, f, g, i)
}
""",
    "many operations": """HloModule many
add { x = f32[] parameter(0)  y = f32[] parameter(1)  ROOT z = f32[] add(x, y) }
ge { x = f32[] parameter(0)  y = f32[] parameter(1)  ROOT z = pred[] compare(x, y), direction=GE }
max2 { a = f32[] parameter(0)  b = s32[] parameter(1)  c = f32[] parameter(2)  d = s32[] parameter(3)
  p = pred[] compare(a, c), direction=GT  x = f32[] select(p, a, c)  y = s32[] select(p, b, d)
  ROOT t = (f32[], s32[]) tuple(x, y) }
ENTRY main {
  x = f32[4,6]{1,0} parameter(0)
  i = s32[4,6]{1,0} iota(), iota_dimension=1
  z = f32[] constant(0)
  n = s32[] constant(-1)
  r = (f32[4]{0}, s32[4]{0}) reduce(x, i, z, n), dimensions={1}, to_apply=max2
  w = f32[2,3]{1,0} reduce-window(x, z), window={size=2x2 stride=2x2}, to_apply=add
  s = f32[4,6]{1,0} select-and-scatter(x, w, z), window={size=2x2 stride=2x2}, select=ge, scatter=add
  m = f32[4,6]{1,0} map(x, s), dimensions={0,1}, to_apply=add
  d = f32[4,4]{1,0} dot(x, m), lhs_contracting_dims={1}, rhs_contracting_dims={1}, operand_precision={highest,default}
  l = f32[4,4]{1,0} cholesky(d), lower=true
  t = f32[4,4]{1,0} triangular-solve(l, d), left_side=true, lower=true, transpose_a=NO_TRANSPOSE
  b = f32[24]{0} bitcast(x)
  p = f32[6,6]{1,0} pad(x, z), padding=1_1x0_0_0
  v = f32[4,6]{1,0} reverse(x), dimensions={0,1}
  q = f32[6,4]{0,1} transpose(x), dimensions={1,0}
  u = f32[1,6]{1,0} dynamic-slice(x, n, n), dynamic_slice_sizes={1,6}
  y = f32[4,6]{1,0} dynamic-update-slice(v, u, n, n)
  e = f32[4,6]{1,0} clamp(z, y, z)
  f = f32[4,6]{1,0} reduce-precision(e), exponent_bits=5, mantissa_bits=7
  g = f32[4,6]{1,0} atan2(f, x)
  h = u64[2]{0} constant({1, 2})
  j = (u64[2]{0}, u32[3]{0}) rng-bit-generator(h), algorithm=rng_default
  ROOT o = (f32[4,4]{1,0}, f32[24]{0}, f32[6,6]{1,0}, f32[6,4]{0,1}, f32[4,6]{1,0}) tuple(t, b, p, q, g)
}
""",
}


def bytecode(lowered):
    buffer = io.BytesIO()
    lowered.compiler_ir("stablehlo").operation.write_bytecode(buffer)
    return buffer.getvalue()


def generic(lowered):
    return lowered.compiler_ir("stablehlo").operation.get_asm(print_generic_op_form=True)


@functools.cache
def seeds():
    """Returns name -> bytes; at least sixty."""
    # Modules hold the stack that they were traced on: on a thread of its own it is the same whoever asks, so are the bytes.
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        return threads.submit(_seeds).result()


def _seeds():
    found = {}
    for name, (function, arguments) in FUNCTIONS.items():
        jitted = jax.jit(function)
        lowered = jitted.lower(*arguments)
        hlo = lowered.compiler_ir("hlo")
        exported = jax.export.export(jitted)(*arguments)
        found |= {
            f"{name}, HLO text": lowered.as_text("hlo").encode(),
            f"{name}, HLO proto": hlo.as_serialized_hlo_module_proto(),
            f"{name}, StableHLO text": lowered.as_text(debug_info=name in ("mlp", "loop", "train")).encode(),
            f"{name}, generic text": generic(lowered).encode(),
            f"{name}, bytecode": bytecode(lowered),
            f"{name}, portable artifact": bytes(exported.mlir_module_serialized),
        }
    for name in ("mlp", "loop", "sort", "train", "conv"):
        function, arguments = FUNCTIONS[name]
        (optimized,) = jax.jit(function).lower(*arguments).compile().runtime_executable().hlo_modules()
        found[f"{name}, optimized HLO proto"] = optimized.as_serialized_hlo_module_proto()
        found[f"{name}, optimized HLO text"] = optimized.to_string().encode()
    for name, text in HANDWRITTEN.items():
        found[f"{name}, HLO text"] = text.encode()
        found[f"{name}, HLO proto"] = hlo_text_to_proto(text)
    return found
