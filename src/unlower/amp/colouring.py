"""Which equations compute in the low dtype, and which values are stored in it.

Products are low unless something speaks against them. Arithmetic is low where it follows a product and another product is still
to come, and where nothing brittle is near: it is full on the way to an amplifier, after a brittle operation, and next to a
constant that the low dtype cannot hold. What moves values keeps the dtype that they have. A product stores its result in the
low dtype if somebody wants it so, and hands out float32 at no cost otherwise.

The scheme is that of TensorFlow's grappler pass (auto_mixed_precision), with the dtype of a product's result left free.
"""

import math
from typing import Any

import numpy as np

from unlower.amp.graph import Graph, Node, Value
from unlower.amp.policy import Policy
from unlower.amp.rules import AMPLIFIERS, Kind, contraction_size, kind_of

__all__ = ["colour"]

SMALLEST_TILE = 16
"""Products that contract fewer terms gain nothing, and where they feed an amplifier they lose much."""


def colour(graph: Graph, policy: Policy) -> None:
    """Decides for each node whether it computes low, and for each value whether it is stored low."""
    for node in graph.nodes:
        _classify(node, policy)
    _find_amplified(graph)
    _flow(graph, policy)
    _find_reach(graph)
    for node in graph.nodes:
        _decide(node)
    _find_wishes(graph)
    for node in graph.nodes:
        _store(node)


def _wide(values: list[Value | None]) -> list[Value]:
    return [v for v in values if v is not None]


# --- what each equation is


def _classify(node: Node, policy: Policy) -> None:
    if node.equation is None:
        node.kind, node.reason = _TIES[node.name]
        return
    params = node.equation.params
    if node.name == "convert_element_type":
        node.kind, node.reason = _conversion(node)
    else:
        node.kind, node.reason = kind_of(node.name, params, policy.low)
    if node.name == "mul" and node.equation.invars[0] is node.equation.invars[1] and policy.low.name == "float16":
        node.kind, node.reason = Kind.FULL, "a square leaves the range of float16"
    if node.kind is Kind.LOW:
        _classify_product(node)
    if node.name in policy.kernels or params.get("name") in policy.kernels:
        node.kind, node.reason = Kind.LOW, "a kernel that the policy says accepts low operands"
    chosen = policy.choice(node.name, params, node.scope) if node.kind is not Kind.CLEAR else None
    if chosen is not None:
        choice, why = chosen
        node.is_forced = choice == "low" and bool(_wide(node.operands)) and node.name not in _FIXED
        if choice == "full":
            node.kind, node.reason = Kind.FULL, why
        elif node.is_forced and node.kind is not Kind.LOW:
            node.kind, node.reason = Kind.FOLLOW, why
    constant = next(filter(None, (_unfit(v, policy.low) for v in _wide(node.operands))), None)
    if constant is not None and node.kind in (Kind.FOLLOW, Kind.CLEAR) and not _only_moves(node):
        node.kind, node.reason, node.is_forced = Kind.FULL, f"{constant} is outside the range of {policy.low}", False


_TIES = {
    "carry": (Kind.FULL, "the carry of a loop keeps its dtype"),
    "result": (Kind.FULL, "a result keeps its dtype"),
    "low result": (Kind.LOW, "a result that is wanted low"),
    "declared": (Kind.FULL, "stored as declared"),
    "custom_vjp_call": (Kind.FULL, "a derivative rule is written for the dtypes declared"),
    "custom_vmap_call": (Kind.FULL, "a batching rule is written for the dtypes declared"),
    "composite": (Kind.FULL, "a composite has a signature"),
    "constant of a loop": (Kind.CLEAR, "cast once, before the loop"),
    "branches": (Kind.CLEAR, "the branches agree on one dtype"),
}

_FIXED = frozenset(
    [
        "convert_element_type",
        "bitcast_convert_type",
        "reduce_precision",
        "custom_linear_solve",
        "custom_root",
        "linear_call",
        "sort",
        "pure_callback",
        "io_callback",
        "debug_callback",
        "ffi_call",
        "pallas_call",
        "low_precision_product",
    ]
)
"""Primitives that compute in the dtypes declared, whatever a region says."""


