"""Subjects by name: the forward, the switch for threads, the outputs and the allocator of each library that we know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from typing import Any, Literal

import numpy as np

from lngrad import __version__
from lngrad.api import execute, layer_norm, layer_norm_backward
from lngrad.check.certify.subject import Place, Subject, backward_of
from lngrad.check.implementations import find, onednn
from lngrad.check.implementations.tensors import on_device, quiet
from lngrad.core.arrays import as_numpy
from lngrad.core.dtypes import to_torch
from lngrad.core.memory import empty_cache
from lngrad.core.plan import BACKENDS, Plan
from lngrad.core.problem import Forward, Grads, Problem
from lngrad.core.threads import set_num_threads
from lngrad.typing import Array

NO_DEVICE = "what runs here is no device"


def subject_of(name: str) -> Subject:
    """A backend of ours, torch, jax, onednn, or any other implementation that `lngrad check` knows.

    Raises:
        BackendUnavailable: There is none of this name, or it is not installed.
    """
    subject = Subject(name, "", backward_of(find(name)))
    if name == "triton_gpu":
        return _triton(subject)
    if name in BACKENDS:
        return _ours(subject)
    prefix = name.partition(":")[0]
    if prefix in _PREFIXES:
        return _PREFIXES[prefix](subject)
    return _OTHERS[name](subject) if name in _OTHERS else subject


def _ours(subject: Subject) -> Subject:
    name = subject.name

    def forward(x: Array, gamma: Array, beta: Array, eps: float) -> Forward:
        return Forward(*map(as_numpy, layer_norm(x, None, gamma, beta, eps=eps, backend=name)))

    def backward_into(place: Place, dy: Array, x: Array, mean: Array, rstd: Array, gamma: Array) -> Grads:
        out = Grads(dy if place == "dy" else x, None, None)
        return layer_norm_backward(dy, x, mean, rstd, gamma, out=out, backend=name)

    def forward_into(x: Array, gamma: Array, beta: Array, eps: float) -> Forward:
        return layer_norm(x, None, gamma, beta, eps=eps, out=Forward(x, None, None), backend=name)

    if name == "ascend_sim":  # computes the backward alone
        return replace(subject, version=f"lngrad {__version__}", backward_into=backward_into, simulated=True,
                       elsewhere=NO_DEVICE)  # fmt: skip
    return replace(
        subject, version=f"lngrad {__version__}", forward=forward, set_threads=set_num_threads,
        backward_into=backward_into, forward_into=forward_into, empty_cache=empty_cache,
    )  # fmt: skip


def _triton(subject: Subject) -> Subject:
    """Our Triton kernels, on a GPU or interpreted: the kernels' text and order of sums are the same."""

    def forward(x: Array, gamma: Array, beta: Array, eps: float) -> Forward:
        return _on_triton(x, gamma, beta, eps, None)

    def forward_into(x: Array, gamma: Array, beta: Array, eps: float) -> Forward:
        return _on_triton(x, gamma, beta, eps, "x")

    def backward_into(place: Place, dy: Array, x: Array, mean: Array, rstd: Array, gamma: Array) -> Grads:
        some = on_device({"dy": dy, "x": x, "mean": mean, "rstd": rstd, "gamma": gamma})
        out = Grads(some[place], None, None)
        problem, tensors = Problem.backward(**some, out=out)
        with quiet():
            return Grads(*(as_numpy(one.cpu()) for one in execute(_triton_plan(problem), tensors, out)))

    made = _on_a_gpu_or_not(subject)
    return replace(
        made, version=f"lngrad {__version__}, {made.version}", forward=forward, forward_into=forward_into,
        backward_into=backward_into,
    )  # fmt: skip


def _on_triton(x: Array, gamma: Array, beta: Array, eps: float, place: Literal["x"] | None) -> Forward:
    some = on_device({"x": x, "gamma": gamma, "beta": beta})
    out = None if place is None else Forward(some[place], None, None)
    problem, tensors = Problem.forward(**some, out=out)
    with quiet():
        return Forward(*(as_numpy(one.cpu()) for one in execute(_triton_plan(problem), (*tensors, eps), out)))


def _triton_plan(problem: Problem) -> Plan:
    from lngrad.gpu.plan import plan

    return plan(problem, 1)


def _on_a_gpu_or_not(subject: Subject) -> Subject:
    """Anybody's Triton kernels: where they run, and that an interpreter's memory is not theirs."""
    import torch

    if torch.cuda.is_available():
        return replace(subject, version=f"on {torch.cuda.get_device_name()}")
    return replace(subject, version="in Triton's interpreter, without a GPU", simulated=True, elsewhere=NO_DEVICE)


