"""Checkpoints saved by the real fla score as its own forward pass does, where our mixers compute
them and where fla does.

fla's attention needs flash-attn, which needs a GPU: torch's attention is in its place. fla's
kernels run in Triton's interpreter, each in its first configuration and token by token, which is
the form that fla takes for sequences of at most 64 ids. fla is no part of the development
environment, since transformers uses it where it finds it: install it into a folder of its own, and
name that in PYTHONPATH.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from recallkit.errors import UserError
from recallkit.models import fla
from recallkit.models.fla import MODEL_TYPES
from recallkit.models.loading import identify_model, load_model
from recallkit.models.native_model import NativeModel
from recallkit.models.plan import ModelPlan
from recallkit.models.spec import ModelSpec

VOCAB = 300
IS_INSTALLED = any(importlib.metadata.distributions(name="flash-linear-attention"))
needs_fla = pytest.mark.skipif(
    not IS_INSTALLED,
    reason='needs fla: pip install "recallkit-lm[fla]"',
)

SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_heads": 2,
    "intermediate_size": 96,
    "norm_eps": 1e-4,
}
OURS = {
    "gated_deltanet": {"head_dim": 16, "expand_v": 2.5},
    "gated_deltanet, tied": {
        "head_dim": 16,
        "tie_word_embeddings": True,
        "num_v_heads": 2,
        "output_gate_activation": "silu",
    },
    "delta_net": {"expand_k": 0.5, "expand_v": 1.5},
    "kda": {"head_dim": 16, "expand_v": 2.0},
    "gla": {"expand_k": 0.75},
    "retnet": {},
    "retnet, hybrid": {"attn": {"layers": [1], "num_heads": 2, "window_size": None}},
    "gated_deltanet, hybrid": {
        "head_dim": 16,
        "attn": {"layers": [0], "num_heads": 4, "num_kv_heads": 2, "rope_theta": 500.0},
    },
    "delta_net, hybrid": {
        "num_hidden_layers": 3,
        "expand_v": 1.5,
        "attn": {"layers": [1], "num_heads": 4, "num_kv_heads": 2},
    },
    "kda, hybrid": {
        "num_hidden_layers": 3,
        "head_dim": 16,
        "attn": {"layers": [2], "num_heads": 2, "window_size": 6, "rope_theta": 500.0},
    },
    "gla, hybrid": {
        "num_hidden_layers": 3,
        "attn": [
            {"layers": [1], "num_heads": 2, "window_size": 5},
            {"layers": [2], "num_heads": 4},
        ],
    },
}
OURS |= {
    "hgrn": {"num_heads": None},
    "hgrn, hybrid": {
        "num_hidden_layers": 3,
        "num_heads": None,
        "attn": {"layers": [1], "num_heads": 2},
        "use_lower_bound": False,
    },
    "hgrn2": {"num_heads": None, "expand_ratio": 16},
    "hgrn2, hybrid": {
        "num_hidden_layers": 4,
        "num_heads": None,
        "expand_ratio": 32,
        "attn": {"layers": [1, 3], "num_heads": 2},
    },
}
THEIRS = {
    "gated_deltanet": {"head_dim": 16, "num_v_heads": 4, "attn_mode": "fused_recurrent"},
    "rwkv7": {"head_dim": 32, "num_heads": None},
    "hgrn": {"num_heads": None, "use_short_conv": True},
    "rwkv6": {},
}
KINDS = {
    "gated_deltanet": "gated_delta_net",
    "rwkv7": "rwkv7_attention",
    "hgrn": "hgrn_attention",
    "rwkv6": "rwkv6_attention",
}
"""What ablations call their mixers."""

PROGRAM = """
import json, sys
from triton.runtime.autotuner import Autotuner
run = Autotuner.run
def first(self, *arguments, **options):
    self.configs = self.configs[:1]
    return run(self, *arguments, **options)
Autotuner.run = first
import numpy as np, torch, fla.models, fla.layers.attn
def attend(q, k, v, causal, window_size):
    # what flash_attn_func of flash-attn 2 gives, by its documentation: heads third (b, t, h, d), ids to the left and to the right
    i, j = torch.arange(q.shape[1])[:, None], torch.arange(k.shape[1])
    seen = (j <= i) & ((window_size[0] < 0) | (j >= i - window_size[0]))
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True).transpose(1, 2)
fla.layers.attn.flash_attn_func = attend
from transformers import AutoConfig, AutoModelForCausalLM
folder, name, settings, scored = json.loads(sys.argv[1])
torch.manual_seed(0)
settings = {key: value for key, value in settings.items() if value is not None}
model = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **settings)).eval()
with torch.no_grad():
    for parameter in model.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
