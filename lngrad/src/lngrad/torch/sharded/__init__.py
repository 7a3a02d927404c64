"""lngrad's operators on DTensors, and column sums over processes. Users import lngrad.distributed."""
