"""Instructions of registers: each, for each type and mask, beside a statement in NumPy."""

from __future__ import annotations

import shutil
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from lngrad.testing import check_same_bits
from lngrad_ascend import ascendc, soc

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")

PROGRAM = Path(__file__).with_name("programs") / "registers.cpp"
F4, F2, B2 = np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
TYPES = (F4, F2, B2, np.dtype(np.int32), np.dtype(np.int16), np.dtype(np.uint8))
FLOATS = (F4, F2, B2)
RNG = np.random.default_rng(0)


def run(*instructions):
    """Run instructions: (number, type, bytes of a, b, d and the mask). Returns 256 bytes of each."""
    x = np.concatenate([np.frombuffer(bytes(data).ljust(1024, b"\0"), np.uint8) for _, _, data in instructions])
    y = np.zeros(256 * len(instructions), np.uint8)
    numbers = [number for which, kind, _ in instructions for number in (which, kind)]
    with soc.use("Ascend950"):
        kernel = ascendc.compile(PROGRAM, "registers")
        report = ascendc.launch(kernel, 1, x, y, tiling=bytes([0, 0, *divmod(len(instructions), 256), *numbers]))
    assert (report.warnings(), report.remarks()) == ((), ())
    return y.reshape(-1, 256)


def check(name, got, right):
    """Compare bits; any NaN is one."""
    got = np.where((got != got) & (right != right), right, got)
    try:
        check_same_bits(got, right)
    except AssertionError as reason:
        raise AssertionError(f"{name}: {reason}") from None


def drawn(dtype, lanes):
    """Random numbers of a type, among them special ones."""
    if dtype in FLOATS:
        x = RNG.standard_normal(lanes).astype(np.float32) * 8
        x[RNG.integers(0, lanes, 4)] = [0, -0.0, np.inf, 2]
        return x.astype(dtype)
    limits = np.iinfo(dtype)
    x = RNG.integers(limits.min, limits.max, lanes, dtype, endpoint=True)
    x[RNG.integers(0, lanes, 3)] = [limits.min, limits.max, 2]
    return x


def bits_of(on, size):
    """The mask's 32 bytes: the lowest bit of each lane."""
    return np.packbits(np.repeat(on, size) & (np.arange(256) % size == 0), bitorder="little").tobytes()


def wide(x):
    return x.astype(np.float32 if x.dtype in FLOATS else np.int64)


def sum_of_neighbours(x, count):
    x = x.reshape(-1, count)
    while x.shape[1] > 1:
        x = (wide(x[:, ::2]) + wide(x[:, 1::2])).astype(x.dtype)
    return x[:, 0]


def fused(a, b, c):
    """a b + c, rounded once."""
    if a.dtype in FLOATS:
        return (a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)).astype(a.dtype)
    return wide(a) * wide(b) + wide(c)


def extreme(largest):
    def statement(a, on):
        x, out = wide(a), np.zeros_like(a)
        chosen = np.flatnonzero(on)
        place = chosen[(np.argmax if largest else np.argmin)(x[chosen])]
        out[0] = a[place]
        out.view(f"u{a.itemsize}")[1] = place
        return out

    return statement


def arange(a, on):
    return (2 + np.arange(a.size)).astype(a.dtype)


