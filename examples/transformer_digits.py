"""A small Transformer encoder on scikit-learn's digits, trained three ways: torch's kernels, override() and patch().

Each image is 8 tokens of 8 pixels. In float32 the three must learn the same. In bfloat16 the gradients of LayerNorm's
parameters are compared with float64 at one and the same point of training: torch adds them up in bfloat16, lngrad does
not. The example checks both and writes a picture.

    python examples/transformer_digits.py OUTPUT_FOLDER
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import time
from pathlib import Path

import matplotlib

matplotlib.use("agg")

import torch
from matplotlib import pyplot
from sklearn.datasets import load_digits

from lngrad.torch import override, patch

WIDTH, BATCH, EPOCHS = 64, 256, 4
WAYS = {"aten": "torch's own kernels", "override": "lngrad by override()", "patch": "lngrad by patch()"}
# Curves that lie on each other stay visible: the first one wide and pale.
STYLES = {"aten": ("#d55e00", 5, "s"), "override": ("#0072b2", 2, "o"), "patch": ("black", 0.8, "x")}


class Encoder(torch.nn.Module):
    """Two pre-norm encoder layers over 8 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Linear(8, WIDTH)
        self.place = torch.nn.Parameter(0.02 * torch.randn(8, WIDTH))
        layer = torch.nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = torch.nn.TransformerEncoder(layer, 2, torch.nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.head = torch.nn.Linear(WIDTH, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(B, 8, 8) images to (B, 10) logits."""
        return self.head(self.layers(self.embed(images) + self.place).mean(1))


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """1797 images of 8 by 8 pixels in [-0.5, 0.5], and their labels."""
    data = load_digits()
    return torch.from_numpy(data.images / 16 - 0.5).float(), torch.from_numpy(data.target)


def prepare(way: str, dtype: torch.dtype) -> tuple[Encoder, contextlib.AbstractContextManager[None]]:
    """The model that every way starts from, and the context to run it in."""
    torch.manual_seed(0)
    model = Encoder().to(dtype)
    if way == "patch" and patch(model) != 5:
        sys.exit("patch: expected the 5 LayerNorms of the encoder")
    return model, override() if way == "override" else contextlib.nullcontext()


def train(way: str, dtype: torch.dtype) -> tuple[list[float], float]:
    """The loss of every step, and the median time of a step in milliseconds."""
    images, labels = digits()
    model, context = prepare(way, dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    order = torch.Generator().manual_seed(1)
    losses, times = [], []
    with context:
        for _ in range(EPOCHS):
            for batch in torch.randperm(len(images), generator=order).split(BATCH):
                start = time.perf_counter()
                loss = torch.nn.functional.cross_entropy(model(images[batch].to(dtype)).float(), labels[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                times.append(1e3 * (time.perf_counter() - start))
                losses.append(loss.item())
    return losses, statistics.median(times)


def norm_errors(way: str) -> list[float]:
    """Relative errors of the gradients of every LayerNorm's weight and bias in bfloat16, each against its own float64 sums.

    Every LayerNorm is taken by itself: what came in and what came back, as bfloat16 had it, through float64 once more.
    """
    images, labels = digits()
    model, context = prepare(way, torch.bfloat16)
    seen: dict[torch.nn.Module, tuple[torch.Tensor, torch.Tensor]] = {}

    def watch(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        output.register_hook(lambda grad: seen.__setitem__(module, (inputs[0].detach(), grad)))

    norms = [module for module in model.modules() if isinstance(module, torch.nn.LayerNorm)]
    for norm in norms:
        norm.register_forward_hook(watch)
    with context:
        torch.nn.functional.cross_entropy(model(images.bfloat16()).float(), labels).backward()
    errors = []
    for norm in norms:
        x, dy = (tensor.double() for tensor in seen[norm])
        xhat = torch.nn.functional.layer_norm(x, (WIDTH,), eps=norm.eps)
        for got, true in ((norm.weight.grad, (dy * xhat).sum((0, 1))), (norm.bias.grad, dy.sum((0, 1)))):
            errors.append(float((got.double() - true).norm() / true.norm()))
    return errors


def main() -> None:
    """Train, compare, check, draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path, help="folder for the picture")
    folder = parser.parse_args().output
    folder.mkdir(parents=True, exist_ok=True)

    figure, (error, loss) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for dtype in (torch.float32, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        curves = {}
        for way in WAYS:
            curves[way], milliseconds = train(way, dtype)
            print(f"{name:8} {way:8} last loss {curves[way][-1]:.4f}   {milliseconds:.1f} ms a step")
            if not curves[way][-1] < 0.5 * curves[way][0]:
                sys.exit(f"{name} {way}: the loss did not halve")
        if dtype is torch.float32:
            apart = max(abs(a - b) for way in WAYS for a, b in zip(curves[way][:5], curves["aten"][:5], strict=True))
            if apart > 1e-3:
                sys.exit(f"float32: the first losses of the three ways are {apart:.1e} apart")

    errors = {way: norm_errors(way) for way in WAYS}
    for way in WAYS:
        colour, width, marker = STYLES[way]
        error.semilogy(errors[way], marker, color=colour, label=WAYS[way])
        loss.plot(curves[way], color=colour, linewidth=width, label=WAYS[way], alpha=0.6 if way == "aten" else 1)
        print(f"bfloat16 {way:8} LayerNorm gradients off by {min(errors[way]):.1e} to {max(errors[way]):.1e}")
    places = [f"{number // 2 + 1} {('weight', 'bias')[number % 2]}" for number in range(len(errors["aten"]))]
    error.set_xticks(range(len(places)), places, rotation=45)
    error.set(title="Error of LayerNorm's gradients, bfloat16", ylabel="relative error against float64", ylim=(5e-4, 2))
    error.legend(loc="center right")
    loss.set(title="Training loss, bfloat16: the three lie on each other", xlabel="step", ylabel="cross-entropy")
    loss.legend()
    for way in ("override", "patch"):
        if not max(errors[way]) < 0.01 < min(errors["aten"]):
            sys.exit(f"bfloat16 {way}: expected errors below 1 % and aten's above")
    picture = folder / "transformer_digits.png"
    figure.savefig(picture, dpi=120)
    print(f"picture: {picture}")


if __name__ == "__main__":
    main()
