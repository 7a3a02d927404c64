// The host side of an operator: its definition, and the contexts that its tiling and its shapes are worked out in.
#ifndef LNGRAD_OP_HOST_H
#define LNGRAD_OP_HOST_H

#include <iostream>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <unordered_set>
#include <variant>

#include "tiling/tiling_api.h"

namespace nlohmann { class json; } // of a library that some include, and few use: -I finds theirs

namespace ge {

inline Format GetPrimaryFormat(int format) { return Format(format); }
struct TypeUtils {
    static bool GetDataTypeLength(DataType type, uint32_t& length) { return (length = GetSizeByDataType(type)) != 0; }
    static std::string DataTypeToSerialString(int type) { return std::to_string(type); }
    static std::string FormatToSerialString(int format) { return std::to_string(format); }
};

} // namespace ge

namespace gert {

class Shape : public ge::Shape {
public:
    using ge::Shape::Shape;
    void SetDimNum(std::size_t count) { dims_.resize(count); }
    int64_t operator[](std::size_t index) const { return GetDim(index); } bool IsScalar() const { return GetDimNum() == 0; }
    int64_t GetShapeSize() const { return IsScalar() ? 1 : ge::Shape::GetShapeSize(); }
    bool operator==(const Shape& other) const { return GetDims() == other.GetDims(); }
    bool operator!=(const Shape& other) const { return !(*this == other); }
};

class StorageShape {
public:
    StorageShape() = default;
    StorageShape(const Shape& shape) : origin_(shape), storage_(shape) {}
    StorageShape(std::initializer_list<int64_t> origin, std::initializer_list<int64_t> storage) : origin_(origin), storage_(storage) {}
    const Shape& GetOriginShape() const { return origin_; } const Shape& GetStorageShape() const { return storage_; }
    const Shape& GetShape() const { return storage_; } Shape& MutableOriginShape() { return origin_; }
    Shape& MutableStorageShape() { return storage_; }
    bool operator==(const StorageShape& other) const { return origin_ == other.origin_ && storage_ == other.storage_; }

private:
    Shape origin_, storage_;
};

// An input or an output: its shape and type, and its bytes where the tiling may read them.
struct Tensor : StorageShape {
    std::string name;
    ge::DataType type = ge::DataType(0);
    const void* data = nullptr;
    ge::DataType GetDataType() const { return type; } ge::Format GetStorageFormat() const { return ge::FORMAT_ND; }
    ge::Format GetOriginFormat() const { return ge::FORMAT_ND; } const StorageShape& GetShape() const { return *this; }
    const Tensor& GetFormat() const { return *this; }
    int64_t GetShapeSize() const { return GetStorageShape().GetShapeSize(); }
    template <typename T>
    const T* GetData() const { return static_cast<const T*>(data); } const void* GetAddr() const { return data; }
};
using CompileTimeTensorDesc = Tensor;

struct TilingData {
    void* GetData() const { return const_cast<uint8_t*>(bytes); } std::size_t GetCapacity() const { return sizeof bytes; }
    std::size_t GetDataSize() const { return used; } void SetDataSize(std::size_t size) { used = size; }
    template <typename T>
    ge::graphStatus Append(const T& value) { return std::memcpy(bytes + used, &value, sizeof value), used += sizeof value, ge::GRAPH_SUCCESS; }
    alignas(8) uint8_t bytes[1 << 16] = {};
    std::size_t used = 0;
};

struct ContinuousVector { // a list as its bytes, of whatever type
    std::size_t GetSize() const { return size; } const void* GetData() const { return bytes.data(); }
    std::vector<uint8_t> bytes;
    std::size_t size = 0;
};
template <typename T>
struct TypedContinuousVector : ContinuousVector {
    TypedContinuousVector() = default;
    TypedContinuousVector(std::initializer_list<T> values) { for (const T& one : values) push_back(one); }
    void push_back(const T& value)
    {
        bytes.resize(++size * sizeof value);
        std::memcpy(&bytes[bytes.size() - sizeof value], &value, sizeof value);
    }
    const T* GetData() const { return reinterpret_cast<const T*>(bytes.data()); }
};

template <typename T> using List = TypedContinuousVector<T>;
using Attr = std::variant<int64_t, float, bool, std::string, List<int64_t>, List<float>, List<bool>>;
class RuntimeAttrs {
public:
    template <typename T> // what is there is not asked
    const T* GetAttrPointer(std::size_t index) const
    {
        if (index >= values.size()) return nullptr;
        auto text = std::get_if<std::string>(&values[index]);
        auto address = [](const auto& value) -> const void* { return &value; };
        return static_cast<const T*>(text ? text->c_str() : std::visit(address, values[index]));
    }
    const int64_t* GetInt(std::size_t index) const { return GetAttrPointer<int64_t>(index); }
    const float* GetFloat(std::size_t index) const { return GetAttrPointer<float>(index); }
    const bool* GetBool(std::size_t index) const { return GetAttrPointer<bool>(index); }
    auto GetListInt(std::size_t index) const { return GetAttrPointer<TypedContinuousVector<int64_t>>(index); }
    auto GetListBool(std::size_t index) const { return GetAttrPointer<TypedContinuousVector<bool>>(index); }
    auto GetListFloat(std::size_t index) const { return GetAttrPointer<TypedContinuousVector<float>>(index); }
    const char* GetStr(std::size_t index) const { return GetAttrPointer<char>(index); }
    std::size_t GetAttrNum() const { return values.size(); }
    std::vector<Attr> values;
};

class TilingContext {
public:
    std::vector<Tensor> inputs, outputs;
    std::vector<std::string> names; // of the definition's inputs, if it is known: of optional ones some are not in `inputs`
    RuntimeAttrs attrs;
    TilingData raw;
    std::vector<std::size_t> workspaces;
    std::string name;
    uint32_t blocks = 1;
    uint64_t key = 0;
    const void* compiled = nullptr;

#define LNGRAD_OPERAND(Kind, operand) \
    const StorageShape* Get##Kind##Shape(std::size_t i) const { return operand; } \
    const Tensor* Get##Kind##Tensor(std::size_t i) const { return operand; } \
    const Tensor* Get##Kind##Desc(std::size_t i) const { return operand; }
    LNGRAD_OPERAND(Input, at(inputs, i))
    LNGRAD_OPERAND(OptionalInput, defined(i))
    LNGRAD_OPERAND(RequiredInput, defined(i))
    LNGRAD_OPERAND(Output, at(outputs, i))
    const Tensor* defined(std::size_t i) const // by its place in the definition
    {
        for (const Tensor& one : inputs)
            if (i < names.size() && one.name == names[i]) return &one;
        return names.empty() ? at(inputs, i) : nullptr;
    }
    std::size_t GetComputeNodeInputNum() const { return inputs.size(); }
    std::size_t GetComputeNodeOutputNum() const { return outputs.size(); }
    const TilingContext* GetComputeNodeInfo() const { return this; }
    std::size_t GetInputsNum() const { return inputs.size(); } std::size_t GetOutputsNum() const { return outputs.size(); }
    const RuntimeAttrs* GetAttrs() const { return &attrs; } TilingData* GetRawTilingData() { return &raw; }
    template <typename T>
    T* GetTilingData()
    {
        raw.SetDataSize(sizeof(T));
        return static_cast<T*>(raw.GetData());
    }
    std::size_t* GetWorkspaceSizes(std::size_t count) { return workspaces.resize(count), workspaces.data(); }
    std::size_t GetWorkspaceNum() const { return workspaces.size(); }
    platform_ascendc::PlatformAscendC* GetPlatformInfo() const { return platform_ascendc::PlatformAscendCManager::GetInstance(); }
    const void* GetCompileInfo() const { return compiled; }
    template <typename T>
    const T* GetCompileInfo() const { return static_cast<const T*>(compiled); }
    const char* GetNodeName() const { return name.c_str(); } const char* GetNodeType() const { return name.c_str(); }
    template <typename T>
    T* GetCompiledInfo() const { return const_cast<T*>(GetCompileInfo<T>()); }
    ge::graphStatus SetBlockDim(uint32_t count) { return blocks = count, ge::GRAPH_SUCCESS; }
    ge::graphStatus SetLocalMemorySize(uint32_t) { return ge::GRAPH_SUCCESS; } uint32_t GetBlockDim() const { return blocks; }
    ge::graphStatus SetTilingKey(uint64_t value) { return key = value, ge::GRAPH_SUCCESS; }
    uint64_t GetTilingKey() const { return key; } int32_t GetDeterministic() const { return 0; }
    ge::graphStatus SetScheduleMode(uint32_t) { return ge::GRAPH_SUCCESS; }
    ge::graphStatus SetNeedAtomic(bool) { return ge::GRAPH_SUCCESS; }
    int NeedAtomic() const { return 0; } int GetTilingCond() const { return 0; } ge::graphStatus SetTilingCond(int) { return 0; }

