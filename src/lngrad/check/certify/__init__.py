"""What a kernel promises, measured: bits that repeat, rows that do not depend on their batch, the order of its sums."""
