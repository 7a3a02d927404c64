"""Random calls through every entry point, each checked against a formula of its own: `make soak`, docs/soak.md."""

from soak.call import ENTRY_POINTS, Call, draw
from soak.run import Report, Violation, program, run, shrink, soak

__all__ = ["Call", "ENTRY_POINTS", "Report", "Violation", "draw", "program", "run", "shrink", "soak"]
