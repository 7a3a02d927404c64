// op_host of Ascend 950 beside A2's: constants of the same name, what is compiled, and a parameter that is refused.
#include "../add_custom_tiling.h"
#include "register/op_impl_registry.h"

namespace optiling {
const uint32_t TILE_NUM = 2;
struct Compiled { uint32_t cores; };
static ge::graphStatus Parse(gert::TilingParseContext* context)
{
    return context->GetCompiledInfo<Compiled>()->cores = context->GetPlatformInfo()->GetCoreNumAiv(), ge::GRAPH_SUCCESS;
}
static ge::graphStatus Tiling(gert::TilingContext* context)
{
    const gert::Shape& shape = context->GetInputShape(0)->GetStorageShape();
    if (shape.GetShapeSize() % 16384 != 0) {
        OP_LOGE_FOR_INVALID_SHAPE_WITH_REASON(context->GetNodeName(), "x", Ops::Base::ToString(shape), "16384 must divide its size");
        return ge::GRAPH_FAILED;
    }
    TilingData tiling;
    context->SetBlockDim(context->GetCompileInfo<Compiled>()->cores);
    context->SetTilingKey(1);
    tiling.set_totalLength(shape.GetShapeSize());
    tiling.set_tileNum(TILE_NUM);
    tiling.SaveToBuffer(context->GetRawTilingData()->GetData(), context->GetRawTilingData()->GetCapacity());
    context->GetRawTilingData()->SetDataSize(tiling.GetDataSize());
    return ge::GRAPH_SUCCESS;
}
IMPL_OP_OPTILING(AddCustom).Tiling(Tiling).TilingParse<Compiled>(Parse);
} // namespace optiling
