"""Calls of an implementation: their inputs in memory that it can't write, and the process that it lives in."""
