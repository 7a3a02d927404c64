"""Many calls: draw them, run them, count what was refused and what was wrong."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from lngrad.check.soak.call import DOORS, Call, draw, installed
from lngrad.check.soak.doors import kept_open
from lngrad.check.soak.run import Violation, run
from lngrad.check.soak.shrink import program, shrink
from lngrad.errors import BackendUnavailable

_ENOUGH = 10  # violations


@dataclass
class Report:
    """What a soak did.

    Attributes:
        calls: How many were made.
        seconds: How long they took.
        refusals: How often each refusal came that is right, by its kind.
        violations: Calls that broke a rule, each with what was wrong.
    """

    calls: int = 0
    seconds: float = 0.0
    refusals: Counter[str] = field(default_factory=Counter)
    violations: list[tuple[Call, str]] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"{self.calls:,} calls in {self.seconds:.0f} s, {len(self.violations)} violations"]
        lines += [f"  {count:9,} refused: {reason}" for reason, count in self.refusals.most_common()]
        return "\n".join(lines)

    def programs(self) -> str:
        """Each violation with the smallest call that shows it, as a line for the shell."""
        return "\n".join(f"{reason}\n  {program(shrink(call))}" for call, reason in self.violations)


def soak(
    *, calls: int | None = None, seconds: float | None = None, seed: int = 0, doors: Sequence[str] = DOORS
) -> Report:
    """Run random calls until there were enough of them, or the time is over, or ten violated a rule.

    Args:
        calls: How many; None: as many as there is time for.
        seconds: For how long; None: as long as the calls take, and a minute if `calls` is None too.
        seed: Equal seeds draw equal calls.
        doors: Which doors to use: those of them whose framework is installed.

    Raises:
        BackendUnavailable: A door has no such name, or none of them is installed.
    """
    for door in doors:
        if door not in DOORS:
            raise BackendUnavailable(f"doors: expected some of {', '.join(DOORS)}, got {door!r}")
    if not installed(tuple(doors)):
        raise BackendUnavailable(f"doors: expected one whose framework is installed, got {', '.join(doors) or 'none'}")
    if calls is None and seconds is None:
        seconds = 60.0
    rng, report, start = Random(seed), Report(), time.monotonic()
    traced: list[Call] = []
    with kept_open(doors):
        while (calls is None or report.calls < calls) and len(report.violations) < _ENOUGH:
            report.seconds = time.monotonic() - start
            if seconds is not None and report.seconds > seconds:
                break
            call = draw(rng, tuple(doors), traced)
            try:
                report.refusals.update(run(call))
            except Violation as violation:
                report.violations.append((call, str(violation)))
            report.calls += 1
    report.seconds = time.monotonic() - start
    return report
