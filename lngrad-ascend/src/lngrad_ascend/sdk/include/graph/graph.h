// Graphs: which operators are run, what goes in, and what comes out.
#ifndef LNGRAD_GRAPH_GRAPH_H
#define LNGRAD_GRAPH_GRAPH_H

#include <set>
#include <utility>

#include "graph/operator.h"

namespace ge {

class Graph {
public:
    explicit Graph(const std::string& name = "") : name_(name) {}
    std::string GetName() const { return name_; }
    graphStatus GetName(AscendString& name) const { return name = name_.c_str(), GRAPH_SUCCESS; }
    bool IsValid() const { return !outputs_.empty(); }
    graphStatus AddOp(const Operator&) { return GRAPH_SUCCESS; } // those that outputs lead to are run
    Graph& SetInputs(const std::vector<Operator>& inputs)
    {
        inputs_.clear();
        for (const auto& input : inputs) {
            if (input.GetOpType() != "Const") inputs_.push_back(lngrad_graph::node_of(input));
        }
        return *this;
    }
    Graph& SetOutputs(const std::vector<Operator>& outputs)
    {
        outputs_.clear();
        for (const auto& output : outputs) {
            for (std::size_t index = 0; index < output.GetOutputsSize(); index++) outputs_.push_back({lngrad_graph::node_of(output), index});
        }
        return *this;
    }
    Graph& SetOutputs(const std::vector<std::pair<Operator, std::vector<std::size_t>>>& outputs)
    {
        outputs_.clear();
        for (const auto& [output, indices] : outputs) {
            for (std::size_t index : indices) outputs_.push_back({lngrad_graph::node_of(output), index});
        }
        return *this;
    }

    // Run the graph; Session calls this.
    graphStatus lngrad_run(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs) const
    {
        using namespace lngrad_graph;
        if (!IsValid()) return fail(name_ + ": expected a graph with outputs (SetOutputs), got none");
        if (inputs.size() != inputs_.size()) {
            return fail(name_ + ": expected " + std::to_string(inputs_.size()) + " inputs (SetInputs), got " + std::to_string(inputs.size()));
        }
        Nodes nodes;
        std::map<const Node*, std::shared_ptr<Node>> copies;
        std::set<const Node*> open;
        for (const auto& [node, index] : outputs_) {
            if (index >= node->outputs.size()) return fail(node->name + ": expected an output's index, got " + std::to_string(index));
            if (!add(node, nodes, copies, open)) return fail(name_ + ": expected a graph without cycles, got one through " + node->name);
        }
        auto sources = inputs_; // Data by their attribute index; without it, as SetInputs has them
        std::stable_sort(sources.begin(), sources.end(), [](const auto& left, const auto& right) { return position(*left) < position(*right); });
        for (std::size_t at = 0; at < inputs.size(); at++) {
            if (const auto copy = copies.find(sources[at].get()); copy != copies.end()) copy->second->tensor = &inputs[at];
        }
        std::vector<int64_t> facts;
        if (const auto ret = ask(nodes, facts, false); ret != GRAPH_SUCCESS) return ret;
        std::vector<Tensor> results;
        for (const auto& [node, index] : outputs_) {
            const int64_t* at = facts.data();
            const auto copy = copies.at(node.get());
            for (const auto& earlier : nodes) {
                if (earlier == copy) break;
                at += FACTS * earlier->outputs.size();
            }
            const auto desc = desc_of(at + FACTS * index);
            int64_t size = has_output(at + FACTS * index) ? GetSizeByDataType(desc.GetDataType()) : 0;
            for (int64_t dim : desc.GetShape().GetDims()) size *= dim;
            results.emplace_back(desc, std::vector<uint8_t>(std::size_t(size)));
            copy->results.resize(node->outputs.size());
        }
        for (std::size_t at = 0; at < results.size(); at++) { // no result moves any more
            if (results[at].GetSize() != 0) copies.at(outputs_[at].first.get())->results[outputs_[at].second] = results[at].GetData();
        }
        if (const auto ret = ask(nodes, facts, true); ret != GRAPH_SUCCESS) return ret;
        return outputs = std::move(results), GRAPH_SUCCESS;
    }

private:
    using Node = lngrad_graph::Node;
    static int64_t position(const Node& node)
    {
        const auto index = node.attributes.find("index");
        return index == node.attributes.end() ? 0 : std::get<int64_t>(index->second);
    }
    // A copy of a node after those that it reads; false in a cycle.
    static bool add(const std::shared_ptr<Node>& node, lngrad_graph::Nodes& nodes, std::map<const Node*, std::shared_ptr<Node>>& copies,
                    std::set<const Node*>& open)
    {
        if (copies.count(node.get()) != 0) return true;
        if (!open.insert(node.get()).second) return false;
        auto copy = std::make_shared<Node>(*node);
        for (auto& [input, link] : copy->links) {
            if (!add(link.source, nodes, copies, open)) return false;
            link.source = copies.at(link.source.get());
        }
        nodes.push_back(copies[node.get()] = copy);
        return true;
    }
    std::string name_;
    lngrad_graph::Nodes inputs_;
    std::vector<std::pair<std::shared_ptr<Node>, std::size_t>> outputs_;
};

} // namespace ge

#endif
