"""The graph ops LayerNormGrad and LayerNormGradV3, and which template CANN would run for them."""

from lngrad.ascend.graph.layer_norm_grad import GraphOp, LayerNormGrad, LayerNormGradV3, PdOutputs, Strategy, strategy

__all__ = ["GraphOp", "LayerNormGrad", "LayerNormGradV3", "PdOutputs", "Strategy", "strategy"]
