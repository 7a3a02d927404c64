#pragma once
constexpr ge::DataType WANTED = ge::DT_FLOAT16, OTHER = ge::DataType::DT_BF16;
inline int place(ge::DataType type)
{
    using namespace ge;
    ge::DataType small = DT_FLOAT16;
    switch (type) {
        case ge::DT_FLOAT: return 10;
        case DT_BF16: return 20;
        default: return type == small ? 30 : 40;
    }
}