def _conversion(node: Node) -> tuple[Kind, str]:
    if not _wide(node.results):
        return Kind.FULL, "a conversion that the program asks for"
    source = node.equation.invars[0].aval.dtype
    if source == np.float32 or source == np.bool_ or (np.issubdtype(source, np.integer) and source.itemsize == 1):
        return Kind.CLEAR, "exact in any float dtype"
    if np.issubdtype(source, np.integer):
        return Kind.FULL, "whole numbers may be too large to be exact in low precision"
    return Kind.FULL, "a conversion that the program asks for"


def _classify_product(node: Node) -> None:
    operands = node.operands[:2]
    if any(v is None for v in operands) or not _wide(node.results):
        node.kind, node.reason = Kind.FULL, "its operands are not both float32"
        return
    node.is_product = True
    lhs, rhs = (v.aval.shape for v in node.equation.invars[:2])
    if contraction_size(node.name, node.equation.params, lhs, rhs) == 1:
        node.kind, node.reason = Kind.FOLLOW, "an outer product sums nothing"


def _only_moves(node: Node) -> bool:
    """Whether a node only passes on its one operand: then it is where the constant meets another value that counts."""
    return node.kind is Kind.CLEAR and len(node.operands) == 1


def _unfit(value: Value, low: np.dtype) -> str | None:
    """A constant that the low dtype cannot hold, spelled; None if it can, or nothing is known."""
    if value.constant is None:
        return None
    known = np.abs(np.asarray(value.constant, np.float64))
    finite = known[np.isfinite(known) & (known > 0)]
    if not finite.size:
        return None
    info = _limits(low)
    for extreme in (float(finite.max()), float(finite.min())):
        if not info[0] <= extreme <= info[1]:
            return f"the constant {extreme:.6g}"
    if known.ndim and known.max() > info[2] and np.array_equal(finite, np.round(finite)):
        return f"a table of whole numbers up to {finite.max():.0f}"
    return None


def _limits(low: np.dtype) -> tuple[float, float, float]:
    """The smallest normal and the largest number of a dtype, and up to where it holds every whole number."""
    import jax.numpy as jnp

    info: Any = jnp.finfo(low)
    # A float32 denormal is no less denormal in bfloat16; what is next to zero in float16 is lost.
    smallest = float(info.tiny) if low.name == "float16" else 0.0
    return smallest, float(info.max), 2.0 ** (info.nmant + 1)


# --- the passes


def _find_amplified(graph: Graph) -> None:
    """Backwards: which values reach an amplifier through arithmetic and moves alone."""
    for node in reversed(graph.nodes):
        if node.kind is Kind.FULL:
            reaches = node.name in AMPLIFIERS
        else:
            reaches = node.kind is not Kind.LOW and any(v.amplified for v in _wide(node.results))
        if reaches:
            for value in _wide(node.operands):
                value.amplified = True


def _flow(graph: Graph, policy: Policy) -> None:
    """Forwards: what comes after a product, and what after a brittle operation; some nodes turn out to be full."""
    for node in graph.nodes:
        operands, results = _wide(node.operands), _wide(node.results)
        if node.kind is Kind.LOW and node.is_product and _is_small(node) and any(v.amplified for v in results):
            node.kind, node.reason = Kind.FULL, f"sums fewer than {SMALLEST_TILE} terms and feeds an amplifier"
        if node.kind is Kind.FOLLOW and not node.is_forced:
            if any(v.tainted for v in operands if not _is_free_scalar(v, results, policy)):
                node.kind, node.reason = Kind.FULL, "follows an operation in full precision"
            elif any(v.after_low for v in operands) and any(v.amplified for v in results):
                node.kind, node.reason = Kind.FULL, "stands between a product and an amplifier"
        for value in results:
            if node.kind is Kind.LOW:
                value.after_low = True
            elif node.kind is Kind.FULL:
                value.tainted = True
            else:
                value.tainted = any(v.tainted for v in operands) and not node.is_forced
                value.after_low = any(v.after_low for v in operands) or node.is_forced


