"""The demonstration: a network with layer normalization learns to read digits, and its gradients are checked."""
