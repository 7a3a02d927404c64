// Ascend C for the simulated NPU. What is simulated and what not: docs/ascend-c.md.
#ifndef LNGRAD_KERNEL_OPERATOR_H
#define LNGRAD_KERNEL_OPERATOR_H

#include "lngrad/cube.h"
#include "lngrad/sort.h"
#if __NPU_ARCH__ == 3510
#include "lngrad/register_cast.h"
#endif

using namespace AscendC; // as the toolkit's header ends
using std::abs, std::ceil, std::floor, std::log, std::pow, std::sqrt; // the compiler knows them unqualified

#endif
