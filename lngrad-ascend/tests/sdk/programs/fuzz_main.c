int main(int argc, char **argv)
{
    const long wanted = argc > 1 ? atol(argv[1]) : 1000;
    state = argc > 2 ? strtoull(argv[2], NULL, 10) * 0x9e3779b97f4a7c15 + 1 : 1;
    void (*const all[])(void) = {@NAMES@};
    const size_t functions = sizeof all / sizeof *all;
    aclInit(NULL);
    aclrtSetDevice(0);
    while (calls < wanted) {
        if (below(20) == 0) {
            aclInit(NULL);
            aclrtSetDevice(0);
        }
        all[below(functions)]();
    }
    printf("%ld calls, %ld refused\n", calls, failures);
    return 0;
}
