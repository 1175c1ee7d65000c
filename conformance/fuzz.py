"""Loads damaged files, and counts what comes of it.

None may end the process, hang, raise what is no `UnlowerError`, or load in part.

    python conformance/fuzz.py                          10,000 trials, not isolated: each in a worker process of its own kind
    python conformance/fuzz.py --isolated               the same with load(..., isolate=True)
    python conformance/fuzz.py --trials 500 --seed 7    fewer, others
    python conformance/fuzz.py --replay 1234 --seed 7   one trial again, in this process; --save FILE keeps its bytes

Every trial follows from the seed and its number. Exits with 1 when there is anything to report.
"""

import argparse
import collections
import json
import os
import pathlib
import random
import select
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

MEMORY = 12 << 30
"""Bytes of address space of a worker."""


def mutation(seed, number, seeds, only=""):
    """Returns the name of the seed, what was done to it, and the bytes, of one trial; `only` is part of the name."""
    from fuzz_mutations import mutate

    generator = random.Random(f"{seed} {number}")
    names = sorted(name for name in seeds if only in name)
    name = names[number % len(names)]
    how, data = mutate(generator, name, seeds)
    return name, how, data


def outcome(data, original, how, isolated):
    """Loads `data`: "loaded", "refused: ..." or what is to be reported."""
    import unlower

    try:
        program = unlower.load(data, isolate=unlower.Isolation(seconds=10) if isolated else False)
    except unlower.UnlowerError as error:
        kind = type(error).__name__
        # Without isolation too: what nobody can vouch for is read in a process of its own.
        died = any(word in error.what for word in ("ended the helper process", "took longer"))
        return f"{'lost' if died else 'refused'}: {kind}: {error.what.splitlines()[0][:200]}"
    except Exception as error:  # noqa: BLE001 (what is to be found)
        return f"EXCEPTION {type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}"
    if how.startswith("raw truncate") and data != original and not same_program(program, original):
        return "PARTIAL: a cut file loads as another program"
    return "loaded"


def same_program(program, original):
    import unlower

    whole = unlower.load(original)

    def text(loaded):
        return [str(loaded.jaxpr)] if loaded._static else [str(loaded.module)]

    return text(program) == text(whole)


def work(seed, isolated, only):
    """Serves trials: a number on a line in, its outcome on a line out."""
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    from fuzz_seeds import seeds

    seeds()
    answers.write("ready\n")
    for line in sys.stdin:
        name, how, data = mutation(seed, int(line), seeds(), only)
        begun = time.perf_counter()
        result = outcome(data, seeds()[name], how, isolated)
        answers.write(json.dumps([name, how, result, time.perf_counter() - begun]) + "\n")


class Worker:
    """A process that loads; None for an answer when it died or took too long."""

    def __init__(self, options):
        self._options = options
        self._process = None

    def ask(self, number):
        if self._process is None:
            self._start()
        self._process.stdin.write(f"{number}\n")
        self._process.stdin.flush()
        line = self._line(self._options.timeout)
        if line:
            return json.loads(line), None
        self._process.kill()
        status = self._process.wait()
        self._process = None
        return None, "HANG" if line is None else f"DEATH by signal {-status}"

    def _start(self):
        command = [sys.executable, __file__, "--work", "--seed", str(self._options.seed), "--only", self._options.only]
        command += ["--isolated"] if self._options.isolated else []
        environment = os.environ | {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
        self._errors = open(self._options.log, "ab")  # noqa: SIM115 (as long as the process)
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, env=environment
        )
        line = self._line(120)
        assert line == "ready", line

    def _line(self, seconds):
        """Returns a line of the answer; nothing where the process ended, None where it takes too long."""
        ready, _, _ = select.select([self._process.stdout], [], [], seconds)
        return self._process.stdout.readline().rstrip("\n") if ready else None

    def close(self):
        if self._process is not None:
            self._process.stdin.close()
            self._process.wait()


def run(options):
    from fuzz_seeds import seeds

    worker, counts, found, slowest = Worker(options), collections.Counter(), [], (0.0, 0)
    begun = time.perf_counter()
    for number in range(options.start, options.start + options.trials):
        answer, failure = worker.ask(number)
        if answer is None:
            name, how, _ = mutation(options.seed, number, seeds(), options.only)
            result = failure
        else:
            name, how, result, seconds = answer
            slowest = max(slowest, (seconds, number))
        kind = how.split()[0]
        label = result.split(":")[0]
        counts[label] += 1
        counts[f"  {kind}: {label}"] += 1
        if result[:4].isupper() or (options.verbose and result.startswith("lost")):
            found.append((number, name, how, result))
            print(f"trial {number} ({name}; {how}): {result}", flush=True)
    worker.close()
    import jax

    print(
        f"fuzz [jax {jax.__version__}, {'isolated' if options.isolated else 'not isolated'}, seed {options.seed}]: "
        f"{options.trials} trials of {len(seeds())} seeds in {time.perf_counter() - begun:.0f} s; "
        f"{len(found)} to report; slowest {slowest[0]:.1f} s (trial {slowest[1]})"
    )
    for label, count in sorted(counts.items(), key=lambda item: (item[0].startswith("  "), item[0])):
        print(f"  {label}: {count}")
    return 1 if found else 0


def replay(options):
    from fuzz_seeds import seeds

    name, how, data = mutation(options.seed, options.replay, seeds(), options.only)
    print(name, "|", how)
    if options.save:
        pathlib.Path(options.save).write_bytes(data)
        return 0
    print(outcome(data, seeds()[name], how, options.isolated))
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=int, default=0, help="the number of the first trial")
    parser.add_argument("--only", default="", help="part of the name of the seeds to take: proto, text, mlp, ...")
    parser.add_argument("--isolated", action="store_true")
    parser.add_argument("--timeout", type=float, default=30, help="seconds from which a trial counts as hung")
    parser.add_argument("--log", default=os.devnull, help="where the workers' stderr goes")
    parser.add_argument("--verbose", action="store_true", help="list what isolation caught, too")
    parser.add_argument("--replay", type=int)
    parser.add_argument("--save")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.seed, options.isolated, options.only)
        return 0
    return replay(options) if options.replay is not None else run(options)


if __name__ == "__main__":
    sys.exit(main())
