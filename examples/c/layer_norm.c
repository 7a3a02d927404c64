/* One training step of layer normalization through CANN's interfaces, in C: forward, backward, a strided gradient, an
 * executor that runs twice, and an error on purpose. It runs on any machine:
 *
 *     lngrad sdk --run examples/c/layer_norm.c
 *
 * It ends with 0 if every value is what the formula gives in double precision.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "acl/acl.h"
#include "aclnnop/aclnn_layer_norm.h"
#include "aclnnop/aclnn_layer_norm_backward.h"

enum { ROWS = 3, COLUMNS = 4, SIZE = ROWS * COLUMNS };

static const double EPS = 1e-5;
static int wrong;

#define CHECK(call)                                                                    \
    do {                                                                               \
        int status = (call);                                                           \
        if (status != ACL_SUCCESS) {                                                   \
            const char *text = aclGetRecentErrMsg();                                   \
            fprintf(stderr, "%s: %d: %s\n", #call, status, text ? text : "no text");   \
            exit(1);                                                                   \
        }                                                                              \
    } while (0)

/* A tensor on the device with these values. A stride of 0 in `strides[0]` means contiguous. */
static aclTensor *on_device(const float *values, const int64_t *shape, uint64_t dims, const int64_t *strides, void **address)
{
    size_t count = 1;
    for (uint64_t i = 0; i < dims; i++) count *= (size_t)shape[i];
    const size_t bytes = count * sizeof(float);
    CHECK(aclrtMalloc(address, bytes, ACL_MEM_MALLOC_HUGE_FIRST));
    CHECK(aclrtMemcpy(*address, bytes, values, bytes, ACL_MEMCPY_HOST_TO_DEVICE));
    const int64_t elements = (int64_t)count;
    aclTensor *tensor = aclCreateTensor(shape, dims, ACL_FLOAT, strides, 0, ACL_FORMAT_ND, &elements, 1, *address);
    if (tensor == NULL) {
        fprintf(stderr, "aclCreateTensor: %s\n", aclGetRecentErrMsg());
        exit(1);
    }
    return tensor;
}

static void compare(const char *name, const float *got, const double *expected, int count)
{
    printf("%-10s", name);
    for (int i = 0; i < count; i++) {
        printf(" %9.5f", got[i]);
        if (fabs(got[i] - expected[i]) > 1e-4 * (1 + fabs(expected[i]))) wrong = 1;
    }
    printf("\n");
}

static void fetch(const char *name, void *address, const double *expected, int count)
{
    float got[SIZE];
    const size_t bytes = (size_t)count * sizeof(float);
    CHECK(aclrtMemcpy(got, sizeof got, address, bytes, ACL_MEMCPY_DEVICE_TO_HOST));
    compare(name, got, expected, count);
}

/* The formulas, in double precision, from row-major arrays. */
static void formulas(const float *x, const float *dy, const float *gamma, const float *beta, double *y, double *dx,
                     double *dgamma, double *dbeta)
{
    for (int j = 0; j < COLUMNS; j++) dgamma[j] = dbeta[j] = 0;
    for (int i = 0; i < ROWS; i++) {
        const float *row = x + i * COLUMNS, *grad = dy + i * COLUMNS;
        double mean = 0, variance = 0, sum = 0, sum_xhat = 0;
        for (int j = 0; j < COLUMNS; j++) mean += row[j] / (double)COLUMNS;
        for (int j = 0; j < COLUMNS; j++) variance += (row[j] - mean) * (row[j] - mean) / COLUMNS;
        const double rstd = 1 / sqrt(variance + EPS);
        for (int j = 0; j < COLUMNS; j++) {
            const double xhat = (row[j] - mean) * rstd;
            y[i * COLUMNS + j] = xhat * gamma[j] + beta[j];
            dgamma[j] += grad[j] * xhat;
            dbeta[j] += grad[j];
            sum += grad[j] * gamma[j] / COLUMNS;
            sum_xhat += grad[j] * gamma[j] * xhat / COLUMNS;
        }
        for (int j = 0; j < COLUMNS; j++) {
            const double xhat = (row[j] - mean) * rstd;
            dx[i * COLUMNS + j] = (grad[j] * gamma[j] - sum - xhat * sum_xhat) * rstd;
        }
    }
}

