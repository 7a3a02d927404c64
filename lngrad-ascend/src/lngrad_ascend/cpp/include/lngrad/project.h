// Runs what an operator's op_host has registered. Text in, a line for each thing; text out.
#ifndef LNGRAD_PROJECT_H
#define LNGRAD_PROJECT_H

#include <sstream>

#include "lngrad/op_host.h"
#include "lngrad/python.h"

namespace lngrad {

inline std::string answer;

inline void describe(std::ostream& out, const char* side, const std::vector<Parameter>& all)
{
    for (const Parameter& one : all) {
        out << side << " " << one.name << " " << one.required;
        for (int type : one.types) out << " " << type;
        out << "\n";
    }
}

template <typename T>
bool take_list(gert::Attr& value, std::istream& words) // as 1,2,3
{
    if (!std::holds_alternative<gert::TypedContinuousVector<T>>(value)) return false;
    gert::TypedContinuousVector<T> all;
    for (T one; words >> one; words.ignore()) all.push_back(one);
    value = all;
    return true;
}

// A line: input or output, the name, the type, the address of its bytes, the sizes; or attr, the name, the value.
inline void take(gert::TilingContext& context, const std::string& line)
{
    std::istringstream words(line);
    std::string side, name;
    words >> side >> name;
    if (side == "attr") {
        for (auto& [known, value] : definition().attrs) {
            std::string text;
            if (known != name || take_list<int64_t>(value, words) || take_list<float>(value, words) ||
                take_list<bool>(value, words) || !(words >> text)) continue;
            if (std::holds_alternative<float>(value)) value = std::stof(text);
            else if (std::holds_alternative<bool>(value)) value = text == "1";
            else if (std::holds_alternative<std::string>(value)) value = text;
            else value = int64_t(std::stoll(text));
        }
        return;
    }
    int type = 0;
    std::size_t address = 0;
    std::vector<int64_t> sizes;
    words >> type >> address;
    for (int64_t size; words >> size;) sizes.push_back(size);
    const void* data = reinterpret_cast<const void*>(address);
    (side == "input" ? context.inputs : context.outputs).push_back({gert::Shape(sizes), name, ge::DataType(type), data});
}

inline std::string work(const std::string& request)
{
    std::ostringstream out;
    const Definition& known = definition();
    if (request.empty()) {
        out << "operator " << known.name << "\n";
        describe(out, "input", known.inputs);
        describe(out, "output", known.outputs);
        for (auto& [name, value] : known.attrs) out << "attr " << name << " " << value.index() << "\n";
        return out.str();
    }
    gert::TilingContext context;
    context.name = known.name;
    for (const Parameter& one : known.inputs) context.names.push_back(one.name);
    std::istringstream lines(request);
    for (std::string line; std::getline(lines, line);) take(context, line);
    for (auto& [name, value] : known.attrs) context.attrs.values.push_back(value);
    gert::InferContext inferring{context};
    bool inferred = false;
    for (const gert::Tensor& one : context.outputs) inferred = inferred || one.GetStorageShape().GetDimNum() == 0;
    if (inferred && known.types != nullptr) known.types(&inferring);
    if (inferred && known.shapes != nullptr && known.shapes(&inferring) != ge::GRAPH_SUCCESS) return "failed the inference of shapes\n";
    for (gert::Tensor& one : context.outputs) {
        const bool known_now = one.GetStorageShape().GetDimNum() > 0 || context.inputs.empty();
        static_cast<gert::StorageShape&>(one) = gert::StorageShape((known_now ? one : context.inputs[0]).GetStorageShape());
        out << "output " << one.name << " " << one.type;
        for (int64_t size : one.GetStorageShape().GetDims()) out << " " << size;
        out << "\n";
    }
    context.compiled = known.compiled;
    gert::TilingParseContext parsing{context};
    if (known.parse != nullptr && known.parse(&parsing) != ge::GRAPH_SUCCESS) return "failed the function of TilingParse\n";
    if (known.tiling != nullptr && known.tiling(&context) != ge::GRAPH_SUCCESS) return "failed the tiling function\n" + noted;
    std::size_t workspace = 0;
    for (std::size_t one : context.workspaces) workspace += one;
    out << "blocks " << context.blocks << "\nkey " << context.key << "\nworkspace " << workspace << "\ntiling ";
    auto bytes = static_cast<const uint8_t*>(context.raw.GetData());
    for (std::size_t i = 0; i < context.raw.GetDataSize(); ++i) out << "0123456789abcdef"[bytes[i] >> 4] << "0123456789abcdef"[bytes[i] & 15];
    out << "\n";
    return out.str();
}

} // namespace lngrad

extern "C" lngrad::Answer lngrad_kernel_connect(void)
{
    return [](lngrad::Call* call, int* outcome) { *outcome = lngrad::ask_python(call); };
}
extern "C" const char* lngrad_kernel_fault(void) { return "the simulator refuses it"; }
extern "C" void lngrad_bind(_object* answer) { lngrad::python = answer; }
extern "C" const char* lngrad_project(const char* request)
{
    try {
        lngrad::answer = lngrad::work(request);
    } catch (const std::exception& error) {
        lngrad::answer = std::string("failed op_host: ") + error.what() + "\n";
    }
    return lngrad::answer.c_str();
}

#endif
