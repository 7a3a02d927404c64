"""`python -m lngrad.soak --seconds N`: random calls until the time is over; 1 if any violated a rule."""

from __future__ import annotations

import argparse
import sys

from lngrad.soak import program, shrink, soak
from lngrad.soak.call import DOORS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m lngrad.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, help="for how long")
    parser.add_argument("--calls", type=int, help="how many calls at most")
    parser.add_argument("--seed", type=int, default=0, help="equal seeds draw equal calls")
    parser.add_argument("--door", choices=DOORS, action="append", help="only through this door; may be repeated")
    given = parser.parse_args()
    seconds = 60.0 if given.seconds is None and given.calls is None else given.seconds
    report = soak(calls=given.calls, seconds=seconds, seed=given.seed, doors=tuple(given.door or DOORS))
    print(report)
    for call, reason in report.violations:
        print(f"{reason}\n  {program(shrink(call))}")
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
