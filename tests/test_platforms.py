import jax
import jax.export
import numpy as np
import pytest

import unlower
from unlower.cli import run

F32 = np.float32


def choose(x):
    return jax.lax.platform_dependent(x, cpu=lambda x: x + 1, default=lambda x: x + 2)


def exported(*platforms):
    return jax.export.export(jax.jit(choose), platforms=platforms)(np.float32(0))


def test_the_running_backend_is_chosen():
    program = unlower.load(exported("tpu", "cpu"))
    assert program.interface.platform == "cpu" and program(0.0) == 1.0
    assert "platforms: cpu of tpu, cpu" in str(program.signature)
    assert not program.signature.notes


def test_a_program_for_other_platforms_runs_as_the_first_would_and_says_so():
    program = unlower.load(exported("cuda", "tpu"))
    assert program(0.0) == 2.0
    assert program.signature.notes == ("the program was lowered for cuda, tpu, not for cpu; this is what cuda runs",)


@pytest.mark.parametrize("platform", ["gpu", "rocm", 1])
def test_a_platform_by_name_alias_or_number(platform):
    assert unlower.load(exported("cpu", "rocm"), platform=platform)(0.0) == 2.0


@pytest.mark.parametrize(
    ("platform", "message"), [("tpu", "no platform 'tpu': it was lowered for cpu, cuda"), (2, "no platform 2")]
)
def test_a_platform_that_is_not_there(platform, message):
    with pytest.raises(unlower.SignatureError, match=message):
        unlower.load(exported("cpu", "cuda"), platform=platform)


def test_a_program_for_one_platform():
    single = exported("cuda")
    assert unlower.load(single)(0.0) == 2.0
    assert unlower.load(single, platform="gpu")(0.0) == 2.0
    with pytest.raises(unlower.SignatureError, match="no platform 'cpu': it was lowered for cuda"):
        unlower.load(single, platform="cpu")
    with pytest.raises(unlower.SignatureError, match="does not say what it was lowered for"):
        unlower.load(single.mlir_module(), platform="cpu")


def test_a_module_that_does_not_name_its_platforms():
    text = exported("tpu", "cpu").mlir_module()
    program = unlower.load(text)
    assert program(0.0) == 2.0
    assert "lowered for 2 platforms and does not say which" in program.signature.notes[0]
    assert unlower.load(text, platform=1)(0.0) == 1.0
    with pytest.raises(unlower.SignatureError, match="give a number below 2"):
        unlower.load(text, platform="cpu")


@pytest.mark.parametrize("platforms", [("tpu", "cpu"), ("cpu",)])
def test_verify_runs_the_original_on_the_same_platform(platforms):
    assert unlower.verify(exported(*platforms)).outcome == "equal"


def test_verify_takes_another_platform(tmp_path, capsys):
    path = tmp_path / "module.mlir"
    path.write_text(exported("tpu", "cpu").mlir_module())
    assert unlower.verify(path, platform=0).outcome == "equal"
    assert run(["verify", str(path), "--platform", "1"]) == 0
    assert run(["verify", str(path), "--platform", "cpu"]) == 2
    assert "2 platforms that it does not name" in capsys.readouterr().err
