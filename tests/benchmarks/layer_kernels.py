"""Recurrent layers of transformers on our kernels, beside the functions that transformers itself has for them.

    python tests/benchmarks/layer_kernels.py [--repeats 5] [--device cuda --dtype bfloat16] [FAMILY ...]

Each family is built small, with random weights, and scores the same ids both ways in turn: CPU seconds on one thread,
or on a GPU those of the clock. mamba-768 has the width and the vocabulary of a released Mamba, and four layers. A Mamba
is also timed beside a model of our own mixers with the same weights.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from recallkit.models.architecture import ArchitectureConfig, LayerConfig
from recallkit.models.describe import written_layers
from recallkit.models.language_model import LanguageModel
from recallkit.models.layer_kernels import layers_by_kernel
from recallkit.models.loading import load_model
from recallkit.models.native_model import NativeModel
from recallkit.models.plan import ModelPlan
from recallkit.models.spec import ModelSpec
from recallkit.models.transformers_model import TransformersModel
from recallkit.quiet_transformers import quiet_transformers
from tests.benchmarks import harness
from tests.models.shrinking import VOCAB_SIZE, build

ROWS, LENGTH = 2, 1024
WIDTH = 256
LEAST_OF_OURS = 0.95
"""Of the rate of a model of our own mixers."""

_HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 2048}
_MLP = {"hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, **_HEADS}
_SCAN = {"mamba_d_state": 16, "mamba_dt_rank": 16, "mamba_d_conv": 4}
_HEAD_SCAN = {"mamba_n_heads": 8, "mamba_d_head": 64, "mamba_d_state": 64, "mamba_chunk_size": 256}
_DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
}
_MAMBA = {"hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, "state_size": 16, "time_step_rank": 16}
_ZAMBA2 = {"mamba_ngroups": 1, "mamba_headdim": 64, "n_mamba_heads": 8, "chunk_size": 256}
_NEMOTRON = {"mamba_num_heads": 8, "mamba_head_dim": 64, "ssm_state_size": 64, "chunk_size": 256}
FAMILIES: dict[str, dict[str, Any]] = {
    "mamba": _MAMBA,
    "mamba-768": {
        "hidden_size": 768,
        "intermediate_size": 1536,
        "state_size": 16,
        "time_step_rank": 48,
        "num_hidden_layers": 4,
        "vocab_size": 50280,
    },
    "mamba2": {
        "hidden_size": WIDTH,
        "state_size": 64,
        "num_heads": 8,
        "head_dim": 64,
        "n_groups": 1,
        "chunk_size": 256,
    },
    "falcon_mamba": _MAMBA,
    "rwkv": {"hidden_size": WIDTH, "attention_hidden_size": WIDTH, "context_length": 2048},
    "recurrent_gemma": {**_MLP, "lru_width": WIDTH, "head_dim": 64},
    "jamba": {**_MLP, **_SCAN},
    "zamba": {**_MLP, **_SCAN, "n_mamba_heads": 2, "attention_hidden_size": 2 * WIDTH, "attention_head_dim": 128},
    "zamba2": {**_MLP, **_SCAN, **_ZAMBA2, "mamba_d_state": 64, "attention_hidden_size": 2 * WIDTH},
    "bamba": {**_MLP, **_HEAD_SCAN},
    "falcon_h1": {**_MLP, **_HEAD_SCAN, "mamba_d_ssm": 2 * WIDTH},
    "nemotron_h": {**_MLP, **_NEMOTRON},
    "granitemoehybrid": {**_MLP, **_HEAD_SCAN},
    "lfm2": {**_MLP, "block_dim": WIDTH, "conv_dim": WIDTH},
    "qwen3_next": {**_MLP, **_DELTA, "head_dim": 64},
    "olmo_hybrid": {**_MLP, **_DELTA},
    "kimi_linear": {**_MLP, **_DELTA, "num_key_value_heads": 4},
}
HEADINGS = ("family", "layers on our kernels", "transformers, s", "ours, s", "ratio", "range", "largest difference, nats")


def main() -> None:
    """Prints a row of a Markdown table for each family."""
    parser = harness.parser_of(__doc__, repeats=5)
    parser.add_argument("families", nargs="*", metavar="FAMILY", default=[], help="only these")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--length", type=int, default=LENGTH, help=f"ids of a row ({LENGTH:,})")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{harness.machine(1)}; {ROWS} x {args.length:,} ids, {args.device}, {args.dtype}\n")
    print(f"| {' | '.join(HEADINGS)} |\n| {' | '.join(['---'] * len(HEADINGS))} |")
    ids = np.random.default_rng(0).integers(3, VOCAB_SIZE, ROWS * (args.length + 1))
    offsets = np.arange(ROWS + 1) * (args.length + 1)
    stages: dict[str, tuple[tuple[float, float, float], float | None]] = {}
    for name in args.families or FAMILIES:
        model = small_model(name, args.device, args.dtype)
        theirs, ours = (scoring(model, ids, offsets, own) for own in (False, True))
        duel = print_row(name, written_layers(layers_by_kernel(model.model)), theirs, ours, args.repeats)
        if name.startswith("mamba") and name != "mamba2":
            mixers = scoring(native(model), ids, offsets, True)
            against_mixers = print_row(f"{name}, our mixers", "every layer", mixers, ours, args.repeats)
            stages = {"transformers' own functions": (duel, None), "our own model": (against_mixers, LEAST_OF_OURS)}
    for peer, ((before, after, ratio), target) in stages.items():
        stage = "score a Mamba of transformers"
        harness.print_stage(stage, peer, len(ids) / after, len(ids) / before, "tok/s", target=target, ratio=ratio)


def small_model(name: str, device: str, dtype: str) -> TransformersModel:
    """A family's model, loaded as a checkpoint of it is."""
    with tempfile.TemporaryDirectory() as folder, quiet_transformers():
        build(name.partition("-")[0], **FAMILIES.get(name, {})).save_pretrained(folder)
        model = load_model(ModelPlan(ModelSpec(folder), VOCAB_SIZE, device=device, dtype=dtype))
    assert isinstance(model, TransformersModel)
    return model


