"""Kernels: arithmetic on arrays that are already right."""
