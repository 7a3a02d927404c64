"""Gates: rows in a thread's scratch, in the accumulator's dtype, times silu of a gate; and the gate's gradient."""

from lngrad.cpu.jobs import LANES
from lngrad.cpu.kernels.arithmetic import sigmoid, silu_slope, splat_at
from lngrad.cpu.kernels.functions import inlined, plain
from lngrad.cpu.kernels.simd import SHORT, gather, load_columns, scatter_rows, step_of, store_columns


@inlined
def take(acc, kind, address, j, count):
    """As many columns as load_columns has, or the last `count` < LANES."""
    if count is None:
        return load_columns(acc, kind, address, j)
    return gather(acc, address, j, 1, count)


@inlined
def put(acc, kind, address, j, count, lanes):
    if count is None:
        store_columns(acc, kind, address, j, lanes)
    else:
        scatter_rows(acc, address, j, 1, count, lanes)


@inlined
def gate_columns(acc, kind, a, gate, to, other, dgate, gamma, rstd, j, count):
    lanes, z = take(acc, kind, a, j, count), take(acc, kind, gate, j, count)
    sigma = sigmoid(z)
    if other is not None:
        factor = take(acc, kind, other, j, count)
        if gamma is not None:
            factor = factor * splat_at(acc, kind, rstd, 0) * take(acc, kind, gamma, j, count)
        put(acc, kind, dgate, j, count, lanes * factor * silu_slope(z, sigma))
    put(acc, kind, to, j, count, lanes * (z * sigma))


@plain
def multiply_gate(acc, a, gate, to, other, dgate, gamma, rstd, n):
    """to = a·silu(gate), n numbers; dgate = a·other·silu'(gate) unless other is None, times rstd·gamma unless gamma is None."""
    j = 0
    while j + step_of(acc, SHORT) <= n:
        gate_columns(acc, SHORT, a, gate, to, other, dgate, gamma, rstd, j, None)
        j += step_of(acc, SHORT)
    while j + LANES <= n:
        gate_columns(acc, None, a, gate, to, other, dgate, gamma, rstd, j, None)
        j += LANES
    if j < n:
        gate_columns(acc, None, a, gate, to, other, dgate, gamma, rstd, j, n - j)
