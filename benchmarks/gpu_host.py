"""What a normalization on a GPU costs the host, and whether what native code launches has the bits of what Python launches.

    python benchmarks/gpu_host.py                         without a GPU: launches of nothing, beside torch's own CPU operator
    python benchmarks/gpu_host.py --json gpu-host.json    with one, within two minutes; one object a line, as it is measured

With a GPU it first compares bits (any that differ end it), then times calls and steps.

The part for a GPU has never been run on one.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

ROUNDS, CALLS = 60, 150
SHAPES = (64, 64), (64, 768), (512, 1024), (2048, 1024), (4096, 4096)
GPU_SHAPES = ((40, 72), (64, 64), (512, 1024), (300, 768), (50, 12288), (3, 20000), (200, 20000))


def times(calls: dict[str, Callable[[], Any]], wait: Callable[[], None] = lambda: None) -> dict[str, float]:
    """Microseconds of the host for each call, the least of many turns."""
    best = dict.fromkeys(calls, float("inf"))
    for call in calls.values():
        for _ in range(30):
            call()
    for _ in range(ROUNDS):
        for name, call in calls.items():
            wait()
            began = time.perf_counter()
            for _ in range(CALLS):
                call()
            best[name] = min(best[name], (time.perf_counter() - began) / CALLS * 1e6)
    return {name: round(value, 2) for name, value in best.items()}


def tensors(M: int, N: int, device: str, dtype: Any) -> dict[str, Any]:
    import torch

    arrays = {name: torch.randn(M, N, device=device, dtype=dtype) for name in ("x", "residual", "dy")}
    return arrays | {name: torch.randn(N, device=device, dtype=dtype) for name in ("gamma", "beta")}


# --- Without a GPU ----------------------------------------------------------------------------------------------------


def without() -> Iterator[dict[str, Any]]:
    """Calls of CPU tensors that are planned for a GPU and launch nothing; autograd's engine costs as much as on a GPU."""
    sys.path += [str(Path(__file__).parents[1] / "tests" / name) for name in ("", "torch_api")]
    os.environ.setdefault("TRITON_INTERPRET", "1")  # as tests/shared_fixtures.py has it: plans for CPU tensors
    import launches
    import pytest
    import torch

    import lngrad.torch as ours
    from lngrad.torch import native

    torch.set_num_threads(1)
    patch = pytest.MonkeyPatch()
    device, nothing = launches.Device(patch), ctypes.CDLL(None).pthread_equal  # of two numbers that are not: 0
    device.use(nothing, nothing)
    many, few = tensors(64, 64, "cpu", torch.float32), tensors(1, 8, "cpu", torch.float32)
    statistics = torch.zeros(64, 1), torch.ones(64, 1)
    leaves, few_leaves = ([arrays[name].requires_grad_() for name in ("x", "gamma", "beta")] for arrays in (many, few))
    x, gamma, beta = (leaf.detach() for leaf in leaves)
    direct = native.module.direct_layer_norm_backward
    functional = torch.nn.functional.layer_norm
    calls = {
        "forward": lambda: ours.layer_norm(x, (64,), gamma, beta),
        "backward": lambda: direct(many["dy"], x, [64], *statistics, gamma, [True, True, True]),
        "backward, by the dispatcher": lambda: torch.ops.lngrad.layer_norm_backward.default(
            many["dy"], x, [64], *statistics, gamma, [True, True, True]
        ),
        "step": lambda: torch.autograd.grad(ours.layer_norm(leaves[0], (64,), *leaves[1:]), leaves, many["dy"]),
        "step of 8 elements": lambda: torch.autograd.grad(
            ours.layer_norm(few_leaves[0], (8,), *few_leaves[1:]), few_leaves, few["dy"]
        ),
        "torch's step of 8 elements": lambda: torch.autograd.grad(
            functional(few_leaves[0], (8,), *few_leaves[1:]), few_leaves, few["dy"]
        ),
    }
    yield {"what": "host, launches of nothing", "us": times(calls)}


# --- With a GPU -------------------------------------------------------------------------------------------------------


