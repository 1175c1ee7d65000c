import gzip
import pathlib

import jax
import jax.numpy as jnp
import pytest

from unlower._jax_compat import convert_hlo_to_stablehlo
from unlower.ir.module import walk
from unlower.readers import hlo_proto, mlir_properties
from unlower.readers.elision import Elision
from unlower.readers.hlo_proto import module_from_hlo_proto, prepare, unwrap
from unlower.readers.mlir_bytecode import PROPERTIES, Bytecode

DUMP = pathlib.Path(__file__).parent.parent / "data" / "before_optimizations.hlo.pb.gz"


def program(x, w):
    def body(carry, row):
        return carry + jnp.sort(jnp.tanh(row @ w)), jnp.argmax(carry)

    carry, rows = jax.lax.scan(body, x[0], x)
    windows = jax.lax.reduce_window(x, 0.0, jax.lax.add, (2, 2), (1, 1), "SAME")
    taken = jnp.fft.rfft(x[rows % 2, ::-1]).real
    return (
        jnp.pad(carry, 1),
        windows,
        taken,
        jax.random.bits(jax.random.key(0), (3,)),
        jax.lax.cumsum(x),
        x.at[1].add(2.0),
    )


def protos():
    lowered = jax.jit(program).lower(jnp.ones((4, 3)), jnp.ones((3, 3)))
    yield lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()
    yield lowered.compile().runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto()
    yield unwrap(gzip.decompress(DUMP.read_bytes()))


def described(module):
    return [
        (
            function.name,
            function.attributes,
            function.argument_attributes,
            function.argument_locations,
            [
                (
                    op.name,
                    sorted(op.attributes.items()).__repr__(),
                    op.location,
                    op.types,
                    [v.number for v in op.operands],
                )
                for op in walk(function.body)
            ],
        )
        for function in module.functions.values()
    ]


@pytest.mark.parametrize("which", range(3))
def test_properties_are_what_mlir_writes_by_name(which, monkeypatch):
    proto = list(protos())[which]
    bytecode = Bytecode(convert_hlo_to_stablehlo(prepare(proto)))
    start, stop = bytecode.span(PROPERTIES)
    assert stop > start, "the converter writes properties"
    direct = module_from_hlo_proto(proto, Elision())
    again = []
    monkeypatch.setattr(mlir_properties, "inherent_attributes", lambda name: None)
    rewrite = hlo_proto._without_properties
    monkeypatch.setattr(hlo_proto, "_without_properties", lambda data: again.append(data) or rewrite(data))
    through_mlir = module_from_hlo_proto(proto, Elision())
    assert len(again) == 1, "an operation whose definition is unknown is left to MLIR"
    modules = [getattr(found, "module", found) for found in (direct, through_mlir)]
    assert described(modules[0]) == described(modules[1])
