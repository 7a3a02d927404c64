"""Known mistakes: what each would have given, and which one explains a wrong result."""
