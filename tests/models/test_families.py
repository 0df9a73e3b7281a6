"""Every family that is promised, by a tiny model with each of its kinds of layer: scores, batches,
state, generation, float64."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from recallkit.errors import UserError
from recallkit.models.loading import load_model
from recallkit.models.plan import ModelPlan
from recallkit.models.precision import widened
from recallkit.models.spec import ModelSpec
from recallkit.models.transformers_model import TransformersModel
from tests.models.families import FAMILIES, VOCAB_SIZE, class_of, save_model
from tests.models.test_generation import MOST, check, slow_loop

RAGGED = [41, 33, 2, 17]
"""Longer than the chunks of every family's fast form (16), and no multiple of them."""

CAPPED = {"recurrent_gemma", "xlstm", "gemma4_text"}
STATE_ONLY = {"mamba", "mamba2", "falcon_mamba", "rwkv", "xlstm"}
SLIDING = {"recurrent_gemma"}
IN_STEPS = {"mamba", "falcon_mamba", "jamba", "zamba", "recurrent_gemma", "minimax"}
"""Where more ids than one follow a state, transformers ignores a part of it: the state of the
selective scan (mamba, falcon_mamba, jamba, zamba), the last inputs of the convolution
(recurrent_gemma), what the attention layers hold (minimax)."""

NOT_JOINED = {"rwkv", "minimax", "qwen4_exp_text", "deepseek_v4"}
"""In transformers single steps of rwkv mix up the rows of a batch, and minimax masks nothing after
its first layer's cache; what the indexed attention of qwen4_exp selects depends on padding, and so
does what deepseek_v4 compresses."""

OFTEN = {
    *(
        "llama",
        "mamba",
        "mamba2",
        "rwkv",
        "recurrent_gemma",
        "xlstm",
        "zamba2",
        "minimax",
        "granitemoehybrid",
        "qwen3_next",
    ),
    *("deepseek_v4", "glm5_next"),
}
"""Families each of which is read in a way of its own (heads, states, steps, classes); all others
are tested with the slow tests."""


@dataclass(frozen=True)
class Loaded:
    """A family's checkpoint, the model that recallkit loads from it, and the one of
    transformers."""

    name: str
    path: Path
    model: TransformersModel
    bare: Any


def load(path: Path, dtype: str = "float32") -> TransformersModel:
    return load_model(ModelPlan(ModelSpec(str(path)), VOCAB_SIZE, device="cpu", dtype=dtype))


@pytest.fixture(scope="module")
def loaded(tmp_path_factory) -> Callable[[str], Loaded]:
    """The same models for every test: what one leaves behind must not matter to the next."""
    folder, results = tmp_path_factory.mktemp("families"), {}

    def get(name: str) -> Loaded:
        if name not in results:
            path = save_model(name, folder)
            results[name] = Loaded(
                name,
                path,
                load(path),
                class_of(name).from_pretrained(path, dtype=torch.float32).eval(),
            )
        return results[name]

    return get


@pytest.fixture(
    scope="module",
    params=[
        name if name in OFTEN else pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES
    ],
)
def family(request, loaded) -> Iterator[Loaded]:
    return loaded(request.param)


