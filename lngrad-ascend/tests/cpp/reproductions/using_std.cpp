// using namespace std in a kernel's file.
#include "kernel_operator.h"
#include <exception>
using namespace std;
extern "C" __global__ __aicore__ void k(GM_ADDR y) {}
