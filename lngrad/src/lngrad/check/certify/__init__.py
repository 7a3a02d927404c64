"""One page of measured properties of an implementation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from lngrad.check.calls.process import with_variable
from lngrad.check.certify.bits import batch_invariance, repeatability
from lngrad.check.certify.measured import Certificate, Measured
from lngrad.check.certify.properties import accuracy, effects, memory, number_range
from lngrad.check.certify.sums import column_order, row_order
from lngrad.check.implementations import Implementation, NotApplicable, find
from lngrad.core.machine import processor
from lngrad.core.norms import PLAIN
from lngrad.errors import BackendUnavailable

COLUMNS = ((300, 64), (1000, 64))  # shapes whose column sums are revealed; the first alone on a simulator


def certify(
    name: str, trials: int = 20, tell: Callable[[Certificate, Measured | None], None] | None = None,
    threads_variable: str | None = None, norm: str = "layer_norm",
) -> Certificate:  # fmt: skip
    """Measure everything.

    Args:
        name: As for `lngrad check --impl`.
        trials: Of each promise, with other seeds; more find rarer failures.
        tell: Called with the certificate so far and what was measured last, at first without: on a simulator it takes minutes.
        threads_variable: The environment variable that says how many threads it has, where that is its only switch.
        norm: Which one of PLAIN.

    Raises:
        BackendUnavailable: There is no such implementation here, or it does not take float32 of 64 columns.
    """
    subject = find(name) if threads_variable is None else with_variable(name, threads_variable)
    if norm not in subject.norms or norm not in PLAIN:
        raise BackendUnavailable(f"--impl: {name} does not compute {norm}")
    subject = replace(subject, norm=norm)
    certificate = Certificate(name, subject.described(), processor(), "float32", (), norm)
    if tell is not None:
        tell(certificate, None)
    try:
        with np.errstate(all="ignore"):  # of kernels in NumPy: NaN and overflow are asked for
            for measured in _all(subject, trials):
                certificate = replace(certificate, measured=(*certificate.measured, measured))
                if tell is not None:
                    tell(certificate, measured)
    except NotApplicable as reason:
        raise BackendUnavailable(f"--impl: {name}: it does not take what a certificate needs: {reason}") from None
    return certificate


def _all(subject: Implementation, trials: int) -> Iterator[Measured]:
    yield from repeatability(subject, trials)
    yield from batch_invariance(subject, trials)
    for M, N in COLUMNS[:1] if subject.simulated else COLUMNS:
        for threads in (1, 2) if subject.set_threads is not None else (None,):
            yield from column_order(subject, M, N, threads=threads)
    yield from row_order(subject, 256)
    yield from accuracy(subject, trials)
    yield from number_range(subject)
    yield from effects(subject)
    yield from memory(subject)
