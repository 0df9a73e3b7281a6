"""The zoo's training: which weights learn and how fast, lists and then text, interrupted runs, all pieces, what is exported and shown."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import torch

from recallkit.models import zoo
from recallkit.models.loading import load_model
from recallkit.models.protocol import ModelRequest

STEPS = 6
VOCAB, NUM_HELD_OUT = zoo.VOCAB_SIZE, 8


@pytest.fixture(scope="module")
def data(train_zoo, tmp_path_factory):
    """Windows of text that repeats itself, as `prepare` writes them."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    ids = rng.zipf(1.3, (STEPS * train_zoo.BATCH + NUM_HELD_OUT, train_zoo.CONTEXT + 1)).clip(max=VOCAB - 1).astype(np.uint16)
    np.save(folder / "windows.npy", ids[:-NUM_HELD_OUT])
    np.save(folder / "held_out.npy", ids[-NUM_HELD_OUT:])
    (folder / "manifest.json").write_text(json.dumps({"tokens_of_source": {"made up": int(ids.size)}}))
    return folder


@pytest.fixture
def small(train_zoo, zoo_measures, monkeypatch):
    """An architecture of a few thousand weights besides the embedding, trained in seconds; two rates, and few steps of lists."""
    layers = (zoo.LayerConfig("attention", {"num_heads": 2, "short_conv": 3, "qk_norm": True}), zoo.LayerConfig("mamba"))
    config = zoo.ArchitectureConfig(VOCAB, 32, layers, mlp_width=32, max_length=256)
    monkeypatch.setattr(zoo, "architecture", lambda name, size: config)
    monkeypatch.setattr(train_zoo, "NAMES", ("small",))
    monkeypatch.setattr(train_zoo, "RATES", (0.5, 1.0))
    monkeypatch.setattr(zoo_measures, "ALL_PAIRS", (4, 16))
    monkeypatch.setattr(zoo_measures, "COPIES", 4)
    monkeypatch.setattr(train_zoo, "estimate", lambda *_: "it takes a while")


TOKENS = 23 * 256
"""Six steps of four rows, one of them a list."""


def run(train_zoo, data, runs, tokens=TOKENS, rate=1.0):
    runs.mkdir(exist_ok=True)
    windows, held_out = np.load(data / "windows.npy"), np.load(data / "held_out.npy")
    return train_zoo.Run("small", rate, runs, windows, held_out, tokens, "cpu")


def call(train_zoo, monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["train_zoo.py", *map(str, arguments)])
    train_zoo.main()


# ------------------------------------------------------------------------------------------------------------- training


def test_matrices_of_linear_layers_in_blocks_learn_by_muon_and_everything_else_by_adamw(train_zoo, small):
    model = train_zoo.new_model("small", 0)
    name_of = {id(parameter): name for name, parameter in model.named_parameters()}
    muon, adamw = train_zoo.optimisers(model, 1.0)
    found = [[name_of[id(p)] for group in made.param_groups for p in group["params"]] for made in (muon, adamw)]
    wanted = {f"blocks.{i}.mlp.{layer}.weight" for i in (0, 1) for layer in ("up", "down")}
    wanted |= {f"blocks.0.mixer.{layer}.weight" for layer in ("qkv", "out_proj")}
    wanted |= {f"blocks.1.mixer.{layer}.weight" for layer in ("in_proj", "x_proj", "dt_proj", "out_proj")}
    assert isinstance(muon, torch.optim.Muon)
    assert isinstance(adamw, torch.optim.AdamW)
    assert sorted(found[0]) == sorted(wanted)
    assert sorted(found[1]) == sorted(set(name_of.values()) - wanted)


def test_an_interrupted_run_ends_in_the_same_weights(train_zoo, data, small, tmp_path):
    whole = run(train_zoo, data, tmp_path / "a")
    losses = list(train_zoo.steps(whole))
    assert len(losses) == STEPS
    interrupted = run(train_zoo, data, tmp_path / "b")
    for _, _ in zip(range(3), train_zoo.steps(interrupted), strict=False):
        pass
    interrupted.save()
    resumed = run(train_zoo, data, tmp_path / "b")
    resumed.restore()
    assert resumed.step == 3
    assert len(list(train_zoo.steps(resumed))) == STEPS - 3
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name]), name
    assert timeless(resumed.curve) == timeless(whole.curve)


def timeless(curve):
    return [{name: value for name, value in point.items() if name != "cpu_seconds"} for point in curve]


