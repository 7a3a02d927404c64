// The names of the cube's library, so that vector kernels that only name it compile. What is called says that it is not simulated.
#ifndef LNGRAD_CUBE_H
#define LNGRAD_CUBE_H

#include <stdexcept>

#include "kernel_tiling/kernel_tiling.h"
#include "lngrad/system.h"

enum class CubeFormat { ND = 0, NZ, ZN, ZZ, NN, ND_ALIGN, SCALAR, VECTOR };
enum class LayoutMode { NONE = 0, BSNGD, SBNGD, BNGS1S2, NORMAL };
struct MatmulConfig {
    bool doNorm = false, doBasicBlock = false, doMultiDataLoad = false;
    uint32_t basicM = 0, basicN = 0, basicK = 0;
    bool intrinsicsCheck = false, isNBatch = false, enVecND2NZ = false, doSpecialBasicBlock = false;
    uint32_t doMTE2Preload = 0, singleCoreM = 0, singleCoreN = 0, singleCoreK = 0, stepM = 0, stepN = 0, baseMN = 0;
    bool singleCoreMN = false, enUnitFlag = false, isPerTensor = false, hasAntiQuantOffset = false, doIBShareNorm = false;
};
constexpr MatmulConfig CFG_NORM = {true}, CFG_MDL = {false, false, true}, MM_CFG_BB = {false, true}, CFG_IBSHARE_NORM = {};

template <typename... Values>
constexpr MatmulConfig GetNormalConfig(Values...) { return CFG_NORM; }
template <typename... Values>
constexpr MatmulConfig GetMDLConfig(Values...) { return CFG_MDL; }

namespace AscendC {

template <TPosition position, CubeFormat cube, typename Type, bool transposed = false, LayoutMode mode = LayoutMode::NONE, bool ibshare = false>
struct MatmulType {
    using T = Type;
    constexpr static TPosition pos = position;
    constexpr static CubeFormat format = cube;
    constexpr static bool isTrans = transposed;
};

template <class A, class B, class C, class Bias = C, const auto& config = CFG_NORM, class... Rest>
class Matmul {
public:
#define LNGRAD_CUBE(Name) \
    template <bool sync = true, typename... Values> \
    bool Name(Values&&...) \
    { \
        throw std::runtime_error(#Name " of Matmul: the cube is not simulated"); \
    }
#define LNGRAD_CUBES(One, Two, Three, Four) LNGRAD_CUBE(One) LNGRAD_CUBE(Two) LNGRAD_CUBE(Three) LNGRAD_CUBE(Four)
    LNGRAD_CUBES(Init, SetTensorA, SetTensorB, SetBias)
    LNGRAD_CUBES(SetTail, SetOrgShape, SetSingleShape, SetHF32)
    LNGRAD_CUBES(SetQuantScalar, SetQuantVector, SetSubBlockIdx, SetLocalWorkspace)
    LNGRAD_CUBES(SetWorkspace, SetBatchNum, DisableBias, Iterate)
    LNGRAD_CUBES(IterateAll, IterateBatch, WaitIterateAll, GetTensorC)
    LNGRAD_CUBE(End)
};
template <class A, class B, class C, class Bias = C, const auto& config = CFG_NORM, class... Rest>
using MatmulImpl = Matmul<A, B, C, Bias, config, Rest...>;

} // namespace AscendC

namespace matmul {
using namespace AscendC;
}

// The cube's object lives in another core: there is none to tell.
#define REGIST_MATMUL_OBJ(...)
inline GM_ADDR GetSysWorkSpacePtr() { return nullptr; }

#endif
