"""Each check of the guard over HLO protos: a module with one thing wrong is refused, with computation and instruction."""

import pytest

import unlower
from unlower._jax_compat import hlo_text_to_proto
from unlower.errors import FormatError
from unlower.readers.hlo.guard import guard
from unlower.readers.hlo.model import Model
from unlower.readers.hlo.wire import encode_number, encode_packed
from unlower.readers.limits import DEFAULT_LIMITS
from unlower.readers.wire import BYTES, encode_field, fields, varints

TEXT = """HloModule m
add { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b) }
less { la = f32[] parameter(0)
  lb = f32[] parameter(1)
  ROOT lc = pred[] compare(la, lb), direction=LT }
negative { na = f32[2,3] parameter(0)
  ROOT nb = f32[2,3] negate(na) }
same { sa = f32[2,3] parameter(0)
  ROOT sb = f32[2,3] copy(sa) }
body { w = (s32[], f32[2,3]) parameter(0)
  i = s32[] get-tuple-element(w), index=0
  x = f32[2,3] get-tuple-element(w), index=1
  j = s32[] add(i, i)
  ROOT v = (s32[], f32[2,3]) tuple(j, x) }
cond { u = (s32[], f32[2,3]) parameter(0)
  k = s32[] get-tuple-element(u), index=0
  n = s32[] constant(9)
  ROOT l = pred[] compare(k, n), direction=LT }
ENTRY e {
  p = f32[2,3] parameter(0)
  q = f32[3,4] parameter(1)
  r = s32[2,1] parameter(2)
  z = f32[] parameter(3)
  s = s32[] parameter(4)
  im = f32[1,4,4,2] parameter(5)
  ke = f32[3,3,2,5] parameter(6)
  sq = f32[3,3] parameter(7)
  ch = pred[] parameter(8)
  vec = f32[2] parameter(9)
  constant.1 = f32[2,2] constant({{1,2},{3,4}})
  iota.1 = s32[4] iota(), iota_dimension=0
  negate.1 = f32[2,3] negate(p)
  add.1 = f32[2,3] add(p, negate.1)
  select.1 = f32[] select(ch, z, z)
  broadcast.1 = f32[2,3] broadcast(z), dimensions={}
  broadcast.2 = f32[5,2,3] broadcast(p), dimensions={1,2}
  transpose.1 = f32[3,2] transpose(p), dimensions={1,0}
  reverse.1 = f32[2,3] reverse(p), dimensions={0}
  concatenate.1 = f32[4,3] concatenate(p, p), dimensions={0}
  slice.1 = f32[1,3] slice(p), slice={[0:1], [0:3]}
  pad.1 = f32[4,3] pad(p, z), padding=1_1x0_0
  dynamic-slice.1 = f32[1,3] dynamic-slice(p, s, s), dynamic_slice_sizes={1,3}
  dynamic-update-slice.1 = f32[2,3] dynamic-update-slice(p, dynamic-slice.1, s, s)
  reduce.1 = f32[2] reduce(p, z), dimensions={1}, to_apply=add
  reduce-window.1 = f32[1,3] reduce-window(p, z), window={size=2x1}, to_apply=add
  map.1 = f32[2,3] map(p, p), dimensions={0,1}, to_apply=add
  sort.1 = f32[2,3] sort(p), dimensions={1}, to_apply=less
  gather.1 = f32[2,3] gather(p, r), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0},
    index_vector_dim=1, slice_sizes={1,3}
  scatter.1 = f32[2,3] scatter(p, r, p), update_window_dims={1}, inserted_window_dims={0},
    scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=add
  select-and-scatter.1 = f32[2,3] select-and-scatter(p, reduce-window.1, z), window={size=2x1}, select=less, scatter=add
  dot.1 = f32[2,4] dot(p, q), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  convolution.1 = f32[1,2,2,5] convolution(im, ke), window={size=3x3}, dim_labels=b01f_01io->b01f
  cholesky.1 = f32[3,3] cholesky(sq), lower=true
  triangular-solve.1 = f32[3,3] triangular-solve(sq, sq), left_side=true, lower=true, transpose_a=NO_TRANSPOSE
  complex.1 = c64[2,3] complex(p, p)
  fft.1 = c64[2,3] fft(complex.1), fft_type=FFT, fft_length={3}
  rng.1 = f32[2] rng(z, z), distribution=rng_uniform
  get-dimension-size.1 = s32[] get-dimension-size(p), dimensions={0}
  tuple.1 = (s32[], f32[2,3]) tuple(s, p)
  while.1 = (s32[], f32[2,3]) while(tuple.1), condition=cond, body=body
  get-tuple-element.1 = f32[2,3] get-tuple-element(while.1), index=1
  call.1 = f32[2,3] call(p), to_apply=negative
  conditional.1 = f32[2,3] conditional(ch, p, p), true_computation=negative, false_computation=same
  copy.1 = f32[2,3] copy(p)
  bitcast.1 = f32[3,2] bitcast(p)
  after-all.1 = token[] after-all()
  infeed.1 = ((f32[2]), token[]) infeed(after-all.1)
  outfeed.1 = token[] outfeed(p, after-all.1), outfeed_shape=f32[2,3]
  send.1 = (f32[2,3], u32[], token[]) send(p, after-all.1), channel_id=1
  send-done.1 = token[] send-done(send.1), channel_id=1
  partition-id.1 = u32[] partition-id()
  all-reduce.1 = f32[2,3] all-reduce(p), replica_groups={{0,1}}, to_apply=add
  all-gather.1 = f32[4,3] all-gather(p), replica_groups={{0,1}}, dimensions={0}
  all-to-all.1 = f32[2,3] all-to-all(p), replica_groups={{0,1}}, dimensions={0}
  custom-call.1 = f32[2,3] custom-call(p), custom_call_target="Sharding", sharding={replicated}
  ROOT root = (f32[2,3], f32[2]) tuple(add.1, reduce.1)
}
"""
PROTO = hlo_text_to_proto(TEXT)
_SHAPE, _DIMENSIONS, _WINDOW, _CALLED = 3, 14, 15, 38


