"""The simulated NPU: memory with enforced rules, queues, copies, vector instructions, launches."""
