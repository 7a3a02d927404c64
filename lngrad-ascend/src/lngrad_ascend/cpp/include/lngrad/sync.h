// Flags, barriers, blocks that wait for each other, and the transposing copy.
#ifndef LNGRAD_SYNC_H
#define LNGRAD_SYNC_H

#include "lngrad/special.h"

namespace lngrad {

template <typename T, typename Address>
void transpose_blocks(const Address dst[16], const Address src[16], const AscendC::TransDataTo5HDParams& p, Where where)
{
    Call& call = issue(Op::TRANS_DATA_TO_5HD, where);
    put_each(call, type_of<T>(), p.dstHighHalf, p.srcHighHalf, p.repeatTimes, p.dstRepStride, p.srcRepStride);
    for (int i = 0; i < 32; ++i) put(call, (int64_t)(i < 16 ? dst[i] : src[i - 16]));
    finish(call);
}

} // namespace lngrad

namespace AscendC {

#define LNGRAD_SIGNAL(Name, op, Types, Parameters, ...) \
    template <LNGRAD_LIST Types> \
    void Name(LNGRAD_LIST Parameters, Where where = Where::here()) { lngrad::perform(op, where, __VA_ARGS__); }
LNGRAD_SIGNAL(SetFlag, Op::SET_FLAG, (HardEvent event), (int32_t eventID), event, eventID)
LNGRAD_SIGNAL(WaitFlag, Op::WAIT_FLAG, (HardEvent event), (int32_t eventID), event, eventID)
LNGRAD_SIGNAL(CrossCoreSetFlag, Op::CROSS_SET_FLAG, (uint8_t modeId, pipe_t pipe), (uint16_t flagId), modeId, pipe, flagId)
LNGRAD_SIGNAL(CrossCoreWaitFlag, Op::CROSS_WAIT_FLAG, (uint8_t modeId = 0, pipe_t pipe = PIPE_S), (uint16_t flagId), modeId, pipe, flagId)

template <pipe_t pipe>
void PipeBarrier(Where where = Where::here())
{
    lngrad::perform(Op::PIPE_BARRIER, where, pipe);
}

inline void pipe_barrier(pipe_t pipe, Where where = Where::here())
{
    lngrad::perform(Op::PIPE_BARRIER, where, pipe);
}

inline void set_flag(pipe_t from, pipe_t to, int32_t id, Where where = Where::here()) { lngrad::perform(Op::SET_FLAG, where, from, id, to); }
inline void wait_flag(pipe_t from, pipe_t to, int32_t id, Where where = Where::here()) { lngrad::perform(Op::WAIT_FLAG, where, from, id, to); }

template <bool isAIVOnly = true>
void SyncAll(Where where = Where::here())
{
    lngrad::perform(Op::SYNC_ALL, where, 0);
}

// The soft form waits through global memory; here it is the same barrier.
template <bool isAIVOnly = true>
void SyncAll(const GlobalTensor<int32_t>& gmWorkspace, const LocalTensor<int32_t>& ubWorkspace,
             const int32_t usedCores = 0, Where where = Where::here())
{
    lngrad::perform(Op::SYNC_ALL, where, ubWorkspace.operand(), 1, gmWorkspace, usedCores);
}

// One block waits for another one: the place in the flags says which signal.
inline void IBSet(const GlobalTensor<int32_t>&, const LocalTensor<int32_t>&, int32_t blockIdx, int32_t eventID, Where where = Where::here())
{
    lngrad::perform(Op::IB_SET, where, blockIdx, eventID);
}
inline void IBWait(const GlobalTensor<int32_t>&, const LocalTensor<int32_t>&, int32_t blockIdx, int32_t eventID, Where where = Where::here())
{
    lngrad::perform(Op::IB_WAIT, where, blockIdx, eventID);
}

// Blocks in turn, as often as they ask: block 0 begins, and waits for the last one before it begins again.
inline thread_local int64_t turns = 0;
inline void InitDetermineComputeWorkspace(GlobalTensor<int32_t>&, LocalTensor<int32_t>&) { turns = 0; }
inline void WaitPreBlock(GlobalTensor<int32_t>&, LocalTensor<int32_t>&, Where where = Where::here())
{
    const int64_t index = lngrad::perform(Op::BLOCK_IDX, where).result, count = lngrad::perform(Op::BLOCK_NUM, where).result;
    if (index > 0 || turns > 0) lngrad::perform(Op::IB_WAIT, where, index > 0 ? index - 1 : count - 1, -1);
    ++turns;
}
inline void NotifyNextBlock(GlobalTensor<int32_t>&, LocalTensor<int32_t>&, Where where = Where::here())
{
    lngrad::perform(Op::IB_SET, where, lngrad::perform(Op::BLOCK_IDX, where).result, -1);
}

// Blocks that wait for a group of others: each of the group raises one flag for each that waits.
enum class PipeMode : uint8_t { SCALAR_MODE = 0, MTE3_MODE, MAX };
template <PipeMode pipeMode>
class GroupBarrier {
public:
    GroupBarrier(GM_ADDR, uint32_t arriveSize, uint32_t waitSize) : arrivers_(arriveSize), waiters_(waitSize) {}
    void Arrive(uint32_t arriveIndex, Where where = Where::here())
    {
        for (int64_t i = 0; i < waiters_; ++i) lngrad::perform(Op::IB_SET, where, arriveIndex, FIRST - i);
    }
    void Wait(uint32_t waitIndex, Where where = Where::here())
    {
        for (int64_t i = 0; i < arrivers_; ++i) lngrad::perform(Op::IB_WAIT, where, i, FIRST - waitIndex);
    }

private:
    static constexpr int64_t FIRST = -2; // events of its own
    int64_t arrivers_, waiters_;
};

// One pipe at a time has it.
class Mutex {
public:
    template <pipe_t pipe>
    static void Lock(const uint8_t id, Where where = Where::here())
    {
        lngrad::perform(Op::MUTEX_LOCK, where, pipe, id);
    }
    template <pipe_t pipe>
    static void Unlock(const uint8_t id, Where where = Where::here())
    {
        lngrad::perform(Op::MUTEX_UNLOCK, where, pipe, id);
    }
};
inline thread_local uint32_t mutexes = 0; // one bit for each that is in use
inline uint8_t AllocMutexID()
{
    uint8_t id = 0;
    while (mutexes >> id & 1) ++id;
    mutexes |= 1u << id;
    return id;
}
inline void ReleaseMutexID(uint8_t id) { mutexes &= ~(1u << id); }
// Kernels run one after the other here.
inline void WaitPreTaskEnd() {}
inline void SetNextTaskStart() {}

template <typename T>
void TransDataTo5HD(uint64_t dstList[16], uint64_t srcList[16], const TransDataTo5HDParams& p, Where where = Where::here())
{
    lngrad::transpose_blocks<T>(dstList, srcList, p, where);
}
template <typename T>
void TransDataTo5HDImpl(__ubuf__ T* dstList[16], __ubuf__ T* srcList[16], const TransDataTo5HDParams& p, Where where = Where::here())
{
    lngrad::transpose_blocks<T>(dstList, srcList, p, where);
}
template <typename T>
void TransDataTo5HD(const LocalTensor<T> (&dstList)[16], const LocalTensor<T> (&srcList)[16],
                    const TransDataTo5HDParams& p, Where where = Where::here())
{
    uint64_t targets[16], sources[16];
    for (int i = 0; i < 16; ++i) {
        targets[i] = dstList[i].GetPhyAddr(where);
        sources[i] = srcList[i].GetPhyAddr(where);
    }
    TransDataTo5HD<T>(targets, sources, p, where);
}

} // namespace AscendC

#endif
