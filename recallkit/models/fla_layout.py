"""Checkpoints that flash-linear-attention saves and our mixers compute, read into the shape of `recallkit.models.language_model`.

DeltaNet, Gated DeltaNet, KDA and GLA, as fla-hub and flame have them: config.json with `model_type`, and safetensors. They need neither
a GPU nor fla. Every other `model_type` of fla, and these with options that our mixers lack, are run by fla itself (`fla_models`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recallkit.errors import UserError
from recallkit.models.architecture import ArchitectureConfig, LayerConfig
from recallkit.models.published import CONFIG, Plan, Weights, positive, real
from recallkit.models.weight_files import deciding_files

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from torch import Tensor

_OF_EACH = {"hidden_act": "swish", "attn": None, "attnres_block_size": None, "use_l2warp": False}
_OF_DELTA = {**_OF_EACH, "use_short_conv": True, "allow_neg_eigval": False}
_EXPECTED: dict[str, dict[str, Any]] = {
    "gated_deltanet": {**_OF_DELTA, "use_gate": True, "output_gate_activation": "swish", "num_v_heads": None},
    "delta_net": {**_OF_DELTA, "use_gate": False, "use_beta": True, "use_output_norm": True, "qk_norm": "l2", "qk_activation": "silu"},
    "kda": {**_OF_DELTA, "num_v_heads": None, "conv_bias": False, "safe_gate": False, "lower_bound": None},
    "gla": {
        **_OF_EACH,
        "feature_map": None,
        "use_short_conv": False,
        "use_output_gate": True,
        "clamp_min": None,
        "elementwise_affine": True,
        "use_gk": True,
        "use_gv": False,
        "num_kv_heads": None,
        "fuse_norm": True,
    },
}
"""For each `model_type`, entries that our mixers have no option for, with fla's defaults."""


def is_readable(config: Mapping[str, Any]) -> bool:
    """Whether a config.json is that of a checkpoint of fla that our mixers compute."""
    expected = _EXPECTED.get(str(config.get("model_type")))
    return expected is not None and all(config.get(name, value) in (value, _same(config, name)) for name, value in expected.items())


def _same(config: Mapping[str, Any], name: str) -> Any:
    """The value of an entry that says the same as its default."""
    return {"num_v_heads": config.get("num_heads"), "num_kv_heads": config.get("num_heads"), "output_gate_activation": "silu"}.get(name)


def read_fla(folder: Path, config: Mapping[str, Any]) -> tuple[ArchitectureConfig, dict[str, Tensor]]:
    """The architecture and the weights of a `LanguageModel`, in the precision of the files.

    Raises UserError where a file cannot be read, a weight is missing, has another shape or is left over (it is named).
    """
    where, weights = folder / CONFIG, Weights(folder, _load(folder))
    d_model = positive(config, "hidden_size", where)
    vocab_size, _ = weights.shape("embeddings.weight")
    weights.take("embeddings.weight", "embedding.weight", vocab_size, d_model)
    mlp_width, _ = weights.shape("layers.0.mlp.gate_proj.weight")
    eps = real(config, "norm_eps", 1e-6, where)
    kind = str(config["model_type"])
    layers = []
    for i in range(positive(config, "num_hidden_layers", where)):
        theirs, ours = f"layers.{i}", f"blocks.{i}"
        options, keys = _PLANS[kind](config, weights, f"{theirs}.attn", d_model, where)
        weights.take_all(f"{theirs}.attn", f"{ours}.mixer", keys)
        _join(weights, f"{ours}.mixer.", "qkv.weight", "conv1d.weight")
        layers.append(LayerConfig(_MIXERS[kind], {**options, "eps": eps}))
        for norm, name in (("attn_norm", "mixer_norm"), ("mlp_norm", "mlp_norm")):
            weights.take(f"{theirs}.{norm}.weight", f"{ours}.{name}.weight", d_model)
        for number, name in enumerate(("gate_proj", "up_proj")):
            weights.take(f"{theirs}.mlp.{name}.weight", f"{ours}.mlp.up.weight/{number}", mlp_width, d_model)
        weights.take(f"{theirs}.mlp.down_proj.weight", f"{ours}.mlp.down.weight", d_model, mlp_width)
        _join(weights, f"{ours}.mlp.", "up.weight")
    weights.take("norm.weight", "norm.weight", d_model)
    tied = weights.take_head(config.get("tie_word_embeddings", False), vocab_size, d_model)
    weights.check_all_taken()
    return ArchitectureConfig(vocab_size, d_model, tuple(layers), mlp_width=mlp_width, norm_eps=eps, tied_head=tied), weights.taken


