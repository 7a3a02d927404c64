"""What a device gives to the runner: peers, jobs, and a trial for each job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, Protocol, TypeAlias

from lngrad.bench.arguments import Arguments
from lngrad.bench.cases import Job
from lngrad.bench.measure import Call, Clock, Context
from lngrad.bench.settings import Settings

LNGRAD, ROOFLINE = "lngrad", "roofline"  # names among the contestants

Prepare: TypeAlias = Callable[[Job, Arguments], Call]
Say: TypeAlias = Callable[[str], None]  # takes a sentence about something that is passed over


class PeerMissing(RuntimeError):
    """A peer cannot do a job; the text says what it can do."""


@dataclass(frozen=True)
class Peer:
    """Another implementation.

    Attributes:
        module: What must be importable.
        prepare: Makes the call that does a job with some arguments. May raise PeerMissing.
        distribution: What has a version; None: the module's name.
        missing: Why it cannot be used, or None; without it, the module must be importable.
        scopes: That it is compared in; None: in all.
        version: Of the library, if it is not that of the distribution.
    """

    module: str
    prepare: Prepare
    distribution: str | None = None
    missing: Callable[[], str | None] | None = None
    scopes: tuple[str, ...] | None = None
    version: Callable[[], str] | None = None

    def versions(self) -> dict[str, str]:
        """Version by distribution."""
        name = self.distribution or self.module
        return {name: self.version() if self.version else version(name)}


@dataclass(frozen=True)
class Trial:
    """One job, whose results are checked, and those who do it.

    Attributes:
        calls: By contestant; LNGRAD, perhaps ROOFLINE, and peers.
        clock: Times their turns.
        rounds: How many turns each of them has.
        versions: Of the peers' packages.
        during: Contexts of some contestants' turns.
        roofline_bytes: That the call ROOFLINE moves.
        facts: What else the record says; the runner adds what other processes used.
        device: A GPU's name.
    """

    calls: dict[str, Call]
    clock: Clock
    rounds: int
    versions: dict[str, str]
    during: Mapping[str, Context] = field(default_factory=dict)
    roofline_bytes: int = 0
    facts: dict[str, Any] = field(default_factory=dict)
    device: str | None = None


class Bench(Protocol):
    """What can be timed on one kind of device.

    Attributes:
        scopes: In the order in which they must run.
        dtypes, peers: Those that are timed by default.
        known_peers: By name.
        drawn: The scope that a picture shows.
    """

    scopes: tuple[str, ...]
    dtypes: tuple[str, ...]
    peers: tuple[str, ...]
    known_peers: Mapping[str, Peer]
    drawn: str

    def jobs(self, settings: Settings, scope: str) -> list[Job]:
        """The jobs of a scope."""

    def trial(self, settings: Settings, scope: str, job: Job, peers: Mapping[str, Peer], say: Say) -> Trial:
        """Check the results of a job and prepare all contestants.

        Raises:
            GradientError: Our own result is wrong, so there is nothing to time.
            PeerMissing: The scope compares with one peer, which is not there.
        """


def why_not(bench: Bench, name: str) -> str | None:
    """Why a known peer cannot be compared with here, or None."""
    peer = bench.known_peers[name]
    if peer.missing is not None:
        reason = peer.missing()
    else:
        reason = None if find_spec(peer.module) else f"{peer.distribution or peer.module} is not installed"
    return None if reason is None else f"peers: {name}: {reason}"
