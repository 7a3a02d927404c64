"""aclnnLayerNormBackward's first phase as a pure function of facts: the checks, then the core's
plan.
"""

from __future__ import annotations

from functools import lru_cache

from lngrad.ascend.acl.enums import aclDataType
from lngrad.ascend.acl.refusals import Refused
from lngrad.ascend.acl.tensor import TensorFacts
from lngrad.ascend.aclnn.backward_rules import PROTOTYPE, Arguments, Checked, check
from lngrad.ascend.aclnn.conversions import Room
from lngrad.ascend.aclnn.decision import Argument, Decision, fill_outputs, plan_call
from lngrad.ascend.aclnn.rules import FLOAT, FLOATS
from lngrad.ascend.rounding import rounds_half_away
from lngrad.ascend.soc import Target
from lngrad.core.arrays import ArraySpec
from lngrad.core.problem import Grads, Problem

# The tensors that are read, in the core's order and as the core spells them. biasOptional never is.
READS = {"gradOut": "dy", "input": "x", "mean": "mean", "rstd": "rstd", "weightOptional": "gamma"}
WRITES = {"gradInputOut": "out.dx", "gradWeightOut": "out.dgamma", "gradBiasOut": "out.dbeta"}


@lru_cache(maxsize=4096)
def decide(arguments: Arguments, target: Target, threads: int) -> Decision | Refused:
    """Check a call and plan it.

    Args:
        arguments: The facts of all arguments.
        target: What is simulated.
        threads: How many the core may use; a plan is made for a number of threads.

    Returns:
        The decision, or the refusal that phase 1 reports.
    """
    try:
        return _plan(check(arguments, target), rounds_half_away(target), threads)
    except Refused as refusal:
        return refusal.with_traceback(None)  # it is kept, its frames are not


def _plan(checked: Checked, half_away: bool, threads: int) -> Decision:
    if not any(checked.outputMask) or 0 in checked.input.shape:
        # No rows: sums over nothing are 0. No columns: there is nothing to write.
        return fill_outputs(
            PROTOTYPE, tuple(Argument(name, core, checked.wanted(name)) for name, core in WRITES.items())
        )
    room, dtype = Room(), checked.input.dtype
    widened = _is_widened(checked.wanted("gradInputOut"), dtype, half_away)
    reads = tuple(
        Argument(name, core, facts, room.input_copy(facts, dtype, widened))
        for name, core in READS.items()
        for facts in [getattr(checked, name)]
    )
    writes = []
    for name, core in WRITES.items():
        facts, stand_in = checked.wanted(name), None
        if facts is not None:
            full = name == "gradInputOut"
            # The core writes dx in the dtype it computes, the sums in any; all in their own shape.
            dtypes = (FLOAT if widened else dtype,) if full else FLOATS
            shape = checked.input.shape if full else checked.trailing
            stand_in = room.output_stand_in(facts, shape, dtypes, half_away)
        writes.append(Argument(name, core, facts, stand_in))

    def describe(inputs: tuple[ArraySpec | None, ...], outputs: tuple[ArraySpec | None, ...]) -> Problem:
        dy, x, mean, rstd, gamma = inputs
        problem, _ = Problem.backward(dy, x, mean, rstd, gamma, checked.trailing, checked.outputMask, Grads(*outputs))
        return problem

    return plan_call(PROTOTYPE, reads, tuple(writes), describe, room, threads)


def _is_widened(output: TensorFacts | None, dtype: aclDataType, half_away: bool) -> bool:
    """Whether all inputs get float32 copies, which are exact, as CANN's kernels make them too.

    A gradInputOut of a 16-bit input needs them, where it is not rounded as the core does it.
    CANN: gradInput is rounded to input's dtype before it is cast; here it is rounded once.
    """
    if dtype == FLOAT or output is None:
        return False
    return output.dtype != dtype or (half_away and output.dtype == aclDataType.ACL_BF16)
