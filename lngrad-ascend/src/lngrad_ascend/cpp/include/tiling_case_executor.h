// An operator's tiling as the unit tests of its kernel run it: a context's parameters in, what the tiling function made of them out.
#ifndef LNGRAD_TILING_CASE_EXECUTOR_H
#define LNGRAD_TILING_CASE_EXECUTOR_H

#include "lngrad/op_host.h"
#if __has_include("any_value.h")
#include "any_value.h"
#endif

using namespace std; // as the libraries' header has it

namespace gert {

struct TilingContextPara {
    struct TensorDescription : Tensor {
        TensorDescription(const StorageShape& shape, ge::DataType dtype, ge::Format, bool = false, const void* value = nullptr)
            : Tensor{shape, "", dtype, value} {}
    };
    struct OpAttr {
        template <typename Value> // of the library's any_value.h: its type as a number, and a pointer
        OpAttr(const std::string&, const Value& given)
        {
            const void* at = given.valuePtr_.get();
            if (given.type_ == Value::VT_STRING) value = *static_cast<const std::string*>(at);
            else if (given.type_ == Value::VT_FLOAT) value = *static_cast<const float*>(at);
            else if (given.type_ == Value::VT_BOOL) value = *static_cast<const bool*>(at);
            else if (given.type_ == Value::VT_INT) value = *static_cast<const int64_t*>(at);
        }
        Attr value;
    };
    using Tensors = std::vector<TensorDescription>;
    template <typename... Sizes>
    TilingContextPara(const std::string& name, const Tensors& inputs, const Tensors& outputs, const void* compiled = nullptr, Sizes...)
        : TilingContextPara(name, inputs, outputs, std::vector<OpAttr>(), compiled) {}
    template <typename... Sizes>
    TilingContextPara(const std::string& name, const Tensors& inputs, const Tensors& outputs, const std::vector<OpAttr>& attrs,
                      const void* compiled = nullptr, Sizes...)
    {
        context.name = name;
        context.inputs.assign(inputs.begin(), inputs.end());
        context.outputs.assign(outputs.begin(), outputs.end());
        for (const OpAttr& one : attrs) context.attrs.values.push_back(one.value);
        context.compiled = compiled;
    }
    TilingContext context;
};

} // namespace gert

struct TilingInfo {
    int64_t tilingKey = -1;
    std::vector<int64_t> workspaceSizes;
    std::unique_ptr<uint8_t[]> tilingData;
    std::size_t tilingDataSize = 0, blockNum = 0;
};

inline bool ExecuteTiling(const gert::TilingContextPara& parameters, TilingInfo& info)
{
    gert::TilingContext context = parameters.context;
    const lngrad::Tiling tiling = lngrad::definition().tiling;
    if (tiling == nullptr || tiling(&context) != ge::GRAPH_SUCCESS) return false;
    info.tilingKey = context.key;
    info.blockNum = context.blocks;
    info.workspaceSizes.assign(context.workspaces.begin(), context.workspaces.end());
    info.tilingDataSize = context.raw.GetDataSize();
    info.tilingData = std::make_unique<uint8_t[]>(info.tilingDataSize);
    std::memcpy(info.tilingData.get(), context.raw.GetData(), info.tilingDataSize);
    return true;
}

#endif
