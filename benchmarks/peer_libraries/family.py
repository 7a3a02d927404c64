"""The family around layer normalization in torch: what people write, eager and compiled, beside lngrad.torch's functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from math import gcd

from lngrad.bench.cases import DTYPES, LAYERS, MODEL_SHAPES, MODULE_SHAPES, QUICK, QUICK_ROUNDS, Job, Settings
from lngrad.bench.frameworks import EPS, Norm, Results, checked, step
from lngrad.bench.measure import TurnClock
from lngrad.bench.runner import LNGRAD, Contest, Say, random_arguments
from lngrad.check.implementations import Arguments, Implementation, NotApplicable, PreparedCall
from lngrad.core.norms import NORMS
from lngrad.core.problem import LAYER_NORM
from lngrad.core.threads import get_num_threads
from lngrad.testing import GradientError
from lngrad.typing import Tensor
from peer_libraries.rows import CPU_PEERS

# What lngrad.torch has a function for, and a scope of its own.
TIMED = tuple(name for name, norm in NORMS.items() if norm.torch and name != "layer_norm")


def _ours(a: Arguments) -> Norm:
    import lngrad.torch as lngrad_torch

    shape, centred, offset = a.normalized_shape, a.normalization.centred, a.offset

    def norm(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None) -> Results:
        if a.gate is not None:
            return (lngrad_torch.gated_rms_norm(x, residual, weight, EPS, norm_before_gate=a.norm_before_gate),)
        if a.normalization.modulated:
            return (lngrad_torch.modulated_layer_norm(x, weight, bias, EPS),)
        if residual is None and centred:
            return (lngrad_torch.layer_norm(x, shape, weight, bias, EPS),)
        if residual is None:
            return (lngrad_torch.rms_norm(x, shape, weight, EPS, offset=offset),)
        if centred:
            return lngrad_torch.add_layer_norm(x, residual, shape, weight, bias, EPS)
        return lngrad_torch.add_rms_norm(x, residual, shape, weight, EPS, offset=offset)

    return norm


def _layer_norm(a: Arguments) -> Norm:
    """Our layer normalization in the norm's place: what it should not take longer than."""
    if a.gate is not None or a.normalization.modulated:
        raise NotApplicable("it has neither a gate nor scales of samples")
    return _ours(replace(a, normalization=LAYER_NORM))


def _added(a: Arguments, norm_of_sum: Callable[[Tensor, Tensor, Tensor | None], Tensor]) -> Norm:
    """A norm of (x, weight, bias) after an addition of torch's, where there is a residual; or torch's silu beside it."""
    from torch.nn.functional import silu

    if a.gate is not None and a.norm_before_gate:
        return lambda x, weight, bias, gate: (norm_of_sum(x, weight, bias) * silu(gate),)
    if a.gate is not None:
        return lambda x, weight, bias, gate: (norm_of_sum(x * silu(gate), weight, bias),)

    def norm(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None) -> Results:
        h = x if residual is None else x + residual
        y = norm_of_sum(h, weight, bias)
        return (y,) if residual is None else (y, h)

    return norm


def _separate(a: Arguments) -> Norm:
    """Ours, beside an addition or silu of torch's."""
    if a.normalization.modulated:
        raise NotApplicable("nothing is separate")
    norm = _ours(replace(a, gate=None))
    return _added(a, lambda h, weight, bias: norm(h, weight, bias, None)[0])


def _torch(a: Arguments) -> Norm:
    """torch.nn.functional's norm, beside an addition, silu, or scale and shift."""
    from torch.nn import functional

    shape, offset = a.normalized_shape, a.offset
    if a.normalization.modulated:
        return _added(a, lambda h, scale, shift: functional.layer_norm(h, shape, None, None, EPS) * (1 + scale) + shift)
    if a.normalization.centred:
        return _added(a, lambda h, weight, bias: functional.layer_norm(h, shape, weight, bias, EPS))
    return _added(a, lambda h, weight, bias: functional.rms_norm(h, shape, weight + offset if offset else weight, EPS))


