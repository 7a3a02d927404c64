"""Trees are found by probes and replayed; committed certificates of ours still hold."""

from __future__ import annotations

import math
import re
import runpy
import sys
from dataclasses import replace
from fractions import Fraction
from functools import partial, reduce
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from lngrad.check.certify import bits, certify, properties, sums
from lngrad.check.certify.bits import batch_invariance, repeatability
from lngrad.check.certify.measured import Certificate, different_bits
from lngrad.check.certify.properties import accuracy, effects, memory, number_range
from lngrad.check.certify.sums import column_order, product_sums, replay, row_order
from lngrad.check.certify.trees import Tree, Unrevealed, leaves, reveal, size_of, text_of, words
from lngrad.check.implementations import Implementation, NotApplicable, find
from lngrad.check.implementations.implementation import unprepared
from lngrad.check.reports.certificate import (
    read_certificate,
    write_certificate_html,
    write_certificate_json,
)
from lngrad.core.problem import Grads, RmsGrads
from lngrad.errors import BackendUnavailable
from lngrad.testing import check_same_bits

ROOT = Path(__file__).parents[3]
LARGE = 2.0**100


def sequence(first: int, number: int) -> Tree:
    tree: Tree = first
    for place in range(first + 1, first + number):
        tree = (tree, place)
    return tree


def joined(parts: list[Tree]) -> Tree:
    while len(parts) > 1:
        parts = [tuple(parts[at : at + 2]) if at + 1 < len(parts) else parts[at] for at in range(0, len(parts), 2)]
    return parts[0]


def lanes(width: int, number: int) -> Tree:
    found: list[Tree] = []
    for lane in range(width):
        tree: Tree = lane
        for step in range(1, number):
            tree = (tree, lane + step * width)
        found.append(tree)
    while len(found) > 1:
        half = len(found) // 2
        found = [(found[place], found[place + half]) for place in range(half)]
    return found[0]


TREES = {
    "40 rows in sequence": sequence(0, 40),
    "40 rows pairwise": joined(list(range(40))),
    "5 parts of 64 rows in sequence (others 44), then 5 of these pairwise": joined(
        [sequence(start, min(64, 300 - start)) for start in range(0, 300, 64)]
    ),
    "8 lanes, in each every 8th of the rows in sequence, then 8 of these by halves: each half added to the other, place by "
    "place": lanes(8, 5),
    "4 parts of 16 rows pairwise, then 4 of these in sequence": (
        ((joined(list(range(16))), joined(list(range(16, 32)))), joined(list(range(32, 48)))),
        joined(list(range(48, 64))),
    ),
    "2 parts of 20 rows in sequence, then 2 of these in sequence": (sequence(0, 20), sequence(20, 20)),
}


def probed(tree: Tree, n: int):
    def outside(pairs):
        terms = np.ones((n, len(pairs)))
        for column, (i, j) in enumerate(pairs):
            terms[i, column], terms[j, column] = LARGE, -LARGE
        return replay(tree, terms.astype(np.float32), np.dtype(np.float32)).tolist()

    return outside


@pytest.mark.parametrize("text", TREES)
def test_a_tree_is_revealed_from_its_sums_and_said_in_words(text):
    tree = TREES[text]
    n = size_of(tree)
    assert leaves(tree) == list(range(n))
    found = reveal(n, probed(tree, n))
    assert text_of(found) == text_of(tree)
    assert words(found, "rows") == text


def test_random_trees_are_revealed():
    rng = np.random.default_rng(0)
    for _ in range(30):
        parts: list[Tree] = list(range(int(rng.integers(2, 40))))
        n = len(parts)
        while len(parts) > 1:
            item, other = sorted(rng.choice(len(parts), 2, replace=False))
            second, first = parts.pop(other), parts.pop(item)
            parts.insert(0, tuple(sorted((first, second), key=lambda part: leaves(part)[0])))
        assert text_of(reveal(n, probed(parts[0], n))) == text_of(parts[0])


def test_a_sum_of_several_terms_at_once_is_a_node_with_as_many():
    # Three terms aligned and added at once, as matrix units do: what the largest absorbs is lost together.
    def outside(pairs):
        return [0.0 for _ in pairs]

    assert text_of(reveal(3, outside)) == "(0 1 2)"


