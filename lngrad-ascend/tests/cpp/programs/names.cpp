#define K_MAX_SHAPE_DIM 0
#include "lib/matmul_intf.h"
#include "kernel_operator.h"
#include "kernel_utils.h"
#include "securec.h"
#include "ascendc/host_api/tiling/template_argument.h"
using namespace AscendC;
using Type = matmul::MatmulType<TPosition::GM, CubeFormat::ND, half>;
template <typename T> using Function = void(const LocalTensor<T>&, const LocalTensor<T>&, const int32_t&);
template <typename T> using Library = void(const LocalTensor<T>&, const LocalTensor<T>&, const uint32_t);
template <typename T, Function<T>* function> void apply(const LocalTensor<T>& x, int32_t n) { function(x, x, n); }
template <typename T, Library<T>* function>
void apply_library(const LocalTensor<T>& y, const LocalTensor<T>& x, uint32_t n) { function(y, x, n); }
static_assert(min(3u, 5) == 3 && max(2.5f, 1) == 2.5f);
static_assert(std::is_same_v<float32_t, float> && std::is_same_v<float16_t, half> && DT_INT4 == 29 && Ceil(int64_t(9), 8) == 2);
constexpr half LARGEST = 65504.0f, NEGATIVE = half(-1.5f);
static_assert(LARGEST.bits == 0x7BFF && NEGATIVE.bits == 0xBE00 && float(NEGATIVE) == -1.5f && bfloat16_t(1.0f).bits == 0x3F80);
ASCENDC_TPL_ARGS_DECL(names, ASCENDC_TPL_UINT_DECL(a, 3, ASCENDC_TPL_UI_LIST, 5, 9, 7), ASCENDC_TPL_BOOL_DECL(b, 0, 1),
                      ASCENDC_TPL_UINT_DECL(c, ASCENDC_TPL_8_BW, ASCENDC_TPL_UI_MIX, 2, 0, 2, 5, 6, 9),
                      ASCENDC_TPL_DTYPE_DECL(d, 0, 27));
ASCENDC_TPL_ARGS_DECL(names, ASCENDC_TPL_UINT_DECL(a, 3, ASCENDC_TPL_UI_LIST, 5, 9, 7), ASCENDC_TPL_BOOL_DECL(b, 0, 1),
                      ASCENDC_TPL_UINT_DECL(c, ASCENDC_TPL_8_BW, ASCENDC_TPL_UI_MIX, 2, 0, 2, 5, 6, 9),
                      ASCENDC_TPL_DTYPE_DECL(d, 0, 27)); // a header without a guard comes twice
ASCENDC_TPL_SEL(ASCENDC_TPL_ARGS_SEL(ASCENDC_TPL_UINT_SEL(a, ASCENDC_TPL_UI_LIST, 5)));
constexpr TQueConfig CONFIG = {};
struct Tiling { TCubeTiling cube; };

