"""What every room may need and none owns: element types, addresses, bounded tables, locks, compilers, kept files."""