def test_an_exact_sum_is_not_revealed():
    def outside(pairs):
        return [math.fsum([LARGE, -LARGE, *[1.0] * 6]) for _ in pairs]

    with pytest.raises(Unrevealed):
        reveal(8, outside)


def test_different_bits():
    assert different_bits(np.float32([1, 2]), np.float32([1, 2])) is None
    assert different_bits(np.float32([np.nan]), -np.float32([np.nan])) is None
    assert (
        different_bits(np.float32([0.0]), np.float32([-0.0]))
        == "1 of 1 elements, first at (0,): 0x00000000 against 0x80000000"
    )


def numpy_subject(wrong: bool = False) -> Implementation:
    """A kernel in NumPy, whose column sums are in sequence; with the mistake that a row's dx depends on the batch."""

    def backward(a):
        with np.errstate(all="ignore"):
            return gradients(a.dy, a.x, a.mean, a.rstd, a.gamma)

    def gradients(dy, x, mean, rstd, gamma):
        xhat, dxhat = (x - mean) * rstd, dy * gamma
        first = dxhat.mean(1, keepdims=True) + (np.float32(1e-7) * len(x) if wrong else 0)
        dx = rstd * (dxhat - first - xhat * (dxhat * xhat).mean(1, keepdims=True))
        return Grads(dx.astype(np.float32), np.add.accumulate(dy * xhat)[-1], np.add.accumulate(dy)[-1])

    return Implementation("numpy", unprepared(backward))


def test_a_kernel_whose_rows_depend_on_the_batch_has_a_counterexample():
    found = {difference.name: difference for difference in batch_invariance(numpy_subject(wrong=True), 1)}
    measured = found["dx, any batch size and place"]
    assert measured.holds is False
    assert "seed 0, row" in measured.counterexample
    assert " against 0x" in measured.counterexample
    assert all(measured.holds for measured in repeatability(numpy_subject(wrong=True), 2) if measured.holds is not None)


def test_the_order_of_numpy_s_accumulate():
    dbeta, dgamma = column_order(numpy_subject(), 50, 16)
    confirmed = "confirmed by replay: the same bits on 100 of 100 random inputs"
    assert dbeta.answer == f"50 rows in sequence; in float32, {confirmed}"
    assert dgamma.answer == f"50 rows in sequence; dy·xhat rounded, then added in float32, {confirmed}"


def test_a_fused_multiply_add_is_rounded_once():
    rng = np.random.default_rng(0)
    item, other, third = (
        rng.standard_normal(2000).astype(np.float32) * 2.0 ** rng.integers(-30, 30, 2000) for _ in range(3)
    )
    item, other, third = (values.astype(np.float32) for values in (item, other, third))
    expected = [
        float(Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c)))
        for a, b, c in zip(item, other, third, strict=True)
    ]
    terms, factors = np.stack([third, item]), np.stack([np.ones_like(other), other])
    got = replay((0, 1), terms, np.dtype(np.float32), factors)
    # float() of an exact fraction rounds to float64, and only near a tie of float32 twice: none is here.
    check_same_bits(got, np.float32(expected))


def test_how_a_kernel_rounds_products_is_told_by_replay():
    rng = np.random.default_rng(3)
    dy, x = (rng.standard_normal((40, 64)).astype(np.float32) for _ in range(2))
    mean, rstd = rng.standard_normal(40).astype(np.float32), 2.0 ** rng.integers(-2, 3, 40).astype(np.float32)
    found = dict(product_sums(sequence(0, 40), dy, x, mean, rstd))
    assert len({array.tobytes() for array in found.values()}) == len(found) == 3


def test_in_place_is_measured_where_there_are_outputs_to_give():
    def backward(a):
        grads = numpy_subject().backward(a)()
        if a.out is None:
            return grads
        target = a.out.dx
        target[...] = grads.dx if target is a.dy else np.nextafter(grads.dx, np.float32(9))
        return Grads(target, grads.dgamma, grads.dbeta)

    found = {
        difference.name: difference
        for difference in repeatability(Implementation("numpy", unprepared(backward), into=True), 1)
    }
    assert found["in place: dx in dy's memory"].holds is True
    wrong = found["in place: dx in x's memory"]
    assert wrong.holds is False
    assert wrong.counterexample.startswith("seed 3, 7×33: dx: 231 of 231 elements")
    without = {difference.name: difference for difference in repeatability(numpy_subject(), 1)}
    assert without["in place: dx in dy's memory"].answer == "does not apply: it takes no outputs"