    template <typename T>
    static T* at(const std::vector<T>& all, std::size_t i) { return i < all.size() ? const_cast<T*>(&all[i]) : nullptr; }
};
struct TilingParseContext : TilingContext {};
struct InferContext {
    TilingContext& of;
    const Shape* GetInputShape(std::size_t i) const { return i < of.inputs.size() ? &of.inputs[i].GetStorageShape() : nullptr; }
    const Shape* GetOptionalInputShape(std::size_t i) const
    {
        const StorageShape* found = of.GetOptionalInputShape(i);
        return found ? &found->GetStorageShape() : nullptr;
    }
    const Tensor* GetInputTensor(std::size_t i) const { return of.GetInputTensor(i); }
    Shape* GetOutputShape(std::size_t i) { return i < of.outputs.size() ? &of.outputs[i].MutableStorageShape() : nullptr; }
    const RuntimeAttrs* GetAttrs() const { return &of.attrs; } const char* GetNodeName() const { return of.GetNodeName(); }
    std::size_t GetComputeNodeInputNum() const { return of.inputs.size(); }
    ge::DataType GetInputDataType(std::size_t i) const { return i < of.inputs.size() ? of.inputs[i].type : ge::DataType(0); }
    ge::graphStatus SetOutputDataType(std::size_t i, ge::DataType type)
    {
        if (i < of.outputs.size()) of.outputs[i].type = type;
        return ge::GRAPH_SUCCESS;
    }
};
using InferShapeContext = InferContext;
using InferDataTypeContext = InferContext;

} // namespace gert

