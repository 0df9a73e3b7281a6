"""The zoo's training: what is read and what is held out, which weights learn and how fast, interrupted runs, what is exported."""

from __future__ import annotations

import importlib.util
import itertools
import json
import pickle
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
import torch

from recallkit.models import zoo
from recallkit.models.language_model import LanguageModel
from recallkit.models.loading import load_model
from recallkit.models.protocol import ModelRequest
from recallkit.text.tokenizers import load_tokenizer
from tests.conftest import write_jsonl

STEPS = 6
VOCAB, NUM_HELD_OUT = 512, 24


@pytest.fixture(scope="module")
def train_zoo():
    path = Path(__file__).parents[2] / "examples" / "train_zoo.py"
    spec = importlib.util.spec_from_file_location("train_zoo", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
def small(monkeypatch):
    """An architecture of a few thousand weights, trained in seconds."""
    layers = (zoo.LayerConfig("attention", {"num_heads": 2, "short_conv": 3, "qk_norm": True}), zoo.LayerConfig("mamba"))
    config = zoo.ArchitectureConfig(VOCAB, 32, layers, mlp_width=32, max_length=256)
    monkeypatch.setattr(zoo, "architecture", lambda _: config)


def run(train_zoo, data, runs, num_steps=STEPS):
    runs.mkdir(exist_ok=True)
    windows, held_out = np.load(data / "windows.npy"), np.load(data / "held_out.npy")
    return train_zoo.Run("small", runs, windows, held_out, num_steps * train_zoo.BATCH * train_zoo.CONTEXT, "cpu")


# ----------------------------------------------------------------------------------------------------------------- data


def numbered(first, num):
    """Texts of numbers that stand in no other one: every stretch of them is told from every other."""
    return [" ".join(str(1000 * i + j) for j in range(40)) for i in range(first, first + num)]


def test_a_stream_is_its_documents_each_behind_an_end_token(train_zoo):
    documents = [("books", "one two"), ("letters", ""), ("books", "<|endoftext|> is not the end"), ("letters", "three\\n")]
    stream, manifest = train_zoo.encoded_documents(documents)
    backend = load_tokenizer(None).backend
    end = backend.token_to_id("<|endoftext|>")
    wanted = [[end, *backend.encode(text, add_special_tokens=False).ids] for _, text in documents]
    assert stream.dtype == np.uint16
    assert stream.tolist() == list(itertools.chain.from_iterable(wanted))
    lengths = [len(ids) for ids in wanted]
    assert manifest["tokens_of_source"] == {"books": lengths[0] + lengths[2], "letters": lengths[1] + lengths[3]}
    assert manifest["tokenizer_digest"] == load_tokenizer(None).digest


def test_the_demo_has_its_share_of_the_characters(train_zoo):
    demo = [("demo", f"{i:1000}") for i in range(10)]
    others = [("other", f"{i:500}") for i in range(200)]
    for share, num_others in ((1, 0), (0.5, 20), (0.25, 60), (0.1, 180), (0.01, 200)):
        mixed = train_zoo.mixed(demo, others, share)
        assert sorted(d for d in mixed if d[0] == "demo") == sorted(demo)
        drawn = [d for d in mixed if d[0] == "other"]
        assert len(drawn) == len(set(drawn)) == pytest.approx(num_others, abs=1), share
    assert sorted(drawn) == sorted(others)


def test_the_order_of_documents_follows_from_the_seed(train_zoo, monkeypatch):
    demo, others = [("demo", text) for text in numbered(0, 10)], [("other", text) for text in numbered(50, 40)]
    first = train_zoo.mixed(demo, others, 0.5)
    assert first == train_zoo.mixed(demo, others, 0.5)
    assert first[:10] != demo, "not shuffled"
    assert [d for d in first if d[0] == "other"] != others[: len(first) - 10], "not drawn at random"
    assert 0 < sum(d[0] == "demo" for d in first[:10]) < 10, "sets are apart"
    monkeypatch.setattr(train_zoo, "SEED", 1)
    assert first != train_zoo.mixed(demo, others, 0.5)


@pytest.fixture
def prepare(train_zoo, tmp_path, monkeypatch):
    """Runs `prepare` on a demo text of ten documents and two sets in shards; gives its folder."""
    (tmp_path / "shards").mkdir()
    write_jsonl(tmp_path / "demo.jsonl", numbered(0, 10), "demo")
    write_jsonl(tmp_path / "shards" / "a.jsonl", numbered(100, 30), "kept")
    write_jsonl(tmp_path / "shards" / "b.jsonl", numbered(200, 30), "unwanted")
    monkeypatch.setattr(train_zoo, "DEMO", str(tmp_path / "demo.jsonl"))
    monkeypatch.setattr(train_zoo, "HELD_OUT", 4)

    def call(*arguments):
        data = tmp_path / f"data-{len(list(tmp_path.iterdir()))}"
        monkeypatch.setattr("sys.argv", ["train_zoo.py", "prepare", "--data", str(data), *arguments])
        train_zoo.main()
        return data

    call.shards = str(tmp_path / "shards")
    return call


def windows_in(folder):
    return np.load(folder / "windows.npy"), np.load(folder / "held_out.npy")


def test_every_token_is_predicted_once_and_what_is_held_out_is_not_trained_on(train_zoo, prepare):
    training, held_out = windows_in(prepare("--shards", prepare.shards, "--demo-share", "0.2"))
    assert training.dtype == held_out.dtype == np.uint16
    assert (training.shape[1], held_out.shape) == (257, (4, 257))
    documents = train_zoo.mixed(train_zoo.documents_of([train_zoo.DEMO]), train_zoo.documents_of([prepare.shards]), 0.2)
    stream, _ = train_zoo.encoded_documents(documents)
    wanted = [stream[start : start + 257].tolist() for start in range(0, len(stream) - 256, 256)]
    assert len(set(map(tuple, wanted))) == len(wanted) > 15
    assert held_out.tolist() == wanted[-4:]
    assert training.tolist() != wanted[:-4], "windows are shuffled"
    assert sorted(training.tolist()) == sorted(wanted[:-4])


def test_sets_that_are_left_out_leave_nothing_and_the_seed_fixes_the_rest(train_zoo, prepare, monkeypatch):
    arguments = ("--shards", prepare.shards, "--demo-share", "0.2", "--leave-out", "unwanted")
    data = prepare(*arguments)
    manifest = json.loads((data / "manifest.json").read_text())
    assert set(manifest["tokens_of_source"]) == {"demo", "kept"}
    texts = load_tokenizer(None).backend.decode_batch(np.concatenate(windows_in(data)).tolist(), skip_special_tokens=False)
    found = {int(number) // 1000 for text in texts for number in re.findall(r"(?<= )\d{6}(?= )", text)}
    assert found <= set(range(100, 130))
    assert len(found) > 20
    for before, after in zip(windows_in(data), windows_in(prepare(*arguments)), strict=True):
        assert np.array_equal(before, after)
    monkeypatch.setattr(train_zoo, "SEED", 1)
    assert not np.array_equal(windows_in(data)[0], windows_in(prepare(*arguments))[0])


def test_too_little_text_and_shares_that_are_none_are_refused_in_one_line(prepare, train_zoo, monkeypatch):
    for share in ("0", "1.5"):
        with pytest.raises(SystemExit, match="--demo-share"):
            prepare("--demo-share", share)
    monkeypatch.setattr(train_zoo, "HELD_OUT", 1000)
    with pytest.raises(SystemExit, match="1000 are held out"):
        prepare()


class Table:
    """In place of a model in training: logits that depend on the latest id alone."""

    device = torch.device("cpu")

    def __init__(self, logits):
        self.logits = logits

    def model(self, ids):
        return self.logits[ids]


def test_held_out_tokens_are_told_apart_by_counts_in_training_and_by_repetition(train_zoo):
    """(1, 2) stood five times in training and is rare, (3, 4) stood six times; both stand twice in a held-out window."""
    training = np.zeros((1, 257), np.uint16)
    training[0, 10:20] = [1, 2] * 5
    training[0, 30:42] = [3, 4] * 6
    held_out = np.full((1, 257), 9, np.uint16)
    for pair, places in (((1, 2), (50, 70)), ((3, 4), (90, 110))):
        for place in places:
            held_out[0, place : place + 2] = pair
    measured, logits = train_zoo.HeldOut(held_out, training), torch.randn(10, 10, generator=torch.Generator().manual_seed(0))
    # Bigrams around the pairs, and the run of nines, are rare as well: never seen in training.
    target = {name: set(np.flatnonzero(where[0]) + 1) for name, where in measured.slices.items()}
    first_rare = {1, 50, 51, 52, 90, 92}
    assert target["first_rare"] == first_rare
    assert target["other"] == first_rare | {91, 111}
    assert target["ar_hit"] == set(range(1, 257)) - target["other"]
    losses, nll = measured.losses(Table(logits)), -logits.log_softmax(-1).numpy()[held_out[0, :-1], held_out[0, 1:]]
    for name, places in {"all": set(range(1, 257)), **target}.items():
        assert losses[name] == pytest.approx(nll[sorted(place - 1 for place in places)].mean(), abs=1e-4), name


def test_who_copies_what_followed_pays_nothing_where_text_is_copied(train_zoo):
    rows = np.stack([np.random.default_rng(i).permutation(300)[:257] for i in range(3)]).astype(np.uint16)
    twice = np.tile(rows[:1, :129], 2)[:, :257]  # so that there are hits to be measured

    class Copying(Table):
        def model(self, ids):
            logits = torch.zeros(*ids.shape, 300)
            for row, values in enumerate(ids.tolist()):
                after = {}
                for i, value in enumerate(values):
                    if value in after:
                        logits[row, i, after[value]] = 50
                    if i + 1 < len(values):
                        after.setdefault(value, values[i + 1])
            return logits

    losses = train_zoo.HeldOut(np.concatenate([rows, twice]), np.zeros((1, 257), np.uint16)).losses(Copying(None))
    assert losses["copied"] == losses["ar_hit"] == pytest.approx(0, abs=1e-3)
    assert losses["first_rare"] == pytest.approx(np.log(300), abs=0.1)


# ------------------------------------------------------------------------------------------------------------- training


def test_matrices_of_linear_layers_in_blocks_learn_by_muon_and_everything_else_by_adamw(train_zoo, small):
    model = LanguageModel(zoo.architecture("small"))
    name_of = {id(parameter): name for name, parameter in model.named_parameters()}
    muon, adamw = train_zoo.optimisers(model)
    found = [[name_of[id(p)] for group in made.param_groups for p in group["params"]] for made in (muon, adamw)]
    wanted = {f"blocks.{i}.mlp.{layer}.weight" for i in (0, 1) for layer in ("up", "down")}
    wanted |= {f"blocks.0.mixer.{layer}.weight" for layer in ("qkv", "out_proj")}
    wanted |= {f"blocks.1.mixer.{layer}.weight" for layer in ("in_proj", "x_proj", "dt_proj", "out_proj")}
    assert isinstance(muon, torch.optim.Muon)
    assert isinstance(adamw, torch.optim.AdamW)
    assert sorted(found[0]) == sorted(wanted)
    assert sorted(found[1]) == sorted(set(name_of.values()) - wanted)


@pytest.mark.parametrize("name", ["rwkv", "hyena", "base-conv-selective"])
def test_no_parameter_of_the_zoo_is_forgotten_or_trained_twice(train_zoo, name):
    config = zoo.ArchitectureConfig(64, 64, zoo.ARCHITECTURES[name].layers, mlp_width=32)
    with torch.device("meta"):
        model = LanguageModel(config)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    muon, adamw = ([p for group in made.param_groups for p in group["params"]] for made in train_zoo.optimisers(model))
    assert sorted(map(id, [*muon, *adamw])) == sorted(names)
    assert all(p.ndim == 2 for p in muon)
    assert not {"embedding.weight", "norm.weight"} & {names[id(p)] for p in muon}


def test_each_optimiser_has_its_own_rate_and_both_follow_the_schedule(train_zoo, data, small, tmp_path):
    trained = run(train_zoo, data, tmp_path)
    for step in range(2):
        trained.advance()
        rates = [group["lr"] for optimiser in trained.optimisers for group in optimiser.param_groups]
        assert rates == pytest.approx([0.02 * (step + 1) / 50, 0.003 * (step + 1) / 50])


def test_what_mixers_add_to_the_loss_is_learnt_and_not_reported(train_zoo, data, monkeypatch, tmp_path):
    # With an output projection that begins at zero nothing but the auxiliary loss reaches the selector in the first step.
    learned = zoo.LayerConfig("selective_attention", {"selection": "learned", "short_conv": 3, "share": 0.01, "penalty": 1000.0})
    monkeypatch.setattr(zoo, "architecture", lambda _: zoo.ArchitectureConfig(VOCAB, 32, (learned,), mlp_width=32))
    trained = run(train_zoo, data, tmp_path)
    selector = trained.model.blocks[0].mixer.selector
    before = {name: value.clone() for name, value in selector.state_dict().items()}
    assert trained.advance() == pytest.approx(np.log(VOCAB), abs=0.2)
    for name, value in selector.state_dict().items():
        assert not torch.equal(value, before[name]), name
    assert selector.score.weight in trained.optimisers[1].state, "a matrix of one row is none for Muon"


def test_windows_are_read_in_their_order_each_once(train_zoo, data, small, tmp_path, monkeypatch):
    trained, read = run(train_zoo, data, tmp_path), []
    trained.model.embedding.register_forward_pre_hook(lambda _, given: read.append(given[0].numpy()))
    for _ in range(STEPS):
        trained.advance()
    assert np.array_equal(np.concatenate(read), np.load(data / "windows.npy")[: STEPS * train_zoo.BATCH, :-1])


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
    assert [point["all"] for point in resumed.curve] == [point["all"] for point in whole.curve]


def test_a_run_of_another_length_is_refused(train_zoo, data, small, tmp_path):
    run(train_zoo, data, tmp_path).save()
    with pytest.raises(SystemExit, match="a run of 6 steps, not 3: choose other --runs"):
        run(train_zoo, data, tmp_path, num_steps=3).restore()


def test_a_run_on_other_windows_is_refused(train_zoo, data, small, tmp_path, monkeypatch):
    monkeypatch.setattr(train_zoo, "_DIGESTED_BYTES", 1000)  # one window at either end
    run(train_zoo, data, tmp_path).save()
    windows = np.load(data / "windows.npy")
    changed = {"longer": np.concatenate([windows, windows[-1:]])}
    for row in (0, -1):
        changed[f"row {row}"] = windows.copy()
        changed[f"row {row}"][row, 5] += 1
    for what, other in changed.items():
        resumed = train_zoo.Run("small", tmp_path, other, np.load(data / "held_out.npy"), STEPS * 1024, "cpu")
        with pytest.raises(SystemExit, match="other windows") as refused:
            resumed.restore()
        assert "\n" not in str(refused.value), what
    assert train_zoo.digest_windows(np.load(data / "windows.npy", mmap_mode="r")) == train_zoo.digest_windows(windows)


def test_a_run_that_was_saved_before_data_had_a_digest_goes_on(train_zoo, data, small, tmp_path):
    begun = run(train_zoo, data, tmp_path)
    begun.advance()
    begun.save()
    saved = torch.load(begun.path, weights_only=True)
    del saved["data"]
    torch.save(saved, begun.path)
    resumed = run(train_zoo, data, tmp_path)
    resumed.restore()
    assert resumed.step == 1


class Touching:
    # A pickle that makes a file when it is loaded as code.

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_saved_runs_are_loaded_as_weights_alone(train_zoo, data, small, tmp_path):
    trained = run(train_zoo, data, tmp_path)
    torch.save({"model": Touching(tmp_path / "touched")}, trained.path)
    options = SimpleNamespace(names=["small"], data=data, runs=tmp_path, to=tmp_path / "zoo")
    for load in (trained.restore, lambda: train_zoo.export(options)):
        with pytest.raises(pickle.UnpicklingError):
            load()
    assert not (tmp_path / "touched").exists()


@pytest.mark.parametrize("value", [7e4, -7e4, float("nan")])
def test_weights_beyond_float16_are_not_exported(train_zoo, data, small, tmp_path, value):
    trained = run(train_zoo, data, tmp_path)
    with torch.no_grad():
        trained.model.norm.weight[3] = value
    trained.save()
    options = SimpleNamespace(names=["small"], data=data, runs=tmp_path, to=tmp_path / "zoo")
    with pytest.raises(SystemExit, match=r"small: weight norm\.weight"):
        train_zoo.export(options)
    assert not (tmp_path / "zoo").exists()


def test_more_tokens_than_are_prepared_are_refused(train_zoo, data, tmp_path):
    options = SimpleNamespace(names=["small"], data=data, runs=tmp_path, tokens=10**9, device="cpu", threads=1)
    with pytest.raises(SystemExit, match="prepare more"):
        train_zoo.train(options)


def test_it_learns_which_tokens_are_frequent(train_zoo, data, small, tmp_path, monkeypatch):
    monkeypatch.setattr(train_zoo, "WARM_UP_STEPS", 1)
    trained = run(train_zoo, data, tmp_path)
    before = trained.measure()["all"]
    assert before == pytest.approx(np.log(VOCAB), abs=0.1)
    list(train_zoo.steps(trained))
    assert trained.curve[-1]["all"] < before - 0.2


def test_the_learning_rate_rises_stays_and_falls(train_zoo, data, small, tmp_path):
    trained = run(train_zoo, data, tmp_path)
    trained.num_steps = 1000
    shares = []
    for trained.step in range(1000):
        shares.append(trained._learning_share())
    assert shares[0] == pytest.approx(1 / 50)
    assert set(shares[49:600]) == {1.0}
    assert shares[800] == pytest.approx(0.5)
    assert min(shares[900:]) == pytest.approx(0.02)


def test_queries_begin_as_keys_and_look_one_token_back(train_zoo):
    from recallkit.models.mixers import make_mixer

    for kind in ("attention", "linear_attention", "retnet", "selective_attention"):
        mixer = make_mixer(kind, 32, num_heads=2, short_conv=3)
        with torch.no_grad():
            train_zoo.start_mimetic(mixer)
        queries, keys = train_zoo.query_and_key_rows(mixer)
        assert torch.equal(queries, keys)
        taps = mixer.short_conv.conv.weight[:, 0]
        assert set(map(tuple, taps[: len(queries)].tolist())) == {(0, 0, 1)}
        assert set(map(tuple, taps[len(queries) : 2 * len(queries)].tolist())) == {(0, 0.5, 0.5)}
    hyena = make_mixer("hyena", 32, max_length=16)
    before = {name: value.clone() for name, value in hyena.state_dict().items()}
    train_zoo.start_mimetic(hyena)
    assert all(torch.equal(value, before[name]) for name, value in hyena.state_dict().items())


def test_the_text_repeats_where_it_is_made_to(train_zoo):
    rng = np.random.default_rng(0)
    windows = rng.integers(0, 60_000, (50, 257)).astype(np.uint16)
    changed = windows.copy()
    train_zoo.repeat_stretches(changed)
    for before, after in zip(windows, changed, strict=True):
        places = np.flatnonzero(before != after)
        first, last = places[0], places[-1]
        source = np.flatnonzero(before == after[first])
        assert any(np.array_equal(before[s : s + last - first + 1], after[first : last + 1]) for s in source if s < first)


# ------------------------------------------------------------------------------------------------------------- shipping


def test_what_is_exported_loads_and_its_counts_are_exact(train_zoo, data, small, tmp_path):
    trained = run(train_zoo, data, tmp_path / "runs")
    list(train_zoo.steps(trained))
    options = SimpleNamespace(names=["small"], data=data, runs=tmp_path / "runs", to=tmp_path / "zoo", tokens=STEPS * 1024)
    train_zoo.export(options)
    train_zoo.count(options)
    card = json.loads((tmp_path / "zoo" / "small" / "card.json").read_text())
    assert card["tokens"] == STEPS * 1024
    assert card["curve"] == trained.curve
    model = load_model(ModelRequest(str(tmp_path / "zoo" / "small"), VOCAB, device="cpu"))
    held_out = np.load(data / "held_out.npy")
    nll = model.score(held_out.astype(np.uint32).ravel(), np.arange(len(held_out) + 1) * 257).nll
    assert nll.mean() == pytest.approx(trained.curve[-1]["all"], abs=0.02)
    counts = pl.read_parquet(tmp_path / "zoo" / "training_bigrams.parquet", glob=False)
    wanted: dict[tuple[int, int], int] = {}
    for window in np.load(data / "windows.npy")[: STEPS * train_zoo.BATCH].tolist():
        for pair in itertools.pairwise(window):
            wanted[pair] = wanted.get(pair, 0) + 1
    assert {(first, second): n for first, second, n in counts.iter_rows()} == wanted
