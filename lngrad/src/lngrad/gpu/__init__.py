"""Backend for CUDA tensors: Triton kernels, one policy for every device."""
