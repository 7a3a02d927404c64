"""Plans fit the machine: what is fetched, streamed and taken together, for machines that are described here."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from itertools import product
from math import inf
from types import SimpleNamespace

import numpy as np
import pytest

import lngrad
import norms
from lngrad.core import calls, machine
from lngrad.core.arrays import ALIGNED_BYTES
from lngrad.core.problem import Problem
from lngrad.cpu import plan as cpu_plan
from lngrad.cpu import policy
from lngrad.cpu.jobs import BACKWARD_ROWS, FORWARD_ROWS, MIXED_COLUMNS
from lngrad.cpu.policy import (
    Machine,
    fetches_result,
    fits_second_level,
    group_bytes,
    lanes_are_rows,
    mixed_columns,
    result_streams,
    rows_ahead,
    rows_by_columns,
    rows_of,
    rows_together,
    scratch_bytes,
    side_by_side,
    takes_whole_rows,
)
from lngrad.cpu.processor_tuning import (
    INTEL,
    INTEL_AMX,
    INTEL_AVX2,
    OTHER,
    OTHER_LINES,
    TOGETHER,
    ZEN_3,
    ZEN_4,
    ZEN_5,
    Rung,
    tuning_of,
)
from lngrad.testing import Case, check_grads, check_same_bits, make_inputs

KIB, MIB = 1 << 10, 1 << 20
EPYC_7003 = Machine(32 * KIB, 512 * KIB, 32 * MIB, ZEN_3)
EPYC_9004 = Machine(32 * KIB, 1 * MIB, 32 * MIB, ZEN_4)
EPYC_9005 = Machine(48 * KIB, 1 * MIB, 32 * MIB, ZEN_5)
XEON = Machine(48 * KIB, 2 * MIB, 480 * MIB, INTEL)  # its virtual machine is told of all of the host's last level
XEON_AMX = XEON._replace(tuning=INTEL_AMX)
LAPTOP = Machine(32 * KIB, 256 * KIB, 8 * MIB)
MAKES = {
    "INTEL": INTEL, "INTEL_AMX": INTEL_AMX, "INTEL_AVX2": INTEL_AVX2, "OTHER": OTHER, "OTHER_LINES": OTHER_LINES,
    "ZEN_3": ZEN_3, "ZEN_4": ZEN_4, "ZEN_5": ZEN_5,
}  # fmt: skip


def forward(M, N, dtype=np.float32):
    return Problem.forward(np.empty((M, N), dtype), None, None)[0]


def backward(M, N, dtype=np.float32):
    x, statistic = np.empty((M, N), dtype), np.empty(M, np.float32)
    return Problem.backward(x, x, statistic, statistic, None)[0]


def streams(problem, here, threads=1):
    return result_streams(problem, problem.N * 4, threads, here)


@pytest.mark.parametrize(
    ("here", "stored", "streamed"),
    [
        (EPYC_9004, [forward(1500, 1024), backward(1000, 1024)], [forward(1600, 1024), backward(1024, 1024)]),
        (EPYC_9005, [forward(3000, 1024), backward(2000, 1024)], [forward(3100, 1024), backward(2100, 1024)]),
        (XEON, [forward(2000, 1024), backward(1024, 1024)], [forward(8192, 1024), backward(16384, 1024)]),
        (LAPTOP, [forward(512, 1024), backward(400, 1024)], [forward(1024, 1024), backward(512, 1024)]),
    ],
)
def test_results_go_past_the_caches_once_all_tensors_would_evict_them(here, stored, streamed):
    assert [streams(problem, here) for problem in (*stored, *streamed)] == [False, False, True, True]


def test_a_result_whose_rows_do_not_begin_on_lines_is_stored():
    assert not streams(forward(1 << 20, 37), XEON)
    assert not result_streams(forward(8192, 1024), 0, 1, XEON)


def test_several_threads_store_more_of_a_float32_forward_where_that_was_measured():
    """4096×768, 25.2 MB, 0.74 of the time so with 2 threads, but 1.25 with 1; the backward and 16 bits take longer."""
    stored = [streams(forward(M, 768), EPYC_9004, threads) for M in (4096, 4700, 4900) for threads in (1, 2)]
    assert stored == [True, False, True, False, True, True]
    assert streams(forward(4096, 768), EPYC_9005, threads=2)
    assert [streams(backward(M, 1024), EPYC_9004, threads=2) for M in (1300, 1400)] == [False, True]
    assert result_streams(forward(8192, 768, np.float16), 768 * 2, 2, EPYC_9004)


@pytest.mark.parametrize("threads", [1, 2])
def test_rows_are_fetched_ahead_from_where_they_are_not(threads):
    fits = 512 * threads, 256  # dy, x and dx of 1.5 MiB a thread
    assert rows_ahead(backward(*fits), threads, 8, XEON) == 0
    assert rows_ahead(backward(*fits), threads, 8, EPYC_9004) == 8
    assert rows_ahead(backward(*fits), threads, 8, LAPTOP) == 8
    assert rows_ahead(backward(100000, 64), threads, 8, XEON) == 32  # 8 KiB
    assert rows_ahead(backward(100000, 37), threads, 8, XEON) == 0


def test_a_float32_backward_on_intel_has_the_next_row_fetched_unless_rows_are_short():
    assert rows_ahead(backward(65536, 256), 1, 8, XEON) == rows_ahead(backward(4096, 768), 2, 4, XEON) == 1
    assert rows_ahead(backward(65536, 256), 1, 8, EPYC_9004) == 8
    assert rows_ahead(backward(65536, 256, np.float16), 1, 8, XEON) == 16
    assert rows_ahead(forward(65536, 256), 1, 8, XEON) == 8
    long = forward(64, 65536, np.float16)
    assert [rows_ahead(long, 1, 4, here) for here in (XEON, EPYC_9005, EPYC_9004)] == [1, 0, 4]
    assert rows_ahead(forward(256, 32768, np.float16), 1, 4, EPYC_9005) == 4
    assert [rows_ahead(forward(50000, 37), 1, 16, here) for here in (XEON, EPYC_9005, EPYC_9004)] == [55, 55, 0]
    assert [rows_ahead(forward(1024, 256), 1, 8, here) for here in (XEON, LAPTOP)] == [8, 8]
    assert rows_ahead(forward(512, 256), 1, 8, EPYC_9005) == 0 < rows_ahead(forward(512, 256), 1, 8, XEON)


def test_short_float32_rows_of_a_backward_are_fetched_as_far_on_as_they_go_together():
    assert [rows_ahead(backward(262144, 64), 1, 8, here) for here in (XEON, XEON_AMX)] == [32, 8]
    assert [rows_ahead(backward(262144, 64, np.float16), 1, 8, here) for here in (XEON, XEON_AMX)] == [64, 64]
    assert [rows_ahead(backward(65536, 256), 1, 8, here) for here in (XEON, XEON_AMX)] == [1, 1]
    assert [rows_ahead(forward(262144, 64), 1, 8, here) for here in (XEON, XEON_AMX)] == [32, 32]


def rows_there(problem, streamed=False, threads=1, here=EPYC_9004):
    return rows_of(problem, 2 if problem.dtype == "float16" else 4, threads, streamed, here)


def test_rows_are_taken_as_was_measured_on_the_make():
    beyond = [rows_there(backward(10000000 // N, N), streamed=True) for N in (64, 128, 256, 512, 1024, 2048, 5120)]
    assert beyond == [(8, 8), (4, 0), (2, 0), (1, 0), (4, 0), (2, 0), (2, 0)]
    assert [rows_there(backward(512, N)) for N in (64, 130, 1000, 1024, 1025)] == [
        (16, 0),
        (8, 0),
        (8, 0),
        (2, 0),
        (8, 0),
    ]
    assert [rows_there(forward(1 << 17, N, np.float16)) for N in (192, 512, 4096)] == [(8, 8), (4, 4), (1, 1)]
    assert [rows_there(forward(512, N)) for N in (128, 384, 1024, 4096)] == [(16, 16), (8, 8), (1, 1), (4, 0)]


def test_rows_that_the_second_level_holds_are_taken_by_tables_of_their_own():
    """Many 16-bit rows together, and nothing fetched; a table that there is none of is that for the last level."""
    for N in (64, 768, 2048):
        assert rows_there(forward(64, N, np.float16)) == (32, 0)
        assert rows_there(backward(64, N, np.float16)) == ((16, 0) if N < 2048 else (4, 0))
    assert [rows_there(forward(64, N)) for N in (64, 96, 128, 1024)] == [(32, 32), (32, 32), (16, 16), (8, 0)]
    assert [rows_there(forward(8192, N)) for N in (64, 96, 128, 1024)] == [(16, 0), (16, 0), (16, 0), (1, 0)]
    assert [rows_there(backward(64, N)) for N in (64, 1024)] == [rows_there(backward(900, N)) for N in (64, 1024)]
    assert rows_there(backward(300, 768, np.float16)) == (4, 4)
    assert rows_there(backward(300, 768, np.float16), threads=2) == (16, 0)


def test_what_the_last_level_nearly_holds_is_taken_as_if_it_did():
    """x is still there: 4900×768 float32 forward 1.5 times as fast so. Not so long rows: 1024×4096 0.75."""
    assert rows_there(forward(4900, 768), streamed=True) == rows_there(forward(512, 768)) == (4, 4)
    assert rows_there(forward(7000, 768), streamed=True) == (1, 0)
    assert rows_there(forward(1024, 4096), streamed=True) == (1, 0)


def test_float32_rows_that_nearly_fill_the_last_level_are_taken_as_from_memory():
    """If the result is stored beside them: 3750×768 forward 0.56 of the time with 1 thread, 5000×512 0.63 with 2."""
    assert [rows_there(problem) for problem in (forward(2700, 768), forward(3750, 768))] == [(4, 4), (1, 0)]
    assert rows_there(forward(7500, 768, np.float16)) == (8, 8)
    assert rows_there(backward(2700, 1100)) == rows_there(backward(900, 1100)) == (8, 0)


def test_what_was_not_measured_goes_by_the_rules():
    assert rows_there(forward(50000, 37)) == (32, 0)
    for here in (EPYC_9005, XEON, LAPTOP):
        together = rows_together("forward", 256, 4, here)
        problem = forward(8192, 256)
        assert rows_there(problem, here=here) == (together, rows_ahead(problem, 1, together, here))
        few = side_by_side(rows_together("backward", 256, 4, here), True, "backward", 256, 4, here)
        problem = backward(65536, 256)
        assert rows_there(problem, True, here=here) == (few, rows_ahead(problem, 1, few, here, True))


def test_the_tables_are_whole():
    """Every kind of call is measured or none is; lengths grow and the last entry takes all; a kernel takes so many rows."""
    for tuning in MAKES.values():
        kinds = [("forward", tuning.forward), ("forward", tuning.forward_16)]
        kinds += [("backward", tuning.backward), ("backward", tuning.backward_16)]
        assert len({bool(kind.measured.keys() - {"sum"}) for _, kind in kinds}) == 1
        for direction, kind in kinds:
            most = FORWARD_ROWS if direction == "forward" else BACKWARD_ROWS
            assert set(kind.measured) >= ({"last", "memory"} if kind.measured.keys() - {"sum"} else set())
            assert kind.together[-1] == Rung(inf, kind.together[-1].rows)
            assert all(1 <= rung.rows <= most for rung in kind.together)
            for table in kind.measured.values():
                lengths = [limit for limit, *_ in table]
                assert lengths == sorted(set(lengths))
                assert lengths[-1] == inf
                assert {together for _, together, _ in table} - {TOGETHER} <= {1, 2, 4, 8, 16, 32}
                assert max(together for _, together, _ in table) <= most


MACHINES = [
    *((name, Machine(48 * KIB, 2 * MIB, 480 * MIB, MAKES[name])) for name in ("INTEL", "INTEL_AMX", "INTEL_AVX2")),
    *((name, Machine(32 * KIB, MIB // 2, 32 * MIB, MAKES[name])) for name in ("OTHER", "OTHER_LINES", "ZEN_3")),
    ("ZEN_4", EPYC_9004),
    ("ZEN_5", EPYC_9005),
]
COLUMNS = (
    8, 15, 37, 64, 96, 128, 200, 256, 384, 500, 512, 768, 1000, 1024, 1536, 2048, 2304, 3072, 4096, 5120, 8192, 16384, 40000,
    65536, 131072,
)  # fmt: skip
SUM, DX_OF_SUM = ("x", "residual", "y", "total"), ("dy", "x", "dtotal", "dx")
CHOICES = {  # as they were before the tables, too
    "INTEL": "a7ffede1a3ac29ee", "INTEL_AMX": "97dead77c44636ed", "INTEL_AVX2": "3166b6a7d277a3cf",
    "OTHER": "b1bcff5305597c92", "OTHER_LINES": "c463f6ced67650d6", "ZEN_3": "7e3ed2b35cb49407",
    "ZEN_4": "3ee7e6e2493aca39", "ZEN_5": "14732e786ee351be",
}  # fmt: skip


def choices(machine):
    """A line for each of 3,600 calls: what is decided. If a hash of CHOICES differs, compare the lines of both commits."""
    for direction, tensors in (("forward", "xy"), ("forward", SUM), ("backward", "dxg"), ("backward", DX_OF_SUM)):
        for dtype, itemsize in (("bfloat16", 2), ("float32", 4), ("float64", 8)):
            for N, elements, threads in product(
                COLUMNS, (1 << 14, 1 << 17, 1 << 20, 3 << 20, 1 << 22, 1 << 24), (1, 2)
            ):
                operator = SimpleNamespace(direction=direction, tensors=tensors)
                problem = SimpleNamespace(M=max(1, elements // N), N=N, dtype=dtype, operator=operator)
                streamed = result_streams(problem, N * itemsize, threads, machine)
                together, ahead = rows_of(problem, itemsize, threads, streamed, machine)
                fetched = fetches_result(problem, threads, ahead, machine, streamed)
                by_columns = side_by_side(
                    rows_by_columns(N, itemsize, machine), streamed, direction, N, itemsize, machine
                )
                whole = takes_whole_rows(rows_together("backward", N, itemsize, machine), N, itemsize, threads, machine)
                decided = [int(number) for number in (streamed, together, ahead, fetched, by_columns, whole)]
                yield f"{direction} {len(tensors)} {dtype} {problem.M}x{N} {threads}: {decided}"


@pytest.mark.parametrize(("name", "machine"), MACHINES)
def test_the_choices_on_a_grid_are_those_of_before(name, machine):
    assert sha256("\n".join(choices(machine)).encode()).hexdigest()[:16] == CHOICES[name]


def test_a_backward_is_not_fetched_where_the_last_level_has_it():
    assert rows_ahead(backward(1024, 256), 1, 8, EPYC_7003) == 0
    assert rows_ahead(backward(4096, 384), 1, 8, EPYC_7003) == 8
    assert (
        rows_ahead(backward(1024, 384), 2, 8, EPYC_9005)
        == rows_ahead(backward(2000, 768, np.float16), 1, 4, EPYC_9005)
        == 0
    )
    assert rows_ahead(backward(1024, 1024), 1, 2, EPYC_9005) == 2
    assert [rows_ahead(backward(4096, N), 1, 2, EPYC_9005) for N in (2048, 2304, 65536)] == [2, 0, 0]
    assert rows_ahead(forward(1024, 1024), 1, 2, EPYC_9005) == 2


@pytest.mark.parametrize(
    ("vendor", "family", "model", "flags", "tuning"),
    [
        ("GenuineIntel", "6", "207", "avx2 avx512f amx_bf16", INTEL),
        ("GenuineIntel", "6", "167", "avx2 avx512f", INTEL),
        ("GenuineIntel", "6", "167", "avx2 avx512f amx_bf16", INTEL_AMX),
        ("AuthenticAMD", "25", "1", "avx2", ZEN_3),
        ("GenuineIntel", "6", "151", "avx2", INTEL_AVX2),
        ("AuthenticAMD", "23", "1", "avx2", OTHER),
        ("AuthenticAMD", "27", "1", "avx2 avx512f", OTHER_LINES),
        ("AuthenticAMD", "25", "17", "avx2 avx512f", ZEN_4),
        ("AuthenticAMD", "26", "2", "avx2 avx512f", ZEN_5),
        ("", "", "", "", OTHER),
    ],
)
def test_the_tuning_of_a_processor(vendor, family, model, flags, tuning):
    assert tuning_of({"vendor_id": vendor, "cpu family": family, "model": model, "flags": flags}) is tuning


def test_rows_of_a_backward_stay_in_the_first_cache():
    columns = 64, 384, 768, 1024, 4096, 65536
    together = {here: [rows_together("backward", N, 4, here) for N in columns] for here in (XEON, EPYC_9004, LAPTOP)}
    assert together[XEON] == [8, 8, 4, 2, 4, 2]  # of rows that do not stay, more pay where the second cache is large
    assert together[EPYC_9004] == together[LAPTOP] == [8, 4, 2, 2, 2, 2]
    assert [rows_together("backward", N, 4, EPYC_7003) for N in (*columns, 5000)] == [8, 4, 4, 2, 2, 2, 4]


def test_long_float32_rows_of_a_backward_go_together_in_fours_unless_they_crowd_each_other():
    columns = 2048, 2304, 4096, 5120, 8192, 10240, 11776, 16384, 65536
    assert [rows_together("backward", N, 4, EPYC_9005) for N in columns] == [2, 4, 2, 4, 2, 4, 4, 2, 2]
    assert [rows_together("backward", N // 2, 8, EPYC_9005) for N in columns] == [2, 4, 2, 4, 2, 4, 4, 2, 2]
    assert {rows_together("backward", 2 * N, 2, EPYC_9005) for N in columns} == {2}
    assert [rows_by_columns(N, 4, EPYC_9005) for N in columns] == [8, 8, 2, 8, 2, 8, 8, 2, 2]
    assert [rows_by_columns(N, 4, EPYC_9004) for N in (1024, 1250, 1536, 2048)] == [2, 8, 8, 2]
    assert {rows_by_columns(N, 4, here) for N in columns for here in (XEON, EPYC_7003)} == {8}


def test_a_backward_on_intel_fetches_what_stays_beside_rows_and_column_sums():
    shapes = (256, 65536, np.float32), (256, 65536, np.float16), (300, 50000, np.float32), (512, 32768, np.float16)
    together = [rows_together("backward", N, np.dtype(dtype).itemsize, XEON) for _, N, dtype in shapes]
    assert together == [2, 4, 2, 4]
    ahead = {
        here: [rows_ahead(backward(*shape), 1, rows, here) for shape, rows in zip(shapes, together, strict=True)]
        for here in (XEON, EPYC_9005)
    }
    assert ahead == {XEON: [0, 1, 1, 4], EPYC_9005: [0, 4, 0, 4]}
    assert [fits_second_level(rows, 65536, 4, XEON) for rows in (1, 2, 4)] == [True, True, False]
    assert not fits_second_level(2, 65536, 8, XEON)


def test_rows_that_threads_share_stay_in_their_second_caches_where_these_are_large_enough():
    sizes = [group_bytes(threads, here) // MIB for threads in (1, 2, 16) for here in (XEON, EPYC_9005, EPYC_7003)]
    assert sizes == [4, 4, 4, 2, 4, 4, 4, 4, 4]


@pytest.mark.parametrize(
    ("shape", "second_level", "threads", "task"),
    [
        ((8, 65536), MIB, 1, "columns"),
        ((8, 8192), MIB, 1, "rows"),
        ((8, 8192), MIB, 2, "columns"),
        ((64, 10240), MIB // 4, 1, "columns"),  # two rows do not stay; one would, as they are streamed
    ],
)
def test_one_thread_takes_few_long_rows_whole_where_they_fits_second_level(
    shape, second_level, threads, task, monkeypatch
):
    monkeypatch.setattr(cpu_plan, "this_machine", lambda: LAPTOP._replace(second_level=second_level))
    names = []
    monkeypatch.setattr(cpu_plan, "kernel_address", lambda name, *dtypes: names.append(name) or 1)
    cpu_plan.plan(backward(*shape), threads)
    assert names[0] == task


def test_one_thread_takes_all_long_rows_whole_where_that_was_measured():
    for here in (EPYC_9004, EPYC_9005):
        assert takes_whole_rows(2, 1 << 18, 4, 1, here)
        assert not takes_whole_rows(2, 1 << 18, 4, 2, here)
    assert not takes_whole_rows(2, 1 << 18, 4, 1, EPYC_7003)
    assert [takes_whole_rows(2, N, 4, 1, XEON) for N in (65536, 1 << 18)] == [True, False]


def test_lines_of_a_result_are_fetched_where_no_core_has_them_and_that_was_measured():
    for problem in (forward(4096, 256), backward(4096, 256), forward(4096, 768, np.float16)):
        assert fetches_result(problem, 1, 1, XEON_AMX, False)
        assert not fetches_result(problem, 1, 1, XEON, False)
        assert not fetches_result(problem, 1, 0, XEON_AMX, False)
        assert not fetches_result(problem, 1, 1, XEON_AMX, True)
    assert not fetches_result(forward(512, 384), 1, 1, XEON_AMX, False)
    assert not fetches_result(forward(1024, 256), 2, 1, XEON_AMX, False)
    in_16_bits = [(forward(4096, 768, np.float16), True), (forward(1024, 1024, np.float16), False)]
    for problem, fetched in (*in_16_bits, (forward(4096, 768), False), (backward(1024, 1024), False)):
        assert fetches_result(problem, 1, 1, EPYC_9005, False) == fetched


def test_bfloat16_columns_are_mixed_where_rows_are_whole_vectors_and_enough():
    problems = backward(512, 384), backward(512, 1000), backward(512, 1001), backward(64, 4096), forward(2048, 40)
    assert [mixed_columns(problem, "bfloat16", 1) for problem in problems] == [384, 960, 0, 0, 0]
    assert mixed_columns(backward(512, 384), "bfloat16", 4) == 0
    assert [mixed_columns(forward(512, N), "bfloat16", 1) for N in (1000, 1024, 1056)] == [0, 1024, 1024]
    assert {mixed_columns(problem, dtype, 1) for problem in problems for dtype in ("float16", "float32")} == {0}


@pytest.mark.parametrize("mask", [(True, True, True), (True, False, False), (False, True, True)])
@pytest.mark.parametrize(("rows", "columns"), [(300, 64), (300, 200), (6, 9000), (3, 16 * 512 + 72)])
@pytest.mark.parametrize("gamma_dtype", ["bfloat16", "float32"])
def test_the_order_of_columns_decides_no_bits(rows, columns, gamma_dtype, mask, norm, threads, monkeypatch):
    """Of a backward of rows and of one by columns, of gradients that are not all wanted, of a forward that is not in place."""
    inputs = make_inputs(Case((rows,), (columns,), gamma_dtype=gamma_dtype), "bfloat16", **norm)
    wanted = (mask[0] or "residual" in norm, *mask[1:])[: 3 if inputs.normalization.centred else 2]
    monkeypatch.setattr(cpu_plan, "mixed_columns", lambda *_: 0)
    in_order = mixed_results(inputs, wanted)
    monkeypatch.setattr(cpu_plan, "mixed_columns", lambda *_: columns - columns % MIXED_COLUMNS)
    check_same_bits(mixed_results(inputs, wanted), in_order)
    calls.forget()


def mixed_results(inputs, wanted):
    found = []
    for number in (1, 2):
        calls.forget()
        lngrad.set_num_threads(number)
        found += [*norms.forward(inputs), *norms.backward(inputs, output_mask=wanted)]
    return tuple(part for part in found if part is not None)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("columns", [40, 1100])
def test_what_is_fetched_decides_no_bits(columns, dtype, norm, monkeypatch):
    """Rows and the lines of results, in the middle and beyond the end; in place too."""
    inputs = make_inputs(Case((70,), (columns,)), dtype, **norm)
    found = []
    for ahead, to_result in ((0, False), (1, False), (3, True), (70, True)):
        calls.forget()
        monkeypatch.setattr(cpu_plan, "rows_of", lambda *facts, ahead=ahead: (rows_of(*facts)[0], ahead))
        monkeypatch.setattr(cpu_plan, "fetches_result", lambda *_, to_result=to_result: to_result)
        grads = norms.backward(inputs)
        check_grads(grads, inputs)
        taken = replace(inputs, x=inputs.x.copy())
        in_place = norms.forward(taken, out=norms.forward(inputs)._replace(y=taken.x))
        found.append((*norms.forward(inputs), *in_place, *grads))
    calls.forget()
    for results in found[1:]:
        check_same_bits(results, found[0])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize(
    ("columns", "streamed"), [(17, False), (192, False), (192, True), (1088, False), (1088, True), (1100, False)]
)
def test_how_many_rows_go_together_decides_no_bits(columns, streamed, dtype, norm, monkeypatch):
    """A forward that takes them one by one has code of its own.

    Streamed are large results whose rows begin on cache lines: of 192 and 1088 columns in every dtype, not of 17 and 1100.
    """
    inputs = make_inputs(Case((53,), (columns,)), dtype, **norm)
    assert inputs.x.nbytes >= ALIGNED_BYTES or not streamed
    found = []
    monkeypatch.setattr(policy, "streams", lambda *_: streamed)
    for together in (8, 4, 2, 1):
        calls.forget()
        monkeypatch.setattr(cpu_plan, "rows_of", lambda *_, together=together: (together, 1))
        found.append((*norms.forward(inputs), *norms.backward(inputs)))
    calls.forget()
    for results in found[1:]:
        check_same_bits(results, found[0])


def streamed_forward(N, here):
    return side_by_side(rows_together("forward", N, 4, here), True, "forward", N, 4, here)


def streamed_backward(N, here):
    return side_by_side(rows_together("backward", N, 4, here), True, "backward", N, 4, here)


def test_few_rows_are_streamed_side_by_side_where_a_store_is_less_than_a_cache_line():
    """Four float32 rows of 4 KiB took 3.2 times as long as one after the other (AMD EPYC 7003)."""
    columns = 64, 128, 256, 384, 512, 1024, 1536, 4096
    streamed = {here: [streamed_backward(N, here) for N in columns] for here in (EPYC_7003, EPYC_9004)}
    assert streamed == {EPYC_7003: [8, 4, 2, 2, 2, 1, 2, 1], EPYC_9004: [8, 8, 8, 4, 4, 2, 2, 2]}
    assert [streamed_forward(N, EPYC_7003) for N in columns] == [16, 8, 4, 2, 2, 1, 2, 1]
    assert [streamed_forward(N, EPYC_9004) for N in columns] == [16, 16, 16, 8, 8, 4, 2, 1]
    assert rows_ahead(backward(32768, 256), 1, 2, EPYC_7003, True) == 2


def test_few_float32_rows_are_streamed_side_by_side_where_that_was_measured():
    columns = 64, 96, 128, 192, 256, 384, 768, 1024, 3072, 4096
    assert [streamed_backward(N, EPYC_9005) for N in columns] == [8, 8, 4, 4, 2, 2, 1, 1, 4, 2]
    assert [streamed_forward(N, EPYC_9005) for N in columns] == [16, 16, 8, 16, 4, 8, 4, 1, 1, 1]
    assert [streamed_backward(N, XEON) for N in (*columns[:-2], 2048, 3072)] == [8, 8, 4, 4, 2, 2, 1, 1, 1, 4]
    assert [streamed_backward(N, XEON_AMX) for N in (*columns[:-2], 2048)] == [8, 8, 4, 4, 2, 2, 2, 2, 4]
    assert [streamed_forward(N, XEON) for N in columns] == [16, 8, 8, 4, 4, 2, 1, 1, 1, 1]
    assert [streamed_forward(N, XEON_AMX) for N in columns] == [16, 8, 8, 4, 4, 2, 1, 1, 1, 1]
    in_16_bits = [side_by_side(rows, True, "backward", 512, 2, EPYC_9005) for rows in (4, 8)]
    assert in_16_bits == [side_by_side(rows, False, "backward", 256, 4, EPYC_9005) for rows in (4, 8)] == [4, 8]


def test_more_of_the_shortest_rows_go_together():
    columns = 13, 16, 37, 63, 64, 127, 128
    for here in (EPYC_7003, EPYC_9005, XEON):
        assert [rows_together("forward", N, 4, here) for N in columns[:5]] == [8, 32, 32, 32, 16]
        assert [rows_together("forward", N, 2, here) for N in columns] == [8, 32, 32, 32, 32, 32, 16]
        assert [rows_together("backward", N, 4, here) for N in (37, 63, 64)] == [16, 16, 8]
        assert [rows_together("backward", N, 2, here) for N in (37, 127, 128)] == [16, 16, 8]


def test_the_forward_takes_four_rows_together_where_their_sums_go_side_by_side():
    columns = 512, 1280, 2048, 2560, 5120, 65536
    assert [rows_together("forward", N, 2, EPYC_9005) for N in columns] == [16, 4, 4, 4, 4, 4]
    assert [rows_together("forward", N, 2, EPYC_7003) for N in columns] == [16, 4, 4, 3, 1, 1]
    assert [rows_together("forward", N, 4, EPYC_9005) for N in columns] == [8, 4, 2, 1, 1, 1]
    assert [rows_together("forward", N, 4, XEON) for N in columns] == [4, 1, 1, 1, 1, 1]
    assert [rows_together("forward", N, 2, XEON) for N in columns] == [16, 4, 4, 4, 4, 4]
    assert [rows_together("forward", N, 4, EPYC_7003) for N in columns] == [8, 3, 2, 1, 1, 1]


def test_the_packed_rows_of_four_tensors_fit_the_second_cache():
    assert [scratch_bytes(here) // KIB for here in (XEON, EPYC_9004, EPYC_9005, LAPTOP)] == [256, 256, 256, 64]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], (32 * KIB, 512 * KIB, 16 * MIB)),
        (["L1 Data 48K", "L1 Instruction 64K", "L2 Unified 2048K"], (48 * KIB, 2 * MIB, 2 * MIB)),
        (["L1 Instruction 128K", "L1 Data 64K", "L2 Unified 1M", "L3 Unified 32768K"], (64 * KIB, MIB, 32 * MIB)),
        (["L1 Data 32768", "L2 Unified 512K"], (32 * KIB, 512 * KIB, 512 * KIB)),
    ],
)
def test_caches_are_read_as_the_system_tells_them(lines, expected, monkeypatch):
    """Before, os.sysconf was asked by a name that Python does not have, and every machine had 512 KiB."""
    monkeypatch.setattr(machine, "caches", lambda: lines)
    assert machine.cache_bytes.__wrapped__() == expected


def test_lanes_are_rows_where_that_was_measured_and_their_columns_fit():
    assert [lanes_are_rows(N, 2, 6272, EPYC_9005) for N in (96, 128, 129)] == [True, True, False]
    assert [lanes_are_rows(96, 4, step, EPYC_9005) for step in (12544, 16384)] == [True, False]
    assert [lanes_are_rows(96, itemsize, 8192, EPYC_9005) for itemsize in (2, 4)] == [True, False]
    assert not lanes_are_rows(96, 8, 25088, EPYC_9005)
    columns_and_itemsize = (85, 2), (86, 2), (64, 4)
    taken = [lanes_are_rows(N, itemsize, 6272, EPYC_9004) for N, itemsize in columns_and_itemsize]
    assert taken == [True, False, False]
    assert not any(lanes_are_rows(96, 2, 6272, here) for here in (XEON, LAPTOP))