def _is_small(node: Node) -> bool:
    lhs, rhs = (v.aval.shape for v in node.equation.invars[:2])
    return contraction_size(node.name, node.equation.params, lhs, rhs) < SMALLEST_TILE


def _is_free_scalar(value: Value, results: list[Value], policy: Policy) -> bool:
    """Whether an operand is one number beside arrays: it promotes nobody. In float16 its range has to be known."""
    if value.shape or not any(r.shape for r in results):
        return False
    return policy.low.name != "float16" or value.constant is not None


def _find_reach(graph: Graph) -> None:
    """Backwards: from which values a product is still to come, through whatever, and which are read by what may be low."""
    for node in reversed(graph.nodes):
        results = _wide(node.results)
        reaches = node.kind is Kind.LOW or any(v.reaches_low for v in results)
        reads = any(v.read_low for v in results) if node.kind is Kind.CLEAR else node.kind is not Kind.FULL
        for value in _wide(node.operands):
            value.reaches_low |= reaches
            value.read_low |= reads


def _decide(node: Node) -> None:
    if node.kind is Kind.LOW or node.is_forced:
        node.low = True
    elif node.kind is Kind.FOLLOW:
        follows = any(v.after_low for v in _wide(node.operands))
        leads = any(v.reaches_low for v in _wide(node.results))
        read = any(v.read_low for v in _wide(node.results))
        node.low = follows and leads and read
        if node.low:
            node.reason = node.reason or "between two products"
        elif follows and leads:
            node.reason = "all that read it are in full precision"
        else:
            node.reason = "no product comes after it" if follows else "no product comes before it"


def _find_wishes(graph: Graph) -> None:
    """Backwards: who wants a value low, who wants it full, and whether all who care want it low."""
    for node in reversed(graph.nodes):
        results = _wide(node.results)
        feeds_products = node.name == _LOOP_CONSTANT and all(v.only_products and v.wants_low for v in results)
        for value in _wide(node.operands):
            value.only_products &= (node.low and node.is_product) or feeds_products
            if node.low:
                value.wants_low = True
            elif node.kind is not Kind.CLEAR:
                value.all_low = False
                value.wants_full |= node.name in AMPLIFIERS or any(v.amplified for v in results)
            elif results:
                value.wants_low |= any(v.wants_low for v in results)
                value.wants_full |= any(v.wants_full for v in results)
                value.all_low &= all(v.all_low and v.wants_low for v in results)


_LOOP_CONSTANT = "constant of a loop"
_GROWS = ("broadcast_in_dim", "convert_element_type", _LOOP_CONSTANT)
"""What is better cast before than after: it makes more of its operand, or is done once instead of often."""


def _store(node: Node) -> None:
    operands, results = _wide(node.operands), _wide(node.results)
    if node.kind is Kind.CLEAR:
        # A number that is known adapts to whatever stands beside it.
        operands = [v for v in operands if v.shape or v.constant is None] or operands
        low = bool(operands) and all(v.stored_low for v in operands)
        if operands and not low and any(v.stored_low for v in operands):
            low = not any(v.tainted for v in results) and any(v.wants_low for v in results)
        elif not low and node.name in _GROWS:
            low = bool(results) and all(v.wants_low and v.all_low for v in results) and _grows(node)
            if node.name == _LOOP_CONSTANT:
                # Anything but a product would sum its gradient over the iterations in low precision.
                low = low and all(v.only_products for v in results)
        node.low = low
        for value in results:
            value.stored_low = low
    elif node.is_product and node.low:
        for value in results:
            value.stored_low = value.wants_low and not value.wants_full
    elif node.low:
        for value in results:
            value.stored_low = True


def _grows(node: Node) -> bool:
    if node.equation is None or node.name == "convert_element_type":
        return True
    before, after = (math.prod(v.aval.shape) for v in (node.equation.invars[0], node.equation.outvars[0]))
    return after > before
