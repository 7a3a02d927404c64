"""Other cuts than the policy's, for the bands of the Triton kernels that are slow: thrown out by arithmetic, then timed.

    python benchmarks/gpu_bands.py --predict                 without a GPU: a table for sm_80, sm_90 and sm_100
    python benchmarks/gpu_bands.py --json gpu-bands.json     with one, within four minutes; one object a line, as it is measured

A cut is predicted from registers, shared memory and bytes on their way. What multiprocessors must have on their way is taken
from the record of an H200: bfloat16's backward reached 0.87 to 0.91 of a copy's speed with 64 KiB a multiprocessor,
0.80 to 0.90 with 48, 0.77 with 36 to 40. Other cards need as much for each byte a second.

With a GPU, cuts take turns, a copy among them; a row says whether dx or y has today's bits, and how policy.py writes the cut.
Last come backwards of few rows as CUDA graphs: one launch, and two. With --sums today's cuts alone are timed, with sums in a
written order (LNGRAD_GPU_ORDERED=1) and without, a process of each in turns. What is for a GPU has never been run on one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from lngrad.gpu import policy
from lngrad.gpu.policy import Tiles
from lngrad.support.dtypes import bytes_of

# Direction, dtype, columns, and the share of a copy's speed that is wanted.
BANDS = (
    *(("backward", "bfloat16", N, 0.88) for N in (2304, 5120, 7168, 6144, 3072, 256)),
    *(("backward", "bfloat16", N, 0.80) for N in (16384, 12288)),
    *(("backward", "float32", N, 0.88) for N in (16384, 12288)),
    *(("forward", "bfloat16", N, 0.92) for N in (768, 512)),
)
# Direction, dtype, rows, columns: cuts that are timed with sums in a written order.
SUMS = tuple(
    (direction, dtype, -(-(1 << 26) // N), N)
    for direction, dtype, N in (
        *product(("backward", "forward"), ("bfloat16",), (256, 1024, 4096, 5120, 16384)),
        ("backward", "float32", 4096),
        ("forward", "float32", 4096),
    )
)
FEW = tuple(product((1, 16, 64, 128, 256, 512), (64, 768, 4096)))
ELEMENTS = 1 << 26
ROUNDS = 7
MOST = 8  # cuts of a band that are timed beside today's: compiling takes most of the time


@dataclass(frozen=True)
class Card:
    """What a prediction needs of a card: multiprocessors, GB/s of memory, GHz, shared bytes of one and of a program of it."""

    multiprocessors: int
    bandwidth: float
    clock: float
    shared_bytes: int

    @property
    def needed_bytes(self) -> float:
        """On their way, a multiprocessor: 64 KiB on an H200, in proportion to the bandwidth that each has."""
        return (64 << 10) * self.bandwidth / self.multiprocessors / (4800 / 132)


# An A100, an H200 and a B200, by their data sheets.
CARDS = {
    80: Card(108, 2039, 1.41, 163 << 10),
    90: Card(132, 4800, 1.755, 227 << 10),
    100: Card(148, 8000, 1.85, 227 << 10),
}


@dataclass(frozen=True)
class Prediction:
    """Of a cut on a card.

    Attributes:
        registers: Of a thread, a guess until it is compiled.
        programs: That run on a multiprocessor at once.
        bytes: On their way there.
        covered: Those bytes, as a share of what the card needs; above 1 it has enough.
        issued: The share of issue slots that the instructions of a tile take while its bytes pass, a guess.
        out: Why it can't win, or "".
    """

    registers: int
    programs: int
    bytes: int
    covered: float
    issued: float
    out: str


def predict(direction: str, dtype: str, N: int, cut: Tiles, card: Card, registers: int | None = None) -> Prediction:
    """What the arithmetic says of a cut."""
    backward, size = direction == "backward", bytes_of(dtype)
    threads = 32 * cut.warps
    each = cut.rows * cut.block * cut.pieces / threads  # elements of a thread
    # By the compiler's reports: in the backward dgamma, dbeta, gamma, dy·gamma and xhat of each element.
    registers = registers or int(24 + (6 if backward else 1.25 + (1 if size == 4 else 0)) * each)
    instructions = (170 if backward else 130) + (13.5 * cut.slabs if backward else 18) * each
    shared = cut.shared_bytes(dtype, False) if backward else 1024
    fits = min(65536 // (min(registers, 255) * threads), card.shared_bytes // (shared + 1024), 2048 // threads, 32)
    programs = min(fits, -(-cut.most_parts * cut.slabs // policy._MULTIPROCESSORS)) if backward else fits
    row = N * size / cut.slabs
    tile = (2 if backward else 1) * cut.rows * row
    # One stage loads, then computes: half of the time nothing is on its way. A forward's programs come and go likewise.
    on_their_way = tile * programs * (cut.stages - 1 if backward and cut.stages > 1 else 0.5)
    moved = (3 if backward else 2) * cut.rows * row
    cycles = moved / (card.bandwidth / card.multiprocessors / card.clock)
    issued = instructions * cut.warps / 4 / cycles
    out = ""
    if registers > 255 + (0 if backward else 40):
        out = "spills"
    elif programs == 0:
        out = "does not fit"
    elif backward and fits < -(-cut.most_parts * cut.slabs // policy._MULTIPROCESSORS) and cut.slabs == 1:
        out = "not all programs run at once"
    return Prediction(registers, programs, int(on_their_way), on_their_way / card.needed_bytes, issued, out)


def today(direction: str, dtype: str, N: int) -> Tiles:
    """The policy's own cut, of many rows."""
    cut = getattr(policy, direction)(1 << 20, N, dtype)
    assert isinstance(cut, Tiles)
    return cut