model.save_pretrained(folder)
rng, found = np.random.default_rng(0), {}
ids = [rng.integers(0, settings["vocab_size"], size) for size in (17, 30, 2)]
nlls = []
for sequence in ids:
    sequence = torch.from_numpy(sequence)
    with torch.no_grad():
        logits = model(input_ids=sequence[None, :-1], use_cache=False).logits[0].double()
    nlls.append(torch.nn.functional.cross_entropy(logits, sequence[1:], reduction="none").numpy())
found = {"ids": np.concatenate(ids), "offsets": np.cumsum([0, *map(len, ids)]), "nll": np.concatenate(nlls)}
if scored:
    from recallkit.models.loading import load_model
    from recallkit.models.plan import ModelPlan
    from recallkit.models.spec import ModelSpec
    scorer = load_model(ModelPlan(folder, settings["vocab_size"], device="cpu"))
    found["class"] = np.array(type(scorer).__name__)
    found["scored"] = scorer.score(found["ids"], found["offsets"]).nll
    from recallkit.models.ablation import find_mixers
    mixers = find_mixers(scorer)
    mixers[0].change(torch.zeros_like)
    found["ablated"] = scorer.score(found["ids"], found["offsets"]).nll
    found["mixers"] = np.array([f"{mixer.name} {mixer.kind}" for mixer in mixers])
    kept = AutoConfig.for_model("mamba2")
    found["kept"] = np.array(type(kept).__module__)
np.savez(folder + "/found.npz", **found)
"""


def saved_by_fla(
    folder: Path,
    name: str,
    settings: dict[str, object],
    *,
    scored: bool,
) -> dict[str, np.ndarray]:
    """What fla's own forward pass gives for a random model that it saves, and what recallkit gives
    where it is to score it there."""
    argument = json.dumps([str(folder), name.partition(",")[0], SIZES | settings, scored])
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, argument],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return dict(np.load(folder / "found.npz"))


def plan(folder: Path | str, **options: object) -> ModelPlan:
    return ModelPlan(ModelSpec(str(folder)), VOCAB, device="cpu", **options)


@needs_fla
@pytest.mark.parametrize("name", OURS)
def test_our_mixers_score_as_fla_does(tmp_path, hub, name):
    results = saved_by_fla(tmp_path / "saved", name, OURS[name], scored=False)
    hub("owner/name", tmp_path / "saved")
    for spec in (tmp_path / "saved", "owner/name"):
        model = load_model(plan(spec))
        assert isinstance(model, NativeModel)
        np.testing.assert_allclose(
            model.score(results["ids"], results["offsets"]).nll,
            results["nll"],
            rtol=0,
            atol=2e-5,
        )
        carried = model.score_carrying(results["ids"], results["offsets"], 7).nll
        np.testing.assert_allclose(carried, results["nll"], rtol=0, atol=2e-5)
    assert identify_model(plan("owner/name")) == f"{10:040x}"
    alone = [
        model.score(results["ids"][a:b], np.array([0, b - a])).nll
        for a, b in itertools.pairwise(results["offsets"])
    ]
    np.testing.assert_allclose(np.concatenate(alone), results["nll"], rtol=0, atol=2e-5)


@needs_fla
@pytest.mark.parametrize("name", THEIRS)
def test_fla_itself_scores_what_our_mixers_do_not(tmp_path, name):
    results = saved_by_fla(tmp_path, name, THEIRS[name], scored=True)
    assert results["class"] == "TransformersModel"
    np.testing.assert_allclose(results["scored"], results["nll"], rtol=0, atol=2e-5)
    assert results["kept"] == "transformers.models.mamba2.configuration_mamba2", (
        "importing fla takes transformers' own classes from it"
    )
    assert results["mixers"].tolist() == [f"{layer} {KINDS[name]}" for layer in (0, 1)]
    assert np.abs(results["ablated"] - results["scored"]).max() > 1e-3


@needs_fla
def test_the_list_of_models_is_flas(tmp_path):
    program = (
        "import fla.models; from transformers import CONFIG_MAPPING as c; "
        "print(*set(c._extra_content) - set(c._mapping))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
    )
    assert set(done.stdout.split()) == MODEL_TYPES


def write_config(folder: Path, **entries: object) -> Path:
    (folder / "config.json").write_text(json.dumps(entries))
    (folder / "model.safetensors").touch()
    return folder


@pytest.mark.skipif(IS_INSTALLED, reason="fla is installed")
@pytest.mark.parametrize(
    "entries",
    [
        {"model_type": "rwkv7"},
        {"model_type": "gated_deltanet", "num_heads": 2, "allow_neg_eigval": True},
    ],
)
def test_a_model_of_fla_without_fla_is_one_line(tmp_path, entries):
    with pytest.raises(
        UserError,
        match=rf"{entries['model_type']} is a model of flash-linear-attention, .*recallkit-lm\[fla\]",
    ):
        load_model(plan(write_config(tmp_path, **entries)))


WITHOUT_GPU = """
import sys
from recallkit.errors import UserError
from recallkit.models.loading import load_model
from recallkit.models.plan import ModelPlan
from recallkit.models.spec import ModelSpec
try:
    load_model(ModelPlan(sys.argv[1], 300, device="cpu"))
