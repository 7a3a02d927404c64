// REG_OP and what follows it: an operator's prototype becomes its class, with a function for each input, output and attribute.
//
// The chain REG_OP(A).INPUT(x, …).OP_END_FACTORY_REG(A) has a point before each link: the text of a link ends within a
// function whose last word the point of the next one follows. Members that declare are initialised in the chain's order.
#ifndef LNGRAD_GRAPH_OPERATOR_REG_H
#define LNGRAD_GRAPH_OPERATOR_REG_H

#include "graph/operator.h"

namespace ge {

// The types that a prototype lists; Python knows them.
struct TensorType {
    TensorType(std::initializer_list<DataType>) {}
    explicit TensorType(DataType) {}
    static TensorType ALL() { return {}; }
    static TensorType FLOAT() { return {}; }
    static TensorType NumberType() { return {}; }
    static TensorType BasicType() { return {}; }
};

namespace lngrad_graph {
struct Chain {
    void link() const {}
};
} // namespace lngrad_graph

} // namespace ge

#define REG_OP(op_type) \
    namespace op { \
    class op_type : public Operator { \
        using This = op_type; \
\
    public: \
        op_type(const std::string& name = "") : Operator(name, #op_type) {} \
        static void chain() { ::ge::lngrad_graph::Chain()
#define INPUT(x, type) \
    link(); } \
    bool declares_input_##x = declare_input(#x); \
    This& set_input_##x(const Operator& source) { return SetInput(#x, source), *this; } \
    This& set_input_##x(const Operator& source, uint32_t index) { return SetInput(#x, source, index), *this; } \
    This& set_input_##x(const Operator& source, const std::string& output) { return SetInput(#x, source, output), *this; } \
    This& set_input_##x##_by_name(const Operator& source, const char* output) { return SetInput(#x, source, output), *this; } \
    TensorDesc get_input_desc_##x() const { return GetInputDesc(#x); } \
    graphStatus update_input_desc_##x(const TensorDesc& desc) { return UpdateInputDesc(#x, desc); } \
    static void chain_input_##x() { ::ge::lngrad_graph::Chain()
#define OPTIONAL_INPUT(x, type) INPUT(x, type)
#define OUTPUT(y, type) \
    link(); } \
    bool declares_output_##y = declare_output(#y); \
    static std::string name_out_##y() { return #y; } \
    TensorDesc get_output_desc_##y() const { return GetOutputDesc(#y); } \
    graphStatus update_output_desc_##y(const TensorDesc& desc) { return UpdateOutputDesc(#y, desc); } \
    static void chain_output_##y() { ::ge::lngrad_graph::Chain()
#define ATTR(a, type, ...) \
    link(); } \
    bool declares_attr_##a = (SetAttr(#a, ::ge::lngrad_graph::type(__VA_ARGS__)), true); \
    static std::string name_attr_##a() { return #a; } \
    This& set_attr_##a(const ::ge::lngrad_graph::type& value) { return SetAttr(#a, value), *this; } \
    ::ge::lngrad_graph::type get_attr_##a() const \
    { \
        ::ge::lngrad_graph::type value{}; \
        GetAttr(#a, value); \
        return value; \
    } \
    static void chain_attr_##a() { ::ge::lngrad_graph::Chain()
#define OP_END_FACTORY_REG(op_type) \
    link(); } \
    }; \
    }

#endif
