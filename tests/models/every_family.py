"""Every family that transformers has: a tiny model of each is scored, and compared with its own forward pass.

    python -m tests.models.every_family [--only NAME ...] [--at-once 2] [--write docs/models.md]

The default configuration of each `model_type` is cut down by rules that know no family, given random weights, saved
and loaded through recallkit. Sequences of unequal lengths, longer than its windows, are scored in one batch, with the
state carried, and after prompts. `--write` puts the outcome into the page, between two markers.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import itertools
import json
import multiprocessing
import re
import sys
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

VOCAB_SIZE = 512
WIDTH, HEADS = 64, 4
WINDOW = 16
"""Ids of a window, a block or a selection: more than are read when a model is loaded, far fewer than a sequence has."""

LENGTHS = [71, 33, 2, 50, 33]
CHUNK = 7
NEW_IDS = 4
LIMIT = 2e-5
"""Nats by which an NLL may differ."""

NOISE = 0.05
SECONDS = 240
"""For one family, on a core shared with others."""

MOST_WEIGHTS = 130_000_000
"""Of a model that counts as tiny."""

_COUNTS = {
    r"vocab_size(_per_layer_input)?|(un)?padded_vocab_size|.*_byte_group_vocab": VOCAB_SIZE,
    r"(num_hidden|encoder|decoder|num|n|num_decoder|num_encoder|e|d)_layers?|depth|layers": 2,
    r".*(key_value|kv)_heads|kv_n_heads|linear_num_key_heads": 2,
    r"mamba_(n|num)_heads|n_mamba_heads": 2 * HEADS,
    r".*num_(attention_)?heads|attention_heads|(en|de)coder_attention_heads|.*n_heads?|.*value_heads": HEADS,
    r"qk_nope_head_dim|rotary_dim": 8,
    r"qk_head_dim": 8 + WIDTH // HEADS,
    r"(.*_)?(head_dim|head_size|d_head|headdim)|d_kv|kv_channels": WIDTH // HEADS,
    r".*(lora_rank|lowrank|adapter_rank|laurel_rank|norm_rank)": 8,
    r".*(moe|expert|experts|shared)_intermediate_size": WIDTH // 2,
    r".*intermediate_size(_mlp)?|.*ffn_dim|d_ff|n_inner|ffn_hidden_size|d_inner|mamba_d_ssm": 2 * WIDTH,
    r".*hidden_size(_global)?|(d|dim)_model|n_embd|embedding_size|dim|e?mb(ed|edding)?_dim|dim_head|hidden_dim|lru_width": WIDTH,
    r".*proj(ection)?_dim": WIDTH,
    r"(num|n)_(local_|routed_)?experts|moe_num_experts": 4,
    r"num_experts_per_tok(en)?|moe_(topk|k|top_k)|top_k_experts": 2,
    r"(num|n|moe_num)_shared_experts|(n|num_expert)_group|topk_group": 1,
    r"first_k_dense_replace|num_dense_layers|num_hash_layers|attn_layer_offset": 1,
    r".*(sliding_window|window_size|attention_chunk_size|window_len)(_size)?": WINDOW,
    r"keep_window_size|index_topk|indexer_budget|(mamba_)?chunk_size": WINDOW,
    r"(index_)?block_size": WINDOW // 2,
    r"index_topk_blocks": 2,
    r"(max_(position|sequence|target)\w*|n_positions|n_ctx|max_seq_len|model_max_length)": 256,
    r"context_length|seq_length": 256,
    r"(.*_)?(d_state|state_size)": 8,
    r"sliding_window_pattern|global_attn\w*n_layers|attn_layer_period|\w+_interval": 2,
    r"layer_group_size": 2,
}
"""What numbers become, by a pattern of their names; the first that fits."""

_NEEDED = ("head_dim", "num_key_value_heads", "num_experts", "moe_intermediate_size", "num_experts_per_tok")
"""Settings that get a number where the default is none."""

_BY_NAME: dict[str, dict[str, Any]] = {
    "chameleon": {"vocabulary_map": {"<image>": VOCAB_SIZE}},
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 1e4}},
    "deepseek_ocr2": {"text_config": {"mlp_layer_types": ["dense", "sparse"]}},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "emu3": {"vocabulary_map": {"<image>": VOCAB_SIZE, "<|extra_200|>": VOCAB_SIZE + 1}},
    "fun_asr_nano": {"adaptor_config": {"intermediate_size": WIDTH // 4}},
    "gemma4_assistant": {"text_config": {"hidden_size_per_layer_input": 0}},
    "granite4_vision": {"deepstack_layer_map": [], "spatial_target_layers": []},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "molmo2": {"adapter_config": {"vision_feature_layer": [0, 1]}},
    "qwen4_exp_text": {
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": WIDTH // HEADS,
        "indexer_budget": WINDOW,
        "indexer_compress_ratio": 4,
    },
    "recurrent_gemma": {"num_hidden_layers": 3},
    "reformer": {"axial_pos_embds": False},
    "step3p7": {"text_config": {"sliding_window": WINDOW}},
    "zamba": {"layers_block_type": ["linear_attention", "hybrid", "hybrid"], "num_hidden_layers": 3},
    "zaya": {"num_experts_per_tok": 1},
}
"""What a family needs and its default configuration lacks, or says in numbers that must agree."""
_BY_NAME["cohere_compass"] = {"text_config": _BY_NAME["cohere_compass_text"]}
_BY_NAME["qwen4_exp"] = {"text_config": _BY_NAME["qwen4_exp_text"]}

_OF_TEXT = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")


def shrunken(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration, as `to_dict` gives it, of a tiny model with every kind of layer."""
    layers = next((settings[name] for name in _LAYERS if isinstance(settings.get(name), int)), 0)
    chosen = _chosen_layers(settings, layers)
    small = {name: _small(name, value, chosen, layers) for name, value in settings.items()}
    for name in _LAYERS:
        if isinstance(settings.get(name), int):
            small[name] = len(chosen)
    return {**small, **_agreeing(settings, small)}


