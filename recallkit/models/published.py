"""The checkpoints that the authors of Based and of Mamba released, read into the shape of `recallkit.models.language_model`.

`hazyresearch/{based,attn,mamba}-{360m,1b}` contain a config.json and a pytorch_model.bin that transformers does not read: the
first two are FlashAttention's GPT with mixers of their own (HazyResearch/based, based/models/gpt.py), the third is in
Mamba's own layout, as are `state-spaces/mamba-*` and `state-spaces/mamba2-*` (state-spaces/mamba, mamba_ssm/models/mixer_seq_simple.py).
Shapes are taken from the weights, and config.json must agree; entries of either that are not understood are refused.
"""

from __future__ import annotations

import json
import math
import pickle
from typing import TYPE_CHECKING, Any

from recallkit.errors import UserError
from recallkit.models.architecture import ArchitectureConfig, LayerConfig
from recallkit.quiet_transformers import FAILURES_TO_READ, first_line
from recallkit.storage import artifacts
from recallkit.storage.given_files import read_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

CONFIG, WEIGHTS = "config.json", "pytorch_model.bin"

_NORM_EPS = 1e-5
"""The default of GPT2Config, and that of Mamba's layout, which has no entry for it."""

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
"""Entries that the shapes of the weights do not show, with the values of the released checkpoints: no other value is understood."""

_EXPECTED_OF_MAMBA: dict[str, Any] = {"attn_layer_idx": [], "d_intermediate": 0}

_EXPECTED_OF_MAMBA2 = {
    "D_has_hdim": False,
    "rmsnorm": True,
    "norm_before_gate": False,
    "dt_limit": [0.0, math.inf],
    "sequence_parallel": True,
}
"""Entries of `ssm_cfg` with their defaults: no other value is understood."""

_UNUSED_OF_MAMBA = frozenset({"chunk_size", "use_fast_path", "use_mem_eff_path"})
_UNUSED_OF_MAMBA |= {"dt_min", "dt_max", "dt_init", "dt_scale", "dt_init_floor", "A_init_range", "conv_init"}
"""Entries of `ssm_cfg` that initial weights or speed depend on, and results do not."""

Plan = tuple[dict[str, Any], dict[str, tuple[str, tuple[int, ...]]]]
"""A mixer's options, and for each published name of a weight our name and its shape."""


def is_published(folder: Path) -> bool:
    """Whether a folder contains a checkpoint in one of the layouts, according to config.json; False for anything unreadable."""
    return is_layout(artifacts.json_object(folder / CONFIG)) and (folder / WEIGHTS).is_file()


def is_layout(config: Mapping[str, Any]) -> bool:
    """Whether a config.json is that of a checkpoint in one of the layouts."""
    # transformers' own Mamba has these entries, too, next to its model_type.
    is_mamba = "ssm_cfg" in config and config.get("model_type") not in ("mamba", "mamba2")
    return is_mamba or ("n_embd" in config and "rotary_emb_fraction" in config)


def read_published(folder: Path) -> tuple[ArchitectureConfig, dict[str, Tensor]]:
    """The architecture and the weights of a `LanguageModel`, in the precision of the file.

    Raises UserError where a file cannot be read, a weight is missing, has another shape or is left over (it is named), or where an
    entry of config.json is not understood.
    """
    config, weights = _read_config(folder / CONFIG), Weights(folder / WEIGHTS, _load(folder / WEIGHTS))
    try:
        architecture = _mamba(config, weights) if weights.is_of_mamba() else _gpt(config, weights)
    except ValueError as error:  # valid entries that do not make a model together
        raise UserError(f"its config is not that of a model ({error})", where=folder / CONFIG) from error
    weights.check_all_taken()
    return architecture, weights.taken