def _llama(a: Arguments) -> Norm:
    """The formula of Llama's and Gemma's modules: float32 inside, rounded before the weight."""
    import torch

    centred, offset = a.normalization.centred, a.offset

    def norm(h: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        wide = h.float()
        wide = wide - wide.mean(-1, keepdim=True) if centred else wide
        xhat = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)
        y = (xhat * (offset + weight.float())).to(h.dtype) if offset else weight * xhat.to(h.dtype)
        return y if bias is None else y + bias

    return _added(a, norm)


def _liger(a: Arguments) -> Norm:
    """Liger's kernels; there is one for the sum with RMSNorm, and none for the sum with LayerNorm."""
    from liger_kernel.ops.fused_add_rms_norm import LigerFusedAddRMSNormFunction
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

    if a.gate is not None or a.normalization.modulated:
        raise NotApplicable("it has neither a gate nor scales of samples")
    if a.normalization.centred:
        return _added(a, lambda h, weight, bias: LigerLayerNormFunction.apply(h, weight, bias, EPS))
    casting = "gemma" if a.offset else "llama"

    def norm(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None) -> Results:
        if residual is None:
            return (LigerRMSNormFunction.apply(x, weight, EPS, a.offset, casting, False),)
        y, total = LigerFusedAddRMSNormFunction.apply(x, residual, weight, EPS, a.offset, casting, False)
        return y, total

    return norm


def _quack(a: Arguments) -> Norm:
    """quack's RMSNorm, which adds a residual itself; its layer normalization has no backward."""
    if a.normalization.centred or a.offset or a.gate is not None:
        raise NotApplicable("quack: it has RMSNorm alone")
    from quack.rmsnorm import rmsnorm

    def norm(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None) -> Results:
        found = rmsnorm(x, weight, residual=residual, eps=EPS, prenorm=residual is not None)
        return (found,) if residual is None else tuple(found)

    return norm


FORMULAS = {
    "layer_norm": _layer_norm, "separate": _separate, "torch": _torch, "override": _torch, "llama": _llama,
    "compile": _torch, "compile_llama": _llama, "liger": _liger, "quack": _quack,
}  # fmt: skip


