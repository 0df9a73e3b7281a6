"""Greedy generation and the NLL of known answers: every family beside its own forward, any other
model beside scoring."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from recallkit.models.generation import generate
from recallkit.models.loading import load_model
from recallkit.models.plan import ModelPlan
from recallkit.models.protocol import ScoringModel
from recallkit.models.spec import ModelSpec
from tests.models.families import VOCAB_SIZE, save_model
from tests.models.test_user import RECURRENT, SCORES_ITSELF, VOCAB, plan, refusal, write

LENGTHS = [7, 43, 2, 19, 19, 3]
"""Beyond every sliding window and chunk (16), two alike, and the shortest that is stepped from."""
ANSWERS = [3, 5, 1, 0, 4, 2]
MOST = 6

SMALL = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
}
SLIDING = {
    "mistral": {"num_key_value_heads": 2, "sliding_window": 16},
    "gemma2": {"num_key_value_heads": 2, "head_dim": 12, "sliding_window": 4},
    "gemma3_text": {
        "num_key_value_heads": 2,
        "head_dim": 12,
        "sliding_window": 16,
        "num_hidden_layers": 7,
    },
    "falcon": {"alibi": True, "new_decoder_architecture": False},
}
"""Families whose attention forgets, in some layers or in all, and one that knows distances instead
of positions."""


def never(number: int, ids: list[int]) -> bool:
    return False


def random_ids(lengths: Sequence[int], seed: int, vocab: int = VOCAB_SIZE) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, vocab, length).astype(np.uint32) for length in lengths]


@pytest.fixture(scope="module")
def load(tmp_path_factory) -> Callable[..., Any]:
    """A loaded model of a family, and the same model of transformers, the same ones for every
    test."""
    folder = tmp_path_factory.mktemp("families")

    @functools.cache
    def model(name: str, dtype: str = "float32") -> Any:
        path = folder / name
        if name in SLIDING:
            torch.manual_seed(1)
            config = AutoConfig.for_model(
                name,
                **{
                    **SMALL,
                    **SLIDING[name],
                    "pad_token_id": 0,
                    "bos_token_id": 0,
                    "eos_token_id": 0,
                },
            )
            AutoModelForCausalLM.from_config(config).eval().save_pretrained(path)
        elif not path.exists():
            save_model(name, folder)
        bare = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype)).eval()
        return load_model(
            ModelPlan(ModelSpec(str(path)), VOCAB_SIZE, device="cpu", dtype=dtype)
        ), bare

    return model


def slow_loop(
    logits: Callable[[torch.Tensor], torch.Tensor],
    prompt: np.ndarray,
    most: int,
) -> list[int]:
    """The argmax of the last of the logits (1, t, vocab) of all ids (1, t) so far, again and
    again."""
    ids = torch.from_numpy(prompt.astype(np.int64))[None]
    for _ in range(most):
        with torch.no_grad():
            ids = torch.cat([ids, logits(ids)[:, -1:].argmax(-1)], dim=1)
    return ids[0, len(prompt) :].tolist()


def answer_nll(model: ScoringModel, prompt: np.ndarray, answer: np.ndarray) -> np.ndarray:
    """From the scores of both joined."""
    if not len(answer):
        return np.empty(0, np.float32)
    return model.score(
        np.concatenate([prompt, answer]),
        np.array([0, len(prompt) + len(answer)]),
    ).nll[-len(answer) :]


def check(
    model: ScoringModel,
    slow: Callable[[np.ndarray], list[int]],
    *,
    vocab: int = VOCAB_SIZE,
) -> None:
    """A batch gives each of its prompts the ids of the slow loop, and the scores of its answer; the
    first alone the same as together."""
    prompts, answers = random_ids(LENGTHS, 0, vocab), random_ids(ANSWERS, 1, vocab)
    together = generate(model, prompts, answers, MOST, never)
    assert [results.ids for results in together] == [slow(prompt) for prompt in prompts]
    for results, prompt, answer in zip(together, prompts, answers, strict=True):
        assert results.answer_nll.dtype == np.float32
        np.testing.assert_allclose(
            results.answer_nll,
            answer_nll(model, prompt, answer),
            rtol=0,
            atol=1e-4,
        )
    [alone] = generate(model, prompts[:1], answers[:1], MOST, never)
    assert alone.ids == together[0].ids
    np.testing.assert_allclose(alone.answer_nll, together[0].answer_nll, rtol=0, atol=1e-5)


# ----------------------------------------------------------------------------------------- families


@pytest.mark.parametrize("name", SLIDING)
def test_attention_that_forgets_generates_what_its_own_forward_gives(load, name):
    model, bare = load(name)
    assert model.can_join
    check(
        model,
        lambda prompt: slow_loop(lambda ids: bare(ids, use_cache=False).logits, prompt, MOST),
    )


@pytest.mark.parametrize("name", ["llama", "mamba", "rwkv"])
def test_nothing_generated_nothing_answered_nothing_at_all(load, name):
    model, _ = load(name)
    prompts, answers = random_ids([7, 1, 30], 0), random_ids([4, 2, 0], 1)
    for results, prompt, answer in zip(
        generate(model, prompts, answers, 0, never),
        prompts,
        answers,
        strict=True,
    ):
        assert results.ids == []
        np.testing.assert_allclose(
            results.answer_nll,
            answer_nll(model, prompt, answer),
            rtol=0,
            atol=1e-4,
        )
    for results in generate(model, prompts, [np.empty(0, np.uint32)] * 3, 2, never):
        assert (len(results.ids), results.answer_nll.shape) == (2, (0,))
    assert generate(model, [], [], 3, never) == []


def test_rows_leave_the_batch_when_they_are_done(load, monkeypatch):
    model, bare = load("llama")
    prompts, nothing, requested, shapes = random_ids([9, 9, 9], 5), random_ids([0, 0, 0], 0), [], []

    def is_done(number: int, ids: list[int]) -> bool:
        requested.append((number, len(ids)))
        return len(ids) == (1, 3, 99)[number]

    forward = model.forward
    assert model.joins_after(9 + 5)
    monkeypatch.setattr(
        model,
        "forward",
        lambda ids, *state, **more: shapes.append(tuple(ids.shape)) or forward(ids, *state, **more),
    )
    results = generate(model, prompts, nothing, 5, is_done)
    expected = [slow_loop(lambda ids: bare(ids).logits, prompt, 5) for prompt in prompts]
    assert [item.ids for item in results] == [expected[0][:1], expected[1][:3], expected[2]]
    assert shapes == [(3, 9), (2, 1), (2, 1), (1, 1), (1, 1)]
    assert sorted(requested) == [
        (0, 1),
        (1, 1),
        (1, 2),
        (1, 3),
        (2, 1),
        (2, 2),
        (2, 3),
        (2, 4),
        (2, 5),
    ]


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["llama", "mamba", "recurrent_gemma", "rwkv"])
def test_a_gpu_generates_what_the_cpu_does(tmp_path, name):
    path = str(save_model(name, tmp_path))
    there, here = (
        load_model(ModelPlan(ModelSpec(path), VOCAB_SIZE, device=device))
        for device in ("cuda", "cpu")
    )
    prompts, answers = random_ids(LENGTHS, 0), random_ids(ANSWERS, 1)
    for one, other in zip(
        *(generate(model, prompts, answers, MOST, never) for model in (there, here)),
        strict=True,
    ):
        assert one.ids == other.ids
        np.testing.assert_allclose(one.answer_nll, other.answer_nll, rtol=0, atol=1e-3)


# ------------------------------------------------------------------------------------- other models


def test_a_prompt_and_what_follows_it_stay_within_the_context(tmp_path):
    longest = []
    model = load_model(plan(write(tmp_path, SCORES_ITSELF)))
    score = model.inner.score
    model.inner.score = lambda ids, offsets: (
        longest.append(np.diff(offsets).max()) or score(ids, offsets)
    )
    results = generate(
        model,
        random_ids([92, 3], 0, VOCAB),
        random_ids([8, 2], 0, VOCAB),
        8,
        lambda number, ids: number == 1,
    )
    assert [item.ids for item in results] == [[0] * 8, [0]]
    assert max(longest) == model.max_length
    np.testing.assert_allclose(results[0].answer_nll, np.full(8, np.log(VOCAB)), rtol=1e-6)


# -------------------------------------------------------------------------- a user's state, carried


READ = """
    def read(self, ids, state):
        out, state = self.layer(self.embedding(ids), state)
        return self.head(out), state