def cuts(direction: str, dtype: str, N: int) -> Iterator[Tiles]:
    """Today's cut, then every other one that could be thought of."""
    found = dict.fromkeys((today(direction, dtype, N),))
    padded, backward = 1 << (N - 1).bit_length(), direction == "backward"
    for most, rows, warps, slabs in product((1, 4, 8), (1, 2, 4, 8), (1, 2, 4, 8, 16), (1, 2)):
        block, pieces = policy._pieces(N, padded, most)
        block, threads = block // slabs, 32 * warps
        each = rows * block * pieces // threads
        too_few, sizes = rows * block < threads, range(8, 1 + (40 if backward else 64))
        if too_few or each not in sizes or (slabs == 2 and (N <= 8192 or not backward)):
            continue
        if not backward:
            found[Tiles(rows, block, pieces, 1, warps)] = None
            continue
        for parts, stages in product((1, 2, 3, 4, 6, 8) if slabs == 1 else (1,), (1, 2, 3, 4, 5)):
            found[Tiles(rows, block, pieces, slabs, warps, parts * policy._MULTIPROCESSORS, stages)] = None
    yield from found


def chosen(direction: str, dtype: str, N: int, card: Card) -> list[Tiles]:
    """Today's cut, and those that the arithmetic leaves: as many bytes as are needed first, then the fewest instructions."""
    first, *others = cuts(direction, dtype, N)
    now = predict(direction, dtype, N, first, card)
    enough = min(0.8 * card.needed_bytes, 1.25 * now.bytes) if direction == "backward" else 0
    left = [(predict(direction, dtype, N, cut, card), cut) for cut in others]
    left = [
        pair for pair in left if not pair[0].out and pair[0].bytes >= enough and pair[0].issued <= max(1, now.issued)
    ]
    left.sort(
        key=lambda pair: (-min(pair[0].covered, 1.25), pair[0].issued, -pair[0].programs, *asdict(pair[1]).values())
    )
    return [first, *(cut for _, cut in left)]


def as_row(direction: str, N: int, cut: Tiles) -> str:
    """The cut as policy.py writes a band."""
    elements = cut.rows * (1 << (N - 1).bit_length()) // cut.slabs
    if direction == "forward":
        return f"ForwardBand({N}, {elements}, {cut.warps})"
    parts = f"{cut.most_parts // policy._MULTIPROCESSORS} * _MULTIPROCESSORS"
    return f"Band({N}, {elements}, {cut.slabs}, {cut.warps}, {parts}, {cut.stages})"