def test_memory_beyond_the_results_is_seen(monkeypatch):
    monkeypatch.setattr(properties, "RESIDENT", (4096, 2304))
    monkeypatch.setattr(properties, "CALLS", 1)
    allocated, resident = memory(numpy_subject())
    assert allocated.facts is not None
    # xhat, dxhat and products of them in float32 are alive at once: some times x.
    assert min(allocated.facts["bytes"]) > 4 * 4 * 1024 * 1024
    if sys.platform == "linux":
        assert resident.facts is not None
        assert min(resident.facts["bytes"]) > 3 * 4 * 4096 * 2304  # pages that are there already do not count
    text = "not measured: what runs here is no device"
    assert [
        measured.answer for measured in memory(replace(numpy_subject(), elsewhere="what runs here is no device"))
    ] == [
        text,
        text,
    ]


def test_a_shape_that_a_kernel_does_not_take_is_left_out():
    def backward(a, multiple=8):
        if a.x.shape[1] % multiple:
            raise NotApplicable("N")
        return numpy_subject().backward(a)()

    found = repeatability(Implementation("numpy", unprepared(backward)), 2)
    assert [difference.trials for difference in found if difference.name == "run after run"] == [4]
    none = repeatability(Implementation("numpy", unprepared(partial(backward, multiple=1 << 20))), 2)
    assert none[0].answer == "not measured: it takes none of these calls"


def test_what_is_measured_of_any_kernel_goes_round(tmp_path):
    subject = numpy_subject()
    measured = (*accuracy(subject, 1), *number_range(subject), *effects(subject), *row_order(subject, 64))
    certificate = Certificate("numpy", "2", "a machine", "float32", measured)
    write_certificate_json(tmp_path / "c.json", certificate)
    assert read_certificate(tmp_path / "c.json").to_json() == certificate.to_json()
    write_certificate_html(tmp_path / "c.html", certificate)
    assert "<svg" in (tmp_path / "c.html").read_text("utf-8")


@pytest.mark.parametrize("norm", ["rms_norm", "gemma_rms_norm", "deep_norm"])
def test_a_certificate_of_another_norm(norm, monkeypatch):
    """The order of sums is that of layer normalization; a norm without beta has its bare sums in dgamma."""
    monkeypatch.setattr(sums, "REPLAYS", 3)
    monkeypatch.setattr(bits, "WIDTHS", (37,))
    monkeypatch.setattr(properties, "GROWTH", (64, 256))
    subject, last = replace(find("numpy_cpu"), norm=norm), "dbeta" if norm == "deep_norm" else "dgamma"
    measured = [*repeatability(subject, 2), *batch_invariance(subject, 1), *column_order(subject, 300, 64)]
    measured += [*row_order(subject, 64), *accuracy(subject, 1), *number_range(subject), *effects(subject)]
    found = {measured_.name: measured_ for measured_ in measured}
    assert all(measured_.holds for measured_ in measured if measured_.holds is not None)
    tree = "5 parts of 64 rows in sequence (others 44), then 5 of these pairwise; "
    assert found[f"{last} of 300×64 float32"].answer.startswith(tree)
    assert "the same bits on 3 of 3" in found["dgamma of 300×64 float32"].answer
    assert ("dbeta of 300×64 float32" in found) == ("N = 1" in found) == (last == "dbeta")
    assert found[f"subnormal dy in {last}"].answer == "kept"
    assert found["a NaN in dy"].answer == f"in its row of dx and its column of {last}, nowhere else"
    assert found["Σ dy·gamma·xhat over 64 columns float32"].answer.startswith("8 lanes, ")
    for name in ("constant rows", "x around 1e6, statistics given", "x around 1e30, statistics given"):
        error = float(re.findall(r"[0-9.]+e-[0-9]+|[0-9.]+", found[name].answer.replace("1e6", ""))[0])
        assert error < (4 if name == "constant rows" else 1e-6), found[name].answer


