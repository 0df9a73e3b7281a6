"""Tiny models of the families of causal language models that are scored for real, one of every kind
of layer in each."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

VOCAB_SIZE = 512
NOISE = 0.08
"""Added to every parameter, so that no weight stands at the zeros, ones or ranges of a fresh
model."""


@dataclass(frozen=True)
class Family:
    """A family by its `model_type`: how it mixes tokens, and a configuration small enough to run in
    a moment."""

    mixer: str
    config: dict[str, Any]
    special_tokens: dict[str, int] = field(
        default_factory=lambda: {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0},
    )
    vision: dict[str, Any] | None = None
    """Of a model that reads images, too: the configuration of that part, `config` being that of its
    text."""


_ATTENTION = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 1024}
_MIXTURE = {"num_local_experts": 4, "num_experts_per_tok": 2}
_MAMBA2 = {"mamba_n_heads": 8, "mamba_d_state": 8, "mamba_n_groups": 2, "mamba_chunk_size": 16}
_DELTA = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
_SHARED_EXPERT = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 48,
}
_LATENT = {
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 96,
    "moe_intermediate_size": 48,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 12,
}
_INDEX = {"index_topk": 16, "index_head_dim": 16, "index_n_heads": 16}
"""Far fewer ids than the tests' sequences have, so that some are left out."""
_KIMI = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_head_dim": 12,
    "linear_num_heads": 4,
}
_INDEXED = {
    **_LATENT,
    **_INDEX,
    "q_lora_rank": 24,
    "max_position_embeddings": 1024,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "mlp_layer_types": ["dense", "sparse"],
}

