"""Runs the public conformance corpora and holds the outcome against the figures on record.

    python conformance/check.py            everything, about 25 minutes
    python conformance/check.py --quick    one case in eight, as continuous integration does
    python conformance/check.py NAME ...   some of: testdata interpret quantized backcompat harnesses real_hlo files
    python conformance/check.py --record   writes what it finds into figures.json, where a fall is then a visible change

The corpora are kept beside the repository, in `../shared/conformance`; `CONFORMANCE=FOLDER` names another place. Exits
with 1 when a figure fell, with 2 when the corpora are not there.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
FIGURES = HERE / "figures.json"
CORPORA = ("testdata", "interpret", "quantized", "backcompat", "harnesses", "real_hlo", "files")

# The lines that a corpus prints, and how the figure in them is called: main line, class, harness kind, gradients.
LINES = (
    (re.compile(r"^\S.*\]: passed (\d+) of (\d+)"), ""),
    (re.compile(r"^  class (?P<name>[^:]+): passed (\d+) of (\d+)"), ""),
    (re.compile(r"^  (?P<name>text|hlo|grad): exact (\d+), close \d+ of (\d+)"), " exact"),
    (re.compile(r"^  reverse-mode gradient traces: (\d+) of (\d+)"), "gradient traces"),
)

Figure = tuple[int, int]


def parse(corpus: str, output: str) -> dict[str, Figure]:
    """Reads the figures that one corpus printed: name -> (passed, of)."""
    figures = {}
    for line in output.splitlines():
        for pattern, label in LINES:
            match = pattern.match(line)
            if match:
                *_, passed, of = match.groups()
                name = match.groupdict().get("name", "") + label
                figures[f"{corpus}: {name}" if name else corpus] = (int(passed), int(of))
                break
    return figures


def run(script: pathlib.Path, corpus: str, quick: bool, out: str) -> dict[str, Figure]:
    """Runs one corpus with this interpreter; no figures if it broke down. `out` receives the failures, a line each."""
    command = ["bash", str(script), *(["--quick"] if quick else []), corpus]
    environment = os.environ | {"PYTHON": sys.executable, "OUT": out}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    figures = parse(corpus, done.stdout)
    if corpus not in figures:
        log = pathlib.Path(out, f"{corpus}.log")
        print(done.stdout, log.read_text() if log.exists() else "", sep="\n", file=sys.stderr)
        return {}
    return figures


def version_key(version: str) -> tuple[int, ...]:
    """Orders version strings: "0.10.2" before "0.12.0.1"."""
    return tuple(int(part) for part in re.findall(r"\d+", version))


def on_record(records: dict[str, dict[str, Figure]], version: str) -> tuple[str, dict[str, Figure]]:
    """Returns the record of this JAX version, else that of the nearest older one, else none."""
    older = [v for v in records if version_key(v) <= version_key(version)]
    best = max(older, key=version_key, default="")
    return best, records.get(best, {})


def fell(found: Figure, recorded: Figure | None) -> bool:
    """Whether fewer cases pass than on record, or more fail; without a record nothing can fall."""
    return recorded is not None and (found[0] < recorded[0] or found[1] - found[0] > recorded[1] - recorded[0])


def table(found: dict[str, Figure], recorded: dict[str, Figure]) -> list[str]:
    """Draws found against recorded, a line each; a fall is marked."""
    width = max(map(len, found), default=0)
    lines = []
    for name, figure in found.items():
        before = recorded.get(name)
        note = "not on record" if before is None else f"recorded {before[0]} of {before[1]}"
        mark = "  FELL" if fell(figure, before) else ""
        lines.append(f"{name:<{width}}  {figure[0]:>5} of {figure[1]:<5} {note}{mark}")
    return lines


def dump(everything: dict) -> str:
    """Spells figures.json: a line for each figure, so that a change of one is a change of one line."""
    text = json.dumps(everything, indent=2)
    return re.sub(r"\[\s+(\d+),\s+(\d+)\s+\]", r"[\1, \2]", text) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Runs the check; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpora", nargs="*", metavar="NAME", help=f"some of: {' '.join(CORPORA)}")
    parser.add_argument("--quick", action="store_true", help="one case in eight")
    parser.add_argument("--record", action="store_true", help="write the outcome into figures.json")
    parser.add_argument("--out", help="folder for the failures by case")
    options = parser.parse_args(arguments)
    unknown = set(options.corpora) - set(CORPORA)
    if unknown:
        parser.error(f"no such corpus: {', '.join(sorted(unknown))}")
    folder = pathlib.Path(os.environ.get("CONFORMANCE", HERE.parent.parent / "shared" / "conformance"))
    if not (folder / "run").exists():
        print(f"no conformance corpora at {folder}", file=sys.stderr)
        return 2

    import jax

    mode = "quick" if options.quick else "full"
    everything = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    record = everything.setdefault(mode, {})
    version, recorded = on_record(record, jax.__version__)
    out = options.out or tempfile.mkdtemp(prefix="conformance-")
    falls = 0
    found: dict[str, Figure] = {}
    print(f"conformance, {mode}, jax {jax.__version__}, against the record of {version or 'no version'}", flush=True)
    for corpus in options.corpora or CORPORA:
        figures = run(folder / "run", corpus, options.quick, out)
        found |= figures
        missing = [n for n in recorded if n.split(":")[0] == corpus and n not in figures] or [corpus] * (not figures)
        falls += sum(fell(figure, recorded.get(name)) for name, figure in figures.items()) + len(missing)
        print(*table(figures, recorded), *(f"{name}  FELL: not counted" for name in missing), sep="\n", flush=True)
    print(f"failures by case: {out}")
    if options.record:
        corpora = {name.split(":")[0] for name in found}
        kept = {n: figure for n, figure in record.get(jax.__version__, {}).items() if n.split(":")[0] not in corpora}
        record[jax.__version__] = kept | found
        FIGURES.write_text(dump(everything))
        return 0
    print({0: "no figure fell", 1: "1 figure fell"}.get(falls, f"{falls} figures fell"))
    return 1 if falls else 0


if __name__ == "__main__":
    sys.exit(main())
