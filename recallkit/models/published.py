"""The checkpoints that the authors of Based and of Mamba released, read into the shape of
`recallkit.models.language_model`.

`hazyresearch/{based,attn,mamba}-{360m,1b}` contain a config.json and a pytorch_model.bin that
transformers does not read: the first two are FlashAttention's GPT with mixers of their own
(HazyResearch/based, based/models/gpt.py), the third is in Mamba's own layout, as are
`state-spaces/mamba-*` and `state-spaces/mamba2-*` (state-spaces/mamba,
mamba_ssm/models/mixer_seq_simple.py). Widths are taken from the weights, and config.json must
agree; entries of it that are not understood are refused. Weights are renamed;
`native_model.build_model` then checks that none is missing, left over or of another shape.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from recallkit.errors import UserError
from recallkit.models.architecture import MAX_LAYERS, MAX_WIDTH, ArchitectureConfig, LayerConfig
from recallkit.models.checkpoint_files import load_weights
from recallkit.storage import artifacts

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

CONFIG, WEIGHTS = "config.json", "pytorch_model.bin"

_NORM_EPS = 1e-5
"""The default of GPT2Config, and that of Mamba's layout, which has no entry for it."""

_GPT_NAMES = {
    "transformer.embeddings.word_embeddings.": "embedding.",
    "transformer.ln_f.": "norm.",
    "transformer.layers.": "blocks.",
    ".norm1.": ".mixer_norm.",
    ".norm2.": ".mlp_norm.",
    ".fc1.": ".up.",
    ".fc2.": ".down.",
    ".Wqkv.": ".qkv.",
    **{f".proj_{name}.": f".{name}_proj." for name in "qkv"},
    ".conv1.conv.": ".conv.conv.",  # of the older base_conv.py
    "lm_head.": "head.",
}
_MAMBA_NAMES = {
    "backbone.embedding.": "embedding.",
    "backbone.norm_f.": "norm.",
    "backbone.layers.": "blocks.",
    **{f"{i}.norm.": f"{i}.mixer_norm." for i in range(10)},  # of a block, not of the mixer in it
    "lm_head.": "head.",
}
"""Parts of published names, and what they are here."""

_UNUSED_WEIGHTS = ("rotary_emb.inv_freq", "decay.decay")
"""Buffers that config.json determines: one of older versions of FlashAttention, and the decays."""

_EXPECTED = {
    "activation_function": "swiglu",
    "rms_norm": True,
    "prenorm": True,
    "parallel_block": False,
    "mlp_type": "base",
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "n_head_kv": None,
}
"""Entries that the shapes of the weights do not show, with the values of the released checkpoints:
no other value is understood."""

_EXPECTED_OF_MAMBA: dict[str, Any] = {"rms_norm": True, "attn_layer_idx": [], "d_intermediate": 0}

_EXPECTED_OF_MAMBA2 = {
    "D_has_hdim": False,
    "rmsnorm": True,
    "norm_before_gate": False,
    "dt_limit": [0.0, math.inf],
    "sequence_parallel": True,
}
"""Entries of `ssm_cfg` with their defaults: no other value is understood."""

_UNUSED_OF_MAMBA = frozenset({"chunk_size", "use_fast_path", "use_mem_eff_path"})
_UNUSED_OF_MAMBA |= {
    "dt_min",
    "dt_max",
    "dt_init",
    "dt_scale",
    "dt_init_floor",
    "A_init_range",
    "conv_init",
}
"""Entries of `ssm_cfg` that initial weights or speed depend on, and results do not."""


def is_published(folder: Path) -> bool:
    """Whether a folder contains a checkpoint in one of the layouts, according to config.json; False
    for anything unreadable."""
    return is_layout(artifacts.json_object(folder / CONFIG)) and (folder / WEIGHTS).is_file()


def is_layout(config: Mapping[str, Any]) -> bool:
    """Whether a config.json is that of a checkpoint in one of the layouts."""
    # transformers' own Mamba has these entries, too, next to its model_type.
    is_mamba = "ssm_cfg" in config and config.get("model_type") not in ("mamba", "mamba2")
    return is_mamba or ("n_embd" in config and "rotary_emb_fraction" in config)