class Weights:
    """Weights by their published names, renamed to ours one by one."""

    def __init__(self, path: Path, weights: Mapping[str, Tensor]) -> None:
        """`path` is where they are from, for errors."""
        self.path = path
        self._left = {key.removeprefix("model."): value for key, value in weights.items() if "metrics" not in key}
        self.taken: dict[str, Tensor] = {}

    def is_of_mamba(self) -> bool:
        """Whether names are those of Mamba's layout."""
        return any(key.startswith("backbone.") for key in self._left)

    def has(self, key: str) -> bool:
        """Whether a weight is there and not taken."""
        return key in self._left

    def shape(self, key: str, num_axes: int = 2) -> tuple[int, ...]:
        """The shape of a weight that is not taken. Raises UserError where it is missing, or has another number of axes."""
        if key not in self._left:
            raise UserError(f"{key} is missing", where=self.path, remedy="check that the file is whole and of the published layout")
        shape = tuple(self._left[key].shape)
        if len(shape) != num_axes:
            raise UserError(f"{key} has {len(shape)} axes, not {num_axes}", where=self.path)
        return shape

    def take(self, key: str, ours: str, *sizes: int) -> Tensor:
        """Raises UserError where the shape is not that of `sizes`."""
        if (shape := self.shape(key, len(sizes))) != sizes:
            raise UserError(f"{key} has shape {list(shape)}, where the other weights imply {list(sizes)}", where=self.path)
        self.taken[ours] = self._left.pop(key)
        return self.taken[ours]

    def take_all(self, theirs: str, ours: str, keys: Mapping[str, tuple[str, tuple[int, ...]]]) -> None:
        """`take` of each weight of a plan, below two prefixes."""
        for name, (our_name, sizes) in keys.items():
            self.take(f"{theirs}.{name}", f"{ours}.{our_name}", *sizes)

    def drop(self, key: str) -> None:
        """Leaves a weight out, if it is there."""
        self._left.pop(key, None)

    def drop_twin(self, key: str, ours: str) -> None:
        """Skips a weight that is tied to one that was taken."""
        if key in self._left and not self._left.pop(key).equal(self.taken[ours]):
            raise UserError(f"{key} differs from the embedding that it is tied to", where=self.path)

    def take_head(self, tied: Any, vocab_size: int, d_model: int) -> bool:
        """Takes the head, or skips it where it is tied to the embedding; whether it is."""
        if tied:
            self.drop_twin("lm_head.weight", "embedding.weight")
        else:
            self.take("lm_head.weight", "head.weight", vocab_size, d_model)
        return bool(tied)

    def check_all_taken(self) -> None:
        """Raises UserError, naming one, where weights are left over."""
        if self._left:
            first, more = min(self._left), len(self._left) - 1
            raise UserError(f"{first} is not understood{f', nor are {more} more weights' if more else ''}", where=self.path)


def _gpt(config: Mapping[str, Any], weights: Weights) -> ArchitectureConfig:
    """Based and attention: transformer.layers.{i} of norm1, mixer, norm2 and a gated MLP."""
    where = weights.path.with_name(CONFIG)
    for name, expected in _EXPECTED.items():
        if config.get(name, expected) != expected:
            raise UserError(f"{name} is {config[name]!r}, and only {expected!r} is understood", where=where)
    vocab_size, d_model = _embedding(config, weights, "transformer.embeddings.word_embeddings.weight", "n_embd", where)
    num_layers = positive(config, "n_layer", where)
    _, mlp_width = weights.shape("transformer.layers.0.mlp.fc2.weight")
    layers = []
    for i in range(num_layers):
        theirs, ours = f"transformer.layers.{i}", f"blocks.{i}"
        layers.append(_gpt_mixer(config, weights, i, d_model, where))
        for norm, name in (("norm1", "mixer_norm"), ("norm2", "mlp_norm")):
            weights.take(f"{theirs}.{norm}.weight", f"{ours}.{name}.weight", d_model)
        up = weights.take(f"{theirs}.mlp.fc1.weight", f"{ours}.mlp.up.weight", 2 * mlp_width, d_model)
        # Their rows are [value | gate] (based/models/mlp.py), ours [gate | value].
        weights.taken[f"{ours}.mlp.up.weight"] = up.roll(mlp_width, dims=0)
        weights.take(f"{theirs}.mlp.fc2.weight", f"{ours}.mlp.down.weight", d_model, mlp_width)
    weights.take("transformer.ln_f.weight", "norm.weight", d_model)
    tied = weights.take_head(config.get("tie_word_embeddings", True), vocab_size, d_model)
    if config.get("fixed_decay"):
        weights.drop("transformer.decay.decay")  # a buffer that the released linear attention is given and does not use
    eps = real(config, "layer_norm_epsilon", _NORM_EPS, where)
    return ArchitectureConfig(vocab_size, d_model, tuple(layers), mlp_width=mlp_width, norm_eps=eps, tied_head=tied)


