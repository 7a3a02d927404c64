#define BESIDE 42
