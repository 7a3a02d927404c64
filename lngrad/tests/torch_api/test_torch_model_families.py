"""Tiny models of libraries, where these are installed: patched, trained for two steps and compared; what is turned, or why not.

Which classes a library has depends on its version: a model that can't be made is passed over, and enough must be left.
"""

from __future__ import annotations

import copy
import random
from collections import Counter

import pytest

torch = pytest.importorskip("torch")

import lngrad.torch as lngrad_torch  # noqa: E402  # torch may be missing

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(3600)]

# By the names that configurations have for it; what a configuration lacks, or has as None, is left.
TINY = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "embedding_size"), 32),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "decoder_ffn_dim", "encoder_ffn_dim", "n_inner"), 64),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_decoder_layers", "num_encoder_layers", "depth", "num_key_value_heads"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("head_dim", "attention_head_size", "d_kv", "state_size", "kv_lora_rank", "v_head_dim"), 8),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "patch_size"), 8),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "rotary_dim", "conv_kernel"), 4),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), 64),
    **dict.fromkeys(("dropout", "attention_dropout", "hidden_dropout", "hidden_dropout_prob", "dropout_rate"), 0.0),
    **dict.fromkeys(("attention_probs_dropout_prob", "activation_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
    **dict.fromkeys(("drop_path_rate", "layerdrop", "encoder_layerdrop", "decoder_layerdrop"), 0.0),
    "vocab_size": 97, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
    "moe_intermediate_size": 32, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "q_lora_rank": 16, "expand": 2,
    "image_size": 32, "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "time_step_rank": 4, "sliding_window": 16,
}  # fmt: skip
TRANSFORMERS = """
    albert apertus arcee aria aria_text bart beit bert bert-generation big_bird bigbird_pegasus biogpt bitnet blenderbot
    blenderbot-small bloom camembert canine clip_text_model clip_vision_model codegen cohere cohere2 convbert cpmant ctrl cvt
    cwm deberta deberta-v2 deit diffllama dinov2 dinov2_with_registers dinov3_convnext dinov3_vit distilbert doge dpr dpt
    electra ernie ernie4_5 eurobert exaone4 falcon falcon_h1 falcon_mamba flava fnet focalnet gemma gemma2 gemma3_text git glm
    glm4 glm4_moe gpt2 gpt_bigcode gpt_neo gpt_neox gpt_oss gptj granite granitemoe helium idefics2 idefics3 ijepa imagegpt
    internvl_vision jetmoe lfm2 llama llama4_text llava longt5 m2m_100 mamba mamba2 marian mbart megatron-bert minimax mistral
    mixtral mobilebert mobilevit modernbert moshi mpnet mpt mt5 nemotron_h nomic_bert olmo olmo2 olmo_hybrid olmoe opt pegasus
    persimmon phi phi3 phimoe pixtral plbart poolformer qwen2 qwen2_moe qwen3 qwen3_moe rembert roberta rwkv segformer
    siglip_vision_model smollm3 stablelm starcoder2 switch_transformers t5 umt5 vit vit_mae vits xglm xlm xlnet zamba2
    bamba bailing_hybrid granitemoehybrid kimi_linear lara_mini qwen3_5_moe_text qwen3_5_text qwen3_next
""".split()  # noqa: SIM905
# Hybrids, by the sizes of their other layers.
LAYERS = {"layer_types": ["linear_attention", "full_attention"]}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_chunk_size": 8, "mamba_n_groups": 2}
LINEAR = LAYERS | {
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
KIMI = LAYERS | {
    "mlp_layer_types": ["dense", "sparse"], "linear_head_dim": 8, "linear_num_heads": 4, "num_experts_per_token": 2,
    "num_key_value_heads": 4, "num_expert_group": 1,
}  # fmt: skip
HYBRIDS = {
    "bamba": MAMBA | {"attn_layer_indices": [1]},
    "bailing_hybrid": KIMI,
    "falcon_h1": MAMBA | {"mamba_rms_norm": True, "mamba_d_ssm": 64},
    "granitemoehybrid": MAMBA | LAYERS | {"shared_intermediate_size": 64},
    "kimi_linear": KIMI,
    "mamba2": {"num_heads": 8, "n_groups": 2, "chunk_size": 8},
    **dict.fromkeys(("qwen3_5_moe_text", "qwen3_5_text", "qwen3_next"), LINEAR),
    "zamba2": {
        "layers_block_type": ["linear_attention", "hybrid"], "mamba_d_state": 8, "n_mamba_heads": 8, "mamba_headdim": 8,
        "chunk_size": 8, "attention_head_dim": 16, "attention_hidden_size": 64, "hybrid_layer_ids": [1], "num_mem_blocks": 1,
    },
}  # fmt: skip
TIMM = """
    beit_base_patch16_224 cait_xxs24_224 caformer_s18 coat_lite_tiny coatnet_nano_rw_224 convformer_s18 convit_tiny
    convnext_atto convnextv2_atto crossvit_tiny_240 davit_tiny deit3_small_patch16_224 deit_tiny_patch16_224 edgenext_xx_small
    efficientformer_l1 eva02_tiny_patch14_224 flexivit_small focalnet_tiny_srf gcvit_xxtiny hiera_tiny_224 inception_next_tiny
    levit_128s maxvit_nano_rw_256 metaformer_ppaa_s12_224 mixer_s32_224 mobilevit_xxs mvitv2_tiny nest_tiny nextvit_small
    pit_ti_224 poolformer_s12 poolformerv2_s12 pvt_v2_b0 resmlp_12_224 sequencer2d_s swin_tiny_patch4_window7_224
    swinv2_tiny_window8_256 tiny_vit_5m_224 tnt_s_patch16_224 twins_pcpvt_small vit_tiny_patch16_224 volo_d1_224
    xcit_nano_12_p16_224
""".split()  # noqa: SIM905
WORDS, ONE = torch.randn(1, 5, 16), torch.ones(1)
HEADS = {"num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 2}
DIFFUSERS = {
    "AutoencoderKLWan": ({"base_dim": 8, "z_dim": 4, "num_res_blocks": 1}, lambda: {"sample": torch.randn(1, 3, 1, 16, 16)}),
    "BasicTransformerBlock": (
        {"dim": 16, "num_attention_heads": 2, "attention_head_dim": 8},
        lambda: {"hidden_states": torch.randn(2, 5, 16)},
    ),
    "AuraFlowTransformer2DModel": (
        {"sample_size": 8, "patch_size": 2, "in_channels": 4, "num_mmdit_layers": 1, "num_single_dit_layers": 1,
         "attention_head_dim": 8, "num_attention_heads": 4, "joint_attention_dim": 16, "caption_projection_dim": 32,
         "out_channels": 4, "pos_embed_max_size": 64},
        lambda: {"hidden_states": torch.randn(1, 4, 8, 8), "encoder_hidden_states": WORDS, "timestep": ONE},
    ),
    "DiTTransformer2DModel": (
        HEADS | {"in_channels": 4, "sample_size": 8, "num_embeds_ada_norm": 10},
        lambda: {"hidden_states": torch.randn(1, 4, 8, 8), "timestep": torch.tensor([1]), "class_labels": torch.tensor([1])},
    ),
    "FluxTransformer2DModel": (
        HEADS | {"in_channels": 4, "num_single_layers": 1, "num_layers": 1, "joint_attention_dim": 16,
                 "pooled_projection_dim": 16, "axes_dims_rope": (2, 2, 4)},
        lambda: {"hidden_states": torch.randn(1, 4, 4), "encoder_hidden_states": WORDS,
                 "pooled_projections": torch.randn(1, 16), "timestep": ONE, "img_ids": torch.zeros(4, 3),
                 "txt_ids": torch.zeros(5, 3)},
    ),
    "LTXVideoTransformer3DModel": (
        HEADS | {"in_channels": 4, "out_channels": 4, "cross_attention_dim": 16, "caption_channels": 16},
        lambda: {"hidden_states": torch.randn(1, 4, 4), "encoder_hidden_states": WORDS, "timestep": ONE,
                 "encoder_attention_mask": torch.ones(1, 5), "num_frames": 1, "height": 2, "width": 2},
    ),
    "PixArtTransformer2DModel": (
        HEADS | {"in_channels": 4, "out_channels": 8, "sample_size": 8, "cross_attention_dim": 16, "caption_channels": 16},
        lambda: {"hidden_states": torch.randn(1, 4, 8, 8), "encoder_hidden_states": WORDS,
                 "timestep": ONE, "added_cond_kwargs": {"resolution": None, "aspect_ratio": None}},
    ),
    "PriorTransformer": (
        HEADS | {"embedding_dim": 16, "num_embeddings": 5, "additional_embeddings": 4},
        lambda: {"hidden_states": torch.randn(2, 16), "timestep": 1, "proj_embedding": torch.randn(2, 16),
                 "encoder_hidden_states": torch.randn(2, 5, 16)},
    ),
    "SanaTransformer2DModel": (
        HEADS | {"in_channels": 4, "out_channels": 4, "num_cross_attention_heads": 2, "cross_attention_head_dim": 8,
                 "cross_attention_dim": 16, "caption_channels": 16, "sample_size": 8},
        lambda: {"hidden_states": torch.randn(1, 4, 8, 8), "encoder_hidden_states": WORDS, "timestep": ONE},
    ),
    "SD3Transformer2DModel": (
        HEADS | {"sample_size": 8, "patch_size": 2, "in_channels": 4, "joint_attention_dim": 16, "caption_projection_dim": 16,
                 "pooled_projection_dim": 16, "out_channels": 4, "pos_embed_max_size": 16, "qk_norm": "rms_norm"},
        lambda: {"hidden_states": torch.randn(1, 4, 8, 8), "encoder_hidden_states": WORDS,
                 "pooled_projections": torch.randn(1, 16), "timestep": ONE},
    ),
    "StableCascadeUNet": (
        {"in_channels": 4, "out_channels": 4, "timestep_ratio_embedding_dim": 8, "patch_size": 1, "conditioning_dim": 16,
         "block_out_channels": (8, 16), "num_attention_heads": (1, 2), "down_num_layers_per_block": (1, 1),
         "up_num_layers_per_block": (1, 1), "down_blocks_repeat_mappers": (1, 1), "up_blocks_repeat_mappers": (1, 1),
         "block_types_per_layer": (("SDCascadeResBlock", "SDCascadeTimestepBlock"),) * 2, "clip_text_pooled_in_channels": 16},
        lambda: {"sample": torch.randn(1, 4, 8, 8), "timestep_ratio": torch.ones(1), "clip_text_pooled": torch.randn(1, 1, 16)},
    ),
    "WanTransformer3DModel": (
        HEADS | {"in_channels": 4, "out_channels": 4, "text_dim": 16, "freq_dim": 16, "ffn_dim": 32, "rope_max_seq_len": 32},
        lambda: {"hidden_states": torch.randn(1, 4, 1, 8, 8), "encoder_hidden_states": WORDS, "timestep": ONE},
    ),
    "CogVideoXTransformer3DModel": (
        HEADS | {"in_channels": 4, "out_channels": 4, "time_embed_dim": 4, "text_embed_dim": 16, "sample_width": 8,
                 "sample_height": 8, "sample_frames": 1, "max_text_seq_length": 5, "patch_size": 2},
        lambda: {"hidden_states": torch.randn(1, 1, 4, 8, 8), "encoder_hidden_states": WORDS, "timestep": ONE},
    ),
}  # fmt: skip


def tensors(result):
    """All tensors of a result, in order."""
    if isinstance(result, torch.Tensor):
        yield result
    elif isinstance(result, dict | list | tuple):
        for value in result.values() if isinstance(result, dict) else result:
            yield from tensors(value)


def losses(model, inputs, dtype=torch.float32):
    """Of two steps of training of a copy. Models that draw masks have theirs from a seed."""
    model = copy.deepcopy(model).to(dtype)
    inputs = {
        name: value.to(dtype) if torch.is_tensor(value) and value.is_floating_point() else value
        for name, value in inputs.items()
    }
    optimizer, found = torch.optim.SGD(model.parameters(), lr=0.01), []
    for _ in range(2):
        seed()
        y = next(value for value in tensors(model(**inputs)) if value.is_floating_point() and value.requires_grad)
        loss = y.square().mean() + y.sin().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return pytest.approx(found, rel=2e-5, abs=1e-6, nan_ok=True)


def seed():
    import numpy as np

    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  # which transformers draws from
    torch.manual_seed(0)


def battery(names, make, capsys):
    """(models compared, modules turned, modules left); none crashes, none differs."""
    compared, turned, left, bad = [], Counter(), Counter(), {}
    for name in names:
        seed()
        try:
            model, inputs = make(name)
            for parameter in model.parameters():
                if parameter.ndim == 1:  # of norms, where all ones or all zeros would hide a mistake
                    parameter.data.add_(0.2 * torch.randn_like(parameter))
            ours = copy.deepcopy(model.train())
            expected = losses(model, inputs)
        except Exception as error:
            print(f"{name}: not made: {type(error).__name__}: {str(error)[:80]!r}")
            continue
        compared.append(name)
        capsys.readouterr()
        lngrad_torch.patch(ours, verbose=True)
        for line in capsys.readouterr().out.partition("\n\n")[0].splitlines()[1:]:
            _, kind, reason = line.split(maxsplit=2)
            (turned if reason.startswith("yes") else left)[f"{kind.rpartition('.')[2]}: {reason}"] += 1
        try:
            # A batch normalization of few elements makes much of a rounding: in float64 there is none.
            if losses(ours, inputs).expected != expected and losses(ours, inputs, torch.float64).expected != losses(
                model, inputs, torch.float64
            ):
                bad[name] = "differs"
        except Exception as error:
            bad[name] = repr(error)
        del model, ours
    with capsys.disabled():
        print(f"\n{len(compared)} models; {sum(turned.values())} norms turned, {sum(left.values())} left:")
        print("\n".join(f"{count:5} {row}" for row, count in (*turned.most_common(), *left.most_common())))
        print("fallbacks:", lngrad_torch.fallbacks())
    assert not bad
    return len(compared), sum(turned.values()), left


def test_transformers(capsys):
    transformers = pytest.importorskip("transformers")

    def shrink(settings):
        for name, value in TINY.items():
            if getattr(settings, name, None) is not None:
                setattr(settings, name, value)
        for inner in vars(settings).values():
            if isinstance(inner, transformers.PretrainedConfig):
                shrink(inner)
        return settings

    def make(name):
        kind = transformers.CONFIG_MAPPING[name]
        settings = kind()
        try:
            if any(isinstance(inner, transformers.PretrainedConfig) for inner in vars(settings).values()):
                raise ValueError(name)
            tiny = {key: value for key, value in TINY.items() if getattr(settings, key, None) is not None}
            settings = kind(**tiny | HYBRIDS.get(name, {}))
        except Exception:
            settings = shrink(kind())
        with torch.device("meta"):
            size = sum(p.numel() for p in transformers.AutoModel.from_config(settings).parameters())
        if size > 1e7:
            raise MemoryError(size)
        model = transformers.AutoModel.from_config(settings)
        if model.main_input_name == "pixel_values":
            return model, {"pixel_values": torch.randn(2, getattr(settings, "num_channels", 3), 32, 32)}
        inputs = {"input_ids": torch.randint(3, 97, (2, 12))}
        if getattr(settings, "is_encoder_decoder", False):
            inputs["decoder_input_ids"] = torch.randint(3, 97, (2, 7))
        return model, inputs

    models, turned, left = battery(TRANSFORMERS, make, capsys)
    right = sum(count for row, count in left.items() if "refuses a sample" not in row)
    assert models >= 90
    assert turned + right >= 540


def test_timm(capsys):
    timm = pytest.importorskip("timm")

    def make(name):
        model = timm.create_model(name, pretrained=False, drop_path_rate=0.0)
        return model, {"x": torch.randn(2, *model.default_cfg["input_size"])}

    models, turned, _ = battery(TIMM, make, capsys)
    assert models >= 30
    assert turned >= models


def test_diffusers(capsys):
    diffusers = pytest.importorskip("diffusers")
    from diffusers.models.attention import BasicTransformerBlock

    def make(name):
        settings, inputs = DIFFUSERS[name]
        kind = BasicTransformerBlock if name == "BasicTransformerBlock" else getattr(diffusers, name)
        return kind(**settings), inputs()

    models, turned, _ = battery(DIFFUSERS, make, capsys)
    assert models >= 10
    assert turned >= 50
