// A graph of LayerNormGradV3: `graph CASE TYPE INPUTS OUTPUTS`. Every case but "run" has something wrong: its status and
// text are printed. INPUTS has the bytes of dy, x, gamma in the type, and rstd, mean in float32; OUTPUTS gets the results.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "all_ops.h"
#include "ge_api.h"
#include "graph.h"
#include "tensor.h"
#include "types.h"

namespace ge {
REG_OP(Mystery).INPUT(x, TensorType::ALL()).OUTPUT(y, TensorType({DT_FLOAT})).OP_END_FACTORY_REG(Mystery)
} // namespace ge

using namespace ge;

int main(int, char** words)
{
    const std::string wrong = words[1];
    const auto type = DataType(std::atoi(words[2]));
    std::ifstream file(words[3], std::ios::binary);
    const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), {});
    std::size_t used = 0;
    std::vector<Operator> inputs;
    std::vector<Tensor> tensors;
    auto grad = op::LayerNormGradV3("grad");
    const auto tensor_of = [&](const TensorDesc& desc) {
        const std::size_t size = desc.GetShape().GetShapeSize() * GetSizeByDataType(desc.GetDataType());
        used += size;
        return Tensor(desc, reinterpret_cast<const uint8_t*>(bytes.data()) + used - size, size);
    };
    const auto add = [&](const char* name, const Shape& shape, DataType of) {
        const TensorDesc desc(shape, FORMAT_ND, of);
        auto data = op::Data(name).set_attr_index(int64_t(inputs.size()));
        data.update_output_desc_y(wrong == "declared" ? TensorDesc(Shape({-1, 7}), FORMAT_ND, of) : desc);
        grad.UpdateInputDesc(name, desc);
        grad.SetInput(name, data);
        inputs.push_back(data);
        tensors.push_back(tensor_of(desc));
    };
    add("dy", {2, 3, 4}, type);
    add("x", {2, 3, 4}, type);
    const Tensor gamma = tensor_of(TensorDesc(Shape({4}), FORMAT_ND, type));
    grad.set_input_gamma(op::Const("gamma").set_attr_value(gamma));
    add("rstd", {2, 3, 1}, DT_FLOAT);
    add("mean", {2, 3, 1}, DT_FLOAT);
    grad.update_input_desc_gamma(wrong == "infer" ? TensorDesc(Shape({5})) : gamma.GetTensorDesc());
    if (wrong == "missing") grad = op::LayerNormGradV3("grad").set_input_dy(inputs[0]);
    if (wrong == "mask") grad.set_attr_output_mask({true, false, true});
    if (wrong == "mask2") grad.set_attr_output_mask({true});
    if (wrong == "attribute") grad.SetAttr("epsilon", 1e-5f);
    if (wrong == "cycle") grad.set_input_dy(grad, "pd_x");
    if (wrong == "output") grad.set_input_dy(inputs[0], 3);
    if (wrong == "bytes") tensors[0].SetData(reinterpret_cast<const uint8_t*>(bytes.data()), 8);

    std::vector<Operator> results{grad};
    if (wrong == "mystery") results = {op::Mystery("what").set_input_x(grad)};
    std::vector<Tensor> outputs;
    Session session(Options{});
    Graph graph("graph");
    graph.SetInputs(inputs).SetOutputs(results);
    Status status = wrong == "start" ? SUCCESS : GEInitialize(Options());
    if (status == SUCCESS) status = session.AddGraph(7, graph, Options());
    if (wrong == "twice") status = session.AddGraph(7, graph);
    if (wrong == "fewer") tensors.pop_back();
    if (wrong == "infer") status = grad.InferShapeAndType();
    if (status == SUCCESS) status = session.RunGraph(wrong == "number" ? 8 : 7, tensors, outputs);
    if (status != SUCCESS) {
        std::printf("%u %s", status, GEGetErrorMsgV2().GetString());
        return 1;
    }
    grad.InferShapeAndType(); // from the descriptions alone
    std::ofstream results_file(words[4], std::ios::binary);
    for (std::size_t index = 0; index < outputs.size(); index++) {
        const auto desc = outputs[index].GetTensorDesc(), promised = grad.GetOutputDesc(uint32_t(index));
        std::printf("%d", int(desc.GetDataType()));
        for (int64_t dim : desc.GetShape().GetDims()) std::printf(" %d", int(dim));
        std::printf(promised.GetShape().GetDims() == desc.GetShape().GetDims() && promised.GetDataType() == desc.GetDataType() ? "\n" : "?\n");
        results_file.write(reinterpret_cast<const char*>(outputs[index].GetData()), std::streamsize(outputs[index].GetSize()));
    }
    return GEFinalize() == SUCCESS ? 0 : 1;
}