def parts(data):
    """The fields of a message as (number, what is encoded)."""
    at, found = 0, []
    for field in fields(data):
        found.append((field.number, data[at : field.stop]))
        at = field.stop
    return found


def value(data, number):
    """The value of a length-delimited field."""
    return next(data[f.start : f.stop] for f in fields(data) if f.number == number and f.kind == BYTES)


def instruction(name):
    """The encoded instruction of a name."""
    for number, encoded in parts(PROTO):
        if number == 3:
            for inner, held in parts(value(encoded, 3)):
                if inner == 2 and value(value(held, 2), 1) == name.encode():
                    return value(held, 2)
    raise AssertionError(name)


def changed(name, change, data=PROTO):
    """The module with the instruction of a name changed."""
    out = []
    for number, encoded in parts(data):
        if number == 3:
            computation = [
                encode_field(2, change(value(held, 2)))
                if inner == 2 and value(value(held, 2), 1) == name.encode()
                else held
                for inner, held in parts(value(encoded, 3))
            ]
            encoded = encode_field(3, b"".join(computation))
        out.append(encoded)
    assert b"".join(out) != data
    return b"".join(out)


def put(number, *encoded):
    """Replaces a field, or leaves it out."""
    return lambda old: b"".join([held for n, held in parts(old) if n != number] + list(encoded))


def numbers(number, *values):
    return put(number, encode_packed(number, values))


def integer(number, new):
    return put(number, encode_number(number, new))


def message(number, data):
    return put(number, encode_field(number, data))


def like(number, name):
    """Takes a field of another instruction."""
    return lambda old: put(number, *[held for n, held in parts(instruction(name)) if n == number])(old)


def inside(number, change):
    """Changes the message that a field holds."""
    return lambda old: put(number, encode_field(number, change(value(old, number))))(old)


def ident(name):
    """The id of an instruction."""
    return varints(instruction(name), 35)[0]


def called(*names):
    """Calls what other instructions call."""
    return lambda old: numbers(_CALLED, *[number for name in names for number in varints(instruction(name), _CALLED)])(
        old
    )


def operands(*names):
    return lambda old: numbers(36, *map(ident, names))(old)


