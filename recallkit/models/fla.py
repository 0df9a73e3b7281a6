"""Checkpoints of flash-linear-attention, as fla-hub and flame have them: config.json with its
`model_type`, and safetensors.

DeltaNet, Gated DeltaNet, KDA, GLA, RetNet, HGRN and HGRN-2, also with layers of attention in
between, are read into the shape of `recallkit.models.language_model`, and need neither a GPU nor
fla. Every other `model_type` of fla, and these with options that our mixers lack, are run by fla
itself, its classes registered.
"""

from __future__ import annotations

import os
import sys
import warnings
from typing import TYPE_CHECKING, Any

from recallkit import config as settings
from recallkit.errors import UserError
from recallkit.models.architecture import MAX_LAYERS, ArchitectureConfig, LayerConfig
from recallkit.models.checkpoint_files import deciding_files, load_weights
from recallkit.models.published import CONFIG, Weights, renamed
from recallkit.storage import artifacts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import torch
    from torch import Tensor

_OF_EACH = {"hidden_act": "swish", "attnres_block_size": None, "use_l2warp": False}
_OF_DELTA = {**_OF_EACH, "use_short_conv": True, "allow_neg_eigval": False}
_EXPECTED: dict[str, dict[str, Any]] = {
    "gated_deltanet": {
        **_OF_DELTA,
        "use_gate": True,
        "output_gate_activation": "swish",
        "num_v_heads": None,
    },
    "delta_net": {
        **_OF_DELTA,
        "use_gate": False,
        "use_beta": True,
        "use_output_norm": True,
        "qk_norm": "l2",
        "qk_activation": "silu",
    },
    "kda": {
        **_OF_DELTA,
        "num_v_heads": None,
        "conv_bias": False,
        "safe_gate": False,
        "lower_bound": None,
    },
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
    "retnet": {
        **_OF_EACH,
        "feature_map": None,
        "use_short_conv": False,
        "use_output_gate": True,
        "elementwise_affine": True,
        "num_kv_heads": None,
        "expand_k": 1.0,
        "fuse_norm": True,
    },
    "hgrn": {**_OF_EACH, "use_short_conv": False, "elementwise_affine": True},
    "hgrn2": {**_OF_EACH, "use_short_conv": False, "elementwise_affine": True},
}
"""For each `model_type`, entries that our mixers have no option for, with fla's defaults."""

_MIXERS = {
    "gated_deltanet": "gated_delta",
    "delta_net": "delta_net",
    "kda": "kda",
    **{kind: kind for kind in ("gla", "retnet", "hgrn", "hgrn2")},
}
_NAMES = {
    "embeddings.": "embedding.",
    "layers.": "blocks.",
    ".attn_norm.": ".mixer_norm.",
    ".attn.": ".mixer.",
    ".mlp.down_proj.": ".mlp.down.",
    ".o_norm.": ".norm.",
    ".g_norm_swish_gate.": ".norm.",
    ".g_norm.": ".norm.",
    ".o_proj.": ".out_proj.",
    ".gk_proj.0.": ".decay_in.",
    ".gk_proj.1.": ".decay_out.",
    ".f_proj.0.": ".decay_in.",
    ".f_proj.1.": ".decay_out.",
    ".g_proj.0.": ".gate_in.",
    ".g_proj.1.": ".gate_out.",
    "lm_head.": "head.",
}
_JOINED = {
    "mixer.qkv.weight": [f"mixer.{name}_proj.weight" for name in "qkv"],
    "mixer.conv1d.weight": [f"mixer.{name}_conv1d.weight" for name in "qkv"],
    "mlp.up.weight": ["mlp.gate_proj.weight", "mlp.up_proj.weight"],
}
"""Weights here, and the ones of fla whose rows they are."""
_APART = {"gla", "retnet", "hgrn", "hgrn2"}
"""Models whose recurrent layers have their queries, keys and values apart here, too, and no
convolution."""


def is_readable(config: Mapping[str, Any]) -> bool:
    """Whether a config.json is that of a checkpoint of fla that our mixers compute."""
    expected = _EXPECTED.get(str(config.get("model_type")))
    if expected is None or _attention(config) is None:
        return False
    return all(
        # An entry that is not there has its default.
        config.get(name, value) in (value, _same(config, name))
        for name, value in expected.items()
    )


_OF_ATTENTION = {"layers", "num_heads", "num_kv_heads", "qkv_bias", "window_size", "rope_theta"}


def _attention(config: Mapping[str, Any]) -> dict[int, dict[str, Any]] | None:
    """The entries of a config about its layers of attention, by number; None where it is nothing
    that our mixers compute."""
    entries = config.get("attn") or []
    entries = [entries] if isinstance(entries, dict) else entries
    if not isinstance(entries, list) or not all(map(_is_attention, entries)):
        return None
    by_layer: dict[int, dict[str, Any]] = {}
    for entry in entries:
        by_layer |= {layer: entry for layer in entry["layers"] if isinstance(layer, int)}
    return by_layer


