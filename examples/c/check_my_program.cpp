// A backward of layer normalization in float32 as a program: lngrad check --impl 'cmd:./my_program {in} {out}' gives it cases.
// Build it: c++ -O2 -std=c++17 examples/c/check_my_program.cpp -o my_program; put your kernel in the place of `backward`.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

using Floats = std::vector<float>;
namespace fs = std::filesystem;

void backward(size_t M, size_t N, const float *dy, const float *x, const float *mean, const float *rstd, const float *gamma,
              float *dx, float *dgamma, float *dbeta)
{
    std::vector<double> sums(2 * N);
    for (size_t row = 0; row < M; ++row, dy += N, x += N, dx += N) {
        double first = 0, second = 0;
        for (size_t i = 0; i < N; ++i) {
            double xhat = (double(x[i]) - mean[row]) * rstd[row], dxhat = double(dy[i]) * gamma[i];
            first += dxhat, second += dxhat * xhat;
            sums[i] += dy[i] * xhat, sums[N + i] += dy[i];
        }
        for (size_t i = 0; i < N; ++i) {
            double xhat = (double(x[i]) - mean[row]) * rstd[row], dxhat = double(dy[i]) * gamma[i];
            dx[i] = float(rstd[row] * (dxhat - first / N - xhat * second / N));
        }
    }
    for (size_t i = 0; i < N; ++i)
        dgamma[i] = float(sums[i]), dbeta[i] = float(sums[N + i]);
}

Floats read(const fs::path &path)
{
    Floats values(fs::file_size(path) / sizeof(float));
    std::ifstream(path, std::ios::binary).read(reinterpret_cast<char *>(values.data()), values.size() * sizeof(float));
    return values;
}

void write(const fs::path &path, const Floats &values)
{
    std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char *>(values.data()), values.size() * sizeof(float));
}

int main(int, char **words)
{
    fs::path in = words[1], out = words[2];
    std::ifstream file(in / "case.json");
    std::string facts{std::istreambuf_iterator<char>(file), {}};
    if (facts.find("float16") != std::string::npos || facts.find("float64") != std::string::npos || !fs::exists(in / "gamma.bin")) {
        std::cerr << "float32 with a gamma alone\n";
        return 77; // skips the case
    }
    Floats dy = read(in / "dy.bin"), x = read(in / "x.bin"), mean = read(in / "mean.bin"), rstd = read(in / "rstd.bin");
    Floats gamma = read(in / "gamma.bin"), dx(x.size()), dgamma(gamma.size()), dbeta(gamma.size());
    backward(mean.size(), gamma.size(), dy.data(), x.data(), mean.data(), rstd.data(), gamma.data(), dx.data(), dgamma.data(),
             dbeta.data());
    write(out / "dx.bin", dx), write(out / "dgamma.bin", dgamma), write(out / "dbeta.bin", dbeta);
}
