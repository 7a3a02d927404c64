"""The order of a kernel: flags and barriers between the pipes of a core, and barriers between blocks."""

from __future__ import annotations

from lngrad_ascend.device.core import Core, running
from lngrad_ascend.device.pipes import ALL_PIPES, EVENT_PIPES, PIPE_NAMES, HardEvent, S, pipe_t
from lngrad_ascend.device.report import Instruction, site_text
from lngrad_ascend.device.schedule import Signal
from lngrad_ascend.faults import SyncFault

CROSS_CORE_FLAGS = 16
_PIPE_ALL, _EVENTS = pipe_t.PIPE_ALL, [event.name for event in HardEvent]  # an attribute of an Enum takes long
_BARRIERS = [f"PipeBarrier<PIPE_{name}>" for name in PIPE_NAMES]


def SetFlag(event: HardEvent, eventID: int) -> None:
    """Raise a flag when everything issued so far on the event's first pipe has finished.

    C prototype: ``template <HardEvent event> void SetFlag(int32_t eventID)``

    Raises:
        SyncFault: The flag is raised already, or no vector core has the event or the id.
    """
    core = running("SetFlag")
    source, _ = _pipes(core, "SetFlag", event, eventID)
    raised = core.flags.get((event, eventID))
    name = f"SetFlag<{_EVENTS[event]}>({eventID})"
    if raised is not None:
        raise SyncFault(
            f"{name}: the flag is raised already, at {site_text(raised[1][3])}; WaitFlag must lower it first "
            "[ErrorSync4]"
        )
    core.flags[event, eventID] = (core.clock.release(source), core.record(name, source))


def WaitFlag(event: HardEvent, eventID: int) -> None:
    """Let the event's second pipe wait for the flag, and lower it.

    C prototype: ``template <HardEvent event> void WaitFlag(int32_t eventID)``

    Raises:
        SyncFault: Nothing has raised the flag: a device would wait for ever.
    """
    core = running("WaitFlag")
    _, target = _pipes(core, "WaitFlag", event, eventID)
    raised = core.flags.pop((event, eventID), None)
    name = f"WaitFlag<{_EVENTS[event]}>({eventID})"
    if raised is None:
        raise SyncFault(f"{name}: no SetFlag has raised the flag; a device would wait for ever [ErrorSync3]")
    core.clock.acquire(target, raised[0])
    core.arrows.append((raised[1], core.record(name, target)))


def PipeBarrier(pipe: pipe_t) -> None:
    """Let later instructions of a pipe wait for the earlier ones; PIPE_ALL: of all pipes.

    C prototype: ``template <pipe_t pipe> void PipeBarrier()``
    """
    core = running("PipeBarrier")
    if pipe == _PIPE_ALL:
        core.clock.barrier_all()
        for each in ALL_PIPES:
            core.record("PipeBarrier<PIPE_ALL>", each)
        return
    if pipe not in ALL_PIPES:
        raise SyncFault(f"PipeBarrier: {pipe_t(pipe).name} is not a pipe of a vector core")
    if pipe != S:
        core.clock.barrier(pipe)
    core.record(_BARRIERS[pipe], pipe)


def SyncAll(isAIVOnly: bool = True) -> None:
    """Wait until every block is here; what they did before is finished for all.

    C prototype: ``template <bool isAIVOnly = true> void SyncAll()``

    Raises:
        DeadlockFault: Some block will never come here.
    """
    core = running("SyncAll")
    instruction = core.record("SyncAll", S)
    core.clock.barrier_all()
    if core.schedule is not None:
        core.schedule.set(core.index, "SyncAll", core.clock.release_all())
    _wait(core, "SyncAll", instruction)


def CrossCoreSetFlag(flagId: int, modeId: int = 0, pipe: pipe_t = pipe_t.PIPE_MTE3) -> None:
    """Say that everything issued so far on ``pipe`` counts for a barrier of all blocks.

    C prototype: ``template <uint8_t modeId, pipe_t pipe> void CrossCoreSetFlag(uint16_t flagId)``

    The flag goes up when every block has set it.

    Raises:
        SyncFault: A mode other than 0, or a pipe that takes no flag.
    """
    core = running("CrossCoreSetFlag")
    if modeId != 0:
        raise SyncFault(f"CrossCoreSetFlag: modeId 0 (all vector cores) is simulated, got {modeId}")
    if pipe not in ALL_PIPES or pipe == S:
        raise SyncFault(f"CrossCoreSetFlag: pipe must be V, MTE2 or MTE3, got {pipe_t(pipe).name}")
    flag = flagId % CROSS_CORE_FLAGS  # the low 4 bits count
    core.record(f"CrossCoreSetFlag({flag})", pipe)
    if core.schedule is not None:
        core.schedule.set(core.index, flag, core.clock.release(pipe))


