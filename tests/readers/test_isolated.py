"""The helper process ends by itself when nobody is there any more to end it."""

import dataclasses
import signal
import subprocess
import sys

import pytest

import unlower
from unlower.readers.isolation import write_message
from unlower.readers.limits import DEFAULT_LIMITS

SPINS = """
import unlower.readers.isolated as isolated
isolated.READERS = {"spin": lambda data, elision: [None for _ in iter(int, 1)]}
isolated._GRACE = 0
isolated.main()
"""


@pytest.mark.skipif(not hasattr(signal, "alarm"), reason="the system has no alarm clock for processes")
def test_a_reader_that_never_ends():
    request = {
        "kind": "spin",
        "seconds": 0.5,
        "memory": 1 << 40,
        "limits": dataclasses.asdict(DEFAULT_LIMITS),
        "marks": {},
        "constant_bytes": 0,
    }
    with subprocess.Popen([sys.executable, "-c", SPINS], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as helper:
        assert helper.stdin is not None
        write_message(helper.stdin, request, [b""])
        assert helper.wait(120) == -signal.SIGALRM


def test_the_helper_serves_again_after_its_time():
    text = "HloModule m\nENTRY e { ROOT x = f32[2] parameter(0) }"
    for _ in range(2):
        assert unlower.load(text, isolate=unlower.Isolation(seconds=60)).in_avals[0].shape == (2,)
