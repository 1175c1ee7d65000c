"""The public face: what there is, and that importing it changes nothing."""

import json
import subprocess
import sys

import unlower
import unlower.errors

PUBLIC = [
    "DuplicateRuleError",
    "FormatError",
    "InvalidModuleError",
    "Isolation",
    "Limits",
    "Program",
    "RuleError",
    "SignatureError",
    "UnhandledHigherOrderError",
    "UnlowerError",
    "UnsupportedOpError",
    "amp",
    "inspect",
    "interpret",
    "load",
    "op_rule",
    "op_rules",
    "transforms",
    "verify",
]

IMPORT = """
import json, os, warnings
import jax
before = {name: str(value) for name, value in jax.config.values.items()}, dict(os.environ), list(warnings.filters)
import unlower
after = {name: str(value) for name, value in jax.config.values.items()}, dict(os.environ), list(warnings.filters)
print(json.dumps({"same": before == after, "backends": bool(jax._src.xla_bridge._backends)}))
"""


def test_the_public_names_are_these():
    assert sorted(unlower.__all__) == PUBLIC
    for name in PUBLIC:
        assert getattr(unlower, name).__doc__, f"{name} has no docstring"


def test_every_error_is_public():
    assert set(unlower.errors.__all__) <= set(PUBLIC)


def test_errors_derive_from_the_builtin_that_callers_expect():
    expected = {
        "FormatError": ValueError,
        "InvalidModuleError": ValueError,
        "UnsupportedOpError": NotImplementedError,
        "SignatureError": TypeError,
        "DuplicateRuleError": ValueError,
        "RuleError": TypeError,
        "UnhandledHigherOrderError": NotImplementedError,
    }
    for name, builtin in expected.items():
        assert issubclass(getattr(unlower, name), (unlower.UnlowerError, builtin))
        assert issubclass(getattr(unlower, name), builtin)


def test_importing_changes_nothing_outside_and_starts_no_device():
    done = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"same": True, "backends": False}
