// The operators that are no computation: a graph's inputs and constants.
#ifndef LNGRAD_ARRAY_OPS_H
#define LNGRAD_ARRAY_OPS_H

#include "graph/operator_reg.h"

namespace ge {

namespace op {
class Const : public Operator {
public:
    Const(const std::string& name = "") : Operator(name, "Const") { declare_output("y"); }
    Const& set_attr_value(const Tensor& value) { return SetAttr("value", value), *this; }
    TensorDesc get_output_desc_y() const { return GetOutputDesc("y"); }
    graphStatus update_output_desc_y(const TensorDesc& desc) { return UpdateOutputDesc("y", desc); }
};
} // namespace op

REG_OP(Data)
    .INPUT(x, TensorType::ALL())
    .OUTPUT(y, TensorType::ALL())
    .ATTR(index, Int, 0)
    .OP_END_FACTORY_REG(Data)

} // namespace ge

#endif
