"""Every family that is promised, by a tiny model with each of its kinds of layer: scores, causality, batches, carried state."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from recallkit.errors import UserError
from recallkit.models.loading import load_model
from recallkit.models.protocol import ModelRequest
from recallkit.models.transformers_model import TransformersModel
from tests.models.families import FAMILIES, VOCAB_SIZE, save_model

RAGGED = [65, 33, 65, 2, 17]
"""Longer than the chunks of every family's fast form (16), and no multiple of them."""

CAPPED = {"recurrent_gemma", "xlstm"}
STATE_ONLY = {"mamba", "mamba2", "falcon_mamba", "rwkv", "xlstm"}
SLIDING = {"recurrent_gemma"}
IN_STEPS = {"mamba", "falcon_mamba", "jamba", "zamba", "recurrent_gemma", "minimax"}
"""Where more ids than one follow a state, transformers ignores a part of it: the state of the selective scan (mamba,
falcon_mamba, jamba, zamba), the last inputs of the convolution (recurrent_gemma), what the attention layers hold (minimax)."""


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Tiny products are five times slower on two threads where other work runs beside them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def path_of(tmp_path_factory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("families")
    return lambda name: folder / name if (folder / name).exists() else save_model(name, folder)


@pytest.fixture(scope="module")
def load(path_of) -> Callable[[str], TransformersModel]:
    """A loaded model of a family, the same one for every test: what one leaves behind must not matter to the next."""
    loaded: dict[str, TransformersModel] = {}

    def model(name: str) -> TransformersModel:
        if name not in loaded:
            loaded[name] = load_model(ModelRequest(str(path_of(name)), VOCAB_SIZE, device="cpu"))
        return loaded[name]

    return model


def sequences(lengths: list[int], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return np.random.default_rng(seed).integers(0, VOCAB_SIZE, offsets[-1]).astype(np.uint32), offsets


def each_alone(path: Path, ids: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """NLL, argmax and rank from the model's own forward, one sequence at a time, in float64 from its float32 logits."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    found = []
    for start, stop in itertools.pairwise(offsets):
        sequence = torch.from_numpy(ids[start:stop].astype(np.int64))
        with torch.no_grad():
            logits = model(sequence[None, :-1], use_cache=False).logits[0].double()
        target = logits.gather(1, sequence[1:, None])
        found.append((torch.logsumexp(logits, 1) - target[:, 0], logits.argmax(1), (logits > target).sum(1)))
    nll, argmax, rank = (torch.cat(values).numpy() for values in zip(*found, strict=True))
    return nll, argmax, rank


@pytest.mark.parametrize("name", FAMILIES)
def test_a_ragged_batch_scores_as_each_sequence_alone_under_the_models_own_forward(load, path_of, name):
    ids, offsets = sequences(RAGGED)
    nll, argmax, rank = each_alone(path_of(name), ids, offsets)
    together = load(name).score(ids, offsets)
    np.testing.assert_allclose(together.nll, nll, rtol=0, atol=1e-5)
    assert (together.argmax == argmax).mean() > 0.99
    assert np.abs(together.rank - rank).max() <= 1
    alone = [load(name).score(ids[a:b], np.array([0, b - a])).nll for a, b in itertools.pairwise(offsets)]
    np.testing.assert_allclose(together.nll, np.concatenate(alone), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", FAMILIES)
def test_no_token_sees_what_follows_and_every_later_one_may(load, name):
    ids, offsets = sequences([65])
    before = load(name).score(ids, offsets).nll
    for changed_at in (1, 17, 40):
        changed = ids.copy()
        changed[changed_at] = (changed[changed_at] + 1) % VOCAB_SIZE
        difference = np.abs(load(name).score(changed, offsets).nll - before)
        assert difference[: changed_at - 1].max(initial=0) <= 1e-6
        assert difference[changed_at - 1] > 1e-3, "the changed token has another score"
        assert difference[changed_at:].max() > 1e-3, "it is remembered"


@pytest.mark.parametrize("name", FAMILIES)
def test_what_a_family_is_found_to_be(load, name):
    model = load(name)
    assert model.head_is_linear is (name not in CAPPED)
    assert model.sharing == "any"
    assert model.max_length == (None if name in STATE_ONLY | SLIDING else 1024)
    assert model.carrying == ("steps" if name in IN_STEPS else "chunks")


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("lengths", [[40, 40, 40], [34, 17, 50, 2, 16]], ids=["equal", "ragged"])
def test_a_carried_state_gives_the_same_scores(load, name, lengths):
    ids, offsets = sequences(lengths, seed=1)
    whole = load(name).score(ids, offsets)
    for chunk in (1, 7, 16, 1000):
        carried = load(name).score_carrying(ids, offsets, chunk)
        np.testing.assert_allclose(carried.nll, whole.nll, rtol=0, atol=5e-5)
        assert (carried.argmax == whole.argmax).mean() > 0.99
        assert np.abs(carried.rank - whole.rank).max() <= 1


@pytest.mark.parametrize("name", ["mamba2", "mamba"])
def test_what_is_known_of_a_chunk_is_reduced_before_the_next_is_read(load, monkeypatch, name):
    """In steps, too, which are reduced together: one at a time would take as many times as long."""
    model, rows = load(name), []
    reduce = model.reduce
    monkeypatch.setattr(model, "reduce", lambda outputs, targets: rows.append(len(outputs)) or reduce(outputs, targets))
    model.score_carrying(*sequences([65, 65]), chunk=16)
    assert rows == [32, 32, 32, 32]


def copied(path: Path, to: Path, **changes: object) -> Path:
    shutil.copytree(path, to)
    config = json.loads((to / "config.json").read_text())
    (to / "config.json").write_text(json.dumps({**config, **changes}))
    return to


def test_xlstm_is_not_rounded_between_stretches(load, path_of, tmp_path):
    """Its own forward keeps the state between stretches of `max_inference_chunksize` ids in bfloat16."""
    path = copied(path_of("xlstm"), tmp_path / "stretches", max_inference_chunksize=16)
    ids, offsets = sequences([65])
    exact = load("xlstm").score(ids, offsets).nll
    assert np.abs(each_alone(path, ids, offsets)[0] - exact).max() > 1e-4
    stretched = load_model(ModelRequest(str(path), VOCAB_SIZE, device="cpu")).score(ids, offsets).nll
    np.testing.assert_allclose(stretched, exact, rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def stretching(path_of, tmp_path_factory) -> Path:
    """A llama whose rotary positions are others in sequences of more than 16 ids."""
    factors = {"short_factor": [1.0] * 6, "long_factor": [4.0] * 6, "factor": 4.0}
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 16, **factors}
    return copied(path_of("llama"), tmp_path_factory.mktemp("stretching") / "llama", rope_parameters=rope)


def test_positions_that_stretch_with_the_length_keep_a_short_sequence_out_of_a_long_ones_batch(stretching):
    model = load_model(ModelRequest(str(stretching), VOCAB_SIZE, device="cpu"))
    ids, offsets = sequences([12, 33, 12])
    assert model.sharing == "equal"
    np.testing.assert_allclose(model.score(ids, offsets).nll, each_alone(stretching, ids, offsets)[0], rtol=0, atol=1e-5)


def test_a_state_that_cannot_be_carried_is_one_line(stretching):
    model = load_model(ModelRequest(str(stretching), VOCAB_SIZE, device="cpu"))
    assert model.carrying is None
    with pytest.raises(UserError, match=r"cannot be carried from one chunk to the next.*--stride"):
        model.score_carrying(*sequences([20, 20]), chunk=8)


def test_what_bfloat16_cannot_do_is_one_line(path_of):
    """minimax rounds the decays of its fast form, not those of its steps; xlstm multiplies float32 with bfloat16."""
    minimax, xlstm = (load_model(ModelRequest(str(path_of(n)), VOCAB_SIZE, device="cpu", dtype="bfloat16")) for n in ("minimax", "xlstm"))
    assert minimax.carrying is None
    with pytest.raises(UserError, match=r"its forward pass fails \(expected m1 and m2 to have the same dtype.*--dtype float32"):
        xlstm.score(*sequences([65]))


def test_attention_holds_no_more_with_its_state_carried(load):
    with pytest.raises(UserError, match=r"its context is 1,024 ids, also with a carried state; a sequence has 1,025.*--stride"):
        load("jamba").score_carrying(*sequences([10, 1026]), chunk=512)


def test_transformers_advice_reaches_no_user(path_of):
    """Most families tell of kernels that are not installed, when they are loaded or when they first run."""
    program = (
        "import sys, numpy as np\n"
        "from recallkit.models.protocol import ModelRequest\n"
        "from recallkit.models.loading import load_model\n"
        "for path in sys.argv[1:]:\n"
        "    model = load_model(ModelRequest(path, 512, device='cpu'))\n"
        "    model.score_carrying(np.arange(40), np.array([0, 40]), 8)\n"
    )
    paths = [str(path_of(name)) for name in ("mamba", "mamba2", "rwkv", "qwen3_next", "recurrent_gemma", "nemotron_h")]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    ran = subprocess.run([sys.executable, "-c", program, *paths], capture_output=True, text=True, check=False, env=one_thread)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
