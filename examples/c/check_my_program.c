/* A backward of layer normalization as a program of its own, for `lngrad check --impl 'cmd:./my_program {in} {out}'`.
 *
 * It reads IN/dy.bin, x.bin, mean.bin, rstd.bin and gamma.bin and writes OUT/dx.bin, dgamma.bin and dbeta.bin. The sizes
 * are those of the files. It takes float32 with a gamma, and skips every other case by exit code 77.
 *
 *     cc -O2 check_my_program.c -lm -o my_program
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static float *read_floats(const char *folder, const char *name, size_t *count)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "rb");
    if (!file) {
        fprintf(stderr, "this program needs %s\n", name);
        exit(77);
    }
    fseek(file, 0, SEEK_END);
    long bytes = ftell(file);
    rewind(file);
    float *values = malloc(bytes > 0 ? (size_t)bytes : 1);
    *count = (size_t)bytes / sizeof(float);
    if (!values || fread(values, sizeof(float), *count, file) != *count)
        exit(4);
    fclose(file);
    return values;
}

static void write_floats(const char *folder, const char *name, const float *values, size_t count)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(values, sizeof(float), count, file) != count || fclose(file))
        exit(5);
}

static void require_float32(const char *folder)
{
    char path[4096], text[4096] = "";
    snprintf(path, sizeof path, "%s/case.json", folder);
    FILE *file = fopen(path, "rb");
    if (!file || !fread(text, 1, sizeof text - 1, file))
        exit(3);
    fclose(file);
    if (strstr(text, "float16") || strstr(text, "float64")) { /* bfloat16 has float16 in its name */
        fprintf(stderr, "this program takes float32 alone\n");
        exit(77);
    }
}

int main(int count, char **words)
{
    if (count != 3) {
        fprintf(stderr, "usage: my_program IN OUT\n");
        return 2;
    }
    const char *in = words[1], *out = words[2];
    require_float32(in);
    size_t elements, rows, columns, same;
    float *dy = read_floats(in, "dy.bin", &elements), *x = read_floats(in, "x.bin", &same);
    float *mean = read_floats(in, "mean.bin", &rows), *rstd = read_floats(in, "rstd.bin", &same);
    float *gamma = read_floats(in, "gamma.bin", &columns);
    float *dx = malloc(elements * sizeof(float) + 1);
    double *sums = calloc(2 * columns + 1, sizeof(double));
    float *narrow = malloc(2 * columns * sizeof(float) + 1);
    if (!dx || !sums || !narrow)
        return 4;
    for (size_t row = 0; row < rows; ++row) {
        double first = 0, second = 0;
        for (size_t column = 0; column < columns; ++column) {
            size_t at = row * columns + column;
            double xhat = ((double)x[at] - mean[row]) * rstd[row], dxhat = (double)dy[at] * gamma[column];
            first += dxhat;
            second += dxhat * xhat;
            sums[column] += dy[at] * xhat;
            sums[columns + column] += dy[at];
        }
        for (size_t column = 0; column < columns; ++column) {
            size_t at = row * columns + column;
            double xhat = ((double)x[at] - mean[row]) * rstd[row], dxhat = (double)dy[at] * gamma[column];
            dx[at] = (float)(rstd[row] * (dxhat - first / columns - xhat * (second / columns)));
        }
    }
    for (size_t column = 0; column < 2 * columns; ++column)
        narrow[column] = (float)sums[column];
    write_floats(out, "dx.bin", dx, elements);
    write_floats(out, "dgamma.bin", narrow, columns);
    write_floats(out, "dbeta.bin", narrow + columns, columns);
    free(dy), free(x), free(mean), free(rstd), free(gamma), free(dx), free(sums), free(narrow);
    return 0;
}
