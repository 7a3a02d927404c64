// Tensors of graphs: a description, and bytes of host memory.
#ifndef LNGRAD_GRAPH_TENSOR_H
#define LNGRAD_GRAPH_TENSOR_H

#include <string>
#include <vector>

#include "lngrad/ge_types.h"

namespace ge {

enum Placement { kPlacementHost = 0, kPlacementDevice = 1 };
constexpr int64_t UNKNOWN_DIM = -1, UNKNOWN_DIM_NUM = -2;

class TensorDesc {
public:
    TensorDesc() = default;
    explicit TensorDesc(const Shape& shape, Format format = FORMAT_ND, DataType type = DT_FLOAT)
        : shape_(shape), origin_(shape), format_(format), origin_format_(format), type_(type) {}
    void Update(const Shape& shape, Format format = FORMAT_ND, DataType type = DT_FLOAT) { *this = TensorDesc(shape, format, type); }
    Shape GetShape() const { return shape_; }
    void SetShape(const Shape& shape) { shape_ = shape; }
    Shape GetOriginShape() const { return origin_; }
    void SetOriginShape(const Shape& shape) { origin_ = shape; }
    Format GetFormat() const { return format_; }
    void SetFormat(Format format) { format_ = format; }
    Format GetOriginFormat() const { return origin_format_; }
    void SetOriginFormat(Format format) { origin_format_ = format; }
    DataType GetDataType() const { return type_; }
    void SetDataType(DataType type) { type_ = type; }
    int64_t GetRealDimCnt() const { return count_; }
    void SetRealDimCnt(int64_t count) { count_ = count; }
    Placement GetPlacement() const { return placement_; }
    void SetPlacement(Placement placement) { placement_ = placement; }

private:
    Shape shape_, origin_;
    Format format_ = FORMAT_ND, origin_format_ = FORMAT_ND;
    DataType type_ = DT_FLOAT;
    int64_t count_ = 0;
    Placement placement_ = kPlacementHost;
};

class Tensor {
public:
    Tensor() = default;
    explicit Tensor(const TensorDesc& desc) : desc_(desc) {}
    Tensor(const TensorDesc& desc, const std::vector<uint8_t>& data) : desc_(desc), data_(data) {}
    Tensor(const TensorDesc& desc, const uint8_t* data, std::size_t size) : desc_(desc), data_(data, data + size) {}
    TensorDesc GetTensorDesc() const { return desc_; }
    graphStatus SetTensorDesc(const TensorDesc& desc) { return desc_ = desc, GRAPH_SUCCESS; }
    const uint8_t* GetData() const { return data_.data(); }
    uint8_t* GetData() { return data_.data(); }
    std::size_t GetSize() const { return data_.size(); }
    graphStatus SetData(const std::vector<uint8_t>& data) { return data_ = data, GRAPH_SUCCESS; }
    graphStatus SetData(const uint8_t* data, std::size_t size)
    {
        if (data == nullptr && size != 0) return GRAPH_PARAM_INVALID;
        data_.assign(data, data + size);
        return GRAPH_SUCCESS;
    }

private:
    TensorDesc desc_;
    std::vector<uint8_t> data_;
};

} // namespace ge

#endif
