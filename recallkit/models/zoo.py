"""The model zoo, `zoo:NAME`: the papers' architectures at one size, trained and shipped with the
package.

A checkpoint is a folder with config.json (`ArchitectureConfig`, with our own `model_type`),
model.safetensors and, after `recallkit train`, for the shipped ones card.json.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from recallkit import config, registry
from recallkit.errors import UserError
from recallkit.models.architecture import ArchitectureConfig, LayerConfig
from recallkit.models.checkpoint_files import load_weights
from recallkit.storage import artifacts
from recallkit.storage.given_files import check_file, read_file

if TYPE_CHECKING:
    from torch import Tensor

PREFIX = "zoo:"
MODEL_TYPE = "recallkit"
"""`model_type` in config.json, which marks a folder as ours."""
CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "card.json"
SCALE = ".scale"
"""`NAME.scale` has a number for each row of NAME where that is in 8 bits, which is multiplied by
it."""

CONTEXT = config.BUILTIN_SEQ_LEN
_WIDTH_STEP = 16


@dataclass(frozen=True, slots=True)
class Size:
    """The size of every architecture; the MLPs are as wide as `parameters` requires."""

    width: int
    """d_model."""
    num_heads: int
    window: int
    """Keys that a sliding window sees."""
    repeats: int
    """How often an architecture's blocks are repeated."""
    parameters: int
    """Parameters without the embedding, as nearly as the MLPs' width allows."""
    vocab_size: int


SIZES: dict[str, Size] = {
    "1.6m": Size(192, 4, 32, 1, 1_600_000, 4096),
    "360m": Size(1024, 16, 64, 6, 302_000_000, 50_257),
    "1.3b": Size(2048, 32, 64, 6, 1_208_000_000, 50_257),
}
"""The first is that of the shipped models, of which ten take less than 25 MB in 8 bits.

The others are of Based's table 1 (arXiv 2402.18668), without trained models.
"""
SHIPPED_SIZE = "1.6m"
WIDTH, VOCAB_SIZE, MATCHED_PARAMETERS = (
    SIZES[SHIPPED_SIZE].width,
    SIZES[SHIPPED_SIZE].vocab_size,
    SIZES[SHIPPED_SIZE].parameters,
)


@dataclass(frozen=True, slots=True)
class Architecture:
    """The mixers of a zoo model, block by block, and a line of description."""

    description: str
    layers: tuple[LayerConfig, ...]


_HEADS = {"num_heads": 4, "short_conv": 3}
_ROTARY = {**_HEADS, "rope_fraction": 0.5, "qk_norm": True}
_ATTENTION = LayerConfig("attention", _ROTARY)
_WINDOW = LayerConfig("sliding_window", {**_ROTARY, "window": 32})
_SELECTIVE = LayerConfig("selective_attention", {**_ROTARY, "selection": "programmatic"})
_TAYLOR = LayerConfig("linear_attention", {**_HEADS, "feature_map": "taylor", "feature_dim": 16})
_RETENTION = LayerConfig("retnet", _HEADS)
_SHORT = LayerConfig("gated_short_conv")
_LONG = LayerConfig("base_conv", {"filter": "implicit", "max_length": CONTEXT})
_HYENA = LayerConfig("hyena", {"max_length": CONTEXT})
_MAMBA = LayerConfig("mamba")
_DELTA = LayerConfig("gated_delta", {"num_heads": 4})

ARCHITECTURES: dict[str, Architecture] = {
    "attention": Architecture(
        "softmax attention with rotary positions: the reference",
        (_ATTENTION,) * 4,
    ),
    "based": Architecture(
        "Taylor linear attention, a sliding window of 32, gated short convolutions",
        (_SHORT, _TAYLOR, _WINDOW, _TAYLOR),
    ),
    "mamba": Architecture("selective state space", (_MAMBA,) * 4),
    "hyena": Architecture("long implicit convolutions, gated", (_HYENA,) * 4),
    "base-conv": Architecture("one long implicit convolution times a linear gate", (_LONG,) * 4),
    "base-conv-selective": Architecture(
        "base-conv, and attention for tokens that repeat",
        (_LONG, _SELECTIVE, _LONG, _SELECTIVE),
    ),
    "rwkv": Architecture(
        "RWKV-4: decays of each channel",
        tuple(LayerConfig("rwkv4", {"layer": i, "num_layers": 4}) for i in range(4)),
    ),
    "retnet": Architecture("retention: linear attention that decays", (_RETENTION,) * 4),
    "delta": Architecture(
        "Gated DeltaNet: the state of a key is overwritten, not added to",
        (_DELTA,) * 4,
    ),
    "hybrid": Architecture(
        "three layers of mamba and one of attention",
        (_MAMBA, _MAMBA, _ATTENTION, _MAMBA),
    ),
}
"""The reference first."""


