// What host programs ask about the chip: the simulated SoC answers.
#ifndef LNGRAD_PLATFORM_ASCENDC_H
#define LNGRAD_PLATFORM_ASCENDC_H

#include <string>

#include "lngrad/host.h"

enum class NpuArch { DAV_1001 = 1001, DAV_2002 = 2002, DAV_2201 = 2201, DAV_3002 = 3002, DAV_3510 = 3510, DAV_5102 = 5102, DAV_RESV = 0xFFFF };
namespace platform_ascendc {

enum class CoreMemType { L0_A = 0, L0_B, L0_C, L1, UB, HBM, L2 };

enum class SocVersion { ASCEND910 = 0, ASCEND910B, ASCEND310P, ASCEND310B, ASCEND910_93, ASCEND950, MC62CM12A, RESERVED_VERSION = 99999 };

class PlatformAscendC {
public:
    PlatformAscendC() = default;
    PlatformAscendC(const PlatformAscendC*) {} // one is as the other
    SocVersion GetSocVersion() const { return SocVersion(ask().version); }
    NpuArch GetCurNpuArch() const { return NpuArch(ask().arch); }
    bool GetPlatformRes(const std::string&, const std::string&, std::string&) const { return false; }
    uint32_t GetCoreNumAiv() const { return static_cast<uint32_t>(ask().cores); }
    uint32_t GetCoreNumAic() const { return static_cast<uint32_t>(ask().cubes); }
    uint32_t GetCoreNum() const { return GetCoreNumAiv(); }
    uint32_t GetLibApiWorkSpaceSize() const { return 16 * 1024 * 1024; }
    // Of the memories that a vector core has; 0 for the others.
    void GetCoreMemSize(const CoreMemType& type, uint64_t& size) const
    {
        size = type == CoreMemType::UB ? static_cast<uint64_t>(ask().unified_buffer) : 0;
    }

private:
    struct Answer {
        int64_t cores = 0, cubes = 0, unified_buffer = 0, arch = 0, version = 0;
    };
    static Answer ask()
    {
        Answer answer;
        lngrad::ask_host("PlatformAscendC", &answer, sizeof answer, {});
        return answer;
    }
};

class PlatformAscendCManager {
public:
    static PlatformAscendC* GetInstance()
    {
        static PlatformAscendC platform;
        return &platform;
    }
    static PlatformAscendC* GetInstance(const char*) { return GetInstance(); }
};

} // namespace platform_ascendc

#endif
