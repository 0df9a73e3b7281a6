"""Recurrent layers of transformers on our kernels, beside the functions that transformers itself
has for them.

    python tests/benchmarks/layer_kernels.py [FAMILY ...] [--repeats 5] [--device cuda --dtype
    bfloat16]

Each family is built small, with random weights, and scores the same ids both ways in turn: CPU
seconds on one thread, or on a GPU those of the clock. mamba-768 has the width and the vocabulary of
a released Mamba, and four layers. A Mamba is also timed beside a model of our own mixers with the
same weights.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Callable
from functools import partial
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
from tests.benchmarks.scoring import freed
from tests.models.shrinking import VOCAB_SIZE, build

ROWS, LENGTH = 2, 1024
WIDTH = 256
LEAST_OF_OURS = 0.95
"""Of the rate of a model of our own mixers."""

_HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 2048}
_MLP = {"hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, **_HEADS}
_SCAN = {"mamba_d_state": 16, "mamba_dt_rank": 16, "mamba_d_conv": 4}
_HEAD_SCAN = {"mamba_n_heads": 8, "mamba_d_head": 64, "mamba_d_state": 64, "mamba_chunk_size": 256}
_HEAD_DIMS = {"linear_key_head_dim": 64, "linear_value_head_dim": 64}
_DELTA = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, **_HEAD_DIMS}
_MAMBA = {
    "hidden_size": WIDTH,
    "intermediate_size": 2 * WIDTH,
    "state_size": 16,
    "time_step_rank": 16,
}
_ZAMBA2 = {"mamba_ngroups": 1, "mamba_headdim": 64, "n_mamba_heads": 8, "chunk_size": 256}
_NEMOTRON = {"mamba_num_heads": 8, "mamba_head_dim": 64, "ssm_state_size": 64, "chunk_size": 256}
_WIDE = {"hidden_size": 768, "intermediate_size": 1536, "num_hidden_layers": 4, "vocab_size": 50280}
_MAMBA2 = {"state_size": 64, "num_heads": 8, "head_dim": 64, "n_groups": 1, "chunk_size": 256}
FAMILIES: dict[str, dict[str, Any]] = {
    "mamba": _MAMBA,
    "mamba-768": {**_WIDE, "state_size": 16, "time_step_rank": 48},
    "mamba2": {"hidden_size": WIDTH, **_MAMBA2},
    "falcon_mamba": _MAMBA,
    "rwkv": {"hidden_size": WIDTH, "attention_hidden_size": WIDTH, "context_length": 2048},
    "recurrent_gemma": {**_MLP, "lru_width": WIDTH, "head_dim": 64},
    "jamba": {**_MLP, **_SCAN},
    "zamba": {
        **_MLP,
        **_SCAN,
        "n_mamba_heads": 2,
        "attention_hidden_size": 2 * WIDTH,
        "attention_head_dim": 128,
    },
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


def main() -> None:
    args = harness.parse(
        __doc__,
        {
            "families": [],
            "--repeats": 5,
            "--length": LENGTH,
            "--device": "cpu",
            "--dtype": "float32",
        },
    )
    torch.set_num_threads(1)
    print(f"{harness.machine(1)}; {ROWS} x {args.length:,} ids, {args.device}, {args.dtype}")
    ids = np.random.default_rng(0).integers(3, VOCAB_SIZE, ROWS * (args.length + 1))
    offsets = np.arange(ROWS + 1) * (args.length + 1)
    for name in args.families or FAMILIES:
        model = small_model(name, args.device, args.dtype)
        ours, theirs = (scoring(model, ids, offsets, own) for own in (True, False))
        layers = written_layers(layers_by_kernel(model.model))
        others = {"transformers' own functions": (theirs, None)}
        is_mamba = name in ("mamba", "mamba-768")
        if is_mamba:
            others["our own model"] = scoring(native(model), ids, offsets, True), LEAST_OF_OURS
        for peer, (other, least) in others.items():
            difference = np.abs(ours() - other()).max()
            harness.compare_calls(
                f"{name}, on our kernels: {layers}; NLLs differ by {difference:.0e} nats at most",
                {"recallkit": partial(freed, ours), peer: partial(freed, other)},
                clock=harness.clock_of(args.device),
                repeats=args.repeats,
                work=len(ids),
                unit="tok/s",
                stage="score a Mamba of transformers" if is_mamba else "",
                targets={} if least is None else {peer: least},
            )


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
    options = {
        "state": config.state_size,
        "dt_rank": int(config.time_step_rank),
        "conv_kernel": config.conv_kernel,
    }
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


def scoring(
    model: Any, ids: np.ndarray, offsets: np.ndarray, own: bool
) -> Callable[[], np.ndarray]:
    """What scores with our kernels or with those of transformers."""
    kernels = (
        model._kernels if own and isinstance(model, TransformersModel) else contextlib.nullcontext
    )

    def score() -> np.ndarray:
        before = getattr(model, "_kernels", None)
        model._kernels = kernels
        try:
            nll: np.ndarray = model.score(ids, offsets).nll
        finally:
            model._kernels = before
        return nll

    return score


if __name__ == "__main__":
    main()
