"""The graph ops of layer normalization and of norms of a sum, and which template CANN would run for the former's gradients."""

from lngrad_ascend.graph.added_norms import AddedNormOp, AddLayerNorm, AddLayerNormGrad, DeepNorm, DeepNormGrad
from lngrad_ascend.graph.layer_norm import LayerNorm, LayerNormOutputs
from lngrad_ascend.graph.layer_norm_grad import GraphOp, LayerNormGrad, LayerNormGradV3, PdOutputs, Strategy, strategy

__all__ = [
    "AddLayerNorm", "AddLayerNormGrad", "AddedNormOp", "DeepNorm", "DeepNormGrad", "GraphOp", "LayerNorm",
    "LayerNormGrad", "LayerNormGradV3", "LayerNormOutputs", "PdOutputs", "Strategy", "strategy",
]  # fmt: skip