"""


def reading(code: str = RECURRENT, read: str = READ) -> str:
    return code.replace("\n\ndef load(", read + "\n\ndef load(", 1)


def test_a_users_state_is_carried_and_stepped(tmp_path):
    model = load_model(plan(write(tmp_path, reading())))
    assert model.can_join
    shapes, read = [], model.module.read
    model.module.read = lambda ids, state: shapes.append(ids.shape[1]) or read(ids, state)
    check(model, lambda prompt: slow_loop(model.module, prompt, MOST), vocab=VOCAB)
    assert 1 in shapes, "single steps"
    ids, offsets = np.concatenate(random_ids([33, 65], 0, VOCAB)), np.array([0, 33, 98])
    for chunk in (1, 7, 100):
        np.testing.assert_allclose(
            model.score_carrying(ids, offsets, chunk).nll,
            model.score(ids, offsets).nll,
            rtol=0,
            atol=1e-5,
        )


ATTENDS = """
    def read(self, ids, state):
        seen = ids if state is None else torch.cat([state["ids"], ids], dim=1)
        return self.forward(seen)[:, -ids.shape[1]:], {"ids": seen}
"""


def test_a_users_state_that_grows_is_not_joined(tmp_path):
    """Zeros at the left of what it remembers would be ids that were never there."""
    model = load_model(plan(write(tmp_path, reading(read=ATTENDS))))
    assert not model.can_join
    check(model, lambda prompt: slow_loop(model.module, prompt, MOST), vocab=VOCAB)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            READ.replace("ids), state)", "ids), None)"),
            r"read\(ids, state\) in chunks is not what the module returns at once",
        ),
        (
            READ.replace("return self.head(out), state", "return self.head(out)"),
            "returned an object of Tensor: logits and a state are expected",
        ),
        (
            READ.replace("self.head(out), state", "out, state"),
            r"of shape \(2, 2, 24\): floating-point values \(2, 2, 4096\)",
        ),
        (
            READ.replace("self.head(out)", "self.haed(out)"),
            r"raised AttributeError: .*haed.* \(mine.py line \d+\)",
        ),
    ],
    ids=["forgets", "no state", "no logits", "it raises"],
)
def test_a_read_that_is_wrong_is_one_line(tmp_path, wrong, message):
    assert re.search(message, refusal(write(tmp_path, reading(read=wrong))))
