"""The norms of the family: one table, whose names users type; checks, benchmarks, frameworks and tests take theirs from it."""

from __future__ import annotations

from typing import NamedTuple

from lngrad.core.problem import (
    ADD_BACKWARD,
    ADD_FORWARD,
    ADD_RMS_BACKWARD,
    ADD_RMS_FORWARD,
    BACKWARD,
    FORWARD,
    GATED_BACKWARD,
    GATED_FORWARD,
    LAYER_NORM,
    RMS_BACKWARD,
    RMS_FORWARD,
    RMS_NORM,
    Normalization,
    Operator,
)


class Norm(NamedTuple):
    """A member of the family.

    Attributes:
        name: Its key in NORMS.
        normalization: Its switches.
        forward, backward: What goes in and comes out: a residual, a gate, a beta.
        function: The function of lngrad that computes it; `function`_backward computes its gradients.
        torch, jax: The function of lngrad.torch and of lngrad.jax; empty where there is none.
    """

    name: str
    normalization: Normalization
    forward: Operator
    backward: Operator
    function: str
    torch: str = ""
    jax: str = ""

    @property
    def outputs(self) -> tuple[str, ...]:
        """The results of both directions by name, the backward's first."""
        wanted = zip(self.forward.outputs, self.forward.everything, strict=True)
        return (*self.backward.outputs, *(name for name, is_there in wanted if is_there))

    @property
    def residual(self) -> bool:
        """Whether x has a residual beside it, and so its total a gradient."""
        return "residual" in self.forward.inputs

    @property
    def gated(self) -> bool:
        """Whether silu of a gate is a factor of y, or of x."""
        return "gate" in self.forward.inputs

    @property
    def modulated(self) -> bool:
        """Whether each sample has a gamma of its own."""
        return self.normalization.modulated


_ADD, _ADD_RMS = (ADD_FORWARD, ADD_BACKWARD), (ADD_RMS_FORWARD, ADD_RMS_BACKWARD)
_GATED = GATED_FORWARD, GATED_BACKWARD
_GATE_FIRST = RMS_NORM._replace(norm_before_gate=False)
_ZERO_CENTRED, _GEMMA = LAYER_NORM._replace(offset=1.0), RMS_NORM._replace(offset=1.0)

NORMS = {
    norm.name: norm
    for norm in (
        Norm("layer_norm", LAYER_NORM, FORWARD, BACKWARD, "layer_norm", "layer_norm", "layer_norm"),
        Norm("rms_norm", RMS_NORM, RMS_FORWARD, RMS_BACKWARD, "rms_norm", "rms_norm", "rms_norm"),
        Norm("gemma_rms_norm", _GEMMA, RMS_FORWARD, RMS_BACKWARD, "rms_norm", "rms_norm", "rms_norm"),
        Norm("zero_centred_layer_norm", _ZERO_CENTRED, FORWARD, BACKWARD, "layer_norm", jax="layer_norm"),
        Norm("add_layer_norm", LAYER_NORM, *_ADD, "layer_norm", "add_layer_norm", "add_layer_norm"),
        Norm("add_rms_norm", RMS_NORM, *_ADD_RMS, "rms_norm", "add_rms_norm", "add_rms_norm"),
        Norm("deep_norm", LAYER_NORM._replace(alpha=1.7), *_ADD, "layer_norm", jax="add_layer_norm"),
        Norm("gated_rms_norm", RMS_NORM, *_GATED, "rms_norm", "gated_rms_norm", "gated_rms_norm"),
        Norm("rms_norm_of_gated", _GATE_FIRST, *_GATED, "rms_norm", "gated_rms_norm", "gated_rms_norm"),
        Norm("rms_norm_of_gated_groups", _GATE_FIRST._replace(modulated=True), *_GATED, "rms_norm"),
        Norm(
            "modulated_layer_norm", _ZERO_CENTRED._replace(modulated=True), FORWARD, BACKWARD, "layer_norm",
            "modulated_layer_norm", "modulated_layer_norm",
        ),
        Norm(
            "modulated_rms_norm", _GEMMA._replace(modulated=True), RMS_FORWARD, RMS_BACKWARD, "rms_norm",
            jax="modulated_rms_norm",
        ),
    )
}  # fmt: skip
PLAIN = tuple(name for name, norm in NORMS.items() if not norm.gated and not norm.modulated)


def norm_with(normalization: Normalization, residual: bool = False, gated: bool = False) -> Norm:
    """The norm with these switches.

    Raises:
        KeyError: There is none.
    """
    for norm in NORMS.values():
        if (norm.normalization, norm.residual, norm.gated) == (normalization, residual, gated):
            return norm
    raise KeyError(f"norm: expected one of {', '.join(NORMS)}, got {normalization}")
