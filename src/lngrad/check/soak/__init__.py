"""Random calls through every door, each checked against a formula of its own: `lngrad soak --seconds 60`."""

from lngrad.check.soak.call import DOORS, Call, draw
from lngrad.check.soak.run import Report, Violation, program, run, shrink, soak

__all__ = ["Call", "DOORS", "Report", "Violation", "draw", "program", "run", "shrink", "soak"]
