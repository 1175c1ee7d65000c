"""Ways to damage a file: bytes, protobuf fields, tokens of text. All of them depend on the random generator alone."""

import re

from unlower.readers.wire import encode_varint

TEXT = re.compile(rb"[\w.%@#!$\-]+|\s+|.", re.DOTALL)
NUMBERS = (
    0,
    1,
    -1,
    2,
    3,
    7,
    15,
    16,
    31,
    63,
    64,
    127,
    128,
    255,
    1 << 16,
    (1 << 31) - 1,
    1 << 31,
    1 << 32,
    (1 << 63) - 1,
    -(1 << 63),
)


def kind_of(name):
    """Which mutations make sense for a seed of that name."""
    if "proto" in name:
        return "proto"
    return "text" if name.endswith("text") else "bytes"


def mutate(random, name, seeds):
    """Returns what was done, and the bytes."""
    data, kind = seeds[name], kind_of(name)
    raw = random.random() < (1.0 if kind == "bytes" else 0.25)
    count = random.choice((1, 1, 1, 2, 3, 5))
    if raw:
        how = random.choice(RAW)
        for _ in range(1 if how is truncate else count):
            data = how(random, data)
        return f"raw {how.__name__} {count}", data
    others = [other for other in seeds if kind_of(other) == kind]
    other = seeds[random.choice(others)]
    if kind == "proto":
        for _ in range(count):
            data = structured(random, data, other)
        return f"structure {count}", data
    tokens, pool = TEXT.findall(data), TEXT.findall(other)
    for _ in range(count):
        token(random, tokens, pool)
    return f"tokens {count}", b"".join(tokens)


# --- bytes


def truncate(random, data):
    return data[: random.randrange(len(data))]


def flip(random, data):
    changed = bytearray(data)
    at = random.randrange(len(changed))
    changed[at] = random.choice((changed[at] ^ 1 << random.randrange(8), random.randrange(256)))
    return bytes(changed)


def insert(random, data):
    at = random.randrange(len(data) + 1)
    return data[:at] + bytes(random.randrange(256) for _ in range(random.choice((1, 2, 8)))) + data[at:]


def delete(random, data):
    at = random.randrange(len(data))
    return data[:at] + data[at + random.choice((1, 2, 8, 64)) :]


def duplicate(random, data):
    at, size = random.randrange(len(data)), random.choice((1, 8, 64, 256))
    return data[: at + size] + data[at:]


RAW = (truncate, flip, flip, insert, delete, duplicate)


# --- protobuf


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80 or shift > 63:
            return value, at


def encode(value):
    return encode_varint(value & (1 << 64) - 1)


def parse(data):
    """Returns the fields `(number, kind, value)` of a message; None if it is none."""
    fields, at = [], 0
    try:
        while at < len(data):
            key, at = varint(data, at)
            number, kind = key >> 3, key & 7
            if number == 0:
                return None
            if kind == 0:
                value, at = varint(data, at)
            elif kind == 2:
                size, at = varint(data, at)
                value, at = data[at : at + size], at + size
            elif kind in (1, 5):
                size = 8 if kind == 1 else 4
                value, at = data[at : at + size], at + size
            else:
                return None
            if at > len(data):
                return None
            fields.append((number, kind, value))
    except IndexError:
        return None
    return fields


def build(fields):
    out = []
    for number, kind, value in fields:
        out.append(encode(number << 3 | kind))
        out.append(encode(value) if kind == 0 else encode(len(value)) + value if kind == 2 else value)
    return b"".join(out)


def structured(random, data, other):
    """Walks down to a random message, and changes one of its fields."""
    fields = parse(data)
    if not fields:
        return flip(random, data) if data else data
    deep = [i for i, (_, kind, value) in enumerate(fields) if kind == 2 and len(value) > 1 and parse(value)]
    if deep and random.random() < 0.85:
        i = random.choice(deep)
        number, kind, value = fields[i]
        donor = [v for n, k, v in parse(other) or () if n == number and k == 2]
        fields[i] = (number, kind, structured(random, value, random.choice(donor) if donor else other))
        return build(fields)
    change_field(random, fields, other)
    return build(fields)


def change_field(random, fields, other):
    i = random.randrange(len(fields))
    number, kind, value = fields[i]
    what = random.choice(("value", "value", "value", "delete", "duplicate", "swap", "graft", "number"))
    if what == "value" and kind == 0:
        fields[i] = (number, kind, random.choice((*NUMBERS, value + 1, value - 1)))
    elif what == "value" and kind == 2:
        if value.isascii() and random.random() < 0.7 and len(value) < 20:
            changed = bytearray(value or b"\0")
            changed[random.randrange(len(changed))] = random.choice((0, 1, 2, 3, 4, 5, 7, 8, 13, 15, 31, 64, 100, 127))
            value = bytes(changed)
        else:
            value = random.choice(RAW)(random, value) if value else b"\1"
        fields[i] = (number, kind, value)
    elif what == "delete":
        del fields[i]
    elif what == "duplicate":
        fields.insert(random.randrange(len(fields) + 1), fields[i])
    elif what == "swap":
        j = random.randrange(len(fields))
        fields[i], fields[j] = fields[j], fields[i]
    elif what == "graft":
        donor = parse(other) or ()
        if donor:
            fields.insert(random.randrange(len(fields) + 1), random.choice(donor))
    else:
        fields[i] = (random.choice((1, 2, 3, 4, 5, 9, 13, 14, 36, 38, number + 1)), kind, value)


# --- text


def token(random, tokens, pool):
    """Changes one token."""
    i = random.randrange(len(tokens))
    for _ in range(8):
        if not tokens[i].isspace():
            break
        i = random.randrange(len(tokens))
    what = random.choice(("delete", "duplicate", "swap", "number", "number", "other", "other", "own", "line"))
    if what == "delete":
        del tokens[i]
    elif what == "duplicate":
        tokens.insert(i, tokens[i])
    elif what == "swap":
        j = random.randrange(len(tokens))
        tokens[i], tokens[j] = tokens[j], tokens[i]
    elif what == "number":
        digits = [j for j, t in enumerate(tokens) if t.isdigit()]
        if digits:
            tokens[random.choice(digits)] = str(random.choice(NUMBERS)).encode()
    elif what == "other":
        tokens[i] = random.choice(pool)
    elif what == "own":
        tokens[i] = random.choice(tokens)
    else:
        breaks = [j for j, t in enumerate(tokens) if b"\n" in t]
        if len(breaks) > 2:
            k = random.randrange(len(breaks) - 1)
            start, stop = breaks[k], breaks[k + 1]
            line = tokens[start:stop]
            if random.random() < 0.5:
                del tokens[start:stop]
            else:
                at = random.choice(breaks)
                tokens[at:at] = line