def CrossCoreWaitFlag(flagId: int) -> None:
    """Wait until every block has set the flag.

    C prototype: ``template <uint8_t modeId = 0, pipe_t pipe = PIPE_S> void CrossCoreWaitFlag(uint16_t flagId)``

    Raises:
        DeadlockFault: Some block will never set it.
    """
    core = running("CrossCoreWaitFlag")
    flag = flagId % CROSS_CORE_FLAGS
    _wait(core, flag, core.record(f"CrossCoreWaitFlag({flag})", S))


def IBSet(blockIdx: int, eventID: int) -> None:
    """Raise a flag for another block: what this one has issued is finished.

    C prototype: ``void IBSet(const GlobalTensor<int32_t>& gmWorkspace, const LocalTensor<int32_t>& ubWorkspace,
    int32_t blockIdx, int32_t eventID)``
    """
    core = running("IBSet")
    core.record(f"IBSet({blockIdx}, {eventID})", S)
    core.clock.barrier_all()
    if core.schedule is not None:
        core.schedule.signal(core.clock, Signal(blockIdx, eventID))


def IBWait(blockIdx: int, eventID: int) -> None:
    """Wait for the flag that ``IBSet`` raises with the same numbers; each wait takes one.

    Raises:
        DeadlockFault: No block will raise it.
    """
    core = running("IBWait")
    _wait(core, Signal(blockIdx, eventID), core.record(f"IBWait({blockIdx}, {eventID})", S))
    core.clock.barrier_all()


def MutexLock(pipe: pipe_t, mutexID: int) -> None:
    """Let a pipe wait until the mutex is unlocked, and take it.

    C prototype: ``template <pipe_t pipe> static void Mutex::Lock(const uint8_t id)``

    Raises:
        SyncFault: It is locked, and no pipe has unlocked it: a device would wait for ever. Or the SoC has no mutex.
    """
    core = running("Mutex::Lock")
    if core.soc.arch != 3510:
        raise SyncFault(f"Mutex::Lock: only 950 has it, this is {core.soc.name}")
    if mutexID in core.mutexes and core.mutexes[mutexID] is None:
        raise SyncFault(f"Mutex::Lock({mutexID}): the mutex is locked; a device would wait for ever [ErrorSync3]")
    if (finished := core.mutexes.get(mutexID)) is not None:
        core.clock.acquire(pipe, finished)
    core.mutexes[mutexID] = None
    core.record(f"Mutex::Lock({mutexID})", pipe)


def MutexUnlock(pipe: pipe_t, mutexID: int) -> None:
    """Give a mutex back when everything issued so far on the pipe has finished.

    C prototype: ``template <pipe_t pipe> static void Mutex::Unlock(const uint8_t id)``

    Raises:
        SyncFault: It is not locked.
    """
    core = running("Mutex::Unlock")
    if core.mutexes.get(mutexID, ()) is not None:
        raise SyncFault(f"Mutex::Unlock({mutexID}): the mutex is not locked [ErrorSync3]")
    core.mutexes[mutexID] = core.clock.release(pipe)
    core.record(f"Mutex::Unlock({mutexID})", pipe)


def _wait(core: Core, flag: object, instruction: Instruction) -> None:
    """Let a block wait for a flag of other blocks."""
    if core.schedule is not None:
        core.schedule.wait(core.clock, flag, f"{instruction[0]} at {site_text(instruction[3])}")


def _pipes(core: Core, api: str, event: int, identity: int) -> tuple[int, int]:
    pipes = EVENT_PIPES.get(event)
    if pipes is None:
        name = HardEvent(event).name if event in tuple(HardEvent) else str(event)
        raise SyncFault(f"{api}: HardEvent::{name} is not between two pipes of a vector core")
    limit = core.soc.tensors_per_position  # as many as a queue has events
    if not 0 <= identity < limit:
        raise SyncFault(f"{api}: an event id is 0 to {limit - 1} on {core.soc.name}, got {identity}")
    return pipes