def native(model: TransformersModel) -> NativeModel:
    """A Mamba of transformers as a model of our own mixers, with the same weights."""
    config = model.model.config
    options = {"state": config.state_size, "dt_rank": int(config.time_step_rank), "conv_kernel": config.conv_kernel}
    layers = (LayerConfig("mamba", options),) * config.num_hidden_layers
    architecture = ArchitectureConfig(
        config.vocab_size,
        config.hidden_size,
        layers,
        mlp="none",
        norm_eps=config.layer_norm_epsilon,
    )
    names = {
        "backbone.embeddings.": "embedding.",
        "backbone.layers.": "blocks.",
        "backbone.norm_f.": "norm.",
        ".norm.": ".mixer_norm.",
    }
    weights = {}
    for name, value in model.model.state_dict().items():
        for theirs, ours in names.items():
            name = name.replace(theirs, ours)
        weights[name] = value
    weights.pop("lm_head.weight", None)
    ours = LanguageModel(architecture)
    ours.load_state_dict(weights)
    return NativeModel(ours.to(model.device, model.model.dtype).eval(), "ours", model.device)


def scoring(model: Any, ids: np.ndarray, offsets: np.ndarray, own: bool) -> Callable[[], np.ndarray]:
    """What scores with our kernels or with those of transformers."""
    kernels = model._kernels if own and isinstance(model, TransformersModel) else contextlib.nullcontext

    def score() -> np.ndarray:
        before = getattr(model, "_kernels", None)
        model._kernels = kernels
        try:
            nll: np.ndarray = model.score(ids, offsets).nll
        finally:
            model._kernels = before
        return nll

    return score


def print_row(
    name: str, layers: str, theirs: Callable[[], np.ndarray], ours: Callable[[], np.ndarray], repeats: int
) -> tuple[float, float, float]:
    """Seconds of both ways in turn, after a run of each that is not counted, and how far their NLLs are apart.

    Returns the medians of the seconds, and of the ratios.
    """
    difference = float(np.abs(theirs() - ours()).max())
    rounds = [[seconds(way) for way in (theirs, ours)] for _ in range(repeats)]
    medians = [statistics.median(times) for times in zip(*rounds, strict=True)]
    ratios = [before / after for before, after in rounds]
    cells = [name, layers, f"{medians[0]:.3f}", f"{medians[1]:.3f}", harness.spread(ratios), f"{difference:.0e}"]
    print(f"| {' | '.join(cells)} |", flush=True)
    return medians[0], medians[1], statistics.median(ratios)


def seconds(way: Callable[[], Any]) -> float:
    """CPU seconds of this process, or on a GPU those of the clock."""
    clock = time.perf_counter if torch.cuda.is_available() else time.process_time
    start = clock()
    way()
    return clock() - start


if __name__ == "__main__":
    main()
