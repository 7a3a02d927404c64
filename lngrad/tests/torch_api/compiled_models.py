"""A small transformer whose norms come in each of the three ways, and its gradients beside float64's."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch

import lngrad.torch as lngrad_torch
from lngrad.testing import error_share

try:
    from lngrad.torch import inductor  # noqa: F401  # of a torch that override(compiled=True) takes
except ImportError:
    WAYS: tuple[str, ...] = ("patch", "module")
else:
    WAYS = ("override", "patch", "module")

F = torch.nn.functional
OURS = "lngrad.layer_norm", "lngrad.norm"  # in the code of a compiled model
WIDTH, WORDS = 16, 30


class Transformer(torch.nn.Module):
    """One block before its norms; all parameters random, those of norms too.

    Args:
        norms: Where LayerNorm and RMSNorm come from.
        eps: Of the norms.
    """

    def __init__(self, norms: Any = torch.nn, eps: float = 1e-5) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = torch.nn.Embedding(WORDS, WIDTH), torch.nn.Linear(WIDTH, WORDS)
        self.before, self.last = norms.LayerNorm(WIDTH, eps=eps), norms.LayerNorm(WIDTH, eps=eps)
        self.between = norms.RMSNorm(WIDTH, eps=eps)
        self.qkv, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.up, self.down = torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.Linear(2 * WIDTH, WIDTH)
        for parameter in self.parameters():
            if parameter.ndim == 1:
                torch.nn.init.normal_(parameter, 1.0, 0.5)
        self.double()

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.embedding(words)
        q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.qkv(self.before(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        x = x + self.down(F.gelu(self.up(self.between(x))))
        return self.head(self.last(x))


def of(way: str) -> tuple[Transformer, Any]:
    """The model with our norms, and in which context it is compiled and called."""
    model = Transformer(lngrad_torch if way == "module" else torch.nn)
    if way == "patch":
        assert lngrad_torch.patch(model) == 3
    return model, lngrad_torch.override(compiled=True) if way == "override" else nullcontext()


def batch(rows: int = 3, columns: int = 7) -> torch.Tensor:
    return torch.randint(0, WORDS, (rows, columns), generator=torch.Generator().manual_seed(rows))


def loss_of(call: Callable[[torch.Tensor], torch.Tensor], words: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(call(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())


def gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """By the parameters' names, and taken away from them."""
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    model.zero_grad()
    return found


def check_near(got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    """Each within float64's tolerance, of its largest element."""
    assert got.keys() == expected.keys()
    for name, grad in expected.items():
        exact = grad.detach().numpy()
        share = error_share(
            got[name].detach().numpy(), exact, np.full_like(exact, np.abs(exact).max()), "float64"
        ).max()
        assert share <= 1, f"{name}: off by {share:.3g} tolerances"


def expected(words: torch.Tensor, eps: float = 1e-5) -> dict[str, torch.Tensor]:
    """Gradients of the model with torch's own norms, in eager code."""
    model = Transformer(eps=eps)
    loss_of(model, words).backward()
    return gradients(model)
