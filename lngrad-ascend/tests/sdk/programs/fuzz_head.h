#include <stdio.h>
#include <stdlib.h>

enum { POOL = 64, ROOM = 64 };
static uint64_t state = 1;
static uint64_t draw(void) { state ^= state << 13; state ^= state >> 7; state ^= state << 17; return state; }
static uint64_t below(uint64_t n) { return draw() % n; }

static void *handles[POOL];   /* whatever came back, alive or not */
static void *addresses[POOL]; /* device memory, freed or not, and a place inside it */
static void *blocks[POOL];    /* host memory of the library, which only goes back: it may be smaller than a copy */
static unsigned kept, given, lent;
static int64_t numbers[ROOM / 8] = {2, 3, 1, 4, 0, 8, 2, 1};
static char host[ROOM], other_host[ROOM];

static void *wild(void)
{
    switch (below(6)) {
    case 0: return NULL;
    case 1: return (void *)(intptr_t)below(4096);
    case 2: return (void *)(intptr_t)(0x110000000000 + below(1 << 14));
    case 3: return (void *)(intptr_t)(0x12C000000000 + below(1 << 14));
    case 4: return (void *)(intptr_t)draw();
    default: return (void *)(intptr_t)(0x200000000000 + below(1ull << 44)); /* no system maps anything there */
    }
}
static void *handle(void) { return below(8) ? handles[below(POOL)] : below(4) ? wild() : (void *)host; }
static void *address(void) { return below(8) ? addresses[below(POOL)] : wild(); }
static void keep(void *handle) { if (handle) handles[kept++ % POOL] = handle; }
static void keep_address(void *address) { addresses[given++ % POOL] = (char *)address + 32 * below(2); }
static void keep_block(void *block) { blocks[lent++ % POOL] = block; }
static uint64_t count(void)
{
    static const uint64_t odd[] = {1ull << 47, 1ull << 63, ~0ull, (1ull << 62) + 5};
    return below(8) ? below(ROOM + 1) : odd[below(4)];
}
static uint64_t few(void) { return below(12) ? below(5) : below(2) ? below(9) : ~0ull - below(9); }
static int64_t number(void) { return below(6) ? (int64_t)below(8) : below(2) ? (int64_t)draw() : -(int64_t)below(9); }
static double real(void) { return below(6) ? 1e-5 : (double)(int64_t)draw(); }

static long calls, failures;
static void expect_code(const char *name, long code)
{
    calls++;
    if (code == 0) return;
    failures++;
    switch (code) {
@CODES@        break;
    default:
        printf("%s: %ld is no code\n", name, code);
        exit(3);
    }
    const char *text = aclGetRecentErrMsg();
    if (text == NULL || *text == 0) {
        printf("%s: %ld has no text\n", name, code);
        exit(4);
    }
}