def sequences(lengths: list[int], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return np.random.default_rng(seed).integers(0, VOCAB_SIZE, offsets[-1]).astype(
        np.uint32,
    ), offsets


def each_alone(
    bare: Any,
    ids: np.ndarray,
    offsets: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """NLL, argmax and rank from the model's own forward, one sequence at a time, in float64 from
    its float32 logits."""
    results = []
    for start, stop in itertools.pairwise(offsets):
        sequence = torch.from_numpy(ids[start:stop].astype(np.int64))
        with torch.no_grad():
            logits = bare(sequence[None, :-1], use_cache=False).logits[0].double()
        target = logits.gather(1, sequence[1:, None])
        results.append(
            (torch.logsumexp(logits, 1) - target[:, 0], logits.argmax(1), (logits > target).sum(1)),
        )
    nll, argmax, rank = (torch.cat(values).numpy() for values in zip(*results, strict=True))
    return nll, argmax, rank


def test_a_ragged_batch_scores_as_each_sequence_alone_under_the_models_own_forward(family):
    ids, offsets = sequences(RAGGED)
    nll, argmax, rank = each_alone(family.bare, ids, offsets)
    together = family.model.score(ids, offsets)
    np.testing.assert_allclose(together.nll, nll, rtol=0, atol=1e-5)
    assert (together.argmax == argmax).mean() > 0.98
    assert np.abs(together.rank - rank).max() <= 1


def test_no_token_sees_what_follows_and_every_later_one_may(family):
    ids, offsets = sequences([41])
    before = family.model.score(ids, offsets).nll
    for changed_at in (1, 17, 30):
        changed = ids.copy()
        changed[changed_at] = (changed[changed_at] + 1) % VOCAB_SIZE
        difference = np.abs(family.model.score(changed, offsets).nll - before)
        assert difference[: changed_at - 1].max(initial=0) <= 1e-6
        assert difference[changed_at - 1] > 1e-3, "the changed token has another score"
        assert difference[changed_at:].max() > 1e-3, "it is remembered"


def test_what_a_family_is_found_to_be(family):
    model, name = family.model, family.name
    assert (model.head.cap is not None) is (name in CAPPED)
    assert model.sharing == "any"
    assert model.max_length == (None if name in STATE_ONLY | SLIDING else 1024)
    assert model.carrying == ("steps" if name in IN_STEPS else "chunks")
    assert model.can_join is (name not in NOT_JOINED)


def test_a_carried_state_gives_the_same_scores(family):
    for lengths, chunks in (([30, 30], (16,)), ([34, 17, 2], (1, 7))):
        ids, offsets = sequences(lengths, seed=1)
        at_once = family.model.score(ids, offsets)
        for chunk in chunks:
            carried = family.model.score_carrying(ids, offsets, chunk)
            np.testing.assert_allclose(carried.nll, at_once.nll, rtol=0, atol=5e-5)
            assert (carried.argmax == at_once.argmax).mean() > 0.98
            assert np.abs(carried.rank - at_once.rank).max() <= 1


def test_it_generates_what_its_own_forward_gives(family):
    check(
        family.model,
        lambda prompt: slow_loop(
            lambda ids: family.bare(ids, use_cache=False).logits,
            prompt,
            MOST,
        ),
    )


class Recorded(TorchDispatchMode):
    """Operators that gave something narrower than float64."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        actual = func(*args, **(kwargs or {}))
        narrow = (torch.float32, torch.float16, torch.bfloat16)
        if any(
            isinstance(leaf, torch.Tensor) and leaf.dtype in narrow for leaf in tree_leaves(actual)
        ):
            self.narrow.add(str(func))
        return actual


def test_it_computes_in_float64_throughout(family):
    model = load(family.path, "float64")
    ids = torch.from_numpy(np.random.default_rng(0).integers(0, VOCAB_SIZE, (2, 34)))
    with torch.inference_mode(), Recorded() as recorded:
        results = model.reduce(model.forward(ids[:, :-1])[0].flatten(0, 1), ids[:, 1:].flatten())
    with torch.inference_mode(), widened():
        own = torch.log_softmax(model.model(input_ids=ids[:, :-1], use_cache=False).logits, -1)
    assert not recorded.narrow
    np.testing.assert_allclose(
        results.nll.numpy(),
        -own.gather(2, ids[:, 1:, None]).flatten().numpy(),
        rtol=0,
        atol=1e-12,
    )
    narrow = family.model.score(ids.flatten().numpy(), np.array([0, 34, 68])).nll
    assert 0 < np.abs(narrow - results.nll.numpy()).max() < 1e-4


# ---------------------------------------------------------------------------------- single families


@pytest.mark.parametrize("name", ["mamba2", "mamba"])
def test_what_is_known_of_a_chunk_is_reduced_before_the_next_is_read(loaded, monkeypatch, name):
    """In steps, too, which are reduced together: one at a time would take as many times as long."""
    model, rows = loaded(name).model, []
    reduce = model.reduce
    model.pieces(64, 16)  # what is tried first is not part of the reading
    monkeypatch.setattr(
        model,
        "reduce",
        lambda outputs, targets: rows.append(len(outputs)) or reduce(outputs, targets),
    )
    model.score_carrying(*sequences([65, 65]), chunk=16)
    assert rows == [32, 32, 32, 32]


def copied(path: Path, to: Path, **changes: object) -> Path:
    shutil.copytree(path, to)
    config = json.loads((to / "config.json").read_text())
    (to / "config.json").write_text(json.dumps({**config, **changes}))
    return to


def test_xlstm_is_not_rounded_between_stretches(loaded, tmp_path):
    """Its own forward keeps the state between stretches of `max_inference_chunksize` ids in
    bfloat16."""
    path = copied(loaded("xlstm").path, tmp_path / "stretches", max_inference_chunksize=16)
    ids, offsets = sequences([65])
    exact = loaded("xlstm").model.score(ids, offsets).nll
    bare = class_of("xlstm").from_pretrained(path, dtype=torch.float32).eval()
    assert np.abs(each_alone(bare, ids, offsets)[0] - exact).max() > 1e-4
    np.testing.assert_allclose(load(path).score(ids, offsets).nll, exact, rtol=0, atol=1e-5)


def test_positions_that_stretch_with_the_length_are_scored_in_batches_of_equal_length_and_generated_by_scoring(
    loaded,
    tmp_path,
):
    """A llama whose rotary positions are others in sequences of more than 16 ids: no state holds
    what was read before."""
    factors = {"short_factor": [1.0] * 6, "long_factor": [4.0] * 6, "factor": 4.0}
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "original_max_position_embeddings": 16,
        **factors,
    }
    path = copied(loaded("llama").path, tmp_path / "llama", rope_parameters=rope)
    model, bare = load(path), class_of("llama").from_pretrained(path).eval()
    ids, offsets = sequences([12, 33, 12])
    assert (model.sharing, model.carrying, model.can_join) == ("equal", None, False)
    np.testing.assert_allclose(
        model.score(ids, offsets).nll,
        each_alone(bare, ids, offsets)[0],
        rtol=0,
        atol=1e-5,
    )
    with pytest.raises(UserError, match=r"cannot be carried from one chunk to the next.*--stride"):
        model.score_carrying(ids, offsets, chunk=8)
    check(
        model,
        lambda prompt: slow_loop(lambda ids: bare(ids, use_cache=False).logits, prompt, MOST),
    )


def test_what_bfloat16_cannot_do_is_one_line(loaded):
    """minimax rounds the decays of its fast form, not those of its steps; xlstm multiplies float32
    with bfloat16."""
    assert load(loaded("minimax").path, "bfloat16").carrying is None
    with pytest.raises(
        UserError,
        match=r"its forward pass fails \(expected m1 and m2 to have the same dtype.*--dtype float32",
    ):
        load(loaded("xlstm").path, "bfloat16").score(*sequences([65]))


@pytest.mark.parametrize("name", ["glm5_next", "deepseek_v4", "glm_moe_dsa"])
def test_an_index_leaves_out_what_it_does_not_select(loaded, name):
    """Of the same weights: up to as many ids as it selects all are read, beyond them scores are
    others than if all were read."""
    model, (ids, offsets) = loaded(name).model, sequences([61])
    sparse = model.score(ids, offsets).nll
    indices = [module for module in model.model.modules() if hasattr(module, "index_topk")]
    [selected] = {module.index_topk for module in indices}
    for module in indices:
        module.index_topk = 1024
    dense = model.score(ids, offsets).nll
    for module in indices:
        module.index_topk = selected
    np.testing.assert_allclose(dense[:selected], sparse[:selected], rtol=0, atol=1e-6)
    assert np.abs(dense - sparse)[selected:].max() > 1e-3


def test_attention_holds_no_more_with_its_state_carried(loaded):
    with pytest.raises(
        UserError,
        match=r"its context is 1,024 ids, also with a carried state; a sequence has 1,025.*--stride",
    ):
        loaded("jamba").model.score_carrying(*sequences([10, 1026]), chunk=512)


@pytest.mark.parametrize("name", ["olmo3", "olmo_hybrid", "zamba2", "qwen3_next"])
def test_the_bytes_of_a_layers_cache_are_those_of_its_keys_and_values(loaded, name):
    """Of transformers' own cache after 40 ids; what a window or a recurrence keeps is in the state
    alone."""
    family, ids = loaded(name), torch.arange(40)[None]
    with torch.no_grad():
        layers = family.bare(ids, use_cache=True).past_key_values.layers
    grown = [
        layer
        for layer in layers
        if getattr(layer, "keys", None) is not None and layer.keys.shape[-2] == 40
    ]
    caches = family.model.cache_bytes(40)
    assert [size for size in caches if size] == [
        layer.keys.nbytes + layer.values.nbytes for layer in grown
    ]
    assert sum(caches) < family.model.state_bytes(ids[0].numpy())


def test_a_sliding_layer_keeps_what_its_window_holds(loaded):
    """Of olmo3: keys and values of 2 heads of 12 channels, 4 bytes each, of the last 15 ids and of
    all 40."""
    assert loaded("olmo3").model.state_bytes(np.arange(40)) == 2 * 2 * 12 * 4 * (15 + 40)


def score_carrying(paths: list[str], heard: Path) -> None:
    """Loads and scores each model; what is printed lies in a file."""
    for stream in (1, 2):
        os.dup2(os.open(heard, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
    for path in paths:
        load(Path(path)).score_carrying(np.arange(40), np.array([0, 40]), 8)


@pytest.mark.ci
def test_transformers_advice_reaches_no_user(loaded, warm, tmp_path):
    """Most families tell of kernels that are not installed, when they are loaded or when they first
    run."""
    paths = [str(loaded(name).path) for name in ("mamba", "qwen3_next")]
    process = warm.Process(target=score_carrying, args=(paths, tmp_path / "heard"))
    process.start()
    process.join(120)
    assert (process.exitcode, (tmp_path / "heard").read_text()) == (0, "")
