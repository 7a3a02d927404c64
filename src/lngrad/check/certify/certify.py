"""One page of measured properties of an implementation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from lngrad.check.certify.bits import batch_invariance, repeatability
from lngrad.check.certify.measured import Certificate, Measured, Subject, subject_of
from lngrad.check.certify.properties import accuracy, effects, memory, number_range
from lngrad.check.certify.sums import column_order, row_order
from lngrad.check.implementations import NotApplicable
from lngrad.core.machine import processor
from lngrad.errors import BackendUnavailable

COLUMNS = ((300, 64), (1000, 64))  # shapes whose column sums are revealed; the first alone on a simulator


def certify(
    name: str, trials: int = 20, tell: Callable[[Certificate, Measured | None], None] | None = None
) -> Certificate:
    """Measure everything.

    Args:
        name: As for `lngrad check --impl`.
        trials: Of each promise, with other seeds; more find rarer failures.
        tell: Called with the certificate so far and what was measured last, at first without: on a simulator it takes minutes.

    Raises:
        BackendUnavailable: There is no such implementation here, or it does not take float32 of 64 columns.
    """
    subject = subject_of(name)
    certificate = Certificate(subject.name, subject.version, processor(), "float32", ())
    if tell is not None:
        tell(certificate, None)
    try:
        with np.errstate(all="ignore"):  # of kernels in NumPy: NaN and overflow are asked for
            for one in _all(subject, trials):
                certificate = replace(certificate, measured=(*certificate.measured, one))
                if tell is not None:
                    tell(certificate, one)
    except NotApplicable as reason:
        raise BackendUnavailable(f"--impl: {name}: it does not take what a certificate needs: {reason}") from None
    return certificate


def _all(subject: Subject, trials: int) -> Iterator[Measured]:
    yield from repeatability(subject, trials)
    yield from batch_invariance(subject, trials)
    yield from _orders(subject)
    yield from accuracy(subject, trials)
    yield from number_range(subject)
    yield from effects(subject)
    yield from memory(subject)


def _orders(subject: Subject) -> Iterator[Measured]:
    threads: tuple[int | None, ...] = (1, 2) if subject.set_threads is not None else (None,)
    for M, N in COLUMNS[:1] if subject.simulated else COLUMNS:
        for number in threads:
            yield from column_order(subject, M, N, threads=number)
    yield from row_order(subject, 256)