FAULTS = {
    # name: instruction, what is changed, what the error says
    "one operand too few": ("add.1", operands("p"), "it has 1 operands, and add takes 2"),
    "an operand of other sizes": ("add.1", operands("p", "q"), r"it takes f32\[3,4\] to f32\[2,3\]"),
    "a tuple for an array": ("negate.1", operands("tuple.1"), r"it takes .*s32\[\], f32\[2,3\].*, no array"),
    "an array where a tuple is": ("negate.1", like(_SHAPE, "tuple.1"), "it gives .*, no array"),
    "a constant of another size": ("constant.1", like(_SHAPE, "negate.1"), "literal|shape"),
    "iota along no dimension": ("iota.1", numbers(_DIMENSIONS, 1), r"its dimensions \[1\] are not one below 1"),
    "iota along minus one": ("iota.1", numbers(_DIMENSIONS, (1 << 64) - 1), "are not one below 1"),
    "broadcast of too few dimensions": (
        "broadcast.2",
        numbers(_DIMENSIONS, 1),
        r"its dimensions \[1\] are not those of",
    ),
    "broadcast to a dimension too high": ("broadcast.2", numbers(_DIMENSIONS, 1, 3), "are not all below 3"),
    "broadcast to one dimension twice": ("broadcast.2", numbers(_DIMENSIONS, 1, 1), "have one twice"),
    "transpose by no permutation": ("transpose.1", numbers(_DIMENSIONS, 0, 0), "are no permutation"),
    "transpose to other sizes": ("transpose.1", like(_SHAPE, "negate.1"), r"it takes f32\[2,3\] to f32\[2,3\] by"),
    "reverse of a dimension too high": ("reverse.1", numbers(_DIMENSIONS, 7), "are not all below 2"),
    "concatenate along none": ("concatenate.1", numbers(_DIMENSIONS, 2), "are not one below 2"),
    "concatenate of other ranks": ("concatenate.1", operands("p", "broadcast.2"), "differ in their dimensions"),
    "slice without its limits": ("slice.1", put(17), "it takes a slice of 0 dimensions"),
    "pad without its sizes": ("pad.1", put(21), "it has no padding"),
    "pad with an array": ("pad.1", operands("p", "p"), "it pads with .*, no scalar"),
    "dynamic-slice without its starts": ("dynamic-slice.1", operands("p", "s"), "it has 1 scalars to say where"),
    "dynamic-slice of other sizes": ("dynamic-slice.1", numbers(20, 2, 3), r"it takes \[2, 3\] from"),
    "dynamic-update-slice of another rank": ("dynamic-update-slice.1", operands("p", "z", "s", "s"), "it puts .* into"),
    "reduce of a dimension too high": ("reduce.1", numbers(_DIMENSIONS, 5), "are not all below 2"),
    "reduce from an array": ("reduce.1", operands("p", "p"), "it starts from .*, no scalar"),
    "reduce with an odd operand": ("reduce.1", operands("p", "z", "z"), "it has 3 operands"),
    "reduce without a computation": ("reduce.1", put(_CALLED), "it calls 0 computations, not 1"),
    "reduce with a computation on arrays": ("reduce.1", like(_CALLED, "call.1"), "negative has 1 parameters, not 2"),
    "a window of one dimension": (
        "reduce-window.1",
        inside(_WINDOW, lambda w: encode_field(1, value(w, 1))),
        "its window has 1 dimensions, not 2",
    ),
    "a window that makes another shape": (
        "reduce-window.1",
        inside(_WINDOW, lambda w: encode_field(1, integer(1, 1)(value(w, 1))) * 2),
        r"and its window makes \[2, 3\] of",
    ),
    "a window that is not there": ("reduce-window.1", put(_WINDOW), "it has no window"),
    "map over one of two dimensions twice": ("map.1", numbers(_DIMENSIONS, 0, 0), "have one twice"),
    "sort along none": ("sort.1", numbers(_DIMENSIONS, 2), "are not one below 2"),
    "sort by a sum": ("sort.1", like(_CALLED, "reduce.1"), r"add gives f32\[\], not pred"),
    "gather without its numbers": ("gather.1", put(33), "it has no dimension numbers"),
    "gather of too few sizes": ("gather.1", numbers(34, 1), "it takes slices of 1 dimensions"),
    "gather from a dimension too high": ("gather.1", inside(33, numbers(2, 9)), r"its operand dimensions \[9\]"),
    "scatter to a dimension too high": ("scatter.1", inside(48, numbers(2, 9)), r"its operand dimensions \[9\]"),
    "scatter of an even number": ("scatter.1", operands("p", "r", "p", "p"), "it has 4 operands"),
    "select-and-scatter by a sum": (
        "select-and-scatter.1",
        called("reduce.1", "reduce.1"),
        r"add gives f32\[\], not pred",
    ),
    "dot along a dimension too high": ("dot.1", inside(30, numbers(1, 2)), r"contracting and batch dimensions \[2\]"),
    "dot along more on the left": ("dot.1", inside(30, put(2)), "another number of dimensions left than right"),
    "convolution of no permutation": ("convolution.1", inside(16, integer(7, 1)), "are no permutation"),
    "cholesky of a vector": ("cholesky.1", operands("vec"), "no matrix"),
    "triangular-solve of an unknown kind": (
        "triangular-solve.1",
        inside(59, integer(4, 9)),
        "the unknown kind of transposition 9",
    ),
    "fft of an unknown kind": ("fft.1", integer(31, 9), "it is of the unknown kind 9"),
    "fft of no lengths": ("fft.1", put(32), "it has 0 lengths"),
    "rng of an unknown distribution": ("rng.1", integer(23, 7), "an unknown distribution"),
    "the size of a dimension too high": ("get-dimension-size.1", numbers(_DIMENSIONS, 2), "are not one below 2"),
    "an element that is not there": ("get-tuple-element.1", integer(13, 7), "it takes element 7 of"),
    "a huge element": ("get-tuple-element.1", integer(13, 1 << 31), "it takes element 2147483648 of"),
    "an element of another type": ("get-tuple-element.1", integer(13, 0), r"its result is f32\[2,3\], not s32\[\]"),
    "a tuple of too few": ("tuple.1", operands("s"), "it has 1 operands, and gives"),
    "a tuple in another order": ("tuple.1", operands("p", "s"), "its operand 0 is"),
    "while without a body": ("while.1", put(_CALLED), "it calls 0 computations, not 2"),
    "while of another carry": ("while.1", operands("p"), "its result is"),
    "call with too many operands": ("call.1", operands("p", "p"), "negative has 1 parameters, and is given 2"),
    "call with another operand": ("call.1", operands("q"), "operand 0 of negative is"),
    "a branch too few": ("conditional.1", operands("ch", "p"), "it has 2 operands for 2 branches"),
    "a float that chooses": ("conditional.1", operands("z", "p", "p"), "chooses between its 2 branches"),
    "no branch": ("conditional.1", put(_CALLED), "it calls no computation"),
    "copy of another shape": ("copy.1", operands("q"), "its operand is"),
    "bitcast without a layout": ("bitcast.1", inside(_SHAPE, put(5)), "without a layout"),
    "after-all of an array": ("after-all.1", operands("p"), "no token"),
    "infeed without a token": ("infeed.1", operands("p"), "not values and a token"),
    "outfeed of another shape": ("outfeed.1", operands("q", "after-all.1"), "what it sends is"),
    "outfeed of no shape": ("outfeed.1", put(29), "it has no shape of what it sends"),
    "send without a token": ("send.1", operands("p", "p"), "it has no token"),
    "an end without a beginning": ("send-done.1", operands("p"), "which no transfer gives"),
    "partition-id of another type": ("partition-id.1", like(_SHAPE, "s"), r"it gives s32\[\], not u32\[\]"),
    "all-reduce without a computation": ("all-reduce.1", put(_CALLED), "it calls 0 computations"),
    "all-reduce of another type": ("all-reduce.1", like(_SHAPE, "q"), "its result is"),
    "all-gather along none": ("all-gather.1", numbers(_DIMENSIONS, 5), "are not one below 2"),
    "all-to-all along none": ("all-to-all.1", numbers(_DIMENSIONS, 5), "are not one below 2"),
    "a member twice": ("all-reduce.1", put(49, encode_field(49, encode_packed(1, [0, 0]))), "replica group"),
    "a member out of range": (
        "all-reduce.1",
        put(49, encode_field(49, encode_packed(1, [0, 1 << 40]))),
        "out of range",
    ),
    "an unknown precision": ("dot.1", message(51, encode_packed(1, [9, 0])), "its precision is of an unknown kind"),
    "an unknown algorithm": ("dot.1", message(51, encode_number(2, 99)), "its precision is of an unknown algorithm"),
    "a hint without a name": (
        "copy.1",
        message(68, encode_field(1, encode_field(2, b"x"))),
        "a frontend attribute without a name",
    ),
    "a sharding of an unknown type": (
        "custom-call.1",
        message(40, encode_number(1, 99)),
        "its sharding is of the unknown type 99",
    ),
    "replicated in part": ("copy.1", message(61, encode_packed(1, [1, 1, 1])), "whether they are replicated"),
    "an alias of no operand": (
        "custom-call.1",
        put(74, encode_field(74, encode_number(2, 5))),
        "the buffer of operand 5",
    ),
    "an alias in no tuple": ("custom-call.1", put(74, encode_field(74, encode_packed(1, [3]))), "the buffer of output"),
    "a computation that is not there": ("call.1", numbers(_CALLED, 999), "999"),
    "an operand that is not there": ("negate.1", numbers(36, 999999), "999999"),
    "an operand that comes later": ("negate.1", operands("add.1"), "add.1|later|circle|itself|before"),
    "an element type that is none": ("negate.1", inside(_SHAPE, integer(2, 250)), "type|250"),
    "a size below zero": ("negate.1", inside(_SHAPE, numbers(3, (1 << 64) - 2, 3)), "size|-2|dimension"),
    "a layout of no permutation": ("negate.1", inside(_SHAPE, inside(5, numbers(1, 7, 0))), "layout|permutation|minor"),
}


def test_the_module_is_whole():
    # All that follows has exactly one thing wrong, since this has nothing.
    guard(Model(PROTO, DEFAULT_LIMITS.nesting), DEFAULT_LIMITS)


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_is_named_with_its_place(kind):
    name, change, said = FAULTS[kind]
    with pytest.raises(FormatError, match=said) as caught:
        unlower.load(changed(name, change))
    assert caught.value.where is not None and "computation e" in caught.value.where
    assert f"instruction {name}" in caught.value.where
    assert caught.value.mend


def test_an_instruction_without_an_opcode_is_counted():
    with pytest.raises(FormatError, match=r"its instruction \d+ has no opcode\n  where: computation e"):
        unlower.load(changed("negate.1", put(2)))