def test_a_run_of_another_length_rate_or_text_is_refused(train_zoo, zoo_data, data, small, tmp_path, monkeypatch):
    monkeypatch.setattr(zoo_data, "_DIGESTED_BYTES", 1000)  # one window at either end
    assert not run(train_zoo, data, tmp_path).restore()
    run(train_zoo, data, tmp_path).save()
    with pytest.raises(SystemExit, match="a run of 6 steps, not 3: choose other --runs"):
        run(train_zoo, data, tmp_path, tokens=12 * 256).restore()
    with pytest.raises(SystemExit, match="a rate of 1, not 2: choose other --runs"):
        run(train_zoo, data, tmp_path, rate=2.0).restore()
    changed = np.load(data / "windows.npy")
    changed[-1, 5] += 1
    with pytest.raises(SystemExit, match="other windows") as refused:
        train_zoo.Run("small", 1.0, tmp_path, changed, np.load(data / "held_out.npy"), TOKENS, "cpu").restore()
    assert "\n" not in str(refused.value)


def finish_lists(train_zoo, folder, **changes):
    """Files of list runs of both rates and seeds, whose outcomes are made up."""
    for rate in (0.5, 1.0):
        for seed in train_zoo.SEEDS:
            outcome = {"architecture": "small", "rate": rate, "seed": seed, "learnt": False, "steps": 9, "planned_steps": 9, "ids": 32}
            outcome |= {"loss": 1.0, "accuracy": {"4": 0.5, "16": 0.1}, "cpu_seconds": 1, "curve": [[9, 32, 1.0, 0.5, 0.5, 0.1]]}
            outcome |= changes.get(f"rate_{rate:g}_{seed}".replace(".", "_"), {})
            (folder / train_zoo.list_file("small", rate, seed)).write_text(json.dumps(outcome))


def test_rates_are_chosen_by_what_was_learnt_then_how_fast_then_accuracy_ids_and_loss(train_zoo, small, tmp_path):
    def chosen(**changes):
        finish_lists(train_zoo, tmp_path, **changes)
        return train_zoo.chosen_rate(tmp_path, "small")

    assert chosen(rate_0_5_0={"loss": 0.9}) == 0.5
    assert chosen(rate_1_0={"loss": 0.9}) == 1.0
    assert chosen(rate_0_5_0={"loss": 0.9}, rate_1_0={"ids": 4095}) == 1.0
    assert chosen(rate_0_5_0={"accuracy": {"4": 0.6, "16": 0.1}}, rate_1_0={"ids": 4095}) == 0.5
    assert chosen(rate_0_5_0={"learnt": True, "steps": 8}, rate_1_0={"learnt": True, "steps": 7}) == 1.0
    assert chosen(rate_0_5_0={"learnt": True}, rate_1_0={"accuracy": {"4": 1.0, "16": 1.0}}) == 0.5
    assert chosen(rate_0_5_1={"learnt": True}, rate_1_0={"loss": 0.9}) == 1.0, "the other seed does not choose"
    (tmp_path / train_zoo.list_file("small", 0.5, 0)).unlink()
    with pytest.raises(SystemExit, match=r"small: lists at 0\.5 are missing"):
        train_zoo.chosen_rate(tmp_path, "small")


def test_ids_that_are_no_possible_answers_keep_their_embeddings(train_zoo, small):
    """The loss is that of a softmax over the possible answers."""
    rows, among = train_zoo.make_lists(np.random.default_rng(0), 4, 64, [2], 16), torch.from_numpy(train_zoo.LIST_IDS[:16])
    model = train_zoo.new_model("small", 0)
    before = model.embedding.weight.detach().clone()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        ids, asked = torch.from_numpy(rows.ids), torch.from_numpy(rows.asked)
        logits = (model.hidden(ids[:, :-1]) @ model.head_weight.T).float()
    possible = torch.full_like(logits, -torch.inf).index_copy(-1, among, logits[..., among])[asked]
    wanted = torch.nn.functional.cross_entropy(possible, ids[:, 1:][asked])
    loss, right = train_zoo.learn(model, train_zoo.optimisers(model, 1.0), rows, 1.0, among)
    assert loss == pytest.approx(float(wanted), abs=0.02)
    assert right == pytest.approx(float((possible.argmax(-1) == ids[:, 1:][asked]).float().mean()), abs=0.03)
    moved = (model.embedding.weight.detach() != before).any(dim=1)
    assert moved.nonzero().flatten().tolist() == sorted(among.tolist())