def _torch(subject: Subject) -> Subject:
    import torch

    aten = torch.ops.aten

    def tensors(*arrays: Array) -> list[Any]:
        return [to_torch(np.ascontiguousarray(one)) for one in arrays]

    def forward(x: Array, gamma: Array, beta: Array, eps: float) -> Forward:
        made = tensors(x, gamma, beta)
        return Forward(*map(as_numpy, torch.native_layer_norm(made[0], [x.shape[1]], made[1], made[2], eps)))

    def backward_into(place: Place, dy: Array, x: Array, mean: Array, rstd: Array, gamma: Array) -> Grads:
        given = tensors(dy, x, mean.reshape(-1, 1), rstd.reshape(-1, 1), gamma)
        target, N = given[0] if place == "dy" else given[1], x.shape[1]
        mask = [True, True, True]
        sums = [torch.empty(N), torch.empty(N)]
        results = aten.native_layer_norm_backward.out(
            given[0], given[1], [N], *given[2:], given[4], mask, out0=target, out1=sums[0], out2=sums[1]
        )
        return Grads(*map(as_numpy, results))

    def forward_into(x: Array, gamma: Array, beta: Array, eps: float) -> Forward:
        made = tensors(x, gamma, beta)
        rows = [torch.empty(len(x), 1), torch.empty(len(x), 1)]
        results = aten.native_layer_norm.out(
            made[0], [x.shape[1]], made[1], made[2], eps, out0=made[0], out1=rows[0], out2=rows[1]
        )
        return Forward(*map(as_numpy, results))

    return replace(
        subject, version=f"torch {torch.__version__}", forward=forward, set_threads=torch.set_num_threads,
        backward_into=backward_into, forward_into=forward_into, allocated=_torch_s_allocator(subject),
    )  # fmt: skip


def _torch_s_allocator(subject: Subject) -> Callable[..., tuple[int, str]]:
    def allocated(*given: Array) -> tuple[int, str]:
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
            subject.backward(*given)
        return sum(max(0, event.self_cpu_memory_usage) for event in seen.events()), "torch's allocator, by its profiler"

    return allocated


def _compiled(subject: Subject) -> Subject:
    import torch

    return replace(
        subject, version=f"torch {torch.__version__}, Inductor", set_threads=torch.set_num_threads, own_statistics=True,
        allocated=_torch_s_allocator(subject),
    )  # fmt: skip


def _jax(subject: Subject) -> Subject:
    def forward(x: Array, gamma: Array, beta: Array, eps: float) -> Forward:
        import jax.numpy as jnp

        wide = jnp.asarray(x)
        mean = wide.mean(-1, keepdims=True)
        centred = wide - mean
        rstd = 1 / jnp.sqrt((centred * centred).mean(-1, keepdims=True) + eps)
        return Forward(*(np.asarray(one) for one in (centred * rstd * gamma + beta, mean, rstd)))

    return replace(subject, version=f"jax {version('jax')}", forward=forward)


def _onednn(subject: Subject) -> Subject:
    def backward_into(place: Place, dy: Array, x: Array, mean: Array, rstd: Array, gamma: Array) -> Grads:
        variance = (1 / rstd.astype(np.float64) ** 2).astype(np.float32)
        dx = dy if place == "dy" else x
        dgamma, dbeta = np.empty_like(gamma), np.empty_like(gamma)
        onednn.backward(dy, x, mean, variance, gamma, dx, dgamma, dbeta, eps=0.0)()
        return Grads(dx, dgamma, dbeta)

    return replace(
        subject, version=f"oneDNN {onednn.version()}", set_threads=onednn.set_num_threads, backward_into=backward_into
    )


_OTHERS: dict[str, Callable[[Subject], Subject]] = {
    "torch": _torch,
    "torch_compile": _compiled,
    "jax": _jax,
    "onednn": _onednn,
    "mindspore": lambda subject: replace(subject, version=f"MindSpore {version('mindspore')}"),
}
# Kernels of the user's, by what stands before the colon.
_PREFIXES: dict[str, Callable[[Subject], Subject]] = {
    "triton": _on_a_gpu_or_not,
    "ascendc": lambda subject: replace(subject, version="on the simulated NPU", simulated=True, elsewhere=NO_DEVICE),
    "cmd": lambda subject: replace(
        subject, version="a process a call", simulated=True, elsewhere="it runs in a process of its own"
    ),
}
