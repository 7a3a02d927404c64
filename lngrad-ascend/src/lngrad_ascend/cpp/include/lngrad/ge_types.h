// The types of operators' hosts and of graphs, without a kernel's.
#ifndef LNGRAD_GE_TYPES_H
#define LNGRAD_GE_TYPES_H

#include <cstddef>
#include <initializer_list>
#include <string>
#include <vector>

#include "lngrad/numbers.h"

namespace ge {

using graphStatus = uint32_t;
using char_t = char;
constexpr graphStatus GRAPH_SUCCESS = 0, GRAPH_FAILED = 0xFFFFFFFF, GRAPH_PARAM_INVALID = 50331649;
enum Format { FORMAT_NCHW = 0, FORMAT_NHWC, FORMAT_ND, FORMAT_NC1HWC0, FORMAT_FRACTAL_Z, FORMAT_FRACTAL_NZ = 29, FORMAT_NCDHW = 30 };
inline int GetSizeByDataType(DataType type)
{
    constexpr int sizes[] = {4, 2, 1, 4, 1, -1, 2, 2, 4, 8, 8, 8, 1};
    return type == 27 ? 2 : type <= 12 ? sizes[type] : -1; // DT_BF16, DT_BOOL, where these are macros too
}

struct AscendString : std::string {
    using std::string::string;
    const char* GetString() const { return c_str(); }
};

class Shape {
public:
    Shape() = default;
    explicit Shape(const std::vector<int64_t>& dims) : dims_(dims) {}
    Shape(std::initializer_list<int64_t> dims) : dims_(dims) {}
    std::size_t GetDimNum() const { return dims_.size(); }
    int64_t GetDim(std::size_t index) const { return index < dims_.size() ? dims_[index] : 0; }
    void SetDim(std::size_t index, int64_t value) { dims_.at(index) = value; }
    void AppendDim(int64_t value) { dims_.push_back(value); } std::vector<int64_t> GetDims() const { return dims_; }
    int64_t GetShapeSize() const
    {
        int64_t size = dims_.empty() ? 0 : 1;
        for (int64_t dim : dims_) size *= dim;
        return size;
    }

protected:
    std::vector<int64_t> dims_;
};

} // namespace ge

#endif