except UserError as error:
    print(error)
"""


@needs_fla
def test_a_model_of_fla_without_a_gpu_is_one_line(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", WITHOUT_GPU, str(write_config(tmp_path, model_type="rwkv7"))]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert (
        "rwkv7 is computed by kernels of flash-linear-attention, which need a GPU; use --device "
        "cuda"
    ) in done.stdout
    assert (len(done.stdout.splitlines()), done.stderr) == (1, "")


DELTA = {
    "model_type": "gated_deltanet",
    "hidden_size": 8,
    "num_heads": 2,
    "num_hidden_layers": 1,
    "tie_word_embeddings": False,
}
SHAPES = {
    "model.embeddings.weight": (VOCAB, 8),
    "model.layers.0.attn_norm.weight": (8,),
    "model.layers.0.mlp_norm.weight": (8,),
    **{
        f"model.layers.0.attn.{name}_proj.weight": (4 if name in "qk" else 12, 8) for name in "qkvg"
    },
    **{
        f"model.layers.0.attn.{name}_conv1d.weight": (4 if name in "qk" else 12, 1, 4)
        for name in "qkv"
    },
    **{f"model.layers.0.attn.{name}_proj.weight": (2, 8) for name in "ab"},
    **{f"model.layers.0.attn.{name}": (2,) for name in ("A_log", "dt_bias")},
    "model.layers.0.attn.o_norm.weight": (6,),
    "model.layers.0.attn.o_proj.weight": (8, 12),
    **{f"model.layers.0.mlp.{name}_proj.weight": (16, 8) for name in ("gate", "up")},
    "model.layers.0.mlp.down_proj.weight": (8, 16),
    "model.norm.weight": (8,),
    "lm_head.weight": (VOCAB, 8),
}


def write_weights(folder: Path, shapes: dict[str, tuple[int, ...]]) -> Path:
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(0)
    save_file(
        {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()},
        folder / "model.safetensors",
    )
    return write_config(folder, **DELTA)


def test_every_weight_is_needed_and_no_other_one_is_taken(tmp_path):
    assert isinstance(load_model(plan(write_weights(tmp_path, SHAPES))), NativeModel)
    for name in (
        "model.embeddings.weight",
        "model.layers.0.attn.k_proj.weight",
        "model.layers.0.attn.A_log",
        "lm_head.weight",
    ):
        shape = SHAPES[name]
        with pytest.raises(UserError, match=r"missing|Missing key"):
            load_model(
                plan(
                    write_weights(
                        tmp_path,
                        {other: owner for other, owner in SHAPES.items() if other != name},
                    ),
                ),
            )
        with pytest.raises(UserError, match=r"size mismatch|is not that of a model"):
            load_model(
                plan(write_weights(tmp_path, SHAPES | {name: (shape[0] + 1, *shape[1:])})),
            )
    with pytest.raises(UserError, match=r"Unexpected key.*extra"):
        load_model(plan(write_weights(tmp_path, SHAPES | {"model.extra": (1,)})))
    (tmp_path / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(UserError, match="cannot be read"):
        load_model(plan(tmp_path))
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"a config.json without weights"):
        load_model(plan(tmp_path))


def test_heads_that_share_keys_and_values_are_those_of_a_file_where_each_has_its_own(tmp_path):
    """A second layer of attention, two heads on one of keys and values; then the same rows twice in
    the file, with a window, and cut."""
    from safetensors.torch import load_file, save_file

    second = {
        name.replace(".0.", ".1."): shape
        for name, shape in SHAPES.items()
        if "_norm" in name and ".attn." not in name
    }
    second |= {
        name.replace(".0.", ".1."): shape for name, shape in SHAPES.items() if ".mlp." in name
    }
    second |= {
        f"model.layers.1.attn.{name}_proj.weight": (4 if name in "kv" else 8, 8) for name in "qkvo"
    }
    write_weights(tmp_path, SHAPES | second)
    ids, offsets = np.random.default_rng(0).integers(0, VOCAB, 20), np.array([0, 13, 20])

    def scored(**attention: object) -> np.ndarray:
        attn = {"layers": [1], "num_heads": 2, **attention}
        write = {**DELTA, "num_hidden_layers": 2, "attn": attn}
        (tmp_path / "config.json").write_text(json.dumps(write))
        return load_model(plan(tmp_path)).score(ids, offsets).nll

    shared, narrow, turned = (
        scored(num_kv_heads=1),
        scored(num_kv_heads=1, window_size=2),
        scored(num_kv_heads=1, rope_theta=10.0),
    )
    assert np.abs(shared - narrow).max() > 1e-3
    assert np.abs(shared - turned).max() > 1e-3
    with pytest.raises(
        UserError,
        match=r"k_proj.weight has 4 rows, which are not those of 2 heads",
    ):
        scored()
    weights = load_file(tmp_path / "model.safetensors")
    for part in "kv":
        name = f"model.layers.1.attn.{part}_proj.weight"
        weights[name] = weights[name].repeat(2, 1)
    save_file(weights, tmp_path / "model.safetensors")
    np.testing.assert_array_equal(scored(num_kv_heads=2), shared)
    np.testing.assert_array_equal(scored(num_kv_heads=2, window_size=2), narrow)


def normed(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def swish(x: np.ndarray) -> np.ndarray:
    return x * sigmoid(x)


def hgrn(
    owner: dict[str, np.ndarray],
    u: np.ndarray,
    bound: np.ndarray,
    heads: int | None,
) -> np.ndarray:
    """The formulas of HGRN, and with heads of HGRN-2, token by token; a norm of HGRN-2 has another
    epsilon than the model."""
    gates = bound + (1 - bound) * sigmoid(u @ owner["f_proj"].T)
    if heads is None:
        h, results = np.zeros(gates.shape[1]), []
        for a, i in zip(gates, u @ owner["i_proj"].T, strict=True):
            h = a * h + (1 - a) * swish(i)
            results.append(h)
        return (
            normed(np.stack(results), owner["g_norm"], 1e-3)
            * swish(u @ owner["g_proj"].T)
            @ owner["o_proj"].T
        )
    q, a, v = (
        x.reshape(len(u), heads, -1)
        for x in (swish(u @ owner["q_proj"].T), gates, u @ owner["i_proj"].T)
    )
    state, results = np.zeros((heads, q.shape[2], v.shape[2])), []
    for i in range(len(u)):
        state = a[i][..., None] * state + (1 - a[i])[..., None] * v[i][:, None]
        results.append((q[i][..., None] * state).sum(1).ravel() / np.sqrt(q.shape[2]))
    return normed(np.stack(results), owner["g_norm"], 1e-5) @ owner["o_proj"].T


@pytest.mark.parametrize(("kind", "heads"), [("hgrn", None), ("hgrn2", 2)])
def test_hgrn_is_its_formula(tmp_path, kind, heads):
    """Three layers, whose forget gates have bounds that follow from one parameter: none, then
    rising."""
    from safetensors.torch import save_file

    d, layers, rng = 8, 3, np.random.default_rng(0)
    own = {f"attn.{name}_proj": (d, d) for name in ("fiqo" if heads else "figo")} | {
        "attn.g_norm": (d,),
    }
    own |= {
        "attn_norm": (d,),
        "mlp_norm": (d,),
        "mlp.gate_proj": (12, d),
        "mlp.up_proj": (12, d),
        "mlp.down_proj": (d, 12),
    }
    shapes = {
        f"model.layers.{i}.{name}.weight": shape
        for i in range(layers)
        for name, shape in own.items()
    }
    shapes |= {
        "model.embeddings.weight": (VOCAB, d),
        "model.norm.weight": (d,),
        "lm_head.weight": (VOCAB, d),
        "model.lower_bounds": (layers, d),
    }
    weights = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    saved = {name: torch.from_numpy(weight).float() for name, weight in weights.items()}
    save_file(saved, tmp_path / "model.safetensors")
    config = {
        "model_type": kind,
        "hidden_size": d,
        "num_hidden_layers": layers,
        "norm_eps": 1e-3,
        "expand_ratio": d // heads if heads else 1,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    ids = rng.integers(0, VOCAB, 40)
    shares = np.exp(weights["model.lower_bounds"])
    bounds = (shares / shares.sum(0)).cumsum(0)
    x = weights["model.embeddings.weight"][ids[:-1]]
    for i in range(layers):
        owner = {name: weights[f"model.layers.{i}.{name}.weight"] for name in own}
        mixer = {
            name.removeprefix("attn."): owner[name] for name in own if name.startswith("attn.")
        }
        x = x + hgrn(mixer, normed(x, owner["attn_norm"], 1e-3), bounds[i] - bounds[0], heads)
        u = normed(x, owner["mlp_norm"], 1e-3)
        x = (
            x
            + (swish(u @ owner["mlp.gate_proj"].T) * (u @ owner["mlp.up_proj"].T))
            @ owner["mlp.down_proj"].T
        )
    logits = normed(x, weights["model.norm.weight"], 1e-3) @ weights["lm_head.weight"].T
    wanted = np.log(np.exp(logits).sum(1)) - logits[np.arange(len(ids) - 1), ids[1:]]
    model = load_model(plan(tmp_path, dtype="float64"))
    assert isinstance(model, NativeModel)
    for results in (
        model.score(ids, np.array([0, 40])),
        model.score_carrying(ids, np.array([0, 40]), 7),
    ):
        np.testing.assert_allclose(results.nll, wanted, rtol=0, atol=1e-5)
    save_file(saved | {"model.lower_bounds": torch.zeros(2, d)}, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match="weight lower_bounds is not that of a model of 3 layers"):
        load_model(plan(tmp_path))


@pytest.mark.parametrize(
    ("entries", "readable"),
    [
        ({"model_type": "gla"}, True),
        ({"model_type": "gla", "use_short_conv": True}, False),
        ({"model_type": "kda", "num_heads": 4, "num_v_heads": 4}, True),
        ({"model_type": "kda", "safe_gate": True, "lower_bound": -5.0}, False),
        ({"model_type": "gla", "num_heads": 4, "num_kv_heads": 2}, False),
        ({"model_type": "delta_net", "use_gate": True}, False),
        (
            {
                "model_type": "gated_deltanet",
                "attn": {"layers": [1], "num_heads": 2, "num_kv_heads": 1, "qkv_bias": False},
            },
            True,
        ),
        (
            {
                "model_type": "gated_deltanet",
                "attn": {"layers": [1], "num_heads": 2, "qkv_bias": True},
            },
            False,
        ),
        (
            {
                "model_type": "gated_deltanet",
                "attn": {"layers": [1], "num_heads": 2, "qk_norm": True},
            },
            False,
        ),
        ({"model_type": "gated_deltanet", "attn": {"layers": [1]}}, False),
        ({"model_type": "gated_deltanet", "attn": "all"}, False),
        ({"model_type": "gated_deltanet", "hidden_act": "powlu"}, False),
        ({"model_type": "retnet"}, True),
        ({"model_type": "retnet", "expand_k": 0.5}, False),
        ({"model_type": "hgrn"}, True),
        ({"model_type": "hgrn", "use_short_conv": True}, False),
        (
            {
                "model_type": "hgrn2",
                "attn": {"layers": [1], "num_heads": 2},
                "num_heads": 8,
                "expand_ratio": 128,
            },
            True,
        ),
        ({"model_type": "mamba2"}, False),
        ({}, False),
    ],
)
def test_options_that_our_mixers_lack_are_left_to_fla(entries, readable):
    assert fla.is_readable(entries) is readable
