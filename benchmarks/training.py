"""Whole training steps of a small Llama and a small BERT, with torch's normalizations and with lngrad's, in turns.

    python benchmarks/training.py                          the table of docs/torch.md; needs transformers
    python benchmarks/training.py llama --threads 1        one model, one thread

A step is forward, backward and AdamW on one batch. `patch` is lngrad.torch.patch, `override` lngrad.torch.override, which
reaches BERT's torch.nn.LayerNorm and not the formula that Llama's class writes out. All are warm before the first turn; a row
gives the median of each and the medians of the ratios of neighbours. It writes no record.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from lngrad.torch import override, patch

WAYS = ("torch", "patch", "override")


def model_of(name: str) -> Any:
    """With random weights; nothing is downloaded."""
    import transformers

    torch.manual_seed(0)
    size = {"hidden_size": 768, "num_hidden_layers": 4, "num_attention_heads": 12, "vocab_size": 2048}
    if name == "llama":
        settings = transformers.LlamaConfig(**size, intermediate_size=2048, num_key_value_heads=12)
        return transformers.LlamaForCausalLM(settings).train()
    return transformers.BertForMaskedLM(transformers.BertConfig(**size, intermediate_size=3072)).train()


def step_of(model: Any, way: str, tokens: torch.Tensor) -> Callable[[], float]:
    """A training step; returns the loss."""
    if way == "patch":
        patch(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return override()(step) if way == "override" else step


def main() -> None:
    parser = argparse.ArgumentParser(description="training steps of small models, with and without lngrad")
    parser.add_argument("models", nargs="*", default=["llama", "bert"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--tokens", type=int, default=128, help="of each of 4 sequences")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(
        "| model, 4 layers of 768 | dtype | tokens | threads | torch, ms | patch, ms | override, ms | patch | override |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for name in options.models:
        for dtype in (torch.float32, torch.bfloat16):
            model = model_of(name).to(dtype)
            tokens = torch.randint(0, 2048, (4, options.tokens), generator=torch.Generator().manual_seed(1))
            steps = [step_of(copy.deepcopy(model), way, tokens) for way in WAYS]
            for step in steps * 2:
                step()
            taken: dict[str, list[float]] = {way: [] for way in WAYS}
            for _ in range(options.rounds):
                for way, step in zip(WAYS, steps, strict=True):
                    start = time.perf_counter()
                    step()
                    taken[way].append(time.perf_counter() - start)
            ms = [statistics.median(taken[way]) * 1e3 for way in WAYS]
            ratios = [
                statistics.median(theirs / ours for theirs, ours in zip(taken["torch"], taken[way], strict=True))
                for way in WAYS[1:]
            ]
            cells = [
                name,
                str(dtype)[6:],
                str(4 * options.tokens),
                str(options.threads),
                *(f"{time:.0f}" for time in ms),
            ]
            print("| " + " | ".join([*cells, *(f"{ratio:.2f}" for ratio in ratios)]) + " |", flush=True)


if __name__ == "__main__":
    main()