@pytest.mark.slow
def test_all_pieces_are_run_once_and_end_in_models(train_zoo, data, small, tmp_path, monkeypatch):
    """The pieces of `all` in this process: every rate, another seed at the best, text from the best weights; then nothing is left."""
    pieces = []

    def run_piece(runs, piece):
        pieces.append(" ".join(piece[:4]))
        call(train_zoo, monkeypatch, *piece)
        return 0

    monkeypatch.setattr(train_zoo, "run_piece", run_piece)
    monkeypatch.setattr(train_zoo, "LISTS_MEASURED_EVERY", 1)
    runs = tmp_path / "runs"
    everything = ("all", "--data", data, "--runs", runs, "--tokens", TOKENS, "--steps", 2)
    call(train_zoo, monkeypatch, *everything)
    assert pieces == ["lists small --rate 1", "lists small --rate 0.5", "lists small --seed 1", f"text small --data {data}"]
    best = train_zoo.chosen_rate(runs, "small")
    assert [(run["rate"], run["seed"]) for run in train_zoo.list_outcomes(runs, "small")] == [(0.5, 0), (1.0, 0), (best, 1)]
    made = {path.name: path.stat().st_mtime_ns for path in runs.iterdir()}
    call(train_zoo, monkeypatch, *everything)
    assert {path.name: path.stat().st_mtime_ns for path in runs.iterdir()} == made

    started = torch.load((runs / train_zoo.list_file("small", best, 0)).with_suffix(".pt"), weights_only=True)["model"]
    curve = json.loads((runs / "text-small.json").read_text())["curve"]
    assert [point["tokens"] for point in curve] == [0, TOKENS]
    model = train_zoo.new_model("small", 0)
    model.load_state_dict(started)
    held_out = np.load(data / "held_out.npy")
    measured = sys.modules["zoo_measures"].HeldOut(held_out, np.load(data / "windows.npy")[:23])
    assert measured.losses(model)["all"] == curve[0]["all"]

    call(train_zoo, monkeypatch, "export", "--data", data, "--runs", runs, "--to", tmp_path / "zoo")
    card = json.loads((tmp_path / "zoo" / "small" / "card.json").read_text())
    assert (card["tokens"], card["steps"], card["list_rows_share"], card["rate"]) == (TOKENS, STEPS, 1 / 16, best)
    assert card["curve"] == curve
    assert len(card["lists"]["runs"]) == 3
    assert all(len(point) == len(card["lists"]["columns_of_curves"]) for run in card["lists"]["runs"] for point in run["curve"])
    loaded = load_model(ModelRequest(str(tmp_path / "zoo" / "small"), VOCAB, device="cpu"))
    nll = loaded.score(held_out.astype(np.uint32).ravel(), np.arange(len(held_out) + 1) * 257).nll
    assert nll.mean() == pytest.approx(curve[-1]["all"], abs=0.02)


# -------------------------------------------------------------------------------------------------------------- results


def test_results_are_tabulated_and_what_is_missing_is_to_run(train_zoo, load, small, tmp_path, monkeypatch, capsys):
    results = load("zoo_results")
    monkeypatch.setattr(results, "NAMES", ("small", "other"))
    monkeypatch.setattr(results, "rates_of", train_zoo.rates_of)
    learnt = {"learnt": True, "steps": 7, "accuracy": {"4": 1.0, "16": 0.996}}
    finish_lists(train_zoo, tmp_path, rate_0_5_0=learnt)
    kinds = {"lists": {}, "mqar": {"4": 0.5, "16": 0.25, "32": 0.125}, "copies": {"copied_random": 0.75, "copied_text": 1.0}}
    point = {"ar_hit": 1.94, "first_rare": 7.46, "all": 4.5}
    text = {"architecture": "small", "cpu_seconds": 3596, "recall": kinds, "curve": [point]}
    (tmp_path / "text-small.json").write_text(json.dumps(text))
    for command in (("collect", "--runs", tmp_path), ("table",)):
        monkeypatch.setattr("sys.argv", ["zoo_results.py", *map(str, command), "--results", str(tmp_path / "found.json")])
        results.main()
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    (small_lists, small_text), (other_lists, _) = ([row for row in rows if row[:1] == [name]] for name in ("small", "other"))
    assert " ".join(small_lists) == "small 100.0 / 99.6 @ 7 50.0 / 10.0 (32) x 0.5: 50.0 / 10.0 (32)"
    assert " ".join(other_lists) == "other to run to run to run"
    assert " ".join(small_text) == "small 75.0 % 100.0 % 50.0 % 25.0 % 12.5 % 1.94 7.46 4.50"
    assert " ".join(rows[-1]) == "4 list runs and 1 models finished, 1.0 hours of one core; 3 list runs to run"