def read_published(folder: Path) -> tuple[ArchitectureConfig, dict[str, Tensor]]:
    """The architecture and the weights of a `LanguageModel`, in the precision of the file.

    Raises UserError where a file cannot be read, weights that sizes are taken from are missing, or
    an entry of config.json is not understood.
    """
    where, config = folder / CONFIG, artifacts.json_object(folder / CONFIG)
    weights_of_file = load_weights(folder / WEIGHTS).items()
    loaded = {
        # Metrics of training are saved beside the weights.
        name.removeprefix("model."): value
        for name, value in weights_of_file
        if "metrics" not in name
    }
    is_mamba = any(name.startswith("backbone.") for name in loaded)
    weights = Weights(renamed(loaded, _MAMBA_NAMES if is_mamba else _GPT_NAMES), where)
    try:
        return (_mamba if is_mamba else _gpt)(config, weights), weights.tensors
    except ValueError as error:  # valid entries that do not make a model together
        raise UserError(f"its config is not that of a model ({error})", where=where) from error


def renamed(weights: Mapping[str, Tensor], names: Mapping[str, str]) -> dict[str, Tensor]:
    """Weights by our names: each part of a name that is in `names` is replaced."""
    ours_by_name = {}
    for name, value in weights.items():
        for theirs, ours in names.items():
            name = name.replace(theirs, ours)
        if not name.endswith(_UNUSED_WEIGHTS):
            ours_by_name[name] = value
    return ours_by_name


