"""Random calls through every entry point, each checked against a formula of its own: `lngrad soak --seconds 60`."""

from lngrad.check.soak.call import ENTRY_POINTS, Call, draw
from lngrad.check.soak.run import Report, Violation, program, run, shrink, soak

__all__ = ["Call", "ENTRY_POINTS", "Report", "Violation", "draw", "program", "run", "shrink", "soak"]
