// The graph engine: sessions that run graphs. Status codes are those of graphs; GEGetErrorMsg has the text.
#ifndef LNGRAD_GE_API_H
#define LNGRAD_GE_API_H

#include "graph/graph.h"

namespace ge {

using Status = uint32_t;
constexpr Status SUCCESS = GRAPH_SUCCESS, FAILED = GRAPH_FAILED;

namespace lngrad_graph {
inline bool& is_initialized()
{
    static bool known = false;
    return known;
}
} // namespace lngrad_graph

using Options = std::map<AscendString, AscendString>; // none of them changes anything here
inline Status GEInitialize(const Options&) { return lngrad_graph::is_initialized() = true, SUCCESS; }
inline Status GEInitialize(const std::map<std::string, std::string>&) { return GEInitialize(Options()); }
inline Status GEFinalize() { return lngrad_graph::is_initialized() = false, SUCCESS; }

// The text of this thread's last error, which is forgotten.
inline std::string GEGetErrorMsg() { return std::exchange(lngrad_graph::last_error(), ""); }
inline AscendString GEGetErrorMsgV2() { return AscendString(GEGetErrorMsg().c_str()); }
inline AscendString GEGetWarningMsgV2() { return AscendString(); }
inline graphStatus aclgrphDumpGraph(const Graph&, const char*, std::size_t)
{
    return lngrad_graph::fail("aclgrphDumpGraph: expected a function that is here, got one that is not", GRAPH_FAILED);
}

class Session {
public:
    explicit Session(const Options&) {}
    explicit Session(const std::map<std::string, std::string>&) {}
    Session(const Session&) = delete;
    Status AddGraph(uint32_t id, const Graph& graph, const Options& = {})
    {
        if (!lngrad_graph::is_initialized()) return lngrad_graph::fail("AddGraph: expected GEInitialize before it", FAILED);
        if (!graphs_.emplace(id, graph).second) return lngrad_graph::fail("AddGraph: expected a new number, got " + std::to_string(id));
        return SUCCESS;
    }
    Status AddGraph(uint32_t id, const Graph& graph, const std::map<std::string, std::string>&) { return AddGraph(id, graph); }
    Status RemoveGraph(uint32_t id) { return graphs_.erase(id) != 0 ? SUCCESS : unknown("RemoveGraph", id); }
    Status RunGraph(uint32_t id, const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs)
    {
        if (!lngrad_graph::is_initialized()) return lngrad_graph::fail("RunGraph: expected GEInitialize before it", FAILED);
        const auto graph = graphs_.find(id);
        return graph == graphs_.end() ? unknown("RunGraph", id) : graph->second.lngrad_run(inputs, outputs);
    }

private:
    static Status unknown(const char* what, uint32_t id)
    {
        return lngrad_graph::fail(std::string(what) + ": expected the number of a graph that was added, got " + std::to_string(id));
    }
    std::map<uint32_t, Graph> graphs_;
};

} // namespace ge

#endif
