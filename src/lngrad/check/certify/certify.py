"""One page of measured properties of an implementation."""

from __future__ import annotations

from lngrad.check.certify.bits import batch_invariance, repeatability
from lngrad.check.certify.doors import subject_of
from lngrad.check.certify.effects import effects, memory
from lngrad.check.certify.measured import Certificate, Measured
from lngrad.check.certify.numbers import accuracy, number_range
from lngrad.check.certify.subject import Subject
from lngrad.check.certify.sums import column_order, row_order
from lngrad.check.implementations import NotApplicable
from lngrad.errors import BackendUnavailable
from lngrad.system.machine import processor

__all__ = ["certify"]

COLUMNS = ((300, 64), (1000, 64))  # shapes whose column sums are revealed; the first alone on a simulator


def certify(name: str, trials: int = 20) -> Certificate:
    """Measure everything.

    Args:
        name: As for `lngrad check --impl`.
        trials: Of each promise, with other seeds; more find rarer failures.

    Raises:
        BackendUnavailable: There is no such implementation here, or it does not take float32 of 64 columns.
    """
    subject = subject_of(name)
    try:
        measured = [*repeatability(subject, trials), *batch_invariance(subject, trials), *_orders(subject)]
        measured += [*accuracy(subject, trials), *number_range(subject), *effects(subject), *memory(subject)]
    except NotApplicable as reason:
        raise BackendUnavailable(f"--impl: {name}: it does not take what a certificate needs: {reason}") from None
    return Certificate(subject.name, subject.version, processor(), "float32", tuple(measured))


def _orders(subject: Subject) -> list[Measured]:
    found: list[Measured] = []
    threads: tuple[int | None, ...] = (1, 2) if subject.set_threads is not None else (None,)
    for M, N in COLUMNS[:1] if subject.simulated else COLUMNS:
        for number in threads:
            found += column_order(subject, M, N, threads=number)
    return found + row_order(subject, 256)
