"""A call described once, decided once, executed once: facts, plan, run."""
