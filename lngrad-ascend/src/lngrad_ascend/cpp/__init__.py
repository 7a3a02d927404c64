"""Ascend C kernels in C++ on the simulated NPU: headers, compiling, and the bridge between the two."""