int main(void)
{
    const int64_t shape[] = {ROWS, COLUMNS}, row_shape[] = {ROWS, 1}, column_shape[] = {COLUMNS};
    const float x[SIZE] = {1, 2, 4, 8, -3, 0.5f, 2.5f, 7, 100, 101, 99, 104};
    const float dy[SIZE] = {0.5f, -1, 2, 3, 1, 1.5f, -2, 0.25f, -0.75f, 4, 1, -1};
    const float gamma[COLUMNS] = {1.5f, -0.5f, 2, 0.75f}, beta[COLUMNS] = {0.1f, 0.2f, -0.3f, 0.4f};
    const float zeros[SIZE] = {0};
    float dy_columns[SIZE]; /* the same gradient, column by column: a view with strides, no copy on the device */
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLUMNS; j++) dy_columns[j * ROWS + i] = dy[i * COLUMNS + j];
    const int64_t by_columns[] = {1, ROWS};

    aclrtStream stream = NULL;
    CHECK(aclInit(NULL));
    CHECK(aclrtSetDevice(0));
    CHECK(aclrtCreateStream(&stream));

    enum { X, DY, GAMMA, BETA, Y, MEAN, RSTD, DX, DGAMMA, DBETA, TENSORS };
    void *at[TENSORS];
    aclTensor *tensors[TENSORS] = {
        [X] = on_device(x, shape, 2, NULL, &at[X]),
        [DY] = on_device(dy_columns, shape, 2, by_columns, &at[DY]),
        [GAMMA] = on_device(gamma, column_shape, 1, NULL, &at[GAMMA]),
        [BETA] = on_device(beta, column_shape, 1, NULL, &at[BETA]),
        [Y] = on_device(zeros, shape, 2, NULL, &at[Y]),
        [MEAN] = on_device(zeros, row_shape, 2, NULL, &at[MEAN]),
        [RSTD] = on_device(zeros, row_shape, 2, NULL, &at[RSTD]),
        [DX] = on_device(zeros, shape, 2, NULL, &at[DX]),
        [DGAMMA] = on_device(zeros, column_shape, 1, NULL, &at[DGAMMA]),
        [DBETA] = on_device(zeros, column_shape, 1, NULL, &at[DBETA]),
    };
    const bool all[] = {true, true, true};
    aclIntArray *normalized = aclCreateIntArray(column_shape, 1);
    aclBoolArray *mask = aclCreateBoolArray(all, 3);

    /* Forward */
    uint64_t bytes = 0;
    aclOpExecutor *executor = NULL;
    void *workspace = NULL;
    CHECK(aclnnLayerNormGetWorkspaceSize(tensors[X], normalized, tensors[GAMMA], tensors[BETA], EPS, tensors[Y],
                                         tensors[MEAN], tensors[RSTD], &bytes, &executor));
    if (bytes > 0) CHECK(aclrtMalloc(&workspace, bytes, ACL_MEM_MALLOC_HUGE_FIRST));
    CHECK(aclnnLayerNorm(workspace, bytes, executor, stream));
    CHECK(aclrtSynchronizeStream(stream));
    if (workspace != NULL) CHECK(aclrtFree(workspace));

    /* Backward, with an executor that is kept */
    workspace = NULL;
    CHECK(aclnnLayerNormBackwardGetWorkspaceSize(tensors[DY], tensors[X], normalized, tensors[MEAN], tensors[RSTD],
                                                 tensors[GAMMA], tensors[BETA], mask, tensors[DX], tensors[DGAMMA],
                                                 tensors[DBETA], &bytes, &executor));
    CHECK(aclSetAclOpExecutorRepeatable(executor));
    if (bytes > 0) CHECK(aclrtMalloc(&workspace, bytes, ACL_MEM_MALLOC_HUGE_FIRST));
    CHECK(aclnnLayerNormBackward(workspace, bytes, executor, stream));
    CHECK(aclrtSynchronizeStream(stream));

    double y[SIZE], dx[SIZE], dgamma[COLUMNS], dbeta[COLUMNS];
    formulas(x, dy, gamma, beta, y, dx, dgamma, dbeta);
    fetch("y", at[Y], y, SIZE);
    fetch("dx", at[DX], dx, SIZE);
    fetch("dgamma", at[DGAMMA], dgamma, COLUMNS);
    fetch("dbeta", at[DBETA], dbeta, COLUMNS);

    /* The same executor with another gradient: twice the first one, so every result is twice the first one */
    void *twice_at = NULL;
    for (int i = 0; i < SIZE; i++) dy_columns[i] *= 2;
    CHECK(aclrtMalloc(&twice_at, sizeof dy_columns, ACL_MEM_MALLOC_HUGE_FIRST));
    CHECK(aclrtMemcpy(twice_at, sizeof dy_columns, dy_columns, sizeof dy_columns, ACL_MEMCPY_HOST_TO_DEVICE));
    CHECK(aclSetInputTensorAddr(executor, 0, tensors[DY], twice_at));
    CHECK(aclnnLayerNormBackward(workspace, bytes, executor, stream));
    CHECK(aclrtSynchronizeStream(stream));
    for (int j = 0; j < COLUMNS; j++) dbeta[j] *= 2;
    fetch("dbeta, twice", at[DBETA], dbeta, COLUMNS);
    CHECK(aclDestroyAclOpExecutor(executor));

    /* An error on purpose: the mask asks for gradWeightOut, and there is none */
    aclOpExecutor *none = NULL;
    const aclnnStatus refused = aclnnLayerNormBackwardGetWorkspaceSize(
        tensors[DY], tensors[X], normalized, tensors[MEAN], tensors[RSTD], tensors[GAMMA], tensors[BETA], mask,
        tensors[DX], NULL, tensors[DBETA], &bytes, &none);
    printf("refused with %d: %s\n", refused, aclGetRecentErrMsg());
    if (refused != 161001 || none != NULL) wrong = 1;

    for (int i = 0; i < TENSORS; i++) {
        CHECK(aclDestroyTensor(tensors[i]));
        CHECK(aclrtFree(at[i]));
    }
    CHECK(aclDestroyIntArray(normalized));
    CHECK(aclDestroyBoolArray(mask));
    CHECK(aclrtFree(twice_at));
    if (workspace != NULL) CHECK(aclrtFree(workspace));
    CHECK(aclrtDestroyStream(stream));
    CHECK(aclrtResetDevice(0));
    CHECK(aclFinalize());
    printf(wrong ? "wrong\n" : "ok\n");
    return wrong;
}
