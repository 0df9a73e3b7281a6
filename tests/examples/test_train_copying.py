"""Training on the copying task: sequences obey the definition, sparsity is counted right, layers reach as far as they can."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ET

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recallkit.errors import UserError
from tests.examples.conftest import timeless

CPU = torch.device("cpu")
TINY = ("--length", 16, "--vocab", 16, "--width", 16, "--examples", 64, "--test-examples", 32, "--batch", 8, "--steps", 6)


@pytest.fixture(scope="module")
def copying(load):
    return load("06_train_copying")


def tiny_job(copying, **changes):
    chosen = dict(pattern="dense", layers=1, length=16, width=32, learning_rate=1e-2, vocab=16)  # noqa: C408
    recipe = dict(examples=2000, test_examples=100, steps=400, batch=32, seed=0, stop_above=0.99, measured_every=20)  # noqa: C408
    return copying.Job(**chosen | recipe | changes)


# ----------------------------------------------------------------------------------------------------------------- data


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 20), st.integers(2, 40), st.integers(0, 2**40))
def test_sequences_obey_the_definition(load, half, vocab, seed):
    made = load("06_train_copying").copying_examples(5, 2 * half, vocab, seed)
    for ids, places, answers in zip(*(part.tolist() for part in made), strict=True):
        first, second = ids[:half], ids[half:]
        assert first == second
        assert first[0] == 0
        assert all(1 <= id_ < vocab for id_ in first[1:])
        assert answers == first[1:], "every id of s is asked, once, in order"
        assert answers == [ids[place + 1] for place in places]
        assert min(places) == half, "what is asked follows from what stood before"


def test_ids_are_as_frequent_as_each_other_and_the_seed_decides(copying):
    training, test = copying.examples_of(4000, 4000, 22, 9, 5)
    share = torch.bincount(training.ids[:, 1:11].flatten(), minlength=9)[1:] / 40_000
    assert share.tolist() == pytest.approx([1 / 8] * 8, abs=5 * math.sqrt(1 / 8 / 40_000))
    assert torch.equal(training.ids, copying.copying_examples(4000, 22, 9, 5).ids)
    assert not torch.equal(training.ids, test.ids)


@pytest.mark.parametrize("length", [2, 15, 0, -4])
def test_lengths_without_halves_are_refused(copying, length):
    with pytest.raises(UserError, match="--length"):
        copying.copying_examples(1, length, 128, 0)


# --------------------------------------------------------------------------------------------------------------- models


def pairs_seen(mixer, t):
    """Pairs of a query and a key by the plain list of keys that each mixer has for its slow reference."""
    return sum(len(mixer.keys_of(i, head)) for i in range(t) for head in range(mixer.num_heads))


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_sparsity_is_the_share_of_pairs_that_are_left_out(copying, layers):
    for pattern in copying.PATTERNS:
        job = tiny_job(copying, pattern=pattern, layers=layers, length=36, steps=1, examples=32, test_examples=4)
        seen = [pairs_seen(block.mixer, 36) for block in copying.model_of(job).blocks]
        wanted = 1 - sum(seen) / (layers * 4 * 36 * 37 / 2)
        assert copying.work(job, CPU)["sparsity"] == pytest.approx(wanted, abs=1e-4), pattern


def test_random_is_as_sparse_as_strided_and_every_layer_of_it_another(copying):
    sparsities = {}
    for pattern in ("strided union", "random"):
        mixers = [block.mixer for block in copying.model_of(tiny_job(copying, pattern=pattern, layers=3, length=144)).blocks]
        sparsities[pattern] = sum(copying.sparsity_of(mixer, 144) for mixer in mixers) / 3
    assert sparsities["random"] == pytest.approx(sparsities["strided union"], abs=0.01)
    assert len({tuple(mixer.keys_of(143, 0)) for mixer in mixers}) == 3


def reaches(model, length):
    """Whether the id that stood half a sequence before acts on each place where it is asked for."""
    ids = torch.randint(1, 16, (1, length))
    x = model.embedding(ids).detach().requires_grad_()
    model.embedding.forward = lambda _: x
    hidden = model.hidden(ids)
    places = range(length // 2, length - 1)
    return [bool(torch.autograd.grad(hidden[0, i].sum(), x, retain_graph=True)[0][0, i + 1 - length // 2].abs().sum()) for i in places]


@pytest.mark.parametrize(
    ("pattern", "layers", "wanted"),
    [
        ("dense", 1, 31),
        ("strided union", 1, 0),
        ("strided union", 2, 31),
        ("strided sequential", 1, 0),
        ("strided sequential", 2, 31),
        ("strided multihead", 2, 31),
        ("fixed union", 1, 4),
        ("fixed sequential", 2, 31),
        ("star", 1, 3),
        ("star", 2, 31),
        ("random", 1, 14),
        ("random", 2, 31),
        ("sliding window", 2, 0),
        ("sliding window", 3, 31),
        ("blocked window", 4, 0),
    ],
)
def test_layers_reach_as_far_as_their_pattern_leads(copying, pattern, layers, wanted):
    """Of 31 answers, each 31 places back, so many: a window of 16 leads there in three layers, a stride of 8 with a step in two.

    One layer of `fixed` sees those that are the last of their block, one of `star` those that its relays ask for.
    """
    found = reaches(copying.model_of(tiny_job(copying, pattern=pattern, layers=layers, length=64)), 64)
    assert sum(found) == wanted


def test_positions_are_known_from_the_embedding_alone(copying):
    job = tiny_job(copying)
    model = copying.model_of(job)
    assert model.head_weight is model.embedding.weight
    assert model.blocks[0].mixer.rope_width == 0
    ids = torch.full((1, 16), 3)
    assert len({tuple(row) for row in model.embedding(ids)[0].tolist()}) == 16
    with torch.no_grad():
        model.embedding.positions.zero_()
    assert torch.allclose(model.hidden(ids)[0], model.hidden(ids)[0, :1], atol=1e-5), "without them all places are alike"


# ------------------------------------------------------------------------------------------------------------- training


def test_dense_attention_learns_to_copy_in_one_layer_and_a_short_window_does_not(copying):
    outcome = copying.work(tiny_job(copying), CPU)
    assert outcome["curve"][0][2] > 1.0
    assert outcome["accuracy"] > 0.99
    assert outcome["steps"] < 400
    blind = copying.work(tiny_job(copying, pattern="blocked window", steps=100), CPU)
    assert blind["accuracy"] < 0.2, "15 ids, and no way back to them"


def test_a_stopped_sweep_goes_on_and_ends_the_same(copying, call, interrupted, tmp_path):
    grid = (*TINY, "--patterns", "dense", "star", "--depths", 1, 2)
    call(copying, *grid, "--out", tmp_path / "whole")
    interrupted(20)  # in the fourth run of six steps each
    with pytest.raises(SystemExit) as stopped:
        call(copying, *grid, "--out", tmp_path / "parts")
    assert stopped.value.code == 130
    interrupted(6)
    call(copying, *grid, "--out", tmp_path / "parts")
    assert len(timeless(tmp_path / "parts")) == 4
    assert timeless(tmp_path / "parts") == timeless(tmp_path / "whole")


def test_full_trains_every_pattern_on_256_ids(copying, monkeypatch):
    made = []
    monkeypatch.setattr(copying, "run_example", lambda parser, task: made.extend(task.jobs_of(parser.parse_args(["--full"]))))
    copying.main()
    assert {(job.length, job.vocab) for job in made} == {(256, 128)}
    assert {(job.pattern, job.layers) for job in made} == {(pattern, n) for pattern in copying.PATTERNS for n in (1, 2, 3, 4)}


# ------------------------------------------------------------------------------------------------- results and pictures


def test_a_table_and_a_picture_of_every_pattern(copying, call, tmp_path, capsys):
    patterns = ("dense", "strided sequential", "random")
    runs = [
        {"pattern": pattern, "layers": n, "length": 64, "sparsity": 0.1 * i + 0.01 * n, "accuracy": 0.25 * i + 0.0625 * n, "loss_nats": 1.0}
        for i, pattern in enumerate(patterns)
        for n in (1, 2)
    ]
    (tmp_path / "results.json").write_text(json.dumps({"task": "copying", "runs": runs}))
    call(copying, "--draw", tmp_path / "results.json", "--out", tmp_path / "drawn")
    table = {line.split("  ")[0]: line.split("  ", 1)[1].split() for line in capsys.readouterr().out.splitlines() if "%" in line}
    assert table["strided sequential"] == ["12", "%", "31.2", "%", "37.5", "%"]
    drawn = ET.fromstring((tmp_path / "drawn" / "copying.svg").read_bytes())
    texts = ["".join(element.itertext()) for element in drawn.iter() if element.tag.endswith("}text")]
    assert {*patterns, "31%", "38%", "12%", "layers", "sparsity"} <= set(texts)
    assert [text for text in texts if text in patterns][:3] == list(patterns), "in the order of the runs"


def test_an_unknown_pattern_is_one_line(copying, call, tmp_path):
    with pytest.raises(SystemExit, match="strided union") as refused:
        call(copying, *TINY, "--patterns", "strided unoin", "--out", tmp_path)
    assert "\n" not in refused.value.code
