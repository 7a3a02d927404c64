"""Benchmarks: side by side, interleaved, against peers and the roofline of the same run."""
