// The marks by which an operator lists its template arguments for the operator build, and the tiling key of some values.
#ifndef LNGRAD_TEMPLATE_ARGUMENT_H
#define LNGRAD_TEMPLATE_ARGUMENT_H

#include <algorithm>
#include <cstdint>
#include <vector>

namespace lngrad {
struct TemplateArgument {
    int bits;
    std::vector<uint64_t> listed; // of UINT: whether ranges come first and how many, and values, whose place is in the key
};
static std::vector<TemplateArgument> template_arguments;
inline uint64_t template_key(const std::vector<TemplateArgument>& arguments, const std::vector<uint64_t>& given, uint64_t key = 0)
{
    for (std::size_t i = 0, shift = 0; i < std::min(arguments.size(), given.size()); shift += arguments[i++].bits) {
        uint64_t value = given[i];
        if (auto listed = arguments[i].listed.begin(), end = arguments[i].listed.end(); listed != end) {
            std::vector<uint64_t> all;
            for (uint64_t ranges = *listed++ == 1 ? 0 : *listed++; ranges--; listed += 2)
                for (uint64_t one = listed[0]; one <= listed[1]; ++one) all.push_back(one);
            all.insert(all.end(), listed, end);
            value = std::find(all.begin(), all.end(), value) - all.begin();
            if (value == all.size()) return ~uint64_t(0);
        }
        key |= value << shift;
    }
    return key;
}
} // namespace lngrad

enum { ASCENDC_TPL_UI_RANGE, ASCENDC_TPL_UI_LIST, ASCENDC_TPL_UI_MIX };
enum { ASCENDC_TPL_1_BW = 1, ASCENDC_TPL_2_BW = 2, ASCENDC_TPL_4_BW = 4, ASCENDC_TPL_8_BW = 8 };
#define ASCENDC_TPL_DTYPE_DECL(...) lngrad::TemplateArgument{8, {}}
#define ASCENDC_TPL_DATATYPE_DECL ASCENDC_TPL_DTYPE_DECL
#define ASCENDC_TPL_FORMAT_DECL ASCENDC_TPL_DTYPE_DECL
#define ASCENDC_TPL_BOOL_DECL(...) lngrad::TemplateArgument{1, {}}
#define ASCENDC_TPL_UINT_DECL(x, bits, ...) lngrad::TemplateArgument{bits, {__VA_ARGS__}}
#define LNGRAD_DECLARED(number, ...) static const bool lngrad_arguments_##number = (lngrad::template_arguments = {__VA_ARGS__}, true)
#define LNGRAD_DECLARED_AT(number, ...) LNGRAD_DECLARED(number, __VA_ARGS__)
#define ASCENDC_TPL_ARGS_DECL(x, ...) LNGRAD_DECLARED_AT(__COUNTER__, __VA_ARGS__) // some headers come twice
#define ASCENDC_TPL_SEL(...) static_assert(true, "")
#define GET_TPL_TILING_KEY(...) lngrad::template_key(lngrad::template_arguments, {__VA_ARGS__})
#define ASCENDC_TPL_SEL_PARAM(context, ...) (context)->SetTilingKey(GET_TPL_TILING_KEY(__VA_ARGS__))

#endif