class Weights:
    """Weights by our names, and a config.json beside them: what both say about sizes. Raises
    UserError for what does not fit."""

    def __init__(self, tensors: dict[str, Tensor], where: Path) -> None:
        """`where`: the config, for errors."""
        self.tensors = tensors
        self.where = where

    def shape(self, name: str, num_axes: int = 2) -> tuple[int, ...]:
        """The shape of a weight."""
        if name not in self.tensors:
            raise UserError(
                f"weight {name} is missing",
                where=self.where.parent,
                remedy="check that the files are complete",
            )
        shape = tuple(self.tensors[name].shape)
        if len(shape) != num_axes:
            raise UserError(
                f"weight {name} has {len(shape)} axes, not {num_axes}",
                where=self.where.parent,
            )
        return shape

    def drop_tied_head(self) -> None:
        """Leaves out the head, if it is saved as well as the embedding that it is tied to."""
        head = self.tensors.pop("head.weight", None)
        if head is not None and not head.equal(self.tensors["embedding.weight"]):
            raise UserError(
                "lm_head.weight differs from the embedding that it is tied to",
                where=self.where.parent,
            )

    def integer(self, config: Mapping[str, Any], name: str, most: int = MAX_WIDTH) -> int:
        """A positive whole number in a config."""
        value = config.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            raise UserError(
                f"{name} is {value!r}, not a whole number from 1 to {most:,}",
                where=self.where,
            )
        return value

    def real(self, config: Mapping[str, Any], name: str, default: float) -> float:
        """A number in a config, not negative."""
        value = config.get(name, default)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 <= value < math.inf:
            raise UserError(f"{name} is {value!r}, not a number", where=self.where)
        return float(value)

    def check_entries(self, config: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
        """Raises UserError for an entry that has another value than the only one that is
        understood."""
        for name, value in expected.items():
            if config.get(name, value) != value:
                raise UserError(
                    f"{name} is {config[name]!r}, and only {value!r} is understood",
                    where=self.where,
                )


def _gpt(config: Mapping[str, Any], weights: Weights) -> ArchitectureConfig:
    """Based and attention: blocks of a norm, a mixer, a norm and a gated MLP."""
    weights.check_entries(config, _EXPECTED)
    vocab_size, d_model = _embedding_size(config, weights, "n_embd")
    _, mlp_width = weights.shape("blocks.0.mlp.down.weight")
    num_layers = weights.integer(config, "n_layer", MAX_LAYERS)
    layers = tuple(_gpt_mixer(config, weights, i, d_model) for i in range(num_layers))
    for name in [name for name in weights.tensors if name.endswith(".mlp.up.weight")]:
        # Their rows are [value | gate] (based/models/mlp.py), ours [gate | value].
        weights.tensors[name] = weights.tensors[name].roll(mlp_width, dims=0)
    tied = bool(config.get("tie_word_embeddings", True))
    if tied:
        weights.drop_tied_head()
    eps = weights.real(config, "layer_norm_epsilon", _NORM_EPS)
    return ArchitectureConfig(
        vocab_size,
        d_model,
        layers,
        mlp_width=mlp_width,
        norm_eps=eps,
        tied_head=tied,
    )


def _gpt_mixer(config: Mapping[str, Any], weights: Weights, i: int, d_model: int) -> LayerConfig:
    """One layer's mixer, found as based/models/gpt.py finds it: its kind from config.json, its
    widths from its weights."""
    numbers = {name: config.get(f"{name}_layers") for name in ("alt_mixer_2", "alt_mixer")}
    name = next(
        (name for name, layers in numbers.items() if isinstance(layers, list) and i in layers),
        "mixer",
    )
    num_heads, entry = weights.integer(config, "n_head"), config.get(name)
    attention = {
        "num_heads": num_heads,
        "rope_fraction": weights.real(config, "rotary_emb_fraction", 0.0),
        "rope_base": weights.real(config, "rotary_emb_base", 10000.0),
    }
    if entry is None:
        return LayerConfig("attention", attention)
    if not isinstance(entry, dict):
        raise UserError(f"{name} is not a JSON object", where=weights.where)
    target = str(entry.get("_target_")).rpartition(".")[2]
    if target.startswith("BaseConv"):
        width = weights.shape(f"blocks.{i}.mixer.out_proj.weight")[1]
        kernel, has_bias = (
            weights.shape(f"blocks.{i}.mixer.conv.conv.weight", 3)[2],
            f"blocks.{i}.mixer.in_proj.bias" in weights.tensors,
        )
        return LayerConfig(
            "gated_short_conv",
            {"kernel": kernel, "expand": width // d_model, "bias": has_bias},
        )
    if target.startswith("LinearAttention"):
        num_heads = weights.integer({"num_heads": num_heads, **entry}, "num_heads")
        weights.check_entries(entry, {"use_rotary_apply": False, "use_act": False})
        is_older = ".linear_attn." in str(entry["_target_"])
        decay = _decay(
            config,
            weights,
            f"blocks.{i}.mixer.decay_proj.weight" in weights.tensors,
            is_older=is_older,
        )
        return LayerConfig(
            "linear_attention",
            {"num_heads": num_heads, **_taylor_features(entry, weights), **decay},
        )
    if target.startswith("Sliding"):
        # They see [i - size // 2, i] (based/models/mixers/slide_attention.py).
        return LayerConfig(
            "sliding_window",
            {**attention, "window": weights.integer(entry, "window_size") // 2 + 1},
        )
    raise UserError(f"{name}._target_ names {target}, which is not understood", where=weights.where)


def _taylor_features(entry: Mapping[str, Any], weights: Weights) -> dict[str, Any]:
    feature_map = entry.get("feature_map") or {}
    is_entry = isinstance(feature_map, dict)
    target = feature_map.get("_target_", "TaylorExp") if is_entry else feature_map
    name = entry.get("feature_name", "taylor_exp")
    if not str(target).endswith("TaylorExp") or name != "taylor_exp":
        raise UserError(
            f"a feature map other than TaylorExp ({target}) is not understood",
            where=weights.where,
        )
    return {
        "feature_dim": weights.integer(entry, "feature_dim"),
        "eps": weights.real(entry, "eps", 1e-12),
    }


def _decay(
    config: Mapping[str, Any],
    weights: Weights,
    is_projected: bool,
    *,
    is_older: bool,
) -> dict[str, Any]:
    """The decay of a linear attention, as HazyResearch/based has it in `linear_attn.py` of bbf9970
    (Based, appendix C).

    The module `linear_attention.py` that came after it has none, whatever `fixed_decay` of a config
    says.
    """
    if not is_projected and not (is_older and config.get("fixed_decay")):
        return {}
    weights.check_entries(
        {"fixed_decay": False, "decay_denom": True, **config},
        {"fixed_decay": True, "decay_denom": False},
    )
    exponent = config.get("decay_const")
    exponent = weights.integer(
        {"-decay_const": isinstance(exponent, int) and -exponent},
        "-decay_const",
    )
    return {"decay": "input" if is_projected else "fixed", "decay_exponent": exponent}


def _mamba(config: Mapping[str, Any], weights: Weights) -> ArchitectureConfig:
    """Mamba and Mamba-2: blocks of a norm and a mixer, all alike."""
    weights.check_entries({"rms_norm": False, **config}, _EXPECTED_OF_MAMBA)
    vocab_size, d_model = _embedding_size(config, weights, "d_model")
    entry = config.get("ssm_cfg") or {}
    if not isinstance(entry, dict):
        raise UserError(f"ssm_cfg is {entry!r}, not a JSON object", where=weights.where)
    layer = (_mamba2_mixer if entry.get("layer") == "Mamba2" else _mamba_mixer)(
        weights,
        d_model,
        entry,
    )
    layers = (layer,) * weights.integer(config, "n_layer", MAX_LAYERS)
    tied = bool(config.get("tie_embeddings", True))
    if tied:
        weights.drop_tied_head()
    return ArchitectureConfig(
        vocab_size,
        d_model,
        layers,
        mlp="none",
        norm_eps=_NORM_EPS,
        tied_head=tied,
    )


def _mamba_mixer(weights: Weights, d_model: int, entry: Mapping[str, Any]) -> LayerConfig:
    width, state = weights.shape("blocks.0.mixer.A_log")
    kernel, dt_rank = (
        weights.shape("blocks.0.mixer.conv1d.weight", 3)[2],
        weights.shape("blocks.0.mixer.dt_proj.weight")[1],
    )
    expand = width // d_model
    known = {
        "layer": "Mamba1",
        "d_state": state,
        "expand": expand,
        "d_conv": kernel,
        "dt_rank": dt_rank,
    }
    _check_mamba_options(entry, known, weights.where)
    return LayerConfig(
        "mamba",
        {"state": state, "expand": expand, "conv_kernel": kernel, "dt_rank": dt_rank},
    )


def _mamba2_mixer(weights: Weights, d_model: int, entry: Mapping[str, Any]) -> LayerConfig:
    """Groups are those of config.json: the weights show only how many states all of them have
    together."""
    [width], [heads] = (
        weights.shape("blocks.0.mixer.norm.weight", 1),
        weights.shape("blocks.0.mixer.A_log", 1),
    )
    channels, _, kernel = weights.shape("blocks.0.mixer.conv1d.weight", 3)
    groups = weights.integer({"ngroups": 1, **entry}, "ngroups")
    # `width` channels of x, then B and C of each group.
    state, rest = divmod(channels - width, 2 * groups)
    if rest or state < 1 or width % heads:
        raise UserError(
            f"conv1d.weight has {channels} channels, which are not those of {groups} groups",
            where=weights.where,
        )
    expand, head_dim = width // d_model, width // heads
    known = {
        "layer": "Mamba2",
        "d_state": state,
        "expand": expand,
        "d_conv": kernel,
        "headdim": head_dim,
        "ngroups": groups,
    }
    _check_mamba_options(entry, {**known, "d_ssm": width, **_EXPECTED_OF_MAMBA2}, weights.where)
    options = {
        "state": state,
        "expand": expand,
        "conv_kernel": kernel,
        "head_dim": head_dim,
        "groups": groups,
    }
    return LayerConfig("mamba2", options)


def _check_mamba_options(entry: Mapping[str, Any], known: Mapping[str, Any], where: Path) -> None:
    """Raises UserError for an entry of `ssm_cfg` that contradicts the shapes, or that the shapes
    cannot confirm."""
    known = {**known, "bias": False, "conv_bias": True}
    for name, value in entry.items():
        is_known = name in known and value in (known[name], "auto", None)
        if name not in _UNUSED_OF_MAMBA and not is_known:
            raise UserError(
                f"{name} of ssm_cfg is {value!r}, which contradicts the weights",
                where=where,
            )


def _embedding_size(
    config: Mapping[str, Any],
    weights: Weights,
    width_entry: str,
) -> tuple[int, int]:
    """Rows of the embedding, which padding makes more than the vocabulary in config.json, and its
    width."""
    vocab_size, d_model = weights.shape("embedding.weight")
    if d_model != weights.integer(config, width_entry):
        raise UserError(
            f"the embedding has a width of {d_model}, {CONFIG} {config[width_entry]}",
            where=weights.where,
        )
    if vocab_size < weights.integer(config, "vocab_size"):
        more = f"fewer than the vocabulary of {config['vocab_size']}"
        problem = f"the embedding has {vocab_size} rows, {more}"
        raise UserError(problem, where=weights.where)
    return vocab_size, d_model
