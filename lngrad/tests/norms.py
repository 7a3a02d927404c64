"""The family around layer normalization as a parameter of tests: each norm's switches, and calls with its inputs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest

import lngrad
from lngrad.core.norms import NORMS as FAMILY
from lngrad.core.norms import PLAIN, Norm
from lngrad.core.problem import LAYER_NORM, RMS_NORM
from lngrad.testing import Case, Inputs

RMS = RMS_NORM


def options(norm: Norm) -> dict[str, Any]:
    """What make_inputs takes for a norm; nothing for layer normalization."""
    facts = {"normalization": norm.normalization, "residual": norm.residual, "gated": norm.gated}
    return {name: value for name, value in facts.items() if value and value != LAYER_NORM}


# add_layer_norm is deep_norm without a factor.
NORMS = {name: options(FAMILY[name]) for name in PLAIN if name != "add_layer_norm"}


OF_GOLDEN_BITS = {"gemma_rms_norm": "gemma", "zero_centred_layer_norm": "zero-centred gamma"}  # other names there


def light(cases: Iterable[Case]) -> list[Any]:
    """Cases as parameters; those of a million elements with -m slow, whose row loops the tests of the core run always."""
    return [
        pytest.param(case, marks=[pytest.mark.slow] * (prod((*case.lead, *case.normalized)) > 500_000))
        for case in cases
    ]


def forward(inputs: Inputs, **options: Any) -> Any:
    """The forward of the inputs' norm, with the eps of check_forward."""
    norm = inputs.normalization
    switches = {"offset": norm.offset, "residual": inputs.residual, "alpha": norm.alpha}
    arguments = {"normalized_shape": inputs.normalized_shape, "gamma": inputs.gamma, "eps": 1e-5, **switches, **options}
    if inputs.gate is not None:
        arguments |= {"gate": inputs.gate, "norm_before_gate": norm.norm_before_gate}
    if norm.centred:
        return lngrad.layer_norm(inputs.x, beta=inputs.beta, **arguments)
    return lngrad.rms_norm(inputs.x, **arguments)


def backward(inputs: Inputs, **options: Any) -> Any:
    """Its backward, from the inputs' total and statistics."""
    norm = inputs.normalization
    statistics = (inputs.mean, inputs.rstd) if norm.centred else (inputs.rstd,)
    function = lngrad.layer_norm_backward if norm.centred else lngrad.rms_norm_backward
    arrays = inputs.dy, inputs.total, *statistics, inputs.gamma
    switches = {"offset": norm.offset, "dtotal": inputs.dtotal, "normalized_shape": inputs.normalized_shape, **options}
    if inputs.gate is not None:
        switches |= {"gate": inputs.gate, "norm_before_gate": norm.norm_before_gate}
    return function(*arrays, **switches)


def of_rows(inputs: Inputs, rows: Any) -> Inputs:
    """The inputs of some rows alone."""
    parts = {name: getattr(inputs, name) for name in ("dy", "x", "mean", "rstd", "residual", "dtotal", "gate")}
    return replace(inputs, **{name: None if part is None else part[rows] for name, part in parts.items()})


def everything(inputs: Inputs) -> tuple[bool, ...]:
    """The mask of all gradients."""
    return (True,) * (3 if inputs.normalization.has_beta or inputs.gate is not None else 2)


def own_means(inputs: Inputs) -> Any:
    """The means of rows in float64."""
    axes = tuple(range(inputs.x.ndim - len(inputs.normalized_shape), inputs.x.ndim))
    return inputs.x.astype(np.float64).mean(axes, keepdims=True)


def with_own_means(inputs: Inputs) -> Inputs:
    """What a backward goes by that finds what the rounding of its means has lost.

    float64 can't tell what a mean in float64 lost: there its rows are moved to where they have almost none.
    """
    if inputs.x.dtype == np.float64:
        inputs = replace(inputs, x=inputs.x - own_means(inputs))
    return replace(inputs, mean=own_means(inputs))