def test_the_mistakes_of_an_rms_norm_s_kernel_are_told():
    """One whose rows depend on the batch, and one that sums its columns backwards: as of layer normalization."""

    def backward(a, wrong=False):
        with np.errstate(all="ignore"):
            xhat, dxhat = a.x * a.rstd, a.dy * a.gamma
            first = np.float32(1e-6) * (len(a.x) if wrong else 0)
            dx = a.rstd * (dxhat - first - xhat * (dxhat * xhat).mean(1, keepdims=True))
        return RmsGrads(dx.astype(np.float32), np.add.accumulate((a.dy * xhat)[::-1])[-1])

    subject = Implementation("rms", unprepared(backward), norms=("rms_norm",), norm="rms_norm")
    (dgamma,) = column_order(subject, 50, 16)
    assert dgamma.answer.startswith(
        "50 rows in sequence, from the last to the first; dy·xhat rounded, then added in float32"
    )
    wrong = replace(subject, backward=unprepared(partial(backward, wrong=True)))
    found = {difference.name: difference for difference in batch_invariance(wrong, 1)}
    assert found["dx, any batch size and place"].holds is False


def test_a_certificate_of_what_computes_no_such_norm_is_refused():
    with pytest.raises(BackendUnavailable, match=r"^--impl: graph_v3 does not compute rms_norm"):
        certify("graph_v3", 1, norm="rms_norm")


OURS = ("numba_cpu", "numpy_cpu")


@pytest.mark.parametrize("name", OURS)
def test_a_certificate_of_ours_still_holds(name):
    committed = read_certificate(ROOT / "docs" / "certificates" / f"{name}.json")
    subject = find(name)
    measured = [*repeatability(subject, 2), *batch_invariance(subject, 1), *column_order(subject, 300, 64, threads=2)]
    measured += [item for item in accuracy(subject, 1) if item.holds is not None]
    old = {difference.name: difference for difference in committed.measured}
    for measured_ in measured:
        assert old[measured_.name].holds == measured_.holds, measured_
        if measured_.group == "The order of sums":
            assert old[measured_.name].answer == measured_.answer
    assert all(item.holds for item in committed.measured if item.holds is not None)


CERTIFIED = {path.stem for path in (ROOT / "docs" / "certificates").glob("*.json")}
SIMULATED = tuple(name for name in ("triton_gpu", "ascend_sim") if name in CERTIFIED)


@pytest.fixture(params=SIMULATED)
def simulated(request, monkeypatch):
    """A simulated backend, and what its certificate says by name; two replays of an order where that has a hundred."""
    monkeypatch.setattr(sums, "REPLAYS", 2)
    if request.param == "triton_gpu" and find_spec("triton"):
        import interpreted  # noqa: F401
    certificate = read_certificate(ROOT / "docs" / "certificates" / f"{request.param}.json")
    try:
        subject = find(request.param)
    except BackendUnavailable as reason:
        pytest.skip(str(reason))
    return subject, {difference.name: difference for difference in certificate.measured}


def test_a_certificate_of_a_simulated_backend_still_holds(simulated, monkeypatch):
    """A few calls of each promise; the page's own measurement takes minutes."""
    monkeypatch.setattr(bits, "SHAPES", ((7, 33), (65, 64)))
    monkeypatch.setattr(bits, "ALIGNMENTS", (0, 20))
    monkeypatch.setattr(bits, "WIDTHS", (37,))
    monkeypatch.setattr(bits, "BATCHES", (1, 5))
    subject, old = simulated
    dx = [measured for measured in batch_invariance(subject, 1) if measured.group.startswith("A row")]
    for array in [*repeatability(subject, 1), *dx]:
        assert old[array.name].holds == array.holds, array
    # Both add tile after tile, and no tree of halves.
    splits = "dgamma and dbeta of 64·2^k rows are the sums of their halves, bit by bit"
    assert all(measured.holds for measured in old.values() if measured.holds is not None and measured.name != splits)