def steps(job: Job, peers: Mapping[str, Implementation], device: str) -> tuple[dict[str, PreparedCall], dict[str, str]]:
    """Training steps of a small transformer whose norms patch() has replaced, with its own norms, and these compiled; versions.

    Raises:
        NotApplicable: patch() leaves its norms, or a step takes minutes.
        GradientError: A step with ours gives another loss.
    """
    import torch
    from torch import nn

    from lngrad.torch import patch

    if job.dtype == "float16" and device == "cpu":
        raise NotApplicable("model: torch's products of float16 are slow on a CPU")
    torch.set_num_threads(get_num_threads())
    torch.manual_seed(0)
    torch._dynamo.reset()
    kind = nn.LayerNorm if job.norm == "layer_norm" else nn.RMSNorm
    heads, tokens = job.N // 64 if job.N % 64 == 0 else 1, gcd(job.M, 1024)  # of a sequence
    layer = nn.TransformerEncoderLayer(job.N, heads, 4 * job.N, 0.0, batch_first=True, norm_first=True)
    layer.norm1, layer.norm2 = kind(job.N, EPS), kind(job.N, EPS)
    transformer = nn.TransformerEncoder(layer, LAYERS, kind(job.N, EPS), enable_nested_tensor=False)
    x, target = (torch.randn(job.M // tokens, tokens, job.N).to(device, getattr(torch, job.dtype)) for _ in range(2))

    def step_of(name: str) -> PreparedCall:
        model = deepcopy(transformer).to(device, x.dtype)
        if name == LNGRAD and patch(model) < 2 * LAYERS + 1:
            raise NotApplicable(f"model: patch() leaves {kind.__name__}")
        optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
        called = torch.compile(model, dynamic=False) if name == "compile" else model

        def call() -> Tensor:
            optimizer.zero_grad(set_to_none=True)
            loss = nn.functional.mse_loss(called(x).float(), target.float())
            loss.backward()
            optimizer.step()
            return loss.detach()

        return call

    taken = {name: peer for name, peer in peers.items() if name in ("torch", "compile")}
    calls = {name: step_of(name) for name in (LNGRAD, *taken)}
    got, right = ([float(call()) for _ in range(2)][1] for call in map(step_of, (LNGRAD, "torch")))
    if not abs(got - right) <= 0.01 * right:
        raise GradientError(f"model: expected a loss of {right:.4g}, got {got:.4g} with our norms")
    return calls, {package: number for peer in taken.values() for package, number in peer.versions().items()}


class FamilyBench:
    """Scopes of a norm of the family, on a CPU.

    forward: lngrad.torch's function without derivatives; autograd: forward and backward, with all gradients; model: a step.
    Peers: layer_norm (ours in its place), separate (an addition or silu, and our norm), torch (torch.nn.functional), the same
    under override(), llama (the formula of its module), and both of these compiled.
    """

    scopes: tuple[str, ...] = ("forward", "autograd", "model")
    dtypes: tuple[str, ...] = DTYPES
    peers: tuple[str, ...] = ("torch", "llama")
    known_peers: Mapping[str, Implementation] = {
        name: replace(CPU_PEERS["compile" if name.startswith("compile") else "torch"], name=name)
        for name in ("layer_norm", "separate", "torch", "override", "llama", "compile", "compile_llama")
    }
    _device = "cpu"
    drawn = "autograd"

    def __init__(self, norm: str) -> None:
        self.norm = norm

    def jobs(self, settings: Settings, scope: str) -> list[Job]:
        """The jobs of a scope."""
        if scope == "model" and self.norm != "rms_norm":
            return []
        shapes = settings.shapes or (MODEL_SHAPES if scope == "model" else QUICK if settings.quick else MODULE_SHAPES)
        op = {"forward": "forward", "model": "step"}.get(scope, "both")
        return [Job(M, N, dtype, op, self.norm) for M, N in shapes for dtype in settings.dtypes]

    def contest(
        self, settings: Settings, scope: str, job: Job, peers: Mapping[str, Implementation], say: Say
    ) -> Contest:
        """Check the gradients of a job's first rows and prepare all contestants; see lngrad.bench.runner.Bench."""
        calls, versions = self.contestants(job, peers, lambda name, reason: say(f"{name}: {reason}"))
        rounds = QUICK_ROUNDS if settings.quick else settings.rounds
        from lngrad.torch import override

        return Contest(calls, TurnClock(), rounds, versions, {"override": override}, facts={"backend": "numba_cpu"})

    def contestants(
        self, job: Job, peers: Mapping[str, Implementation], refused: Callable[[str, Exception], None]
    ) -> tuple[dict[str, PreparedCall], dict[str, str]]:
        """Calls and versions; `refused` hears of a peer that does not take the job. Our gradients are checked first."""
        import torch

        if job.op == "step":
            return steps(job, peers, self._device)

        a, forward = random_arguments(job), job.op == "forward"
        torch._dynamo.reset()
        calls = {LNGRAD: step(checked(_ours(a), a, self._device), a, job.M, forward, self._device)}
        versions: dict[str, str] = {}
        for name, peer in peers.items():
            try:
                norm = FORMULAS[name](a)
                norm = torch.compile(norm, dynamic=False) if name.startswith("compile") else norm
                call = step(norm, a, job.M, forward, self._device)
                call()
            except Exception as reason:  # a peer's limits are its own
                refused(name, reason)
                continue
            calls[name] = call
            versions |= peer.versions()
        return calls, versions