def architecture(name: str, size: str = SHIPPED_SIZE, context: int = CONTEXT) -> ArchitectureConfig:
    """The config of a new zoo model for sequences of `context` ids, its MLPs such that all models
    of a size have the same parameters.

    Raises UserError for an unknown name or size.
    """
    from recallkit.models.language_model import LanguageModel, WithoutStorage

    large = registry.look_up(SIZES, size, "size")
    blocks = registry.look_up(ARCHITECTURES, name, "architecture").layers * large.repeats
    numbered = enumerate(blocks)
    layers = tuple(_sized(layer, i, len(blocks), large, context) for i, layer in numbered)
    config = ArchitectureConfig(
        large.vocab_size,
        large.width,
        layers,
        mlp_width=_WIDTH_STEP,
        max_length=context,
    )
    with WithoutStorage():
        narrow = LanguageModel(config).num_parameters(embeddings=False)
    a_step = 3 * large.width * _WIDTH_STEP * len(layers)  # SwiGLU has three matrices
    return dataclasses.replace(
        config,
        mlp_width=_WIDTH_STEP * (1 + round((large.parameters - narrow) / a_step)),
    )


def _sized(
    layer: LayerConfig,
    place: int,
    num_layers: int,
    size: Size,
    context: int,
) -> LayerConfig:
    """A block by its index, with the options that follow from the size."""
    sizes = {
        "num_heads": size.num_heads,
        "window": size.window,
        "max_length": context,
        "layer": place,
        "num_layers": num_layers,
    }
    return LayerConfig(
        layer.mixer,
        {name: sizes.get(name, value) for name, value in layer.options.items()},
    )


_FOLDER = Path(str(files("recallkit"))) / "data" / "zoo"
TRAINING_BIGRAMS = _FOLDER / "training_bigrams.parquet"
"""Columns first, second, count: the exact bigram counts of the tokens that every shipped model was
trained on.

In its footer is what held-out text of that kind finds unseen, measured on the training text made
again (docs/zoo.md).
"""


def shipped() -> dict[str, Path]:
    """The zoo's checkpoints that come with the package, by their names without prefix, the
    reference first."""
    return {name: _FOLDER / name for name in ARCHITECTURES if (_FOLDER / name / WEIGHTS).is_file()}


def is_ours(folder: Path) -> bool:
    """Whether a folder contains a checkpoint of ours, according to config.json; False for anything
    unreadable."""
    return bool(artifacts.json_object(folder / CONFIG).get("model_type") == MODEL_TYPE)


def find_shipped(spec: str) -> Path:
    """The folder of `zoo:NAME`. Raises UserError for a name that is not shipped."""
    return registry.look_up(shipped(), spec.removeprefix(PREFIX), "zoo model")


def read_ours(folder: Path) -> tuple[ArchitectureConfig, dict[str, Tensor]]:
    """Config and weights of a checkpoint of ours, matrices in 8 bits multiplied out. Raises
    UserError where they cannot be read."""
    weights = load_weights(folder / WEIGHTS)
    for name in [name for name in weights if name.endswith(SCALE)]:
        values = weights.get(name.removesuffix(SCALE))
        if values is None or values.is_floating_point():
            continue  # a parameter that is called so
        scale = weights.pop(name)
        if scale.shape != (len(values), 1):
            raise UserError(
                f"{name} is not a number for each row",
                where=folder / WEIGHTS,
                remedy="get the file again",
            )
        weights[name.removesuffix(SCALE)] = values * scale
    return read_config(folder), weights


def existing(path: Path) -> Path:
    """The path. Raises UserError where no file is there."""
    if not check_file(path).is_file():
        raise UserError(
            "no such file",
            where=path,
            remedy="a model is a folder with its config and its weights",
        )
    return path


def read_config(folder: Path) -> ArchitectureConfig:
    """The config of a checkpoint of ours. Raises UserError where it cannot be read."""
    path = existing(folder / CONFIG)
    try:
        saved = json.loads(read_file(path))
        saved.pop("model_type")
        return ArchitectureConfig.from_json(saved)
    except (ValueError, KeyError, TypeError, AttributeError, OSError, RecursionError) as error:
        raise UserError(
            f"not a config of a zoo model ({error})",
            where=path,
            remedy="export the model again",
        ) from error


def config_json(config: ArchitectureConfig) -> str:
    """The text of config.json."""
    return json.dumps({"model_type": MODEL_TYPE, **config.to_json()}, indent=2) + "\n"