def _is_attention(entry: Any) -> bool:
    """Whether an entry about layers of attention says what our mixers compute."""
    if not isinstance(entry, dict) or not isinstance(entry.get("layers"), list):
        return False
    return entry.keys() <= _OF_ATTENTION and not entry.get("qkv_bias") and "num_heads" in entry


def _same(config: Mapping[str, Any], name: str) -> Any:
    """The value of an entry that says the same as its default."""
    return {
        "num_v_heads": config.get("num_heads"),
        "num_kv_heads": config.get("num_heads"),
        "output_gate_activation": "silu",
    }.get(name)


def read_fla(folder: Path) -> tuple[ArchitectureConfig, dict[str, Tensor]]:
    """The architecture and the weights of a `LanguageModel`, in the precision of the files.

    Raises UserError where a file cannot be read, or weights that sizes are taken from are missing.
    """
    config = artifacts.json_object(folder / CONFIG)
    kind = str(config["model_type"])
    loaded = {name.removeprefix("model."): value for name, value in _load(folder).items()}
    weights = Weights(renamed(loaded, _NAMES), folder / CONFIG)
    vocab_size, d_model = weights.shape("embedding.weight")
    mlp_width, _ = weights.shape("blocks.0.mlp.gate_proj.weight")
    eps = weights.real(config, "norm_eps", 1e-6)
    attention, layers = _attention(config) or {}, list[LayerConfig]()
    for i in range(weights.integer(config, "num_hidden_layers", MAX_LAYERS)):
        block, joined = f"blocks.{i}.", set(_JOINED)
        if i in attention:
            layers.append(_attention_layer(attention[i], weights, block, d_model))
            joined.remove("mixer.conv1d.weight")
        else:
            options = {"eps": eps, **_options(kind, config, weights, block, d_model)}
            layers.append(LayerConfig(_MIXERS[kind], options))
            joined -= {"mixer.qkv.weight", "mixer.conv1d.weight"} if kind in _APART else set()
        for name in joined:
            _join(weights, block, name, _JOINED[name])
    if kind in ("hgrn", "hgrn2"):
        _set_lower_bounds(
            weights,
            len(layers),
            [i for i in range(len(layers)) if i not in attention],
        )
    tied = bool(config.get("tie_word_embeddings", False))
    if tied:
        weights.drop_tied_head()
    return ArchitectureConfig(
        vocab_size,
        d_model,
        tuple(layers),
        mlp_width=mlp_width,
        norm_eps=eps,
        tied_head=tied,
    ), weights.tensors


def _set_lower_bounds(weights: Weights, num_layers: int, recurrent: Sequence[int]) -> None:
    """The least forget gates of these layers, which follow from a parameter of all layers: none of
    the first, and rising."""
    import torch

    bounds = None
    if "lower_bounds" in weights.tensors:
        if weights.shape("lower_bounds")[0] != num_layers:
            raise UserError(
                f"weight lower_bounds is not that of a model of {num_layers:,} layers",
                where=weights.where.parent,
            )
        shares = weights.tensors.pop("lower_bounds").softmax(0, dtype=torch.float32)
        bounds = shares.cumsum(0) - shares[0]
    for i in recurrent:
        gates = weights.tensors[f"blocks.{i}.mixer.f_proj.weight"]
        bound = gates.new_zeros(len(gates)) if bounds is None else bounds[i]
        weights.tensors[f"blocks.{i}.mixer.lower_bound"] = bound


