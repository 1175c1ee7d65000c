"""The opcodes of HLO: how many operands each takes, and which of them XLA's converter to StableHLO can express."""

__all__ = ["ARITIES", "COMPARISONS", "INLINED", "VARIADIC", "is_convertible", "words"]

VARIADIC = -1


def words(text: str) -> frozenset[str]:
    """Returns the words of a text as a set."""
    return frozenset(text.split())


_ARITIES = {
    0: "constant iota parameter partition-id replica-id rng-get-and-update-state",
    1: """abs acos acosh all-gather-done all-reduce-done asin asinh async-done atanh bitcast bitcast-convert broadcast cbrt
        ceil cholesky collective-permute-done convert copy copy-done copy-start cosine cosh count-leading-zeros domain erf
        exponential exponential-minus-one fft floor get-dimension-size get-tuple-element imag infeed is-finite log
        log-plus-one logistic negate not opt-barrier popcnt real recv recv-done reduce-precision reshape reverse
        rng-bit-generator round-nearest-afz round-nearest-even rsqrt send-done sign sine sinh slice sqrt tan tanh topk
        transpose while""",
    2: """add add-dependency and atan2 compare complex divide dot gather maximum minimum multiply or outfeed pad power
        remainder send set-dimension-size shift-left shift-right-arithmetic shift-right-logical stochastic-convert subtract
        triangular-solve xor""",
    3: "batch-norm-training clamp ragged-dot select select-and-scatter",
    5: "batch-norm-grad batch-norm-inference",
    6: "ragged-all-to-all",
    VARIADIC: """after-all all-gather all-gather-start all-reduce all-reduce-start all-to-all async-start async-update call
        collective-broadcast collective-permute collective-permute-start concatenate conditional convolution custom-call
        dynamic-reshape dynamic-slice dynamic-update-slice fusion map reduce reduce-scatter reduce-window rng scan scatter
        sort tuple""",
}

COMPARISONS: dict[str, str] = {
    "equal-to": "EQ",
    "not-equal-to": "NE",
    "greater-than-or-equal-to": "GE",
    "greater-than": "GT",
    "less-than-or-equal-to": "LE",
    "less-than": "LT",
}
"""Opcodes of old files -> the direction of the `compare` that XLA reads them as."""

ARITIES: dict[str, int] = {name: arity for arity, names in _ARITIES.items() for name in names.split()}
ARITIES |= dict.fromkeys(COMPARISONS, 2)
"""Opcode -> number of operands, or VARIADIC, for the opcodes that the converter of every supported jaxlib expresses.

Left out, and so carried by custom calls: `mulhi`, `scaled-dot` (known to every jaxlib, converted by none), `exp2`, `log2`,
`shuffle`, `collective-reduce` (of jaxlib 0.12), and whatever comes later.
"""

INLINED = words(
    """all-reduce all-reduce-start conditional fusion map reduce reduce-scatter reduce-window scan scatter select-and-scatter
    sort while"""
)
"""Opcodes whose computations the converter copies to the place of the instruction, as regions."""


def is_convertible(opcode: str) -> bool:
    """Whether the converter of every supported jaxlib expresses the opcode."""
    return opcode in ARITIES
