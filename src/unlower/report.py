"""What `inspect` and `verify` found: frozen records that print as plain text and turn into JSON.

How they look on a terminal is the command line's business (`unlower.cli`).
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

__all__ = [
    "Argument",
    "DerivativeReport",
    "Difference",
    "Entry",
    "Idiom",
    "Inspection",
    "Loop",
    "LoopDerivative",
    "Signature",
    "Timings",
    "UnsupportedOp",
    "Verification",
    "count",
    "human_bytes",
    "human_seconds",
]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """An argument or a result of a program.

    Attributes:
      type: element type and shape, e.g. `"float32[8,4]"`; a size unknown before the call is `?`.
      bytes: its size, or None where a size is unknown.
      name: what the file calls it, or None.
      role: `"argument"` or `"result"`; `"unused"` for an argument of the original call that the module does not take;
        `"parameter"` for a weight that the file brings; `"dimension"`, `"platform_index"` or `"token"`.
      sharding: how the file says it is laid out over devices, or None.
    """

    type: str
    bytes: int | None
    name: str | None = None
    role: str = "argument"
    sharding: str | None = None

    def __str__(self) -> str:
        text = f"{self.name}: {self.type}" if self.name else self.type
        text += "" if self.role in ("argument", "result") else f" ({self.role.replace('_', ' ')})"
        return f"{text}, {self.sharding}" if self.sharding else text


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """How a program is called, and what it returns.

    Attributes:
      call: the call of the original, e.g. `"predict(params, x, *, scale)"`; the flat arrays where the file tells nothing.
      arguments: the arguments, leaf by leaf, in the module's order, and then those that the module does not take.
      results: the results, leaf by leaf.
      arguments_tree: the tree of `(args, kwargs)`, leaves drawn as `*`, or None.
      results_tree: the tree of the result, or None.
      complete: whether the tree is all of the original's; else unused arguments are missing in it.
      platform: the platform that loading chose among `platforms`, or None.
      platforms: what the program was lowered for, as far as the file says.
      notes: what else a caller should know.
    """

    call: str
    arguments: tuple[Argument, ...]
    results: tuple[Argument, ...]
    arguments_tree: str | None
    results_tree: str | None
    complete: bool
    platform: str | None
    platforms: tuple[str, ...]
    notes: tuple[str, ...]

    def to_json(self) -> str:
        """Returns the record as a JSON object."""
        return _to_json(self)

    def __str__(self) -> str:
        lines = [self.headline()]
        lines += _listed("arguments", list(map(str, self.arguments)))
        lines += _listed("results", list(map(str, self.results)))
        return "\n".join([*lines, *(f"  {line}" for line in self.remarks())])

    def headline(self) -> str:
        """Says the call and what it returns: `"predict(params, x) -> {'logits': *}"`."""
        flat = "*" if len(self.results) == 1 else f"({', '.join('*' * len(self.results))})"
        return f"{self.call} -> {self.results_tree or flat}"

    def remarks(self) -> list[str]:
        """Says what else there is to know, a line each: platforms and notes."""
        lines = [f"note: {note}" for note in self.notes]
        if self.platforms or self.platform:
            chosen = f"{self.platform} of " if self.platform and len(self.platforms) > 1 else ""
            lines.insert(0, f"platforms: {chosen}{', '.join(self.platforms) or self.platform}")
        return lines


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One thing in a folder.

    Attributes:
      name: the file, or the signature, function or program inside.
      what: what it is, in words.
      bytes: its size, or None where that means nothing.
      option: what to pass to `load` for it, e.g. `"module='jit_step'"`; None for what is no program.
      chosen: whether `load` takes it without being told.
    """

    name: str
    what: str
    bytes: int | None
    option: str | None
    chosen: bool

    def __str__(self) -> str:
        option = "" if self.option is None else " (taken)" if self.chosen else f" ({self.option})"
        return f"{self.name}: {self.what}{option}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """A `while` of the module.

    Attributes:
      function: the function that holds it.
      index: its position among that function's operations.
      carried: how many values it carries.
      location: name scope and source line, or None.
    """

    function: str
    index: int
    carried: int
    location: str | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UnsupportedOp:
    """An operation that `load` would refuse.

    Attributes:
      function: the function that holds it.
      index: its position among that function's operations.
      op: the operation as text.
      reason: why it is refused.
      location: name scope and source line, or None.
    """

    function: str
    index: int
    op: str
    reason: str
    location: str | None

    def __str__(self) -> str:
        place = f", from {self.location}" if self.location else ""
        return f"{self.reason}: @{self.function}, op {self.index}, `{self.op}`{place}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """What a file holds.

    Attributes:
      name: the module's name.
      signature: how the program is called, in the trees of the original where the file tells these.
      inputs: the module's flat inputs, in its order.
      outputs: the module's flat results.
      functions: the number of functions that the entry reaches.
      operations: the number of operations in them, regions included, each counted once however often it runs.
      histogram: op name -> how many, most frequent first.
      custom_calls: target -> how many, most frequent first.
      loops: the `while` loops.
      constants: the number of constants.
      constant_bytes: the size of their values in the program's memory.
      elided: the constants whose values the file left out, as `name: type`.
      unsupported: the operations that `load` would refuse.
      export: what a jax.export file says besides: versions, devices, effects, nested pullbacks; else None.
      contents: of a folder, what else is in it.
    """

    name: str
    signature: Signature
    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    functions: int
    operations: int
    histogram: Mapping[str, int]
    custom_calls: Mapping[str, int]
    loops: tuple[Loop, ...]
    constants: int
    constant_bytes: int
    elided: tuple[str, ...]
    unsupported: tuple[UnsupportedOp, ...]
    export: Mapping[str, Any] | None = None
    contents: tuple[Entry, ...] = ()

    def to_json(self) -> str:
        """Returns the record as a JSON object."""
        return _to_json(self)

    def __str__(self) -> str:
        lines = [f"{self.name}: {count(self.operations, 'operation')} in {count(self.functions, 'function')}"]
        lines.append(f"  call: {self.signature.headline()}")
        lines += _signature("inputs", self.inputs) + _signature("outputs", self.outputs)
        lines.append(f"  constants: {self.constants}, {human_bytes(self.constant_bytes)}")
        lines += _listed("operations", [f"{n:>7}  {name}" for name, n in self.histogram.items()])
        lines += _listed("custom calls", [f"{n:>7}  {name}" for name, n in self.custom_calls.items()])
        lines += _listed("loops", [f"@{loop.function}, op {loop.index}, carries {loop.carried}" for loop in self.loops])
        lines += _listed("left out of the file", self.elided)
        lines += _listed("unsupported", [str(op) for op in self.unsupported])
        lines += _listed(
            "export", [f"{name.replace('_', ' ')}: {value}" for name, value in (self.export or {}).items()]
        )
        lines += [f"  {line}" for line in self.signature.remarks()]
        lines += _listed("in the folder", list(map(str, self.contents)))
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first place where two runs differ.

    Attributes:
      result: the position of the result among the outputs.
      index: the position of the element in it.
      original: the value under XLA, with the bits behind it.
      loaded: the value of the loaded program, likewise.
      elements: how many elements of that result differ.
      size: how many elements it has.
      results: how many results differ at all.
    """

    result: int
    index: tuple[int, ...]
    original: str
    loaded: str
    elements: int
    size: int
    results: int

    def __str__(self) -> str:
        place = f"result {self.result}" + (f", element [{', '.join(map(str, self.index))}]" if self.index else "")
        share = f"{self.elements} of {self.size} elements differ there, and {count(self.results, 'result')} in all"
        return f"{place}: {self.original} under XLA, {self.loaded} loaded ({share})"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Wall-clock seconds of each stage; None where it was not reached.

    Attributes:
      load: reading the file and building the program.
      original_compile: XLA on the original.
      original_run: the original, once.
      loaded_compile: tracing, lowering and XLA on the loaded program.
      loaded_run: the loaded program, once.
    """

    load: float
    original_compile: float | None = None
    original_run: float | None = None
    loaded_compile: float | None = None
    loaded_run: float | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The original under XLA and the loaded program, on the same inputs.

    Attributes:
      name: the module's name.
      outcome: `"equal"` bit for bit, `"different"`, or `"refused"` when XLA does not run the original.
      inputs: the arguments that both were given, by type.
      outputs: the results, by type.
      seed: what the random inputs were drawn from; None when the caller gave them.
      difference: the first difference, if any.
      refusal: what XLA said, if it refused.
      notes: what else one should know to read the outcome.
      timings: seconds of each stage.
    """

    name: str
    outcome: Literal["equal", "different", "refused"]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    seed: int | None
    difference: Difference | None
    refusal: str | None
    notes: tuple[str, ...]
    timings: Timings

    def __bool__(self) -> bool:
        """Whether the two agree bit for bit."""
        return self.outcome == "equal"

    def to_json(self) -> str:
        """Returns the record as a JSON object."""
        return _to_json(self)

    def headline(self) -> str:
        """Says the outcome in one sentence."""
        if self.outcome == "equal":
            return f"bit-equal, {count(len(self.outputs), 'result')} of {count(len(self.inputs), 'argument')}"
        if self.outcome == "different":
            return f"different: {self.difference}"
        return f"not compared: XLA refused the original: {self.refusal}"

    def __str__(self) -> str:
        times = dataclasses.asdict(self.timings)
        lines = [f"{self.name}: {self.headline()}", *(f"  note: {note}" for note in self.notes)]
        lines += [f"  {stage.replace('_', ' ')}: {human_seconds(t)}" for stage, t in times.items() if t is not None]
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LoopDerivative:
    """How a loop is differentiated.

    Attributes:
      name: its name, for `max_iterations`.
      place: its function, name scope and source line, as far as the file tells.
      trip_count: how often it runs, or None where that depends on data.
      reason: why it is not counted, or the empty string.
      max_iterations: the caller's bound, or None.
    """

    name: str
    place: str
    trip_count: int | None
    reason: str
    max_iterations: int | None

    def __str__(self) -> str:
        if self.trip_count is not None:
            how = f"runs {count(self.trip_count, 'time')}, differentiates as a scan"
        elif self.max_iterations:
            how = f"{self.reason}; at most {count(self.max_iterations, 'time')}, differentiates as a nest of scans"
        else:
            how = f"{self.reason}; forward mode only, until max_iterations bounds it"
        return f"{self.name}: {how} ({self.place})"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Idiom:
    """A function that bears the name of a library's or the caller's function, or is written like one.

    Attributes:
      name: what it may be.
      function: the function of the module; None where its operations stand in place.
      calls: how often it is called.
      proved: whether it computes the same, and so is differentiated as that.
    """

    name: str
    function: str | None
    calls: int
    proved: bool

    def __str__(self) -> str:
        where = "written out" if self.function is None else f"@{self.function}"
        how = "differentiates as the original" if self.proved else "not proved: its operations are differentiated"
        return f"{self.name}, {where}, {count(self.calls, 'call')}: {how}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DerivativeReport:
    """How a program is differentiated, and where that may not be how the original was.

    Attributes:
      name: the module's name.
      loops: its loops.
      idioms: functions that were recognised, or were not.
      custom_calls: target -> how many, of custom calls that have a rule.
      without_derivative: operation or custom call -> how many, of those that a derivative cannot pass.
      lost_rules: name scopes in which the original had a rule of its own (`jax.custom_jvp`, `jax.custom_vjp`).
      notes: what else there is to know.
    """

    name: str
    loops: tuple[LoopDerivative, ...]
    idioms: tuple[Idiom, ...]
    custom_calls: Mapping[str, int]
    without_derivative: Mapping[str, int]
    lost_rules: tuple[str, ...]
    notes: tuple[str, ...]

    def to_json(self) -> str:
        """Returns the record as a JSON object."""
        return _to_json(self)

    def __str__(self) -> str:
        refused = sum(not idiom.proved for idiom in self.idioms) + len(self.lost_rules)
        doubt = f"the gradient may differ in {count(refused, 'place')}" if refused else "nothing is known to be lost"
        lines = [f"{self.name}: {doubt}", *(f"  note: {note}" for note in self.notes)]
        lines += _listed("loops", list(map(str, self.loops)))
        lines += _listed("functions with a derivative of their own", list(map(str, self.idioms)))
        lines += _listed("custom calls", [f"{n:>7}  {name}" for name, n in self.custom_calls.items()])
        lines += _listed("without a derivative", [f"{n:>7}  {name}" for name, n in self.without_derivative.items()])
        return "\n".join(lines + _listed("rules of the original that the file does not hold", self.lost_rules))


def human_bytes(size: int) -> str:
    """Spells a size in bytes with a binary unit.

    Example:
      >>> human_bytes(1536)
      '1.5 KiB'
    """
    amount, unit = float(size), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if amount < 1024 or unit == "TiB":
            break
        amount /= 1024
    return f"{size} B" if unit == "B" else f"{amount:.1f} {unit}"


def human_seconds(seconds: float) -> str:
    """Spells a duration.

    Example:
      >>> human_seconds(0.0123)
      '12.3 ms'
    """
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def count(number: int, noun: str) -> str:
    """Spells a number of things: `1 loop`, `2 loops`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _signature(title: str, arguments: Sequence[Argument]) -> list[str]:
    total = sum(argument.bytes or 0 for argument in arguments)
    return _listed(f"{title} ({len(arguments)}, {human_bytes(total)})", [str(argument) for argument in arguments])


def _listed(title: str, items: Sequence[str]) -> list[str]:
    return [f"  {title}:", *(f"    {item}" for item in items)] if items else []


def _to_json(record: Any) -> str:
    return json.dumps(dataclasses.asdict(record), indent=2)
