// A graph of two operators, LayerNorm and the LayerNormGrad that reads its mean and variance, through CANN's operator IR and
// graph engine, in C++; and a graph that is refused on purpose. It runs on any machine:
//
//     lngrad sdk --soc Ascend950 --run examples/cpp/graph_layer_norm.cpp
//
// It ends with 0 if y and the gradients are those of the formula in float64.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "array_ops.h"
#include "ge/ge_api.h"
#include "graph/graph.h"
#include "op_graph/layer_norm_grad_proto.h"
#include "op_graph/layer_norm_proto.h"

namespace {

constexpr int64_t rows = 6, columns = 40;
constexpr float epsilon = 1e-12f; // LayerNormGrad takes this constant for FLOAT, whatever the forward took

using Values = std::vector<float>;

// The inputs of a graph: their operators, and a tensor for each.
struct Inputs {
    std::vector<ge::Operator> operators;
    std::vector<ge::Tensor> tensors;

    ge::Operator add(const char *name, const ge::Shape &shape, const Values &values)
    {
        const ge::TensorDesc desc(shape, ge::FORMAT_ND, ge::DT_FLOAT);
        auto data = ge::op::Data(name).set_attr_index(int64_t(operators.size()));
        data.update_input_desc_x(desc);
        data.update_output_desc_y(desc);
        operators.push_back(data);
        tensors.emplace_back(desc, reinterpret_cast<const uint8_t *>(values.data()), values.size() * sizeof(float));
        return data;
    }
};

Values random_values(size_t count, float shift)
{
    static uint32_t state = 1;
    Values values(count);
    for (float &value : values) value = float((state = state * 1664525u + 1013904223u) >> 8) / float(1 << 23) - 1 + shift;
    return values;
}

// The largest distance from the formula, as a part of its largest value.
double distance(const ge::Tensor &tensor, const std::vector<double> &exact)
{
    Values values(exact.size());
    if (tensor.GetSize() != values.size() * sizeof(float)) return INFINITY;
    std::memcpy(values.data(), tensor.GetData(), tensor.GetSize());
    double largest = 0, size = 0;
    for (size_t i = 0; i < exact.size(); i++) {
        largest = std::max(largest, std::fabs(values[i] - exact[i]));
        size = std::max(size, std::fabs(exact[i]));
    }
    return largest / size;
}

} // namespace

int main()
{
    const Values x = random_values(rows * columns, 3), dy = random_values(rows * columns, 0);
    const Values gamma = random_values(columns, 1), beta = random_values(columns, 0);

    Inputs inputs;
    const auto x_node = inputs.add("x", {rows, columns}, x);
    const auto gamma_node = inputs.add("gamma", {columns}, gamma);
    const auto beta_node = inputs.add("beta", {columns}, beta);
    const auto dy_node = inputs.add("dy", {rows, columns}, dy);
    auto forward = ge::op::LayerNorm("forward");
    forward.set_input_x(x_node).set_input_gamma(gamma_node).set_input_beta(beta_node);
    forward.set_attr_begin_norm_axis(1).set_attr_begin_params_axis(1).set_attr_epsilon(epsilon);
    auto backward = ge::op::LayerNormGrad("backward");
    backward.set_input_dy(dy_node).set_input_x(x_node).set_input_gamma(gamma_node);
    backward.set_input_variance(forward, "variance").set_input_mean(forward, "mean");

    if (ge::GEInitialize(ge::Options()) != ge::SUCCESS) return 1;
    ge::Graph graph("layer_norm");
    graph.SetInputs(inputs.operators).SetOutputs({{forward, {0}}, {backward, {0, 1, 2}}});
    ge::Session session{ge::Options()};
    std::vector<ge::Tensor> outputs;
    ge::Status status = session.AddGraph(0, graph);
    if (status == ge::SUCCESS) status = session.RunGraph(0, inputs.tensors, outputs);
    if (status != ge::SUCCESS) {
        std::printf("%u: %s\n", status, ge::GEGetErrorMsg().c_str());
        return 1;
    }

    std::vector<double> y(rows * columns), pd_x(rows * columns), pd_gamma(columns), pd_beta(columns);
    for (int64_t row = 0; row < rows; row++) {
        const float *line = &x[row * columns], *slope = &dy[row * columns];
        double mean = 0, variance = 0, first = 0, second = 0;
        for (int64_t i = 0; i < columns; i++) mean += line[i] / double(columns);
        for (int64_t i = 0; i < columns; i++) variance += (line[i] - mean) * (line[i] - mean) / columns;
        const double rstd = 1 / std::sqrt(variance + epsilon);
        for (int64_t i = 0; i < columns; i++) {
            first += double(slope[i]) * gamma[i] / columns;
            second += double(slope[i]) * gamma[i] * (line[i] - mean) * rstd / columns;
        }
        for (int64_t i = 0; i < columns; i++) {
            const double xhat = (line[i] - mean) * rstd;
            y[row * columns + i] = xhat * gamma[i] + beta[i];
            pd_x[row * columns + i] = (double(slope[i]) * gamma[i] - first - xhat * second) * rstd;
            pd_gamma[i] += slope[i] * xhat;
            pd_beta[i] += slope[i];
        }
    }
    const std::vector<double> *exact[] = {&y, &pd_x, &pd_gamma, &pd_beta};
    const char *names[] = {"y", "pd_x", "pd_gamma", "pd_beta"};
    bool right = outputs.size() == 4;
    for (size_t i = 0; i < outputs.size() && right; i++) {
        const double error = distance(outputs[i], *exact[i]);
        std::printf("%s: within %.1e of the formula\n", names[i], error);
        right = error < 2e-6;
    }

    backward.set_input_gamma(dy_node); // on purpose: a gamma of another shape
    ge::Graph wrong("wrong");
    wrong.SetInputs(inputs.operators).SetOutputs(std::vector<ge::Operator>{backward});
    session.AddGraph(1, wrong);
    status = session.RunGraph(1, inputs.tensors, outputs);
    std::printf("refused with %u: %s\n", status, ge::GEGetErrorMsg().c_str());
    ge::GEFinalize();
    return right && status == ge::GRAPH_PARAM_INVALID ? 0 : 1;
}
