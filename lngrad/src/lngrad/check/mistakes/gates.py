"""Known mistakes of a gate: what stands for silu(gate) or its derivative, or is left out, in one gradient of a gated norm."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from lngrad.check.inputs import true_grads
from lngrad.check.mistakes.fit import Difference, WrongOutput
from lngrad.check.mistakes.terms import terms_of, wide
from lngrad.core.reference import gate_factors
from lngrad.testing import Inputs, gradient_scales
from lngrad.typing import Array

# By name what is wrong; {} is the gradient.
SENTENCES = {
    "silu(gate) forgotten in {}": "{} lacks the factor silu(gate) = gate·sigmoid(gate).",
    "sigmoid for silu(gate) in {}": "{} has the factor sigmoid(gate), where silu(gate) = gate·sigmoid(gate) belongs.",
    "silu' forgotten in {}": "{} lacks the derivative of silu(gate), sigmoid·(1 + gate·(1 − sigmoid)).",
    "silu for silu' in {}": "{} has silu(gate) where its derivative belongs, sigmoid·(1 + gate·(1 − sigmoid)).",
    "sigmoid for silu' in {}": "{} has sigmoid where silu's derivative belongs, sigmoid·(1 + gate·(1 − sigmoid)).",
    "sigmoid' for silu' in {}": "{} has the derivative of sigmoid where silu's belongs, sigmoid·(1 + gate·(1 − sigmoid)).",
    "gate·sigmoid' for silu' in {}": "{} lacks a part of silu's derivative, sigmoid + gate·sigmoid·(1 − sigmoid).",
    "gamma forgotten in {}": "{} lacks gamma: what the gate multiplies is xhat·gamma.",
}  # fmt: skip


def of_gates(exact: Inputs, got: Mapping[str, Any], shares: Mapping[str, Array]) -> list[Difference] | None:
    """What explains all wrong gradients of a gated norm, each by a mistake of its gate; None if one has none."""
    true, scales, found = true_grads(exact)._asdict(), gradient_scales(exact)._asdict(), []
    for label in shares:
        output = WrongOutput(label, np.asarray(got[label]), true[label], scales[label])
        if label == "dgate" and not output.result.any():
            found.append(Difference("dgate never written", "dgate is 0 everywhere: it was never written, or added up."))
            continue
        name = next((name for name, wrong in _candidates(exact, label, true[label]) if output.is_made(wrong)), None)
        if name is None:
            return None
        found.append(Difference(name.format(label), SENTENCES[name].format(label)))
    return found


def _candidates(exact: Inputs, label: str, true: Array) -> Iterator[tuple[str, Array]]:
    """A gradient with each mistake that it may have."""
    of_x, of_y, (sigmoid, rest) = gate_factors(exact.gate, exact.normalization)
    is_before = exact.normalization.norm_before_gate
    silu, dy = of_x * of_y, wide(exact.dy)
    ungated = replace(exact, gate=None, dy=dy * of_y, x=wide(exact.x) * of_x)
    if label != "dgate":
        for name, factor in (
            ("silu(gate) forgotten in {}", np.ones_like(silu)),
            ("sigmoid for silu(gate) in {}", sigmoid),
        ):
            if is_before:
                yield name, getattr(true_grads(replace(ungated, dy=dy * factor)), label)
            elif label == "dx":
                yield name, true_grads(ungated).dx * factor
        return
    t = terms_of(replace(ungated, gamma=None))
    product = dy * t.xhat.reshape(dy.shape) if is_before else true_grads(ungated).dx * wide(exact.x)
    scale = exact.normalization.scale(1.0 if exact.gamma is None else wide(exact.gamma)) if is_before else np.ones(1)
    slopes = 1.0, silu, sigmoid, sigmoid * (1 - sigmoid), rest * sigmoid
    for name, slope in zip([name for name in SENTENCES if "silu'" in name], slopes, strict=True):
        yield name, product * scale * slope
    if is_before and exact.gamma is not None:
        yield "gamma forgotten in {}", product * sigmoid * (1 + rest)
