"""CPU backend: compiled kernels, all cores, any strides. plan.py decides; run.py executes."""
