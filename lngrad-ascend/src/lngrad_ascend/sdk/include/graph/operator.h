// Operators of graphs: what an operator's prototype declares, what a program sets, and the questions that Python answers.
#ifndef LNGRAD_GRAPH_OPERATOR_H
#define LNGRAD_GRAPH_OPERATOR_H

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "graph/tensor.h"
#include "lngrad/graph_engine.h"

namespace ge {

class Operator;

namespace lngrad_graph {

using Attribute = std::variant<int64_t, float, bool, std::string, std::vector<int64_t>, std::vector<float>, std::vector<bool>>;
using Int = int64_t;
using Float = float;
using Bool = bool;
using String = std::string;
using ListInt = std::vector<int64_t>;
using ListFloat = std::vector<float>;
using ListBool = std::vector<bool>;

struct Node {
    struct Link {
        std::shared_ptr<Node> source;
        std::string output;
    };
    std::string name, type;
    std::vector<std::string> inputs, outputs;
    std::map<std::string, TensorDesc> input_descs, output_descs;
    std::map<std::string, Attribute> attributes;
    std::map<std::string, Link> links;
    std::shared_ptr<Tensor> value;  // of a Const
    const Tensor* tensor = nullptr; // its value, or a Data's while the graph runs
    std::vector<uint8_t*> results;  // where the outputs go, while it runs; null: nowhere
};
using Nodes = std::vector<std::shared_ptr<Node>>;

inline std::string& last_error()
{
    static thread_local std::string text;
    return text;
}

inline graphStatus fail(const std::string& text, graphStatus status = GRAPH_PARAM_INVALID) { return last_error() = text, status; }

inline std::string json(const std::string& text)
{
    std::string result = "\"";
    for (unsigned char letter : text) {
        char escaped[8];
        std::snprintf(escaped, sizeof escaped, letter < ' ' || letter == '"' || letter == '\\' ? "\\u%04x" : "%c", letter);
        result += escaped;
    }
    return result + "\"";
}
inline std::string json(const uint8_t* address) { return std::to_string(reinterpret_cast<intptr_t>(address)); }
inline std::string json(bool value) { return value ? "true" : "false"; }
inline std::string json(int64_t value) { return std::to_string(value); }
inline std::string json(float value)
{
    char text[32]; // the shortest that is this number: 1e-05, not 9.99999975e-06
    for (int digits = 6; digits <= 9; digits++) {
        std::snprintf(text, sizeof text, "%.*g", digits, value);
        if (std::strtof(text, nullptr) == value) break;
    }
    return value != value ? "NaN" : value - value != 0 ? value < 0 ? "-Infinity" : "Infinity" : text;
}
template <typename T>
std::string json(const std::vector<T>& values)
{
    std::string result;
    for (const auto& value : values) result += (result.empty() ? "" : ",") + json(T(value));
    return "[" + result + "]";
}
inline std::string json(const TensorDesc& desc)
{
    return "[" + std::to_string(int(desc.GetDataType())) + "," + json(desc.GetShape().GetDims()) + "]";
}

inline std::string describe(const Nodes& nodes, const Node& node)
{
    std::string links, attributes;
    for (const auto& [input, link] : node.links) {
        const auto at = std::find(nodes.begin(), nodes.end(), link.source) - nodes.begin();
        links += (links.empty() ? "" : ",") + json(input) + ":[" + std::to_string(at) + "," + json(link.output) + "]";
    }
    for (const auto& [name, value] : node.attributes) {
        attributes += (attributes.empty() ? "" : ",") + json(name) + ":" + std::visit([](const auto& known) { return json(known); }, value);
    }
    std::string text = "{\"op\":" + json(node.type) + ",\"name\":" + json(node.name) + ",\"outputs\":" + json(node.outputs);
    text += ",\"inputs\":{" + links + "},\"attributes\":{" + attributes + "}";
    if (const auto desc = node.output_descs.find("y"); node.links.empty() && desc != node.output_descs.end()) {
        text += ",\"declared\":" + json(desc->second);
    }
    if (node.tensor != nullptr) {
        text += ",\"tensor\":" + json(node.tensor->GetTensorDesc()) + ",\"address\":" + json(node.tensor->GetData());
        text += ",\"size\":" + json(int64_t(node.tensor->GetSize()));
    }
    return text + (node.results.empty() ? "" : ",\"results\":" + json(node.results)) + "}";
}

constexpr std::size_t FACTS = 10; // of an output: its type, its rank, 8 dimensions; type -1: not wanted

// Ask Python for the facts of every output, or where nodes have places for results, for these.
inline graphStatus ask(const Nodes& nodes, std::vector<int64_t>& facts, bool run)
{
    std::string text;
    for (const auto& node : nodes) text += (text.empty() ? "[" : ",") + describe(nodes, *node);
    text += "]";
    std::size_t count = 0;
    for (const auto& node : nodes) count += node->outputs.size();
    facts.resize(FACTS * count);
    const auto ret = run ? lngradGraphRun(text.data(), text.size())
                         : lngradGraphInfer(text.data(), text.size(), facts.data(), facts.size() * sizeof(int64_t));
    if (ret == 0) return GRAPH_SUCCESS;
    const char* reason = aclGetRecentErrMsg();
    return fail(reason == nullptr ? "" : reason, ret == ACL_ERROR_INVALID_PARAM ? GRAPH_PARAM_INVALID : GRAPH_FAILED);
}

inline bool has_output(const int64_t* facts) { return facts[0] >= 0; }
inline TensorDesc desc_of(const int64_t* facts)
{
    if (!has_output(facts)) return TensorDesc(Shape({0}));
    return TensorDesc(Shape(std::vector<int64_t>(facts + 2, facts + 2 + facts[1])), FORMAT_ND, DataType(facts[0]));
}

inline std::shared_ptr<Node> node_of(const Operator& op);

} // namespace lngrad_graph

class Operator {
    using Node = lngrad_graph::Node;

public:
    Operator() : Operator("", "") {}
    explicit Operator(const std::string& type) : Operator(type, type) {}
    Operator(const std::string& name, const std::string& type) : node_(std::make_shared<Node>())
    {
        node_->name = name.empty() ? type : name;
        node_->type = type;
    }
    bool IsEmpty() const { return node_->type.empty(); }
    std::string GetName() const { return node_->name; }
    std::string GetOpType() const { return node_->type; }
    graphStatus GetName(AscendString& name) const { return name = node_->name.c_str(), GRAPH_SUCCESS; }
    graphStatus GetOpType(AscendString& type) const { return type = node_->type.c_str(), GRAPH_SUCCESS; }
    std::size_t GetInputsSize() const { return node_->inputs.size(); }
    std::size_t GetOutputsSize() const { return node_->outputs.size(); }