# Lane by lane: (of a, b, d), in the lanes that are on; the others are 0, or d's.
ZEROING = {
    0: lambda a, b, d: wide(a) + wide(b),
    2: lambda a, b, d: wide(a) - wide(b),
    3: lambda a, b, d: np.maximum(wide(a), wide(b)),
    5: lambda a, b, d: wide(a) * wide(b),
    6: lambda a, b, d: wide(a) + 2,
    7: lambda a, b, d: np.maximum(wide(a), 2),
    8: lambda a, b, d: np.minimum(wide(a), 2),
    10: lambda a, b, d: np.full_like(wide(a), 2),
    11: lambda a, b, d: np.broadcast_to(wide(a)[0], a.shape),
    13: lambda a, b, d: 2 * (wide(a) < wide(b)),
    14: lambda a, b, d: 2 * (wide(a) >= 2),
    21: fused,
}
MERGING = {1: ZEROING[0], 4: lambda a, b, d: np.minimum(wide(a), wide(b)), 9: lambda a, b, d: wide(a)}
FLOAT = {
    40: lambda a, b, d: wide(a) / wide(b),
    43: lambda a, b, d: np.sqrt(np.abs(wide(a))),
    44: lambda a, b, d: -wide(a),
    45: lambda a, b, d: np.where(wide(a) > 0, wide(a), 0),
    46: lambda a, b, d: wide(a) * 2,
    47: lambda a, b, d: fused(d, a, b),
    48: lambda a, b, d: fused(a, np.full_like(a, 2), d),
    49: lambda a, b, d: np.abs((wide(a) - wide(b)).astype(a.dtype)),
    53: lambda a, b, d: np.floor(wide(a)),
}
NARROW = {  # a float's last bit is free
    41: lambda a, b, d: np.exp(a.astype(np.float64)).astype(F4),
    42: lambda a, b, d: np.log(np.abs(a.astype(np.float64))).astype(F4),
}
WHOLE = {
    60: lambda a, b, d: a & b,
    61: lambda a, b, d: a | b,
    62: lambda a, b, d: a ^ b,
    63: lambda a, b, d: ~a,
    64: lambda a, b, d: wide(a) << 3,
    65: lambda a, b, d: a >> 3,
    66: lambda a, b, d: np.abs(wide(a)),
}
# Of all lanes: (of a, b, on) or (of a, on).
ORDER = {
    12: lambda a, b, on: np.where(on, a, b),
    15: lambda a, b, on: np.stack([a, b], 1).reshape(-1)[: a.size],
    16: lambda a, b, on: np.concatenate([a, b])[::2],
    17: lambda a, b, on: np.concatenate([a[on], np.zeros(a.size - on.sum(), a.dtype)]),
    18: lambda a, b, on: arange(a, on),
    19: lambda a, b, on: extreme(True)(a, on),
    20: lambda a, b, on: extreme(False)(a, on),
}
SUMS = {50: lambda n, size: n, 51: lambda n, size: 32 // size, 52: lambda n, size: 2}  # lanes that one sum takes


def statements(dtype):
    """For each instruction of a type what dst is."""

    def lanewise(compute, merges):
        def statement(a, b, d, on):
            return np.where(on, np.asarray(compute(a, b, d)).astype(dtype), d if merges else np.zeros_like(d))

        return statement

    def summed(count):
        def statement(a, b, d, on):
            sums = sum_of_neighbours(np.where(on, a, np.zeros_like(a)), count(a.size, a.itemsize))
            return np.concatenate([sums, np.zeros(a.size - sums.size, dtype)])

        return statement

    own = {**FLOAT, **(NARROW if dtype != F4 else {})} if dtype in FLOATS else WHOLE
    yield from ((which, lanewise(compute, False)) for which, compute in (ZEROING | own).items())
    yield from ((which, lanewise(compute, True)) for which, compute in MERGING.items())
    yield from ((which, lambda a, b, d, on, f=f: f(a, b, on)) for which, f in ORDER.items())
    yield from ((which, summed(count)) for which, count in SUMS.items() if dtype in FLOATS)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_an_instruction_does_what_its_page_says(dtype):
    lanes = 256 // dtype.itemsize
    calls, expected = [], []
    for which, statement in statements(dtype):
        for on in (np.ones(lanes, bool), np.arange(lanes) < lanes // 3, RNG.random(lanes) < 0.5):
            a, b, d = drawn(dtype, lanes), drawn(dtype, lanes), drawn(dtype, lanes)
            if which in SUMS or which == 17:
                a = RNG.standard_normal(lanes).astype(dtype)
            data = a.tobytes() + b.tobytes() + d.tobytes() + bits_of(on, dtype.itemsize)
            calls.append((which, TYPES.index(dtype), data))
            expected.append(np.asarray(statement(a, b, d, on)).astype(dtype))
    for call, result, right in zip(calls, run(*calls), expected, strict=True):
        check(f"instruction {call[0]} of {dtype}", result.view(dtype), right)


def toward_zero(x, dtype):
    near = x.astype(dtype)
    return np.where(np.abs(near.astype(x.dtype)) > np.abs(x), np.nextafter(near, dtype.type(0)), near)


def whole(round_to, dtype):
    limits = np.iinfo(dtype)
    return lambda x: np.clip(round_to(x.astype(np.float64)), limits.min, limits.max).astype(dtype)


def away(x):
    return np.trunc(x + np.copysign(0.5, x))


def hifloat8():
    """Every finite code of hifloat8 without a sign, as its definition has it: the exponent's width, the exponent, the rest."""
    values = {}
    for code in sorted({*range(0x80)} - {0x6F}):
        text = f"{code:07b}"
        if code < 8:
            values[code] = 2.0 ** (code - 23) if code else 0.0
            continue
        dot, width = next(
            (d, w) for d, w in (("11", 4), ("10", 3), ("01", 2), ("001", 1), ("0001", 0)) if text.startswith(d)
        )
        field, rest = text[len(dot) : len(dot) + width], text[len(dot) + width :]
        exponent = 0 if not width else (-1 if field[0] == "1" else 1) * int("1" + field[1:], 2)
        values[code] = 2.0**exponent * (1 + int(rest, 2) / 2 ** len(rest))
    return values


HIF8 = hifloat8()


def to_hifloat8(x):
    codes, values = np.array(list(HIF8)), np.array(list(HIF8.values()))
    order = np.argsort(values)
    codes, values = codes[order], values[order]
    size = np.minimum(np.abs(x.astype(np.float64)), values[-1])
    place = np.minimum(np.searchsorted((values[1:] + values[:-1]) / 2, size, side="right"), codes.size - 1)  # halves up
    return (codes[place] | np.where(np.signbit(x) & (place > 0), 0x80, 0)).astype(np.uint8)


def from_hifloat8(x):
    values = [np.nan if code == 0x80 else HIF8.get(code & 0x7F, np.inf) for code in x.tolist()]
    return np.where(x & 0x80, F4.type(-1), F4.type(1)) * np.array(values, F4)


def nibbles(x):
    return np.stack([x & 15, x >> 4], -1)


E4M3, E5M2, E2M1 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float4_e2m1fn
U1 = np.dtype(np.uint8)
LIMITS = [float(getattr(ml_dtypes.finfo(B2), side)) for side in ("min", "max")]
# By number: the types of src and dst, the place of the narrower one in the wider, the numbers of a pair, and the statement.
CASTS = {
    0: (F4, F2, 0, 1, lambda x: np.clip(x, -65504, 65504).astype(F2)),
    1: (F4, F2, 1, 1, lambda x: toward_zero(np.clip(x, -65504, 65504), F2)),
    2: (F4, B2, 0, 1, lambda x: np.clip(x, *LIMITS).astype(B2)),
    3: (F2, F4, 0, 1, lambda x: x.astype(F4)),
    4: (F2, F4, 1, 1, lambda x: x.astype(F4)),
    5: (B2, F4, 0, 1, lambda x: x.astype(F4)),
    6: (F4, np.dtype(np.int32), 0, 1, whole(np.floor, np.int32)),
    7: (np.dtype(np.int32), F4, 0, 1, lambda x: x.astype(F4)),
    8: (F4, np.dtype(np.int16), 0, 1, whole(away, np.int16)),
    9: (F2, np.dtype(np.int8), 1, 1, whole(np.ceil, np.int8)),
    10: (np.dtype(np.int8), F2, 0, 1, lambda x: x.astype(F2)),
    11: (np.dtype(np.int32), U1, 3, 1, whole(np.rint, np.uint8)),
    12: (np.dtype(np.int32), np.dtype(np.int64), 0, 1, lambda x: x.astype(np.int64)),
    13: (F4, U1, 2, 1, lambda x: np.clip(x, -448, 448).astype(E4M3).view(U1)),
    14: (F4, U1, 0, 1, lambda x: x.astype(E5M2).view(U1)),
    15: (U1, F4, 0, 1, lambda x: x.view(E4M3).astype(F4)),
    16: (U1, F4, 1, 1, lambda x: x.view(E5M2).astype(F4)),
    17: (F4, U1, 0, 1, to_hifloat8),
    18: (U1, F4, 0, 1, from_hifloat8),
    19: (B2, U1, 0, 2, lambda x: np.clip(x.astype(F4), -6, 6).astype(E2M1).view(U1)),
    20: (U1, B2, 1, 2, lambda x: x.view(E2M1).astype(B2)),
    21: (F2, U1, 0, 2, lambda x: whole(np.rint, np.int8)(np.clip(x.astype(F4), -8, 7)).view(U1) & 15),
    22: (B2, U1, 0, 1, lambda x: (x.view(np.uint16) >> 7 & 255).clip(0, 254).astype(U1)),
    23: (F2, B2, 0, 1, lambda x: x.astype(F4).astype(B2)),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_cast_does_what_its_page_says():
    calls, expected = [], []
    for which, (source, target, part, twins, convert) in CASTS.items():
        x = drawn(source, 256 // source.itemsize)
        if which in (0, 1, 6, 8, 9, 13, 14, 17):
            x = (wide(x) * 2.0 ** RNG.integers(-12, 14, x.size)).astype(source)
        pairs = target if source != U1 else source
        sizes = [1 if twins == 2 and pairs is side else side.itemsize * twins for side in (source, target)]
        width = max(sizes)
        on = RNG.random(256 // width) < 0.7
        rows = x.view(np.uint8).reshape(-1, width)
        first = part * sizes[0] if sizes[0] < width else 0
        taken = np.ascontiguousarray(rows[:, first : first + sizes[0]])
        values = nibbles(taken[:, 0]).reshape(-1) if twins == 2 and source == U1 else taken.view(source).reshape(-1)
        results = convert(values)
        if twins == 2 and target == U1:
            results = (results[::2] | results[1::2] << 4).astype(U1)
        right = np.zeros((256 // width, width), np.uint8)
        first = part * sizes[1] if sizes[1] < width else 0
        right[:, first : first + sizes[1]] = np.ascontiguousarray(results).view(np.uint8).reshape(-1, sizes[1])
        right[~on] = 0
        calls.append(
            (which, 6, x.tobytes() + bytes(512) + np.packbits(np.repeat(on, width), bitorder="little").tobytes())
        )
        expected.append((target, right.reshape(-1)))
    for call, result, (target, right) in zip(calls, run(*calls), expected, strict=True):
        check(f"cast {call[0]}", result.view(target), right.view(target))