extern "C" __global__ __aicore__ void names(GM_ADDR x, GM_ADDR mask, GM_ADDR y)
{
    if (GetBlockNum() > 1) matmul::Matmul<Type, Type, Type>().IterateAll<false>(x, y);
    TPipe pipe;
    TBuf<> memory;
    pipe.InitBuffer(memory, 8448);
    auto piece = [&](int32_t at) { return memory.GetWithOffset<float>(128, 512 * at); };
    GlobalTensor<float> in, out;
    GlobalTensor<uint8_t> bytes;
    in.SetGlobalBuffer((__gm__ float*)x, 128);
    out.SetGlobalBuffer((__gm__ float*)y, 2048);
    bytes.SetGlobalBuffer(mask, 128);
    LocalTensor<float> v = piece(0), a = piece(1), b = piece(2), c = piece(3), d = piece(4), e = piece(5), pairs = piece(6);
    LocalTensor<uint8_t> m = piece(8).ReinterpretCast<uint8_t>(), work = piece(9).ReinterpretCast<uint8_t>();
    const DataCopyExtParams whole{1, 512, 0, 0, 0};
    DataCopyPadGm2UBImpl((__ubuf__ float*)v.GetPhyAddr(), (__gm__ float*)x, whole, DataCopyPadExtParams<float>());
    DataCopy(m, bytes, 128);
    PipeBarrier<PIPE_ALL>();
    DataCopy(a, v, 128);
    apply<float, Abs>(a, 128);
    apply_library<float, Tanh>(b, v, 128);
    SelectWithBytesMask(c, v, 7.0f, m, work, SelectWithBytesMaskShapeInfo{1, 128, 128});
    Duplicate(d, 0.0f, 128);
    RepeatReduceSum(d, v, 2, 64, 1, 1, 1, 8);
    SetVectorMask<float>(0, 0xF0);
    Compare<float, false>(v, a, CMPMODE::EQ, MASK_PLACEHOLDER, {1, 1, 1, 8, 8, 8});
    ResetMask();
    GetCmpMask(e.ReinterpretCast<uint8_t>());
    LocalTensor<uint32_t> index = piece(10).ReinterpretCast<uint32_t>(), places = piece(11).ReinterpretCast<uint32_t>();
    CreateVecIndex(index.ReinterpretCast<int32_t>(), 0, 64);
    Sort32(pairs, v, index, 2);
    LocalTensor<float> merged = piece(12), values = piece(13);
    const uint16_t lengths[4] = {32, 32, 0, 0};
    MrgSort(merged, MrgSortSrcList<float>(pairs, pairs[64], pairs, pairs), MrgSort4Info(lengths, false, 3, 1));
    uint16_t taken[4];
    GetMrgSortResult(taken[0], taken[1], taken[2], taken[3]);
    if (taken[0] != 32 || taken[1] != 32 || taken[2] != 0) return;
    Extract(values, places, merged, 2);
    LocalTensor<float> sum = piece(7), chosen = piece(14);
    LocalTensor<uint8_t> lower = piece(15).ReinterpretCast<uint8_t>();
    sum = v + a;
    sum = sum * a;
    lower = v < sum;
    SetCmpMask(lower);
    Select<float, SELMODE::VSEL_CMPMASK_SPR>(chosen, v, sum, 2, BinaryRepeatParams{});
    LocalTensor<int32_t> bits = m.ReinterpretCast<int32_t>();
    bits = index.ReinterpretCast<int32_t>() | places.ReinterpretCast<int32_t>();
    TopkTiling tiling;
    LocalTensor<bool> none;
    LocalTensor<int32_t> known = places.ReinterpretCast<int32_t>(), found = pairs.ReinterpretCast<int32_t>();
    TopK<float>(merged, found, v, known, none, 3, tiling, TopKInfo{4, 32, 32}, false);
    Duplicate(b[8], float(GET_TPL_TILING_KEY(7, 1, 9, 27)), 8);
    Duplicate(b[16], GET_TPL_TILING_KEY(4, 1, 9, 27) == ~uint64_t(0) ? 1.0f : 0.0f, 8);
    auto* from = (__ubuf__ float*)a.GetPhyAddr();
    auto* into = (__ubuf__ float*)piece(13).GetPhyAddr() + 64;
    set_vector_mask(0, 0xFFFFFFFFFFFFFFFF);
    vector_dup(into, 2.0f, 1, 1, 1, 8, 0);
    vadd(into, from, into, 1, 1, 1, 1, 8, 8, 8);
    set_vector_mask(0, 0xFFFF);
    vmuls(into, into, 3.0f, 1, 1, 1, 8, 8);
    vabs(into + 16, (__ubuf__ float*)v.GetPhyAddr(), 1, 1, 1, 8, 8);
    set_flag(PIPE_V, PIPE_S, EVENT_ID0);
    wait_flag(PIPE_V, PIPE_S, EVENT_ID0);
    LocalTensor<float> sums = memory.GetWithOffset<float>(64, 8192);
    vcadd((__ubuf__ float*)sums.GetPhyAddr(), from, 2, 1, 1, 8, false);
    vcgmax((__ubuf__ float*)sums[8].GetPhyAddr(), from, 1, 8, 1, 8);
    vcmin((__ubuf__ float*)sums[16].GetPhyAddr(), from, 1, 1, 1, 8);
    ResetMask();
    InitGlobalMemory(out, 2048, 0.5f);
    PipeBarrier<PIPE_ALL>();
    LocalTensor<float> results[] = {a, b, c, d};
    for (int i = 0; i < 4; ++i) DataCopy(out[128 * i], results[i], 128);
    DataCopy(out[512], values, 64);
    DataCopy(out[576], places.ReinterpretCast<float>(), 64);
    DataCopy(out[1024], chosen, 128);
    DataCopy(out[1152], bits.ReinterpretCast<float>(), 64);
    DataCopy(out[1216], merged, 32);
    DataCopy(out[1248], pairs, 32);
    DataCopy(out[1280], piece(13)[64], 64);
    DataCopyPad(out[1344], sums, DataCopyExtParams{1, 8, 0, 0, 0});
    DataCopyPad(out[1352], sums[8], DataCopyExtParams{1, 8, 0, 0, 0});
    DataCopyPad(out[1360], sums[16], DataCopyExtParams{1, 8, 0, 0, 0});
    DataCopyPad(out[640], e, DataCopyExtParams{1, 16, 0, 0, 0});
}
