"""Writes docs/coverage.md: every operation and custom call that has a rule, from the registry itself.

python docs/make_coverage.py
"""

import inspect
import pathlib
import re

import unlower
from unlower.evaluate.library import LIBRARY
from unlower.raising.outline import OUTLINED

FILE = pathlib.Path(__file__).parent / "coverage.md"
DIALECTS = {
    "stablehlo": "StableHLO",
    "chlo": "CHLO",
    "mhlo": "MHLO, as XLA's converter leaves it",
    "hlo": "HLO, where StableHLO has no operation",
    "sdy": "Shardy",
    "raised": "Recovered while loading",
    "": "Custom calls, by target",
}
HEAD = """# Operations

Everything that has a rule, written by `docs/make_coverage.py` from `unlower.op_rules`. Constants, calls, tuples, fusions
and asynchronous pairs have none: they are taken away or evaluated before. What is not listed raises
`UnsupportedOpError`, and [can be given a rule](how-to/own-rules.md).
"""


def dialect(name):
    """The dialect of an op name; nothing for the target of a custom call."""
    head = name.split(".")[0]
    return head if "." in name and head in DIALECTS else ""


def meaning(rule):
    """The first line of a rule's docstring, markup kept out of the table's way."""
    text = (inspect.getdoc(rule) or "").split("\n")[0]
    return text.replace("|", "\\|")


def family(rule):
    """The file of a rule, below `unlower/ops`."""
    return re.sub(r"^unlower\.(ops\.)?", "", rule.__module__).replace(".", "/")


def write():
    """Returns the page."""
    lines = [HEAD]
    for key, title in DIALECTS.items():
        rows = sorted((name, rule) for name, rule in unlower.op_rules.items() if dialect(name) == key)
        if rows:
            lines += [f"## {title} ({len(rows)})", "", "| operation | rule in | meaning |", "|---|---|---|"]
            lines += [f"| `{name}` | {family(rule)} | {meaning(rule)} |" for name, rule in rows]
            lines.append("")
    named = ", ".join(f"`{name}`" for name in sorted(LIBRARY) if not name.startswith(OUTLINED))
    unnamed = ", ".join(f"`{name.removeprefix(OUTLINED)}`" for name in sorted(LIBRARY) if name.startswith(OUTLINED))
    lines += [
        f"## Functions that keep their derivative ({len(LIBRARY)})",
        "",
        "Lowering drops their rules. They are recognised by proof: the library's function, lowered at the same types, computes",
        "the same bits. Then it is differentiated in their place.",
        "",
        f"By the name of a function in the module: {named}.",
        "",
        f"By the operations they become in place: {unnamed}.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    FILE.write_text(write())