FAMILIES: dict[str, Family] = {
    "gpt_neox": Family(
        "attention",
        {"num_attention_heads": 4, "intermediate_size": 96, "max_position_embeddings": 1024},
    ),
    "llama": Family("attention", {**_ATTENTION, "intermediate_size": 96}),
    "gpt2": Family("attention", {"num_attention_heads": 4, "max_position_embeddings": 1024}),
    "mamba": Family("selective state space", {"state_size": 8}),
    "mamba2": Family(
        "selective state space",
        {"state_size": 8, "num_heads": 8, "head_dim": 12, "n_groups": 2, "chunk_size": 16},
    ),
    "falcon_mamba": Family("selective state space", {"state_size": 8}),
    "rwkv": Family(
        "decaying linear attention",
        {"attention_hidden_size": 48, "intermediate_size": 96, "context_length": 1024},
    ),
    "recurrent_gemma": Family(
        "gated recurrence, sliding attention",
        {
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "intermediate_size": 96,
            "attention_window_size": 16,
            "w_init_variance_scale": 1.0,
        },
    ),
    "xlstm": Family(
        "matrix memory (mLSTM)",
        {"hidden_size": 128, "num_heads": 2, "chunk_size": 16, "ffn_round_up_to_multiple_of": 8},
    ),
    "jamba": Family(
        "selective state space, attention, mixture of experts",
        {
            **_ATTENTION,
            "intermediate_size": 96,
            "mamba_d_state": 8,
            "num_experts": 4,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
        },
    ),
    "bamba": Family(
        "selective state space, attention",
        {**_ATTENTION, **_MAMBA2, "intermediate_size": 96, "attn_layer_indices": [1]},
    ),
    "zamba2": Family(
        "selective state space, shared attention",
        {
            "num_attention_heads": 4,
            "max_position_embeddings": 1024,
            "intermediate_size": 96,
            "num_hidden_layers": 3,
            "layers_block_type": ["linear_attention", "hybrid", "hybrid"],
            "mamba_d_state": 8,
            "n_mamba_heads": 8,
            "mamba_ngroups": 2,
            "chunk_size": 16,
            "use_mem_rope": True,
            "use_shared_attention_adapter": True,
            "adapter_rank": 4,
        },
    ),
    "granitemoehybrid": Family(
        "selective state space, attention, mixture of experts",
        {
            **_ATTENTION,
            **_MAMBA2,
            **_MIXTURE,
            "intermediate_size": 48,
            "shared_intermediate_size": 48,
            "layer_types": ["linear_attention", "full_attention"],
            "logits_scaling": 3.0,
            "embedding_multiplier": 6.0,
            "residual_multiplier": 0.5,
            "attention_multiplier": 0.2,
        },
    ),
    "nemotron_h": Family(
        "selective state space, attention, mixture of experts",
        {
            **_ATTENTION,
            "head_dim": 12,
            "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"],
            "intermediate_size": 96,
            "ssm_state_size": 8,
            "mamba_num_heads": 8,
            "mamba_head_dim": 12,
            "n_groups": 2,
            "chunk_size": 16,
            "n_routed_experts": 4,
            "moe_intermediate_size": 48,
            "moe_shared_expert_intermediate_size": 48,
        },
    ),
    "falcon_h1": Family(
        "selective state space and attention side by side",
        {
            **_ATTENTION,
            **_MAMBA2,
            "intermediate_size": 96,
            "mamba_d_ssm": 96,
            "head_dim": 12,
            "lm_head_multiplier": 0.25,
        },
    ),
    "lfm2": Family(
        "gated convolution, attention",
        {**_ATTENTION, "intermediate_size": 96, "layer_types": ["conv", "full_attention"]},
    ),
    "minimax": Family(
        "decaying linear attention, attention, mixture of experts",
        {
            **_ATTENTION,
            **_MIXTURE,
            "intermediate_size": 48,
            "layer_types": ["linear_attention", "full_attention"],
            "block_size": 16,
        },
    ),
    "qwen3_next": Family(
        "gated delta rule, attention, mixture of experts",
        {**_ATTENTION, **_DELTA, **_SHARED_EXPERT, "head_dim": 16, "intermediate_size": 96},
    ),
    "qwen3_5_text": Family(
        "gated delta rule, attention",
        {**_ATTENTION, **_DELTA, "head_dim": 16, "intermediate_size": 96},
    ),
    "qwen3_5_moe_text": Family(
        "gated delta rule, attention, mixture of experts",
        {**_ATTENTION, **_DELTA, **_SHARED_EXPERT, "head_dim": 16},
    ),
    "qwen4_exp_text": Family(
        "gated delta rule, indexed attention, mixture of experts",
        {
            **_ATTENTION,
            **_DELTA,
            **_SHARED_EXPERT,
            "head_dim": 16,
            "layer_types": ["linear_attention", "indexed_attention"],
            "hc_count": 2,
            "hc_lowrank": 8,
            "indexer_n_heads": 2,
            "indexer_kv_heads": 1,
            "indexer_head_dim": 16,
            "indexer_budget": 16,
            "indexer_compress_ratio": 4,
        },
    ),
    "kimi_linear": Family(
        "Kimi delta attention, latent attention, mixture of experts",
        {
            **_LATENT,
            **_KIMI,
            "num_experts": 4,
            "num_experts_per_token": 2,
            "mlp_layer_types": ["dense", "sparse"],
            "model_max_length": 1024,
        },
    ),
    "bailing_hybrid": Family(
        "Kimi delta attention, latent attention, mixture of experts",
        {
            **_LATENT,
            **_KIMI,
            "num_experts": 4,
            "num_experts_per_token": 2,
            "num_expert_group": 2,
            "topk_group": 1,
            "mlp_layer_types": ["dense", "sparse"],
            "model_max_length": 1024,
        },
    ),
    "lfm2_moe": Family(
        "gated convolution, attention, mixture of experts",
        {
            **_ATTENTION,
            "intermediate_size": 96,
            "moe_intermediate_size": 48,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "num_dense_layers": 1,
            "layer_types": ["conv", "full_attention"],
        },
    ),
    "lfm3": Family(
        "gated convolution, sliding attention, attention",
        {
            **_ATTENTION,
            "num_hidden_layers": 3,
            "head_dim": 12,
            "intermediate_size": 96,
            "sliding_window": 16,
            "layer_types": ["conv", "sliding_attention", "full_attention"],
        },
    ),
    "zaya": Family(
        "convolved attention, mixture of experts",
        {
            **_ATTENTION,
            "head_dim": 12,
            "moe_intermediate_size": 48,
            "num_experts": 4,
            "router_hidden_size": 16,
            "layer_types": ["hybrid"] * 2,
        },
    ),
    "zamba": Family(
        "selective state space, shared attention",
        {
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "attention_hidden_size": 96,
            "attention_head_dim": 24,
            "max_position_embeddings": 1024,
            "intermediate_size": 96,
            "num_hidden_layers": 3,
            "layers_block_type": ["linear_attention", "hybrid", "hybrid"],
            "mamba_d_state": 8,
            "n_mamba_heads": 1,
            "mamba_dt_rank": 24,
        },
    ),
    "inkling_text": Family(
        "attention with learned relative positions, sliding attention, mixture of experts",
        {
            **_ATTENTION,
            "head_dim": 12,
            "swa_num_attention_heads": 4,
            "swa_num_key_value_heads": 2,
            "swa_head_dim": 12,
            "sliding_window_size": 16,
            "d_rel": 4,
            "rel_extent": 32,
            "layer_types": ["hybrid_sliding", "hybrid"],
            "mlp_layer_types": ["dense", "sparse"],
            "intermediate_size": 96,
            "moe_intermediate_size": 48,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_shared_experts": 1,
            "logits_mup_width_multiplier": 2.0,
        },
    ),
    "deepseek_v32": Family(
        "indexed latent attention, mixture of experts",
        {**_INDEXED, "layer_types": ["indexed_attention"] * 2},
    ),
    "glm_moe_dsa": Family(
        "indexed latent attention, mixture of experts",
        {**_INDEXED, "indexer_types": ["full", "shared"]},
    ),
    "glm5_next": Family(
        "Kimi delta attention, indexed latent attention, mixture of experts",
        {
            **_INDEXED,
            **_KIMI,
            "layer_types": ["linear_attention", "indexed_attention"],
            "index_kpool": 4,
            "qk_rope_head_dim": 0,
            "hc_mult": 2,
        },
        vision={
            "depth": 3,
            "hidden_size": 24,
            "num_heads": 2,
            "intermediate_size": 24,
            "out_hidden_size": 48,
            "projection_intermediate_size": 24,
            "image_size": 28,
        },
    ),
    "deepseek_v4": Family(
        "compressed attention, indexed compressed attention, mixture of experts",
        {
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "head_dim": 16,
            "partial_rotary_factor": 0.5,
            "q_lora_rank": 24,
            "o_groups": 2,
            "o_lora_rank": 16,
            "moe_intermediate_size": 48,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "max_position_embeddings": 1024,
            "sliding_window": 8,
            "hc_mult": 2,
            "layer_types": [
                "sliding_attention",
                "heavily_compressed_attention",
                "compressed_sparse_attention",
            ],
            "mlp_layer_types": ["hash_moe", "moe", "moe"],
            "compress_rates": {"compressed_sparse_attention": 2, "heavily_compressed_attention": 8},
            "index_topk": 4,
            "index_head_dim": 16,
            "index_n_heads": 16,
        },
    ),
    "mimo_v2_flash": Family(
        "attention, sliding attention, mixture of experts",
        {
            **_ATTENTION,
            "head_dim": 12,
            "v_head_dim": 8,
            "sliding_window": 16,
            "layer_types": ["full_attention", "sliding_attention"],
            "mlp_layer_types": ["dense", "sparse"],
            "intermediate_size": 96,
            "moe_intermediate_size": 48,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
        },
    ),
    "gemma4_text": Family(
        "attention, sliding attention, mixture of experts",
        {
            **_ATTENTION,
            "num_hidden_layers": 4,
            "head_dim": 12,
            "global_head_dim": 16,
            "intermediate_size": 96,
            "sliding_window": 16,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "num_kv_shared_layers": 2,
            "vocab_size_per_layer_input": VOCAB_SIZE,
            "hidden_size_per_layer_input": 8,
            "final_logit_softcapping": 30.0,
            "enable_moe_block": True,
            "num_experts": 4,
            "top_k_experts": 2,
            "moe_intermediate_size": 48,
        },
    ),
    "gpt_oss": Family(
        "attention with sinks, sliding attention, mixture of experts",
        {
            **_ATTENTION,
            **_MIXTURE,
            "head_dim": 12,
            "intermediate_size": 48,
            "sliding_window": 16,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "minimax_m3_vl_text": Family(
        "attention, block-sparse attention, mixture of experts",
        {
            **_ATTENTION,
            **_MIXTURE,
            "head_dim": 12,
            "rotary_dim": 6,
            "intermediate_size": 48,
            "dense_intermediate_size": 96,
            "shared_intermediate_size": 48,
            "mlp_layer_types": ["dense", "sparse"],
            "index_n_heads": 2,
            "index_head_dim": 12,
            "index_block_size": 8,
            "index_topk_blocks": 2,
        },
    ),
    "olmo3": Family(
        "sliding attention, attention",
        {
            **_ATTENTION,
            "intermediate_size": 96,
            "sliding_window": 16,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                "full_attention": {
                    "rope_type": "yarn",
                    "rope_theta": 1e4,
                    "factor": 4.0,
                    "original_max_position_embeddings": 256,
                },
            },
        },
    ),
    "olmo_hybrid": Family(
        "gated delta rule, attention",
        {
            **_ATTENTION,
            "intermediate_size": 96,
            "layer_types": ["linear_attention", "full_attention"],
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
        },
    ),
}


def class_of(name: str) -> Any:
    """The class of transformers that makes and loads models of a family."""
    import transformers

    return (
        transformers.AutoModelForCausalLM
        if FAMILIES[name].vision is None
        else transformers.AutoModelForMultimodalLM
    )


def build_model(name: str) -> Any:
    """The model of a family, float32, weights drawn from the family's name alone, in evaluation
    mode."""
    import torch
    from transformers import AutoConfig

    family = FAMILIES[name]
    settings = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 48,
        "num_hidden_layers": 2,
        **family.special_tokens,
        **family.config,
    }
    if family.vision is not None:
        settings = {"text_config": settings, "vision_config": family.vision}
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return with_noise(class_of(name).from_config(AutoConfig.for_model(name, **settings)))


def with_noise(model: Any) -> Any:
    """The model with noise on every parameter, in evaluation mode."""
    import torch

    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(NOISE * torch.randn_like(parameter))
    return model.eval()


def save_model(name: str, folder: Path) -> Path:
    """Saves the model of a family as `folder/NAME`, and gives that path."""
    from transformers.utils import logging

    path = folder / name
    logging.disable_progress_bar()
    build_model(name).save_pretrained(path)
    return path
