"""A tiny model of any family of transformers: its default configuration, cut down by the names of
settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

VOCAB_SIZE = 512
WIDTH, HEADS = 64, 4
HEAD = WIDTH // HEADS
WINDOW = 16
"""Ids of a window or a selection: more than are read when a model is loaded."""

NOISE = 0.05
"""Added to every parameter, so that no weight stands at zeros or ones."""

MOST_WEIGHTS = 130_000_000
"""Of a model that is built: some have parts for images whose sizes no rule here knows."""

_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "layers")
"""Names of the number of layers."""

_RULES = {
    r"vocab_size(_per_layer_input)?|(un)?padded_vocab_size|.*_byte_group_vocab": VOCAB_SIZE,
    r"(num_hidden|(num_)?encoder|(num_)?decoder|num|n|e|d)_layers?|depth|layers|num_blocks": 2,
    r".*(key_value|kv)_heads|kv_n_heads|linear_num_key_heads": 2,
    r"mamba_(n|num)_heads|n_mamba_heads": 2 * HEADS,
    r".*num_(attention_)?heads|(.*_)?attention_heads|.*n_heads?|.*value_heads": HEADS,
    r"attention_head_dim": 2 * HEAD,
    r"qk_nope_head_dim|rotary_dim": HEAD // 2,
    r"qk_head_dim": HEAD + HEAD // 2,
    r"(.*_)?(head_dim|head_size|d_head|headdim)|d_kv|kv_channels": HEAD,
    r".*(lora_rank|lowrank|adapter_rank|laurel_rank|norm_rank)": 8,
    r".*(moe|expert|experts|shared)_intermediate_size": WIDTH // 2,
    r".*intermediate_size(_mlp)?|.*ffn_dim|d_ff|n_inner|ffn_hidden_size|d_inner": 2 * WIDTH,
    r"mamba_d_ssm|attention_hidden_size": 2 * WIDTH,
    r".*hidden_size(_global)?|(d|dim)_model|n_embd|embedding_size|dim|lru_width": WIDTH,
    r".*(e?mb(ed|edding)?|hidden|proj(ection)?)_dim|dim_head|adapter_(in|out)_dim": WIDTH,
    r"(num|n)_(local_|routed_)?experts|moe_num_experts": 4,
    r"num_experts_per_tok(en)?|moe_(topk|k|top_k)|top_k_experts": 2,
    r"(num|n|moe_num)_shared_experts|(n|num_expert)_group|topk_group": 1,
    r"first_k_dense_replace|num_dense_layers|num_hash_layers|attn_layer_offset": 1,
    r".*(sliding_window|window_size|attention_chunk_size|window_len)(_size)?": WINDOW,
    r"keep_window_size|index_topk|indexer_budget|(mamba_)?chunk_size": WINDOW,
    r"(index_)?block_size": WINDOW // 2,
    r"index_topk_blocks": 2,
    r"max_(position|sequence|target)\w*|n_positions|n_ctx|max_seq_len": 256,
    r"model_max_length|context_length|seq_length": 256,
    r"(.*_)?(d_state|state_size)": 8,
    r"sliding_window_pattern|global_attn\w*n_layers|attn_layer_period|\w+_interval": 2,
    r"layer_group_size": 2,
}
"""What numbers become, by a pattern of their whole name; the first that fits."""

_NEEDED = {
    *("head_dim", "num_key_value_heads", "num_experts", "moe_intermediate_size"),
    *("num_experts_per_tok", "top_k_experts"),
}
"""Settings that get a number where the default is none."""

_IDS_OF_TEXT = {"pad": 0, "bos": 1, "eos": 2, "decoder_start": 1, "blank": VOCAB_SIZE - 1}
"""Special ids of the vocabulary; those of images and sounds lie beyond it."""

_INDEXER = {
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": HEAD,
    "indexer_budget": WINDOW,
    "indexer_compress_ratio": 4,
}
_ROPE = {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}}
_SHARED = {"layers_block_type": ["linear_attention", "hybrid", "hybrid"], "num_hidden_layers": 3}

_FURTHER: dict[str, dict[str, Any]] = {
    "chameleon": {"vocabulary_map": {"<image>": VOCAB_SIZE}},
    "cohere_compass": {"text_config": _ROPE},
    "cohere_compass_text": _ROPE,
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0}},
    "deepseek_ocr2": {"text_config": {"mlp_layer_types": ["dense", "sparse"]}},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1},
    "dots3_note": {"audio_config": {"adapter_input_size": WIDTH}},
    "emu3": {
        "vq_config": {"base_channels": 32},
        "vocabulary_map": {"<image>": VOCAB_SIZE, "<|extra_200|>": VOCAB_SIZE + 1},
    },
    "fun_asr_nano": {"adaptor_config": {"intermediate_size": WIDTH // 4}},
    "granite4_vision": {"downsample_rate": "1/2", "deepstack_layer_map": []},
    "kyutai_speech_to_text": {"codec_config": {"upsample_groups": WIDTH}},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "mistral4": {"qk_nope_head_dim": HEAD, "qk_head_dim": 2 * HEAD, "head_dim": 2 * HEAD},
    "molmo2": {"adapter_config": {"vision_feature_layer": [0, 1]}},
    "qwen4_exp": {"text_config": _INDEXER},
    "qwen4_exp_text": _INDEXER,
    "recurrent_gemma": {"num_hidden_layers": 3},
    "reformer": {"axial_pos_embds": False},
    "rwkv": {"attention_hidden_size": WIDTH},
    "step3p7": {"text_config": {"sliding_window": WINDOW}},
    "xlstm": {"num_heads": 2, "hidden_size": 2 * WIDTH, "embedding_dim": 2 * WIDTH},
    "zamba": _SHARED,
    "zamba2": {**_SHARED, "hybrid_layer_ids": [1, 2]},
    "zaya": {"num_experts_per_tok": 1},
}
"""By family, what its default configuration lacks, or numbers of which others follow."""


def build(name: str, **settings: Any) -> Any:
    """A tiny model of a family, in float32 and evaluation mode, with random weights, the same each
    time.

    `settings` replace those of its configuration. Raises whatever transformers does.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMultimodalLM

    default = AutoConfig.for_model(name)
    small = _merged(_shrunken(default.to_dict()), {**_FURTHER.get(name, {}), **settings})
    config = type(default).from_dict(small)
    for switch in ("is_decoder", "causal"):
        if hasattr(config, switch):
            setattr(config, switch, True)
    reads_images = type(config) in AutoModelForMultimodalLM._model_mapping
    maker = AutoModelForMultimodalLM if reads_images else AutoModelForCausalLM
    with torch.device("meta"):
        weights = sum(weight.numel() for weight in maker.from_config(config).parameters())
    if weights > MOST_WEIGHTS:
        raise ValueError(f"{weights:,} weights when cut down")
    torch.manual_seed(0)
    model = maker.from_config(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(NOISE * torch.randn_like(parameter))
    return model


def _shrunken(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a configuration, or of a part of one, for a tiny model with every kind of
    layer."""
    numbers = [name for name in _LAYERS if isinstance(settings.get(name), int)]
    layers = settings[numbers[0]] if numbers else 0
    chosen = _chosen_layers(settings, layers)
    small = {name: _small(name, value, chosen, layers) for name, value in settings.items()}
    small |= dict.fromkeys(numbers, len(chosen))
    return {**small, **_agreeing(small, is_layer=not layers)}


def _chosen_layers(settings: Mapping[str, Any], layers: int) -> list[int]:
    """A layer of every kind that the lists with an entry for each layer tell apart; two to eight.

    Four layers `sliding, sliding, full, full` give 0 and 2.
    """
    lists = [value for value in settings.values() if _is_by_layer(value, layers)]
    telling = [value for value in lists if value != list(range(layers))]
    kinds = list(map(repr, zip(*telling, strict=True))) if telling else ["()"] * layers
    chosen = sorted({kinds.index(kind) for kind in kinds})[:8]
    # Of each kind one that has keys, and one that reads those of another.
    if settings.get("num_kv_shared_layers"):
        return 2 * chosen
    return sorted({*chosen, *range(2)}) if len(chosen) < 2 <= layers else chosen


def _is_by_layer(value: Any, layers: int) -> bool:
    return isinstance(value, list) and layers > 2 and len(value) == layers


def _small(name: str, value: Any, chosen: list[int], layers: int) -> Any:
    """A setting of the tiny model, of which layers are `chosen`."""
    if _is_by_layer(value, layers):
        if value == list(range(layers)):
            return list(range(len(chosen)))
        return [_small(name, value[layer], chosen, layers) for layer in chosen]
    if name in ("attn_layer_indices", "full_attn_idxs"):
        return [1]
    if name == "per_layer_config" and value:
        by_layer = {int(layer): settings for layer, settings in value.items()}
        return {
            f"{place:02}": _shrunken(by_layer[layer])
            for place, layer in enumerate(chosen)
            if layer in by_layer
        }
    if isinstance(value, Mapping):
        is_settings = name != "label2id" and all(isinstance(key, str) for key in value)
        return _shrunken(value) if is_settings else value
    return _small_value(name, value)


def _small_value(name: str, value: Any) -> Any:
    """A number of the tiny model, or any other value as it is."""
    if name.endswith("_token_ids") and isinstance(value, list | tuple):
        return [VOCAB_SIZE + place for place in range(len(value))]
    kind = re.fullmatch(r"(.*)_token_(id|index)", name)
    if kind and value is not None:
        return _IDS_OF_TEXT.get(kind[1], VOCAB_SIZE + len(name))
    is_number = isinstance(value, int) and not isinstance(value, bool) and value > 0
    if is_number or (value is None and name in _NEEDED):
        return next((number for rule, number in _RULES.items() if re.fullmatch(rule, name)), value)
    return value


def _agreeing(small: Mapping[str, Any], *, is_layer: bool) -> dict[str, Any]:
    """Settings that others of the same part decide; of one layer where its part has no number of
    layers."""
    further: dict[str, Any] = {}
    if small.get("num_kv_shared_layers"):
        further["num_kv_shared_layers"] = small["num_hidden_layers"] // 2
    if small.get("kv_lora_rank") or (is_layer and "qk_nope_head_dim" in small):
        further["num_key_value_heads"] = HEADS
    if is_layer and "qk_nope_head_dim" in small:
        further["head_dim"] = HEAD + HEAD // 2
    if "expand" in small and "head_dim" in small:
        further["num_heads"] = 2 * HEADS
    if "default_language" in small:
        further["default_language"] = small["languages"][0]
    rope = small.get("rope_parameters")
    if isinstance(rope, Mapping) and "rope_type" in rope:
        # Time, height and width, of which the last two are as long; their sum is half of what is
        # rotated.
        half = int((small.get("head_dim") or HEAD) * rope.get("partial_rotary_factor", 1)) // 2
        height = 3 * half // 8
        further["rope_parameters"] = {**rope, "mrope_section": [height, height, half - 2 * height]}
    return further


def _merged(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with changes, those of a part (NAME_config) one by one."""
    merged = dict(settings)
    for name, value in changes.items():
        is_part = name.endswith("_config") and isinstance(merged.get(name), Mapping)
        merged[name] = _merged(merged[name], value) if is_part else value
    return merged