namespace fe {
using PlatFormInfos = platform_ascendc::PlatformAscendC;
}

namespace lngrad {

using Tiling = ge::graphStatus (*)(gert::TilingContext*);
using Shapes = ge::graphStatus (*)(gert::InferShapeContext*);
using Types = ge::graphStatus (*)(gert::InferDataTypeContext*);

// A parameter as the definition has it: its types, and whether it may be left out.
struct Parameter {
    std::string name;
    std::vector<ge::DataType> types;
    bool required = true;
};
struct Definition {
    std::string name;
    std::vector<Parameter> inputs, outputs;
    std::vector<std::pair<std::string, gert::Attr>> attrs;
    Tiling tiling = nullptr;
    ge::graphStatus (*parse)(gert::TilingParseContext*) = nullptr; // fills what is compiled
    void* compiled = nullptr;
    Shapes shapes = nullptr;
    Types types = nullptr;
};
inline std::string noted; // the parameter that a tiling function last refused
inline Definition& definition()
{
    static Definition known;
    return known;
}

} // namespace lngrad

// What says nothing here.
#define LNGRAD_SAID(Class, Name) \
    template <typename... Values> \
    Class& Name(Values&&...) { return *this; }

enum { REQUIRED = 0, OPTIONAL, DYNAMIC };
namespace ops {

class OpParamDef {
public:
    explicit OpParamDef(lngrad::Parameter& known) : known_(known) {}
    OpParamDef& ParamType(int type) { return known_.required = type != OPTIONAL, *this; }
    OpParamDef& DataType(std::vector<ge::DataType> types) { return known_.types = types, *this; }
    OpParamDef& DataTypeList(std::vector<ge::DataType> types) { return DataType(types); }
    OpParamDef& Format(std::vector<ge::Format>) { return *this; }
    OpParamDef& UnknownShapeFormat(std::vector<ge::Format>) { return *this; }
    OpParamDef& FormatList(std::vector<ge::Format>) { return *this; }
    LNGRAD_SAID(OpParamDef, ValueDepend)
    LNGRAD_SAID(OpParamDef, AutoContiguous)
    LNGRAD_SAID(OpParamDef, InitValue)

private:
    lngrad::Parameter& known_;
};
class OpAttrDef {
public:
    explicit OpAttrDef(gert::Attr& value) : value_(value) {}
    OpAttrDef& AttrType(int) { return *this; }
#define LNGRAD_ATTR(Name, T) \
    OpAttrDef& Name(T value = {}) { return value_ = value, *this; }
    LNGRAD_ATTR(Int, int64_t)
    LNGRAD_ATTR(Float, float)
    LNGRAD_ATTR(Bool, bool)
    LNGRAD_ATTR(String, std::string)
    LNGRAD_ATTR(ListInt, gert::TypedContinuousVector<int64_t>)
    LNGRAD_ATTR(ListBool, gert::TypedContinuousVector<bool>)
    LNGRAD_ATTR(ListFloat, gert::TypedContinuousVector<float>)

private:
    gert::Attr& value_;
};
class OpAICoreConfig {
public:
    LNGRAD_SAID(OpAICoreConfig, ExtendCfgInfo)
#define LNGRAD_FLAG(Name) LNGRAD_SAID(OpAICoreConfig, Name##Flag)
    LNGRAD_FLAG(DynamicCompileStatic) LNGRAD_FLAG(DynamicFormat) LNGRAD_FLAG(DynamicRankSupport)
    LNGRAD_FLAG(DynamicShapeSupport) LNGRAD_FLAG(NeedCheckSupport) LNGRAD_FLAG(PrecisionReduce)
    OpParamDef Input(const char*) { return OpParamDef(of_this_soc.emplace_back()); }
    OpParamDef Output(const char* name) { return Input(name); }

private:
    std::list<lngrad::Parameter> of_this_soc;
};
class OpAICoreDef {
public:
    OpAICoreDef& SetTiling(lngrad::Tiling tiling) { return lngrad::definition().tiling = tiling, *this; }
    LNGRAD_SAID(OpAICoreDef, AddConfig)
    LNGRAD_SAID(OpAICoreDef, SetCheckSupport)
};
class OpDef {
public:
    explicit OpDef(const char* name) { lngrad::definition().name = name; }
    OpParamDef Input(const char* name) { return parameter(lngrad::definition().inputs, name); }
    OpParamDef Output(const char* name) { return parameter(lngrad::definition().outputs, name); }
    OpAttrDef Attr(const char* name) { return OpAttrDef(lngrad::definition().attrs.emplace_back(name, gert::Attr()).second); }
    OpDef& SetInferShape(lngrad::Shapes shapes) { return lngrad::definition().shapes = shapes, *this; }
    OpDef& SetInferDataType(lngrad::Types types) { return lngrad::definition().types = types, *this; }
    OpAICoreDef& AICore() { return core_; }

private:
    static OpParamDef parameter(std::vector<lngrad::Parameter>& all, const char* name)
    {
        all.reserve(64); // definitions keep references
        return OpParamDef(all.emplace_back(lngrad::Parameter{name}));
    }
    OpAICoreDef core_;
};

} // namespace ops