@pytest.mark.slow
def test_the_order_of_a_simulated_backend_s_column_sums_is_the_certificate_s(simulated):
    """The tree of 300 rows, replayed on two random inputs; the certificate has a hundred."""
    subject, old = simulated
    for measured in column_order(subject, 300, 64):
        assert old[measured.name].answer == measured.answer.replace("2 of 2", "100 of 100")


@pytest.mark.parametrize("name", ["triton:somebody:backward", "ascendc:k.cpp:k", "cmd:./k {in} {out}"])
def test_the_memory_of_what_runs_elsewhere_is_not_measured(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "somebody.py").write_text("def backward(dy, x): ...\n")
    (tmp_path / "k").write_text("#!/bin/sh\n")
    (tmp_path / "k").chmod(0o755)
    (tmp_path / "k.cpp").write_text("__global__ __aicore__ void k(uint8_t* dy, uint8_t* dx) {}\n")
    if name.startswith("triton"):
        pytest.importorskip("triton")
        torch = pytest.importorskip("torch")
        if torch.cuda.is_available():
            pytest.skip("there is a GPU")
    subject = find(name)
    assert subject.simulated
    assert all(measured.answer.startswith("not measured: ") for measured in memory(subject))


def test_the_page_shows_the_committed_certificates():
    found = runpy.run_path(str(ROOT / "docs" / "certificates" / "certificates_page.py"))
    paths = [ROOT / "docs" / "certificates" / f"{name}.json" for name in found["NAMES"]]
    assert set((ROOT / "docs" / "certificates").glob("*.json")) <= set(paths)
    assert (ROOT / "docs" / "certificates.md").read_text("utf-8") == found["page"](
        [read_certificate(path) for path in paths]
    )


DEEP = {  # (the tree, the size of the smallest subtree with two places i < j)
    "2 parts of 500 rows in sequence, then 2 of these in sequence": (
        (sequence(0, 500), sequence(500, 500)),
        lambda i, j: 1000 if i < 500 <= j else j % 500 + 1,
    ),
    "1100 rows in sequence, from the last to the first": (
        reduce(lambda tree, place: (place, tree), range(1098, -1, -1), 1099),
        lambda i, j: 1100 - i,
    ),
}


@pytest.mark.parametrize("text", DEEP)
def test_a_sum_in_sequence_may_be_longer_than_python_recurses(text):
    """Two threads of torch add 500 rows each."""
    tree, size_shared = DEEP[text]
    n = size_of(tree)
    found = reveal(n, lambda pairs: [float(n - size_shared(i, j)) for i, j in pairs])
    assert text_of(found) == text_of(tree)
    assert words(found, "rows") == text


def test_the_order_of_two_sequential_halves():
    def backward(a):
        sums = [np.add.accumulate(part)[-1] for part in (a.dy[:500], a.dy[500:])]
        return Grads(a.dy, sums[0] + sums[1], sums[0] + sums[1])

    dbeta, _ = column_order(Implementation("halves", unprepared(backward)), 1000, 64)
    expected = "2 parts of 500 rows in sequence, then 2 of these in sequence; in float32, confirmed by replay"
    assert dbeta.answer.startswith(expected)


def test_an_addition_that_is_not_rounded_once_is_named():
    """XLA adds its second block of 256 rows to the first so: the tree is right, and its sums are not the kernel's."""

    def backward(a):
        with np.errstate(all="ignore"):
            before, after = (np.add.accumulate(rows)[-1] for rows in (a.dy[:25], a.dy[25:]))
            plain = (np.abs(before) > 1e20) | (before == 0) | (after == 0)
            dbeta = np.where(plain, before + after, (before * 3 + after * 3) / 3).astype(np.float32)
        return Grads(np.zeros_like(a.x), np.zeros_like(a.gamma), dbeta)

    dbeta, _ = column_order(Implementation("thirds", unprepared(backward)), 50, 16)
    assert dbeta.answer.startswith("2 parts of 25 rows in sequence, then 2 of these in sequence; NOT confirmed")
    assert "its additions are not all rounded once: " in dbeta.answer
    assert "in row 0 and" in dbeta.answer
    assert "in row 25, among zeros, come to " in dbeta.answer
    assert dbeta.counterexample