def _gpt_mixer(config: Mapping[str, Any], weights: Weights, i: int, d_model: int, where: Path) -> LayerConfig:
    """One layer's mixer: its kind from config.json, its shapes from its weights."""
    kind, entry = _kind(config, i, where)
    prefix, num_heads = f"transformer.layers.{i}.mixer", positive(config, "n_head", where)
    if kind == "gated_short_conv":
        options, keys = _convolution(weights, prefix, d_model)
    elif kind == "linear_attention":
        options, keys = _linear_attention(entry, num_heads, d_model, where)
    else:
        options, keys = _attention(config, num_heads, d_model, where)
        if kind == "sliding_window":
            # They see [i - size // 2, i] (based/models/mixers/slide_attention.py).
            options["window"] = positive(entry, "window_size", where) // 2 + 1
        weights.drop(f"{prefix}.rotary_emb.inv_freq")  # a buffer of older versions of FlashAttention, which config.json determines
    weights.take_all(prefix, f"blocks.{i}.mixer", keys)
    return LayerConfig(kind, options)


def _kind(config: Mapping[str, Any], i: int, where: Path) -> tuple[str, Mapping[str, Any]]:
    """Our name of a layer's mixer and its entry in config.json, found as based/models/gpt.py finds it."""
    name = "mixer"
    for other in ("alt_mixer", "alt_mixer_2"):
        numbers = config.get(f"{other}_layers")
        if isinstance(numbers, list) and i in numbers:
            name = other
    entry = config.get(name)
    if entry is None:
        return "attention", {}
    if not isinstance(entry, dict):
        raise UserError(f"{name} is not a JSON object", where=where)
    target = str(entry.get("_target_")).rpartition(".")[2]
    for start, kind in (("BaseConv", "gated_short_conv"), ("LinearAttention", "linear_attention"), ("Sliding", "sliding_window")):
        if target.startswith(start):
            return kind, entry
    raise UserError(f"{name}._target_ names {target}, which is not understood", where=where)


