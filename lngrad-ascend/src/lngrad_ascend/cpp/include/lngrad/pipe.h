// TPipe, TBufPool, TQue and TBuf: names for what the simulator keeps. A copy of one is another name for the same.
#ifndef LNGRAD_PIPE_H
#define LNGRAD_PIPE_H

#include <exception>

#include "lngrad/tensor.h"

namespace AscendC {

class TPipe;

// `target` of TQueBind, which names both positions that tensors go between.
template <TPosition pos, int32_t depth, auto mask = 0, TPosition target = TPosition::MAX>
class TQue {
public:
    template <typename T>
    LocalTensor<T> AllocTensor(Where where = Where::here())
    {
        return taken<T>(Op::QUEUE_ALLOC, where);
    }
    template <typename T>
    void AllocTensor(LocalTensor<T>& tensor, Where where = Where::here())
    {
        tensor = AllocTensor<T>(where);
    }
    template <typename T>
    void FreeTensor(LocalTensor<T>& tensor, Where where = Where::here())
    {
        lngrad::perform(Op::QUEUE_FREE, where, tensor.operand(), handle_);
    }
    template <typename T>
    bool EnQue(const LocalTensor<T>& tensor, Where where = Where::here())
    {
        return lngrad::perform(Op::QUEUE_ENQUE, where, tensor.operand(), handle_), true;
    }
    template <TPosition from, TPosition to, typename T>
    bool EnQue(const LocalTensor<T>& tensor, Where where = Where::here())
    {
        return lngrad::perform(Op::QUEUE_ENQUE, where, tensor.operand(), handle_, from, to), true;
    }
    template <typename T>
    LocalTensor<T> DeQue(Where where = Where::here())
    {
        return taken<T>(Op::QUEUE_DEQUE, where);
    }
    template <typename T>
    void DeQue(LocalTensor<T>& tensor, Where where = Where::here())
    {
        tensor = DeQue<T>(where);
    }
    // Without a type: whoever takes it has one.
    struct Taken {
        Operand operand;
        template <typename T>
        operator LocalTensor<T>() const
        {
            return LocalTensor<T>(operand);
        }
    };
    Taken DeQue(Where where = Where::here()) { return {DeQue<uint8_t>(where).operand()}; }
    template <TPosition from, TPosition to, typename T>
    LocalTensor<T> DeQue(Where where = Where::here())
    {
        return DeQue<T>(where);
    }
    bool VacantInQue(Where where = Where::here()) { return query(Op::QUEUE_VACANT, where) != 0; }
    bool HasTensorInQue(Where where = Where::here()) { return query(Op::QUEUE_COUNT, where) != 0; }
    int32_t GetTensorCountInQue(Where where = Where::here()) { return int32_t(query(Op::QUEUE_COUNT, where)); }
    bool HasIdleBuffer(Where where = Where::here()) { return query(Op::QUEUE_IDLE, where) != 0; }
    void FreeAllEvent(Where where = Where::here()) { query(Op::QUEUE_FREE_EVENTS, where); }

    void bind(int64_t handle) { handle_ = static_cast<int32_t>(handle); }
    int64_t init(int64_t pipe, uint8_t num, uint32_t len, Where where) const
    {
        const int64_t other = target == TPosition::MAX ? -1 : static_cast<int64_t>(target);
        return lngrad::perform(Op::PIPE_INIT_QUEUE, where, pipe, pos, other, depth, num, len).result;
    }

private:
    template <typename T>
    LocalTensor<T> taken(Op op, Where where)
    {
        LocalTensor<T> tensor(lngrad::perform(op, where, handle_, lngrad::type_of<T>()).local[0]);
        tensor.SetPosition(pos == TPosition::GM ? target : pos);
        return tensor;
    }
    int64_t query(Op op, Where where) { return lngrad::perform(op, where, handle_).result; }

    int32_t handle_ = -1;
};

template <TPosition source, TPosition target, int32_t depth, auto mask = 0>
using TQueBind = TQue<source, depth, mask, target>;

template <TPosition pos = TPosition::LCM>
class TBuf {
public:
    template <typename T>
    LocalTensor<T> Get(int64_t len = -1, Where where = Where::here())
    {
        return window<T>(lngrad::perform(Op::BUFFER_GET, where, handle_, lngrad::type_of<T>(), len));
    }
    template <typename T>
    LocalTensor<T> GetWithOffset(uint32_t size, uint32_t bufOffset, Where where = Where::here())
    {
        return window<T>(lngrad::perform(Op::BUFFER_GET_OFFSET, where, handle_, lngrad::type_of<T>(), size, bufOffset));
    }

    // A TBuf has no queue: nothing waits, nothing is given back, and there is one buffer.
    template <typename T>
    LocalTensor<T> AllocTensor(Where where = Where::here())
    {
        return Get<T>(-1, where);
    }
    template <typename T>
    void FreeTensor(LocalTensor<T>&) {}
    template <typename T>
    bool EnQue(const LocalTensor<T>&)
    {
        return true;
    }

