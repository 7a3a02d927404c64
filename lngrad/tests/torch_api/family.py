"""lngrad.torch's functions of the family, and the same in torch's elementary operations, of the rows of core/norms.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import lngrad.torch as lngrad_torch
from lngrad.core.norms import NORMS, Norm

# Those that lngrad.torch computes; add_rms_norm with Gemma's offset is no row of the table.
OF_TORCH = {name: norm for name, norm in NORMS.items() if norm.torch} | {
    "add_gemma": NORMS["add_rms_norm"]._replace(normalization=NORMS["gemma_rms_norm"].normalization)
}


def letters_of(norm: Norm) -> str:
    """The arguments of its function: x, residual, z (the gate), weight or s (of each sample), bias or s."""
    parameter = "s" if norm.modulated else "wb"
    count = 2 if "beta" in norm.forward.inputs else 1
    return "x" + "r" * norm.residual + "z" * norm.gated + (parameter * 2)[:count]


def ours_of(norm: Norm, shape: Any, eps: float | None) -> Callable[..., Any]:
    """lngrad.torch's function of the arguments of letters_of, of which the last may be left out."""
    function = getattr(lngrad_torch, norm.torch)
    offset = {"offset": norm.normalization.offset} if norm.normalization.offset else {}
    before = norm.normalization.norm_before_gate
    if norm.modulated:
        return lambda x, *parameters: function(x, *parameters, eps=eps)
    if norm.gated:
        return lambda x, z, weight=None: function(x, z, weight, eps, norm_before_gate=before, **offset)
    if norm.residual:
        return lambda x, r, *parameters: function(x, r, shape, *parameters, eps=eps, **offset)
    return lambda x, *parameters: function(x, shape, *parameters, eps=eps, **offset)


def of_rows(parameter: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return parameter.unsqueeze(-2) if 1 < parameter.ndim < x.ndim else parameter


def formula_of(norm: Norm, eps: float | None) -> Callable[..., Any]:
    """The same, over the last axis."""
    centred, offset, _, _, before = norm.normalization

    def formula(x: torch.Tensor, *rest: torch.Tensor) -> Any:
        second, parameters = (rest[0], rest[1:]) if norm.residual or norm.gated else (None, rest)
        silu = torch.nn.functional.silu(second) if norm.gated else 1
        total = x + second if norm.residual else x
        h = total if before else total * silu
        moved = h - h.mean(-1, keepdim=True) if centred else h
        added = torch.finfo(x.dtype).eps if eps is None else eps
        y = moved / torch.sqrt((moved * moved).mean(-1, keepdim=True) + added)
        y = y * (offset + (of_rows(parameters[0], x) if parameters else 1))
        y = y + of_rows(parameters[1], x) if parameters[1:] else y
        y = y * silu if before else y
        return (y, total) if norm.residual else y

    return formula
