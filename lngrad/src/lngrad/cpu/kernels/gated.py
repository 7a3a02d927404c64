"""Gates: rows times silu of a gate, on their way to the row loops or from them; and the gate's gradient.

The row loops take rows in the accumulator's dtype, in a thread's scratch or where they lie so: no loop knows of gates.
"""

from collections import namedtuple

from lngrad.cpu.jobs import GROUP, LANES
from lngrad.cpu.kernels.arithmetic import sigmoid, silu_slope, splat_at
from lngrad.cpu.kernels.functions import inlined, plain
from lngrad.cpu.kernels.simd import (
    LONG,
    fetch_group,
    gather,
    load_columns,
    offset,
    scatter_rows,
    size_of,
    step_of,
    store_columns,
)

# How many rows, how many rows on those lie that are fetched (0: none), and bytes from row to row of what gate_rows takes.
Span = namedtuple("Span", "rows ahead a gate to other dgate")


@inlined
def take(storage, address, kind, j, count):
    """Load as many columns as load_columns does, or the last `count` < LANES."""
    if count is None:
        return load_columns(storage, kind, address, j)
    return gather(storage, address, j, 1, count)


@inlined
def put(storage, address, kind, j, count, lanes):
    """Write what is as take has taken it; nothing where the address is None or 0."""
    if address is not None and address != 0:
        if count is None:
            store_columns(storage, kind, address, j, lanes)
        else:
            scatter_rows(storage, address, j, 1, count, lanes)


@inlined
def scaled(acc, lanes, gamma, rstd, kind, j, count):
    """y of lanes that are not centred; without gamma the lanes."""
    if gamma is None:
        return lanes
    return lanes * splat_at(acc, kind, rstd, 0) * take(acc, gamma, kind, j, count)


@inlined
def columns(source, storage, target, acc, a, gate, to, other, dgate, sigma, gamma, rstd, span, kind, j, count):
    if span.ahead != 0 and j % GROUP == 0:
        for k in range(j, j + step_of(acc, kind), GROUP):
            fetch_group(source, a + span.ahead * span.a, k)
            fetch_group(storage, gate + span.ahead * span.gate, k)
    lanes, z = take(source, a, kind, j, count), take(storage, gate, kind, j, count)
    if other is None:
        s = sigmoid(z)
        put(acc, sigma, kind, j, count, s)
        lanes = scaled(acc, lanes, gamma, rstd, kind, j, count)
    else:
        factor = take(target, other, kind, j, count)
        if sigma is None:
            s = sigmoid(z)
        else:
            s = take(acc, sigma, kind, j, count)
        factor = scaled(acc, factor, gamma, rstd, kind, j, count)
        put(storage, dgate, kind, j, count, lanes * factor * silu_slope(z, s))
    put(target, to, kind, j, count, lanes * (z * s))


@plain
def gate_rows(source, storage, target, acc, a, gate, to, other, dgate, sigma, gamma, rstd, span, n):
    """to = a·silu(gate), rows of n numbers; and dgate = a·other·silu'(gate) where there is `other`.

    Args:
        source, storage, target: Of a; of gate and dgate; of `to` and other.
        other: None: there is no dgate. dgate, to: 0: it is not wanted.
        sigma: None, or where sigmoid(gate) is kept, and with `other` was kept, in rows of n of the accumulator's dtype.
        gamma, rstd: None, or what `other` is multiplied with, and without it a.
    """
    for _ in range(span.rows):
        j = 0
        while j + step_of(acc, LONG) <= n:
            columns(source, storage, target, acc, a, gate, to, other, dgate, sigma, gamma, rstd, span, LONG, j, None)
            j += step_of(acc, LONG)
        while j + LANES <= n:
            columns(source, storage, target, acc, a, gate, to, other, dgate, sigma, gamma, rstd, span, None, j, None)
            j += LANES
        if j < n:
            columns(source, storage, target, acc, a, gate, to, other, dgate, sigma, gamma, rstd, span, None, j, n - j)
        a, gate, to, other = a + span.a, gate + span.gate, to + span.to, offset(other, span.other)
        dgate, sigma, rstd = offset(dgate, span.dgate), offset(sigma, n * size_of(acc)), offset(rstd, size_of(acc))
