"""The command line: arguments in, report out.

Exit status: 0 when all is well, 1 when `verify` finds a difference, 2 for a file that cannot be loaded (or wrong
arguments), 3 when XLA refuses the original.
"""

import argparse
import ast
import dataclasses
import json
import pathlib
import shlex
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from unlower.avals import spell_aval
from unlower.errors import FormatError, UnlowerError
from unlower.inspection import inspect, list_contents
from unlower.parameters import write_arrays
from unlower.program import load
from unlower.readers.progress import console
from unlower.report import Argument, Entry, Inspection, Verification, count, human_bytes, human_seconds
from unlower.verification import verify

__all__ = ["run"]

_STATUS = {"equal": 0, "different": 1, "refused": 3}
_STYLE = {"equal": "green", "different": "bold red", "refused": "yellow"}


def run(arguments: Sequence[str]) -> int:
    """Runs a command; returns the exit status."""
    options = _parser().parse_args(arguments)
    out, err = Console(highlight=False), console()
    try:
        return options.command(options, out, err)
    except (UnlowerError, OSError) as error:
        if options.json:
            fields = {name: getattr(error, name, None) for name in ("what", "where", "mend")}
            print(json.dumps({"error": {"type": type(error).__name__, **fields, "text": str(error)}}, indent=2))
        else:
            err.print(f"[bold red]{type(error).__name__}[/]: {escape(str(error))}", soft_wrap=True)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="unlower",
        description="Bring XLA programs back to life as JAX functions.",
        epilog=(__doc__ or "").partition("\n\n")[2],
    )
    parser.add_argument("--version", action="version", version=f"unlower {_version()}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument(
        "file",
        metavar="FILE",
        type=pathlib.Path,
        help="a program: HLO or StableHLO as text, proto or bytecode, gzipped or not; a jax.export file; the folder of a "
        "TensorFlow SavedModel, a torch_xla bundle or an XLA dump",
    )
    shared.add_argument("--signature", metavar="NAME", help="which signature or function of a SavedModel or bundle")
    shared.add_argument("--module", metavar="NAME", help="which module of a dump folder or SavedModel")
    shared.add_argument("--json", action="store_true", help="print a JSON object instead of tables")
    command = commands.add_parser("inspect", parents=[shared], **_says("say what a file holds, without running it"))
    command.set_defaults(command=_inspect)
    does = "run the original by XLA and the loaded program on the same random inputs, and compare their bits"
    command = commands.add_parser("verify", parents=[shared], **_says(does))
    command.add_argument("--seed", type=int, default=0, help="of the random inputs (default: 0)")
    command.add_argument(
        "--platform",
        metavar="NAME",
        type=lambda text: int(text) if text.isdecimal() else text,
        help="whose branches to take, of a program lowered for several platforms: a name, or a number where it has none",
    )
    command.set_defaults(command=_verify)
    does = "save the weights that a file brings, and those that are baked into its program as constants"
    command = commands.add_parser("weights", parents=[shared], **_says(does))
    command.add_argument(
        "-o", "--output", metavar="OUT", type=pathlib.Path, required=True, help="a .safetensors or .npz file to write"
    )
    command.add_argument(
        "--min-elements",
        metavar="N",
        type=int,
        default=17,
        help="the number of elements from which on a float constant is a weight (default: 17)",
    )
    command.add_argument("--no-constants", action="store_true", help="leave constants out")
    command.add_argument(
        "--match", metavar="FILE", type=pathlib.Path, help="a .safetensors or .npz file that names constants by content"
    )
    command.set_defaults(command=_weights)
    return parser


def _version() -> str:
    try:
        return version("unlower")
    except PackageNotFoundError:
        return "from a source tree, not installed"


def _says(text: str) -> dict[str, Any]:
    return {"help": text, "description": f"{text[0].upper()}{text[1:]}."}


def _choice(options: argparse.Namespace) -> dict[str, Any]:
    return {"signature": options.signature, "module": options.module}


def _inspect(options: argparse.Namespace, out: Console, err: Console) -> int:
    with err.status("reading"):
        try:
            found = inspect(options.file, **_choice(options))
        except FormatError as error:
            listed = list_contents(options.file) if options.file.is_dir() else ()
            if not any(entry.option for entry in listed) or any(_choice(options).values()):
                raise
            # A folder with several programs: which they are is what was asked for.
            return _show_choice(options, listed, error, out)
    if options.json:
        print(found.to_json())
    else:
        _show_inspection(found, out)
    return 0


def _show_choice(options: argparse.Namespace, listed: Sequence[Entry], error: FormatError, out: Console) -> int:
    if options.json:
        print(json.dumps({"contents": [dataclasses.asdict(entry) for entry in listed], "why": error.what}, indent=2))
    else:
        _show_contents(listed, out)
        out.print(f"{escape(error.what)}: choose one", style="yellow", soft_wrap=True)
    return 0


def _show_contents(listed: Sequence[Entry], out: Console) -> None:
    rows = []
    for entry in listed:
        size = "" if entry.bytes is None else human_bytes(entry.bytes)
        option = "" if entry.option is None else _as_option(entry.option)
        rows.append((entry.name, entry.what, size, f"{option} (taken)" if entry.chosen else option))
    _table(out, "in the folder", ("name", "what", "size", "to load it"), rows)


