"""The tile APIs LayerNorm, LayerNormGrad and LayerNormGradBeta, made of the device's vector instructions."""
