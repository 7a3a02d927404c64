"""Backends: each turns a plan into launches; one file a backend, listed in lngrad.plan."""
