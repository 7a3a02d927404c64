"""The scopes of a CPU beside all peers: lngrad's own, JAX's program, and a step of a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from lngrad.bench.cases import MODEL_SHAPES, QUICK_ROUNDS, Job, Settings
from lngrad.bench.cpu import CpuBench
from lngrad.bench.measure import TurnClock
from lngrad.bench.runner import Contest, Say
from lngrad.check.implementations import Implementation
from peer_libraries.family import steps
from peer_libraries.rows import CPU_PEERS, jitted


class PeersBench(CpuBench):
    """lngrad's scopes; jax: one program that gives y and all gradients; model: a step of a transformer with our norms."""

    scopes = ("call", "override", "autograd", "jax", "model", "kernel", "forward", "overhead", "first_call")
    peers = ("torch", "onednn")
    known_peers = CPU_PEERS
    frameworks: ClassVar[Any] = {**CpuBench.frameworks, "jax": ("jax", jitted)}
    given_memory = ("onednn",)

    def jobs(self, settings: Settings, scope: str) -> list[Job]:
        """The jobs of a scope."""
        if scope != "model":
            return super().jobs(settings, scope)
        return [Job(M, N, dtype, "step") for M, N in settings.shapes or MODEL_SHAPES for dtype in settings.dtypes]

    def contest(
        self, settings: Settings, scope: str, job: Job, peers: Mapping[str, Implementation], say: Say
    ) -> Contest:
        """Check the results of a job and prepare all contestants; see lngrad.bench.runner.Bench."""
        if scope != "model":
            return super().contest(settings, scope, job, peers, say)
        calls, versions = steps(job, peers, "cpu")
        rounds = QUICK_ROUNDS if settings.quick else settings.rounds
        return Contest(calls, TurnClock(), rounds, versions, facts={"backend": "numba_cpu"})
