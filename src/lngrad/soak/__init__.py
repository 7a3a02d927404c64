"""Random calls through every door, each checked against a formula of its own: `python -m lngrad.soak --seconds 60`."""

from lngrad.soak.call import Call, draw
from lngrad.soak.run import Violation, run, soak
from lngrad.soak.shrink import program, shrink

__all__ = ["Call", "Violation", "draw", "program", "run", "shrink", "soak"]
