"""The demonstration: a network with LayerNorm learns digits, and its gradients are checked."""
