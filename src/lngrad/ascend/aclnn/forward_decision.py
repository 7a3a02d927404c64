"""The forward's first phase as a pure function of facts: the checks, then the core's plan."""

from __future__ import annotations

import math
from functools import lru_cache

from lngrad.ascend.acl.refusals import Refused
from lngrad.ascend.acl.tensor import TensorFacts
from lngrad.ascend.aclnn.arguments import Prototype
from lngrad.ascend.aclnn.conversions import Room
from lngrad.ascend.aclnn.decision import Argument, Decision, fill_outputs, plan_call
from lngrad.ascend.aclnn.forward_rules import Arguments, Checked, check
from lngrad.ascend.aclnn.rules import FLOAT
from lngrad.ascend.soc import Target
from lngrad.core.arrays import ArraySpec
from lngrad.core.problem import Forward, Problem

# Tensors in the core's order, and as the core spells them.
READS = {"input": "x", "weightOptional": "gamma", "biasOptional": "beta"}
STATISTICS = {"meanOutOptional": "out.mean", "rstdOutOptional": "out.rstd"}
NO_COLUMNS = {"meanOutOptional": 0.0, "rstdOutOptional": math.nan}  # what the code writes for rows of nothing


@lru_cache(maxsize=4096)
def decide(prototype: Prototype, arguments: Arguments, target: Target, threads: int) -> Decision | Refused:
    """Check a call and plan it.

    Args:
        prototype: Of the functions that are called.
        arguments: The facts of all arguments.
        target: What is simulated.
        threads: How many the core may use; a plan is made for a number of threads.

    Returns:
        The decision, or the refusal that phase 1 reports.
    """
    try:
        return _plan(prototype, check(prototype, arguments, target), threads)
    except Refused as refusal:
        return refusal.with_traceback(None)  # it is kept, its frames are not


def _plan(prototype: Prototype, checked: Checked, threads: int) -> Decision:
    if 0 in checked.input.shape:
        written = () if 0 in checked.lead else tuple(STATISTICS)
        return fill_outputs(
            prototype,
            tuple(Argument(name, STATISTICS[name], getattr(checked, name), fill=NO_COLUMNS[name]) for name in written),
        )
    room, dtype = Room(), checked.input.dtype
    # The core writes y in input's dtype. CANN rounds to it, then casts; here an out of another
    # dtype is rounded once.
    widened = dtype != FLOAT and checked.out.dtype != dtype
    computed = FLOAT if widened else dtype
    reads = tuple(
        Argument(name, core, facts, room.input_copy(facts, dtype, widened))
        for name, core in READS.items()
        for facts in [getattr(checked, name)]
    )
    out = Argument("out", "out.y", checked.out, room.output_stand_in(checked.out, checked.input.shape, (computed,)))
    statistics = []
    for name, core in STATISTICS.items():
        facts: TensorFacts | None = getattr(checked, name)
        stand_in = (
            room.take(checked.rows, FLOAT)  # the core writes a mean and rstd anyway
            if facts is None
            else room.output_stand_in(facts, checked.rows, (computed, FLOAT))
        )
        statistics.append(Argument(name, core, facts, stand_in))

    def describe(inputs: tuple[ArraySpec | None, ...], outputs: tuple[ArraySpec | None, ...]) -> Problem:
        x, gamma, beta = inputs
        problem, _ = Problem.forward(x, gamma, beta, checked.normalizedShape, Forward(*outputs))
        return problem

    return plan_call(prototype, reads, (out, *statistics), describe, room, threads, (float(checked.eps),))
