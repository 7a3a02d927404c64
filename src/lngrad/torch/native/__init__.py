"""Compiled glue between torch's dispatcher and the kernels: its sources, and the library that a compiler makes of them.

torch itself is not imported here, so that `lngrad info` can tell without it; torch/compiled.py loads the library.
"""