def _convolution(weights: Weights, prefix: str, d_model: int) -> Plan:
    width = weights.shape(f"{prefix}.out_proj.weight")[1]
    if width % d_model:
        raise UserError(f"{prefix}.out_proj.weight has {width} columns, not a multiple of the width {d_model}", where=weights.path)
    kernel = weights.shape(f"{prefix}.conv.conv.weight", 3)[2]
    has_bias = weights.has(f"{prefix}.in_proj.bias")
    sizes: dict[str, tuple[int, ...]] = {"in_proj.weight": (2 * width, d_model), "out_proj.weight": (d_model, width)}
    sizes |= {"in_proj.bias": (2 * width,), "out_proj.bias": (d_model,)} if has_bias else {}
    sizes["conv.conv.weight"] = (width, 1, kernel)
    return {"kernel": kernel, "expand": width // d_model, "bias": has_bias}, {name: (name, size) for name, size in sizes.items()}


def _linear_attention(entry: Mapping[str, Any], num_heads: int, d_model: int, where: Path) -> Plan:
    feature_map = entry.get("feature_map") or {}
    target = feature_map.get("_target_", "TaylorExp") if isinstance(feature_map, dict) else feature_map
    if not str(target).endswith("TaylorExp") or entry.get("feature_name", "taylor_exp") != "taylor_exp":
        raise UserError(f"a feature map other than TaylorExp ({target}) is not understood", where=where)
    num_heads = positive(entry, "num_heads", where) if "num_heads" in entry else num_heads
    feature_dim = positive(entry, "feature_dim", where)
    options = {"num_heads": num_heads, "feature_dim": feature_dim, "eps": real(entry, "eps", 1e-12, where)}
    features, values = (num_heads * feature_dim, d_model), (d_model, d_model)
    shapes = {
        "proj_q": ("q_proj", features),
        "proj_k": ("k_proj", features),
        "proj_v": ("v_proj", values),
        "out_proj": ("out_proj", values),
    }
    return options, {f"{name}.weight": (f"{ours}.weight", shape) for name, (ours, shape) in shapes.items()}


def _attention(config: Mapping[str, Any], num_heads: int, d_model: int, where: Path) -> Plan:
    options = {
        "num_heads": num_heads,
        "rope_fraction": real(config, "rotary_emb_fraction", 0.0, where),
        "rope_base": real(config, "rotary_emb_base", 10000.0, where),
    }
    return options, {"Wqkv.weight": ("qkv.weight", (3 * d_model, d_model)), "out_proj.weight": ("out_proj.weight", (d_model, d_model))}


def _mamba(config: Mapping[str, Any], weights: Weights) -> ArchitectureConfig:
    """Mamba and Mamba-2: backbone.layers.{i} of norm and mixer."""
    where = weights.path.with_name(CONFIG)
    if config.get("rms_norm") is not True:
        raise UserError("rms_norm is not true, and only RMSNorm is understood", where=where)
    for name, expected in _EXPECTED_OF_MAMBA.items():
        if config.get(name, expected) != expected:
            raise UserError(f"{name} is {config[name]!r}, and only {expected!r} is understood", where=where)
    vocab_size, d_model = _embedding(config, weights, "backbone.embedding.weight", "d_model", where)
    given = config.get("ssm_cfg") or {}
    if not isinstance(given, dict):
        raise UserError(f"ssm_cfg is {given!r}, not a JSON object", where=where)
    kind, plan = ("mamba2", _mamba2_mixer) if given.get("layer") == "Mamba2" else ("mamba", _mamba_mixer)
    layers = []
    for i in range(positive(config, "n_layer", where)):
        options, keys = plan(weights, f"backbone.layers.{i}.mixer", d_model, given)
        weights.take(f"backbone.layers.{i}.norm.weight", f"blocks.{i}.mixer_norm.weight", d_model)
        weights.take_all(f"backbone.layers.{i}.mixer", f"blocks.{i}.mixer", keys)
        layers.append(LayerConfig(kind, options))
    weights.take("backbone.norm_f.weight", "norm.weight", d_model)
    tied = weights.take_head(config.get("tie_embeddings", True), vocab_size, d_model)
    return ArchitectureConfig(vocab_size, d_model, tuple(layers), mlp="none", norm_eps=_NORM_EPS, tied_head=tied)


def _check_mamba_options(given: Mapping[str, Any], known: Mapping[str, Any], where: Path) -> None:
    """Raises UserError for an entry of `ssm_cfg` that contradicts the shapes, or that the shapes cannot confirm."""
    for name, value in given.items():
        if name not in _UNUSED_OF_MAMBA and (name not in known or value not in (known[name], "auto", None)):
            raise UserError(f"{name} of ssm_cfg is {value!r}, which contradicts the weights", where=where)


def _mamba_mixer(weights: Weights, prefix: str, d_model: int, given: Mapping[str, Any]) -> Plan:
    width, state = weights.shape(f"{prefix}.A_log")
    expand = _expansion(weights, f"{prefix}.A_log", width, d_model)
    kernel, dt_rank = weights.shape(f"{prefix}.conv1d.weight", 3)[2], weights.shape(f"{prefix}.dt_proj.weight")[1]
    sizes: dict[str, tuple[int, ...]] = {
        "A_log": (width, state),
        "D": (width,),
        "in_proj.weight": (2 * width, d_model),
        "conv1d.weight": (width, 1, kernel),
        "conv1d.bias": (width,),
        "x_proj.weight": (dt_rank + 2 * state, width),
        "dt_proj.weight": (width, dt_rank),
        "dt_proj.bias": (width,),
        "out_proj.weight": (d_model, width),
    }
    known = {"layer": "Mamba1", "d_state": state, "expand": expand, "d_conv": kernel, "dt_rank": dt_rank, "bias": False, "conv_bias": True}
    _check_mamba_options(given, known, weights.path.with_name(CONFIG))
    options = {"state": state, "expand": expand, "conv_kernel": kernel, "dt_rank": dt_rank}
    return options, {name: (name, size) for name, size in sizes.items()}


def _mamba2_mixer(weights: Weights, prefix: str, d_model: int, given: Mapping[str, Any]) -> Plan:
    """Groups are those of config.json: the weights show only how many states all of them have together."""
    where = weights.path.with_name(CONFIG)
    [width], [heads] = weights.shape(f"{prefix}.norm.weight", 1), weights.shape(f"{prefix}.A_log", 1)
    expand = _expansion(weights, f"{prefix}.norm.weight", width, d_model)
    channels, _, kernel = weights.shape(f"{prefix}.conv1d.weight", 3)
    groups = positive(given, "ngroups", where) if "ngroups" in given else 1
    state, rest = divmod(channels - width, 2 * groups)
    if rest or state < 1 or width % heads:
        raise UserError(f"{prefix}.conv1d.weight has {channels} channels, which are not those of {groups} groups", where=weights.path)
    sizes: dict[str, tuple[int, ...]] = {
        "A_log": (heads,),
        "D": (heads,),
        "dt_bias": (heads,),
        "in_proj.weight": (width + channels + heads, d_model),
        "conv1d.weight": (channels, 1, kernel),
        "conv1d.bias": (channels,),
        "norm.weight": (width,),
        "out_proj.weight": (d_model, width),
    }
    known = {"layer": "Mamba2", "d_state": state, "expand": expand, "d_conv": kernel, "headdim": width // heads, "ngroups": groups}
    known |= {"d_ssm": width, "bias": False, "conv_bias": True, **_EXPECTED_OF_MAMBA2}
    _check_mamba_options(given, known, where)
    options = {"state": state, "expand": expand, "conv_kernel": kernel, "head_dim": width // heads, "groups": groups}
    return options, {name: (name, size) for name, size in sizes.items()}


def _expansion(weights: Weights, key: str, width: int, d_model: int) -> int:
    if width % d_model:
        raise UserError(f"{key} has {width} rows, not a multiple of the width {d_model}", where=weights.path)
    return width // d_model


def _embedding(config: Mapping[str, Any], weights: Weights, key: str, width_entry: str, where: Path) -> tuple[int, int]:
    """Takes the embedding; returns its rows, which padding makes more than the vocabulary in config.json, and its width."""
    vocab_size, d_model = weights.shape(key)
    if d_model != positive(config, width_entry, where):
        raise UserError(f"{key} has a width of {d_model}, {CONFIG} {config[width_entry]}", where=weights.path)
    if vocab_size < positive(config, "vocab_size", where):
        raise UserError(f"{key} has {vocab_size} rows, fewer than the vocabulary of {config['vocab_size']}", where=weights.path)
    weights.take(key, "embedding.weight", vocab_size, d_model)
    return vocab_size, d_model


def positive(entry: Mapping[str, Any], name: str, where: Path) -> int:
    """A whole number in a config. Raises UserError for anything else."""
    value = entry.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UserError(f"{name} is {value!r}, not a positive integer", where=where)
    return value


def real(entry: Mapping[str, Any], name: str, default: float, where: Path) -> float:
    """A number in a config, not negative. Raises UserError for anything else."""
    value = entry.get(name, default)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < math.inf:
        raise UserError(f"{name} is {value!r}, not a number", where=where)
    return float(value)


def _read_config(path: Path) -> Mapping[str, Any]:
    try:
        config = json.loads(read_file(path))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"not a readable JSON file ({first_line(error)})", where=path) from error
    if not isinstance(config, dict):
        raise UserError("not a JSON object", where=path)
    return config


def _load(path: Path) -> dict[str, Tensor]:
    import torch

    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UserError("it contains more than weights, and could run code", where=path, remedy="get the released file") from error
    except FAILURES_TO_READ as error:
        raise UserError(f"it cannot be read ({first_line(error)})", where=path) from error
    if not isinstance(loaded, dict) or not all(isinstance(key, str) and isinstance(value, torch.Tensor) for key, value in loaded.items()):
        raise UserError("it is not a mapping of names to weights", where=path)
    return loaded