def _agreeing(settings: Mapping[str, Any], small: Mapping[str, Any]) -> dict[str, Any]:
    """What has to agree with other settings of the same part."""
    found: dict[str, Any] = {}
    if settings.get("num_kv_shared_layers"):
        found["num_kv_shared_layers"] = small["num_hidden_layers"] // 2
    if small.get("kv_lora_rank"):
        found["num_key_value_heads"] = HEADS
    if "expand" in small and "head_dim" in small:
        found["num_heads"] = 2 * HEADS
    rope = small.get("rope_parameters")
    if isinstance(rope, Mapping) and "rope_type" in rope:
        half = int((small.get("head_dim") or WIDTH // HEADS) * rope.get("partial_rotary_factor", 1)) // 2
        height = 3 * half // 8
        found["rope_parameters"] = {**rope, "mrope_section": [height, height, half - 2 * height]}
    if "default_language" in small:
        found["default_language"] = small["languages"][0]
    return found


_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "layers")


def _chosen_layers(settings: Mapping[str, Any], layers: int) -> list[int]:
    """The first layer of every kind that the lists with an entry a layer tell apart, two at least and eight at most."""
    lists = [value for value in settings.values() if _is_per_layer(value, layers) and value != list(range(layers))]
    kinds: dict[str, int] = {}
    for layer in range(layers):
        kinds.setdefault(repr([value[layer] for value in lists]), layer)
    chosen = sorted(kinds.values())[:8]
    further = [layer for layer in range(layers) if layer not in chosen]
    chosen = sorted([*chosen, *further[: max(0, 2 - len(chosen))]])
    if settings.get("num_kv_shared_layers"):  # of each kind one that has keys and one that shares them
        return chosen + chosen
    return chosen


def _merged(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with those of parts replaced one by one."""
    parts = ((name, settings.get(name), value) for name, value in changes.items())
    return {**settings, **{name: _merged(old, new) if isinstance(old, Mapping) and "_config" in name else new for name, old, new in parts}}


def _is_per_layer(value: Any, layers: int) -> bool:
    return isinstance(value, list) and layers > 2 and len(value) == layers


def _small(name: str, value: Any, chosen: list[int], layers: int) -> Any:
    if _is_per_layer(value, layers):
        if value == list(range(layers)):
            return list(range(len(chosen)))
        return [_small(name, value[layer], chosen, layers) for layer in chosen]
    if name == "per_layer_config" and isinstance(value, Mapping):
        found = {int(layer): of for layer, of in value.items()}
        return {f"{place:02}": shrunken(found[layer]) for place, layer in enumerate(chosen) if layer in found}
    if name in ("attn_layer_indices", "full_attn_idxs"):
        return [1]
    if isinstance(value, Mapping):
        return shrunken(value) if all(isinstance(key, str) for key in value) and name != "label2id" else value
    if isinstance(value, list | tuple) and name.endswith("_token_ids"):
        return [VOCAB_SIZE + place for place in range(len(value))]
    if value is None and name in _NEEDED:
        value = 1 << 20
    if name.endswith(("_token_id", "_token_index", "_token_ids")) and value is not None:
        # Those of images and sounds lie beyond the ids of the text.
        place = sum(map(ord, name)) % 97
        return _OF_TEXT.index(name) if name in _OF_TEXT else place if name == "blank_token_id" else VOCAB_SIZE + place
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return next((size for pattern, size in _COUNTS.items() if re.fullmatch(pattern, name)), value)
    return value


@dataclass
class Outcome:
    """What is found of a family: `equal`, `different`, `refused` (`why` in a line) or not `built`."""

    name: str
    result: str
    why: str = ""
    differences: dict[str, float] = field(default_factory=dict)
    """Largest difference from its own forward pass in nats: in a batch, carried, and after prompts."""
    carried: str = "no"
    sharing: str = ""
    joined: bool = False
    weights: int = 0

    @property
    def largest(self) -> float:
        return max(self.differences.values(), default=0.0)


def names() -> list[str]:
    """Every `model_type` of which transformers has a model that generates text."""
    from transformers.models.auto import modeling_auto

    of_text = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    return sorted({*of_text, *modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES})


def build(name: str) -> Any:
    """A tiny model of a family with random weights, in evaluation mode. Raises whatever transformers does."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMultimodalLM

    default = AutoConfig.for_model(name)
    settings = _merged(shrunken(default.to_dict()), _BY_NAME.get(name, {}))
    config = type(default).from_dict(settings)
    for switch in ("is_decoder", "causal"):
        if hasattr(config, switch):
            setattr(config, switch, True)
    loader = AutoModelForMultimodalLM if type(config) in AutoModelForMultimodalLM._model_mapping else AutoModelForCausalLM
    with torch.device("meta"):
        weights = sum(weight.numel() for weight in loader.from_config(config).parameters())
    if weights > MOST_WEIGHTS:
        raise ValueError(f"{weights:,} weights at the smallest")
    torch.manual_seed(0)
    model = loader.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(NOISE * torch.randn_like(parameter))
    return model.float().eval()


def outcome(name: str, folder: Path) -> Outcome:
    """What is found of a family, on one thread."""
    import numpy as np
    import torch
    import transformers

    from recallkit.errors import UserError
    from recallkit.models.loading import load_model
    from recallkit.models.protocol import ModelRequest

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        model = build(name)
        model.save_pretrained(folder)
        bare = type(model).from_pretrained(folder, dtype=torch.float32).eval()
    except Exception as error:  # noqa: BLE001 - of transformers
        return Outcome(name, "not built", f"{type(error).__name__}: {error}")
    offsets = np.concatenate([[0], np.cumsum(LENGTHS)])
    ids = np.random.default_rng(0).integers(3, VOCAB_SIZE, offsets[-1]).astype(np.uint32)
    try:
        own = [_own_nll(bare, ids[a:b]) for a, b in itertools.pairwise(offsets)]
    except Exception as error:  # noqa: BLE001 - of transformers
        return Outcome(name, "not built", f"{type(error).__name__}: {error}")
    try:
        loaded = load_model(ModelRequest(str(folder), VOCAB_SIZE, device="cpu"))
    except UserError as error:
        return Outcome(name, "refused", str(error).replace(f"{folder}: ", ""))
    found = Outcome(name, "", weights=sum(weight.numel() for weight in model.parameters()))
    try:
        found.differences["batch"] = _largest(loaded.score(ids, offsets).nll, np.concatenate(own))
        found.sharing = loaded.sharing
    except UserError as error:
        return Outcome(name, "refused", str(error).replace(f"{folder}: ", ""))
    try:
        found.differences["carried"] = _largest(loaded.score_carrying(ids, offsets, CHUNK).nll, np.concatenate(own))
        found.carried = loaded.carrying
    except UserError as error:
        found.why = str(error).replace(f"{folder}: ", "")
    sequences = np.split(ids, offsets[1:-1])
    long = [place for place, sequence in enumerate(sequences) if len(sequence) > 2 * NEW_IDS]
    prompts, answers = zip(*(np.split(sequences[place], [-NEW_IDS]) for place in long), strict=True)
    written = loaded.generate(prompts, answers, NEW_IDS, lambda *_: False)
    found.differences["generated"] = max(_largest(one.answer_nll, own[place][-NEW_IDS:]) for place, one in zip(long, written, strict=True))
    found.joined = loaded.can_join
    found.result = "equal" if found.largest <= LIMIT else "different"
    return found


def _largest(one: Any, other: Any) -> float:
    difference = abs(one - other)
    return float(difference.max()) if (difference == difference).all() else float("inf")


def _own_nll(bare: Any, ids: Any) -> Any:
    """NLLs (t - 1,) by a model's own forward pass over one sequence (t,), float64 from its logits."""
    import numpy as np
    import torch

    sequence = torch.from_numpy(ids.astype(np.int64))
    with torch.no_grad():
        logits = bare(input_ids=sequence[None, :-1], use_cache=False).logits[0].double()
    return (torch.logsumexp(logits, 1) - logits.gather(1, sequence[1:, None])[:, 0]).numpy()


# ------------------------------------------------------------------------------------------------ a process for each


def _report(name: str, pipe: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        pipe.send(asdict(outcome(name, Path(folder))))


def in_a_process(name: str) -> Outcome:
    """What is found of a family by a process of its own, within SECONDS."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "transformers.modeling_utils", "recallkit.models.transformers_model"])
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_report, args=(name, there))
    process.start()
    there.close()
    try:
        if not here.poll(SECONDS):
            return Outcome(name, "not built", f"not done in {SECONDS} seconds")
        return Outcome(**here.recv())
    except EOFError:
        return Outcome(name, "not built", "its process ended")
    finally:
        process.kill()
        process.join()


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--log", type=Path)
    options = parser.parse_args(arguments)
    with concurrent.futures.ThreadPoolExecutor(options.at_once) as pool:
        for found in pool.map(in_a_process, options.only or names()):
            print(json.dumps(asdict(found)), flush=True)
            if options.log:
                with options.log.open("a") as log:
                    log.write(json.dumps(asdict(found)) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
