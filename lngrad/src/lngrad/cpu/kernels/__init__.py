"""The CPU kernels: arithmetic on addresses that are already right, compiled by Numba."""
