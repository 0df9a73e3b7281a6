"""Training on the copying task: sequences obey the definition, sparsity is counted right, layers reach as far as they can."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recallkit.errors import UserError
from tests.examples.conftest import timeless

CPU = torch.device("cpu")
TINY = ("--seq-len", 16, "--vocab", 16, "--width", 16, "--examples", 64, "--test-examples", 32, "--batch", 8, "--steps", 6)


@pytest.fixture(scope="module")
def copying(load):
    return load("06_train_copying")


def tiny_job(copying, **changes):
    chosen = dict(pattern="dense", direction="causal", layers=1, length=16, width=32, learning_rate=1e-2, vocab=16)  # noqa: C408
    recipe = dict(examples=2000, test_examples=100, steps=400, batch=32, seed=0, stop_above=0.99, measured_every=20)  # noqa: C408
    return copying.Job(**chosen | recipe | changes)


# ----------------------------------------------------------------------------------------------------------------- data


@settings(max_examples=20)
@given(st.integers(2, 20), st.integers(2, 40), st.integers(0, 2**40))
def test_sequences_obey_the_definition_and_the_seed_decides(load, half, vocab, seed):
    make = load("06_train_copying").copying_examples
    made = make(5, 2 * half, vocab, seed)
    for ids, places, answers in zip(*(part.tolist() for part in made), strict=True):
        first, second = ids[:half], ids[half:]
        assert first == second
        assert first[0] == 0
        assert all(0 <= id_ < vocab for id_ in first[1:])
        assert answers == first[1:], "every id of s is asked, once, in order"
        assert answers == [ids[place + 1] for place in places]
        assert min(places) == half, "what is asked follows from what was before"
    assert torch.equal(made.ids, make(5, 2 * half, vocab, seed).ids)


def test_both_directions_do_not_see_what_they_predict(copying):
    made = copying.copying_examples(5, 12, 128, 0)
    hidden = copying.hidden_from(made, 128)
    assert torch.equal(hidden.ids[:, :7], made.ids[:, :7]), "0 s 0"
    assert (hidden.ids[:, 7:] == 128).all()
    assert torch.equal(hidden.answers, made.answers)
    assert made.ids.max() < 128


def test_lengths_without_halves_are_refused(copying):
    for length in (2, 15, 0, -4):
        with pytest.raises(UserError, match="--seq-len"):
            copying.copying_examples(1, length, 128, 0)


# --------------------------------------------------------------------------------------------------------------- models


@pytest.mark.parametrize(("layers", "direction"), [(1, "causal"), (3, "both")])
def test_masks_are_those_of_the_models_layers(copying, layers, direction):
    """By the keys that each mixer has for its slow reference; sparsity is that of the square, in both directions."""
    for pattern in copying.PATTERNS:
        job = tiny_job(copying, pattern=pattern, direction=direction, layers=layers, length=36)
        mixers = [block.mixer for block in copying.model_of(job).blocks]
        masks = copying.masks_of(pattern, layers, 36, direction)
        pairs = []
        for mixer, mask in zip(mixers, masks, strict=True):
            seen = mixer.chosen_reference(torch.zeros(36, mixer.d_model), None)
            heads = mask.expand(4, 36, 36) if len(mask) != 2 else mask.repeat_interleave(2, 0)
            assert seen == [[row.nonzero()[:, 0].tolist() for row in head] for head in heads], pattern
            pairs += [len(keys) for head in seen for keys in head]
        if direction == "both":
            assert copying.patterns.sparsity_of(masks) == pytest.approx(1 - sum(pairs) / (layers * 4 * 36 * 36)), pattern


# ------------------------------------------------------------------------------------------------------------- training


def test_dense_attention_learns_to_copy_in_one_layer_and_a_short_window_does_not(copying):
    outcome = copying.work(tiny_job(copying), CPU)
    assert outcome["curve"][0][2] > 1.0
    assert outcome["accuracy"] > 0.99
    assert outcome["steps"] < 400
    both = copying.work(tiny_job(copying, direction="both"), CPU)
    assert both["accuracy"] > 0.99
    blind = copying.work(tiny_job(copying, pattern="strided union", steps=100), CPU)
    assert blind["reachable"] == 0
    assert blind["accuracy"] < 0.2, "16 ids, and no way back to them"


def test_a_stopped_sweep_goes_on_and_ends_the_same(copying, call, interrupted, tmp_path):
    grid = (*TINY, "--patterns", "dense", "star", "--directions", "both", "--depths", 1, 2)
    call(copying, *grid, "--out", tmp_path / "whole")
    interrupted(20)  # in the fourth run of six steps each
    with pytest.raises(SystemExit) as stopped:
        call(copying, *grid, "--out", tmp_path / "parts")
    assert stopped.value.code == 130
    interrupted(6)
    call(copying, *grid, "--out", tmp_path / "parts")
    assert len(timeless(tmp_path / "parts")) == 4
    assert timeless(tmp_path / "parts") == timeless(tmp_path / "whole")


# ------------------------------------------------------------------------------------------------- results and pictures


def test_a_table_and_a_picture_of_every_pattern(copying, call, tmp_path, capsys):
    patterns = ("dense", "strided sequential", "random")
    runs = [
        {"pattern": pattern, "direction": way, "layers": n, "length": 64, "sparsity": 0.1 * i + 0.01 * n, "loss_nats": 1.0}
        | {"accuracy": 0.25 * i + 0.0625 * n, "reachable": 0.5 * n}
        for way in ("causal", "both")
        for i, pattern in enumerate(patterns)
        for n in (1, 2)
    ]
    (tmp_path / "results.json").write_text(json.dumps({"task": "copying", "runs": runs}))
    call(copying, "--draw", tmp_path / "results.json", "--out", tmp_path / "drawn")
    table = {line.split("  ")[0]: line.split("  ", 1)[1].split() for line in capsys.readouterr().out.splitlines() if "%" in line}
    assert table["strided sequential"] == ["12", "%", "31.2", "/", "50", "37.5", "/", "100"]
    drawn = ET.fromstring((tmp_path / "drawn" / "copying.svg").read_bytes())
    texts = ["".join(element.itertext()) for element in drawn.iter() if element.tag.endswith("}text")]
    assert {*patterns, "31", "38", "12%", "causal, by layers", "both directions, by layers", "sparsity"} <= set(texts)
    assert [text for text in texts if text in patterns][:3] == list(patterns), "in the order of the runs"


def test_an_unknown_pattern_is_one_line(copying, call, tmp_path):
    with pytest.raises(SystemExit, match="strided union") as refused:
        call(copying, *TINY, "--patterns", "strided unoin", "--out", tmp_path)
    assert "\n" not in refused.value.code
