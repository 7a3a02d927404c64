// Runs rows_backward on the simulated NPU from a plain C++ program, and checks its results.
//
//   lngrad sdk toolkit
//   c++ -std=c++17 $(lngrad sdk toolkit --cflags) rows_backward_main.cpp $(lngrad sdk toolkit --libs) -o rows
//   ./rows
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "tikicpulib.h"

#include "rows_backward.cpp"

namespace {

constexpr uint32_t ROWS = 50, COLUMNS = 64, BLOCKS = 4;
constexpr double TOLERANCE = 1e-5;

float* device_array(size_t count) { return static_cast<float*>(AscendC::GmAlloc(count * sizeof(float))); }

GM_ADDR address(void* memory) { return static_cast<GM_ADDR>(memory); }

// Numbers between -1 and 1 that are the same on every machine.
float number(uint32_t& state)
{
    state = state * 1664525u + 1013904223u;
    return static_cast<float>(state >> 8) / 8388608.0f - 1.0f;
}

} // namespace

int main()
{
    float *dy = device_array(ROWS * COLUMNS), *x = device_array(ROWS * COLUMNS), *dx = device_array(ROWS * COLUMNS);
    float *mean = device_array(ROWS), *rstd = device_array(ROWS);
    float *gamma = device_array(COLUMNS), *dgamma = device_array(COLUMNS), *dbeta = device_array(COLUMNS);
    void* workspace = AscendC::GmAlloc(2 * COLUMNS * BLOCKS * sizeof(float));
    auto* tiling = static_cast<RowsTiling*>(AscendC::GmAlloc(sizeof(RowsTiling)));
    *tiling = {ROWS, COLUMNS, (ROWS + BLOCKS - 1) / BLOCKS};

    uint32_t state = 1;
    for (uint32_t i = 0; i < ROWS * COLUMNS; ++i) {
        dy[i] = number(state);
        x[i] = number(state);
    }
    for (uint32_t j = 0; j < COLUMNS; ++j) gamma[j] = number(state);
    for (uint32_t i = 0; i < ROWS; ++i) {
        double sum = 0, squares = 0;
        for (uint32_t j = 0; j < COLUMNS; ++j) sum += x[i * COLUMNS + j];
        for (uint32_t j = 0; j < COLUMNS; ++j) squares += std::pow(x[i * COLUMNS + j] - sum / COLUMNS, 2);
        mean[i] = static_cast<float>(sum / COLUMNS);
        rstd[i] = static_cast<float>(1 / std::sqrt(squares / COLUMNS + 1e-5));
    }

    ICPU_RUN_KF(rows_backward, BLOCKS, address(dy), address(x), address(mean), address(rstd), address(gamma),
                address(dx), address(dgamma), address(dbeta), address(workspace), address(tiling));

    std::vector<double> sums(2 * COLUMNS);
    double worst = 0;
    for (uint32_t i = 0; i < ROWS; ++i) {
        double first = 0, second = 0;
        for (uint32_t j = 0; j < COLUMNS; ++j) {
            double d = dy[i * COLUMNS + j], xhat = (x[i * COLUMNS + j] - double(mean[i])) * rstd[i];
            first += d * gamma[j] / COLUMNS;
            second += d * gamma[j] * xhat / COLUMNS;
            sums[j] += d * xhat;
            sums[COLUMNS + j] += d;
        }
        for (uint32_t j = 0; j < COLUMNS; ++j) {
            double xhat = (x[i * COLUMNS + j] - double(mean[i])) * rstd[i];
            double expected = rstd[i] * (double(dy[i * COLUMNS + j]) * gamma[j] - first - xhat * second);
            worst = std::fmax(worst, std::fabs(dx[i * COLUMNS + j] - expected));
        }
    }
    for (uint32_t j = 0; j < COLUMNS; ++j) {
        worst = std::fmax(worst, std::fabs(dgamma[j] - sums[j]));
        worst = std::fmax(worst, std::fabs(dbeta[j] - sums[COLUMNS + j]));
    }
    std::printf("rows_backward: largest error %.1e, %s\n", worst, worst < TOLERANCE ? "ok" : "WRONG");
    for (void* memory : {(void*)dy, (void*)x, (void*)dx, (void*)mean, (void*)rstd, (void*)gamma, (void*)dgamma,
                         (void*)dbeta, workspace, (void*)tiling}) {
        AscendC::GmFree(memory);
    }
    return worst < TOLERANCE ? 0 : 1;
}