    Operator& SetInput(const std::string& input, const Operator& source, const std::string& output)
    {
        return node_->links[input] = {source.node_, output}, *this;
    }
    Operator& SetInput(const std::string& input, const Operator& source, uint32_t index = 0)
    {
        const auto& outputs = source.node_->outputs;
        return SetInput(input, source, index < outputs.size() ? outputs[index] : "output " + std::to_string(index));
    }
    TensorDesc GetInputDescByName(const char* name) const { return of(node_->input_descs, name); }
    TensorDesc GetOutputDescByName(const char* name) const { return of(node_->output_descs, name); }
    TensorDesc GetInputDesc(const std::string& name) const { return of(node_->input_descs, name); }
    TensorDesc GetOutputDesc(const std::string& name) const { return of(node_->output_descs, name); }
    TensorDesc GetInputDesc(uint32_t index) const { return index < GetInputsSize() ? GetInputDesc(node_->inputs[index]) : TensorDesc(); }
    TensorDesc GetOutputDesc(uint32_t index) const { return index < GetOutputsSize() ? GetOutputDesc(node_->outputs[index]) : TensorDesc(); }
    graphStatus UpdateInputDesc(const std::string& name, const TensorDesc& desc) { return update(node_->inputs, node_->input_descs, name, desc); }
    graphStatus UpdateOutputDesc(const std::string& name, const TensorDesc& desc) { return update(node_->outputs, node_->output_descs, name, desc); }
    template <typename T>
    Operator& SetAttr(const std::string& name, const T& value)
    {
        if constexpr (std::is_same_v<T, bool> || !std::is_integral_v<T>) node_->attributes[name] = value;
        else node_->attributes[name] = int64_t(value);
        return *this;
    }
    Operator& SetAttr(const std::string& name, const char* value) { return SetAttr(name, std::string(value)); }
    Operator& SetAttr(const std::string&, const Tensor& value) // a Const's only one
    {
        node_->value = std::make_shared<Tensor>(value);
        return node_->tensor = node_->value.get(), *this;
    }
    template <typename T>
    graphStatus GetAttr(const std::string& name, T& value) const
    {
        const auto attribute = node_->attributes.find(name);
        const T* known = attribute == node_->attributes.end() ? nullptr : std::get_if<T>(&attribute->second);
        if (known == nullptr) return lngrad_graph::fail(node_->name + ": expected an attribute of this type, got " + name, GRAPH_FAILED);
        return value = *known, GRAPH_SUCCESS;
    }

    // Fill the descriptions of the outputs from those of the inputs.
    graphStatus InferShapeAndType()
    {
        auto node = std::make_shared<Node>(*node_);
        lngrad_graph::Nodes nodes;
        for (const auto& [input, desc] : node->input_descs) {
            auto data = std::make_shared<Node>(Node{input, "Data", {}, {"y"}, {}, {{"y", desc}}, {}, {}, nullptr, nullptr, {}});
            nodes.push_back(data);
            node->links[input] = {data, "y"};
        }
        nodes.push_back(node);
        std::vector<int64_t> facts;
        if (const auto ret = lngrad_graph::ask(nodes, facts, false); ret != GRAPH_SUCCESS) return ret;
        const int64_t* at = facts.data() + lngrad_graph::FACTS * (nodes.size() - 1);
        for (const auto& output : node_->outputs) {
            node_->output_descs[output] = lngrad_graph::desc_of(at);
            at += lngrad_graph::FACTS;
        }
        return GRAPH_SUCCESS;
    }

protected:
    bool declare_input(const char* name) { return node_->inputs.push_back(name), true; }
    bool declare_output(const char* name) { return node_->outputs.push_back(name), true; }

private:
    friend std::shared_ptr<Node> lngrad_graph::node_of(const Operator& op);
    static TensorDesc of(const std::map<std::string, TensorDesc>& descs, const std::string& name)
    {
        const auto desc = descs.find(name);
        return desc == descs.end() ? TensorDesc() : desc->second;
    }
    graphStatus update(const std::vector<std::string>& names, std::map<std::string, TensorDesc>& descs, const std::string& name, const TensorDesc& desc)
    {
        if (std::find(names.begin(), names.end(), name) == names.end()) {
            return lngrad_graph::fail(node_->name + ": expected an input or output of " + node_->type + ", got " + name);
        }
        return descs[name] = desc, GRAPH_SUCCESS;
    }
    std::shared_ptr<Node> node_;
};

inline std::shared_ptr<lngrad_graph::Node> lngrad_graph::node_of(const Operator& op) { return op.node_; }

} // namespace ge

#endif
