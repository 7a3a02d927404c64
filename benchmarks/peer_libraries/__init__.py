"""Peers of the benchmarks: other libraries, formulas that people write, and pictures of records."""
