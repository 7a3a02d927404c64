/* What the generated entry points and the hand-written half of the library know of each other. */
#ifndef LNGRAD_SHIM_H
#define LNGRAD_SHIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "frame.h" /* generated: LNGRAD_CALL_WORDS and the other sizes */

#define LNGRAD_EXPORT __attribute__((visibility("default")))

/* One call: its arguments as words in C's order, then what came back. Python sees the same layout (attach.py). */
typedef struct {
    int64_t function; /* its number in the table; negative: the process ends */
    int64_t words[LNGRAD_CALL_WORDS];
    int64_t results[LNGRAD_RESULT_WORDS]; /* the function's own result, then what goes through pointers */
    int64_t list[LNGRAD_LIST_WORDS];      /* the numbers of an array that the function makes */
    char *text;                           /* where a text goes, of LNGRAD_TEXT_BYTES; null for none */
} lngrad_frame;

/* Make the call. Without an interpreter results[0] is `failure`, and the next frame with a text gets the reason. */
void lngrad_call(lngrad_frame *frame, int64_t failure);

/* A copy of numbers that the program frees: with delete[] where it is C++, else with free. */
int64_t *lngrad_new_array(const int64_t *values, int64_t count);

static inline int64_t lngrad_word_of_double(double value)
{
    int64_t word;
    memcpy(&word, &value, sizeof word);
    return word;
}

static inline double lngrad_double_of_word(int64_t word)
{
    double value;
    memcpy(&value, &word, sizeof value);
    return value;
}

#define LNGRAD_WORD(pointer) ((int64_t)(intptr_t)(pointer))
#define LNGRAD_POINTER(word) ((void *)(intptr_t)(word))

#endif