    void bind(int64_t handle) { handle_ = static_cast<int32_t>(handle); }
    static constexpr int64_t position() { return static_cast<int64_t>(pos); }

private:
    template <typename T>
    static LocalTensor<T> window(lngrad::Call& call)
    {
        LocalTensor<T> tensor(call.local[0]);
        tensor.SetPosition(pos);
        return tensor;
    }

    int32_t handle_ = -1;
};

// Memory of the Unified Buffer by address, without a pipe: pieces lie one behind the other.
template <Hardware hard = Hardware::UB>
class LocalMemAllocator {
public:
    uint32_t GetCurAddr() const { return head_; }
    template <TPosition pos, class T, uint32_t size = 0>
    LocalTensor<T> Alloc(uint32_t tileSize = size, Where where = Where::here())
    {
        LocalTensor<T> tensor(pos, head_, tileSize, where);
        head_ += tileSize * sizeof(T) / LocalTensor<T>::per_byte;
        return tensor;
    }
    template <class T, uint32_t size = 0>
    LocalTensor<T> Alloc(uint32_t tileSize = size, Where where = Where::here())
    {
        return Alloc<place, T>(tileSize, where);
    }

private:
    // What is not in the Unified Buffer is refused when it is asked for.
    static constexpr TPosition place = hard == Hardware::UB ? TPosition::VECCALC : TPosition::A1;
    uint32_t head_ = 0;
};

inline thread_local TPipe* running_pipe = nullptr;

class TPipe {
public:
    TPipe(Where where = Where::here())
    {
        handle_ = static_cast<int32_t>(lngrad::perform(Op::PIPE_NEW, where).result);
        running_pipe = this;
        owns_ = true;
    }
    // A copy is another name for the same pipe: only who made it ends it.
    TPipe(const TPipe& other) : handle_(other.handle_) {}
    TPipe& operator=(const TPipe& other)
    {
        handle_ = other.handle_;
        owns_ = false;
        return *this;
    }
    explicit TPipe(int32_t handle, bool owns = false) : handle_(handle), owns_(owns) {}
    ~TPipe() noexcept(false)
    {
        if (running_pipe == this) running_pipe = nullptr;
        if (owns_ && std::uncaught_exceptions() == 0) lngrad::perform(Op::PIPE_RESET, Where::here(), handle_, true);
    }
    void Init() {}
    void Destroy(Where where = Where::here())
    {
        Reset(where);
        owns_ = false;
    }
    void Reset(Where where = Where::here()) { lngrad::perform(Op::PIPE_RESET, where, handle_); }

    template <TPosition pos, int32_t depth, auto mask, TPosition target>
    bool InitBuffer(TQue<pos, depth, mask, target>& que, uint8_t num, uint32_t len, Where where = Where::here())
    {
        que.bind(que.init(handle_, num, len, where));
        return true;
    }
    template <TPosition pos>
    bool InitBuffer(TBuf<pos>& buf, uint32_t len, Where where = Where::here())
    {
        buf.bind(lngrad::perform(Op::PIPE_INIT_BUFFER, where, handle_, buf.position(), len).result);
        return true;
    }
    template <typename Pool>
    bool InitBufPool(Pool& pool, uint32_t len, const TPipe& share = TPipe(0), Where where = Where::here())
    {
        return lngrad::perform(Op::POOL_INIT, where, pool.handle_, handle_, len, share.handle_, Pool::poolPos), true;
    }

    template <HardEvent event>
    TEventID AllocEventID(Where where = Where::here())
    {
        return id(Op::EVENT_ALLOC, event, where);
    }
    template <HardEvent event>
    void ReleaseEventID(TEventID number, Where where = Where::here())
    {
        lngrad::perform(Op::EVENT_RELEASE, where, handle_, event, number);
    }
    template <HardEvent event>
    TEventID FetchEventID(Where where = Where::here())
    {
        return id(Op::EVENT_FETCH, event, where);
    }
    TEventID FetchEventID(HardEvent event, Where where = Where::here()) { return id(Op::EVENT_FETCH, event, where); }

private:
    TEventID id(Op op, HardEvent event, Where where)
    {
        return static_cast<TEventID>(lngrad::perform(op, where, handle_, event).result);
    }

    int32_t handle_ = -1;
    bool owns_ = false;
};

template <TPosition pos, uint32_t bufIDSize = 4>
struct TBufPool : TPipe {
    static constexpr TPosition poolPos = pos;
    TBufPool(Where where = Where::here()) : TPipe(int32_t(lngrad::perform(Op::POOL_NEW, where, bufIDSize).result), true) {}
};

#define EXTERN_IMPL_BUFPOOL(...) static_assert(sizeof(#__VA_ARGS__) == 0, "lngrad: EXTERN_IMPL_BUFPOOL is not simulated")

inline TPipe* GetTPipePtr() { return running_pipe; }

} // namespace AscendC

#endif