def _attention_layer(
    entry: Mapping[str, Any],
    weights: Weights,
    block: str,
    d_model: int,
) -> LayerConfig:
    """A layer of attention; heads of keys and values that several heads of queries share are
    repeated for each of them."""
    heads = weights.integer(entry, "num_heads")
    groups = heads if entry.get("num_kv_heads") is None else weights.integer(entry, "num_kv_heads")
    for name in (f"{block}mixer.{part}_proj.weight" for part in "kv"):
        rows, width = weights.shape(name)
        if heads % groups or rows * heads != groups * d_model:
            raise UserError(
                f"weight {name} has {rows} rows, which are not those of {groups} heads",
                where=weights.where.parent,
            )
        grouped = weights.tensors[name].view(groups, -1, width)
        weights.tensors[name] = grouped.repeat_interleave(heads // groups, dim=0).flatten(0, 1)
    options = {"num_heads": heads, "rope_base": weights.real(entry, "rope_theta", 10000.0)}
    if entry.get("window_size") is None:
        return LayerConfig("attention", options)
    return LayerConfig(
        "sliding_window",
        {**options, "window": weights.integer(entry, "window_size")},
    )


def _options(
    kind: str,
    config: Mapping[str, Any],
    weights: Weights,
    block: str,
    d_model: int,
) -> dict[str, Any]:
    """The options of a layer's mixer; widths are those of its weights."""
    at = f"{block}mixer"
    # Of the norm of HGRN-2 fla leaves the epsilon at its default, whatever the config has.
    if kind in ("hgrn", "hgrn2"):
        factor = (weights.shape(f"{at}.f_proj.weight")[0] + 0.5) / d_model
        if kind == "hgrn":
            return {"expand": factor}
        entries = {"expand_ratio": 128, **config}
        # `expand_ratio` is the width of a head's keys.
        name = "num_heads" if entries["expand_ratio"] is None else "expand_ratio"
        number = weights.integer(entries, name)
        return {
            "key_factor": factor,
            "num_heads": number if name == "num_heads" else d_model // number,
            "eps": 1e-5,
        }
    heads = weights.integer(config, "num_heads")
    key_width, value_width = (weights.shape(f"{at}.{name}_proj.weight")[0] for name in "kv")
    # Factors are multiplied by the width and rounded down: half a channel more, lest rounding
    # should lose one.
    options = {
        "key_factor": (key_width + 0.5) / d_model,
        "value_factor": (value_width + 0.5) / d_model,
        "num_heads": heads,
    }
    if kind == "gla":  # fla's defaults of the gate's rank and temperature are not in its config
        return {**options, "gate_rank": weights.shape(f"{at}.decay_in.weight")[0]}
    # Ours has a norm without weights: they become factors of the columns that follow it.
    if kind == "retnet":
        [value_dim], name = weights.shape(f"{at}.norm.weight", 1), f"{at}.out_proj.weight"
        if value_dim * heads != value_width or weights.shape(name)[1] != value_width:
            raise UserError(
                f"weight {at}.norm.weight is not that of {heads} heads",
                where=weights.where.parent,
            )
        weights.tensors[name] = weights.tensors[name] * weights.tensors.pop(
            f"{at}.norm.weight",
        ).repeat(
            heads,
        )
        return {"value_factor": options["value_factor"], "num_heads": heads, "rope_base": 10000.0}
    options["short_conv"] = weights.shape(f"{at}.q_conv1d.weight", 3)[2]
    return {**options, "gate_bias": True} if kind == "kda" else options


def _join(weights: Weights, block: str, name: str, parts: list[str]) -> None:
    """Joins the rows of weights into one."""
    import torch

    columns = {weights.shape(block + part, 3 if "conv" in part else 2)[1:] for part in parts}
    if len(columns) > 1:
        raise UserError(
            f"weights {block}{parts[0]} and {parts[-1]} have other shapes",
            where=weights.where.parent,
        )
    weights.tensors[block + name] = torch.cat([weights.tensors.pop(block + part) for part in parts])


def _load(folder: Path) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = {}
    for path in deciding_files(folder):
        weights |= load_weights(path) if path.suffix == ".safetensors" else {}
    if not weights:
        raise UserError(
            "no .safetensors file with its weights",
            where=folder,
            remedy="save it with safetensors, or complete the folder",
        )
    return weights


# ----------------------------------------------------------------------------- models that fla runs

_DELTA = (
    "comba",
    "delta_net",
    "gated_deltanet",
    "gated_deltaproduct",
    "kda",
    "precond_gated_deltanet",
    "precond_kda",
)
_GATED = (
    "abc",
    "gla",
    "gsa",
    "hgrn",
    "hgrn2",
    "lightnet",
    "linear_attn",
    "mesa_net",
    "retnet",
    "rodimus",
    "rwkv6",
    "rwkv7",
)
_MAMBA = ("log_linear_mamba2", "mamba3", "samba")
_ATTENTION = (
    "deltaformer",
    "forgetting_transformer",
    "mla",
    "moba",
    "nsa",
    "parallax",
    "path_attn",
    "stickbreaking_attn",
    "transformer",
)
_OTHER = ("cat", "cyclic_flow_attention", "mom", "raven", "wall_transformer", "yoco")

MODEL_TYPES = frozenset((*_DELTA, *_GATED, *_MAMBA, *_ATTENTION, *_OTHER))
"""Values of `model_type` that fla 0.6 has, without those that transformers has, too: for these,
transformers' own classes are used."""

_REMEDY = f"install it: {settings.installing('fla')}"


def register(model_type: str, spec: str, device: torch.device) -> None:
    """Registers fla's classes where a config's `model_type` needs them.

    Raises UserError where the package is missing, has no such model, or there is no GPU: its
    forward passes are Triton kernels.
    """
    from transformers import CONFIG_MAPPING

    if model_type not in MODEL_TYPES or model_type in CONFIG_MAPPING:
        restore_own_classes()
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import fla.models  # noqa: F401 - registers its classes
    except ImportError as error:
        problem = f"{model_type} is a model of flash-linear-attention"
        problem = f"{problem}, which is not installed ({error})"
        raise UserError(problem, where=spec, remedy=_REMEDY) from error
    restore_own_classes()
    if model_type not in CONFIG_MAPPING:
        raise UserError(
            f"the installed flash-linear-attention has no model {model_type}",
            where=spec,
            remedy=_REMEDY,
        )
    if device.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        problem = f"{model_type} is computed by kernels of flash-linear-attention, which need a GPU"
        raise UserError(problem, where=spec, remedy="use --device cuda on a machine with one")


def restore_own_classes() -> None:
    """Gives transformers back the names that importing fla takes from it (mamba, mamba2 ...)."""
    if "fla.models" in sys.modules:
        from transformers import CONFIG_MAPPING

        for name in set(CONFIG_MAPPING._extra_content) & set(CONFIG_MAPPING._mapping):
            del CONFIG_MAPPING._extra_content[name]
