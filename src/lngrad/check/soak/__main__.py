"""`python -m lngrad.check.soak --seconds N`: what `lngrad soak` does, where the command line's libraries are not installed."""

from __future__ import annotations

import argparse
import sys

from lngrad.check.soak import DOORS, soak
from lngrad.errors import LngradError


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m lngrad.check.soak", description="random calls, each checked")
    parser.add_argument("--seconds", type=float, help="for how long")
    parser.add_argument("--calls", type=int, help="how many calls at most")
    parser.add_argument("--seed", type=int, default=0, help="equal seeds draw equal calls")
    parser.add_argument("--doors", default=",".join(DOORS), help="only through these, separated by commas")
    given = parser.parse_args()
    try:
        report = soak(calls=given.calls, seconds=given.seconds, seed=given.seed, doors=given.doors.split(","))
    except (LngradError, ValueError) as error:
        parser.error(str(error))
    print(report)
    if report.violations:
        print(report.programs())
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