def _as_option(option: str) -> str:
    """`module='jit_step'`, which Python takes, as the command line does."""
    name, _, value = option.partition("=")
    return f"--{name} {shlex.quote(ast.literal_eval(value))}"


def _verify(options: argparse.Namespace, out: Console, err: Console) -> int:
    with err.status("loading") as status:
        found = verify(
            options.file, seed=options.seed, platform=options.platform, progress=status.update, **_choice(options)
        )
    if options.json:
        print(found.to_json())
    else:
        _show_verification(found, out)
    return _STATUS[found.outcome]


def _weights(options: argparse.Namespace, out: Console, err: Console) -> int:
    with err.status("loading"):
        program = load(options.file, **_choice(options))
        brought = program.parameters
        if not options.no_constants:
            program = program.lift_constants(min_elements=options.min_elements, match=options.match)
        weights = program.parameters
        write_arrays(options.output, weights)
    rows = [
        {
            "name": name,
            "type": spell_aval(array),
            "bytes": array.nbytes,
            "from": "the file" if name in brought else "a constant",
        }
        for name, array in weights.items()
    ]
    if options.json:
        print(json.dumps({"output": str(options.output), "weights": rows}, indent=2))
        return 0
    texts = [(row["name"], row["type"], human_bytes(row["bytes"]), row["from"]) for row in rows]
    _table(out, "weights", ("name", "type", "size", "from"), texts)
    total = human_bytes(sum(row["bytes"] for row in rows))
    out.print(f"{count(len(rows), 'weight')}, {total}, in {escape(str(options.output))}", soft_wrap=True)
    return 0


def _show_inspection(found: Inspection, out: Console) -> None:
    made_of = f"{count(found.operations, 'operation')} in {count(found.functions, 'function')}"
    constants = f"{count(found.constants, 'constant')} of {human_bytes(found.constant_bytes)}"
    out.print(f"[bold]{escape(found.name)}[/]: {made_of}, {constants}")
    out.print(escape(found.signature.headline()), soft_wrap=True)
    for title, arguments in (("inputs", found.inputs), ("outputs", found.outputs)):
        total = human_bytes(sum(argument.bytes or 0 for argument in arguments))
        _table(
            out,
            f"{title} ({total})",
            ("", "name", "type", "size", "is", "layout"),
            map(_argument_row, range(len(arguments)), arguments),
        )
    unused = [x for x in found.signature.arguments if x.role == "unused"]
    _table(out, "not used", ("name", "type"), ((x.name or "", x.type) for x in unused))
    _table(out, "operations", ("operation", "count"), ((k, str(v)) for k, v in found.histogram.items()))
    _table(out, "custom calls", ("target", "count"), ((k, str(v)) for k, v in found.custom_calls.items()))
    loops = ((f"@{x.function}, op {x.index}", str(x.carried), x.location or "") for x in found.loops)
    _table(out, "loops", ("where", "carries", "from"), loops)
    _table(out, "left out of the file", ("constant",), ((name,) for name in found.elided))
    export = ((name.replace("_", " "), _spell(value)) for name, value in (found.export or {}).items())
    _table(out, "jax.export", ("", ""), export)
    rows = ((f"@{x.function}, op {x.index}", x.reason, x.op, x.location or "") for x in found.unsupported)
    _table(out, "unsupported", ("where", "why", "operation", "from"), rows, style="yellow")
    for remark in found.signature.remarks():
        out.print(escape(remark), style="yellow" if remark.startswith("note") else "", soft_wrap=True)
    _show_contents(found.contents, out)
    if not found.unsupported:
        out.print("every operation is supported", style="green")


def _spell(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _argument_row(position: int, argument: Argument) -> tuple[str, ...]:
    size = "unknown" if argument.bytes is None else human_bytes(argument.bytes)
    role = "" if argument.role in ("argument", "result") else argument.role.replace("_", " ")
    return str(position), argument.name or "", argument.type, size, role, argument.sharding or ""


def _show_verification(found: Verification, out: Console) -> None:
    out.print(f"[bold]{escape(found.name)}[/]: [{_STYLE[found.outcome]}]{escape(found.headline())}[/]", soft_wrap=True)
    for note in found.notes:
        out.print(f"note: {escape(note)}", style="yellow", soft_wrap=True)
    times = found.timings
    rows = [
        ("original, XLA", "", _seconds(times.original_compile), _seconds(times.original_run)),
        ("loaded", _seconds(times.load), _seconds(times.loaded_compile), _seconds(times.loaded_run)),
    ]
    _table(out, None, ("", "load", "compile", "run"), rows)


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else human_seconds(seconds)


def _table(
    out: Console, title: str | None, heads: Sequence[str], rows: Iterable[Sequence[str]], style: str = ""
) -> None:
    """Prints a table, unless it has no rows; columns with nothing in them are left out; numbers and sizes to the right."""
    rows = list(rows)
    filled = [i for i in range(len(heads)) if any(row[i] for row in rows)]
    if not rows:
        return
    heads, rows = [heads[i] for i in filled], [[row[i] for i in filled] for row in rows]
    table = Table(title=title, title_justify="left", title_style="bold", style=style)
    for head in heads:
        right = head in ("count", "size", "carries", "load", "compile", "run")
        table.add_column(head, justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row))
    out.print(table)