def predictions(architectures: Sequence[int] = tuple(CARDS), most: int = 4) -> Iterator[dict[str, Any]]:
    """Today's cut and the best that are left, for each band and architecture."""
    for (direction, dtype, N, _), sm in product(BANDS, architectures):
        left = chosen(direction, dtype, N, CARDS[sm])
        for cut in left[: most + 1]:
            prediction = asdict(predict(direction, dtype, N, cut, CARDS[sm]))
            prediction |= {"covered": round(prediction["covered"], 2), "issued": round(prediction["issued"], 2)}
            names = {
                "direction": direction,
                "dtype": dtype,
                "N": N,
                "sm": sm,
                "today": cut is left[0],
                "left": len(left) - 1,
            }
            yield {**names, "cut": as_row(direction, N, cut), "block": cut.block, "pieces": cut.pieces, **prediction}


# --- With a GPU -------------------------------------------------------------------------------------------------------


@contextmanager
def instead(direction: str, cut: Tiles | None) -> Iterator[None]:
    """The policy's choice is this cut."""
    before = getattr(policy, direction)
    if cut is not None:
        setattr(policy, direction, lambda M, N, dtype: cut)
    try:
        yield
    finally:
        setattr(policy, direction, before)


def planned(direction: str, t: Any) -> Callable[[], Any]:
    """The call that the policy now plans."""
    from lngrad.api import execute
    from lngrad.core.problem import Problem
    from lngrad.gpu import plan

    if direction == "forward":
        problem, arrays = Problem.forward(t.x, t.gamma, t.beta)
        arrays = (*arrays, 1e-5)
    else:
        problem, arrays = Problem.backward(t.dy, t.x, t.mean, t.rstd, t.gamma)
    planned = plan.plan(problem, 1)
    return lambda: execute(planned, arrays)