namespace lngrad {
struct Registration {
    Registration& Tiling(lngrad::Tiling tiling) { return definition().tiling = tiling, *this; }
    Registration& InferShape(lngrad::Shapes shapes) { return definition().shapes = shapes, *this; }
    Registration& InferDataType(lngrad::Types types) { return definition().types = types, *this; }
    template <typename Info>
    Registration& TilingParse(ge::graphStatus (*parse)(gert::TilingParseContext*))
    {
        static Info info;
        return definition().compiled = &info, definition().parse = parse, *this;
    }
    LNGRAD_SAID(Registration, InputsDataDependency)
    Registration& TilingInputsDataDependency(std::initializer_list<int>) { return *this; }
};
} // namespace lngrad

namespace Ops::Base {

struct AiCoreParams {
    uint64_t ubSize = 0, blockDim = 0, aivNum = 0, aicNum = 0, l1Size = 0, l0aSize = 0, l0bSize = 0, l0cSize = 0, l2CacheSize = 0;
    int64_t coreNum = 0, socVersion = 0;
};
using CompileInfoCommon = AiCoreParams;
// A tiling in steps, which an operator's class fills in.
class TilingBaseClass {
public:
    explicit TilingBaseClass(gert::TilingContext* context) : context_(context) {}
    virtual ~TilingBaseClass() = default;
    virtual void Reset(gert::TilingContext* context) { context_ = context; }
    ge::graphStatus DoTiling()
    {
        ge::graphStatus done = GetShapeAttrsInfo();
        if (done == ge::GRAPH_SUCCESS) done = GetPlatformInfo();
        if (done == ge::GRAPH_SUCCESS && !IsCapable()) done = ge::GRAPH_PARAM_INVALID;
        if (done == ge::GRAPH_SUCCESS) done = DoOpTiling();
        if (done == ge::GRAPH_SUCCESS) done = DoLibApiTiling();
        if (done == ge::GRAPH_SUCCESS) done = GetWorkspaceSize();
        if (done == ge::GRAPH_SUCCESS) done = PostTiling();
        return done == ge::GRAPH_SUCCESS ? context_->SetTilingKey(GetTilingKey()) : done;
    }

protected:
    virtual bool IsCapable() = 0;
    virtual uint64_t GetTilingKey() const = 0;
#define LNGRAD_STEP(Name) virtual ge::graphStatus Name() = 0;
    LNGRAD_STEP(GetShapeAttrsInfo) LNGRAD_STEP(GetPlatformInfo) LNGRAD_STEP(DoOpTiling)
    LNGRAD_STEP(DoLibApiTiling) LNGRAD_STEP(GetWorkspaceSize) LNGRAD_STEP(PostTiling)
    gert::TilingContext* context_;
    AiCoreParams aicoreParams_;
    uint64_t blockDim_ = 0, workspaceSize_ = 0, tilingKey_ = 0;
};
inline bool IsRegbaseSocVersion(const void*) { return platform_ascendc::PlatformAscendC().GetCurNpuArch() == NpuArch::DAV_3510; }
inline uint32_t GetUbBlockSize(const void*) { return 32; }
inline uint32_t GetVRegSize(const void*) { return 256; }
using fp16_t = half;
inline uint32_t GetCacheLineSize(const void*) { return 256; }
constexpr int64_t UNKNOWN_RANK = -2, UNKNOWN_SIZE = -1;
inline void SetUnknownRank(gert::Shape& shape) { shape = gert::Shape({UNKNOWN_RANK}); }
inline bool IsUnknownRank(const gert::Shape& shape) { return shape.GetDimNum() == 1 && shape[0] == UNKNOWN_RANK; }
inline void SetUnknownShape(int64_t rank, gert::Shape& shape) { shape = gert::Shape(std::vector<int64_t>(rank, UNKNOWN_SIZE)); }
inline bool IsUnknownShape(const gert::Shape& s) { const auto all = s.GetDims(); return std::count(all.begin(), all.end(), -1) > 0; }
inline std::string ToString(int type) { return std::to_string(type); }
inline std::string ToString(const gert::Shape& shape)
{
    std::string text;
    for (int64_t size : shape.GetDims()) text += (text.empty() ? "[" : ", ") + std::to_string(size);
    return text + "]";
}

} // namespace Ops::Base
namespace Ops::Cv { using namespace Ops::Base; namespace OpTiling { using namespace Ops::Base; } }

