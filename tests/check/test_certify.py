"""Trees are found by probes and replayed; committed certificates of ours still hold."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from lngrad.check.certify.bits import batch_invariance, repeatability
from lngrad.check.certify.doors import subject_of
from lngrad.check.certify.effects import effects
from lngrad.check.certify.measured import Certificate, different_bits
from lngrad.check.certify.numbers import accuracy, number_range
from lngrad.check.certify.replays import replay
from lngrad.check.certify.subject import Subject
from lngrad.check.certify.sums import column_order, row_order
from lngrad.check.certify.trees import Tree, Unrevealed, leaves, reveal, size_of, text_of, words
from lngrad.check.reports.certificate import (
    markdown_of,
    read_certificate,
    write_certificate_html,
    write_certificate_json,
)
from lngrad.problem import Grads

ROOT = Path(__file__).parents[2]
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
            one, other = sorted(rng.choice(len(parts), 2, replace=False))
            second, first = parts.pop(other), parts.pop(one)
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


def numpy_subject(wrong: bool = False) -> Subject:
    """A kernel in NumPy, whose column sums are in sequence; with the mistake that a row's dx depends on the batch."""

    def backward(dy, x, mean, rstd, gamma):
        with np.errstate(all="ignore"):
            return gradients(dy, x, mean, rstd, gamma)

    def gradients(dy, x, mean, rstd, gamma):
        xhat, dxhat = (x - mean[:, None]) * rstd[:, None], dy * gamma
        first = dxhat.mean(1, keepdims=True) + (np.float32(1e-7) * len(x) if wrong else 0)
        dx = rstd[:, None] * (dxhat - first - xhat * (dxhat * xhat).mean(1, keepdims=True))
        return Grads(dx.astype(np.float32), np.add.accumulate(dy * xhat)[-1], np.add.accumulate(dy)[-1])

    return Subject("numpy", np.__version__, backward)


def test_a_kernel_whose_rows_depend_on_the_batch_has_a_counterexample():
    found = {one.name: one for one in batch_invariance(numpy_subject(wrong=True), 1)}
    one = found["dx, any batch size and place"]
    assert one.holds is False
    assert "seed 0, row" in one.counterexample
    assert " against 0x" in one.counterexample
    assert all(one.holds for one in repeatability(numpy_subject(wrong=True), 2) if one.holds is not None)


def test_the_order_of_numpy_s_accumulate():
    (one,) = column_order(numpy_subject(), 50, 16)
    assert (
        one.answer == "50 rows in sequence; in float32, confirmed by replay: the same bits on 100 of 100 random inputs"
    )


def test_what_is_measured_of_any_kernel_goes_round(tmp_path):
    subject = numpy_subject()
    measured = (*accuracy(subject, 1), *number_range(subject), *effects(subject), *row_order(subject, 64))
    certificate = Certificate("numpy", "2", "a machine", "float32", measured)
    write_certificate_json(tmp_path / "c.json", certificate)
    assert read_certificate(tmp_path / "c.json").to_json() == certificate.to_json()
    write_certificate_html(tmp_path / "c.html", certificate)
    assert "<svg" in (tmp_path / "c.html").read_text("utf-8")


OURS = ("numba_cpu", "numpy_cpu")


@pytest.mark.parametrize("name", OURS)
def test_a_certificate_of_ours_still_holds(name):
    committed = read_certificate(ROOT / "docs" / "certificates" / f"{name}.json")
    subject = subject_of(name)
    measured = [*repeatability(subject, 2), *batch_invariance(subject, 1), *column_order(subject, 300, 64, threads=2)]
    measured += [one for one in accuracy(subject, 1) if one.holds is not None]
    old = {one.name: one for one in committed.measured}
    for one in measured:
        assert old[one.name].holds == one.holds, one
        if one.group == "The order of sums":
            assert old[one.name].answer == one.answer
    assert all(one.holds for one in committed.measured if one.holds is not None)


def test_the_page_shows_the_committed_certificates():
    page = (ROOT / "docs" / "certificates.md").read_text("utf-8")
    names = ("numba_cpu", "numpy_cpu", "ascend_sim", "torch", "onednn", "jax")
    paths = [ROOT / "docs" / "certificates" / f"{name}.json" for name in names]
    assert markdown_of([read_certificate(path) for path in paths if path.is_file()]) in page