def timed(bench: Any, until: float, bands: Sequence[tuple[str, str, int, float]] = BANDS) -> Iterator[dict[str, Any]]:
    """Each band's cuts in turns with today's and a copy; no band begins, and no cut is compiled, after `until`."""
    import torch

    from lngrad.bench.cases import Job, Settings
    from lngrad.bench.measure import interleave
    from lngrad.bench.runner import ROOFLINE
    from peer_libraries.cuda import tensors

    major, minor = torch.cuda.get_device_capability() if bench._device == "cuda" else (9, 0)
    card = CARDS[min(max(80, 10 * major + minor) // 10 * 10, 100)]
    for at, (direction, dtype, N, wanted) in enumerate(bands):
        if time.monotonic() > until:
            return
        last = time.monotonic() + (until - time.monotonic()) / (len(bands) - at)
        job = Job(-(-ELEMENTS // N), N, dtype, direction)
        t, calls, first = tensors(job, bench._device), {}, None
        summary: dict[str, dict[str, Any]] = {}
        for cut in chosen(direction, dtype, N, card)[: MOST + 1]:
            if first is not None and time.monotonic() > last:
                break
            name = f"{as_row(direction, N, cut)}, {cut.pieces} × {cut.block}"
            try:
                with instead(direction, cut):
                    call = planned(direction, t)
                result = call()[0]
            except Exception as reason:  # more shared memory or registers than there are
                yield {"what": "left out", "N": N, "cut": name, "why": f"{type(reason).__name__}: {str(reason)[:120]}"}
                continue
            first = result.clone() if first is None else first
            calls[name] = call
            summary[name] = {"today": not summary, "same bits": bool(torch.equal(result, first))}
        contest = bench.timed(Settings((), (), (dtype,), rounds=ROUNDS), "call", job, calls, {}, {})
        times = interleave(contest.calls, contest.rounds, contest.clock)
        copied = bench._copy_bytes / times[ROOFLINE].median
        moved = (3 if direction == "backward" else 2) * job.M * N * bytes_of(dtype)
        for name in sorted(summary, key=lambda name: times[name].median):
            seconds = times[name].median
            share = round(moved / seconds / copied, 3)
            row = {
                "direction": direction,
                "dtype": dtype,
                "N": N,
                "cut": name,
                **summary[name],
                "us": round(seconds * 1e6, 2),
            }
            yield {"what": "band", **row, "share": share, "wanted": wanted}


def graphed(call: Callable[[], Any], device: str) -> Callable[[], Any]:
    """The call as a CUDA graph; itself on a CPU."""
    import torch

    call()
    if device != "cuda":
        return call
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def few_rows(bench: Any, until: float, shapes: Sequence[tuple[int, int]] = FEW) -> Iterator[dict[str, Any]]:
    """One launch and two, as graphs, for policy._FEW_ROWS."""
    from lngrad.bench.cases import Job, Settings
    from lngrad.bench.measure import interleave
    from peer_libraries.cuda import tensors

    before = policy._FEW_ROWS
    for (M, N), dtype in product(shapes, ("bfloat16",)):
        if time.monotonic() > until:
            return
        job, calls = Job(M, N, dtype, "backward"), {}
        t = tensors(job, bench._device)
        try:
            for name, policy._FEW_ROWS in (("one launch", M), ("two", 0)):
                calls[name] = graphed(planned("backward", t), bench._device)
        finally:
            policy._FEW_ROWS = before
        contest = bench.timed(Settings((), (), (dtype,), rounds=ROUNDS), "call", job, calls, {}, {})
        times = interleave(contest.calls, contest.rounds, contest.clock)
        yield {"what": "few rows", "M": M, "N": N, "us": {name: round(times[name].median * 1e6, 2) for name in calls}}


def serve(jobs: Sequence[tuple[str, str, int, int]], device: str) -> None:
    """Say 0 when all is compiled; then, for each line that comes in, the microseconds of each job."""
    from lngrad.bench.cases import Job
    from peer_libraries.cuda import WARM_CALLS, EventClock, host_seconds, tensors

    clock, calls = EventClock() if device == "cuda" else host_seconds, []
    for direction, dtype, M, N in jobs:
        calls.append(planned(direction, tensors(Job(M, N, dtype, direction), device)))
        for _ in range(WARM_CALLS):
            calls[-1]()
    print(0, flush=True)
    for _ in sys.stdin:
        print(json.dumps([1e6 * clock(call, 1) for call in calls]), flush=True)


def sums(jobs: Sequence[tuple[str, str, int, int]] = SUMS, device: str = "cuda") -> Iterator[dict[str, Any]]:
    """Two processes, whose switch is off and on, in turns."""
    command = [sys.executable, __file__, "--serve", json.dumps(jobs), "--device", device]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    both = [subprocess.Popen(command, env=os.environ | {"LNGRAD_GPU_ORDERED": on}, **pipes) for on in "01"]  # type: ignore[call-overload]
    try:
        rounds: list[list[list[float]]] = [[], []]
        for process in both:
            process.stdout.readline()
        for _ in range(ROUNDS):
            for process, times in zip(both, rounds, strict=True):
                print(file=process.stdin, flush=True)
                times.append(json.loads(process.stdout.readline()))
    finally:
        for process in both:
            process.communicate()
    for at, (direction, dtype, M, N) in enumerate(jobs):
        off, on = (median(times[at] for times in times_of_round) for times_of_round in rounds)
        facts = {
            "direction": direction,
            "dtype": dtype,
            "M": M,
            "N": N,
            "us": round(off, 2),
            "ordered us": round(on, 2),
        }
        yield {"what": "sums", **facts, "ratio": round(on / off, 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--predict", action="store_true", help="print predictions and time nothing")
    parser.add_argument(
        "--most", type=int, default=4, help="predicted cuts of a band that are printed (default: %(default)s)"
    )
    parser.add_argument("--json", type=Path, help="add the lines to this file too")
    parser.add_argument(
        "--minutes", type=float, default=4.0, help="begin nothing after this time (default: %(default)s)"
    )
    parser.add_argument("--sums", action="store_true", help="time sums in a written order beside the compiler's")
    parser.add_argument("--serve", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--device", default="cuda", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.device)
        return

    def rows() -> Iterator[dict[str, Any]]:
        if options.sums:
            yield from sums()
            return
        if options.predict:
            yield from predictions(most=options.most)
            return
        from peer_libraries.cuda import OnDevice

        start, bench = time.monotonic(), OnDevice()
        yield from timed(bench, start + 50 * options.minutes)
        yield from few_rows(bench, start + 60 * options.minutes)

    for row in rows():
        print(json.dumps(row, ensure_ascii=False), flush=True)
        if options.json:
            with options.json.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