#define OP_ADD(Name, ...) static const Name lngrad_operator_##Name(#Name)
#define LNGRAD_REGISTRATION(Name, line) static const lngrad::Registration lngrad_##Name##line = lngrad::Registration()
#define LNGRAD_REGISTRATION_AT(Name, line) LNGRAD_REGISTRATION(Name, line)
#define IMPL_OP(Name) LNGRAD_REGISTRATION_AT(Name, __COUNTER__)
#define IMPL_OP_OPTILING(Name) IMPL_OP(Name)
#define IMPL_OP_INFERSHAPE(Name) IMPL_OP(Name)

// Logs go nowhere, but for what is said of a parameter; a check that fails returns.
#define OP_LOGD(...)
#define OP_LOGI(...)
#define OP_LOGW(...)
#define OP_LOGE(...)
#define OP_LOGE_WITHOUT_REPORT(...)
#define REPORT_INNER_ERR_MSG(...)
#define LNGRAD_INVALID(node, name, ...) lngrad::noted = name
#include "lngrad/refusals.h"
#define OP_CHECK_IF(condition, log, result) do { if (condition) { log; result; } } while (0)
#define OP_CHECK_NULL_WITH_CONTEXT(context, pointer) do { if ((pointer) == nullptr) return ge::GRAPH_FAILED; } while (0)
#define OP_TILING_CHECK(condition, log, result) do { if (condition) { log; result; } } while (0)

#endif
