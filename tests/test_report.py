import dataclasses
import json

import pytest

from unlower.report import (
    Argument,
    Difference,
    Inspection,
    Signature,
    Timings,
    Verification,
    human_bytes,
    human_seconds,
)


def verification(**changes):
    fields = {
        "name": "model",
        "outcome": "equal",
        "inputs": ("float32[2]",),
        "outputs": ("float32[2]", "int32[]"),
        "seed": 0,
        "difference": None,
        "refusal": None,
        "notes": (),
        "timings": Timings(load=0.25, loaded_run=2.0),
    }
    return Verification(**{**fields, **changes})


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 30, "3.0 GiB"), (5 << 50, "5120.0 TiB")]
)
def test_bytes_are_spelled_with_a_unit(size, text):
    assert human_bytes(size) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.0123, "12.3 ms"), (2.5, "2.50 s")])
def test_seconds_are_spelled_with_a_unit(seconds, text):
    assert human_seconds(seconds) == text


def test_equal_is_true_and_nothing_else_is():
    assert verification()
    assert not verification(outcome="different")
    assert not verification(outcome="refused")


def test_verification_prints_outcome_notes_and_only_the_stages_that_ran():
    text = str(verification(notes=("one thing",)))
    assert text.splitlines() == [
        "model: bit-equal, 2 results of 1 argument",
        "  note: one thing",
        "  load: 250.0 ms",
        "  loaded run: 2.00 s",
    ]


def test_difference_says_where_and_how_much():
    difference = Difference(
        result=1, index=(2, 3), original="1.0 (0x3f800000)", loaded="1.5 (0x3fc00000)", elements=2, size=12, results=1
    )
    assert verification(outcome="different", difference=difference).headline() == (
        "different: result 1, element [2, 3]: 1.0 (0x3f800000) under XLA, 1.5 (0x3fc00000) loaded "
        "(2 of 12 elements differ there, and 1 result in all)"
    )


def test_refusal_is_quoted():
    assert verification(outcome="refused", refusal="no layout").headline().endswith("refused the original: no layout")


def test_json_holds_every_field():
    record = json.loads(verification().to_json())
    assert record["outcome"] == "equal"
    assert record["timings"]["original_run"] is None
    assert set(record) == set(Verification.__dataclass_fields__)


def test_inspection_prints_only_the_lists_that_hold_something():
    inspection = Inspection(
        name="model",
        signature=SIGNATURE,
        inputs=(Argument(type="float32[2]", bytes=8, name="x"), Argument(type="float32[?]", bytes=None)),
        outputs=(),
        functions=1,
        operations=3,
        histogram={"stablehlo.add": 3},
        custom_calls={},
        loops=(),
        constants=0,
        constant_bytes=0,
        elided=(),
        unsupported=(),
    )
    assert str(inspection).splitlines() == [
        "model: 3 operations in 1 function",
        "  call: f(x, arg1) -> ()",
        "  inputs (2, 8 B):",
        "    x: float32[2]",
        "    float32[?]",
        "  constants: 0, 0 B",
        "  operations:",
        "          3  stablehlo.add",
    ]


SIGNATURE = Signature(
    call="f(x, arg1)",
    arguments=(),
    results=(),
    arguments_tree=None,
    results_tree=None,
    complete=False,
    platform=None,
    platforms=(),
    notes=(),
)


def test_a_signature_prints_call_arguments_results_and_remarks():
    signature = dataclasses.replace(
        SIGNATURE,
        call="predict(x, *, scale)",
        arguments=(
            Argument(type="float32[b,3]", bytes=None, name="x", sharding="PartitionSpec('data')"),
            Argument(type="float32[]", bytes=4, name="scale", role="unused"),
        ),
        results=(Argument(type="float32[b]", bytes=None, role="result"),),
        platform="cpu",
        platforms=("tpu", "cpu"),
        notes=("mind this",),
    )
    assert str(signature).splitlines() == [
        "predict(x, *, scale) -> *",
        "  arguments:",
        "    x: float32[b,3], PartitionSpec('data')",
        "    scale: float32[] (unused)",
        "  results:",
        "    float32[b]",
        "  platforms: cpu of tpu, cpu",
        "  note: mind this",
    ]
    assert json.loads(signature.to_json())["arguments"][1]["role"] == "unused"
    assert str(dataclasses.replace(SIGNATURE, results=signature.results * 2)).startswith("f(x, arg1) -> (*, *)")