def same_bits() -> Iterator[dict[str, Any]]:
    """Every member of the family: lngrad.torch, by native code, beside lngrad's functions, which Python launches."""
    import torch

    import lngrad
    import lngrad.torch as ours
    from lngrad.torch import native

    prepared: list[bool] = []
    for name in ("prepare_forward", "prepare_backward"):
        prepare = native._functions[name]
        native.register(
            name, lambda *arrays, prepare=prepare: (call := prepare(*arrays), prepared.append(call is not None))[0]
        )
    device = torch.cuda.current_device()

    def step(arrays: dict[str, Any], norm: str) -> list[Any]:
        names = ["x", "gamma", *(["beta"] if "layer" in norm else []), *(["residual"] if "add" in norm else [])]
        leaf = {name: arrays[name].detach().requires_grad_() for name in names}
        shape, extra = arrays["gamma"].shape, ([leaf["beta"]] if "layer" in norm else [])
        first = [leaf["x"], leaf["residual"]] if "add" in norm else [leaf["x"]]
        results = getattr(ours, norm)(*first, shape, leaf["gamma"], *extra, eps=1e-5)
        results = results if isinstance(results, tuple) else (results,)
        grads = torch.autograd.grad(results, list(leaf.values()), [arrays["dy"]] * len(results))
        return [*(result.detach() for result in results), *grads]

    def expected(arrays: dict[str, Any], norm: str) -> list[Any]:
        x, gamma, dy = arrays["x"], arrays["gamma"], arrays["dy"]
        added = {"residual": arrays["residual"]} if "add" in norm else {}
        if "layer" in norm:
            forward = lngrad.layer_norm(x, gamma, arrays["beta"], eps=1e-5, **added)
            statistics = forward.mean, forward.rstd
            backward = partial(lngrad.layer_norm_backward, complete_mean=True)
        else:
            forward = lngrad.rms_norm(x, gamma, eps=1e-5, **added)
            statistics, backward = (forward.rstd,), lngrad.rms_norm_backward
        normalized = forward.total if added else x
        grads = backward(dy, normalized, *statistics, gamma, **({"dtotal": dy} if added else {}))
        results = [forward.y, *([forward.total] if added else []), *grads]
        return [*results, grads[0]] if added else results

    norms = "layer_norm", "rms_norm", "add_layer_norm", "add_rms_norm"
    dtypes = itertools.cycle(
        (torch.float32, torch.bfloat16, torch.float64)
    )  # all of all would compile for three minutes
    for norm, (M, N) in itertools.product(norms, GPU_SHAPES):
        dtype = next(dtypes)
        arrays = tensors(M, N, "cuda", dtype)
        for got, want in zip(step(arrays, norm), expected(arrays, norm), strict=True):
            if not torch.equal(got, want):
                raise SystemExit(f"{norm} {M} x {N} {dtype}: bits differ by {(got - want).abs().max().item()}")
    yield {"what": "bits", "equal": True, "by native code": sum(prepared), "by Python": prepared.count(False)}

    arrays = tensors(512, 1024, "cuda", torch.bfloat16)
    want = step(arrays, "layer_norm")
    streams = [torch.cuda.Stream() for _ in range(2)]
    others: list[Any] = []
    for _ in range(20):
        for stream in streams:
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                others.append(step(arrays, "layer_norm"))
    thread = threading.Thread(target=lambda: others.append(step(arrays, "layer_norm")))  # which has no context yet
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    graph, result = torch.cuda.CUDAGraph(), torch.empty_like(arrays["x"])
    with torch.no_grad(), torch.cuda.graph(graph):
        result.copy_(ours.layer_norm(arrays["x"], 1024, arrays["gamma"], arrays["beta"], 1e-5))
    graph.replay()
    with torch.autocast("cuda"):
        cast = ours.layer_norm(arrays["x"], 1024, arrays["gamma"], arrays["beta"], 1e-5)
    wide = ours.layer_norm(arrays["x"].float(), 1024, arrays["gamma"].float(), arrays["beta"].float(), 1e-5)
    row = {
        "what": "streams, a thread, a graph, autocast",
        "streams and thread": len(others) == 41
        and all(torch.equal(*pair) for results in others for pair in zip(results, want, strict=True)),
        "graph": torch.equal(result, want[0]),
        "autocast": torch.equal(cast, wide),
    }
    if torch.cuda.device_count() > 1:
        moved = {name: array.to("cuda:1") for name, array in arrays.items()}
        on_other = step(moved, "layer_norm")
        row["second device"] = all(
            torch.equal(result.to(device), other) for result, other in zip(on_other, want, strict=True)
        )
        row["current device stays"] = torch.cuda.current_device() == device
    yield row


def host() -> Iterator[dict[str, Any]]:
    """Calls and steps beside torch's, in turns; the device has caught up before each turn."""
    import torch
    import torch.nn.functional as functional

    import lngrad.torch as ours

    for (M, N), dtype in itertools.product(SHAPES, (torch.float32, torch.bfloat16)):
        arrays = tensors(M, N, "cuda", dtype)
        x, gamma, beta, dy = (arrays[name] for name in ("x", "gamma", "beta", "dy"))
        leaves = [array.clone().requires_grad_() for array in (x, gamma, beta)]
        steps = {
            "step": (ours.layer_norm, functional.layer_norm, leaves),
            "rms step": (ours.rms_norm, functional.rms_norm, leaves[:2]),
        }
        calls: dict[str, Callable[[], Any]] = {
            "forward": lambda: ours.layer_norm(x, (N,), gamma, beta),  # noqa: B023  # called in this turn
            "torch forward": lambda: functional.layer_norm(x, (N,), gamma, beta),  # noqa: B023
        }
        for name, (mine, theirs, of) in steps.items():
            for label, norm in ((name, mine), (f"torch {name}", theirs)):
                calls[label] = lambda norm=norm, of=of: torch.autograd.grad(norm(of[0], (N,), *of[1:]), of, dy)  # noqa: B023
        yield {"what": "host", "M": M, "N": N, "dtype": str(dtype)[6:], "us": times(calls, torch.cuda.synchronize)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, help="add the lines to this file too")
    options = parser.parse_args()
    import torch

    from lngrad.torch import native

    def rows() -> Iterator[dict[str, Any]]:
        if not torch.cuda.is_available():
            yield from without()
            return
        import triton

        if native.module is None:
            raise SystemExit("no native code: lngrad info --warm")
        versions = {"torch": torch.__version__, "triton": triton.__version__, "launches": native.module.launches()}
        yield {"what": "versions", "device": torch.cuda.get_device_name(), **versions}
        yield from same_bits()
        yield from host()

    for row in rows():
        print(json.dumps(row), flush=True)
        if options.json:
            with options.json.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