def _delta(config: Mapping[str, Any], weights: Weights, prefix: str, d_model: int, where: Path) -> Plan:
    heads, gated = positive(config, "num_heads", where), config["model_type"] == "gated_deltanet"
    widths = [weights.shape(f"{prefix}.{name}_proj.weight")[0] for name in "qkv"]
    kernel = weights.shape(f"{prefix}.q_conv1d.weight", 3)[2]
    keys: dict[str, tuple[str, tuple[int, ...]]] = {"b_proj.weight": ("b_proj.weight", (heads, d_model))}
    for number, (name, width) in enumerate(zip("qkv", widths, strict=True)):
        keys[f"{name}_proj.weight"] = (f"qkv.weight/{number}", (width, d_model))
        keys[f"{name}_conv1d.weight"] = (f"conv1d.weight/{number}", (width, 1, kernel))
    if gated:
        keys |= {"a_proj.weight": ("a_proj.weight", (heads, d_model)), "g_proj.weight": ("g_proj.weight", (widths[2], d_model))}
        keys |= {name: (name, (heads,)) for name in ("A_log", "dt_bias")}
    keys |= {"o_norm.weight": ("norm.weight", (widths[2] // heads,)), "o_proj.weight": ("out_proj.weight", (d_model, widths[2]))}
    return {**_factors(widths[0], widths[2], d_model), "num_heads": heads, "short_conv": kernel}, keys


def _gla(config: Mapping[str, Any], weights: Weights, prefix: str, d_model: int, where: Path) -> Plan:
    """fla's defaults of the gate's rank and temperature are not in its config."""
    heads = positive(config, "num_heads", where)
    widths = [weights.shape(f"{prefix}.{name}_proj.weight")[0] for name in "qkvg"]
    rank = weights.shape(f"{prefix}.gk_proj.0.weight")[0]
    keys: dict[str, tuple[str, tuple[int, ...]]] = {
        f"{name}_proj.weight": (f"{name}_proj.weight", (width, d_model)) for name, width in zip("qkvg", widths, strict=True)
    }
    keys |= {"gk_proj.0.weight": ("decay_in.weight", (rank, d_model)), "gk_proj.1.weight": ("decay_out.weight", (widths[1], rank))}
    keys |= {"gk_proj.1.bias": ("decay_out.bias", (widths[1],)), "o_proj.weight": ("out_proj.weight", (d_model, widths[2]))}
    keys["g_norm_swish_gate.weight"] = ("norm.weight", (widths[2] // heads,))
    return {**_factors(widths[0], widths[2], d_model), "num_heads": heads, "gate_rank": rank}, keys


def _kda(config: Mapping[str, Any], weights: Weights, prefix: str, d_model: int, where: Path) -> Plan:
    options, keys = _delta(config, weights, prefix, d_model, where)
    heads = positive(config, "num_heads", where)
    key_width, value_width = (weights.shape(f"{prefix}.{name}_proj.weight")[0] for name in "kv")
    rank = value_width // heads
    for theirs, ours, width in (("f_proj", "decay", key_width), ("g_proj", "gate", value_width)):
        keys |= {f"{theirs}.0.weight": (f"{ours}_in.weight", (rank, d_model)), f"{theirs}.1.weight": (f"{ours}_out.weight", (width, rank))}
    keys |= {"g_proj.1.bias": ("gate_out.bias", (value_width,)), "A_log": ("A_log", (heads,)), "dt_bias": ("dt_bias", (key_width,))}
    return {**options, "gate_bias": True}, keys


_MIXERS = {"gated_deltanet": "gated_delta", "delta_net": "delta_net", "kda": "kda", "gla": "gla"}
_PLANS: dict[str, Callable[..., Plan]] = {"gated_deltanet": _delta, "delta_net": _delta, "kda": _kda, "gla": _gla}


def _factors(keys: int, values: int, d_model: int) -> dict[str, float]:
    """Widths relative to the model's. They are multiplied and rounded down: half a channel more, lest rounding should lose one."""
    return {"key_factor": (keys + 0.5) / d_model, "value_factor": (values + 0.5) / d_model}


def _join(weights: Weights, prefix: str, *names: str) -> None:
    """Joins the rows of weights that were taken as NAME/0, NAME/1 ... into NAME."""
    import torch

    for name in (f"{prefix}{name}" for name in names):
        parts = sorted(key for key in weights.taken if key.startswith(f"{name}/"))
        if parts:
            weights.taken[name] = torch.cat([weights.taken.pop(key) for key in parts])


def _load(folder: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    found: dict[str, Tensor] = {}
    for path in (file for file in deciding_files(folder) if file.suffix == ".safetensors"):
        try:
            found |= load_file(path)
        except (SafetensorError, OSError) as error:
            raise UserError(f"it cannot be read ({error})", where=path, remedy="check that the file is whole") from error
    if not found:
        raise UserError("no .safetensors file with its weights", where=folder, remedy="save it with safetensors, or complete the folder")
    return found
