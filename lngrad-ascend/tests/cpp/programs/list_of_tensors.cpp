#include "kernel_operator_list_tensor_intf.h"
using namespace AscendC;
extern "C" __global__ __aicore__ __inout_pipe__(S) void k(GM_ADDR list, GM_ADDR a, GM_ADDR b, GM_ADDR y)
{
    ListTensorDesc all(list);
    GlobalTensor<float> out;
    out.SetGlobalBuffer((__gm__ float*)y, 8);
    TensorDesc<float> tensor;
    uint64_t shape[4];
    tensor.SetShapeAddr(shape);
    for (uint32_t i = 0; i < all.GetSize(); ++i) {
        all.GetDesc(tensor, i);
        out.SetValue(4 * i, tensor.GetDim());
        out.SetValue(4 * i + 1, tensor.GetShape(1));
        out.SetValue(4 * i + 2, tensor.GetDataObj().GetValue(0));
        out.SetValue(4 * i + 3, *all.GetDataPtr<float>(i));
    }
}
